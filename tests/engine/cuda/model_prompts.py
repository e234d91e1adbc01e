#!/usr/bin/env python3
"""A model of the time of prompts on an H200, all matrices Q4_K and pages of f16, term by term, from the counts of
count_kernels.py, as model_steps.py has it for Qwen3-8B: what products of experts and of latent attention's heads would
gain by wgmma, and attention by blocks of many queries. Rows pick experts evenly. Nothing of it is measured.
Then products of many rows on GeForce, of bytes beside halves, by format.

usage: model_prompts.py FOLDER  (as count_kernels.py's)
"""
import collections
import math
import pathlib
import sys

import count_kernels as count
import model_steps as steps

CACHE = steps.CACHE_BANDWIDTH / (steps.SMS * steps.GHZ * 1e9)  # bytes a cycle of a multiprocessor
TOKENS = 4096
# heads: of queries, of keys, values of one, window (0: none), layers
Heads = collections.namedtuple("Heads", "kernel n kv dim window layers")
Experts = collections.namedtuple("Experts", "n used width inner layers")
# dense: (rows, columns, layers); by_head: products of latent attention, (heads, rows, columns, layers)
Shape = collections.namedtuple("Shape", "name dense experts attention by_head", defaults=[()])
SHAPES = [
    Shape("Qwen3-30B-A3B", [(5120, 2048, 48), (2048, 4096, 48)], Experts(128, 8, 2048, 768, 48),
          [Heads("attend_wide_128", 32, 4, 128, 0, 48)]),
    Shape("Qwen3.6-35B-A3B", [(9216, 2048, 10), (12352, 2048, 30), (2048, 4096, 40), (1024, 2048, 40), (2048, 512, 40)],
          Experts(256, 8, 2048, 512, 40), [Heads("256", 16, 2, 256, 0, 10)]),
    Shape("Qwen3.6-27B", [(14336, 5120, 16), (16480, 5120, 48), (5120, 6144, 64), (34816, 5120, 64), (5120, 17408, 64)],
          None, [Heads("256", 24, 4, 256, 0, 16)]),
    Shape("Gemma 4 26B-A4B", [(8192, 2816, 25), (9216, 2816, 5), (2816, 4096, 25), (2816, 8192, 5), (4224, 2816, 30),
                              (2816, 2112, 30)],
          Experts(128, 8, 2816, 704, 30), [Heads("256", 16, 8, 256, 1024, 25), Heads("512", 16, 2, 512, 0, 5)]),
    Shape("GLM-4.7-Flash", [(1344, 2048, 47), (5120, 768, 47), (2048, 5120, 47), (3072, 2048, 46), (2048, 1536, 46)],
          Experts(64, 4, 2048, 1536, 46), [Heads("attend_latent", 20, 1, 576, 0, 47)],
          [(20, 512, 192, 47), (20, 256, 512, 47)]),
    Shape("DeepSeek-V2-Lite", [(3648, 2048, 27), (2048, 2048, 27), (5632, 2048, 26), (2048, 2816, 26)],
          Experts(64, 6, 2048, 1408, 26), [Heads("attend_latent", 16, 1, 576, 0, 27)],
          [(16, 512, 128, 27), (16, 128, 512, 27)]),
]


