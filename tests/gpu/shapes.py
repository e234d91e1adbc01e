#!/usr/bin/env python3
"""Computes, for the products of a layer of Qwen3-8B in Q4_K on an H200 and steps of many rows, how many parts of panels
a launch has, how often a multiprocessor takes one (rounds), what blocks read through the L2 cache, and the time that
follows: of today's kernels (matmul_wgmma_64, matmul_wgmma) and of those of warps with roles. Nothing here is measured.
What is assumed is in launches.py (ASSUMED) and below.

usage: shapes.py [--dense | --clusters | --codes]
"""
import math
import random
import sys

from launches import ASSUMED, H200, MEMORY_US

SHAPES = {  # columns, rows of each matrix
    "q k v": (4096, [4096, 1024, 1024]),
    "o": (4096, [4096]),
    "gate and up": (4096, [12288, 12288]),
    "down": (12288, [4096]),
}
ROWS = [17, 24, 32, 48, 64, 96, 128, 512, 2048]
WIDTHS = [24, 32, 48, 64, 96, 128]  # of matmul_roles
TILE_BYTES = 2368  # of Q4_K: 16 rows of 256 columns
SEGMENTS = 8
CLUSTER = 2  # blocks of matmul_roles_96 and _128 that copy activations for each other
# Microseconds of a slice of 64 columns of matmul_roles. 96 and 128 rows: 700 TFLOP/s of the tensor cores.
SLICE_US = {n: ASSUMED["roles_slice_us"] for n in WIDTHS[:4]}
SLICE_US |= {n: 2 * 128 * n * 64 * H200["multiprocessors"] / 700e6 for n in WIDTHS[4:]}


