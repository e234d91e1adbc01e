#!/usr/bin/env python3
"""Writes the files of the web page as a C table (struct page_file, api/service/page.h).

usage: embed.py OUT.c FILE...
"""
import hashlib
import pathlib
import sys

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}

LINE = 100  # bytes of a file in a line

# Bytes as they stand in a text of C; "?" might begin a trigraph.
ESCAPED = [chr(c) if 32 <= c < 127 and chr(c) not in '"\\?' else f"\\{c:03o}" for c in range(256)]


def literal(data):
    return '"' + "".join(ESCAPED[c] for c in data) + '"'


def main():
    out, files = sys.argv[1], sorted(map(pathlib.Path, sys.argv[2:]), key=lambda f: f.name)
    arrays, rows = [], []
    for i, file in enumerate(files):
        data = file.read_bytes()
        etag = hashlib.sha256(data).hexdigest()[:32]
        lines = (literal(data[at : at + LINE]) for at in range(0, len(data), LINE))
        arrays.append(f"static const unsigned char file_{i}[] =\n" + "\n".join(lines) + ";\n")
        rows.append(
            '    {"%s", "%s", PAGE_HEADERS("%s"), "%s", file_%d, sizeof(file_%d) - 1},\n'
            % (file.name, TYPES[file.suffix], etag, etag, i, i)
        )
    pathlib.Path(out).write_text(
        '#include "api/service/page.h"\n\n'
        # A compiler reads texts in a twentieth of the time that it needs for as many numbers.
        + '#pragma GCC diagnostic ignored "-Woverlength-strings"\n\n'
        + "".join(arrays)
        + "\nconst struct page_file page_files[] = {\n"
        + "".join(rows)
        + "    {0},\n};\n"
    )


main()
