#!/usr/bin/env python3
"""Measures the shape of the C and CUDA sources and prints a table, a row per folder.

usage: measure.py [--root SOURCE_ROOT] [FOLDER...]

comments    comment-only lines / (comment-only lines + code lines)
asserts     assert() per 1,000 lines, blank ones included
functions   number, median and longest length: from the line of the name to the closing brace
cycle       modules that stand in an include cycle inside their top folder; x.c, x.h and x_private.h are one
over 100    lines of more than 100 columns, comments too

Exit 1: an include cycle in a product folder, a line of more than 100 columns there or in tests/, a function over 100
lines or a file over 800. Without FOLDER the product's folders are measured; a FOLDER is listed line by line.
"""
import argparse
import bisect
import pathlib
import re
import statistics
import sys

FOLDERS = "base proto text kvpager engine scheduler api daemon cmd".split()
SUFFIXES = {".c", ".h", ".cu", ".cuh"}
MAX_COLUMNS, MAX_FUNCTION, MAX_FILE = 100, 100, 800
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
ASSERT = re.compile(r"\bassert\s*\(")
SPACE = re.compile(r'^(?:extern\s+""|namespace\b.*)$', re.S)
NAME = re.compile(r"([A-Za-z_]\w*)\s*\(")


def blank(text):
    """The text with the same lines but neither comments nor what stands in quotes."""

    def keep(m):
        s = m.group()
        return '""' if s[0] == '"' else "0" if s[0] == "'" else " " + "\n" * s.count("\n")

    return TOKEN.sub(keep, text)


def only_first_branches(lines):
    """Preprocessor lines and #else branches emptied: braces are balanced in what is left."""
    out, skip, more = [], [], False
    for line in lines:
        word = re.match(r"\s*#\s*(\w+)", line)
        directive = word.group(1) if word and not more else None
        if directive in ("if", "ifdef", "ifndef"):
            skip.append(False)
        elif directive in ("else", "elif") and skip:
            skip[-1] = True
        elif directive == "endif" and skip:
            skip.pop()
        hidden = more or directive is not None
        more = hidden and line.endswith("\\")
        out.append("" if hidden or any(skip) else line)
    return out


def functions(lines):
    """(name, first line from 1, length) of each function."""
    text = "\n".join(only_first_branches(lines))
    starts = [0] + [m.end() for m in re.finditer("\n", text)]
    found, open_at, head_at, depth, inner = [], None, 0, 0, []
    for m in re.finditer(r"[{};]", text):
        c, at = m.group(), m.start()
        if c == "{":
            head = text[head_at:at].strip()
            if open_at is None and depth == 0 and SPACE.match(head):
                inner.append(True)
                head_at = m.end()
                continue
            if open_at is None and depth == 0:
                name = NAME.search(head)
                if name and "=" not in head[: name.start()] and not re.match(r"(struct|union|enum)\s+\w*$", head):
                    begin = head_at + text[head_at:at].index(head) + name.start()
                    open_at = (name.group(1), bisect.bisect_right(starts, begin))
            depth += 1
        elif c == "}":
            if depth == 0 and inner:
                inner.pop()
            else:
                depth -= 1
            if depth == 0 and open_at:
                found.append((*open_at, bisect.bisect_right(starts, at) - open_at[1] + 1))
                open_at = None
        if depth == 0:
            head_at = m.end()
    return found


def module(path):
    return re.sub(r"(_private)?\.\w+$", "", path)


class File:
    def __init__(self, root, file):
        text = file.read_text()
        self.path = str(file.relative_to(root))
        self.lines = text.splitlines()
        bare = blank(text).splitlines()
        self.n_code = sum(1 for b in bare if b.strip())
        self.n_comment = sum(1 for s, b in zip(self.lines, bare) if s.strip() and not b.strip())
        self.n_asserts = sum(len(ASSERT.findall(b)) for b in bare if not b.lstrip().startswith("#"))
        self.functions = [(n, name, f"{self.path}:{at}") for name, at, n in functions(bare)]
        self.wide = [(i, len(s)) for i, s in enumerate(self.lines, 1) if len(s) > MAX_COLUMNS]
        self.widest = max((len(s) for s in self.lines), default=0)
        self.includes = INCLUDE.findall(text)


