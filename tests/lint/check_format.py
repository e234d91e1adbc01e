#!/usr/bin/env python3
"""Every C and CUDA file is as clang-format 14 writes it, which also sorts the includes; the essay of a file stands
before its includes; and the comment of a member stands above it, not behind it or between its type and its name, so
that a longer name moves no other line. Exit 77 (skipped) without that version of clang-format.

usage: check_format.py SOURCE_ROOT
"""
import pathlib
import re
import shutil
import subprocess
import sys

MAJOR = "14"
FOLDERS = "lib kvpager engine scheduler api daemon cmd tests".split()


def find_tool():
    for name in (f"clang-format-{MAJOR}", "clang-format"):
        path = shutil.which(name)
        if path:
            version = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
            if re.search(rf"version {MAJOR}\.", version):
                return path
    return None


OPENS = re.compile(r"^\s*(static |_Thread_local |typedef |const )*(struct|union|enum)( \w+)?\s*\{\s*$")
BEHIND = re.compile(r"^\s+[A-Za-z_][^/]*[;,]\s+/\*|^\s+[A-Z_]\w*(?: = [^/]*)?,?\s+/\*")


def members_with_comments_behind(lines):
    """Yields the numbers of the lines of structs, unions and enums with a comment behind a member."""
    inside = []
    for number, line in enumerate(lines, 1):
        code = re.sub(r"/\*.*?(\*/|$)", "", line)
        if inside and inside[-1] and BEHIND.match(line):
            yield number
        if OPENS.match(code):
            inside.append(True)
            continue
        balance = code.count("{") - code.count("}")
        inside += [False] * max(balance, 0)
        del inside[len(inside) - min(max(-balance, 0), len(inside)) :]


# A type on a line of its own before a comment: clang-format moves a comment that stands behind a long type there.
ALONE = re.compile(r"^\s+(?:const |unsigned )*(?:(?:struct|enum|union) )?\w+$")


def comments_behind_types(lines):
    """Yields the numbers of the lines with a comment between the type and the name of a member."""
    for number, (line, behind) in enumerate(zip(lines, lines[1:]), 1):
        if ALONE.match(line) and behind.lstrip().startswith("/*"):
            yield number + 1


def essay_behind_includes(lines):
    """Returns the number of the line of an essay that stands behind the first includes, or 0."""
    at = next((i for i, line in enumerate(lines) if line.startswith("#include")), len(lines))
    if any(line.startswith("/*") for line in lines[:at]):
        return 0
    while at < len(lines) and (lines[at] == "" or lines[at].startswith("#include")):
        at += 1
    end = at
    while end < len(lines) and "*/" not in lines[end]:
        end += 1
    is_essay = end + 1 < len(lines) and lines[at].startswith("/*") and lines[end + 1] == ""
    return at + 1 if is_essay else 0


def misplaced(files):
    """Prints the comments that stand in the wrong place. Returns their number."""
    n = 0
    for f in files:
        lines = pathlib.Path(f).read_text(encoding="utf-8").split("\n")
        places = [(at, "comment behind a member") for at in members_with_comments_behind(lines)]
        places += [(at, "comment between type and name") for at in comments_behind_types(lines)]
        essay = essay_behind_includes(lines)
        if essay:
            places.append((essay, "essay behind the includes"))
        for at, what in places:
            print(f"{f}:{at}: {what}")
        n += len(places)
    return n


def main():
    root = pathlib.Path(sys.argv[1])
    tool = find_tool()
    if not tool:
        print(f"clang-format {MAJOR} is not installed")
        return 77
    files = [
        str(f)
        for folder in FOLDERS
        for f in sorted((root / folder).rglob("*"))
        if f.suffix in {".c", ".h", ".cu", ".cuh"}
    ]
    n = misplaced(f for f in files if "tests/mutants/" not in f)
    formatted = subprocess.run([tool, "--dry-run", "-Werror", "--style=file", *files], cwd=root).returncode
    return formatted or min(n, 1)


sys.exit(main())
