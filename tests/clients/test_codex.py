"""The Codex CLI, headless, as it comes: a whole task with a shell, a patch and thoughts, and a second turn of the session."""
import json
import os
import pathlib
import platform
import subprocess
import tempfile

from clients import SCREENSHOT, SOURCE, Scripted, Skip, install, main

# To a model that it knows Codex gives a freeform tool for patches.
SCRIPT = """\
=== has=Once more, please.
It still is heddle.
=== results=0
<think>
A word, in a file.
</think>

I shall look.
<tool_call>
{"name": "exec_command", "arguments": {"cmd": "cat word.txt"}}
</tool_call>
=== results=1 lacks=A word, in a file.
My thoughts are gone.
=== results=1
<think>
It is heddle.
</think>

<tool_call>
{"name": "apply_patch", "arguments": {"input": "*** Begin Patch\\n*** Add File: copy.txt\\n+heddle \\"quoted\\" \\\\n \\u00e9 \\ud83d\\ude00\\n*** End Patch\\n"}}
</tool_call>
=== results=2
<tool_call>
{"name": "exec_command", "arguments": {"cmd": "wc -l < copy.txt"}}
</tool_call>
<tool_call>
{"name": "exec_command", "arguments": {"cmd": "cat nothing.txt"}}
</tool_call>
=== results=4
The word is heddle; I have copied it.
"""

# A model that it does not know: tools in a namespace.
NAMESPACE = """\
=== results=0
<tool_call>
{"name": "multi_agent_v1__close_agent", "arguments": {"target": "nobody"}}
</tool_call>
=== results=1
There is no such agent.
"""

# The tool of an MCP server.
MCP = """\
=== results=0
<tool_call>
{"name": "mcp__loom__twist", "arguments": {"word": "heddle"}}
</tool_call>
=== results=1 has=elddeh
It is elddeh.
"""
LOOM = """
[mcp_servers.loom]
command = "node"
args = ["%s"]
"""

# A conversation that has become too long: Codex asks for a summary and goes on from it.
COMPACTS = """\
=== has=CONTEXT CHECKPOINT
The numbers have been counted.
=== results=0 has=The numbers have been counted.
All is counted.
=== results=0
<tool_call>
{"name": "exec_command", "arguments": {"cmd": "seq 1 4000"}}
</tool_call>
=== results=1
It was not made shorter.
"""

# The search of tools that Codex runs itself for a model that it knows: what it finds can be called.
SEARCH = """\
=== results=0
<tool_call>
{"name": "tool_search", "arguments": {"query": "twist a word"}}
</tool_call>
=== results=1 has=mcp__loom
<tool_call>
{"name": "mcp__loom__twist", "arguments": {"word": "heddle"}}
</tool_call>
=== results=2 has=elddeh
It is elddeh.
"""

# Without a name of a model Codex sends its tools as an item.
NAMELESS = """\
=== results=0 has=functions__exec
<tool_call>
{"name": "functions__exec", "arguments": {"input": "text('hed' + 'dle')"}}
</tool_call>
=== results=1 has=heddle
The word is heddle.
"""

# A conversation that has become too long, with Codex' own provider: the server writes the summary.
SUMMARY = """\
=== has=Write a summary of this conversation
The numbers have been counted.
=== results=0 has=The numbers have been counted.
All is counted.
=== results=0
<tool_call>
{"name": "exec_command", "arguments": {"cmd": "seq 1 4000"}}
</tool_call>
=== results=1
It was not made shorter.
"""

# Its tool for pictures gives one back as the output of the call; -i puts one into the user's message.
LOOKS = """\
=== has=given.png
It was given a picture.
=== results=0
<tool_call>
{"name": "view_image", "arguments": {"path": "shot.png"}}
</tool_call>
=== results=1 has=<|image_pad|><|image_pad|>
It shows a chat.
=== results=1
There is no picture.
"""

OWN_PROVIDER = """\
model = "gpt-5.5"
openai_base_url = "%s/v1"
model_context_window = 100000
model_auto_compact_token_limit = 24000
"""

CONFIG = """\
model = "%s"
model_provider = "weft"
%s
[model_providers.weft]
name = "weft"
base_url = "%s/v1"
wire_api = "responses"
stream_idle_timeout_ms = %d
request_max_retries = 0
stream_max_retries = 1
"""


def program():
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Skip("Codex is tested on Linux and x86-64 alone")
    return install("codex") / "node_modules" / ".bin" / "codex"


