"""Claude Code, headless, as it comes: a whole task with its own tools and thoughts, and a second turn of the session."""
import base64
import json
import os
import pathlib
import platform
import subprocess
import tempfile
import time

from clients import SCREENSHOT, SOURCE, Scripted, Skip, install, main

# WORK: the folder that it works in.
SCRIPT = """\
=== results=0
<think>
A word, in a file.
</think>

I shall look.
<tool_call>
{"name": "Read", "arguments": {"file_path": "WORK/word.txt"}}
</tool_call>
=== results=1
<think>
It is heddle.
</think>

<tool_call>
{"name": "Write", "arguments": {"file_path": "WORK/copy.txt", "content": "heddle \\"quoted\\"\\n\\ttab, \\u00e9\\n"}}
</tool_call>
=== results=2
<tool_call>
{"name": "Bash", "arguments": {"command": "wc -c < copy.txt", "description": "Count"}}
</tool_call>
<tool_call>
{"name": "Read", "arguments": {"file_path": "WORK/nothing.txt"}}
</tool_call>
=== results=4 has=Once more, please.
It still is heddle.
=== results=4
The word is heddle; I have copied it.
"""

# A tool that is only named at first: its description comes with the result of ToolSearch.
DEFERRED = """\
=== results=0
<tool_call>
{"name": "ToolSearch", "arguments": {"query": "select:TaskStop", "max_results": 5}}
</tool_call>
=== results=1 has=<function>{"description":
<tool_call>
{"name": "TaskStop", "arguments": {"task_id": "none"}}
</tool_call>
=== results=2
There was no such task.
"""


# A screenshot that it reads itself, in the result of its tool; or one that it is given.
LOOKS = """\
=== results=0 has=<|image_pad|><|image_pad|>
It was given a chat.
=== results=0
<tool_call>
{"name": "Read", "arguments": {"file_path": "WORK/shot.png"}}
</tool_call>
=== results=1 has=<|image_pad|><|image_pad|>
It shows a chat.
=== results=1
There is no picture.
"""

# Its web search is a request of its own, with a tool of Anthropic's servers alone.
SEARCHES = """\
=== has=You run a web search
I found looms.
=== results=0
<tool_call>
{"name": "WebSearch", "arguments": {"query": "heddle looms"}}
</tool_call>
=== results=1 has=hold a web search alone, which is not available here
There is no search here.
=== results=1
It found something.
"""


def program():
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Skip("Claude Code is tested on Linux and x86-64 alone")
    return str(install("claude-code") / "node_modules" / "@anthropic-ai" / "claude-code-linux-x64" / "claude")


