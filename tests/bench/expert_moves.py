#!/usr/bin/env python3
"""What it would gain that experts on a device follow the picks, by a model of picks: how many picks of a layer find their expert
on the device, and how many experts move there, for each way to choose them. The router's number of an expert is the sum of a
constant, one of the prompt, one that changes slowly from token to token, and one of the token; each kind of picks has other
weights, chosen so that the published figures of `known` come out. Nothing of it is measured; the same seed gives the same figures.

usage: expert_moves.py [--kind NAME] [--seed N]

  load      the experts that earlier prompts picked most, for good (as weft places them when a model is loaded)
  prompt    chosen again between prompts, by counts that each prompt halves
  rows64    chosen again every 64 rows, by counts that are halved then
  row       each pick that finds none brings its expert, for the one that was picked least recently (LRU)
  best      the experts that the prompt will pick most (no program knows them)
"""
import argparse
import collections
import math
import random

# constant, of the prompt, slow, of the token: standard deviations; change: part of the slow one that is new each token.
Kind = collections.namedtuple("Kind", "n used constant prompt slow token change known")
KINDS = {
    "qwen3": Kind(128, 8, 0.8, 1.0, 1.0, 0.9, 0.06,
                  "Qwen3-30B-A3B, 40 %: load 68 to 73 %, best 92 %, row 90 to 95 %; 45 % of picks are those of the token before"),
    "next": Kind(512, 10, 0.35, 0.6, 0.9, 1.0, 0.03,
                 "Qwen3.8-Flash-Next: load 10 % of 6.25 %, row 67 % of 12.5 % and 81 % of 25 %"),
}
PROMPTS, LEARN, TOKENS = 12, 8, 512  # prompts in all, those that are known before, tokens of each
SHARES = (0.0625, 0.125, 0.25, 0.4, 0.5, 0.75)

# Layers with experts, picks, bytes of an expert.
Shape = collections.namedtuple("Shape", "name layers used bytes")
SHAPES = (
    Shape("Qwen3-30B-A3B Q4_K", 48, 8, 3 * 2048 * 768 * 4.5 / 8),
    Shape("Qwen3-Coder-Next Q4_K", 48, 10, 3 * 2048 * 512 * 4.5 / 8),
    Shape("gpt-oss-120b MXFP4", 36, 4, 3 * 2880 * 2880 * 4.25 / 8),
    Shape("MiniMax-M2 Q4_K", 62, 8, 3 * 3072 * 1536 * 4.5 / 8),
    Shape("DeepSeek-V4-Flash MXFP4", 43, 6, 3 * 4096 * 2048 * 4.25 / 8),
)
MEMORY, BUS = 60e9, (25e9, 50e9)  # bytes a second: memory of a desktop; PCIe 4 and 5, x16


def picks_of(kind, seed):
    """The picks of each token of each prompt, a set each."""
    draw = random.Random(seed).gauss
    constant = [draw(0, kind.constant) for _ in range(kind.n)]
    keep, new = 1 - kind.change, math.sqrt(1 - (1 - kind.change) ** 2) * kind.slow
    prompts = []
    for _ in range(PROMPTS):
        base = [c + draw(0, kind.prompt) for c in constant]
        slow = [draw(0, kind.slow) for _ in range(kind.n)]
        tokens = []
        for _ in range(TOKENS):
            slow = [keep * s + draw(0, new) for s in slow]
            value = [b + s + draw(0, kind.token) for b, s in zip(base, slow)]
            tokens.append(frozenset(sorted(range(kind.n), key=value.__getitem__)[-kind.used:]))
        prompts.append(tokens)
    return prompts


def counts(tokens):
    return collections.Counter(e for t in tokens for e in t)


def most(count, n_experts, slots):
    return set(sorted(range(n_experts), key=lambda e: (-count[e], e))[:slots])


def chosen(kind, prompts, slots, every):
    """Hits and moves a token where the experts are chosen again every so many tokens, by counts that are halved then; every 0:
    never."""
    count = collections.Counter()
    for p in prompts[:LEARN]:
        count.update(counts(p))
    here, hits, moves, n = most(count, kind.n, slots), 0, 0, 0
    recent = collections.Counter()
    for p in prompts[LEARN:]:
        for t in p:
            if every and n and n % every == 0:
                count = collections.Counter({e: c / 2 for e, c in count.items()})
                count.update(recent)
                recent.clear()
                now = most(count, kind.n, slots)
                moves += len(now - here)
                here = now
            hits += len(t & here)
            recent.update(t)
            n += 1
    return hits / n / kind.used, moves / n


def follow(kind, prompts, slots, streams=1):
    """Hits and moves a token where each pick that finds none brings its expert. Streams are prompts side by side, a step has a
    token of each."""
    here, hits, n, moves = collections.OrderedDict(), 0, 0, 0
    for at in range(0, PROMPTS - streams + 1, streams):
        for step in zip(*prompts[at:at + streams]):
            warm = at >= LEARN
            picked = set().union(*step)
            for t in step if warm else ():
                hits += len(t & here.keys())
                n += 1
            for e in sorted(picked):
                moves += warm and e not in here
                here[e] = True
                here.move_to_end(e)
            while len(here) > slots:
                here.popitem(last=False)
    return hits / n / kind.used, moves / n


def best(kind, prompts, slots):
    hits = n = 0
    for p in prompts[LEARN:]:
        here = most(counts(p), kind.n, slots)
        hits += sum(len(t & here) for t in p)
        n += len(p)
    return hits / n / kind.used, 0


def ways(kind, prompts, slots):
    return {"load": chosen(kind, prompts, slots, 0), "prompt": chosen(kind, prompts, slots, TOKENS),
            "rows64": chosen(kind, prompts, slots, 64), "row": follow(kind, prompts, slots),
            "row, 4 streams": follow(kind, prompts, slots, 4), "best": best(kind, prompts, slots)}


def repeats(kind, prompts):
    pairs = [(a, b) for p in prompts for a, b in zip(p, p[1:])]
    return sum(len(a & b) for a, b in pairs) / len(pairs) / kind.used


def times(shape, kind, way, hits, moves):
    """Milliseconds a token: where the host computes what is not on the device, beside moves, which read its memory, too; where
    the device computes all and reads what it has not over PCIe 4 and 5, once for all streams where it keeps it."""
    layers = shape.used * shape.layers * shape.bytes
    missed, moved = (1 - hits) * layers, moves / kind.used * layers
    read = moved if way.startswith("row,") or way == "row" else missed + moved
    return max((missed + moved) / MEMORY, moved / BUS[0]) * 1e3, *(read / b * 1e3 for b in BUS)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kind", choices=KINDS)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    for name in [a.kind] if a.kind else KINDS:
        kind = KINDS[name]
        prompts = picks_of(kind, a.seed)
        print(f"{name}: {kind.used} of {kind.n}, {100 * repeats(kind, prompts):.0f} % of picks are those of the token before")
        print(f"known: {kind.known}")
        for share in SHARES:
            found = ways(kind, prompts, round(kind.n * share))
            print(f"{100 * share:g} % of the experts on the device")
            for way, (hits, moves) in found.items():
                print(f"  {way:15} finds {100 * hits:5.1f} %, moves {moves:5.2f} a layer and token; ms a token: " + "; ".join(
                    f"{s.name.split()[0]} {h:.1f}, {p4:.1f}, {p5:.1f}" for s in SHAPES
                    for h, p4, p5 in [times(s, kind, way, hits, moves)]))
        print("ms: computed by the host; read by the device over PCIe 4; over PCIe 5")


if __name__ == "__main__":
    main()