def cycles(files):
    """Lists of modules that include each other, in a circle (strongly connected components of more than one)."""
    edges = {}
    for f in files:
        edges.setdefault(module(f.path), set()).update(module(i) for i in f.includes)

    def reach(graph, start):
        seen, todo = set(), [start]
        while todo:
            for next_one in graph.get(todo.pop(), ()):
                if next_one in graph and next_one not in seen:
                    seen.add(next_one)
                    todo.append(next_one)
        return seen

    reached = {m: reach(edges, m) - {m} for m in edges}
    rings = {frozenset({m} | {o for o in reached[m] if m in reached[o]}) for m in edges}
    return sorted(sorted(ring) for ring in rings if len(ring) > 1)


def row(name, files, in_cycles):
    n = sum(len(f.lines) for f in files)
    code, comment = sum(f.n_code for f in files), sum(f.n_comment for f in files)
    all_functions = [x for f in files for x in f.functions]
    longest = max(all_functions, default=(0, "-", ""))
    return (
        name, len(files), n, f"{100 * comment / max(1, code + comment):.1f} %",
        f"{1000 * sum(f.n_asserts for f in files) / max(1, n):.1f}",
        len(all_functions), f"{statistics.median([x[0] for x in all_functions] or [0]):.0f}",
        f"{longest[0]} {longest[1]}", max((len(f.lines) for f in files), default=0),
        max((f.widest for f in files), default=0), sum(len(f.wide) for f in files), in_cycles,
    )


def show(rows):
    head = ("folder", "files", "lines", "comments", "asserts", "functions", "median", "longest", "longest file",
            "longest line", "over 100", "cycle")
    table = [head] + [tuple(str(cell) for cell in r) for r in rows]
    width = [max(len(r[i]) for r in table) for i in range(len(head))]
    left = {0, 7}
    for i, r in enumerate(table):
        print("| " + " | ".join(c.ljust(w) if k in left else c.rjust(w) for k, (c, w) in enumerate(zip(r, width))) + " |")
        if i == 0:
            print("|" + "|".join("-" * (w + 2) if k in left else "-" * (w + 1) + ":" for k, w in enumerate(width)) + "|")


def main():
    parser = argparse.ArgumentParser(description="Measures the shape of the sources.")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("folder", nargs="*")
    args = parser.parse_args()
    asked = [f.rstrip("/") for f in args.folder]
    files, rings = {}, []
    for top in dict.fromkeys([f.split("/")[0] for f in asked] or FOLDERS):
        found = [File(args.root, f) for f in sorted((args.root / top).rglob("*")) if f.suffix in SUFFIXES]
        rings += cycles(found)
        for f in found:
            folder = f.path.rsplit("/", 1)[0]
            if not asked or any(f.path.startswith(a + "/") for a in asked):
                files.setdefault(folder, []).append(f)
    if not files:
        sys.exit("no sources")
    ringed = {m for ring in rings for m in ring}

    def n_ringed(of):
        return len({module(f.path) for f in of} & ringed)

    every = [f for of in files.values() for f in of]
    rows = [row(folder, of, n_ringed(of)) for folder, of in sorted(files.items())]
    show(rows + [row("all", every, n_ringed(every))])
    long_functions = [x for f in every for x in f.functions if x[0] > MAX_FUNCTION]
    long_files = [f for f in every if len(f.lines) > MAX_FILE]
    print(f"functions over {MAX_FUNCTION} lines: {len(long_functions)}; files over {MAX_FILE} lines: {len(long_files)}")
    for n, name, place in long_functions:
        print(f"{place}: {name}() has {n} lines")
    for f in long_files:
        print(f"{f.path}: {len(f.lines)} lines")

    failed = bool(long_functions or long_files)
    for ring in rings:
        if {m.rsplit("/", 1)[0] for m in ring} & set(files):
            failed = True
            print("cycle: " + " ".join(ring))
    of_tests = [] if asked else [File(args.root, f) for f in sorted((args.root / "tests").rglob("*")) if f.suffix in SUFFIXES]
    for f in every + of_tests:
        failed |= bool(f.wide)
        for at, n in f.wide:
            print(f"{f.path}:{at}: {n} columns")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
