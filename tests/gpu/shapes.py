#!/usr/bin/env python3
"""Computes, for the products of a layer of Qwen3-8B in Q4_K on an H200 and steps of many rows, how many parts of panels
a launch has, how often a multiprocessor takes one (rounds), what blocks read through the L2 cache, and the time that
follows: of today's kernels (matmul_wgmma_64, matmul_wgmma) and of those of warps with roles. Nothing here is measured.
What is assumed is in launches.py (ASSUMED) and below.

usage: shapes.py
"""
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


def main():
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
