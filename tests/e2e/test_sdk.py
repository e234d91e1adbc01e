"""Starts weftd and runs the tests of the official OpenAI SDK against it. Exit 77 where npm or its packages
cannot be had."""
import os
import pathlib
import shutil
import subprocess
import sys

from weftd import BUILD, Weftd

SOURCE = pathlib.Path(__file__).parent / "sdk"


def install():
    """The packages of the lock file, in the build folder."""
    folder = BUILD / "tests" / "sdk"
    stamp = folder / "node_modules" / ".package-lock.json"
    lock = SOURCE / "package-lock.json"
    folder.mkdir(parents=True, exist_ok=True)
    for file in SOURCE.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    if not stamp.exists() or stamp.stat().st_mtime < lock.stat().st_mtime:
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True, stdout=sys.stderr)
    return folder


def main():
    if not shutil.which("npm"):
        print("1..0 # SKIP npm is not installed")
        return 0
    folder = install()
    with Weftd("--max-context", "8192") as d:
        return subprocess.run(["node", "test_openai.mjs", d.url()], cwd=folder, env=os.environ).returncode


sys.exit(main())
