#!/usr/bin/env python3
"""Compiles one file of kernels and keeps what ptxas says of registers and spills.

usage: compile.py NVCC OUT.o OUT.ptxas OUT.d SOURCE.cu NVCC_ARGUMENT...
The report is read by tests/engine/cuda/check_kernels.py. Through ccache where it is found: by the
files that nvcc names, as preprocessing once does not show what each family compiles.
"""
import os
import shutil
import subprocess
import sys

nvcc, obj, report, depfile, source = sys.argv[1:6]
ccache = shutil.which("ccache")
command = [*([ccache] if ccache else []), nvcc, "-c", source, "-o", obj, "-MD", "-MF", depfile, "-Xptxas", "-v",
           "-I", os.path.relpath(os.path.join(os.path.dirname(__file__), "../..")), *sys.argv[6:]]
result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                        env={**os.environ, "CCACHE_DEPEND": "1"})
noise = ("ptxas info", "bytes stack frame")
rest = [line for line in result.stdout.splitlines() if not any(n in line for n in noise)]
if result.returncode or rest:
    print("\n".join(rest if rest else result.stdout.splitlines()))
if result.returncode == 0:
    with open(report, "w") as f:
        f.write(result.stdout)
sys.exit(result.returncode)
