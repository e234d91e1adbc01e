#!/usr/bin/env python3
"""Measures how far logits move if activations are quantised as a checkpoint asks for, beside weights alone, as weft
computes: the trained model stories260K in float64, along the greedy texts of its golden file.

usage: tests/bench/quantised_activations.py FOLDER [--cases N]

FOLDER has stories260K-f32.gguf and its .golden.json (build/tests/data/models). All matrices of the layers are
quantised, embedding and output matrix are not, as published checkpoints have it."""
import argparse
import json
import math
import pathlib
import struct
import sys
from operator import mul

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import hf_folder
from hf_quantise import FP4, e4m3

E4M3 = sorted({e4m3(x) for x in range(256) if x & 127 != 127})
E2M1 = sorted(set(FP4))


def nearest(values, v):
    """Returns the value of the sorted list that is nearest to @v."""
    low, high = 0, len(values) - 1
    while high - low > 1:
        mid = (low + high) // 2
        low, high = (mid, high) if values[mid] <= v else (low, mid)
    return values[low] if v - values[low] <= values[high] - v else values[high]


def int8(row):
    scale = max(map(abs, row)) / 127 or 1
    return [round(v / scale) * scale for v in row]


def fp8(row):
    scale = max(map(abs, row)) / 448 or 1
    return [nearest(E4M3, v / scale) * scale for v in row]


def nvfp4(row):
    """Groups of 16 with scales of E4M3, and a scale of the row."""
    whole = max(map(abs, row)) / (448 * 6) or 1
    out = []
    for at in range(0, len(row), 16):
        group = row[at:at + 16]
        scale = nearest(E4M3, max(map(abs, group)) / 6 / whole) * whole or 1
        out += [nearest(E2M1, v / scale) * scale for v in group]
    return out


def same(row):
    return row


# name: weights, activations
SCHEMES = {"W8A16 (INT8)": (int8, same), "W8A8 (INT8, scales per token)": (int8, int8), "W8A16 (FP8)": (fp8, same),
           "W8A8 (FP8, scales per token)": (fp8, fp8), "W4A16 (NVFP4)": (nvfp4, same), "W4A4 (NVFP4)": (nvfp4, nvfp4)}


class Model:
    def __init__(self, path, weights, activations):
        g = hf_folder.Gguf(path)
        self.n_layer, self.n_head, self.n_kv = (g.keys["llama." + k] for k in (
            "block_count", "attention.head_count", "attention.head_count_kv"))
        self.eps, self.activations, self.w = g.keys["llama.attention.layer_norm_rms_epsilon"], activations, {}
        for name, (_, dims, data) in g.tensors.items():
            values = struct.unpack(f"<{len(data) // 4}f", data)
            rows = [list(values[i:i + dims[0]]) for i in range(0, len(values), dims[0])]
            is_matrix = name.startswith("blk.") and len(dims) == 2
            self.w[name] = [weights(r) for r in rows] if is_matrix else rows
        self.cache = []

    def norm(self, x, name):
        scale = 1 / math.sqrt(sum(map(mul, x, x)) / len(x) + self.eps)
        return [v * scale * w for v, w in zip(x, self.w[name][0])]

    def product(self, x, *names):
        x = self.activations(x)
        return [[sum(map(mul, x, row)) for row in self.w[name]] for name in names]

    def rotated(self, x, position, size):
        out = []
        for i in range(0, len(x), 2):
            angle = position * 10000.0 ** -(i % size / size)
            c, s = math.cos(angle), math.sin(angle)
            out += [x[i] * c - x[i + 1] * s, x[i] * s + x[i + 1] * c]
        return out

    def attention(self, l, x):
        q, k, v = self.product(x, *(f"blk.{l}.attn_{n}.weight" for n in "qkv"))
        size, cache = len(q) // self.n_head, self.cache[l]
        position = len(cache)
        cache.append((self.rotated(k, position, size), v))
        q, out = self.rotated(q, position, size), []
        for h in range(self.n_head):
            at = h * self.n_kv // self.n_head * size
            scores = [sum(map(mul, q[h * size:(h + 1) * size], k[at:at + size])) / math.sqrt(size) for k, _ in cache]
            top = max(scores)
            p = [math.exp(s - top) for s in scores]
            out += [sum(a * v[at + i] for a, (_, v) in zip(p, cache)) / sum(p) for i in range(size)]
        return self.product(out, f"blk.{l}.attn_output.weight")[0]

    def logits(self, tokens):
        """Returns the logits behind each token."""
        self.cache, out = [[] for _ in range(self.n_layer)], []
        for token in tokens:
            x = list(self.w["token_embd.weight"][token])
            for l in range(self.n_layer):
                x = [a + b for a, b in zip(x, self.attention(l, self.norm(x, f"blk.{l}.attn_norm.weight")))]
                gate, up = self.product(self.norm(x, f"blk.{l}.ffn_norm.weight"), f"blk.{l}.ffn_gate.weight", f"blk.{l}.ffn_up.weight")
                inner = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)]
                x = [a + b for a, b in zip(x, self.product(inner, f"blk.{l}.ffn_down.weight")[0])]
            x = self.norm(x, "output_norm.weight")
            head = self.w.get("output.weight", self.w["token_embd.weight"])
            out.append([sum(map(mul, x, row)) for row in head])
        return out


def log_softmax(z):
    top = max(z)
    total = top + math.log(sum(math.exp(v - top) for v in z))
    return [v - total for v in z]


def compare(should, got):
    """Returns the relative error of logits, the mean divergence (KL) in nats and the share of equal first choices."""
    error = norm = kl = equal = 0
    for a, b in zip(should, got):
        mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
        error += sum((x - mean_a - y + mean_b) ** 2 for x, y in zip(a, b))
        norm += sum((x - mean_a) ** 2 for x in a)
        p, q = log_softmax(a), log_softmax(b)
        kl += sum(math.exp(x) * (x - y) for x, y in zip(p, q))
        equal += a.index(max(a)) == b.index(max(b))
    return math.sqrt(error / norm), kl / len(should), equal / len(should)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--cases", type=int, default=4)
    options = parser.parse_args()
    path = options.folder / "stories260K-f32.gguf"
    cases = json.loads((options.folder / "stories260K-f32.golden.json").read_text())["cases"][:options.cases]
    texts = [(c["prompt_ids"], [t["id"] for t in c["greedy"]]) for c in cases]

    def run(weights, activations):
        model = Model(path, weights, activations)
        return [z for prompt, ids in texts for z in model.logits(prompt + ids[:-1])[len(prompt) - 1:]]

    whole = run(same, same)
    golden = [t for c in cases for t in c["greedy"]]
    assert all(abs(max(z) - t["logit"]) < 0.01 and z.index(max(z)) == t["id"] for z, t in zip(whole, golden)), "not the golden model"
    print(f"{len(whole)} positions\n\n| scheme | against | error of logits | KL, nats | equal first choice |\n|---|---|---|---|---|")
    alone = {}
    for name, (weights, activations) in SCHEMES.items():
        got = run(weights, activations)
        alone.setdefault(weights, got)
        rows = [("full precision", whole)] + ([("weights alone", alone[weights])] if activations is not same else [])
        for against, should in rows:
            error, kl, equal = compare(should, got)
            print(f"| {name} | {against} | {error:.4f} | {kl:.5f} | {equal:.3f} |", flush=True)


if __name__ == "__main__":
    main()
