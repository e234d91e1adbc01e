#!/usr/bin/env python3
"""Seeds mistakes into the CUDA kernels, one at a time, and says which of them the checks of the
kernels find when what nvcc writes of them runs in the interpreter of PTX.

usage: seed_mistakes.py [--nvcc NVCC] [--only REGEX] [--modules FOLDER] [--part K/N] GPU_KERNELS
GPU_KERNELS: the program of that name in the build folder. --modules: FOLDER/FAMILY/*.ptx are used
and kept, those that are not there are compiled. --part: the K-th of N parts, from 0 on. Ends with 1 if a mistake is not found, or if the kernels fail without one.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
ENGINE = "engine/cuda/"
DEVICE, BULK, WGMMA = "device.cuh", "bulk.cuh", "wgmma.cuh"
LATENT, SHORT, PRODUCTS = "../ops/attention/attention_latent", "../ops/attention/attention", "products/matmul_wgmma"
WIDE, DELTA, EXPERTS = "../ops/attention/attention_wide", "../ops/recurrent/recurrent", "../ops/experts/experts"
IN_LATENT, IN_SHORT, IN_PRODUCTS = "latent attention", "attention dim 64", "matrices Q4_K"
IN_WIDE, IN_DELTA, IN_LOW = "attention shared, dim 128", "delta nets", "matrices IQ2_XS"
IN_EXPERTS = "experts"
SPARSE, IN_SPARSE = "../ops/sparse/sparse", "chosen keys"
COMPRESSED = "../ops/compressed/compressed"
STREAMS, IN_STREAMS = "../ops/streams/streams", "residual streams"

# Name, file, text, text with the mistake, module that is compiled, checks that run, family.
MISTAKES = [
    # Statements of assembly: order of operands, selectors, qualifiers.
    ("pack_halves", DEVICE, '"f"(high), "f"(low)', '"f"(low), "f"(high)', LATENT, IN_LATENT, 90),
    ("mul_halves", DEVICE, '"mul.rn.f16x2 %0, %1, %2;"', '"add.rn.f16x2 %0, %1, %2;"', SHORT, "attention dim 64, group 2, q8_0", 90),
    ("sub_halves", DEVICE, '"sub.rn.f16x2 %0, %1, %2;"', '"sub.rn.f16x2 %0, %2, %1;"', LATENT, IN_LATENT, 90),
    ("fma_halves", DEVICE, '"fma.rn.f16x2 %0, %1, %2, %3;"', '"fma.rn.f16x2 %0, %1, %3, %2;"', PRODUCTS, IN_PRODUCTS, "90a"),
    ("low_twice", DEVICE, "mov.b32 %0, {l, l};", "mov.b32 %0, {l, h};", PRODUCTS, IN_PRODUCTS, "90a"),
    ("high_twice", DEVICE, "mov.b32 %0, {h, h};", "mov.b32 %0, {l, h};", PRODUCTS, IN_PRODUCTS, "90a"),
    ("mma a1 a2", DEVICE, '"r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));', '"r"(a0), "r"(a2), "r"(a1), "r"(a3), "r"(b0), "r"(b1));', LATENT, IN_LATENT, 90),
    ("mma b", DEVICE, '"r"(a3), "r"(b0), "r"(b1));', '"r"(a3), "r"(b1), "r"(b0));', LATENT, IN_LATENT, 90),
    ("mma rows of sums", DEVICE, '"+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])', '"+f"(c[0]), "+f"(c[2]), "+f"(c[1]), "+f"(c[3])', SHORT, IN_SHORT, 80),
    ("mma_first adds", DEVICE, "{%10, %10, %10, %10};", "{%0, %10, %10, %10};", LATENT, IN_LATENT, 90),
    ("pick_bytes", DEVICE, '"prmt.b32 %0, 0, %1, %2;"', '"prmt.b32 %0, %1, 0, %2;"', "products/matmul", IN_LOW, "90a"),
    ("load16_device", DEVICE, '"ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"', '"ld.global.v4.u32 {%1, %0, %2, %3}, [%4];"', "../ops/attention/attention_large", "attention dim 256", 90),
    ("lane_xor", DEVICE, "DEVICE float lane_xor(float v, int mask) {\n    return __shfl_xor_sync(0xFFFFFFFFu", "DEVICE float lane_xor(float v, int mask) {\n    return __shfl_down_sync(0xFFFFFFFFu", SHORT, IN_SHORT, 80),
    ("lane_xor, half a warp", DEVICE, "DEVICE float lane_xor(float v, int mask) {\n    return __shfl_xor_sync(0xFFFFFFFFu", "DEVICE float lane_xor(float v, int mask) {\n    return __shfl_xor_sync(0xFFFFu", LATENT, IN_LATENT, 90),
    ("exp2_fast", DEVICE, '"ex2.approx.ftz.f32 %0, %1;"', '"lg2.approx.ftz.f32 %0, %1;"', LATENT, IN_LATENT, 90),
    ("copy_async bytes", DEVICE, '"cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"', '"cp.async.ca.shared.global.L2::128B [%0], [%1], 8;"', WIDE, IN_WIDE, 90),
    ("copy_async4 bytes", DEVICE, '"cp.async.ca.shared.global [%0], [%1], 4;"', '"cp.async.ca.shared.global [%0], [%1], 8;"', DELTA, IN_DELTA, 80),
    ("copy_async_at offset", DEVICE, "[%0 + %2], [%1 + %2], 16;", "[%0 + %2], [%1], 16;", PRODUCTS, IN_PRODUCTS, "90a"),
    ("copy_wait", DEVICE, '"cp.async.wait_group %0;" ::"n"(N)', '"cp.async.wait_group %0;" ::"n"(N + 1)', WIDE, IN_WIDE, 80),
    ("copy_commit", DEVICE, '"cp.async.commit_group;"', '""', WIDE, IN_WIDE, 90),
    ("no wait for the kernel before", DEVICE, 'asm volatile("griddepcontrol.launch_dependents;\\n\\tgriddepcontrol.wait;"', 'asm volatile("griddepcontrol.launch_dependents;"', LATENT, IN_LATENT, 90),
    ("ldmatrix", DEVICE, "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "ldmatrix.sync.aligned.m8n8.x4.shared.b16", LATENT, IN_LATENT, 90),
    ("ldmatrix order", DEVICE, "shared.b16 {%0, %1, %2, %3}, [%4];", "shared.b16 {%0, %2, %1, %3}, [%4];", LATENT, IN_LATENT, 90),
    ("bulk_publish", BULK, '"fence.proxy.async.shared::cta;"', '""', LATENT, IN_LATENT, 90),
    ("bulk_init count", BULK, '"r"(n)\n                 : "memory");', '"r"(n + 1)\n                 : "memory");', LATENT, IN_LATENT, 90),
    ("bulk_expect", BULK, '"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_place(bar)),\n                 "r"(bytes)', '"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_place(bar)),\n                 "r"(bytes - 16)', LATENT, IN_LATENT, 90),
    ("bulk_wait parity", BULK, '"r"(phase & 1)', '"r"(~phase & 1)', LATENT, IN_LATENT, 90),
    ("bulk_wait once", BULK, "while (!done);", "while (0);", LATENT, IN_LATENT, 90),
    ("bulk_wait predicate", BULK, "selp.u32 %0, 1, 0, p;", "selp.u32 %0, 0, 1, p;", LATENT, IN_LATENT, 90),
    ("bulk_copy barrier", BULK, '"l"(from), "r"(n), "r"(shared_place(bar))', '"l"(from), "r"(n), "r"(shared_place(bar) + 8)', LATENT, IN_LATENT, 90),
    ("wgmma a1 a2", WGMMA, '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])', '"r"(a[0]), "r"(a[2]), "r"(a[1]), "r"(a[3])', PRODUCTS, IN_PRODUCTS, "90a"),
    ("wgmma keeps no sums", WGMMA, '", 1, 1, 1, 0;"', '", 0, 1, 1, 0;"', PRODUCTS, IN_PRODUCTS, "90a"),
    ("wgmma order of sums", WGMMA, '"%0, %1, %2, %3, %4, %5,', '"%0, %1, %4, %5, %2, %3,', PRODUCTS, IN_PRODUCTS, "90a"),
    ("wgmma strides", WGMMA, "(uint64_t)(along_n >> 4) << 32 | (place + (along_k >> 4 << 16))", "(uint64_t)(along_k >> 4) << 32 | (place + (along_n >> 4 << 16))", PRODUCTS, IN_PRODUCTS, "90a"),
    ("bulk_wait once, products", BULK, "while (!done);", "while (0);", PRODUCTS, IN_PRODUCTS, "90a"),
    ("wgmma_begin", WGMMA, '"wgmma.fence.sync.aligned;"', '""', PRODUCTS, IN_PRODUCTS, "90a"),
    ("wgmma_wait", WGMMA, '"wgmma.wait_group.sync.aligned %0;" ::"n"(N)', '"wgmma.wait_group.sync.aligned %0;" ::"n"(N + 1)', PRODUCTS, IN_PRODUCTS, "90a"),
    # Branches by architecture.
    ("waits on no family", DEVICE, "DEVICE void wait_for_previous() {\n#if __CUDA_ARCH__ >= 900", "DEVICE void wait_for_previous() {\n#if __CUDA_ARCH__ > 900", LATENT, IN_LATENT, 90),
    ("waits on all families", DEVICE, "DEVICE void wait_for_previous() {\n#if __CUDA_ARCH__ >= 900", "DEVICE void wait_for_previous() {\n#if 1", SHORT, IN_SHORT, 80),
    ("no bulk on sm_90", BULK, "__CUDA_ARCH__ >= 900 &&", "__CUDA_ARCH__ > 900 &&", LATENT, IN_LATENT, 90),
    # Differences between host and kernel.
    ("attend_args, order", "../ops/attention/kernels_attention.h", "    uint32_t few, n_value;", "    uint32_t n_value, few;", LATENT, IN_LATENT, 90),
    ("attend_args, a field", "../ops/attention/kernels_attention.h", "    float scale, cap;\n", "    float scale, cap; uint32_t spare[2];\n", SHORT, IN_SHORT, 80),
    ("attend_args, pointers", "../ops/attention/kernels_attention.h", "    const float *q;\n", "    uint64_t pad; const float *q;\n", SHORT, IN_SHORT, 80),
    ("attend_args, scale", "../ops/attention/kernels_attention.h", "    float scale, cap;\n", "    float cap, scale;\n", WIDE, IN_WIDE, 90),
    # Decays of keys, groups of experts.
    ("kda, decay", DELTA + ".cu", "m[i * 4 + e] *= y[e];", "m[i * 4 + e] *= x[e];", DELTA, IN_DELTA, 80),
    ("kda, decays of the next rows", "../ops/recurrent/state.cuh", "fetch_keeps<DIM>(a, part, seq.row0 + first + n, next, &rows[now ^ 1]);", "", DELTA, IN_DELTA, 80),
    ("kda, keys and values", "../ops/recurrent/state.cuh", "a.more[0][row * n + c - n]", "a.more[1][row * n + c - n]", DELTA, IN_DELTA, 80),
    ("sparse, keys behind the last block", SPARSE + ".cu", "+ (a.of.batch->pos[r] + 1) % a.block", "+ a.of.batch->pos[r] % a.block", SPARSE, IN_SPARSE, 90),
    ("sparse, one block for the next", SPARSE + ".cu", "? pick[nth] : whole", "? pick[nth / 2 * 2] : whole", SPARSE, IN_SPARSE, 80),
    ("sparse, blocks of two", SPARSE + ".cu", "s.at + i + 4 * e, a.block >= 4, d", "s.at + i + 4 * e, a.block >= 2, d", SPARSE, IN_SPARSE, 80),
    ("sparse, halves of a byte", SPARSE + ".cu", "d % 16 >= 8, h", "d % 16 < 8, h", SPARSE, IN_SPARSE, 90),
    ("sparse, keys before the step", SPARSE + ".cu", "(size_t)(p % block) * n + i", "(size_t)((p + 1) % block) * n + i", SPARSE, IN_SPARSE, 90),
    ("sparse, parts", SPARSE + ".cu", "o[k] = merge_with(o[k], x[k], w.a, w.b);", "o[k] = merge_with(o[k], x[k], 1.0f, w.b);", SPARSE, IN_SPARSE, 80),
    ("sparse, latent keys of another part", SPARSE + ".cu", "load_key<K>(p, s.at[i + nth], 0, at + e * 64)", "load_key<K>(p, s.at[nth], 0, at + e * 64)", SPARSE, IN_SPARSE, 90),
    ("sparse, latent queries' rest", SPARSE + ".cu", "a.of.turned_stride, d - n, rest", "a.of.turned_stride, d, rest", SPARSE, IN_SPARSE, 80),
    ("heads' choice, the last product", COMPRESSED + ".cu", "fmaxf(to[j % 4 / 2], c[j / 4][j % 4])", "c[j / 4][j % 4]", COMPRESSED, IN_SPARSE, 90),
    ("heads' choice, a block more", COMPRESSED + ".cu", "(pos + 1) % a.block ? a.n_best - 1 : a.n_best", "(pos + 1) % a.block ? a.n_best : a.n_best", COMPRESSED, IN_SPARSE, 80),
    ("pooled keys, one place for all", COMPRESSED + ".cu", "a.place[i * block + p % block];\n        float weight", "a.place[i * block];\n        float weight", COMPRESSED, IN_SPARSE, 90),
    ("mix, norm of the first stream", STREAMS + ".cu", "a.norm + (size_t)blockIdx.y * a.n,", "a.norm,", STREAMS, IN_STREAMS, 90),
    ("mix, a sum in the place of a mean", STREAMS + ".cu", "= sum / (float)a.n_stream;", "= sum;", STREAMS, IN_STREAMS, 80),
    ("n-grams, taps side by side", STREAMS + ".cu", "r - seq.row0 + j * a.apart", "r - seq.row0 + j", STREAMS, IN_STREAMS, 90),
    ("n-grams, another slot", STREAMS + ".cu", "a.state[seq.state * a.stride + STATE", "a.state[STATE", STREAMS, IN_STREAMS, 80),
    ("n-grams, the first tokens", STREAMS + ".cu", "seq.row0 + seq.n_rows - 1 - k;", "seq.row0 + k;", STREAMS, IN_STREAMS, 90),
    ("n-grams, inputs stay", STREAMS + ".cu", "ngram_input(a, seq, k + seq.n_rows, i)", "ngram_input(a, seq, k, i)", STREAMS, IN_STREAMS, 90),
    ("route, no groups", EXPERTS + ".cu", "taken = excluded_groups(a, p);", "taken = 0;", EXPERTS, IN_EXPERTS, 90),
    ("route, second best", EXPERTS + ".cu", "return each > 1 ? best + second : best;", "return best;", EXPERTS, IN_EXPERTS, 90),
    ("route, groups of the second half", EXPERTS + ".cu", "!(kept >> (lane + i * 32) & 1)", "!(kept >> lane & 1)", EXPERTS, IN_EXPERTS, 90),
]


def compile_module(nvcc, tree, module, family, folder):
    name = module.split("/")[-1]
    return subprocess.run(
        [nvcc, "-ptx", "-std=c++17", "-O3", "--fmad=false", "-I", tree, "-I", f"{tree}/lib",
         f"-gencode=arch=compute_{family},code=compute_{family}",
         *(["-DWEFT_SM90A"] if family == "90a" else []),
         tree / ENGINE / (module + ".cu"), "-o", folder / (name + ".ptx")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def first_failure(program, folder, checks):
    """Returns the first output that shows wrong kernels, or None."""
    r = subprocess.run([program, "--tiny"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                       errors="replace",
                       env={**os.environ, "WEFT_PTX": str(folder), "GPU_ONLY": checks})
    if " 0 checks" in r.stdout.splitlines()[-1]:
        sys.exit(f"no check is called {checks}")
    if r.returncode == 0:
        return None
    said = [x for x in r.stdout.splitlines() if x.startswith("ptx: ")]
    said += [x for x in r.stdout.splitlines() if not x.startswith("ok")]
    return said[0] if said else "a signal"


class Base:
    """Modules without a mistake, by family, compiled on demand."""

    def __init__(self, nvcc, folder):
        self.nvcc, self.folder = nvcc, folder
        self.good = set()

    def of(self, family, modules, tree):
        folder = self.folder / str(family)
        folder.mkdir(exist_ok=True)
        for module in modules:
            if not (folder / (module.split("/")[-1] + ".ptx")).exists():
                r = compile_module(self.nvcc, tree, module, family, folder)
                if r.returncode:
                    sys.exit(r.stdout)
        return folder


# Other modules whose kernels a check launches.
BESIDE = {
    IN_PRODUCTS: ["products/matmul", "load", "rows/rows"],
    IN_LATENT: [SHORT, WIDE, LATENT, "../ops/attention/attention_large", "../ops/attention/plan", "rows/rows"],
    IN_LOW: ["products/matmul", PRODUCTS, "load", "rows/rows"],
    IN_WIDE: [SHORT, WIDE, "../ops/attention/plan", "rows/rows"],
    IN_DELTA: [],
    IN_EXPERTS: ["products/matmul", "load", "rows/rows"],
    IN_SPARSE: ["../ops/compressed/compressed", "rows/rows"],
    IN_STREAMS: ["../ops/compressed/compressed"],
}
DEFAULT_BESIDE = [SHORT, WIDE, "../ops/attention/plan", "rows/rows", "load"]


def run_one(m, base, tree, scratch, program):
    name, file, text, mistake, module, checks, family = m
    source = tree / ENGINE / file
    plain = source.read_text()
    if text not in plain:
        sys.exit(f"{name}: {file} does not have the text any more")
    beside = [x for x in BESIDE.get(checks, DEFAULT_BESIDE) if x != module]
    folder = base.of(family, [module, *beside], tree)
    if (family, checks) not in base.good:
        said = first_failure(program, folder, checks)
        if said:
            sys.exit(f"{checks} fails without a mistake: {said}")
        base.good.add((family, checks))
    for f in folder.iterdir():
        shutil.copy(f, scratch)
    source.write_text(plain.replace(text, mistake))
    try:
        r = compile_module(base.nvcc, tree, module, family, scratch)
    finally:
        source.write_text(plain)
    if r.returncode:
        return "nvcc: " + r.stdout.splitlines()[0]
    return first_failure(program, scratch, checks)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    p.add_argument("--only")
    p.add_argument("program")
    p.add_argument("--modules", type=pathlib.Path)
    p.add_argument("--part", default="0/1")
    a = p.parse_args()
    first, step = map(int, a.part.split("/"))
    wanted = [m for m in MISTAKES if not a.only or re.search(a.only, m[0])][first::step]
    missed = 0
    with tempfile.TemporaryDirectory() as t:
        tree, scratch, good = (pathlib.Path(t) / x for x in ("tree", "scratch", "good"))
        for d in (tree, scratch, good):
            d.mkdir()
        for d in ("engine", "lib/base"):
            shutil.copytree(ROOT / d, tree / d, ignore=shutil.ignore_patterns("*.c", "*.o"))
        base = Base(a.nvcc, a.modules or good)
        for m in wanted:
            said = run_one(m, base, tree, scratch, a.program)
            missed += said is None
            print(f"{'found ' if said else 'MISSED'} {m[0]} (sm_{m[6]}): {(said or '')[:160]}", flush=True)
    print(f"{len(wanted)} mistakes, {missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
