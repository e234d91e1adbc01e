#!/usr/bin/env python3
"""Seeded bugs for programs that measure whether the tests find them: applies the edits of tests/mutants/*.edits to a
copy of the product's sources.

usage: apply.py SOURCE OUT EDITS...       write OUT, the copy of SOURCE with all of its edits
       apply.py --copies PREFIX FILES...  write PREFIX + name, the copy of each source, with the edits of each .edits file
       apply.py --table OUT EDITS...      write the table of the edits, after checking that every one applies

An edits file looks like this:

    # a comment
    mutant NAME: what the bug is
    kvpager/pager.c
         page->refs--;
    -    if (page->refs == 0)
    +    if (page->refs <= 1)

A mutant is a bug that the tests must find; "ablation" in its place is a rule switched off, to measure what it gains.
After the file (from the root of the sources) come its lines as in a unified diff: lines with " " and "-" are the
product's, consecutive, and must occur in the file exactly once, comments at their ends aside; lines with " " and "+"
stand in their place in the copy. An edit may have several places, in several files; each lies inside one function.

Every edit is in the same copy, off until its variable is set (mutants.h): a function with an edit begins with

    if (mutant_NAME) { the body with the edit }

so two edits of one function are not to be switched on together. #line directives keep the product's names and numbers in
asserts and compiler messages. An edit whose lines do not occur exactly once is an error that names it.
"""
import hashlib
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Bad(Exception):
    pass


class Edit:
    def __init__(self, kind, name, text, where):
        self.kind, self.name, self.text, self.where = kind, name, text, where
        self.places = []  # (file, the product's lines, the copy's lines)

    def bad(self, what):
        return Bad(f"{self.where}: {self.kind} {self.name}: {what}")


def read_edits(path):
    edits, shown = [], os.path.relpath(path, ROOT)
    for n, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
        head = re.fullmatch(r"(mutant|ablation) (\w+): (.+)", line)
        if line.startswith("#") or not line.strip():
            continue
        if head:
            edits.append(Edit(*head.groups(), f"{shown}:{n}"))
        elif not edits:
            raise Bad(f"{shown}:{n}: an edit begins with mutant NAME: TEXT")
        elif re.fullmatch(r"[\w/]+\.[ch]", line):
            edits[-1].places.append((line, [], []))
        elif line[0] in " -+" and edits[-1].places:
            _, old, new = edits[-1].places[-1]
            for side in [old] * (line[0] != "+") + [new] * (line[0] != "-"):
                side.append(line[1:])
        else:
            raise Bad(f"{shown}:{n}: neither a head, a file nor a line with ' ', '-' or '+'")
    for edit in edits:
        if not edit.places or any(not old or old == new for _, old, new in edit.places):
            raise edit.bad("it changes nothing")
    return edits


def code_of(line):
    """Returns a line without the comment at its end, which an edit need not repeat."""
    return re.sub(r"\s*/\*.*", "", line)


def find(edit, file, lines, old):
    """The index of the first of the lines @old in the file's @lines."""
    code, old = [code_of(x) for x in lines], [code_of(x) for x in old]
    at = [i for i in range(len(code)) if code[i : i + len(old)] == old]
    if len(at) != 1:
        raise edit.bad(f"its lines occur {len(at)} times in {file}, not once")
    return at[0]


def body_of(edit, file, lines, at, n):
    """The body of the function around lines [at, at + n): its first line, the line of its closing brace, and whether it
    returns nothing."""
    head = next((i for i in range(at, -1, -1) if re.match(r"[A-Za-z_]", lines[i])), 0)
    begin = next((i + 1 for i in range(head, len(lines)) if lines[i].endswith("{")), 0)
    end = next((i for i in range(head, len(lines)) if lines[i] == "}"), 0)
    signature = " ".join(lines[head:begin])
    if not head < begin <= at <= at + n <= end or "(" not in signature:
        raise edit.bad(f"{file}:{at + 1} is not inside a function")
    if any(re.match(r"\s+static (?!const )", s) for s in lines[begin:end]):
        raise edit.bad(f"{file}:{at + 1}: the function has a static variable, which every copy of its body would have")
    return begin, end, bool(re.match(r"(__attribute__\(\(.*?\)\) |\w+ )*void \w", signature))


def variants(file, lines, edits):
    """{(begin, end, is void): {edit: {index of a line: (lines to replace, their replacement)}}} of the file's functions."""
    bodies = {}
    for edit in edits:
        for place, old, new in edit.places:
            if place == file:
                at = find(edit, file, lines, old)
                body = body_of(edit, file, lines, at, len(old))
                bodies.setdefault(body, {}).setdefault(edit, {})[at] = (len(old), new)
    return bodies


def edited(file, lines, body, changes):
    """The lines of a body with the changes of one edit; numbers are right again after each of them."""
    out, i, (begin, end, is_void) = [], body[0], body
    while i < end:
        n, new = changes.get(i, (1, lines[i : i + 1]))
        out += new
        out += [f'#line {i + n + 1} "{file}"'] if i in changes else []
        i += n
    return out + ["    return;"] * is_void


def copy(file, text, edits):
    lines = text.splitlines()
    starts = {body[0]: (body, of) for body, of in variants(file, lines, edits).items()}
    out = [f'#line 1 "{file}"']
    for i, line in enumerate(lines):
        body, of = starts.get(i, (None, {}))
        for edit, changes in of.items():
            out += [f"    extern int mutant_{edit.name};", f"    if (mutant_{edit.name}) {{", f'#line {i + 1} "{file}"']
            out += edited(file, lines, body, changes) + ["    }"]
        out += [f'#line {i + 1} "{file}"'] if of else []
        out.append(line)
    return "\n".join(out) + "\n"


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def table(edits):
    names = [e.name for e in edits]
    for edit in edits:
        if names.count(edit.name) > 1:
            raise edit.bad("another one has this name")
        for file in {file for file, _, _ in edit.places}:
            if not (ROOT / file).exists():
                raise edit.bad(f"there is no {file}")
            variants(file, (ROOT / file).read_text().splitlines(), [edit])
    return "".join(f"X({e.kind}, {e.name}, {quoted(e.text)})\n" for e in edits)


def write(path, text):
    """A file that would be the same keeps its time, so that nothing is compiled again."""
    path = pathlib.Path(path)
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main(argv):
    if len(argv) < 3:
        sys.exit(__doc__)
    edits = [e for path in argv[2:] if path.endswith(".edits") for e in read_edits(path)]
    if argv[0] == "--copies":
        for source in [pathlib.Path(p).resolve() for p in argv[2:] if not p.endswith(".edits")]:
            write(argv[1] + source.name, copy(str(source.relative_to(ROOT)), source.read_text(), edits))
    elif argv[0] == "--table":
        # The copies are made again when this file is another one.
        sums = "".join(hashlib.sha256(pathlib.Path(p).read_bytes()).hexdigest()[:16] for p in argv[2:])
        write(argv[1], f"/* {sums} */\n" + table(edits))
    else:
        source = pathlib.Path(argv[0]).resolve()
        write(argv[1], copy(str(source.relative_to(ROOT)), source.read_text(), edits))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Bad as why:
        sys.exit(f"{why}")
