#!/usr/bin/env python3
"""Every C and CUDA file is as clang-format 14 writes it. Exit 77 (skipped) without that version.

usage: check_format.py SOURCE_ROOT
"""
import pathlib
import re
import shutil
import subprocess
import sys

MAJOR = "14"
FOLDERS = "lib kvpager engine scheduler api daemon cmd tests".split()


def find_tool():
    for name in (f"clang-format-{MAJOR}", "clang-format"):
        path = shutil.which(name)
        if path:
            version = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
            if re.search(rf"version {MAJOR}\.", version):
                return path
    return None


def main():
    root = pathlib.Path(sys.argv[1])
    tool = find_tool()
    if not tool:
        print(f"clang-format {MAJOR} is not installed")
        return 77
    files = [
        str(f)
        for folder in FOLDERS
        for f in sorted((root / folder).rglob("*"))
        if f.suffix in {".c", ".h", ".cu", ".cuh"}
    ]
    return subprocess.run([tool, "--dry-run", "-Werror", "--style=file", *files], cwd=root).returncode


sys.exit(main())
