#!/usr/bin/env python3
"""Quickstart's build differs from that of the tests in its options (-Og, no warnings, no tests, kernels of one instruction set).
What must hold there: it can be configured, its targets exist, and their sources compile where macros, instruction sets or
folders of headers differ from those of the build of the tests. No code is generated, which would take most of a build's time,
so nothing is linked.

usage: check_quickstart_build.py SOURCE BUILD
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile


def options(source):
    """The options of quickstart's `meson setup`, and the targets that it builds. Its variables (cards) are left out."""
    text = (source / "quickstart").read_text()
    shared = re.search(r"quick_options=\(([^)]*)\)", (source / "packaging/setup/quick-options.sh").read_text())
    setup = re.search(r"meson setup build ([^\n]*)", text)
    targets = re.search(r'local targets="([^"]*)"', text)
    return shlex.split(shared[1]) + [w for w in shlex.split(setup[1]) if "$" not in w], targets[1].split()


def run(command, **kwargs):
    p = subprocess.run(command, capture_output=True, text=True, **kwargs)
    if p.returncode:
        sys.exit(f"{' '.join(map(str, command))[:400]}\n{(p.stdout + p.stderr)[-4000:]}")
    return p.stdout


def seen_by_sources(entry):
    """The file, and the arguments that change what the compiler reads in it."""
    words = shlex.split(entry["command"])
    file = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
    return file, frozenset(w for w in words if w.startswith(("-D", "-U", "-m", "-std", "-include")))


def checked(entry):
    """Compiles a file as far as code would be generated. Returns what the compiler says, or None."""
    words = shlex.split(entry["command"])
    words = words[1:] if os.path.basename(words[0]) == "ccache" else words
    drop = {i + k for i, w in enumerate(words) for k in range(2) if w in ("-o", "-MF", "-MQ")}
    words = [w for i, w in enumerate(words) if i not in drop and w != "-MD"]
    p = subprocess.run(words + ["-fsyntax-only"], capture_output=True, text=True, cwd=entry["directory"])
    return f"{entry['file']}:\n{p.stderr[:2000]}" if p.returncode else None


def main():
    source, of_tests = map(pathlib.Path, sys.argv[1:])
    known = {seen_by_sources(e) for e in json.loads((of_tests / "compile_commands.json").read_text())}
    with tempfile.TemporaryDirectory() as build:
        setup, targets = options(source)
        assert "-Doptimization=g" in setup and "-Disa=machine" in setup and "weftd" in targets, "quickstart's words have changed"
        run(["meson", "setup", build, source, *setup, "-Dcuda=disabled"])
        inputs = set(run(["ninja", "-C", build, "-t", "inputs", *targets]).splitlines())
        made = [i for i in inputs if i.endswith((".h", ".inc")) and i[0] != "/" and not i.startswith("..")]
        run(["ninja", "-C", build, *made])
        # Without what is generated (web/web_files.c: the page's files as numbers).
        entries = [e for e in json.loads(run(["ninja", "-C", build, "-t", "compdb"]))
                   if e["output"] in inputs and e["file"].endswith(".c") and (pathlib.Path(build) / e["file"]).exists()]
        assert len(entries) > 200, f"only {len(entries)} files"
        n = len(entries)
        entries = [e for e in entries if seen_by_sources(e) not in known]
        assert 10 < len(entries) < n / 2, f"{len(entries)} of {n} files differ"
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            wrong = [w for w in pool.map(checked, entries) if w]
        print(f"{len(entries)} of {n} files")
        sys.exit("\n".join(wrong[:5]) if wrong else 0)


main()
