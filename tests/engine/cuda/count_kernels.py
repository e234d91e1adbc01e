#!/usr/bin/env python3
"""Counts the resources of the kernels from their machine code: registers, spills, shared memory, blocks on a
multiprocessor; and for the loops of products the instructions for each weight of a lane (few rows) or for each mma
(many rows), the part that is mma, and the bytes in flight. Code at the end of a segment is counted as for a matrix of
4,096 columns. A wgmma of N columns counts as N / 8 mma, the part of one warp. Needs nvcc and cc, no device and no
disassembler.

usage: [NVCC=PATH] count_kernels.py FOLDER [ARCHITECTURES [FILES]]
FOLDER keeps the cubins, FILE.ARCHITECTURE.cubin; those that are missing or older than a source are compiled.
Exit 1 where a kernel spills, a slice in matmul_roles, a tile in attend_wgmma or a product of bytes takes too many
instructions, or products are not found in its code: then cubin.py does not understand it.
ARCHITECTURES: 80,90 (all six); FILES: matmul,attention (all with kernels).
"""
import collections
import os
import pathlib
import re
import subprocess
import sys

import check_kernels
import cubin

ROOT = pathlib.Path(__file__).resolve().parents[3]
SOURCES = ROOT / "engine"
FLAGS = ["-std=c++17", "-O3", "--fmad=false", "-lineinfo", "-cubin", "-I", str(ROOT), "-I", str(ROOT / "lib")]  # as meson.build
# One device of each architecture: multiprocessors, GHz, bytes of memory a second, KiB of shared memory and warps of a multiprocessor.
DEVICES = {
    "80": ("A100", 108, 1.41, 2.0e12, 164, 64),
    "86": ("RTX 3090", 82, 1.70, 0.94e12, 100, 48),
    "89": ("RTX 4090", 128, 2.52, 1.01e12, 100, 48),
    "90": ("H200", 132, 1.98, 4.8e12, 228, 64),
    "100": ("B200", 148, 1.85, 8.0e12, 228, 64),
    "120": ("RTX 5090", 170, 2.41, 1.79e12, 100, 48),
}
LATENCY = 800e-9  # of memory under load; assumed
DRIVER_SHARED = 1024  # of each block
# Prints numbers of the headers for each format: bytes of a stage, and the shared memory that launches request.
PROBE = """
#include <stdio.h>
#include "engine/cuda/products/kernels_cluster.h"
#include "engine/cuda/products/kernels_norm.h"
#include "engine/ops/attention/kernels_attention.h"
int main(void) {
    for (uint32_t f = 0; f < TILE_FORMATS; f++) {
        uint32_t stage = tile_stage_bytes(f);
        printf("%u %u %u %u %u %u %u %u %u %u %u %u %u %u %u\\n", stage, matvec_shared(stage, MATVEC_STAGES), expert_shared(stage), wide_shared(f),
               (uint32_t)ATTEND_WIDE_SHARED(64, 16, 16), (uint32_t)ATTEND_WIDE_SHARED(128, 16, 16),
               wgmma_shared(MATMUL_COLUMNS, f), wgmma_shared(WGMMA_ROWS, f), (uint32_t)ATTEND_SHARED(64),
               (uint32_t)ATTEND_SHARED(128), roles_shared(64, f),
               matvec_shared(stage, MATVEC_STAGES - 1) + matvec_norm_bytes(1, MATVEC_NORM_COLUMNS, 1),
               cluster_shared(8, stage, MATVEC_STAGES, 4096 / 8 * 16), cluster_shared(16, stage, MATVEC_STAGES, 4096 / 8 * 16),
               wgmma_join_shared(f));
    }
}
"""
FORMATS = ["F16", "Q8_0", "Q4_0", "IQ4_NL", "MXFP4", "NVFP4", "Q5_0", "Q4_1", "Q5_1", "G4", "Q4_K", "Q5_K", "Q6_K",
           "IQ4_XS", "IQ1", "IQ2", "IQ3", "Q2_K", "Q3_K"]
PRODUCTS = {"matvec": 1, "matvec_norm": 11, "matvec_16": 1, "matvec_dry": 1, "matvec_16_dry": 1, "matvec_cluster": 12, "matvec_cluster_16": 13,
            "expert_vec": 2, "matmul_wide": 3, "expert_wide": 3}