class Home:
    """A home and a project of its own, so that nothing of this machine's configuration is read."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="weft-claude-code-")
        self.root = pathlib.Path(self.folder.name).resolve()
        self.work = self.root / "work"
        self.work.mkdir()
        (self.work / "word.txt").write_text("the word is heddle\n")

    def run(self, claude, url, *args, given=None, status=0):
        """The messages that it prints before it exits with @status. @given: the content of the user's message, in place of
        one argument."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.root), "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none"}
        env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] = env["DISABLE_AUTOUPDATER"] = "1"
        done = subprocess.run(
            [claude, "-p", *args, *(["--input-format", "stream-json"] if given else []), "--output-format", "stream-json", "--verbose", "--allowedTools", "Bash,Read,TaskStop,ToolSearch,WebSearch,Write"],
            cwd=self.work,
            env=env,
            input=json.dumps({"type": "user", "message": {"role": "user", "content": given}}) + "\n" if given else "",
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == status, (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def blocks(events, side, kind):
    return [b for e in events if e["type"] == side for b in e["message"]["content"] if isinstance(b, dict) and b["type"] == kind]


def check_turns(runs):
    """Every turn goes on where the one before ended: whatever was computed is found again."""
    for before, after in zip(runs, runs[1:]):
        assert after["n_cached"] >= before["n_prompt"] // 16 * 16, (before["n_prompt"], after["n_cached"])
    assert len({r["session"] for r in runs}) == 1 and int(runs[0]["session"], 16), "one session"
    for r in runs:
        assert "x-anthropic-billing-header" not in r["prompt"]


def test_claude_code_reads_writes_runs_and_answers():
    claude, home = program(), Home()
    template = (SOURCE / "thinking.jinja").read_text()
    with Scripted(SCRIPT.replace("WORK", str(home.work)), template=template) as s:
        events = home.run(claude, s.url, "Copy the word.")
        assert [b["name"] for b in blocks(events, "assistant", "tool_use")] == ["Read", "Write", "Bash", "Read"]
        results = blocks(events, "user", "tool_result")
        assert sorted(bool(r.get("is_error")) for r in results) == [False, False, False, True], results
        assert (home.work / "copy.txt").read_text() == 'heddle "quoted"\n\ttab, \u00e9\n'
        end = events[-1]
        assert (end["type"], end["subtype"], end["is_error"]) == ("result", "success", False), end
        assert end["result"] == "The word is heddle; I have copied it."
        assert end["usage"]["cache_read_input_tokens"] > end["usage"]["input_tokens"] > 0, end["usage"]
        runs = s.runs
        assert [r["answer"] for r in runs] == [0, 1, 2, 4]
        check_turns(runs)
        # The last two tools run side by side, but the model sees their results in its own order.
        *_, counted, missing = runs[-1]["prompt"].split("<tool_response>")
        assert "25" in counted and "does not exist" in missing, runs[-1]["prompt"][-600:]
        # What it thought goes back to the model with the calls.
        assert "It is heddle." in runs[-1]["prompt"] and "A word, in a file." in runs[-1]["prompt"]

        events = home.run(claude, s.url, "--continue", "Once more, please.")
        assert events[-1]["result"] == "It still is heddle.", events[-1]
        assert s.runs[-1]["n_cached"] >= runs[-1]["n_prompt"] // 2


def test_claude_code_finds_deferred_tools():
    claude, home = program(), Home()
    with Scripted(DEFERRED) as s:
        events = home.run(claude, s.url, "Stop the task.")
        assert [b["name"] for b in blocks(events, "assistant", "tool_use")] == ["ToolSearch", "TaskStop"]
        assert events[-1]["result"] == "There was no such task."
        first, *_, last = s.runs
        check_turns(s.runs)
        assert '"name":"TaskStop"' in last["prompt"] and "DeferredToolPlaceholder" not in first["prompt"]


def test_claude_code_shows_a_screenshot_to_the_model():
    claude, home = program(), Home()
    (home.work / "shot.png").write_bytes(SCREENSHOT.read_bytes())
    with Scripted(LOOKS.replace("WORK", str(home.work)), template=(SOURCE / "thinking.jinja").read_text(), sees=True) as s:
        events = home.run(claude, s.url, "What is on shot.png?")
        assert [b["name"] for b in blocks(events, "assistant", "tool_use")] == ["Read"]
        assert events[-1]["result"] == "It shows a chat.", events[-1]
        assert s.runs[-1]["prompt"].count("<|vision_start|>") == 1, s.runs[-1]["prompt"][-500:]

        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(SCREENSHOT.read_bytes()).decode()}
        events = home.run(claude, s.url, given=[{"type": "image", "source": source}, {"type": "text", "text": "What is on it?"}])
        assert events[-1]["result"] == "It was given a chat.", events[-1]
        assert s.runs[-1]["prompt"].count("<|vision_start|>") == 1, s.runs[-1]["prompt"][-500:]


def test_claude_code_leaves_out_a_picture_that_the_model_cannot_see():
    claude, home = program(), Home()
    with Scripted("===\nI cannot see it.\n") as s:
        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(SCREENSHOT.read_bytes()).decode()}
        events = home.run(claude, s.url, given=[{"type": "image", "source": source}, {"type": "text", "text": "What is on it?"}])
        assert events[-1]["result"] == "I cannot see it.", events[-1]


def test_claude_code_hears_that_nothing_is_searched():
    claude, home = program(), Home()
    with Scripted(SEARCHES) as s:
        events = home.run(claude, s.url, "Search the web.")
        assert events[-1]["result"] == "There is no search here.", events[-1]


def test_claude_code_says_at_once_that_the_key_is_wrong():
    claude, home = program(), Home()
    keys = home.root / "keys"
    keys.write_text("alice:another\n")
    with Scripted("===\nNo.\n", "--api-keys", str(keys)) as s:
        start = time.monotonic()
        end = home.run(claude, s.url, "Hello.", status=1)[-1]
        assert end["is_error"] and "Incorrect API key" in end["result"], end
        assert time.monotonic() - start < 60, "it has tried again"


if __name__ == "__main__":
    main(globals())
