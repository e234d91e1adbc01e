#!/usr/bin/env python3
"""Compares the user CPU seconds of weft and llama.cpp for the same work with one thread, on a machine that others use.

usage: compare_cpu.py --llama DIR --models DIR [--build DIR] [--shape NAME] [--only FORMAT/WORK,...] [--limit SECONDS]
                      [--json FILE] [--make]

DIR of --llama holds llama-bench and llama-batched-bench; --models is a folder for files with random weights, which
weft-synth makes there where they are missing; --make makes them and ends. FORMAT is one for both programs, or
OURS:THEIRS, where OURS may be a folder of safetensors: fp8 (scales for 128 x 128) or awq (4 bits, groups of 128). Work:
prompt (512 tokens), decode (64 tokens of one stream), eight (32 tokens of each of 8 sequences). A measurement is the
difference between a run with LOTS + 1 lots of work and a run with one lot, divided by LOTS, so that loading and warming
up do not count; loads of folders take seconds that vary. Both programs take turns, and who goes first alternates.
Rounds over all rows follow each other until the next measurement would end after the limit. One thread does not spin
while it waits for another. At the end a table in Markdown has the medians, the ratio of each pair, and the median ratio in bytes of stored weights (without the table of tokens) a second.
"""
import argparse
import json
import math
import pathlib
import random
import resource
import statistics
import struct
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
import hf_folder  # noqa: E402
from servers import commit, cpu_name  # noqa: E402

WORK = {"prompt": "prompt of 512 tokens", "decode": "64 tokens of one stream", "eight": "32 tokens of each of 8 streams"}
WEFT = {"prompt": ["-p", 512, "-n", 0], "decode": ["-p", 0, "-n", 64, "--batch", 1], "eight": ["-p", 0, "-n", 32, "--batch", 8]}
LLAMA = {"prompt": ["-p", 512, "-n", 0], "decode": ["-p", 0, "-n", 64]}
LOTS = 3
ROWS = "F16/prompt,F16/decode,Q4_K_M/prompt,Q4_K_M/decode,Q4_K_M/eight"


