#!/usr/bin/env python3
"""Compiles one file of kernels and keeps the report of ptxas on registers and spills.

usage: compile.py NVCC OUT.o OUT.ptxas OUT.ptx|- OUT.d SOURCE.cu NVCC_ARGUMENT...
The report is read by tests/engine/cuda/check_kernels.py. OUT.ptx gets the PTX of sm_90a, or else of sm_90, from the
object (--no-compress), without debug information, for the interpreter of tests/engine/ptx. It uses ccache if there is
one, with the files that nvcc lists, because one preprocessor run does not show the code of each family.
"""
import os
import re
import shutil
import subprocess
import sys

nvcc, obj, report, ptx, depfile, source = sys.argv[1:7]
ccache = shutil.which("ccache")
command = [*([ccache] if ccache else []), nvcc, "-c", source, "-o", obj, "-MD", "-MF", depfile, "-Xptxas", "-v",
           *(f"-I{os.path.relpath(os.path.join(os.path.dirname(__file__), top))}" for top in ("../..", "../../lib")), *sys.argv[7:]]


def ptx_in(data):
    """Returns the PTX from which the machine code was compiled, as nvcc -ptx writes it."""
    found = {m[1]: m[0] for m in re.finditer(rb"\.version [^\0]*?\n\.target (sm_90a?)\b[^\0]*", data)}
    text = found.get(b"sm_90a") or found[b"sm_90"]
    return re.sub(rb"^\s*\.(loc|file)\b.*\n", b"", re.split(rb"\n\s*\.section", text)[0] + b"\n", flags=re.M)


result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                        env={**os.environ, "CCACHE_DEPEND": "1"})
noise = ("ptxas info", "bytes stack frame")
rest = [line for line in result.stdout.splitlines() if not any(n in line for n in noise)]
if result.returncode or rest:
    print("\n".join(rest if rest else result.stdout.splitlines()))
if result.returncode == 0:
    with open(report, "w") as f:
        f.write(result.stdout)
    if ptx != "-":
        with open(obj, "rb") as o, open(ptx, "wb") as f:
            f.write(ptx_in(o.read()))
sys.exit(result.returncode)