def items(pairs, part, width):
    """Blocks of @width rows that an expert with @part of all @pairs has on average, and those of no more than half."""
    whole = half = 0
    for x in range(1, pairs + 1):
        p = math.exp(math.lgamma(pairs + 1) - math.lgamma(x + 1) - math.lgamma(pairs - x + 1)
                     + x * math.log(part) + (pairs - x) * math.log1p(-part))
        small = 0 < (x - 1) % width + 1 <= width / 2
        half += p * small
        whole += p * (-(-x // width) - small)
    return whole, half


# Bytes of shared memory that attend_latent_bulk reads for a tile of 16 queries: queries and keys for the scores, a third
# of the values, probabilities.
LATENT_READS = 18 * (2 + 4) * 512 + 512 * 64 / 3 + 8 * 2 * 1024


def key_bytes(kernel):
    """That a tile of latent attention takes from the L2 cache."""
    return 32 * 2 * (576 if "bulk" in kernel else 576 + 512)


class Model(steps.Model):
    def cycles(self, kernel, width, columns, form="Q4_K", half=False):
        """Of a block of 128 rows of a matrix and @width of the activations, and bytes that it reads of the cache."""
        loop, units = self.loops[kernel, form], columns / 256
        segments = min(8, units)
        mma, issue, ends = loop.mma * units, loop.instructions * units, loop.end * segments
        size = columns * (128 * steps.BITS[form] / 8 + width * 2)
        if "wgmma" in kernel:
            ends += segments * steps.DRAIN / 2
            return 2 * max(issue, mma * steps.WGMMA_CYCLES) + 2 * ends, size
        if half:  # mma of 32 rows, and the loads of their operands, are not there
            issue, mma = issue - mma * 0.75, mma / 2
        return 2 * max(issue + ends, mma * steps.MMA_CYCLES), size

    def seconds(self, n_blocks, cycles, size, cache):
        return n_blocks * max(cycles, size / CACHE if cache else 0) / (steps.SMS * steps.GHZ * 1e9)

    def dense(self, rows, columns, n, ways, cache, heads=1):
        found = []
        for kernel, width in ways:
            blocks = heads * -(-rows // 128) * -(-n // width)
            found.append(self.seconds(-(-blocks // steps.SMS) * steps.SMS, *self.cycles(kernel, width, columns), cache))
        return min(found)

    def experts(self, e, n, kernel, width, cache, tail=None):
        """Of a layer: gates and ups, downs. @tail: the kernel of 64 rows for what is left of whole blocks."""
        sum_of, weights = 0, e.n * 3 * e.width * e.inner * steps.BITS["Q4_K"] / 8
        for rows, columns in ((2 * e.inner, e.width), (e.width, e.inner)):
            whole, half = items(n, e.used / e.n, width)
            a = self.cycles(kernel, width, columns)
            b = self.cycles(tail or kernel, 64 if tail else width, columns, half=not tail and "wgmma" not in kernel)
            groups = e.n * -(-rows // 128)
            sum_of += self.seconds(groups * whole, *a, cache) + self.seconds(groups * half, *b, cache)
        return max(sum_of, weights / steps.BANDWIDTH)

    def attention(self, h, n, kernel, queries, cache):
        """All layers of @h: tiles of 32 keys and 16 queries; the keys and values that @queries share come from the
        cache."""
        rows, group = queries * h.kv / h.n, h.n // h.kv
        tiles = sum(min((i + 1) * rows, h.window or n) / 32 + 1 for i in range(int(n * group / queries))) * queries / 16
        loop = self.loops[kernel, None]
        chunk = 1 if "wide_128" in kernel else queries / 16  # groups of 16 that the count has
        cycles = max(loop.instructions / chunk, loop.mma / chunk * steps.MMA_CYCLES) / 4
        if "bulk" in kernel:
            cycles = max(cycles, LATENT_READS / steps.SHARED_BANDWIDTH)
        size = (key_bytes(kernel) if "latent" in kernel else 32 * 2 * 2 * h.dim) * 16 / queries
        return h.layers * h.kv * self.seconds(tiles, cycles, size, cache)

    def latent_decode(self, h, n_rows, n_keys, kernel, cache):
        """All layers of latent attention of so many rows, each with keys of its own; groups of 16 queries that a kernel
        has beyond those of a row count as multiplied."""
        tiles, loop, groups = n_rows * n_keys / 32, self.loops[kernel, None], 3 if "bulk" in kernel else 2
        blocks = -(-h.n // (16 * groups))
        issue = tiles * blocks * loop.instructions / steps.ISSUE
        size = tiles * blocks * key_bytes(kernel) / steps.CACHE_BANDWIDTH if cache else 0
        return h.layers * max(issue, size, tiles * key_bytes("bulk") / steps.BANDWIDTH)


MMA, WGMMA = [("matmul_wide", 64)], [("matmul_wgmma", 128), ("matmul_wgmma_64", 64)]


# GeForce. Cycles of a quarter of a multiprocessor for an mma of 16 x 8: 16 columns of halves with sums in single
# precision (data sheets: 71, 165, 209 TFLOP/s of the 3090, 4090, 5090), 32 of bytes (284, 660, 838 TOPS). Assumed, as
# for other devices: instructions a cycle and scheduler with two warps, best and low; bytes a cycle and multiprocessor
# of the L2 cache.
HALVES_CYCLES, BYTES_CYCLES, GEFORCE_CACHE = 32, 16, 16
GEFORCE_FORMATS = {"Q4_K": 4.625, "Q5_K": 5.625, "Q6_K": 6.5625, "Q8_0": 8.5, "Q4_0": 4.5, "IQ4_XS": 4.3125}


def block(loop, bits, cycles_of_32, exchanges):
    """Cycles of a block of 128 rows of a matrix by 64 of the activations for 256 columns, two warps a scheduler: of
    tensor cores, of instructions where each takes one, of shared memory (a warp reads 512 bytes for 32 columns of 8
    rows and @exchanges registers of other lanes), of the L2 cache."""
    columns = 256 if loop.format >= count.FORMATS.index("Q4_K") else 64
    issue = 2 * count.with_ends(loop) * 256 / columns
    shared = 8 * 64 * (512 / steps.SHARED_BANDWIDTH + exchanges)
    return 2 * 64 * cycles_of_32, issue, shared, 256 * (128 * bits / 8 + 64 * 2) / GEFORCE_CACHE


def bound(of, rate):
    tensor, issue, shared, cache = of
    return max(tensor, issue / rate, shared, cache)


def geforce(folder):
    sizes, found = count.launch_sizes(folder), {}
    for arch in ("80", "89", "120"):
        for k in count.compiled(folder, arch, ["matmul", "experts"]):
            name = count.check_kernels.name_of(k.name)
            if name in ("matmul_wide", "expert_wide"):
                for l in count.loops_of(k, name, arch, sizes):
                    found[name, arch, count.FORMATS[l.format]] = l
    print("\nGeForce, cycles of a block of 128 by 64 for 256 columns: tensor cores, instructions, shared memory, L2 cache, "
          "of halves (code of sm_80), of bytes; times as fast with 0.65, 0.5 and 1 instructions a cycle and scheduler")
    for (name, arch, form), loop in found.items():
        if arch != "80" and form in GEFORCE_FORMATS:
            bits, exchanges = GEFORCE_FORMATS[form], 4 if form in ("Q4_K", "Q5_K") else 2
            halves = block(found[name, "80", form], bits, 2 * HALVES_CYCLES, 0)
            codes = block(loop, bits, BYTES_CYCLES, exchanges)
            print(f"{name} {arch:>3} {form:7}" + "".join(f" {x:5.0f}" for x in (*halves, *codes))
                  + "".join(f" {bound(halves, r) / bound(codes, r):5.2f}" for r in (0.65, 0.5, 1)))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip())
    geforce(pathlib.Path(sys.argv[1]))
    model = Model(pathlib.Path(sys.argv[1]), more=["attention_large", "attention_latent", "experts"])
    for cache in (False, True):
        print(f"\nprompts of {TOKENS}, ms{', with the bytes from the L2 cache' if cache else ''}: rows of a step; dense by "
              "mma.sync, by wgmma; experts by mma.sync, by wgmma of 64, of 128, of 128 and 64 rows; heads of latent "
              "attention by mma.sync, by wgmma")
        for s in SHAPES:
            for n in (512, 2048, 4096):
                line = [sum(k * model.dense(r, c, n, ways, cache) for r, c, k in s.dense) for ways in (MMA, WGMMA)]
                e = s.experts
                for kernel, width, tail in (("expert_wide", 64, None), ("matmul_wgmma_64", 64, None),
                                            ("matmul_wgmma", 128, None), ("matmul_wgmma", 128, "matmul_wgmma_64")):
                    line.append(e.layers * model.experts(e, n, kernel, width, cache, tail) if e else 0)
                for ways in ([("expert_wide", 64)], WGMMA):
                    line.append(sum(k * model.dense(r, c, n, ways, cache, h) for h, r, c, k in s.by_head))
                print(f"{s.name:16} {n:5}" + "".join(f" {1e3 * x * TOKENS / n:7.1f}" for x in line))
    print("\nattention, ms: by blocks of 16 queries (latent: 32), by those of many (48); likewise with the cache's bytes")
    for n in (4096, 32768):
        for s in SHAPES:
            for h in s.attention:
                few, many = {"256": (("attend_256", 16), ("attend_wide_256", 64)),
                             "512": (("attend_512", 16), ("attend_wide_512", 32)),
                             "attend_latent": (("attend_latent", 32), ("attend_latent_bulk", 48)),
                             "attend_wide_128": (("attend_128", 16), ("attend_wide_128", 128))}[h.kernel]
                times = [model.attention(h, n, *way, cache) for cache in (False, True) for way in (few, many)]
                print(f"{s.name:16} {n:5} {h.kernel:16}" + "".join(f" {1e3 * t:7.1f}" for t in times))
    print("\nlatent attention of a step of 64 rows of 4,096 tokens, ms: attend_latent, attend_latent_bulk; likewise")
    for s in SHAPES:
        for h in s.attention:
            if h.kernel == "attend_latent":
                times = [model.latent_decode(h, 64, 4096, kernel, cache)
                         for cache in (False, True) for kernel in ("attend_latent", "attend_latent_bulk")]
                print(f"{s.name:16}" + "".join(f" {1e3 * t:7.1f}" for t in times))


if __name__ == "__main__":
    main()
