"""Starts weftd and runs the tests of the official OpenAI SDK against it. Skipped if npm or its registry is
unavailable."""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "clients"))

from clients import Skip, Weftd, install  # noqa: E402

SOURCE = pathlib.Path(__file__).parent / "sdk"


def main():
    try:
        folder = install("openai-sdk", source=SOURCE)
    except Skip as why:
        print(f"1..0 # SKIP {why}")
        return 0
    with Weftd("--max-context", "8192", "--any-model-name", "no") as d:
        return subprocess.run(["node", "test_openai.mjs", d.url()], cwd=folder, env=os.environ).returncode


sys.exit(main())
