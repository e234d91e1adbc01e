#!/usr/bin/env python3
"""Writes a header with two digests: of the headers that weft and its backend libraries must have in common, and of
all sources of the engine. Where the second is the same, so are the bits that are computed.

usage: build_id.py OUT.h DEPFILE SOURCE_ROOT HEADER...
"""
import hashlib
import pathlib
import sys

KINDS = {".c", ".h", ".cu", ".cuh", ".py", ".build"}
OTHERS = ("base/mathx.h", "base/rng.h")


def digest_of(names):
    digest = hashlib.sha1()
    for name in names:
        digest.update(pathlib.Path(name).read_bytes())
    return ", ".join(f"0x{b:02x}" for b in digest.digest())


out, depfile, root, *headers = sys.argv[1:]
engine = (pathlib.Path(root) / "engine").rglob("*")
sources = sorted(str(p) for p in engine if p.suffix in KINDS or p.name == "meson.build")
sources += [str(pathlib.Path(root) / name) for name in OTHERS]
with open(out, "w") as f:
    print("#pragma once\n", file=f)
    print("/* Of the headers that a backend library must have in common with weft. */", file=f)
    print("#define ENGINE_BUILD_ID " + digest_of(headers), file=f)
    print("/* Of all sources of the engine. */", file=f)
    print("#define ENGINE_SOURCES " + digest_of(sources), file=f)
with open(depfile, "w") as f:
    print(out + ": " + " ".join(s.replace(" ", "\\ ") for s in sources), file=f)
