#!/usr/bin/env python3
"""Holds the kernels to what ptxas reported when they were compiled: no spills, no stack, few enough registers for
the blocks that should share a multiprocessor, no more shared memory than every device has, no name that depends on
where it was compiled; and loads in assembly to be volatile. Exit 77 (skipped) without nvcc, and with --ptx-alone, where
no machine code was compiled.

usage: check_kernels.py [--ptx-alone] REPORT...
"""
import pathlib
import re
import sys

# Registers per thread. 80: three blocks of 256 threads, 128: two, 255: one.
LIMITS = {
    "matvec": 80,
    "matvec_16": 128,
    "matvec_norm": 80,
    "matvec_dry": 80,
    "matvec_16_dry": 128,
    "matvec_cluster": 80,
    "matvec_cluster_16": 128,
    "matmul_wide": 255,
    "matmul_wgmma": 255,
    "matmul_wgmma_64": 176,
    "matmul_wgmma_join": 128,
    "matmul_roles_24": 128,  # 512 threads; those that multiply get more (setmaxnreg)
    "matmul_roles_32": 128,
    "matmul_roles_48": 128,
    "matmul_roles_64": 128,
    "attend_64": 128,
    "attend_64_q8": 128,
    "attend_64_q4": 128,
    "attend_128": 128,
    "attend_128_q8": 128,
    "attend_128_q4": 128,
    "attend_256": 255,
    "attend_256_q8": 255,
    "attend_256_q4": 255,
    "attend_512": 255,
    "attend_512_q8": 255,
    "attend_512_q4": 255,
    "attend_wide_64": 255,
    "attend_wide_64_q8": 255,
    "attend_wide_64_q4": 255,
    "attend_wide_128": 255,
    "attend_wide_128_q8": 255,
    "attend_wide_128_q4": 255,
    "attend_wide_256": 255,
    "attend_wide_256_q8": 255,
    "attend_wide_256_q4": 255,
    "attend_wide_512": 255,
    "attend_wide_512_q8": 255,
    "attend_wide_512_q4": 255,
    "attend_latent": 255,
    "attend_latent_q8": 255,
    "attend_latent_q4": 255,
    "attend_latent_bulk": 255,
    "attend_latent_bulk_q8": 255,
    "attend_latent_bulk_q4": 255,
    "merge": 64,
    "sample_scan": 128,
    "sample_weigh": 128,
    "sample_draw": 128,
    "store": 128,
    "store_latent": 128,
    "keep": 64,
    "pair": 64,
    "holes": 64,
    "candidates": 64,
    "choose_candidate": 64,
    "chain": 64,
    "residual": 80,  # 256 threads, beside a block of matmul_wgmma_64
    "deep": 64,
    "layer_input": 64,
    "cap": 64,
    "soft_gate": 64,
    "thin_gates": 64,
    "hadamard": 64,
    "glu": 64,
    "gather": 64,
    "pack_shares": 88,  # as pack_activated
    "residual_shares": 96,
    "pack": 64,
    "pack_dry": 64,
    "pack_activated": 88,  # 512 threads, beside a block of matvec
    "pack_gated": 88,
    "embed": 80,
    "rope": 64,
    "plan": 128,
    "copy_page": 64,
    "repack": 128,
    "scale_tiles": 64,
    "route": 64,
    "bring": 64,
    "expert_vec": 128,
    "expert_wide": 255,
    "hand_over": 64,
    "combine": 64,
    "list_heads": 64,
    "mamba_in": 64,
    "mamba": 128,
    "mamba_out": 64,
    "delta_in": 128,
    "delta": 128,
    "kda": 128,
    "delta_out": 64,
    "conv": 64,
    "conv_keep": 64,
    "scan_in": 64,
    "scan": 80,
    "scan_heads": 64,
    "hc_in": 64,
    "hc_out": 64,
    "hc_mean": 64,
    "mix_norm": 64,
    "mix_bend": 64,
    "mix_mean": 64,
    "alt_begin": 64,
    "alt_predict": 64,
    "alt_correct": 64,
    "alt_end": 64,
    "laurel": 64,
    "ngram_ask": 64,
    "ngram_decode": 64,
    "ngram_weigh": 80,
    "ngram_add": 64,
    "ngram_keep": 64,
    "turn_heads": 64,
    "compress": 64,
    "keep_rows": 64,
    "score_blocks": 128,
    "score_heads": 128,
    "choose_blocks": 64,
    "attend_compressed": 128,
    "mean_keys": 64,
    "attend_sparse": 128,
    "attend_sparse_q8": 128,
    "attend_sparse_q4": 128,
    "attend_sparse_q8_q4": 128,
    "attend_sparse_latent": 255,
    "attend_sparse_latent_q8": 255,
    "attend_sparse_latent_q4": 255,
    "merge_sparse": 64,
    "vis_row": 64,
    "vis_head": 64,
    "vis_attend_64": 168,
    "vis_attend_80": 168,
    "vis_attend_128": 255,
}
# 384 threads, likewise.
WIDE_ROLES = {f"matmul_roles_{n}_{formats}": 168 for n in (96, 128) for formats in ("q4k", "q5k", "plain")}
LIMITS |= WIDE_ROLES
# Kernels for keys and values of different formats.
LIMITS |= {f"attend_{size}_{pages}": limit for sizes, limit in (((64, 128), 128), ((256, 512), 255))
           for size in sizes for pages in ("q8_q4",)}
