"""Copilot's command line, started by weftctl launch: a task with its own tools."""
import os
import pathlib
import platform
import subprocess
import tempfile

from clients import BUILD, Scripted, Skip, install, main

# WORK: the folder that it works in.
SCRIPT = """\
=== results=0
I shall look.
<tool_call>
{"name": "view", "arguments": {"path": "WORK/word.txt"}}
</tool_call>
===
The word is heddle.
"""


def program():
    """The program in the package of npm that Copilot takes it from on this machine."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Skip("Copilot is tested on Linux and x86-64 alone")
    return install("copilot") / "node_modules" / "@github" / "copilot-linux-x64" / "copilot"


def test_copilot_reads_and_answers():
    package = program()
    with tempfile.TemporaryDirectory(prefix="weft-copilot-") as home:
        work, folder = pathlib.Path(home).resolve() / "work", pathlib.Path(home) / "bin"
        work.mkdir()
        folder.mkdir()
        (folder / "copilot").symlink_to(package)
        (work / "word.txt").write_text("the word is heddle\n")
        with Scripted(SCRIPT.replace("WORK", str(work)), "--name", "scripted") as s:
            env = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": home, "COPILOT_AUTO_UPDATE": "false"}
            command = [str(BUILD / "weftctl"), "launch", "copilot", "--url", s.url, "--", "-p", "Tell me the word.", "--allow-all-tools"]
            done = subprocess.run(command, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0 and "The word is heddle." in done.stdout, (done.returncode, done.stdout, done.stderr)
            assert "the word is heddle" in s.runs[-1]["prompt"], s.runs[-1]["prompt"][-1500:]


if __name__ == "__main__":
    main(globals())
