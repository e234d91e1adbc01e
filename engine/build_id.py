#!/usr/bin/env python3
"""Writes a header with three digests: of the headers that weft and its backend libraries must have in common; of all
sources of the engine; and of these and all sources that describe requests. If the second is equal, computed bits are
equal; if the third is, a daemon can continue the requests of another one.

usage: build_id.py OUT.h DEPFILE SOURCE_ROOT HEADER...
"""
import hashlib
import pathlib
import sys

KINDS = {".c", ".h", ".cu", ".cuh", ".py", ".build"}
OTHERS = ("lib/base/mathx.h", "lib/base/rng.h")


def digest_of(names):
    digest = hashlib.sha1()
    for name in names:
        digest.update(pathlib.Path(name).read_bytes())
    return ", ".join(f"0x{b:02x}" for b in digest.digest())


out, depfile, root, *headers = sys.argv[1:]


def sources_in(*folders):
    files = (p for folder in folders for p in (pathlib.Path(root) / folder).rglob("*"))
    return sorted(str(p) for p in files if p.suffix in KINDS or p.name == "meson.build")


sources = sources_in("engine") + [str(pathlib.Path(root) / name) for name in OTHERS]
requests = sources + sources_in("lib/proto", "lib/text", "lib/grammar") + [str(pathlib.Path(root) / "lib/base" / name) for name in ("chan.c", "chan.h")]
with open(out, "w") as f:
    print("#pragma once\n", file=f)
    print("/* Digest of the headers that a backend library must have in common with weft. */", file=f)
    print("#define ENGINE_BUILD_ID " + digest_of(headers), file=f)
    print("/* Digest of all sources of the engine. */", file=f)
    print("#define ENGINE_SOURCES " + digest_of(sources), file=f)
    print("/* Digest of these, proto/, text/, grammar/ and the channel. */", file=f)
    print("#define REQUEST_SOURCES " + digest_of(requests), file=f)
with open(depfile, "w") as f:
    print(out + ": " + " ".join(s.replace(" ", "\\ ") for s in requests), file=f)
