#!/usr/bin/env python3
"""A model of the time of a step of Qwen3-8B Q4_K_M on an H200, term by term, from the counts of count_kernels.py,
beside the goals. Nothing of it is measured: it says which term is worth work. Of a kernel's bytes and instructions,
which overlap, the larger counts; terms are added. Each step is computed twice, with what a device may reach at best and
with what such code often reaches (BEST, LOW): the result is a range, and the last table says which goals it misses.

usage: model_steps.py FOLDER  (as count_kernels.py's)
"""
import collections
import pathlib
import sys

import count_kernels as count

ARCH = "90"
_, SMS, GHZ, _, _, _ = count.DEVICES[ARCH]
# All of these are assumed. Bytes a second: of memory for large streams (of 4.8e12), of memory for pages (75 to 80 % is
# what paged attention reaches), of the L2 cache to all multiprocessors. Clocks in GHz, of few rows and of many, where
# power is the limit. Instructions a cycle and scheduler, with four warps or more and with two. Microseconds: from a node
# of a graph to the next, plain and where kernels are launched early (blocks are up, and wait until the last one before
# has written); a count of arrive(). Cycles of a wgmma of 8 columns on a quarter of a multiprocessor.
Assumed = collections.namedtuple("Assumed", "memory pages cache clock clock_many issue issue_two gap early arrive wgmma")
BEST = Assumed(4.3e12, 3.84e12, 7.0e12, 1.98, 1.83, 1.0, 0.65, 1.0, 0.3, 0.8, 4)
LOW = Assumed(4.1e12, 3.6e12, 5.5e12, 1.755, 1.6, 0.75, 0.5, 1.3, 0.5, 1.2, 5)
BANDWIDTH, CACHE_BANDWIDTH, WGMMA_CYCLES = BEST.memory, LOW.cache, BEST.wgmma  # of model_prompts.py
ISSUE = 4 * SMS * GHZ * 1e9  # instructions of warps a second
MMA_CYCLES = 6.5  # of mma.sync m16n8k16 on a quarter of a multiprocessor (62 % of wgmma's rate)
# Assumed, microseconds: first bytes of a kernel, from memory and from the L2 cache; packing a row, and each 4,096 values
# of it; turning and storing heads.
FIRST_BYTES, FROM_CACHE, PACK, PACK_4096, STORE = 0.8, 0.3, 0.3, 0.3, 0.5
CACHE, L1 = 50 << 20, 60 << 10  # bytes of the L2 cache, and of a multiprocessor's L1 cache beside 196 KiB
CACHE_WIDTH = 64  # bytes a cycle of the L2 cache to one multiprocessor
DRAIN = 100  # cycles from the last wgmma of a segment to its sums; assumed
# Cycles from an instruction of a lone warp to the next: what the stalls and waits in the code of attend_128 come to (3.0
# to 3.7), with 30 for what shared memory, and 25 for what an exchange or an exponential takes (assumed).
DEPENDENT = 3.5
# Bytes of shared memory that a warp reads for a tile of attend_wide_128 (queries, keys, values), and a cycle of a
# multiprocessor.
TILE_READS, SHARED_BANDWIDTH = 20480, 128
LAYERS, WIDTH, INNER, HEADS, KV_HEADS, DIM, VOCAB = 36, 4096, 12288, 32, 8, 128, 151936
RESULT = HEADS * (DIM + 4) * 4  # bytes of a chunk's, of all heads of a row
BITS = {"Q4_K": 4.625, "Q6_K": 6.5625}
STAGE = 16 * 256 * 4.625 / 8  # bytes of Q4_K that are fetched as one
# The launches of a layer: rows and columns of the matrices, and whether half of the layers have them as Q6_K.
LAUNCHES = {
    "q k v": [(WIDTH + DIM * KV_HEADS, WIDTH, False), (DIM * KV_HEADS, WIDTH, True)],
    "o": [(WIDTH, WIDTH, False)],
    "gate up": [(2 * INNER, WIDTH, False)],
    "down": [(WIDTH, INNER, True)],
}
# Bytes of a row and layer that a prompt's kernels hand on through memory: x (added to and packed, twice), q k v (store,
# then attention), its output, silu(gate) up, and what of these is packed. Those of fewer rows stay in the L2 cache.
HANDED_ON = 6 * 4 * WIDTH + 8 * (WIDTH + 2 * KV_HEADS * DIM) + 16 * WIDTH + 8 * INNER + 4 * (3 * WIDTH + INNER)
# Kernels of many rows: rows of a block, blocks that share the segments.
WAYS_MMA = [("matmul_wide", 64, splits) for splits in (1, 2, 4, 8)]
WAYS_WGMMA = [("matmul_wgmma", 128, 1)] + [("matmul_wgmma_64", 64, splits) for splits in (1, 2, 4, 8)]
SEEK_AND_SUMS = 155  # instructions of a warp of matvec once a row of tiles: 142 of one matrix, 160 of gate and up


