#!/usr/bin/env python3
"""Counts conditional expressions that stand in an arm of another one: no debugger stops in them, and no line coverage
sees them. A decision among three is a statement, a switch or a table.

usage: check_expressions.py SOURCE_ROOT [--list [FOLDER]]
Exit status: 1 when a folder has more than MOST allows, which is only ever lowered; 2 when the self-check fails.
"""
import argparse
import pathlib
import re
import sys

MOST = {"api": 103, "cmd": 0, "daemon": 3, "engine": 98, "kvpager": 0, "lib": 0, "scheduler": 0}
TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|//[^\n]*', re.S)


def nested(text):
    """The lines of the conditional expressions of C source @text that begin in an arm of another one."""
    found, arms, depth, line = [], [], 0, 1  # arms: depths of brackets at which a conditional expression is open
    for c in TOKEN.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text):
        if c == "\n":
            line += 1
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            while arms and arms[-1] > depth:
                arms.pop()
        elif c in ";,":
            while arms and arms[-1] >= depth:
                arms.pop()
        elif c == "?":
            if arms:
                found.append(line)
            arms.append(depth)
    return found


def self_check():
    assert nested("x = a ? b\n : c ? d : e;") == [2]
    assert nested("x = a ? (b ? c : d) : e;\n") == [1]
    assert nested("f(a ? b : c, d ? e : g); y = a ? b : c;\n'?'; \"a ? b ? c\"; /* ? ? */") == []
    assert nested("x = (a ? b : c) + (d ? e : f);") == []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--list", nargs="?", const="", metavar="FOLDER", help="print each place")
    args = parser.parse_args()
    try:
        self_check()
    except AssertionError as e:
        print("self-check failed:", e)
        return 2
    failed = False
    for folder, most in MOST.items():
        n = 0
        for file in sorted((args.root / folder).rglob("*")):
            if file.suffix not in {".c", ".h", ".cu", ".cuh"}:
                continue
            path, lines = str(file.relative_to(args.root)), nested(file.read_text())
            n += len(lines)
            if args.list is not None and path.startswith(args.list):
                print("".join(f"{path}:{line}: a conditional expression in an arm of another one\n" for line in lines), end="")
        print(f"{folder:<10} {n:>4} nested conditional expressions, at most {most}")
        failed |= n > most
    return 1 if failed else 0


sys.exit(main())
