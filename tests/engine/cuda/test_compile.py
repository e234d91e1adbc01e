"""Device code of another build (Meson's option gpu-code): the object for this processor gets it, and links; an object whose
PTX is not in it is refused. A script stands in place of nvcc, and gives objects of the C compiler's. Where nvcc and a
compiler for ARM are, a kernel with a bool gets the same PTX with both hosts."""
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

COMPILE = pathlib.Path(__file__).resolve().parents[3] / "engine/cuda/compile.py"
HEADER, MACHINE_CODE = b"header of 16 B..", b"machine code of a family"
PTX, OTHER_PTX = b"PTX of the last family", b"PTX of another compiler"
SOURCE = """
__attribute__((section(".nv_fatbin"), aligned(256), used)) static const unsigned char code[] = {%s};
const void *code_of_devices(void) { return code; }
int host_code(void) { return %d; }
"""
# A host whose char is unsigned changes how the bool is loaded.
KERNEL = "__global__ void k(bool b, int *out, int i) { bool odd = i & 1; out[odd == b] = i; }"
ARM = "aarch64-linux-gnu-g++"
NVCC = """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in -o) out=$2 ;; -MF) : >"$2" ;; esac
    shift
done
cp "%s" "$out"
echo "ptxas info    : Used 40 registers"
"""


def build(folder, name, code, returns):
    """An object with @code for devices and host code that returns @returns."""
    source, made = folder / f"{name}.c", folder / f"{name}.o"
    source.write_text(SOURCE % (", ".join(map(str, code)), returns))
    subprocess.run(["cc", "-c", source, "-o", made], check=True)
    return made


def compile_kernels(folder, made, code):
    """Runs compile.py with a compiler that makes @made; the device code comes from the object @code, or "-"."""
    nvcc, out = folder / "nvcc", folder / "out.o"
    nvcc.write_text(NVCC % made)
    nvcc.chmod(0o755)
    command = [sys.executable, COMPILE, nvcc, out, folder / "out.ptxas", "-", folder / "out.d", code, "x.cu"]
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "CCACHE_DISABLE": "1"}), out


def run_linked(folder, obj):
    """What a program with this object says of its device code and of its host code."""
    (folder / "main.c").write_text("#include <stdio.h>\nextern const char *code_of_devices(void); extern int host_code(void);\n"
                                   'int main(void) { printf("%.90s|%d", code_of_devices(), host_code()); }\n')
    subprocess.run(["cc", folder / "main.c", obj, "-o", folder / "main"], check=True)
    return subprocess.run([folder / "main"], capture_output=True, text=True).stdout


def nvcc_toolkit(nvcc):
    """The folder of the toolkit, which its compiler for another machine does not look into by itself."""
    said = subprocess.run([nvcc, "--dryrun", "-x", "cu", "-c", "/dev/null", "-o", "/dev/null"], capture_output=True, text=True).stderr
    top = re.search(r"TOP=(.*)", said)
    return [f"-isystem={top[1].strip()}/include", f"-isystem={top[1].strip()}/include/cccl"] if top else []


def check_hosts(folder):
    """With the options that a build for ARM has, the device code is that for x86-64."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if not nvcc or not shutil.which(ARM):
        print(f"nvcc or {ARM} is not installed: device code of both hosts is not compared")
        return
    options = re.search(r"== 'aarch64'\n *cuda_args \+= \[(.*)\]", (COMPILE.parent / "meson.build").read_text())[1]
    (folder / "k.cu").write_text(KERNEL)
    arm = ["-ccbin", ARM, *nvcc_toolkit(nvcc), *re.findall(r"'(.*?)'", options)]
    for name, host in ("x86", []), ("arm", arm):
        subprocess.run([nvcc, *host, "-arch=compute_90", "-ptx", "k.cu", "-o", f"{name}.ptx"], cwd=folder, check=True)
    assert (folder / "x86.ptx").read_bytes() == (folder / "arm.ptx").read_bytes()


def main():
    with tempfile.TemporaryDirectory() as where:
        folder = pathlib.Path(where)
        whole = HEADER + MACHINE_CODE + PTX
        other = build(folder, "other", whole + b"\0", 1)
        (folder / "other.ptxas").write_text("report of the other build")
        own = build(folder, "own", HEADER + PTX, 2)
        done, out = compile_kernels(folder, own, "-")
        assert done.returncode == 0 and out.read_bytes() == own.read_bytes(), done
        assert "40 registers" in (folder / "out.ptxas").read_text()
        done, out = compile_kernels(folder, own, other)
        assert done.returncode == 0 and not done.stdout, done
        assert run_linked(folder, out) == f"{whole.decode()}|2"
        assert (folder / "out.ptxas").read_text() == "report of the other build"
        done, out = compile_kernels(folder, build(folder, "different", HEADER + OTHER_PTX, 2), other)
        assert done.returncode == 1 and "the device code differs" in done.stderr, done
        none = folder / "none.o"
        none.write_bytes(own.read_bytes().replace(b".nv_fatbin\0", b".nv_nothin\0"))
        assert struct.unpack_from("<H", none.read_bytes(), 0x3C)[0] > 4
        done, out = compile_kernels(folder, none, other)
        assert done.returncode == 1 and "no section" in done.stderr, done
        check_hosts(folder)


main()
