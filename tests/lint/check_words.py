#!/usr/bin/env python3
"""Text names mechanisms, not people: words that the glossary's terms replace do not occur in sources and pages.

usage: check_words.py SOURCE_ROOT

What stands in quotes or backticks is not looked at. Exit 1: a word of the list, which is printed with its place.
"""
import pathlib
import re
import sys

SUFFIXES = {".c", ".h", ".cu", ".cuh", ".md", ".conf"}
FOLDERS = "lib kvpager engine scheduler api daemon cmd tests docs conf".split()
WORDS = re.compile(
    r"\b(nobody|somebody|anybody|everybody|whoever|standing|gives way|giver|reproached|guess|guessed|guesses"
    r"|seats?|twins?|he|his|him|by itself)\b",
    re.I,
)
QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|`[^`\n]*`')


def main():
    root = pathlib.Path(sys.argv[1])
    files = [f for folder in FOLDERS for f in sorted((root / folder).rglob("*"))] + [root / "README.md"]
    failed = False
    for file in files:
        if file.suffix not in SUFFIXES or not file.is_file():
            continue
        for at, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
            for m in WORDS.finditer(QUOTED.sub('""', line)):
                print(f"{file.relative_to(root)}:{at}: {m.group()}")
                failed = True
    return 1 if failed else 0


sys.exit(main())
