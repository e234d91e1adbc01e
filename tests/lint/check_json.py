#!/usr/bin/env python3
"""Text of JSON is read by the accessors of api/http/json.h, which check the type.

usage: check_json.py SOURCE_ROOT

yyjson_get_len() of an array is the number of its members while yyjson_get_str() of it is NULL: code that takes these
two for a text with its length reads from NULL. Nothing in api/ and daemon/ but api/http/json.[ch] calls them, or
unsafe_yyjson_*(), which check nothing. Exit 1: such a call, which is printed with its place.
"""
import pathlib
import re
import sys

FOLDERS = ("api", "daemon")
OWN = ("api/http/json.c", "api/http/json.h")
DIRECT = re.compile(r"\b(yyjson_(?:mut_)?get_(?:str|len|raw)|unsafe_yyjson_\w+)\s*\(")


def problems(text):
    """Lines of @text with what is wrong there."""
    found = []
    for at, line in enumerate(text.splitlines(), 1):
        found += [(at, f"{m.group(1)}(): use api/http/json.h") for m in DIRECT.finditer(line)]
    return found


def self_check():
    """Proves that each kind of call is found."""
    seeded = ["n = yyjson_get_len(v);", "s = yyjson_mut_get_str(v);", "v = unsafe_yyjson_get_next(v);"]
    for line in seeded:
        assert problems(line), f"not found: {line}"
    assert not problems("n = json_len(v), s = json_text(v), i = yyjson_get_uint(v);")


def main():
    root = pathlib.Path(sys.argv[1])
    n = failed = 0
    self_check()
    for file in sorted(f for folder in FOLDERS for f in (root / folder).rglob("*.[ch]")):
        path = str(file.relative_to(root))
        n += 1
        for at, problem in problems(file.read_text()) if path not in OWN else []:
            print(f"{path}:{at}: {problem}")
            failed += 1
    print(f"{n} files, {failed} problems")
    return 1 if failed or n == 0 else 0


sys.exit(main())
