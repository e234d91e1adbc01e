#!/usr/bin/env python3
"""Each instruction set can be built alone (-Disa=machine): beside the table cpu_kernels_NAME, of which isa.c knows whether
it is there, no file refers to a symbol of the kernels of another instruction set. Those of AVX-512, BF16 and AMX are
built together. Reads the libraries of a build of all instruction sets.

usage: check_isa_links.py LIBRARY... : libengine_cpu.a and libengine_cpu_NAME.a
"""
import pathlib
import re
import subprocess
import sys

TOGETHER = {"avx512bf16": "avx512", "amx": "avx512"}


def symbols(library, *options):
    said = subprocess.run(["nm", "-P", *options, library], check=True, capture_output=True, text=True).stdout
    return {line.split()[0] for line in said.splitlines() if len(line.split()) > 1}


def isa(library):
    """The instruction set, or "" for the files that are compiled for all machines."""
    name = re.fullmatch(r"libengine_cpu_?(.*)\.a", pathlib.Path(library).name)[1]
    return TOGETHER.get(name, name)


def main(libraries):
    defined = {library: symbols(library, "--defined-only", "-g") for library in libraries}
    common = set().union(*(defined[library] for library in libraries if not isa(library)))
    wrong = []
    for user in libraries:
        needed = {name for name in symbols(user, "-u") if not name.startswith("cpu_kernels_")} - common
        for library in libraries:
            if isa(library) not in ("", isa(user)):
                wrong += [f"{user}: {name} of {library}" for name in sorted(needed & defined[library])]
    n = len({isa(library) for library in libraries} - {""})
    print("\n".join(wrong) or f"{n} instruction sets can be built alone")
    sys.exit(bool(wrong) or n < 2)


main(sys.argv[1:])