PRODUCTS |= {"matmul_wgmma_64": 6, "matmul_wgmma": 7, "matmul_wgmma_join": 14}
ROLES = {f"matmul_roles_{n}": n for n in (24, 32, 48, 64)}
ROLES_WIDE = {f"matmul_roles_{n}_{formats}": n for n in (96, 128) for formats in ("q4k", "q5k", "plain")}
PRODUCTS |= {name: 10 for name in ROLES | ROLES_WIDE}
ROLES |= ROLES_WIDE
PAGES = ("", "_q8", "_q4", "_q8_q4")
LAUNCH = PRODUCTS | {"attend_wide_64": 4, "attend_wide_128": 5}
LAUNCH |= {name + "_64" + pages: 8 for name in ("attend", "attend_decode") for pages in PAGES}
LAUNCH |= {name + "_128" + pages: 9 for name in ("attend", "attend_decode") for pages in PAGES}
WGMMA_COLUMNS = {"matmul_wgmma_64": 64, "matmul_wgmma_join": 64, "matmul_wgmma": 128} | ROLES
SLICE_MOST = 112  # instructions of a warp for a slice of 64 columns of Q4_K in ROLES
BYTES_MOST = 15.5  # instructions of matmul_wide for an mma of bytes of Q4_K, where a family multiplies those
SEGMENT_UNITS = 4096 // 256 // 8  # units of 256 columns in a segment of a matrix of 4,096 columns
END = re.compile(r"WideWalk3end|add_up")  # functions at the end of a segment
FEW = {"matvec": 3, "matvec_norm": 3, "matvec_dry": 3, "matvec_cluster": 3, "expert_vec": 4}  # kernels for few rows: blocks launched on each multiprocessor
OF_16 = {"matvec_16": 2, "matvec_16_dry": 2, "matvec_cluster_16": 2}  # those of 16 rows
FEW |= OF_16
TAG = re.compile(r"Walk(?:I\w+?E)?2ofILi(\d+)E")
# Kernels whose warps process all tiles of a chunk for their share of the values: iterations of that loop.
SHARES = {"attend_256": 4, "attend_512": 4, "attend_latent": 8, "attend_wide_256": 8, "attend_wide_512": 8}
# attend_latent_bulk: the part of warps, or of tiles, for which a function runs; blocks of a key's 576 values.
SOME = {"weigh_tile": 3 / 8, "fetch": 1 / 8, "add_chunk": 1 / 8}
KEY_BLOCKS = 18
# Code that runs once for a row of tiles, not for each stage; for scores with a cap; for items that attend_wide leaves.
RARE = re.compile(r"Feed(?:ILi\d+EE)?4seek|fetch_few|soft_cap|store_results|store_partial|first_scores|pass_tile")
TILE_MMA = {"attend_wgmma_64": 32, "attend_wgmma_128": 64}  # by wgmma, for 32 keys and 16 queries
TILE_MOST = {"attend_wgmma_128": 630, "attend_wgmma_128_q8": 770}  # instructions of a warp for them
UPPER = re.compile(r"halfILi\dELi1E")  # code of attend_64 and attend_128 for more than eight queries only
END_OF_CHUNK = re.compile(r"end_chunk|4Room\w+E3(?:put|get)")  # of attend_wide, whose loop is over tiles

# Columns of a row of tiles that the loop multiplies; its mma of those columns.
Loop = collections.namedtuple("Loop", "kernel arch format instructions end mma in_flight needed columns", defaults=[0])


