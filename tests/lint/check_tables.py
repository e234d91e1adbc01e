#!/usr/bin/env python3
"""Every table in which something is found by a name says in tables.txt whose name that is.

usage: check_tables.py SOURCE_ROOT

A name that a client chooses or gets is a name of its tenant: a table without the tenant in its key lets one tenant find what is
another's. A table is a struct with buckets, a hash index, or a member that is a name of its own: an id, a key, a text. A file that
makes numbers of names (siphash) counts, too. A row of tables.txt:

    FILE STRUCT KIND why         (STRUCT is "siphash" for such a file)

KIND: tenant (found by tenant and name), operator (the operator or the program chose the name), request (the table is part of one
request), content (found by bytes together with an isolation key or a checksum), number (found by a number that the program gave),
record (nothing is found by it). Exit 1: a struct without a row, a row without a struct, or a row that is not of this form.
"""
import pathlib
import re
import sys

FOLDERS = "api daemon scheduler kvpager".split()
KINDS = {"tenant", "operator", "request", "content", "number", "record"}
STRUCT = re.compile(r"^(?:static )?struct (\w+)(?: \w+)? \{\n(.*?)^\}", re.M | re.S)
COMMENT = re.compile(r"/\*.*?\*/", re.S)
MEMBER = re.compile(
    r"^\s+(?:struct list \w+\[|struct list \w*bucket\w*[;,]|struct hash_index |struct \w+ \*\w*bucket\w*\["
    r"|(?:char|uint8_t|struct str) \*?(?:\w+_)?(?:id|key|name|text|salt|alias)(?:\[[^]]*\])?;)",
    re.M,
)


def tables(root):
    found = set()
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.[ch]")):
            path, text = str(file.relative_to(root)), file.read_text()
            for name, members in STRUCT.findall(text):
                if MEMBER.search(COMMENT.sub("", members)):
                    found.add((path, name))
            if "siphash(" in text and file.stem != "siphash":
                found.add((path, "siphash"))
    return found


def main():
    root = pathlib.Path(sys.argv[1])
    found, rows, failed = tables(root), set(), False
    for at, line in enumerate((root / "tests/lint/tables.txt").read_text().splitlines(), 1):
        words = line.split(maxsplit=3)
        if not words or line.startswith("#"):
            continue
        if len(words) < 4 or words[2] not in KINDS or tuple(words[:2]) in rows:
            print(f"tests/lint/tables.txt:{at}: not a row, or a second one: {line}")
            failed = True
        rows.add(tuple(words[:2]))
    for file, name in sorted(found - rows):
        print(f"{file}: struct {name} has no row in tests/lint/tables.txt: whose names are in it?")
    for file, name in sorted(rows - found):
        print(f"tests/lint/tables.txt: {file} has no table {name}")
    print(f"{len(found)} tables, {len(rows)} rows")
    return 1 if failed or found != rows else 0


sys.exit(main())