class Step:
    def __init__(self, name, tokens, goal=None):
        self.name, self.tokens, self.goal, self.terms, self.early = name, tokens, goal, [], 0

    def seconds(self):
        return (sum(us for _, us in self.terms) - self.early) * 1e-6

    def add(self, what, seconds):
        self.terms.append((what, seconds * 1e6))

    def show(self):
        total = sum(us for _, us in self.terms)
        goal = f", goal {self.goal}" if self.goal else ""
        print(f"\n{self.name}: {total:.0f} us, {self.tokens / total * 1e6:.0f} tokens/s{goal}")
        for what, us in self.terms:
            print(f"  {what:64} {us:9.0f} us {100 * us / total:5.1f} %")
        total -= self.early
        if self.early:
            print(f"  launched early: {self.early:.0f} us less, {total:.0f} us, {self.tokens / total * 1e6:.0f} tokens/s")


class Model:
    def __init__(self, folder, assumed=BEST, more=()):
        self.a = assumed
        sizes, self.loops = count.launch_sizes(folder), {}
        files = ["attention", "attention_wide", "matmul", "matmul_wgmma", *more]
        for k in count.compiled(folder, ARCH, files):
            name = count.check_kernels.name_of(k.name)
            for l in count.loops_of(k, name, ARCH, sizes):
                self.loops[l.kernel, count.FORMATS[l.format] if l.format is not None else None] = l

    def issue(self, clock, two=False):
        """Instructions of warps a second; @two: two warps a scheduler."""
        return 4 * SMS * clock * 1e9 * (self.a.issue_two if two else self.a.issue)

    def product(self, launch, six, n):
        """Of a launch of matvec for @n rows: bytes of weights, seconds of instructions, and bytes of activations that
        come from the L2 cache, for each row of tiles, where the L1 cache does not hold all rows. The two blocks of a
        multiprocessor read the same ones at about the same time: the one behind finds them in the L1 cache."""
        size = issue = x = 0
        for rows, columns, mixed in launch:
            form = "Q6_K" if mixed and six else "Q4_K"
            loop = self.loops["matvec" if n <= 8 else "matvec_16", form]
            size += rows * columns * BITS[form] / 8
            issue += rows / 16 * (columns / 256 * loop.instructions * 16 / loop.mma * (1 + (n > 8)) + 8 * SEEK_AND_SUMS)
            x += rows / 16 / 2 * columns * 2 * n if columns * 2 * n > L1 else 0
        return size, issue / self.issue(self.a.clock), x

    def pauses(self, n, sequences, gap):
        """Seconds from the last weights of a launch to the first that wait for what is made of its result: the kernels
        between; before o store, attention of 1,024 keys a sequence, and merge, which reads the batch and its merge."""

        def packed(columns):
            """By a kernel with a block a row."""
            return 2 * gap + FROM_CACHE + PACK + PACK_4096 * columns / 4096

        each = n // sequences  # rows: an item has up to four
        blocks = sequences * -(-each // 4) * 4 * KV_HEADS
        # The batch's pointers, item, page table and page, one after the other, then keys and values from memory.
        begins = gap + FROM_CACHE + STORE + gap + 5 * FROM_CACHE + FIRST_BYTES
        brought = 2 * 256 * DIM * 2 / CACHE_WIDTH / (self.a.clock * 1e3)  # of a chunk, to one multiprocessor
        dependent = self.loops["attend_128 of 8", None].instructions * DEPENDENT / (self.a.clock * 1e3)
        merge = gap + 3 * FROM_CACHE + packed(WIDTH)
        attend = begins + -(-blocks // (2 * SMS)) * (FROM_CACHE + brought + dependent) + merge
        us = {"q k v": packed(WIDTH), "o": attend, "gate up": packed(WIDTH),
              "down": packed(INNER)}
        return {what: t * 1e-6 for what, t in us.items()}

    def few(self, step, n, sequences, early):
        """A layer launch by launch: its pause, then its product, for which the slowest counts of memory, the L2 cache and
        instructions. In a pause memory brings keys, what q k v has asked for of o (struct ahead), and, launched early,
        what the next one's rings hold."""
        gap, first = (self.a.early, 0) if early else (self.a.gap, FIRST_BYTES * 1e-6)
        ring = self.loops["matvec", "Q4_K"].in_flight * SMS if early else 0
        pause, keys = self.pauses(n, sequences, gap), sequences * 1024 * 2 * KV_HEADS * DIM * 2
        pause["o"] = max(pause["o"], keys / self.a.pages)
        terms, slowest = collections.Counter(), collections.defaultdict(dict)
        for six in (False, True):
            for what, launch in LAUNCHES.items():
                size, issue, x = self.product(launch, six, n)
                room = pause[what] * self.a.memory
                came = min(size, CACHE // 2, room - keys) if what == "o" else min(size, ring, room)
                memory = (size - came) / self.a.memory + (0 if came else first)
                cache = (size - min(came, ring) + x) / self.a.cache
                bounds = {"memory": memory, "L2 cache": cache, "instructions": issue}
                terms[what] += LAYERS / 2 * max(bounds.values())
                slowest[what] |= {max(bounds, key=bounds.get): None}
                terms["pauses before o: attention" if what == "o" else "other pauses"] += LAYERS / 2 * pause[what]
        size, issue, x = self.product([(VOCAB, WIDTH, True)], True, n)
        terms["logits"] = max(size / self.a.memory, (size + x) / self.a.cache, issue)
        terms["6 kernels around the layers"] = 6 * (gap + FIRST_BYTES) * 1e-6
        for what, seconds in terms.items():
            step.add(f"{what}, bound by {' or '.join(slowest[what])}" if what in slowest else what, seconds)

    def many(self, step, n_rows):
        """The products of more rows: whole blocks on whole multiprocessors, one each."""
        for what, launch in LAUNCHES.items():
            wgmma, mma = (
                LAYERS / 2 * sum(
                    min(self.blocks(*k, [(r, c, six if mixed else "Q4_K") for r, c, mixed in launch], n_rows,
                                    what in ("o", "down")) for k in ways)
                    for six in ("Q4_K", "Q6_K"))
                for ways in (WAYS_WGMMA, WAYS_MMA)
            )
            step.add(f"{what} (mma.sync: {mma * 1e6:.0f} us)", wgmma)
        logits = [(VOCAB, WIDTH, "Q6_K")]
        step.add("logits, by mma.sync", min(self.blocks(*k, logits, step.wanted) for k in WAYS_MMA))

    def blocks(self, kernel, width, splits, matrices_of, n_rows, behind=False):
        """Of a launch whose blocks have 128 rows of a matrix and @width of the activations; @splits of them share the
        segments, which the kernel behind adds up, or the last of them. Each block asks the L2 cache for its weights and
        for its activations."""
        n = cycles = size = asked = 0
        for rows, columns, form in matrices_of:
            loop = self.loops[kernel, form]
            mma = columns / 16 * width / 8  # of a warp; two warps a quarter
            blocks = -(-rows // 128) * -(-n_rows // width)
            n += blocks
            asked += blocks * columns * (128 * BITS[form] / 8 + width * 2)
            if "wgmma" in kernel:  # nothing is multiplied while sums are added
                ends = 8 * (2 * loop.end + DRAIN)
                cycles = max(cycles, 2 * mma * max(loop.instructions / loop.mma / self.a.issue_two, self.a.wgmma) + ends)
            else:
                issue = count.with_ends(loop, columns / 256 / 8) / loop.mma
                cycles = max(cycles, 2 * mma * max(issue / self.a.issue_two, MMA_CYCLES))
            size += rows * columns * BITS[form] / 8
        if splits > 1 and n > SMS:
            return float("inf")
        adding, clock = 0, self.a.clock_many * 1e9
        if splits > 1 and behind:
            adding = 32 * n * 128 * width / self.a.cache
        elif splits > 1:
            adding = self.a.arrive * 1e-6 + 32 * 128 * width / CACHE_WIDTH / clock
        rounds = -(-n * splits // SMS) / splits
        return max(rounds * cycles / clock, size / self.a.memory, asked / self.a.cache) + adding

    def attention(self, step, n, own, key_bytes, kernel, handed_on):
        """Of @own keys of each of @n sequences, an item of a chunk each. @handed_on: results of chunks that it goes on
        from, or, where there are none, those that it leaves."""
        size, chunks = n * own * key_bytes, n * own // 256 * KV_HEADS
        issue = chunks * 8 * self.loops[kernel + " of 8", None].instructions / self.issue(self.a.clock_many)
        cache = (size + n * (handed_on or own // 256) * RESULT) / self.a.cache
        step.add(f"attention: {LAYERS * size / 1e9:.2f} GB (instructions: {LAYERS * issue * 1e6:.0f} us)",
                 LAYERS * max(size / self.a.pages, issue, cache))
        if not handed_on:
            step.add("results of chunks, to be merged", LAYERS * n * own // 256 * RESULT / self.a.cache)

    def shared(self, step, n, tokens, key_bytes, kernel):
        """Of @tokens that @n sequences share, by runs of chunks and blocks of 128 queries, one a multiprocessor, as
        plan.cu makes them; by 16 queries in brackets. Keys come from the L2 cache once a block. Returns the results
        that a sequence goes on from."""
        group, chunks = HEADS // KV_HEADS, tokens // 256
        blocks, small = -(-n * group // 128), -(-n * group // 16)
        run = next((r for r in range(1, chunks) if blocks * KV_HEADS * -(-chunks // r) <= SMS), chunks)
        loop, handed_on = self.loops[kernel.replace("attend", "attend_wide"), None], chunks - run + 1
        cycles = self.tile(loop)
        wide = -(-blocks * KV_HEADS * -(-chunks // run) // SMS) * run * 8 * 8 * cycles / (4 * self.a.clock_many * 1e9)
        few = small * chunks * KV_HEADS * 8 * self.loops[kernel, None].instructions / self.issue(self.a.clock_many)
        wide, few = (
            LAYERS * max(tokens * key_bytes / self.a.pages, issue,
                         (queries * tokens * key_bytes + n * results * RESULT) / self.a.cache)
            for issue, queries, results in ((wide, blocks, handed_on), (few, small, chunks))
        )
        step.add(f"attention, shared: {handed_on} results (by 16 queries: {few * 1e6:.0f} us)", wide)
        return handed_on

    def tile(self, loop):
        """Cycles of a warp of attend_wide for a tile and 16 queries."""
        return max(count.with_ends(loop) / self.a.issue_two, loop.mma * MMA_CYCLES, TILE_READS / SHARED_BANDWIDTH * 4)

    def prompt(self, step, n):
        """Heads in groups of four: 16 queries of a warp are four rows. A tile of theirs is bound by its instructions,
        its mma, or what it reads of shared memory."""
        tiles = sum(4 * i // 32 + 1 for i in range(n // 4)) * KV_HEADS
        cycles = self.tile(self.loops["attend_wide_128", None])
        step.add(f"attention: {tiles * LAYERS} tiles of 16 queries",
                 LAYERS * tiles * cycles / (4 * SMS * self.a.clock_many * 1e9))


    def kernels(self, step, n, ahead):
        """@ahead: products of a layer that have their first weights when the one before ends."""
        step.add(f"{n} kernels: gaps, first bytes", n * (self.a.gap + FIRST_BYTES) * 1e-6)
        step.early = n * (self.a.gap - self.a.early) + ahead * LAYERS * FIRST_BYTES

    def steps(self):
        """All steps of the table, launched early."""
        for name, n, sequences, goal in (("alone, 1k", 1, 1, 783), ("a draft of 4 checked, 1k", 5, 1, None),
                                         ("16 x 1k by matvec_16", 16, 16, None)):
            step = Step(name, n, goal)
            self.few(step, n, sequences, True)
            yield step
        many = (("16 x 1k", 16, 0, None), ("64 x 1k", 64, 0, 17000), ("128 x 4k, 3k shared", 128, 3072, 20000))
        pages = (("f16", 2, "attend_128"), ("q8_0", 1 + 2 / 32, "attend_128_q8"))  # bytes of a value
        for name, n, shared, goal in many:
            for kind, value_bytes, kernel in pages:
                key_bytes = 2 * KV_HEADS * DIM * value_bytes
                step = Step(f"{name}, pages of {kind}", n, goal)
                step.wanted = n
                self.many(step, n)
                handed_on = self.shared(step, n, shared, key_bytes, kernel) if shared else 0
                self.attention(step, n, 1024, key_bytes, kernel, handed_on)
                self.kernels(step, (12 if shared else 11) * LAYERS + 8, 2)  # q k v, gate and up
                yield step
        prompt = Step("prompt of 4k", 4096, 40000)
        prompt.wanted = 1
        self.many(prompt, 4096)
        self.prompt(prompt, 4096)
        prompt.add("activations, to memory and back", LAYERS * 4096 * HANDED_ON / self.a.memory)
        self.kernels(prompt, 11 * LAYERS + 8, 0)
        yield prompt


def verdict(goal, low, best):
    """Which part of the range reaches a goal."""
    if not goal:
        return ""
    if best < goal:
        return f"goal {goal} missed by {100 - 100 * best / goal:.0f} to {100 - 100 * low / goal:.0f} %"
    return f"goal {goal} " + ("reached" if low >= goal else f"missed by {100 - 100 * low / goal:.0f} % at the low end")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip())
    folder, ranges = pathlib.Path(sys.argv[1]), {}
    for name, assumed in (("best", BEST), ("low", LOW)):
        print(f"\n== {name}: {assumed}")
        for step in Model(folder, assumed).steps():
            step.show()
            ranges.setdefault(step.name, [step]).append(step.tokens / step.seconds())
    print("\ntokens/s, launched early: low to best")
    for name, (step, best, low) in ranges.items():
        print(f"{name:28} {low:7.0f} to {best:7.0f}  {verdict(step.goal, low, best)}")
    alone, draft = ranges["alone, 1k"], ranges["a draft of 4 checked, 1k"]
    print("a checked draft of 4 takes "
          f"{5 * alone[1] / draft[1]:.2f} (best) and {5 * alone[2] / draft[2]:.2f} (low) of a step alone")


if __name__ == "__main__":
    main()
