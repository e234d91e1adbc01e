#!/usr/bin/env python3
"""Text of JSON is read by the accessors of lib/base/json_value.h, which check the type.

usage: check_json.py SOURCE_ROOT

yyjson_get_len() of an array is the number of its members while yyjson_get_str() of it is NULL: code that takes these
two for a text with its length reads from NULL. Nothing but lib/base/json_value.h calls them, or unsafe_yyjson_*(),
which check nothing. A text of json_text() may contain NUL: its json_len() is asked for within three
lines, or json_cstr() is called in its place, which returns NULL for such a text. Exit 1: a call that is none of these,
which is printed with its place.

Nothing looks for a text in a body, or in JSON that was written, by memmem() or strstr(): a client can write the same
bytes as a value of another member.
"""
import pathlib
import re
import sys

FOLDERS = ("api", "cmd", "daemon", "engine", "kvpager", "lib", "scheduler")
OWN = ("lib/base/json_value.h",)
DIRECT = re.compile(r"\b(yyjson_(?:mut_)?get_(?:str|len|raw)|unsafe_yyjson_\w+)\s*\(")


# A body, or a text of JSON, in which something is looked for as bytes.
MATCHED = re.compile(r"\b(memmem|str(?:case)?str)\s*\(\s*[^,;]*\b(body|parts|kept|json|whole)\b")

TEXT = re.compile(r"\bjson_(mut_)?text\(")
NEAR = 3


def argument(text, at):
    """What stands between the parenthesis before @at and the one that closes it, without blanks."""
    end, depth = at, 1
    while depth and end < len(text):
        depth += (text[end] == "(") - (text[end] == ")")
        end += 1
    return re.sub(r"\s+", "", text[at : end - 1])


def problems(text):
    """Lines of @text with what is wrong there."""
    found = []
    lines = text.splitlines()
    for at, line in enumerate(lines, 1):
        found += [(at, f"{m.group(1)}(): use lib/base/json_value.h") for m in DIRECT.finditer(line)]
        found += [(at, f"{m.group(1)}(): JSON is parsed, not searched") for m in MATCHED.finditer(line)]
        near = re.sub(r"\s+", "", "".join(lines[max(0, at - 1 - NEAR) : at + NEAR]))
        for m in TEXT.finditer(line):
            arg = argument("\n".join(lines[at - 1 : at + NEAR]), m.end())
            if f"json_{m.group(1) or ''}len({arg})" not in near:
                found.append((at, f"json_text({arg}) without its json_len(): use json_cstr()"))
    return found


def self_check():
    """Proves that each kind of call is found."""
    seeded = ["n = yyjson_get_len(v);", "s = yyjson_mut_get_str(v);", "v = unsafe_yyjson_get_next(v);",
              "puts(json_text(f(v)));\nn = json_len(v);", "n = json_len(v);\n\n\n\ns = json_text(v);",
              "memmem(h->body.data, n, type, 4)", "s = strstr(r->parts.head.data, status);"]
    for line in seeded:
        assert problems(line), f"not found: {line}"
    assert not problems("at = strstr(target, word);")
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
