"""Continue's command line, with the file that weftctl launch writes: a task with its own tools."""
import os
import pathlib
import subprocess
import tempfile

from clients import BUILD, Scripted, install, main

# WORK: the folder that it works in.
SCRIPT = """\
=== results=0
<tool_call>
{"name": "Read", "arguments": {"filepath": "WORK/word.txt"}}
</tool_call>
===
The word is heddle.
"""


def test_continue_reads_and_answers():
    program = str(install("continue") / "node_modules" / "@continuedev" / "cli" / "dist" / "cn.js")
    with tempfile.TemporaryDirectory(prefix="weft-continue-") as home:
        work = pathlib.Path(home).resolve() / "work"
        work.mkdir()
        (work / "word.txt").write_text("the word is heddle\n")
        with Scripted(SCRIPT.replace("WORK", str(work)), "--name", "scripted") as s:
            env = {"PATH": os.environ["PATH"], "HOME": home, "CONTINUE_CLI_ENABLE_TELEMETRY": "0"}
            command = [str(BUILD / "weftctl"), "launch", "continue", "--write", "--url", s.url]
            subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
            command = ["node", program, "-p", "Tell me the word."]
            done = subprocess.run(command, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0 and "The word is heddle." in done.stdout, (done.returncode, done.stdout, done.stderr)
            assert "the word is heddle" in s.runs[-1]["prompt"], s.runs[-1]["prompt"][-1500:]


if __name__ == "__main__":
    main(globals())
