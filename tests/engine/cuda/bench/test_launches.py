#!/usr/bin/env python3
"""Lists the launches of two layers of Qwen3-8B in the emulator and compares what is computed from them with what an
H200 took (tests/gpu/launches.py); then measures a small model by layerbench, whose variants must have the same bits.

usage: test_launches.py LAYERBENCH WEFT_SYNTH LAUNCHES_PY
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

LAYERBENCH, SYNTH, SCRIPT = sys.argv[1:4]
KERNELS_OF_A_LAYER = 11  # with one row; a fusion lowers it
TOKEN = 4096  # bytes of a token's keys and values in a layer
RESULT = 2 * 32 * 132 * 4  # bytes of a row's results for a chunk, which are written and read
KEYS = 64 * 1026 + 2  # of 64 rows: each has 1,026 tokens in its second step, and the first row is at its fourth
# By rows: the kernel with the most bytes, kernels, items of a key head, bytes from memory and through the L2 cache. A
# block of a prompt has 32 rows, and reads the keys up to its last one.
ATTENTION = {
    1: ("attend_128", 2, 5, 1026 * TOKEN, 1026 * TOKEN + 5 * RESULT),
    64: ("attend_128", 2, 320, KEYS * TOKEN, KEYS * TOKEN + 320 * RESULT),
    2048: ("attend_wide_128", 3, 64, 2048 * TOKEN, sum(range(32, 2049, 32)) * TOKEN),
}
PROMPT_TILES = sum(range(1, 65)) * 8  # of 2,048 rows: block i sees i tiles, for each of 8 key heads
PRODUCTS = {"q k v": 15.1e6, "o": 9.7e6, "gate and up": 58.2e6, "down": 29.1e6, "down, Q6_K": 41.3e6}


def run(*command, **env):
    return subprocess.run(list(map(str, command)), check=True, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True).stdout


def synth(path, *shape):
    run(SYNTH, *shape, "--format", "Q4_K_M", "-o", path)
    return path


def activations(path, **env):
    """Returns, by rows, the megabytes of activations that the products of the first layer read through the L2 cache."""
    of = {}
    for line in run(LAYERBENCH, "--dump", "--rows", "2,5,16", path, **env).splitlines():
        row = json.loads(line)
        if "step" in row:
            products = of.setdefault(row["step"], [])
        elif row.get("weights"):
            products.append((row["read"] - row["weights"]) / 1e6)
    return {rows: sum(products[:4]) for rows, products in of.items()}


def rows_of(folder):
    dump, out = folder / "dump.jsonl", folder / "rows.json"
    dump.write_text(run(LAYERBENCH, "--dump", "--rows", "1,64,2048", synth(folder / "layers.gguf", "--shape", "qwen3-8b,n_layer=2,n_vocab=1024")))
    run(sys.executable, SCRIPT, dump, "--json", out)
    return json.loads(out.read_text())["rows"]


def main():
    wrong = []
    with tempfile.TemporaryDirectory(prefix="weft-launches-") as name:
        folder = pathlib.Path(name)
        rows = rows_of(folder)
        one = {r["role"]: r for r in rows if r["rows"] == 1}
        n = sum(r["n"] for role, r in one.items() if role != "down, Q6_K")
        if n > KERNELS_OF_A_LAYER:
            wrong.append(f"{n} kernels in a layer")
        for role, size in PRODUCTS.items():
            r = one[role]
            if not 0.95 * size < r["memory"] < 1.05 * size:
                wrong.append(f"{role}: {r['memory']} bytes of weights, not {size}")
            if abs(r["expected_us"] - r["measured_us"]) > 0.2 * r["measured_us"]:
                wrong.append(f"{role}: {r['expected_us']:.1f} us are computed, {r['measured_us']} were measured")
        for n_rows, (kernel, n, items, memory, l2) in ATTENTION.items():
            r = next(r for r in rows if r["rows"] == n_rows and r["role"] == "attention")
            if (r["kernel"], r["n"], round(r["waves"] * r["each"] * 132)) != (kernel, n, items * 8):
                wrong.append(f"{n_rows} rows: {r['n']} kernels of attention, {r['waves']} waves of {r['kernel']}")
            if (r["memory"], r["l2"]) != (memory, l2):
                wrong.append(f"{n_rows} rows: attention reads {r['memory']} bytes, {r['l2']} through the L2 cache")
        prompt = next(r for r in rows if r["rows"] == 2048 and r["role"] == "attention")
        if abs(prompt["us"] - PROMPT_TILES / 132 * 2 * 673 / 1750) > 1:
            wrong.append(f"2048 rows: attention cannot take less than {prompt['us']:.1f} us")
        if abs(one["attention"]["expected_us"] - 10.5) > 2.1:
            wrong.append(f"attention: {one['attention']['expected_us']:.1f} us are computed, 10.5 were measured")
        if not all(r["kernel"] == "matmul_wgmma_64" for r in rows if r["rows"] == 64 and r["role"] in PRODUCTS):
            wrong.append("64 rows are not multiplied by wgmma")
        layers, most = folder / "layers.gguf", {2: 49, 5: 10, 16: 20}  # megabytes
        if any(activations(layers, WEFT_CUDA_CLUSTER="1")[rows] > mb for rows, mb in most.items()):
            wrong.append(f"clusters read {activations(layers, WEFT_CUDA_CLUSTER='1')} MB of activations")
        if activations(layers)[16] < 300:
            wrong.append(f"{activations(layers)} MB of activations are read without clusters")
        results = folder / "results.jsonl"
        run(LAYERBENCH, "--reps", 2, "--rows", "1,5", "--context", 40, "--variant", "fused:WEFT_CUDA_FUSE=1",
            "--variant", "not:WEFT_CUDA_FUSE=0", synth(folder / "tiny.gguf", "--arch", "qwen3", "--shape", "tiny"),
            GPU_JSON=str(results))
        lines = [json.loads(line) for line in results.read_text().splitlines()]
        checks = [x for x in lines if "check" in x]
        times = [x for x in lines if "layer" in x]
        if len(checks) != 4 or not all(x["ok"] for x in checks):
            wrong.append(f"bits of variants: {checks}")
        for kernel in ["step", "matvec", "pack", "attend_64"]:
            for variant in ["fused", "not"]:
                if not any(t["layer"] == kernel and t["variant"] == variant and t["n"] == 2 for t in times):
                    wrong.append(f"{kernel} of {variant} was not measured")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


sys.exit(main())
