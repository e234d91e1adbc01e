#!/usr/bin/env python3
"""Prints the time of each step by kernel, from the file that ncu writes for `models --profile` (tests/gpu/run).

usage: steps.py PROFILE.csv [KERNELS]
KERNELS: most lines of a step's table (default: 16). "us each" is the time of a kernel that runs alone under ncu; 2 to 3
us of it are the cost of a launch there.
"""
import csv
import sys

OPENING = {"rope", "embed"}  # kernels with which a step begins; some models have no rope
COLUMNS = ["gpu__time_duration.sum", "dram__bytes_read.sum", "sm__inst_executed.sum"]
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3, "second": 1}
HEAD = f"  {'kernel':28} {'grid':>14} {'launches':>8} {'us in all':>10} {'us each':>9} {'GB/s':>6} {'instructions':>13}"
SCALE = {"": 1, "inst": 1, "byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, **SECONDS}


def launches(path):
    with open(path) as f:
        rows = csv.reader(line for line in f if line.startswith('"'))  # skips messages of ncu and of the program
        names = next(rows, [])
        units = dict(zip(names, next(rows, [])))
        for row in rows:
            got = dict(zip(names, row))
            if len(row) != len(names) or not got[COLUMNS[0]]:
                continue  # the incomplete last line of an interrupted run
            name = got["Kernel Name"].split("(")[0].split()[-1]
            yield name, got["Grid Size"], [float(got[c].replace(",", "") or 0) * SCALE[units[c]] for c in COLUMNS]


def steps_of(path):
    steps, before = [], None
    for name, grid, numbers in launches(path):
        if not steps or (name in OPENING and before not in OPENING):
            steps.append({})
        total = steps[-1].setdefault((name, grid), [0] * (1 + len(COLUMNS)))
        for i, x in enumerate([1, *numbers]):
            total[i] += x
        before = name
    return steps


def main():
    steps = steps_of(sys.argv[1])
    most = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    for number, step in enumerate(steps):
        kernels = sorted(step.items(), key=lambda k: -k[1][1])
        n, seconds = sum(k[0] for k in step.values()), sum(k[1] for k in step.values())
        print(f"step {number}: {n} launches, {seconds * 1e6:.0f} us of kernels")
        print(HEAD)
        for (name, grid), (n, took, read, executed) in kernels[:most]:
            rate = read / took * 1e-9 if took else 0
            print(f"  {name:28} {grid:>14} {n:8} {took * 1e6:10.1f} {took / n * 1e6:9.2f} {rate:6.0f} {executed:13.3g}")
    if not steps:
        sys.exit(f"{sys.argv[1]}: no launch of a kernel")


main()