class Codex:
    """A home, a folder to work in and a server."""

    def __init__(self, script, *flags, model="scripted", idle_ms=60000, settings="", more="", sees=False):
        self.program, self.model = program(), model
        self.config = lambda url: CONFIG % (model, settings, url, idle_ms) + more
        self.server = Scripted(script, "--name", model, *flags, template=(SOURCE / "thinking.jinja").read_text(), sees=sees)
        self.folder = tempfile.TemporaryDirectory(prefix="weft-codex-")
        self.work, self.home = pathlib.Path(self.folder.name, "work"), pathlib.Path(self.folder.name, "home")

    def __enter__(self):
        self.server.__enter__()
        self.work.mkdir()
        self.home.mkdir()
        (self.work / "word.txt").write_text("heddle\n")
        (self.home / "config.toml").write_text(self.config(self.server.url))
        return self

    def __exit__(self, *why):
        self.folder.cleanup()
        self.server.__exit__(*why)

    def run(self, *words, prompt="", errors=False):
        """The items that it reports, with @errors those too, and how its turn ended. @prompt: more of it."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "CODEX_"))}
        command = [self.program, "exec", "--json", "--skip-git-repo-check", "-s", "danger-full-access", *words]
        done = subprocess.run(
            command, cwd=self.work, env={**env, "CODEX_HOME": str(self.home), "HOME": str(self.home), "CODEX_API_KEY": "none"},
            input=prompt, capture_output=True, text=True, timeout=120,
        )
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        items = [e["item"] for e in events if e["type"] == "item.completed"]
        ends = [e for e in events if e["type"] in ("turn.completed", "turn.failed")]
        assert ends, (done.returncode, done.stdout, done.stderr)
        return [i for i in items if errors or i["type"] != "error"], ends[-1]


def of(items, kind):
    return [i for i in items if i["type"] == kind]


def test_a_task_with_shell_patch_and_thoughts():
    with Codex(SCRIPT, model="gpt-5.5") as c:
        items, end = c.run("Which word is in word.txt? Copy it.")
        assert end["type"] == "turn.completed", end
        assert [i["text"] for i in of(items, "agent_message")] == ["I shall look.", "The word is heddle; I have copied it."], items
        # Calls of one answer run at once, and end in any order.
        commands = {i["command"].split("'")[1]: (i["exit_code"], i["aggregated_output"]) for i in of(items, "command_execution")}
        assert commands["cat word.txt"] == (0, "heddle\n") and commands["wc -l < copy.txt"] == (0, "1\n"), commands
        code, text = commands["cat nothing.txt"]
        assert len(commands) == 3 and code != 0 and "nothing.txt" in text, commands
        assert (c.work / "copy.txt").read_text() == 'heddle "quoted" \\n \u00e9 \U0001f600\n'
        assert end["usage"]["cached_input_tokens"] > end["usage"]["input_tokens"] / 2, end
        assert end["usage"]["reasoning_output_tokens"] > 0, end
        runs = c.server.runs
        assert [r["answer"] for r in runs] == [1, 3, 4, 5], runs
        # What the model said comes back as it was said.
        assert all(r["n_cached"] > r["n_prompt"] * 0.9 for r in runs[1:]), runs

        items, end = c.run("resume", "--last", "Once more, please.")
        assert [i["text"] for i in of(items, "agent_message")] == ["It still is heddle."], (items, end)
        assert "It is heddle." in c.server.runs[-1]["prompt"]


def test_tools_in_a_namespace():
    with Codex(NAMESPACE) as c:
        items, end = c.run("Close the agent nobody.")
        assert end["type"] == "turn.completed", end
        assert [i["text"] for i in of(items, "agent_message")] == ["There is no such agent."], items
        assert "invalid agent id nobody" in c.server.runs[-1]["prompt"]


def test_tools_of_an_mcp_server():
    with Codex(MCP, more=LOOM % (SOURCE / "codex" / "mcp.mjs")) as c:
        items, end = c.run("Twist the word heddle.")
        assert [i["text"] for i in of(items, "agent_message")] == ["It is elddeh."], (items, end)
        call = of(items, "mcp_tool_call")[0]
        assert (call["server"], call["tool"], call["arguments"]) == ("loom", "twist", {"word": "heddle"}), call


def test_a_long_conversation_is_compacted():
    with Codex(COMPACTS, settings="model_context_window = 100000\nmodel_auto_compact_token_limit = 24000") as c:
        items, end = c.run("Count to 4000.")
        assert [i["text"] for i in of(items, "agent_message")] == ["All is counted."], (items, end)
        assert [r["answer"] for r in c.server.runs] == [2, 0, 1], [r["answer"] for r in c.server.runs]


def test_tools_that_a_search_finds():
    with Codex(SEARCH, model="gpt-5.5", more=LOOM % (SOURCE / "codex" / "mcp.mjs")) as c:
        items, end = c.run("Twist the word heddle.")
        assert [i["text"] for i in of(items, "agent_message")] == ["It is elddeh."], (items, end)
        runs = c.server.runs
        assert all(r["n_cached"] > r["n_prompt"] * 0.9 for r in runs[1:]), runs


def test_without_a_name_of_a_model():
    with Codex(NAMELESS, model="gpt-6.2-sol") as c:  # the default of this Codex
        config = (c.home / "config.toml").read_text()
        (c.home / "config.toml").write_text(config.split("\n", 1)[1])
        items, end = c.run("Which word is it?")
        assert [i["text"] for i in of(items, "agent_message")] == ["The word is heddle."], (items, end)


def test_its_own_provider():
    with Codex(SUMMARY, model="gpt-5.5") as c:
        (c.home / "config.toml").write_text(OWN_PROVIDER % c.server.url)
        items, end = c.run("Count to 4000.", errors=True)
        assert [i["text"] for i in of(items, "agent_message")] == ["All is counted."], (items, end)
        assert not of(items, "error"), items
        runs = c.server.runs
        assert [r["answer"] for r in runs] == [2, 2, 0, 1], [r["answer"] for r in runs]
        # It speaks WebSocket: instructions and tools are computed before there is a question.
        assert runs[0]["max_new"] == 1 and runs[1]["n_cached"] > runs[0]["n_prompt"] / 2, runs


def test_a_task_over_a_websocket():
    with Codex(SCRIPT, model="gpt-5.5") as c:
        (c.home / "config.toml").write_text('model = "gpt-5.5"\nopenai_base_url = "%s/v1"\n' % c.server.url)
        items, end = c.run("Which word is in word.txt? Copy it.", errors=True)
        assert [i["text"] for i in of(items, "agent_message")] == ["I shall look.", "The word is heddle; I have copied it."], (items, end)
        assert (c.work / "copy.txt").read_text() == 'heddle "quoted" \\n \u00e9 \U0001f600\n'
        runs = c.server.runs
        assert runs[0]["max_new"] == 1 and [r["answer"] for r in runs[1:]] == [1, 3, 4, 5], runs
        assert all(r["n_cached"] > r["n_prompt"] * 0.9 for r in runs[2:]), runs


def test_a_screenshot_in_a_result_and_in_a_message():
    with Codex(LOOKS, model="gpt-5.5", sees=True) as c:
        (c.work / "shot.png").write_bytes(SCREENSHOT.read_bytes())
        items, end = c.run("What is on shot.png?")
        assert [i["text"] for i in of(items, "agent_message")] == ["It shows a chat."], (items, end)
        assert c.server.runs[-1]["prompt"].count("<|vision_start|>") == 1
        items, end = c.run("-i", "shot.png", "--", "What is on given.png?")
        assert [i["text"] for i in of(items, "agent_message")] == ["It was given a picture."], (items, end)
        assert c.server.runs[-1]["prompt"].count("<|vision_start|>") == 1


def test_silence_is_not_taken_for_the_end():
    # Pauses are longer than its patience, which only events renew.
    with Codex("===\nYes, I am here.\n", "--pause-ms", "2500", "--keepalive-ms", "200", "--tokens", "4", idle_ms=1500) as c:
        items, end = c.run("Are you there?")
        assert [i["text"] for i in of(items, "agent_message")] == ["Yes, I am here."], (items, end)
        assert len(c.server.runs) == 1, "it was asked again"


def test_a_failure_is_told():
    with Codex("=== fail=500\n") as c:
        _, end = c.run("Are you there?")
        assert end["type"] == "turn.failed" and "The script says so." in end["error"]["message"], end
    with Codex("===\nYes.\n") as c:
        _, end = c.run("-", prompt="word " * 180000)
        assert end["type"] == "turn.failed" and "context window" in end["error"]["message"], end


main(globals())