def up(a, b):
    return -(-a // b)


def panels_of(role, outputs, cluster=1):
    """Returns how many panels of @outputs rows cover the matrices; gates and ups are in the same panels. Each matrix
    has whole clusters of panels."""
    return sum(up(n, outputs * cluster) * cluster for n in SHAPES[role][1])


def splits_of(role, panels):
    """Returns how many blocks share a panel: twice as many as long as there are multiprocessors for them."""
    splits = 1
    while role != "gate and up" and splits < SEGMENTS and 2 * panels * splits <= H200["multiprocessors"]:
        splits *= 2
    return splits


def launch(role, rows, width, outputs, each, slice_us, splits, cluster=1):
    """Returns (us, parts, rounds, bytes through the L2 cache) of panels of @outputs by @width rows."""
    n_in, matrices = SHAPES[role]
    columns = up(rows, width)
    parts = panels_of(role, outputs, cluster) * columns * splits
    rounds = up(parts, each * H200["multiprocessors"])
    weights = sum(matrices) * n_in * TILE_BYTES / (16 * 256)
    activations = parts / splits * width * n_in * 2 / cluster
    us = max(weights / MEMORY_US, (weights * columns + activations) / ASSUMED["l2_bytes_us"],
             rounds * n_in / 64 / splits * slice_us)
    if splits > 1 and role == "q k v":  # the last block of a panel reads its sums; others are left to residual()
        us += SEGMENTS * min(rows, width) * outputs * 4 / (ASSUMED["l2_bytes_us"] / H200["multiprocessors"])
    return us, parts, rounds, weights * columns + activations


def today(role, rows):
    """Returns (kernel, launch) of the faster kernel; q k v are not shared, because trials on the device say so."""
    ways = []
    for name, width, each in [("wgmma_64", 64, 2)] + [("wgmma", 128, 1)] * (rows > 64):
        panels = panels_of(role, 128) * up(rows, width)
        splits = splits_of(role, panels) if width == 64 and role != "q k v" else 1
        ways.append((name, launch(role, rows, width, 128, each, ASSUMED["slice_us"], splits)))
    return min(ways, key=lambda way: way[1][0])


def roles(role, rows):
    width = next((n for n in WIDTHS if n >= rows), 128)
    outputs = 192 if width <= 64 else 128
    cluster = 1 if width <= 64 else CLUSTER
    panels = panels_of(role, outputs) * up(rows, width)
    splits = splits_of(role, panels) if rows <= 128 else 1
    return f"roles_{width}", launch(role, rows, width, outputs, 1, SLICE_US[width], splits, cluster)


# Products whose blocks share segments, of two models, and what a multiprocessor gets from the shared memory of others.
SHARED_SHAPES = {
    "Qwen3-8B": {"q k v": (4096, [4096, 1024, 1024]), "o": (4096, [4096]), "down": (12288, [4096])},
    "Qwen3-4B": {"q k v": (2560, [4096, 1024, 1024]), "o": (4096, [2560]), "down": (9728, [2560])},
}
OTHERS_US = 2650e3 / H200["multiprocessors"]  # bytes: assumed
L2_US = ASSUMED["l2_bytes_us"] / H200["multiprocessors"]
JOIN = 4  # blocks of a cluster of matmul_wgmma_join
SUMS = 64 * 128 * 4  # bytes of a segment's sums of a panel


def shared_way(role, n_in, matrices, splits, joins):
    """Returns (blocks, microseconds without sums, those of the sums, MB through the L2 cache for sums) of a step of 17 to
    64 rows, two blocks on a multiprocessor. Sums of o and down are left to residual, a block for each row."""
    panels = sum(up(n, 128) for n in matrices)
    blocks = panels * splits
    us = up(blocks, 2 * H200["multiprocessors"]) * n_in / 64 / splits * ASSUMED["slice_us"]
    busiest = up(blocks, H200["multiprocessors"])
    if splits == 1:
        return blocks, us, 0, 0
    if joins:
        return blocks, us, busiest * (SEGMENTS // splits * SUMS) * (splits - 1) / splits / OTHERS_US, 0
    stored = busiest * SEGMENTS // splits * SUMS / L2_US
    read = SEGMENTS * (SUMS if role == "q k v" else 4 * sum(matrices)) / L2_US
    return blocks, us, stored + read, 2 * panels * SEGMENTS * SUMS / 1e6


def clusters():
    print("| | | not shared | shared: blocks | us | of sums | L2 MB | cluster: blocks | us | of sums |")
    print("| --- | --- | --: | --: | --: | --: | --: | --: | --: | --: |")
    for model, shapes in SHARED_SHAPES.items():
        for role, (n_in, matrices) in shapes.items():
            alone = shared_way(role, n_in, matrices, 1, False)
            splits = 1
            while 2 * splits * alone[0] <= H200["multiprocessors"]:
                splits *= 2
            blocks, us, sums, l2 = shared_way(role, n_in, matrices, splits, False)
            joined, join_us, join_sums, _ = shared_way(role, n_in, matrices, JOIN, True)
            cells = [model, role, f"{alone[1]:.1f}", blocks, f"{us + sums:.1f}", f"{sums:.1f}", f"{l2:.0f}", joined,
                     f"{join_us + join_sums:.1f}", f"{join_sums:.1f}"]
            print("|", " | ".join(map(str, cells)), "|")


# Ways to multiply a slice of a block by 128 rows: outputs of a block, bytes of a tile of 256 columns or None for a
# dense copy, blocks of a cluster that share its weights, and its rows; warp instructions of a slice, counted in the
# machine code (count_kernels.py; Q6_K: the most of 144 to 151).
SLICES = {
    "roles_128, Q4_K": (128, TILE_BYTES, 1, 2, 110),
    "roles_128, Q6_K": (128, 3360, 1, 2, 151),
    "dense, clusters of 1 x 2": (128, None, 1, 2, None),
    "dense, clusters of 2 x 2": (128, None, 2, 2, None),
    "dense, 192 outputs, clusters of 2 x 2": (192, None, 2, 2, None),
}
SHARED_BYTES = 128  # that a multiprocessor reads or writes in its shared memory in a cycle: assumed


def slice_of(outputs, tile_bytes, share_weights, share_rows, instructions):
    """Returns of a slice of 64 columns: cycles of the tensor cores, of shared memory, and to issue the instructions of
    decoding; bytes through the L2 cache."""
    products = outputs // 64 * 4  # wgmma of 64 outputs, 128 rows and 16 columns
    rows = 128 * 64 * 2
    weights = outputs / 16 * tile_bytes / 4 if tile_bytes else outputs * 64 * 2
    # Weights are written once, and read once: by warps that decode, or by wgmma. Each warpgroup reads all rows.
    shared = 2 * weights + rows + products * 128 * 16 * 2
    issue = instructions * outputs / 16 / 4 if instructions else None
    return products * 64, shared / SHARED_BYTES, issue, weights / share_weights + rows / share_rows


def dense():
    print("| | tensor cores | shared memory | issue | L2 KB | L2 us | tensor us |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    for name, way in SLICES.items():
        tensor, shared, issue, l2 = slice_of(*way)
        l2_us = l2 * H200["multiprocessors"] / ASSUMED["l2_bytes_us"]
        tensor_us = SLICE_US[128] * way[0] / 128
        cells = [name, tensor, f"{shared:.0f}", f"{issue:.0f}" if issue else "", f"{l2 / 1e3:.1f}", f"{l2_us:.2f}"]
        print("|", " | ".join(map(str, cells)), "|", f"{tensor_us:.2f} |")


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def e4m3(x):
    step = 2.0 ** (max(math.frexp(x)[1] - 1, -6) - 3)
    return min(round(x / step) * step, 448)


# Forms of activations: columns of a scale, the scale of those with maximum m, and the rounding of what it divides.
CODES = {
    "bytes": (128, lambda m: m / 127, round),
    "e4m3": (32, lambda m: 2.0 ** math.ceil(math.log2(m / 448)), e4m3),
    "e2m1": (16, lambda m: m / 6, lambda x: min(E2M1, key=lambda v: abs(v - x))),
}


def codes(rows=60, columns=4096):
    """Prints the root mean square of the errors of products with rounded rows, relative to that of the products. Every
    hundredth value is eight times as large."""
    rng, square = random.Random(1), dict.fromkeys(CODES, 0.0)
    for _ in range(rows):
        x = [rng.gauss(0, 8 if rng.random() < 0.01 else 1) for _ in range(columns)]
        w = [rng.gauss(0, 1) for _ in range(columns)]
        whole = sum((a * b) ** 2 for a, b in zip(w, x))
        for name, (each, scale_of, rounded) in CODES.items():
            error = 0
            for i in range(0, columns, each):
                scale = scale_of(max(map(abs, x[i : i + each])))
                error += sum(w[k] * (x[k] - math.copysign(rounded(abs(x[k]) / scale) * scale, x[k]))
                             for k in range(i, i + each))
            square[name] += error**2 / whole / rows
    for name, s in square.items():
        print(f"{name}: {math.sqrt(s):.1e}")


def main():
    if "--codes" in sys.argv[1:]:
        return codes()
    if "--dense" in sys.argv[1:]:
        return dense()
    if "--clusters" in sys.argv[1:]:
        return clusters()
    total = {}
    print("| | rows | today | parts | rounds | L2 MB | us | with roles | parts | rounds | L2 MB | us |")
    print("| --- | --: | --- | --: | --: | --: | --: | --- | --: | --: | --: | --: |")
    for role in SHAPES:
        for rows in ROWS:
            cells = []
            for name, (us, parts, rounds, l2) in (today(role, rows), roles(role, rows)):
                cells += [name, parts, rounds, f"{l2 / 1e6:.0f}", f"{us:.1f}"]
                total.setdefault(rows, []).append(us)
            print("|", " | ".join(map(str, [role, rows, *cells])), "|")
    for rows, us in total.items():
        print(f"{rows} rows: {sum(us[::2]):.0f} us today, {sum(us[1::2]):.0f} us with roles")


if __name__ == "__main__":
    main()
