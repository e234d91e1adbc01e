"""Says which symbols of a newer glibc the programs and libraries below a folder need, and fails if there are any.
Libraries beside glibc's must be in the folder themselves, and no file may export a function that it takes from glibc by
the same name: the loader would find the file's own.
usage: check_glibc.py VERSION FOLDER"""
import pathlib
import re
import subprocess
import sys

GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2",
         "ld-linux-aarch64.so.1"}


def number(version):
    return tuple(int(part) for part in version.split("."))


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def faults(path, limit, names):
    said = subprocess.run(["readelf", "--wide", "--dynamic", "--dyn-syms", path], check=True, capture_output=True, text=True).stdout
    for library in re.findall(r"\(NEEDED\).*\[(.*)\]", said):
        if library not in GLIBC | names:
            yield f"{path}: needs {library}, which is not in the folder"
    needed, own = set(), set()
    # Number, address, size, type, binding, visibility, section (UND: of another file), name@version.
    for kind, section, symbol in re.findall(r"^\s*\d+: \S+\s+\S+ (\w+)\s+\w+\s+\w+\s+(\w+) (\S+)", said, re.M):
        name, _, version = symbol.replace("@@", "@").partition("@")
        if section != "UND":
            own |= {name} if kind in ("FUNC", "IFUNC") else set()
        elif version.startswith("GLIBC_"):
            needed.add(name)
            if version != "GLIBC_PRIVATE" and number(version[6:]) > number(limit):
                yield f"{path}: needs {name} of glibc {version[6:]}"
    for name in sorted(needed & own):
        yield f"{path}: exports {name}, which it takes from glibc"


def main(limit, folder):
    files = [path for path in sorted(pathlib.Path(folder).rglob("*")) if path.is_file() and is_elf(path)]
    names = {path.name for path in files}
    found = [fault for path in files for fault in faults(path, limit, names)]
    print("\n".join(found) or f"{len(files)} files need no newer glibc than {limit}")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
