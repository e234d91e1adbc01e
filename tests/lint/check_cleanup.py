#!/usr/bin/env python3
"""A variable with CLEANUP() has its value from its declaration on.

usage: check_cleanup.py SOURCE_ROOT

The function of CLEANUP() runs wherever the block is left: also at a return that a later change puts between the declaration
and the first use. Exit 1: a variable without initialiser, which is printed with its place.
"""
import pathlib
import re
import sys

DECLARATION = re.compile(r"\bCLEANUP\(\w+\)([^;]*);")


def declarators(text):
    """The parts of a declaration between commas that are in no bracket."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def problems(text):
    """Lines of @text with the variables that have no value there."""
    found = []
    for m in DECLARATION.finditer(text):
        if text[: m.start()].rsplit("\n", 1)[-1].lstrip().startswith(("#", "/*", "*")):
            continue
        for part in declarators(m.group(1)):
            if "=" not in part:
                found.append((text.count("\n", 0, m.start()) + 1, " ".join(part.split())))
    return found


def self_check():
    """Proves that what is wrong is found, and nothing else."""
    assert problems("CLEANUP(buf_deinit) struct buf b;\n") == [(1, "struct buf b")]
    assert problems("\nCLEANUP(buf_deinit) struct buf b = {0}, c;\n") == [(2, "c")]
    assert not problems("CLEANUP(freep)\nchar *s = f(a, b), *t = NULL;\n")
    assert not problems("CLEANUP(buf_deinit) struct buf b = {.max = 1, .len = 0};\n")


def main():
    root = pathlib.Path(sys.argv[1])
    folders = "api cmd daemon engine kvpager lib scheduler tests".split()
    n = failed = 0
    self_check()
    for file in sorted(f for folder in folders for f in (root / folder).rglob("*.[ch]")):
        n += 1
        for at, what in problems(file.read_text()):
            print(f"{file.relative_to(root)}:{at}: {what}: has no value yet")
            failed += 1
    print(f"{n} files, {failed} problems")
    return 1 if failed or n == 0 else 0


sys.exit(main())
