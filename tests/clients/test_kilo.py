"""Kilo Code's command line, started by weftctl launch: a task with its own tools."""
import os
import pathlib
import platform
import subprocess
import tempfile

from clients import BUILD, Scripted, Skip, install, main

# WORK: the folder that it works in.
SCRIPT = """\
=== has=You are a title generator
The word in the file
=== results=0
I shall look.
<tool_call>
{"name": "read", "arguments": {"filePath": "WORK/word.txt"}}
</tool_call>
===
The word is heddle.
"""


def program():
    """The folder of the program in the package of npm that Kilo takes it from on this machine."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Skip("Kilo is tested on Linux and x86-64 alone")
    return str(install("kilo") / "node_modules" / "@kilocode" / "cli-linux-x64" / "bin")


def test_kilo_reads_and_answers():
    folder = program()
    with tempfile.TemporaryDirectory(prefix="weft-kilo-") as home:
        work = pathlib.Path(home).resolve() / "work"
        work.mkdir()
        (work / "word.txt").write_text("the word is heddle\n")
        with Scripted(SCRIPT.replace("WORK", str(work)), "--name", "scripted") as s:
            env = {"PATH": folder + ":" + os.environ["PATH"], "HOME": home, "KILO_DISABLE_AUTOUPDATE": "1"}
            command = [str(BUILD / "weftctl"), "launch", "kilo", "--url", s.url, "--", "run", "Tell me the word."]
            done = subprocess.run(command, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0 and "The word is heddle." in done.stdout, (done.returncode, done.stdout, done.stderr)
            turns = [r for r in s.runs if r["max_new"] > 1 and "title generator" not in r["prompt"]]
            assert "the word is heddle" in turns[-1]["prompt"], turns[-1]["prompt"][-1500:]


if __name__ == "__main__":
    main(globals())
