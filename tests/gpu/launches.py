#!/usr/bin/env python3
"""Computes from the arguments of launches what each should take on an H200, beside what was measured.

usage: launches.py DUMP.jsonl [--json OUT] [--as-built DUMP.jsonl]
       layerbench --dump MODEL.gguf >DUMP.jsonl     # in the emulator: tests/engine/cuda/bench

The dump has the launches of the program itself: grids, shared memory, bytes of weights, the items of attention, and
what blocks read through the L2 cache. Measured: the table of a layer of Qwen3-8B Q4_K_M in docs/measurements/cuda.md,
whose times run from the end of one wait to the end of the next. Everything else is computed; figures of ASSUMED were
not measured as such. A start cost per kind of kernel (CALIBRATED) is fitted to the rows of one row, so there only the
differences between products say something; 64 rows are not fitted. What was measured are the kernels as built: for a
dump of others, --as-built names a dump of those, to whose one row the costs are fitted.
"""
import json
import pathlib
import statistics
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "engine/cuda"))
import check_kernels

H200 = {"multiprocessors": 132, "threads": 2048, "registers": 65536, "shared": 196 << 10, "blocks": 32}
MEMORY_US = 4261e3  # bytes per us that reading memory reached (measured)
ASSUMED = {
    "l2_bytes_us": 5500e3,  # what products of 16 rows appear to get from the L2 cache
    "shared_of_system": 1024,  # bytes of shared memory that the driver takes from each block
    "roles_slice_us": 0.27,  # 500 cycles for a slice of three warpgroups: 384 of the tensor cores with 64 rows
    "cycles_us": 1750,  # the clock under load
    "slice_us": 0.5,  # a slice of 64 columns in matmul_wgmma and matmul_wgmma_64, whatever it reads
}
# Microseconds: one row, 64 rows. For "pack" the sum of a layer; "down" is the one in Q4_K.
MEASURED = {
    "pack": {1: 8.7, 64: 24}, "q k v": {1: 5.8, 64: 30}, "store": {1: 2.9, 64: 9}, "attention": {1: 10.5, 64: 99},
    "o": {1: 5.3, 64: 14}, "gate and up": {1: 17.4, 64: 41}, "down": {1: 10, 64: 14}, "down, Q6_K": {1: 15, 64: 16},
}
PRODUCTS = ["q k v", "o", "gate and up", "down"]
# Instructions of a warp for a tile of 32 keys and 16 queries (count_kernels.py). A scheduler has two of a block's eight
# warps, and the products of a tile with 128 queries take 512 cycles of the tensor cores.
TILE_INSTRUCTIONS = {"attend_wide_128": 673, "attend_wide_128_q8": 842, "attend_wide_128_q4": 846, "attend_wgmma_128": 623,
                     "attend_wgmma_128_q8": 759, "attend_wgmma_128_q4": 744}
TILE_TENSOR = 512


def read(path):
    steps = []
    for line in open(path):
        row = json.loads(line)
        if "step" in row:
            steps.append({**row, "launches": []})
        elif "launch" in row:
            steps[-1]["launches"].append(row)
    return steps


def name_roles(step):
    """Gives each launch of the layers its role and layer; others, such as logits and sampling, get None."""
    n = 0
    products = [x for x in step["launches"] if x["weights"]]
    for x in step["launches"]:
        kind = x["launch"]
        x["layer"] = n // len(PRODUCTS)
        x["role"] = None
        if x["weights"] and x is not products[-1]:  # the last one computes logits
            x["role"] = PRODUCTS[n % len(PRODUCTS)]
            n += 1
        elif kind.startswith("attend") or kind == "merge":
            x["role"] = "attention"
        elif kind.startswith("pack") or kind == "residual":
            x["role"] = "pack"
        elif kind == "store":
            x["role"] = "store"
        if not x["weights"] and n and n == len(products) - 1:
            x["role"] = None  # behind the last layer
    down = [x for x in step["launches"] if x["role"] == "down"]
    for x in down:
        if x["weights"] > 1.2 * min(d["weights"] for d in down):
            x["role"] = "down, Q6_K"


def blocks_of(x):
    """Returns the blocks that have work: of attention those of its items, for each key head."""
    if x["role"] == "attention":
        return x["items"] * x["grid"][1]
    return x["grid"][0] * x["grid"][1]


