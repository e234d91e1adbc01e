#!/usr/bin/env python3
"""Counts expressions in which a decision hides: no debugger stops in them, and no line coverage sees them.

nested   a conditional expression in an arm of another one. A decision among three is a statement, a switch or a table.
called   a conditional expression with calls in both arms, and TRY(c ? f() : 0): what is called is a statement.
passed   `r < 0 ? r : f()` and `r = r ? r : f()`: TRY(f()) passes an error up.
waits    `if (r == 0) r = f()`: an early return, or TRY(f()), ends what a reader must carry in mind.
chained  a condition that joins calls with || and stores their results: `(r = f()) < 0 || (r = g()) < 0`. Each call has
         its TRY, and what is to be freed has CLEANUP.

usage: check_expressions.py SOURCE_ROOT [--list [FOLDER]]
Exit status: 1 when a folder has more than MOST allows, which is only ever lowered; 2 when the self-check fails.
"""
import argparse
import pathlib
import re
import sys

MOST = {
    "nested": {"api": 0, "cmd": 0, "daemon": 0, "engine": 0, "kvpager": 0, "lib": 0, "scheduler": 0},
    "called": {"api": 0, "cmd": 0, "daemon": 0, "engine": 0, "kvpager": 0, "lib": 0, "scheduler": 0},
    "passed": {"api": 0, "cmd": 0, "daemon": 0, "engine": 0, "kvpager": 0, "lib": 0, "scheduler": 0},
    "waits": {"api": 0, "cmd": 0, "daemon": 0, "engine": 0, "kvpager": 0, "lib": 0, "scheduler": 0},
    "chained": {"api": 0, "cmd": 0, "daemon": 0, "engine": 0, "kvpager": 0, "lib": 0, "scheduler": 0},
}
SAYS = {
    "nested": "a conditional expression in an arm of another one",
    "called": "calls stand in both arms of a conditional expression, or in one of TRY()",
    "passed": "an error is passed up by a conditional expression",
    "waits": "a call waits for the result of another in `if (r == 0) r = f()`",
    "chained": "results of calls are stored in a chain of ||",
}
PASSED = re.compile(r"\b(\w+)\s*<\s*0\s*\?\s*\1\s*:|\b(r|e|ret)\s*=\s*\2\s*\?\s*\2\s*:")
WAITS = re.compile(r"\bif \((r|e|err|ret|n|result)\s*(?:==|>=)\s*0\b[^;{}]*?\)\s*\{?\s*\1 = \w[\w.>-]*\(")
STORED = re.compile(r"\(\w+\s*=\s*\w+\(")
TESTED = re.compile(r"\s*(?:<|!=)\s*0\b")
CALL = re.compile(r"\b(?!sizeof|strlen)(?=\w*[a-z])\w+(?<!INT64_C)\(")
TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|//[^\n]*', re.S)


def blank(text):
    """C source @text with the same lines, without comments and what stands in quotes."""
    return TOKEN.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def nested(text):
    """The lines of the conditional expressions of @text that begin in an arm of another one."""
    found, arms, depth, line = [], [], 0, 1  # arms: depths of brackets at which a conditional expression is open
    for c in text:
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


def arm(text, at, ends):
    """Where the expression at @at ends: at one of @ends, or at the bracket that closes around it."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth < 0 or (depth == 0 and text[i] in ends):
            return i
    return len(text)


def called(text):
    """The lines of the conditional expressions of @text with calls in both arms, or in the one of TRY()."""
    found = []
    for m in re.finditer(r"\?", text):
        colon = arm(text, m.end(), ":;")
        yes, no = text[m.end():colon], text[colon + 1:arm(text, colon + 1, ";,:")]
        both = CALL.search(yes) and CALL.search(no)
        if text[colon:colon + 1] == ":" and (both or text[colon:colon + 6] == ": 0);" and CALL.search(yes)):
            found.append(text.count("\n", 0, m.start()) + 1)
    return found


def passed(text):
    """The lines of @text that pass an error up by a conditional expression."""
    return [text.count("\n", 0, m.start()) + 1 for m in PASSED.finditer(text)]


def waits(text):
    """The lines of @text in which a call waits for the result of another."""
    return [text.count("\n", 0, m.start()) + 1 for m in WAITS.finditer(text)]


def behind(text, at):
    """The text behind the bracket that closes the one at @at."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return text[i + 1:]
    return ""


def chained(text):
    """The lines of the statements of @text that store results of calls in a chain of ||."""
    found = []
    for statement in re.finditer(r"[^;{}]+", text):
        for m in STORED.finditer(statement[0]) if "||" in statement[0] else ():
            if TESTED.match(behind(statement[0], m.start())):
                found.append(text.count("\n", 0, statement.start() + m.start()) + 1)
                break
    return found


KINDS = {"nested": nested, "called": called, "passed": passed, "waits": waits, "chained": chained}


def self_check():
    assert nested("x = a ? b\n : c ? d : e;") == [2]
    assert nested("x = a ? (b ? c : d) : e;\n") == [1]
    assert nested(blank("f(a ? b : c, d ? e : g); y = a ? b : c;\n'?'; \"a ? b ? c\"; /* ? ? */")) == []
    assert nested("x = (a ? b : c) + (d ? e : f);") == []
    assert called("x = 1;\nreturn a ? f() : g(1, 2);\nTRY(a ? b->f(1) : 0);") == [2, 3]
    assert called("x = a ? f() : 0; y = a ? MAX(1, 2) : f(); z = a ? sizeof(x) : f(); g(a ? b : c, f());") == []
    assert passed("x = 1;\nreturn r < 0 ? r : f();\nr = r ? r : f();") == [2, 3]
    assert passed("n = n < 0 ? 0 : n; name = name ? name : none; at = less < 0 ? more : 1;") == []
    assert waits("if (r == 0)\n    r = f();\nif (e >= 0 && a) {\n    e = g->h(1);") == [1, 3]
    assert waits("if (r == 0) n = f(); if (r == 0 && a) r = 1; if (r < 0) r = f();") == []
    assert chained("if (a ||\n    (r = f(1, g(2))) < 0)\n    return r;") == [2]
    assert chained("if ((r = f()) < 0 && a) return r; if (f() < 0 || g() != 0) return -1; x = y || z;") == []


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
    found = {kind: dict.fromkeys(most, 0) for kind, most in MOST.items()}
    for folder in MOST["nested"]:
        for file in sorted((args.root / folder).rglob("*")):
            if file.suffix not in {".c", ".h", ".cu", ".cuh"}:
                continue
            path, text = str(file.relative_to(args.root)), blank(file.read_text())
            for kind, lines_of in KINDS.items():
                lines = lines_of(text)
                found[kind][folder] += len(lines)
                if args.list is not None and path.startswith(args.list):
                    print("".join(f"{path}:{line}: {SAYS[kind]}\n" for line in lines), end="")
    failed = False
    for kind, most in MOST.items():
        for folder, limit in most.items():
            print(f"{kind:<8} {folder:<10} {found[kind][folder]:>4}, at most {limit}")
            failed |= found[kind][folder] > limit
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
