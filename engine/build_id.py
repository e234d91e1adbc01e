#!/usr/bin/env python3
"""Writes a header with a digest of the headers that weft and its backend libraries must have in common.

usage: build_id.py OUT.h HEADER...
"""
import hashlib
import sys

digest = hashlib.sha1()
for name in sys.argv[2:]:
    with open(name, "rb") as f:
        digest.update(f.read())
with open(sys.argv[1], "w") as out:
    print("#pragma once\n", file=out)
    print("/* Of the headers that a backend library must have in common with weft. */", file=out)
    print("#define ENGINE_BUILD_ID " + ", ".join(f"0x{b:02x}" for b in digest.digest()), file=out)