LIMITS |= {f"attend_wide_{size}_{pages}": 255 for size in (64, 128, 256, 512) for pages in ("q8_q4",)}
LIMITS |= {f"attend_wgmma_{size}{pages}": 255 for size in (64, 128) for pages in ("", "_q8", "_q4", "_q8_q4")}
LIMITS |= {f"attend_decode_{size}{pages}": 128 for size in (64, 128) for pages in ("", "_q8", "_q4", "_q8_q4")}
# Static shared memory: the limit without a request, or the rest of the 99 KiB that the smallest device gives a block,
# beside the dynamic shared memory (matvec_shared(), wide_shared(), ATTEND_WIDE_SHARED(), which tests check).
SHARED = {"expert_vec": 99 * 1024 - 4 * 3 * 3360}
SHARED |= {"matvec": 8704, "matvec_norm": 8704, "matvec_dry": 8704, "matvec_16": 17408, "matvec_16_dry": 17408}  # matvec_way.h
SHARED |= {name: 99 * 1024 - 100352 for name in ("matmul_wide", "expert_wide")}
SHARED |= {"attend_wide_128": 99 * 1024 - 3 * 32 * 288 * 2, "attend_wide_128_q8": 99 * 1024 - 2 * 32 * 288 * 2 - 3 * 32 * 272,
           "attend_wide_128_q4": 99 * 1024 - 2 * 32 * 288 * 2 - 3 * 32 * 144}
SHARED |= {f"attend_wide_128_{pages}": 99 * 1024 - 2 * 32 * 288 * 2 - 3 * 32 * 208 for pages in ("q8_q4",)}
SHARED_MAX = 48 * 1024
# Kernels whose warpgroups exchange registers: a launch with fewer would wait for ever, with more the sum is another one
# (ROLES_LAUNCHED in matmul_roles.cu, ROLES_WIDE_LAUNCHED in roles_wide.cuh).
EXACT = {f"matmul_roles_{n}": 128 for n in (24, 32, 48, 64)}
EXACT |= WIDE_ROLES
SERVERS_90 = ("sm_90a",)  # where these kernels have code
# Kernels that may spill, with the bytes of stack, stores and loads: fewer blocks on a multiprocessor would cost more, or
# a thread cannot have more registers.
SPILLS = {("matvec_16", arch): (8, 12, 144) for arch in ("sm_100", "sm_110")}
SPILLS |= {("pack_gated", arch): (8, 12, 8) for arch in ("sm_100", "sm_110")}
SPILLS |= {(name, arch): (8, 4, 4) for name in ("attend_latent", *("attend_wide_128" + pages for pages in ("", "_q8", "_q4", "_q8_q4")))
           for arch in ("sm_100", "sm_110", "sm_120", "sm_121")}
SPILLS |= {("attend_compressed", "sm_80"): (8, 4, 4)}
# A stack and no spills: the slow paths of divisions and of the root, for zeros, subnormal numbers and infinities.
SPILLS |= {("matvec_norm", "sm_90"): (24, 0, 0)}
# Three or four registers, saved in front of both passes and loaded at the beginning of each (dry.cuh).
SPILLS |= {(name, arch): spills for name, spills in (("matvec_dry", (24, 48, 48)), ("pack_dry", (16, 16, 32))) for arch in ("sm_90", "sm_90a")}
SPILLS |= {("matvec_norm", "sm_80"): (8, 20, 20)}  # one value of five formats, while rows are packed
SPILLS |= {("matvec_norm", arch): (8, 76, 44) for arch in ("sm_100", "sm_110")}  # outside the innermost loops
SPILLS |= {("attend_compressed", arch): (16, 12, 12) for arch in ("sm_100", "sm_110")}
# On this family nvcc uses more registers for these kernels than 1024 threads of a multiprocessor have.
for of_120 in ("sm_120", "sm_121"):
    SPILLS |= {("attend_sparse" + pages, of_120): (8, 8, 16) for pages in ("_q8", "_q4", "_q8_q4")}
