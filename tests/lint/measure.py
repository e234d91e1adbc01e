#!/usr/bin/env python3
"""Measures the shape of the C and CUDA sources and prints a table, a row per folder.

usage: measure.py [--root SOURCE_ROOT] [FOLDER...]

comments    comment-only lines / (comment-only lines + code lines)
asserts     assert() per 1,000 lines, blank ones included
functions   number, median and longest length: from the line of the name to the closing brace
cycle       modules that stand in an include cycle inside their top folder; x.c, x.h and x_private.h are one
over 100    lines of more than 100 columns, comments too
bare        functions that a header declares without a contract: no comment beside the declaration, and none above it or
            above the group of lines that it is in. One contract is enough for a name that headers of a folder repeat.
            Names and types that say all need none (PLAIN): bool x_is_full(x), uint32_t x_n_pages(x), x_free, x_deinit.

Exit 1: an include cycle in a product folder, a line of more than 100 columns there or in tests/, a function over 100
lines or a file over 1,500, more functions without a contract than BARE allows, more statements with ?: than CHOICES
allows, more escaped quotes in tests than QUOTES. Without FOLDER the product's folders are measured; a FOLDER is listed
line by line, and so are its functions without a contract.
"""
import argparse
import bisect
import pathlib
import re
import statistics
import sys

FOLDERS = "lib kvpager engine scheduler api daemon cmd".split()
SUFFIXES = {".c", ".h", ".cu", ".cuh"}
MAX_COLUMNS, MAX_FUNCTION, MAX_FILE = 100, 100, 1500
# Functions without a contract that a folder may have: only ever lowered.
BARE = {
    "lib": 0, "engine": 0, "kvpager": 0, "scheduler": 0, "api": 0, "cmd": 0, "daemon": 0,
}
# Statements with ?: in 1,000 lines of code that a folder may have: only ever lowered.
CHOICES = {
    "lib": 18, "engine": 22, "kvpager": 11, "scheduler": 12, "api": 20, "cmd": 17, "daemon": 17,
}
# Escaped quotes in the C of tests, which write JSON as raw strings: only ever lowered.
QUOTES = 1202
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
ASSERT = re.compile(r"\bassert\s*\(")
SPACE = re.compile(r'^(?:extern\s+""|namespace\b.*)$', re.S)
NAME = re.compile(r"([A-Za-z_]\w*)\s*\(")
MACROS = re.compile(r"^(?:[A-Z_]{3,}\([^()]*\)\s*)+")
# The whole declaration of a question, a count or an end, with one object as its only parameter
PLAIN = re.compile(
    r"(?:static inline )?(?:bool \w+_(?:is|has)_\w+|(?:uint32_t|uint64_t|size_t) \w+_n_\w+|void \w+_deinit|struct (\w+) \*\1_free)"
    r"\((?:const )?struct \w+ \*\w+\)$")
# f( or MACRO(f)(, not (*f)(
DECLARED = re.compile(r"\b(?:[A-Z_]{3,}\()?(?!__attribute__)(?=\w*[a-z])([A-Za-z_]\w*)(?:\)\s*)?\((?!\s*\*)")


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


def heads(bare):
    """(text, first line, last line, line of the closing brace or None) of each declaration and definition, lines from 0."""
    text = "\n".join(only_first_branches(bare))
    starts = [0] + [m.end() for m in re.finditer("\n", text)]
    at, depth, found = 0, 0, []

    def line(position):
        return bisect.bisect_right(starts, position) - 1

    for m in re.finditer(r"[{};]", text):
        c, head = m.group(), text[at:m.start()]
        if c == "{" and depth == 0 and SPACE.match(head.strip()):
            at = m.end()
            continue
        if c != "}" and depth == 0:
            begin = at + len(head) - len(head.lstrip())
            found.append((head.strip(), line(begin), line(m.start()), None))
        if c == "{":
            depth += 1
        elif c == "}" and depth:
            depth -= 1
            if depth == 0:
                found[-1] = (*found[-1][:3], line(m.start()))
        if depth == 0:
            at = m.end()
    return found


def functions(bare):
    """(name, first line from 1, length) of each function."""
    found = []
    for head, first, _, end in heads(bare):
        name = NAME.search(head)
        if end and name and "=" not in head[: name.start()] and not re.match(r"(struct|union|enum)\s+\w*$", head):
            at = first + head[: name.start()].count("\n")
            found.append((name.group(1), at + 1, end - at + 1))
    return found


def declared(lines, bare):
    """{name: line from 1, or 0 where it has a contract} of the functions that a header declares or defines."""
    found = {}
    bare = bare + [""] * (len(lines) - len(bare))
    for head, first, last, _ in heads(bare):
        macros = MACROS.match(head)
        if macros:
            head, first = head[macros.end():], first + macros.group().count("\n")
        name = DECLARED.search(head)
        if not name or "=" in head[: name.start()] or re.match(r"typedef\b|\w*assert\b", head, re.I):
            continue
        has = PLAIN.match(" ".join(head.split())) is not None or any("/*" in s for s in lines[first:last + 1])
        at = first
        while not has and at > 0 and lines[at - 1].strip():
            at -= 1
            has = lines[at].startswith(("/*", " *")) and not bare[at].strip()
        found[name.group(1)] = 0 if has else found.get(name.group(1), first + 1)
    return found


