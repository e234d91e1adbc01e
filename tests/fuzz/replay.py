#!/usr/bin/env python3
"""Runs a target of this folder on its corpus, then for a while on random changes of it.

usage: replay.py PROGRAM [--seeds FILE] [--corpus FILE] [--dict FILE] [--cpu-ms N] [--unpack FOLDER]

--seeds   a text file of inputs, each after a line that begins with "%%"; \\xHH in it stands for a byte
--corpus  a .tar.xz of inputs that a fuzzer has found
--dict    is for libFuzzer and not used here
--unpack  only writes the inputs to FOLDER, those that the program makes itself among them
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile


def read_seeds(path):
    """The inputs of a seeds file, as bytes."""
    if not path.exists():
        return []
    parts = re.split(rb"^%%.*\n", path.read_bytes(), flags=re.M)[1:]
    unescape = lambda part: re.sub(rb"\\x([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), part)
    return [unescape(part.removesuffix(b"\n")) for part in parts]


def unpack(args, folder):
    for i, seed in enumerate(read_seeds(args.seeds) if args.seeds else []):
        (folder / f"seed-{i:03}").write_bytes(seed)
    if args.corpus and args.corpus.exists():
        with tarfile.open(args.corpus) as tar:
            for member in tar.getmembers():
                (folder / pathlib.Path(member.name).name).write_bytes(tar.extractfile(member).read())
    subprocess.run([args.program, "--seeds", folder], check=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=pathlib.Path)
    for name in "seeds", "corpus", "dict", "unpack":
        parser.add_argument("--" + name, type=pathlib.Path)
    parser.add_argument("--cpu-ms", default="700")
    args = parser.parse_args()
    if args.unpack:
        args.unpack.mkdir(parents=True, exist_ok=True)
        return unpack(args, args.unpack)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        unpack(args, folder)
        inputs = sorted(folder.iterdir())
        return subprocess.run([args.program, "--cpu-ms", args.cpu_ms, *inputs]).returncode


sys.exit(main())
