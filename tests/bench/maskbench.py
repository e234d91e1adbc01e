#!/usr/bin/env python3
"""Counts and times of constrained generation over a folder of schemas with valid and invalid instances.

usage: maskbench.py [--suite] [--any-order] [--quick] [--sample N] [--list KIND] BENCH_SCHEMAS VOCABULARY.gguf FOLDER

FOLDER holds files {"schema": ..., "tests": [{"valid": true, "data": ...}, ...]}, as maskbench/data of
guidance-ai/jsonschemabench does; with --suite files that are lists of such objects, at any depth, as a draft of
json-schema-org/JSON-Schema-Test-Suite (tests/draft2020-12) does. BENCH_SCHEMAS is the program of this name in the build folder. One core is used.

A schema passes when it compiles, all its valid instances fit and none of its invalid ones does.
KIND: refused, valid_refused, invalid_accepted or slow; the schemas of this kind are listed with their reasons.
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile


def percentiles(values, parts):
    values = sorted(values)
    return [values[min(len(values) - 1, int(len(values) * p))] for p in parts] if values else [0.0] * len(parts)


def reason(message):
    """What a refusal is about: the last keyword of its place, or the message where it has none."""
    place, _, text = message.partition(": ")
    if not place.startswith("#"):
        return message[:60]
    words = [w for w in place.split("/") if not w.isdigit()]
    return f"{words[-1][:24]}: {text[:70]}"


def kind_of(row):
    if row["error"]:
        return "refused"
    if row["invalid_accepted"]:
        return "invalid_accepted"
    return "valid_refused" if row["valid_refused"] else "passing"


def run(options, files):
    command = [options.program, options.vocabulary] + (["any_order"] if options.any_order else []) + (["quick"] if options.quick else [])
    p = subprocess.run(command, input="".join(f"{f}\n" for f in files).encode(), stdout=subprocess.PIPE, check=False)
    if p.returncode:
        sys.exit(f"{options.program} failed: {p.returncode}")
    return [json.loads(line) for line in p.stdout.decode(errors="replace").splitlines()]


def split_suite(folder, to):
    """Each schema of the lists in @folder as a file of its own in @to."""
    for f in sorted(folder.rglob("*.json")):
        for i, group in enumerate(json.loads(f.read_text())):
            name = "-".join(f.relative_to(folder).with_suffix("").parts)
            (to / f"{name}-{i:03}.json").write_text(json.dumps(group))
    return to


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, help="every so many files only that about N are read")
    parser.add_argument("--list", default="", metavar="KIND")
    parser.add_argument("--any-order", action="store_true", help="properties in any order")
    parser.add_argument("--quick", action="store_true", help="masks as a step with other requests waits for them")
    parser.add_argument("--suite", action="store_true", help="FOLDER holds lists of schemas")
    parser.add_argument("program")
    parser.add_argument("vocabulary")
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        report(options, split_suite(options.folder, pathlib.Path(made)) if options.suite else options.folder)


def report(options, folder):
    files = sorted(folder.glob("*.json"))
    if options.sample:
        files = files[:: max(1, len(files) // options.sample)]
    rows = run(options, files)
    kinds = collections.Counter(map(kind_of, rows))
    print(f"schemas {len(rows)}: " + ", ".join(f"{k} {kinds[k]}" for k in
                                               ("passing", "refused", "valid_refused", "invalid_accepted")))
    masks = [m / 1e3 for r in rows for m in r["masks_ns"]]
    mean = sum(masks) / max(1, len(masks))
    p50, p99, p999, worst = percentiles(masks, (0.5, 0.99, 0.999, 1))
    print(f"mask and acceptance, us: mean {mean:.1f} p50 {p50:.1f} p99 {p99:.1f} p99.9 {p999:.1f} worst {worst:.0f}, {len(masks)} tokens")
    print(f"masks refused as too ambiguous: {sum(r['too_ambiguous'] for r in rows)} in {sum(r['too_ambiguous'] > 0 for r in rows)} schemas")
    if options.quick:
        print(f"masks that were late: {sum(r['late'] for r in rows)} in {sum(r['late'] > 0 for r in rows)} schemas")
    first = [r["first_ns"] / 1e6 for r in rows if not r["error"]]
    p50, p90, p99, worst = percentiles(first, (0.5, 0.9, 0.99, 1))
    print(f"compile and first mask, ms: p50 {p50:.2f} p90 {p90:.2f} p99 {p99:.1f} worst {worst:.1f}")
    slow = max((r["first_ns"] / 1e6 for r in rows if r["error"]), default=0)
    print(f"a refusal, ms: worst {slow:.1f}; the largest grammar {max(r['bytes'] for r in rows) >> 10} KiB")
    for what, n in collections.Counter(reason(r["error"]) for r in rows if r["error"]).most_common(40):
        print(f"{n:6}  {what}")
    for r in sorted(rows, key=lambda r: -max(r["masks_ns"], default=0))[:60] if options.list == "slow" else rows:
        if options.list == "slow":
            print(f"{pathlib.Path(r['file']).name} {r['first_ns'] / 1e6:.1f} ms, mask {max(r['masks_ns'], default=0) / 1e3:.0f} us, {r['error']}")
        elif kind_of(r) == options.list:
            print(f"{pathlib.Path(r['file']).name}  {r['error'] or r['detail']}")


main()