def fp8(rng, n_rows, n_in):
    numbers = bytes(c - (c % 128 == 127) for c in range(256))  # codes without those that are no number
    blocks = [(n_rows + 127) // 128, (n_in + 127) // 128]
    return {"weight": ("F8_E4M3", [n_rows, n_in], rng.randbytes(n_rows * n_in).translate(numbers)),
            "weight_scale_inv": ("F32", blocks, struct.pack("<f", 1.1e-4) * (blocks[0] * blocks[1]))}


def awq(rng, n_rows, n_in):
    groups = n_in // 128
    return {"qweight": ("I32", [n_in, n_rows // 8], rng.randbytes(n_in * n_rows // 2)),
            "qzeros": ("I32", [groups, n_rows // 8], rng.randbytes(groups * n_rows // 2)),
            "scales": ("F16", [groups, n_rows], struct.pack("<e", 0.003) * (groups * n_rows))}


FOLDERS = {"fp8": (fp8, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
           "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True})}


def make_folder(form, file, folder):
    """Writes the folder of the BF16 model @file with other matrices in its layers, those of @form."""
    quantise, config = FOLDERS[form]
    rng, tensors = random.Random(form), {}
    for name, tensor in hf_folder.tensors_of(hf_folder.Gguf(file)).items():
        if not name.endswith("proj.weight"):
            tensors[name] = tensor
            continue
        for end, part in quantise(rng, *tensor[1]).items():
            tensors[name[:-len("weight")] + end] = part
    hf_folder.write_folder(file, folder, 1, tensors, {"quantization_config": config})


def run(command):
    """Returns the user CPU seconds of a program that succeeds. System time is left out: mapping a model's file took 0.2
    to 2.6 s of it from run to run, more than some of the work."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit("%s: exit status %d: %s" % (command[0], done.returncode, done.stderr[-500:]))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime


def model(a, format):
    stem = a.models / f"{a.shape.replace(',', '-')}-{format}"  # llama-bench takes a list
    if format in FOLDERS:
        if not (stem / "config.json").exists():
            make_folder(format, model(a, "BF16"), stem)
        return stem
    path = pathlib.Path(f"{stem}.gguf")
    if not path.exists():
        run([a.build / "weft-synth", "--shape", a.shape, "--format", format, "-o", path])
    return path


def sides(row):
    """Returns weft's format, llama.cpp's, and the work."""
    formats, work = row.split("/")
    ours, _, theirs = formats.partition(":")
    return ours, theirs or ours, work


def stored(a, format):
    """Returns the bytes of a model without its table of tokens, of which a step reads a row. Folders have it in BF16."""
    n = math.prod(hf_folder.Gguf(model(a, "BF16")).tensors["token_embd.weight"][1])
    path = model(a, format)
    if format in FOLDERS:
        path = path / "model.safetensors"
    return path.stat().st_size - n * {"Q4_0": 4.5, "Q4_K_M": 4.5}.get(format, 16) / 8


def weft(a, path, work, lots):
    command = [a.build / "weft-bench", "engine", "--model", path, "--backend", "cpu", "--threads", 1, "--no-bandwidth", "--reps", lots]
    return run([*command, *WEFT[work]])


def llama(a, path, work, lots):
    if work == "eight":
        command = [a.llama / "llama-batched-bench", "-t", 1, "-tb", 1, "-c", 4096, "-npp", 1, "-npl", 8, "-ntg", 32 * lots]
        return run([*command, "-m", path])
    return run([a.llama / "llama-bench", "-m", path, "-t", 1, "-r", lots, *LLAMA[work]])


def pair(a, row, first):
    """Returns the CPU seconds of one lot: weft's, llama.cpp's. @first: the program that begins."""
    ours, theirs, work = sides(row)
    paths, seconds = {weft: model(a, ours), llama: model(a, theirs)}, {}
    for program in (first, llama if first is weft else weft):
        more = program(a, paths[program], work, 1 + LOTS) - program(a, paths[program], work, 1)
        seconds[program] = more / LOTS
    return seconds[weft], seconds[llama]


def measure(a, rows):
    """Returns {row: [(weft's seconds, llama.cpp's), ...]}."""
    pairs, takes, begin = {row: [] for row in rows}, {}, time.monotonic()
    for i in range(100):
        for row in rows:
            at = time.monotonic()
            if at - begin + takes.get(row, 0) > a.limit:
                return pairs
            ours, theirs = pair(a, row, weft if i % 2 == 0 else llama)
            takes[row] = time.monotonic() - at
            if ours <= 0 or theirs <= 0:
                print(f"{row}: too short to be measured", flush=True)
                continue
            pairs[row].append((round(ours, 3), round(theirs, 3)))
            print(f"{row}: weft {ours:.2f} s, llama.cpp {theirs:.2f} s, {theirs / ours:.2f}", flush=True)
    return pairs


def table(a, pairs):
    yield "| weft | llama.cpp | work | weft, user s | llama.cpp, user s | median ratio | per byte | ratios |"
    yield "|---|---|---|---|---|---|---|---|"
    for row, found in pairs.items():
        ours, theirs, work = sides(row)
        begin = f"| {ours} | {theirs} | {WORK[work]} "
        if not found:
            yield begin + "| not measured | | | | |"
            continue
        seconds = [statistics.median(side) for side in zip(*found)]
        ratios = [t / w for w, t in found]
        middle = statistics.median(ratios)
        bytes_ratio = stored(a, ours) / stored(a, theirs) if ours != theirs else 1
        yield (begin + f"| {seconds[0]:.2f} | {seconds[1]:.2f} | {middle:.2f} | {middle * bytes_ratio:.2f} | "
               + ", ".join(f"{r:.2f}" for r in ratios) + " |")


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--llama", type=pathlib.Path)
    p.add_argument("--models", type=pathlib.Path, required=True)
    p.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    p.add_argument("--shape", default="qwen3-0.6b")
    p.add_argument("--only", default=ROWS)
    p.add_argument("--limit", type=float, default=480)
    p.add_argument("--json", type=pathlib.Path)
    p.add_argument("--make", action="store_true")
    a = p.parse_args()
    a.models.mkdir(parents=True, exist_ok=True)
    rows = a.only.split(",")
    for row in rows:
        for format in sides(row)[:2]:
            model(a, format)
    if a.make:
        return
    pairs = measure(a, rows)
    print("\n".join(["", *table(a, pairs)]))
    if a.json:
        result = {"date": time.strftime("%Y-%m-%d"), "commit": commit(), "cpu": cpu_name(), "shape": a.shape,
                  "unit": "user seconds on one thread: weft, llama.cpp", "rows": pairs}
        a.json.write_text(json.dumps(result, indent=1) + "\n")


main()
