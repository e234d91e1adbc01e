#!/usr/bin/env python3
"""Writes a model with random weights and the widths of a published file, of which only a header is at hand
(tests/data/headers): the architectures for which weft-synth has no shape.

usage: header_model.py NAME [--layers N] [--experts N] [--tokens N] -o OUT.gguf

NAME is that of a header. Without the options the model has the layers, experts and tokens of the file. Its vocabulary
has no texts: it is for weft-bench engine and weft-gguf info.
"""
import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import header_file  # noqa: E402

HEADERS = ROOT / "tests" / "data" / "headers"


def make(path, name, n_layer=None, n_expert=0, n_vocab=None):
    """Writes the model of header @name to @path, complete or not at all; None and 0: as many as in the file."""
    _, _, keys, tensors = header_file.read(HEADERS / f"{name}.txt", n_layer)
    rows = next(shape[1] for name, _, shape in tensors if name == "token_embd.weight")
    part = path.with_suffix(".part")
    header_file.write(part, *header_file.smaller(keys, tensors, n_vocab or rows, n_expert), filled=True)
    part.rename(path)


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("name", choices=sorted(file.stem for file in HEADERS.glob("*.txt")))
    p.add_argument("--layers", type=int)
    p.add_argument("--experts", type=int, default=0)
    p.add_argument("--tokens", type=int)
    p.add_argument("-o", dest="path", type=pathlib.Path, required=True)
    a = p.parse_args()
    make(a.path, a.name, a.layers, a.experts, a.tokens)


if __name__ == "__main__":
    main()
