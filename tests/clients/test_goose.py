"""Goose, headless, started by weftctl launch: a whole task with its own tools, and a second turn of the same session."""
import os
import pathlib
import platform
import subprocess
import tempfile

from clients import BUILD, Scripted, Skip, install, main

SCRIPT = """\
=== has=Generate a short title
The word in the file
=== results=0
I shall look.
<tool_call>
{"name": "shell", "arguments": {"command": "cat word.txt"}}
</tool_call>
=== results=1
<tool_call>
{"name": "write", "arguments": {"path": "copy.txt", "content": "heddle \\"quoted\\"\\n\\ttab, \\u00e9\\n"}}
</tool_call>
<tool_call>
{"name": "shell", "arguments": {"command": "cat nothing.txt"}}
</tool_call>
=== results=3 has=Once more, please.
It still is heddle.
=== results=3
The word is heddle; I have copied it.
"""


def program():
    """The folder of the program, which the package has under the name `goose`."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Skip("goose is tested on Linux and x86-64 alone")
    return str(install("goose") / "node_modules" / "@aaif" / "goose-binary-linux-x64" / "bin")


def test_goose_reads_writes_and_answers():
    folder = program()
    with tempfile.TemporaryDirectory(prefix="weft-goose-") as home, Scripted(SCRIPT, "--name", "scripted") as s:
        work = pathlib.Path(home).resolve() / "work"
        work.mkdir()
        (work / "word.txt").write_text("the word is heddle\n")

        def run(*args):
            """What it prints."""
            env = {"PATH": folder + ":" + os.environ["PATH"], "HOME": home, "GOOSE_TELEMETRY_ENABLED": "false"}
            command = [str(BUILD / "weftctl"), "launch", "goose", "--url", s.url, "--", "run", "--name", "copying", *args]
            done = subprocess.run(command, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
            return done.stdout

        out = run("--text", "Copy the word.")
        assert (work / "copy.txt").read_text() == 'heddle "quoted"\n\ttab, \u00e9\n', out
        assert "I shall look." in out and "The word is heddle; I have copied it." in out, out
        assert "It still is heddle." in run("--resume", "--text", "Once more, please.")
        turns = [r for r in s.runs if r["answer"] > 0 and r["max_new"] > 1]  # launch measures with answers of one token
        assert len(turns) == 4, [(r["answer"], r["n_prompt"]) for r in s.runs]
        assert "the word is heddle" in turns[1]["prompt"] and "nothing.txt: No such file" in turns[2]["prompt"], turns[2]["prompt"][-1500:]
        # Every turn goes on where the one before ended: whatever was computed is found again.
        for before, after in zip(turns, turns[1:]):
            assert after["n_cached"] >= before["n_prompt"] // 16 * 16, (before["n_prompt"], after["n_cached"])
        assert len({r["session"] for r in turns}) == 1 and int(turns[0]["session"], 16), "one session"


if __name__ == "__main__":
    main(globals())
