#!/usr/bin/env python3
"""Counts functions of the product that share their name with one in another file: break, perf, ctags and the search for
symbols then find several. A static function has the noun of its file in its name. Counts functions with a verb for which
the field has another word, too (docs/design/conventions.md).

usage: check_names.py SOURCE_ROOT [--list [FOLDER]]
Exit status: 1 when more than MOST functions share a name, or more than MOST_VERBS have such a verb, which are only ever
lowered; 2 when the self-check fails.
"""
import argparse
import collections
import pathlib
import re
import sys

import measure

MOST = 11
MOST_VERBS = 0
VERB = re.compile(r"(?:^|_)(?:take|leave|tell|give)s?(?:_|$)")
# One interface for several instruction sets: a name in each of these files is one name.
ONE_FILE = re.compile(r"engine/cpu/vec_\w+\.h")
NO_NAME = re.compile(r"main|alignas|void|_\w+|[A-Z0-9_]+")  # what measure.functions() takes for a name, and macros


def shared(sources):
    """(place, name) of each function of {path: source} that has its name from two files, and the number of functions."""
    places = collections.defaultdict(dict)
    for path, text in sources.items():
        for name, line, _ in measure.functions(measure.blank(text).splitlines()):
            if not NO_NAME.fullmatch(name):
                places[name].setdefault(ONE_FILE.sub("engine/cpu/vec.h", path), f"{path}:{line}")
    found = [(place, name) for name, of in places.items() if len(of) > 1 for place in of.values()]
    return sorted(found), sum(len(of) for of in places.values())


def with_verbs(sources):
    """(place, name) of each function of {path: source} that has one of these verbs."""
    return sorted(
        (f"{path}:{line}", name)
        for path, text in sources.items()
        for name, line, _ in measure.functions(measure.blank(text).splitlines())
        if VERB.search(name)
    )


def self_check():
    verbs = "int conn_take_body(void) {\n}\nint leave(int x) {\n}\nint cleave_x(void) {\n}\nint takes_x(void) {\n}\n"
    assert [name for _, name in with_verbs({"a.c": verbs})] == ["conn_take_body", "leave", "takes_x"]
    two = {"a.c": "static int run(void) {\n}\nint a_end(void) {\n}\n", "b.c": "\nstatic int run(int x) {\n}\n"}
    assert shared(two) == ([("a.c:1", "run"), ("b.c:2", "run")], 3)
    assert shared({"a.c": "int main(void) {\n}\nKERNEL(x) {\n}\n", "b.c": "int main(void) {\n}\nKERNEL(y) {\n}\n"})[0] == []
    assert shared({f"engine/cpu/vec_{isa}.h": "INLINE vf vf_zero(void) {\n}\n" for isa in ("avx2", "neon")}) == ([], 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--list", nargs="?", const="", metavar="FOLDER", help="print each place")
    args = parser.parse_args()
    try:
        self_check()
    except AssertionError:
        print("self-check failed")
        return 2
    files = [f for top in measure.FOLDERS for f in sorted((args.root / top).rglob("*")) if f.suffix in measure.SUFFIXES]
    sources = {str(f.relative_to(args.root)): f.read_text() for f in files}
    found, n = shared(sources)
    verbs = with_verbs(sources)
    for place, name in found:
        if args.list is not None and place.startswith(args.list):
            print(f"{place}: {name}() has its name from several files")
    for place, name in verbs:
        if args.list is not None and place.startswith(args.list):
            print(f"{place}: {name}() takes, leaves, tells or gives")
    print(f"{len(found)} of {n} functions share their name with one in another file, at most {MOST}")
    print(f"{len(verbs)} take, leave, tell or give, at most {MOST_VERBS}")
    return 1 if len(found) > MOST or len(verbs) > MOST_VERBS else 0


if __name__ == "__main__":
    sys.exit(main())