def launch_sizes(folder):
    source, program = folder / "probe.c", folder / "probe"
    source.write_text(PROBE)
    subprocess.run(["cc", "-I", str(ROOT), "-I", str(ROOT / "lib"), "-o", str(program), str(source)], check=True)
    out = subprocess.run([str(program)], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [[int(n) for n in line.split()] for line in out.splitlines()]


def compiled(folder, arch, files):
    newest = max(p.stat().st_mtime for p in SOURCES.rglob("*.cu*"))
    newest = max(newest, *(p.stat().st_mtime for p in SOURCES.rglob("*.h")))
    for name in files:
        to = folder / f"{name}.{arch}.cubin"
        if not to.exists() or to.stat().st_mtime < newest:
            wgmma = (name.endswith("_wgmma") or name.startswith("matmul_roles")) and arch == "90"
            flags = ["-arch=sm_90a", "-DWEFT_SM90A"] if wgmma else [f"-arch=sm_{arch}"]
            subprocess.run([os.environ.get("NVCC", "nvcc"), *FLAGS, *flags, "-o", str(to), str(next(SOURCES.rglob(f"{name}.cu")))], check=True)
        yield from cubin.kernels_of(to, int(arch))


def blocks_of(kernel, arch, shared):
    """Returns how many blocks with @shared bytes of dynamic shared memory fit on a multiprocessor."""
    _, _, _, _, kib, warps = DEVICES[arch]
    n_warps = kernel.threads // 32
    registers = n_warps * 32 * ((kernel.registers + 7) // 8 * 8)
    return min(65536 // registers, warps // n_warps, (kib * 1024) // (kernel.shared + DRIVER_SHARED + shared))


def bulk_loop(kernel, name, arch):
    """Returns the loop for eight tiles of 32 keys and 48 queries, averaged over the warps."""
    if not kernel.whole():  # a family without bulk copies
        return
    first, last = kernel.whole()[0]
    inner = next(l for l in kernel.loops() if first <= l[0] and l[1] <= last)
    n = mma = 0
    for i in range(first, last + 1):
        if not any(RARE.search(c) for c in kernel.calls[i]):
            part = next((p for f, p in SOME.items() if any(f in c for c in kernel.calls[i])), 1)
            often = 8 * part * (KEY_BLOCKS if inner[0] <= i <= inner[1] else 1)
            n, mma = n + often, mma + often * (kernel.operations[i] == cubin.MMA)
    yield Loop(name, arch, None, n, 0, mma, 0, 0)


def loops_of(kernel, name, arch, sizes):
    """Yields a row for each format of each loop; instructions shared by all formats count for each of them."""
    if "bulk" in name:
        yield from bulk_loop(kernel, name, arch)
        return
    _, n, _, bandwidth, _, _ = DEVICES[arch]
    again = SHARES.get(re.sub("(_q[48])+$", "", name), 1) - 1
    for first, last in kernel.whole() if name.startswith("attend") else kernel.loops():
        upper = sum(not any(RARE.search(c) for c in calls) and any(UPPER.search(c) for c in calls)
                    for calls in kernel.calls[first : last + 1])
        own, ends, mma, byte_mma, common = *(collections.Counter() for _ in range(4)), 0
        chunk_ends = 0
        for i in range(first, last + 1):
            tags = [m.group(1) for c in kernel.calls[i] if (m := TAG.search(c))]
            if any(RARE.search(c) for c in kernel.calls[i]):
                continue
            if any(END_OF_CHUNK.search(c) for c in kernel.calls[i]):
                chunk_ends += 1
                continue
            if tags:
                end = any(END.search(c) for c in kernel.calls[i])
                end = end or (name in ROLES_WIDE and kernel.operations[i] == cubin.CLEAR)
                if name in ROLES_WIDE and end and kernel.operations[i] == cubin.STORE:
                    continue
                (ends if end else own)[int(tags[0])] += 1
                mma[int(tags[0])] += kernel.operations[i] == cubin.MMA
                byte_mma[int(tags[0])] += kernel.operations[i] == cubin.BYTES_MMA
                mma[int(tags[0])] += (kernel.operations[i] == cubin.WGMMA) * WGMMA_COLUMNS.get(name, 0) // 8
            else:
                common += 1
        if not own:
            n_mma = TILE_MMA.get(re.sub("(_q[48])+$", "", name)) or kernel.operations[first : last + 1].count(cubin.MMA)
            # Half of a chunk's tiles are merged at a time.
            merges = [l for l in kernel.within(first, last) if "merge_tiles" in str(kernel.calls[l[0]])]
            common += sum(b - a + 1 for a, b in merges)
            if again:
                a, b = kernel.loops()[0]
                common += again * (b - a + 1)
                n_mma += again * kernel.operations[a : b + 1].count(cubin.MMA)
            yield Loop(name, arch, None, common, chunk_ends, n_mma, 0, 0)
            if upper:
                upper += sum(b - a + 1 for a, b in merges[1:])
                yield Loop(name + " of 8", arch, None, common - upper, chunk_ends, n_mma, 0, 0)
        for f in own:
            n_mma = byte_mma[f] or mma[f]  # beside those of bytes, halves have the minima
            if not n_mma:  # the compiler shares a few between formats
                continue
            columns = n_mma * (32 if byte_mma[f] and FORMATS[f] != "Q6_K" else 16) // groups_of(name)
            in_flight = 0
            if name in FEW:
                blocks = min(FEW[name], blocks_of(kernel, arch, sizes[f][LAUNCH[name]]))
                in_flight = blocks * kernel.threads // 32 * 2 * sizes[f][0]
            yield Loop(name, arch, f, own[f] + common, ends[f], n_mma, in_flight, bandwidth * LATENCY / n, columns)


def groups_of(name):
    """Returns for how many groups of eight rows of activations a kernel multiplies each row of tiles."""
    if name in FEW:
        return 2 if name in OF_16 else 1
    return WGMMA_COLUMNS.get(name, 64) // 8


def with_ends(loop, units=SEGMENT_UNITS):
    """Returns the instructions of a loop for 256 columns, or for all if it has fewer, including the ends of segments of
    @units units; for a loop over tiles of attention including its part of the end of a chunk."""
    if loop.format is None:
        return loop.instructions + loop.end / 8
    return loop.instructions + loop.end * (loop.columns / 256) / units


def slice_of(loop):
    """Returns the instructions of a loop of wgmma for a slice of 64 columns: four products."""
    return with_ends(loop) * 4 / (loop.mma * 8 / WGMMA_COLUMNS[loop.kernel])


def describe(loop):
    text = f"{loop.kernel:16} {loop.arch:>4} {FORMATS[loop.format] if loop.format is not None else '':7}"
    n = with_ends(loop)
    if loop.kernel in FEW:  # 16 columns have 8 weights of a lane
        text += f" {loop.instructions / (loop.columns / 2):5.2f} a weight"
    else:
        text += f" {n / loop.mma:5.2f} an mma  "
    text += f" {100 * loop.mma / n:4.1f} % mma {n:6.0f}"
    if loop.in_flight:
        text += f"  {loop.in_flight / 1024:5.1f} KiB on their way, {loop.needed / 1024:5.1f} needed"
    return text


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip())
    folder = pathlib.Path(sys.argv[1])
    archs = sys.argv[2].split(",") if len(sys.argv) > 2 else list(DEVICES)
    files = sys.argv[3].split(",") if len(sys.argv) > 3 else sorted(p.stem for p in SOURCES.rglob("*.cu"))
    folder.mkdir(parents=True, exist_ok=True)
    sizes, loops, problems = launch_sizes(folder), [], 0
    print("kernel           arch registers spills  shared blocks instructions")
    for arch in archs:
        for k in compiled(folder, arch, files):
            name = check_kernels.name_of(k.name)
            shared = sizes[FORMATS.index("Q4_K")][LAUNCH[name]] if name in LAUNCH else 0
            blocks = blocks_of(k, arch, shared) if k.registers else 0
            spills = k.count(cubin.LOCAL_LOAD, cubin.LOCAL_STORE)
            print(f"{name:16} {arch:>4} {k.registers:9} {spills:6} {k.shared:7} {blocks:6} {len(k.words):12}")
            found = list(loops_of(k, name, arch, sizes))
            known = "Q8_0" if name.endswith("_plain") else "Q4_K"
            understood = name not in PRODUCTS or any(l.format == FORMATS.index(known) for l in found)
            problems += spills > 0 or not understood
            loops += found
    print("\nloops, once through (products: blocks with the launch's shared memory for Q4_K)")
    for loop in sorted(loops, key=lambda l: (l.kernel, int(l.arch), l.format or 0)):
        print(describe(loop))
        if loop.kernel in ROLES and loop.format == FORMATS.index("Q4_K") and slice_of(loop) > SLICE_MOST:
            problems += 1
            print(f"{loop.kernel}: {slice_of(loop):.0f} instructions for a slice, at most {SLICE_MOST}")
        if with_ends(loop) > TILE_MOST.get(loop.kernel, with_ends(loop)):
            problems += 1
            print(f"{loop.kernel}: {with_ends(loop):.0f} instructions for a tile, at most {TILE_MOST[loop.kernel]}")
        # halves have two mma for 32 columns
        of_bytes = loop.kernel == "matmul_wide" and loop.mma * 32 == loop.columns * groups_of(loop.kernel)
        if of_bytes and loop.format == FORMATS.index("Q4_K") and with_ends(loop) / loop.mma > BYTES_MOST:
            problems += 1
            print(f"{loop.kernel}: {with_ends(loop) / loop.mma:.2f} instructions for an mma of bytes, at most {BYTES_MOST}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
