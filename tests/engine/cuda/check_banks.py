#!/usr/bin/env python3
"""Counts bank conflicts of all kernels in the emulator and holds them at today's numbers.

usage: check_banks.py GPU_KERNELS [--all]
Runs the checks `gpu_kernels --tiny` in one process, whose emulator counts the passes of each access to shared memory
(simt_banks.h), and compares, for each kernel, the passes beyond the least ones with LIMITS. --all prints every kernel.
"""
import os
import subprocess
import sys
import tempfile

# Passes beyond the least, in percent, of kernels with more than OTHERS.
OTHERS = 0.2
LIMITS = {
    "attend_128": 1.8, "attend_128_q4": 2.8, "attend_128_q8": 2.2, "attend_128_q8_q4": 2.7, "attend_256": 1.9,
    "attend_256_q4": 1.8, "attend_256_q8": 1.3, "attend_256_q8_q4": 1.7, "attend_512": 2.6, "attend_512_q4": 2.4,
    "attend_512_q8": 1.7, "attend_512_q8_q4": 2.1, "attend_64": 2.1, "attend_64_q4": 2.8, "attend_64_q8": 2.3,
    "attend_64_q8_q4": 2.7, "attend_compressed": 15.9, "attend_decode_128": 2.1, "attend_decode_128_q4": 2.5,
    "attend_decode_128_q8": 2.2, "attend_decode_128_q8_q4": 2.5, "attend_decode_64": 2.7, "attend_decode_64_q4": 3.0,
    "attend_decode_64_q8": 2.7, "attend_decode_64_q8_q4": 3.0, "attend_latent": 6.5, "attend_latent_bulk": 5.6,
    "attend_latent_bulk_q4": 4.5, "attend_latent_bulk_q8": 4.4, "attend_latent_q4": 5.7, "attend_latent_q8": 5.1,
    "attend_sparse": 20.1, "attend_sparse_q4": 19.4, "attend_sparse_q8": 22.9, "attend_sparse_q8_q4": 19.6,
    "attend_sparse_latent": 7.8, "attend_sparse_latent_q4": 8.2, "attend_sparse_latent_q8": 7.7,
    "attend_wide_128": 1.9, "attend_wide_128_q4": 1.8, "attend_wide_128_q8": 1.6, "attend_wide_128_q8_q4": 1.7,
    "attend_wide_256": 2.1, "attend_wide_256_q4": 2.0, "attend_wide_256_q8": 1.7, "attend_wide_256_q8_q4": 1.9,
    "attend_wide_512": 2.5, "attend_wide_512_q4": 2.4, "attend_wide_512_q8": 1.8, "attend_wide_512_q8_q4": 2.2,
    "attend_wide_64": 1.5, "attend_wide_64_q4": 2.1, "attend_wide_64_q8": 2.0, "attend_wide_64_q8_q4": 2.0,
    "attend_wgmma_128": 3.5, "attend_wgmma_128_q4": 2.7, "attend_wgmma_128_q8": 2.4, "attend_wgmma_128_q8_q4": 2.7,
    "attend_wgmma_64": 2.8, "attend_wgmma_64_q4": 2.9, "attend_wgmma_64_q8": 2.7, "attend_wgmma_64_q8_q4": 2.9,
    "choose_blocks": 0.8, "hc_in": 30.0, "route": 6.5, "sample_draw": 37.6, "sample_weigh": 13.8,
    # Lanes skip results of rows and outputs that do not exist, so stores of different rows are counted as one.
    "matmul_roles_24": 4.0, "matmul_roles_32": 7.0, "matmul_roles_48": 6.0, "matmul_roles_64": 10.0, "matmul_wgmma_64": 4.0,
    # Q5_K alone has 11 % with 128 rows, and 14 % with 32, where other formats lower the average.
    "matmul_roles_128_q5k": 11.5,
    # Clusters read activations of Q4_K, Q8_0 and G4 with conflicts. Their checks also multiply Q5_K (6 %) by matvec_16.
    "matvec_cluster": 5.0, "matvec_cluster_16": 4.1, "matvec_16": 0.5,
}


def counts_of(program):
    with tempfile.NamedTemporaryFile("r", prefix="weft-banks-") as f:
        env = {**os.environ, "SIMT_BANKS": f.name, "GPU_IN_PROCESS": "1"}
        subprocess.run([program, "--tiny"], env=env, stdout=subprocess.DEVNULL, check=False)
        for line in f:
            name, *numbers = line.split()
            yield name, *map(int, numbers)


def main():
    wrong, seen = [], set()
    print(f"{'kernel':24} {'accesses':>10} {'passes':>10} {'least':>10} {'beyond':>8}")
    for name, accesses, passes, least in sorted(counts_of(sys.argv[1])):
        beyond = 100 * (passes - least) / least
        seen.add(name)
        if beyond > 0 or "--all" in sys.argv:
            print(f"{name:24} {accesses:10} {passes:10} {least:10} {beyond:6.2f} %")
        if beyond > LIMITS.get(name, OTHERS):
            wrong.append(f"{name}: {beyond:.2f} % of its passes are conflicts, at most {LIMITS.get(name, OTHERS)} %")
    missing = {"attend_128", "matvec", "matmul_wgmma_64", *LIMITS} - seen
    wrong += [f"{name}: no access was counted" for name in sorted(missing)]
    print(*wrong, sep="\n")
    return 1 if wrong else 0


sys.exit(main())