def occupancy(x):
    """Returns blocks per multiprocessor and waves. The emulator knows no registers: the limits of the tests count."""
    limits = [H200["blocks"], H200["threads"] // x["threads"]]
    limits.append(H200["shared"] // (x["shared"] + ASSUMED["shared_of_system"]))
    registers = x["registers"] or check_kernels.LIMITS.get(x["launch"], 0)
    if registers:
        limits.append(H200["registers"] // (-(-registers // 8) * 8 * x["threads"]))
    each = max(1, min(limits))
    return each, blocks_of(x) / (each * H200["multiprocessors"])


def tiles_us(x):
    """Returns the time in which the busiest multiprocessor can issue the instructions of its tiles, or multiply them, in
    kernels of many queries."""
    if x["launch"] not in TILE_INSTRUCTIONS:
        return 0
    busiest = max(x["item_tiles"], x["tiles"] / H200["multiprocessors"])
    return busiest * max(2 * TILE_INSTRUCTIONS[x["launch"]], TILE_TENSOR) / ASSUMED["cycles_us"]


def floor_us(x):
    """Returns the time in which a launch's bytes can be moved, or its slices be multiplied."""
    us = max((x["weights"] + x["memory"]) / MEMORY_US, x["read"] / ASSUMED["l2_bytes_us"])
    if x["role"] == "attention":  # the busiest multiprocessor reads its items at its share of the L2 cache
        n = -(-blocks_of(x) // H200["multiprocessors"])
        busiest = n * x["item_bytes"]
        if x["launch"] in TILE_INSTRUCTIONS:  # items of prompts differ
            busiest = max(x["item_bytes"], x["read"] / H200["multiprocessors"])
        us = max(us, busiest * H200["multiprocessors"] / ASSUMED["l2_bytes_us"], tiles_us(x))
    if x["launch"].startswith("matmul_wgmma"):
        us = max(us, x["columns"] / 64 * ASSUMED["slice_us"])
    if x["launch"].startswith("matmul_roles"):
        us = max(us, x["columns"] / 64 * ASSUMED["roles_slice_us"])
    return us


def columns_of(x):
    """Returns the columns that a block multiplies, for its slices: those of the matrix through its splits."""
    return x.get("n_in", 0) / max(1, x.get("splits", 1))


def layer_rows(step):
    """Sums launches by role over the layers, and returns [role, kernel, blocks each, waves, bytes, L2 bytes, floor us,
    launches] per layer. Kernel, blocks and waves are those of the launch with the most bytes."""
    name_roles(step)
    n_layers = 1 + max(x["layer"] for x in step["launches"] if x["role"])
    rows = {}
    for x in step["launches"]:
        if not x["role"]:
            continue
        x["columns"] = columns_of(x)
        row = rows.setdefault(x["role"], {"product": x["weights"] > 0, "most": -1, "n": 0, "us": 0, "memory": 0,
                                          "l2": 0})
        if x["read"] > row["most"]:
            row["kernel"], row["most"] = x["launch"], x["read"]
            row["each"], row["waves"] = occupancy(x)
        row["n"] += 1
        row["us"] += floor_us(x)
        row["memory"] += x["weights"] + x["memory"]
        row["l2"] += x["read"]
    for role, row in rows.items():
        layers = len({x["layer"] for x in step["launches"] if x["role"] == role}) if row["product"] else n_layers
        for key in ["n", "us", "memory", "l2"]:
            row[key] /= layers
    return rows


def calibrate(steps):
    """Returns the start cost of a kernel with weights and of one without: the median of what the measured row of one
    row takes beyond its floor, per launch."""
    beyond = {True: [], False: []}
    for step in steps:
        if step["step"] == 1:
            for role, row in layer_rows(step).items():
                beyond[row["product"]].append((MEASURED[role][1] - row["us"]) / row["n"])
    return {k: statistics.median(v) if v else 0 for k, v in beyond.items()}


def main():
    steps = read(sys.argv[1])
    built = read(sys.argv[sys.argv.index("--as-built") + 1]) if "--as-built" in sys.argv else steps
    start = calibrate(built)
    result = {"assumed": ASSUMED, "calibrated_us": {"products": start[True], "others": start[False]}, "rows": []}
    print(f"calibrated on one row: {start[True]:.2f} us for each product, {start[False]:.2f} us for each other kernel")
    print(f"assumed: {ASSUMED}")
    for step in steps:
        print(f"\n{step['step']} rows, {step['sequences']} x {step['context']} tokens: a layer")
        print(f"{'':14}{'kernel':18}{'launches':>9}{'blocks/SM':>10}{'waves':>7}{'MB':>8}{'L2 MB':>8}{'floor':>8}"
              f"{'expected us':>12}{'measured':>9}")
        total = 0
        for role, row in layer_rows(step).items():
            expected = row["us"] + row["n"] * start[row["product"]]
            measured = MEASURED[role].get(step["step"])
            total += expected if role != "down, Q6_K" else 0
            print(f"{role:14}{row['kernel']:18}{row['n']:9.1f}{row['each']:10}{row['waves']:7.2f}"
                  f"{row['memory'] / 1e6:8.1f}{row['l2'] / 1e6:8.1f}{row['us']:8.1f}{expected:12.1f}"
                  f"{measured if measured else '':>9}")
            result["rows"].append({"rows": step["step"], "role": role, **row, "expected_us": expected,
                                   "measured_us": measured})
        print(f"{'all, down in Q4_K':14}{total:71.1f}")
    if "--json" in sys.argv:
        with open(sys.argv[sys.argv.index("--json") + 1], "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
