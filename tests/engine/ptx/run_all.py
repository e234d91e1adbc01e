#!/usr/bin/env python3
"""Runs the checks of the CUDA kernels and the tests of the CUDA backend with the PTX of all modules for
each family, in the interpreter; then seeds mistakes into the kernels.

usage: run_all.py [--nvcc NVCC] [--families 80,90a,..] [--tests NAME,..] [--no-mistakes] BUILD
BUILD: the folder of test_cuda_*, weft-cuda.so and gpu_kernels. Prints a table: of each family the
kernels that ran, the instructions that warps executed, and how many of the modules' instructions ran.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

from seed_mistakes import ROOT, compile_module

ENGINE = ROOT / "engine"
MODULES = sorted(os.path.relpath(path.with_suffix(""), ENGINE / "cuda") for path in ENGINE.rglob("*.cu"))
# Tests that count launches of wgmma, which only sm_90a has, and of bulk copies.
WGMMA, BULK = "products", "cuda_latent/chunks_pages_of_others_and_the_kernel_change_no_bit"
TESTS = ["backend", "compressed", "experts", "latent", "mtp", "dflash", "recurrent", "ranks", "selftest", "windows", "window_pages", "rounds",
         "hidden", "spec", "host_experts"]


def run(command, folder, report):
    env = {**os.environ, "WEFT_PTX": str(folder), "WEFT_PTX_REPORT": str(report)}
    r = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if r.returncode:
        print(f"failed: {' '.join(map(str, command))}\n" + "\n".join(r.stdout.splitlines()[-30:]))
    return r.returncode == 0


def read_report(path):
    """Returns the number of kernels that ran, of executed instructions, and of instructions that ran at least once of all."""
    ops, never, executed = {}, {}, 0
    for line in path.read_text().splitlines():
        w = line.split()
        if w[2] == "launches":
            executed += int(w[5])
            ops[w[0], w[1]] = int(w[7])
            times = never.setdefault((w[0], w[1]), [0, {}])
            times[0] += 1
        elif w[2] == "line":
            lines = never[w[0], w[1]][1]
            lines[w[3]] = lines.get(w[3], 0) + 1
    idle = sum(sum(1 for n in lines.values() if n >= times) for times, lines in never.values())
    return len(ops), executed, sum(ops.values()) - idle, sum(ops.values())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--nvcc", default="nvcc")
    p.add_argument("--families", default="80,89,90a,100,120")
    p.add_argument("--tests", default=",".join(TESTS))
    p.add_argument("--no-mistakes", action="store_true")
    p.add_argument("build", type=pathlib.Path)
    a = p.parse_args()
    good, rows = True, []
    with tempfile.TemporaryDirectory() as t:
        for family in a.families.split(","):
            folder, report = pathlib.Path(t) / family, pathlib.Path(t) / (family + ".report")
            folder.mkdir()
            for m in MODULES:
                r = compile_module(a.nvcc, ROOT, m, family, folder)
                if r.returncode:
                    sys.exit(r.stdout)
            tests = [x for x in a.tests.split(",") if x] + ([WGMMA] if family == "90a" else [])
            good &= run([a.build / "gpu_kernels", "--tiny"], folder, report)
            for name in tests:
                without = name == "latent" and family not in ("90a", "100")
                good &= run([a.build / f"test_cuda_{name}", *(["--filter", f"!({BULK})"] if without else [])],
                            folder, report)
            rows.append((family, *read_report(report)))
            print(f"sm_{family}: {rows[-1]}", flush=True)
    print("| family | kernels | instructions of warps | instructions that ran | of |\n|---|--:|--:|--:|--:|")
    for family, kernels, executed, ran, ops in rows:
        print(f"| sm_{family} | {kernels} | {executed / 1e6:,.0f} M | {ran:,} | {ops:,} |")
    if not a.no_mistakes:
        good &= subprocess.run([sys.executable, pathlib.Path(__file__).with_name("seed_mistakes.py"), "--nvcc", a.nvcc,
                                a.build / "gpu_kernels"]).returncode == 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
