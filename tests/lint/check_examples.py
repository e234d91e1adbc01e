#!/usr/bin/env python3
"""Checks the examples of CONTRIBUTING.md: "Example: COMMIT, N files" says how many files of the product the commit touched.
Usage: check_examples.py ROOT. A copy without the history, such as the source archive, skips the test (exit status 77)."""
import pathlib
import re
import subprocess
import sys

EXAMPLE = re.compile(r"`([0-9a-f]{8})`,\s+(\d+)\s+files?")
OTHERS = ("tests/", "docs/", "CHANGELOG.md", "README.md", "CONTRIBUTING.md")


def product_files(root, commit):
    """The number of files of the product that @commit touched; None if the commit is not in the history."""
    show = subprocess.run(["git", "-C", root, "show", "--format=", "--name-only", commit], capture_output=True, text=True)
    if show.returncode != 0:
        return None
    return sum(not name.startswith(OTHERS) for name in show.stdout.split())


def main():
    root = pathlib.Path(sys.argv[1])
    git = subprocess.run(["git", "-C", root, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
    if git.stdout.strip() != "false":
        print("no history here: the examples of CONTRIBUTING.md were not counted")
        return 77
    examples = EXAMPLE.findall((root / "CONTRIBUTING.md").read_text())
    wrong = [f"{commit} touched {n} files and not {said}" for commit, said in examples
             if (n := product_files(root, commit)) != int(said)]
    for line in wrong:
        print(f"CONTRIBUTING.md: {line}")
    print(f"{len(examples)} examples, {len(wrong)} problems")
    return 1 if wrong or not examples else 0


sys.exit(main())
