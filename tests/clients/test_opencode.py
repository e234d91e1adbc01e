"""opencode, headless: a whole task with its own tools, and a second turn of the same session."""
import json
import os
import pathlib
import platform
import subprocess
import tempfile

from clients import SCREENSHOT, Scripted, Skip, install, main

# WORK: the folder that it works in.
SCRIPT = """\
=== has=You are a title generator
The word in the file
=== results=0
I shall look.
<tool_call>
{"name": "read", "arguments": {"filePath": "WORK/word.txt"}}
</tool_call>
=== results=1
<tool_call>
{"name": "write", "arguments": {"filePath": "WORK/copy.txt", "content": "heddle \\"quoted\\"\\n\\ttab, \\u00e9\\n"}}
</tool_call>
=== results=2
<tool_call>
{"name": "bash", "arguments": {"command": "wc -c < copy.txt; ls", "description": "Count and list"}}
</tool_call>
<tool_call>
{"name": "read", "arguments": {"filePath": "WORK/nothing.txt"}}
</tool_call>
=== results=4 has=Once more, please.
It still is heddle.
=== results=4
The word is heddle; I have copied it.
"""

# A screenshot that it reads itself, or one that it is given.
LOOKS = """\
=== has=You are a title generator
A screenshot
=== results=0 has=<|image_pad|><|image_pad|>
It was given a chat.
=== results=0
<tool_call>
{"name": "read", "arguments": {"filePath": "WORK/shot.png"}}
</tool_call>
=== has=<|image_pad|><|image_pad|>
It shows a chat.
===
There is no picture.
"""


def program():
    """The package of npm that opencode-ai takes its program from on this machine."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Skip("opencode is tested on Linux and x86-64 alone")
    return str(install("opencode") / "node_modules" / "opencode-linux-x64" / "bin" / "opencode")


class Home:
    """A home and a project of its own, so that nothing of this machine's configuration is read."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="weft-opencode-")
        self.root = pathlib.Path(self.folder.name).resolve()
        self.work = self.root / "work"
        self.work.mkdir()
        (self.work / "word.txt").write_text("the word is heddle\n")

    def configure(self, url, npm, sees=False):
        model = {"name": "scripted", "limit": {"context": 131072, "output": 4096}}
        if sees:
            model |= {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}
        provider = {"npm": npm, "options": {"baseURL": url + "/v1", "apiKey": "none"}, "models": {"scripted": model}}
        config = {
            "provider": {"weft": provider},
            "model": "weft/scripted",
            "small_model": "weft/scripted",
            "autoupdate": False,
            "share": "disabled",
            "permission": {"edit": "allow", "bash": "allow"},
        }
        (self.work / "opencode.json").write_text(json.dumps(config))

    def run(self, opencode, *args):
        """The events that it prints."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.root)}
        for name in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD"):
            env["OPENCODE_DISABLE_" + name] = "1"
        done = subprocess.run(
            [opencode, "run", "--format", "json", *args], cwd=self.work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def texts(events):
    return [e["part"]["text"] for e in events if e["type"] == "text"]


def work(npm):
    opencode, home = program(), Home()
    with Scripted(SCRIPT.replace("WORK", str(home.work)), "--name", "scripted") as s:
        home.configure(s.url, npm)
        events = home.run(opencode, "Copy the word.")
        tools = [e["part"] for e in events if e["type"] == "tool_use"]
        tools = [tools[0], tools[1], *sorted(tools[2:], key=lambda t: t["tool"])]  # the last two run side by side
        assert [(t["tool"], t["state"]["status"]) for t in tools] == [
            ("read", "completed"),
            ("write", "completed"),
            ("bash", "completed"),
            ("read", "error"),
        ], tools
        assert (home.work / "copy.txt").read_text() == 'heddle "quoted"\n\ttab, \u00e9\n'
        assert tools[2]["state"]["output"].split()[:2] == ["25", "copy.txt"], tools[2]
        assert texts(events) == ["I shall look.", "The word is heddle; I have copied it."], events
        steps = [e["part"] for e in events if e["type"] == "step_finish"]
        assert [x["reason"] for x in steps] == ["tool-calls"] * 3 + ["stop"], steps
        # Its context meter shows what was found in the cache, and in Messages, where it marks the prompt, what was put there.
        computed = [x["tokens"]["input"] + x["tokens"]["cache"]["write"] for x in steps]
        assert computed[0] > 1000 and all(x["tokens"]["cache"]["read"] > computed[0] // 2 for x in steps[1:]), steps
        assert (steps[0]["tokens"]["cache"]["write"] > 1000) == (npm == "@ai-sdk/anthropic"), steps

        events = home.run(opencode, "--continue", "Once more, please.")
        assert texts(events) == ["It still is heddle."], events
        turns = [r for r in s.runs if r["answer"] > 0]
        assert len(turns) == 5
        # Every turn goes on where the one before ended: whatever was computed is found again.
        for before, after in zip(turns, turns[1:]):
            assert after["n_cached"] >= before["n_prompt"] // 16 * 16, (before["n_prompt"], after["n_cached"])
        assert len({r["session"] for r in turns}) == 1 and int(turns[0]["session"], 16), "one session"


def look(npm):
    opencode, home = program(), Home()
    (home.work / "shot.png").write_bytes(SCREENSHOT.read_bytes())
    with Scripted(LOOKS.replace("WORK", str(home.work)), "--name", "scripted", sees=True) as s:
        home.configure(s.url, npm, sees=True)
        for answer, args in ("It shows a chat.", ["What is on shot.png?"]), ("It was given a chat.", ["What is on it?", "--file", "shot.png"]):
            assert texts(home.run(opencode, *args)) == [answer]
            assert s.runs[-1]["prompt"].count("<|vision_start|>") == 1, s.runs[-1]["prompt"][-2000:]


def test_opencode_shows_a_screenshot_by_chat_completions():
    look("@ai-sdk/openai-compatible")


def test_opencode_shows_a_screenshot_by_responses():
    look("@ai-sdk/openai")


def test_opencode_shows_a_screenshot_by_messages():
    look("@ai-sdk/anthropic")


def test_opencode_reads_writes_runs_and_answers_by_chat_completions():
    work("@ai-sdk/openai-compatible")


def test_opencode_does_the_same_by_responses():
    work("@ai-sdk/openai")


def test_opencode_does_the_same_by_messages():
    work("@ai-sdk/anthropic")


if __name__ == "__main__":
    main(globals())