def module(path):
    return re.sub(r"(_private)?\.\w+$", "", path.removeprefix("lib/"))  # as includes name it


class File:
    def __init__(self, root, file):
        text = file.read_text()
        self.path = str(file.relative_to(root))
        self.lines = text.splitlines()
        self.n_quotes = text.count('\\"')
        bare = blank(text).splitlines()
        self.n_code = sum(1 for b in bare if b.strip())
        self.n_comment = sum(1 for s, b in zip(self.lines, bare) if s.strip() and not b.strip())
        self.n_choices = sum("?" in statement for statement in re.split("[;{}]", "\n".join(bare)))
        self.n_asserts = sum(len(ASSERT.findall(b)) for b in bare if not b.lstrip().startswith("#"))
        self.functions = [(n, name, f"{self.path}:{at}") for name, at, n in functions(bare)]
        self.wide = [(i, len(s)) for i, s in enumerate(self.lines, 1) if len(s) > MAX_COLUMNS]
        self.widest = max((len(s) for s in self.lines), default=0)
        self.includes = INCLUDE.findall(text)
        self.declared = declared(self.lines, bare) if file.suffix in (".h", ".cuh") else {}


def bare_functions(files):
    """(name, place) of each function of these headers without a contract in any header of its folder."""
    found = {}
    for f in files:
        for name, at in f.declared.items():
            key = (f.path.rsplit("/", 1)[0], name)
            found[key] = at and found.get(key, f"{f.path}:{at}")
    return [(name, place) for (_, name), place in found.items() if place]


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


def rings_of(rings, folders):
    """The rings with a module of one of the folders, which lie in lib/ where the names of modules do not say so."""
    named = {folder.removeprefix("lib/") for folder in folders}
    return [ring for ring in rings if {m.rsplit("/", 1)[0] for m in ring} & named]


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


def spread(numbers):
    """Median, 90th percentile and largest of the numbers, as text."""
    numbers = sorted(numbers) or [0]
    return f"median {statistics.median(numbers):.0f}, p90 {numbers[len(numbers) * 9 // 10]}, longest {numbers[-1]}"


def choices(files):
    """Statements with ?: in 1,000 lines of code of the files."""
    return 1000 * sum(f.n_choices for f in files) / max(1, sum(f.n_code for f in files))


def show_shape(files):
    lengths = [x[0] for f in files for x in f.functions]
    print(f"lines of functions: {spread(lengths)}; over 50: {sum(n > 50 for n in lengths)}")
    print(f"lines of files: {spread([len(f.lines) for f in files])}")
    print(f"statements with ?: in 1,000 lines of code: {choices(files):.1f}")


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
    ring = [module("lib/text/a.c"), module("lib/text/b_private.h")]
    assert rings_of([ring], ["lib/text"]) and not rings_of([ring], ["lib/base"])
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
    show_shape(every)
    long_functions = [x for f in every for x in f.functions if x[0] > MAX_FUNCTION]
    long_files = [f for f in every if len(f.lines) > MAX_FILE]
    print(f"functions over {MAX_FUNCTION} lines: {len(long_functions)}; files over {MAX_FILE} lines: {len(long_files)}")
    for n, name, place in long_functions:
        print(f"{place}: {name}() has {n} lines")
    for f in long_files:
        print(f"{f.path}: {len(f.lines)} lines")

    failed = bool(long_functions or long_files)
    no_contract = bare_functions(every)
    for top, limit in BARE.items():
        n = sum(place.startswith(top + "/") for _, place in no_contract)
        if top in {f.path.split("/")[0] for f in every}:
            print(f"{top}: {n} functions without a contract in headers, at most {limit}")
            failed |= n > limit
    for top, limit in () if asked else CHOICES.items():
        rate = choices([f for f in every if f.path.startswith(top + "/")])
        print(f"{top}: {rate:.1f} statements with ?: in 1,000 lines of code, at most {limit}")
        failed |= rate > limit
    if asked:
        for name, place in no_contract:
            print(f"{place}: {name}() has no contract")
    for ring in rings_of(rings, files):
        failed = True
        print("cycle: " + " ".join(ring))
    of_tests = [] if asked else [File(args.root, f) for f in sorted((args.root / "tests").rglob("*")) if f.suffix in SUFFIXES]
    n_quotes = sum(f.n_quotes for f in of_tests)
    print(f"tests: {n_quotes} escaped quotes, at most {QUOTES}")
    failed |= n_quotes > QUOTES
    for f in every + of_tests:
        failed |= bool(f.wide)
        for at, n in f.wide:
            print(f"{f.path}:{at}: {n} columns")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
