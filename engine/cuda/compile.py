#!/usr/bin/env python3
"""Compiles one file of kernels and keeps the report of ptxas on registers and spills.

usage: compile.py NVCC OUT.o OUT.ptxas OUT.ptx|- OUT.d CODE.o|- SOURCE.cu NVCC_ARGUMENT...
The report is read by tests/engine/cuda/check_kernels.py. OUT.ptx gets the PTX of sm_90a, or else of sm_90, from the
object (--no-compress), without debug information, for the interpreter of tests/engine/ptx. It uses ccache if there is
one, with the files that nvcc lists, because one preprocessor run does not show the code of each family.

CODE.o is the object of the same source for another processor: the code of all devices and the report are taken from it,
and only PTX and host code are compiled here. That PTX must be in CODE.o byte for byte, else the two compilers do not
agree about the device code.
"""
import os
import re
import shutil
import struct
import subprocess
import sys

nvcc, obj, report, ptx, depfile, code, source = sys.argv[1:8]
ccache = shutil.which("ccache")
command = [*([ccache] if ccache else []), nvcc, "-c", source, "-o", obj, "-MD", "-MF", depfile, "-Xptxas", "-v",
           *(f"-I{os.path.relpath(os.path.join(os.path.dirname(__file__), top))}" for top in ("../..", "../../lib")), *sys.argv[8:]]
FAT = b".nv_fatbin"  # the section of an object with the code of all devices
FAT_HEADER = 16  # bytes in front of its first entry


def ptx_in(data):
    """Returns the PTX from which the machine code was compiled, as nvcc -ptx writes it."""
    found = {m[1]: m[0] for m in re.finditer(rb"\.version [^\0]*?\n\.target (sm_90a?)\b[^\0]*", data)}
    text = found.get(b"sm_90a") or found[b"sm_90"]
    return re.sub(rb"^\s*\.(loc|file)\b.*\n", b"", re.split(rb"\n\s*\.section", text)[0] + b"\n", flags=re.M)


def fat_section(data):
    """Returns where the header of FAT is in an ELF object, and the section's offset and size."""
    at, = struct.unpack_from("<Q", data, 0x28)
    each, n, i_names = struct.unpack_from("<HHH", data, 0x3A)
    names, = struct.unpack_from("<Q", data, at + i_names * each + 24)
    for header in range(at, at + n * each, each):
        name = names + struct.unpack_from("<I", data, header)[0]
        if data[name : data.index(b"\0", name)] == FAT:
            return header, *struct.unpack_from("<QQ", data, header + 24)
    raise SystemExit(f"{obj}: no section {FAT.decode()}")


def with_code_of(data, other):
    """Returns object @data with the device code of object @other, which must have that of @data in it."""
    _, at, size = fat_section(other)
    fat = other[at : at + size]
    header, at, size = fat_section(data)
    if data[at + FAT_HEADER : at + size] not in fat:
        raise SystemExit(f"{source}: the device code differs from that in {code}")
    data += bytes(-len(data) % 256)  # the section's alignment
    moved = struct.pack("<QQ", len(data), len(fat))
    return data[: header + 24] + moved + data[header + 40 :] + fat


result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                        env={**os.environ, "CCACHE_DEPEND": "1"})
noise = ("ptxas info", "bytes stack frame")
rest = [line for line in result.stdout.splitlines() if not any(n in line for n in noise)]
if result.returncode or rest:
    print("\n".join(rest if rest else result.stdout.splitlines()))
if result.returncode == 0:
    with open(obj, "rb") as f:
        made = f.read()
    if code != "-":
        with open(code, "rb") as f:
            made = with_code_of(made, f.read())
        with open(obj, "wb") as f:
            f.write(made)
        shutil.copyfile(code.removesuffix(".o") + ".ptxas", report)
    else:
        with open(report, "w") as f:
            f.write(result.stdout)
    if ptx != "-":
        with open(ptx, "wb") as f:
            f.write(ptx_in(made))
sys.exit(result.returncode)
