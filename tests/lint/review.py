#!/usr/bin/env python3
"""Prints the table with which a reader from outside measured the house, a column per source tree
(docs/measurements/shape.md).

usage: review.py NAME=ROOT:FOLDER[,FOLDER...] ...       example: review.py now=.:lib,kvpager libuv=../libuv:src/unix

An empty list of folders means the product's, as measure.py has them. A FOLDER with a / behind it is taken without its
subfolders.
"""
import pathlib
import re
import sys

import check_expressions
import check_names
import measure

ASSERT = re.compile(r"\b(?:c_)?assert\s*\(")  # c_assert() is dbus-broker's


def sources(root, folders):
    found = []
    for folder in folders:
        under = root / folder
        found += sorted(under.glob("*") if folder.endswith("/") else under.rglob("*"))
    return [f for f in found if f.suffix in measure.SUFFIXES and f.is_file()]


STRUCTS = {
    "be": "engine/cuda/cuda.h",
    "model_op": "engine/op.h",
    "request": "scheduler/request.h",
    "gen_request": "api/generation/gen_request.h",
}
INNER = re.compile(r"\b(struct|union|enum)\s*\w*\s*\{")


def body(text, at):
    """The text between the brace at @at and its partner, and the place behind the partner."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return text[at + 1 : i], i + 1
    raise ValueError("a brace without its partner")


def count_members(text):
    """The members that declarations name; a struct or union that is defined among them counts as its own members."""
    n = 0
    while m := INNER.search(text):
        inner, end = body(text, m.end() - 1)
        names, rest = text[end:].split(";", 1)
        if m[1] == "enum":
            text = f"{text[: m.start()]}int {names};{rest}"
        else:
            n += count_members(inner)
            text = text[: m.start()] + rest
    for declaration in filter(str.strip, text.split(";")):
        n += 1 + re.sub(r"\([^()]*\)|\[[^\]]*\]", "", declaration).count(",")
    return n


assert count_members("int a, b; struct x *c; struct { int d; union { int e[2], f; }; } g; enum h { I } k; int (*l)(int, int);") == 8


def members(root, name):
    path = root / STRUCTS[name]
    if not path.is_file():
        return "-"
    lines = measure.blank(path.read_text()).split("\n")
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    return str(count_members(body(text, re.search(rf"\bstruct {name} \{{", text).end() - 1)[0]))


def column(root, folders):
    """(label, value) of each row for the sources of @folders."""
    paths = sources(root, folders)
    files = [measure.File(root, f) for f in paths]
    texts = {f.path: path.read_text() for f, path in zip(files, paths)}
    lines = sum(len(f.lines) for f in files)
    code, comment = sum(f.n_code for f in files), sum(f.n_comment for f in files)
    n_asserts = sum(len(ASSERT.findall(measure.blank(text))) for text in texts.values())
    nested = {kind: 0 for kind in ("nested", "called", "passed", "chained")}
    for text in texts.values():
        blank = check_expressions.blank(text)
        for kind in nested:
            nested[kind] += len(check_expressions.KINDS[kind](blank))
    shared, n_names = check_names.shared(texts)
    of_names = 100 * len(shared) / max(1, n_names)
    lengths = [n for f in files for n, _, _ in f.functions]
    return [
        ("files", f"{len(files):,}"),
        ("lines", f"{lines:,}"),
        ("lines of code", f"{code:,}"),
        ("share of comments", f"{100 * comment / max(1, code + comment):.1f} %"),
        ("asserts in 1,000 lines", f"{1000 * n_asserts / max(1, lines):.1f}"),
        ("lines of functions", measure.spread(lengths)),
        ("functions over 50 lines", f"{sum(n > 50 for n in lengths)} of {len(lengths):,}"),
        ("lines of files", measure.spread([len(f.lines) for f in files])),
        ("statements with `?:` in 1,000 lines of code", f"{measure.choices(files):.1f}"),
        ("nested `?:`", f"{nested['nested']}"),
        ("`?:` with calls in both arms", f"{nested['called']}"),
        ("errors passed up by `?:`", f"{nested['passed']}"),
        ("chains of calls with `\\|\\|`", f"{nested['chained']}"),
        ("functions that share their name", f"{len(shared)} of {n_names:,} ({of_names:.1f} %)"),
        *((f"members of `struct {name}`", members(root, name)) for name in STRUCTS),
    ]


def main():
    names, columns = [], []
    for word in sys.argv[1:]:
        name, _, place = word.partition("=")
        root, _, folders = place.partition(":")
        if not root:
            sys.exit(__doc__)
        names.append(name)
        columns.append(column(pathlib.Path(root).resolve(), folders.split(",") if folders else measure.FOLDERS))
    if not names:
        sys.exit(__doc__)
    print("| | " + " | ".join(names) + " |")
    print("|---|" + "--:|" * len(names))
    for rows in zip(*columns):
        print(f"| {rows[0][0]} | " + " | ".join(value for _, value in rows) + " |")


if __name__ == "__main__":
    main()