# Families that multiply bytes (BYTES_FAMILY) have two blocks on a multiprocessor.
LIMITS_OF = {(name, arch): 128 for name in ("matvec", "matvec_norm", "matvec_dry", "matvec_cluster", "pair") for arch in ("sm_86", "sm_89", "sm_120", "sm_121")}
LIMITS_OF |= {("residual_shares", arch): 104 for arch in ("sm_120", "sm_121")}
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SMEM = re.compile(r"(\d+) bytes smem")


def name_of(mangled):
    """Returns the function name of a mangled one, _Z6matvec11matmul_args or _ZN...E, by the length before it."""
    for length, rest in re.findall(r"(\d+)([a-z]\w*)", mangled):
        if rest[: int(length)] in LIMITS:
            return rest[: int(length)]
    for name in LIMITS:
        if name in mangled:
            return name
    return mangled


def movable_loads():
    """Yields loads that the compiler could move across the wait for the previous kernel, which no emulator shows. Loads of
    memory that never changes (.nc) are exempt."""
    engine = pathlib.Path(__file__).resolve().parents[3] / "engine"
    for path in sorted(engine.rglob("*.cu*")):
        for m in re.finditer(r'asm\s*\(\s*"[^"]*\b(?:ld|ldmatrix)\.(?!global\.nc)', path.read_text()):
            yield f"{path.name}: {m.group(0)}: a load that is not volatile"


def late_triggers(ptx):
    """Yields kernels of a file of PTX (sm_90) that do anything before they let the next kernel start: only the test of
    LAUNCH_LATE may precede it (KERNEL in engine/cuda/device.cuh)."""
    allowed = re.compile(r"(mov|add)\.[bu]64|ld\.param\.u(8|16|32) |and\.b(16|32) |setp\.\w+\.[sub](16|32) |@%p\d+ bra")
    for m in re.finditer(r"^\.(?:visible )?entry (\w+)\(.*?^\{(.*?)^\}", ptx, flags=re.M | re.S):
        lines = [s.strip() for s in m[2].splitlines()]
        code = [s for s in lines if s and not s.startswith((".", "//", "{", "}"))]
        trigger = next((i for i, s in enumerate(code) if s.startswith("griddepcontrol.launch_dependents")), None)
        if trigger is None or not all(allowed.match(s) for s in code[:trigger]):
            yield f"{name_of(m[1])}: the next kernel may not start at its beginning"


def main():
    reports = sys.argv[1:]
    ptx_alone = reports[:1] == ["--ptx-alone"]
    if len(reports) == ptx_alone:
        print("no nvcc: nothing was compiled")
        return 77
    seen, problems, kernel, function, arch = set(), 0, None, None, None
    for path in reports[ptx_alone:]:
        for line in open(path):
            entry = re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line)
            if entry:
                kernel, arch = name_of(entry.group(1)), entry.group(2)
                seen.add(kernel)
            properties = re.search(r"Function properties for (\S+)", line)  # also of functions that kernels call
            function = properties.group(1) if properties else function
            if properties and "_INTERNAL_" in function:
                problems += 1
                print(f"{function}: static: nvcc made a hash of the folder a part of its name, two builds differ")
            if "Potential Performance Loss" in line:  # wgmma is serialised
                problems += 1
                print(f"{path}: {line.strip()}")
            frame, used = FRAME.search(line), USED.search(line)
            if frame and any(n > m for n, m in zip(map(int, frame.groups()), SPILLS.get((name_of(function), arch), (0, 0, 0)))):
                problems += 1
                print(f"{name_of(function)} ({arch}): {line.strip()}")
            if used and kernel:
                n, limit = int(used.group(1)), LIMITS_OF.get((kernel, arch), LIMITS.get(kernel, 0))
                smem = SMEM.search(line)
                shared, shared_limit = int(smem.group(1)) if smem else 0, SHARED.get(kernel, SHARED_MAX)
                print(f"{kernel:12} {arch:7} {n:4} registers {shared:6} bytes shared")
                if shared > shared_limit:
                    problems += 1
                    print(f"{kernel} ({arch}): {shared} bytes of shared memory, at most {shared_limit}")
                if n > limit:
                    problems += 1
                    print(f"{kernel} ({arch}): {n} registers, at most {limit}")
                if arch in SERVERS_90 and n != EXACT.get(kernel, n):
                    problems += 1
                    print(f"{kernel} ({arch}): {n} registers, and its warpgroups exchange those of {EXACT[kernel]}")
                kernel = None
        ptx = pathlib.Path(path).with_suffix(".ptx")  # in builds with tests
        if ptx.exists():
            for what in late_triggers(ptx.read_text()):
                problems += 1
                print(what)
    for what in movable_loads():
        problems += 1
        print(what)
    if ptx_alone and not problems:
        print("no device: nvcc wrote PTX, and no machine code")
        return 77
    for missing in sorted(set(LIMITS) - seen):
        problems += 1
        print(f"{missing}: no report")
    print(f"{len(seen)} kernels, {problems} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
