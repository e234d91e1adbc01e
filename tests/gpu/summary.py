#!/usr/bin/env python3
"""Prints tables of the results of tests/gpu/run, from the JSON lines of its programs, and writes them to SUMMARY.json.

usage: summary.py RESULTS.jsonl SUMMARY.json
A line {"mode": ...} names the stage, or the way of launching steps, of the lines after it. Exit 1: a check failed, or
there are no checks.
"""
import json
import sys


def read(path):
    rows, broken = [], 0
    for line in open(path):
        try:
            rows.append(json.loads(line))
        except ValueError:
            broken += 1  # the incomplete last line of a program that was killed
    return rows, broken


def main():
    rows, broken = read(sys.argv[1])
    out = {"checks": 0, "failed": [], "values": [], "times": [], "layers": [], "skipped": [], "broken_lines": broken}
    mode = ""
    for row in rows:
        mode = row.get("mode", mode)
        if "read_gb_s" in row:
            out.update(device=row["device"], read_gb_s=row["read_gb_s"])
        if "check" in row:
            out["checks"] += 1
            if not row["ok"]:
                row["mode"] = mode
                out["failed"].append(row)
        if "number" in row:
            out["values"].append(row)
        if "layer" in row:
            out["layers"].append(row)
        if "skipped" in row:
            out["skipped"].append(row)
        if "time" in row:
            out["times"].append({**row, "mode": mode})
        if "step" in row and out["times"] and out["times"][-1]["time"] == row["step"]:
            out["times"][-1]["tokens_s"] = row["tokens_s"]
    with open(sys.argv[2], "w") as f:
        json.dump(out, f, indent=1)
    print(f"{out.get('device', 'no device')}, reads {out.get('read_gb_s', 0):.0f} GB/s")
    for v in out["values"]:
        print(f"{v['value']:48} {v['number']:10.2f} {v['unit']}")
    before = None
    for t in out["times"]:
        if t["mode"] != before:
            before = t["mode"]
            print(f"\n{before or 'kernels':48} {'us':>10} {'floor':>9} {'%':>6} {'tokens/s':>10}")
        part = 100 * t["floor_us"] / t["us"] if t["us"] else 0
        rate = f"{t['tokens_s']:10.1f}" if "tokens_s" in t else ""
        print(f"{t['time']:48} {t['us']:10.1f} {t['floor_us']:9.1f} {part:6.1f} {rate}")
    for l in out["layers"]:
        if l["layer"] == "step":
            print(f"{l['rows']:2} rows, {l['variant']:40} {l['us']:10.1f} us, p10 {l['p10']:.1f}, p90 {l['p90']:.1f}")
    print(f"\n{out['checks']} checks, {len(out['failed'])} failed")
    for row in out["skipped"]:
        print(f"skipped {row['skipped']}: {row['why']}")
    for row in out["failed"]:
        why = row.get("broken") or f"{row['value']:g}, at most {row['limit']:g}"
        print(f"FAILED {row['check']} ({row['mode']}): {why}")
    return 1 if out["failed"] or not out["checks"] else 0


sys.exit(main())
