#!/usr/bin/env python3
"""The units are valid for systemd, and the service is exposed at most 1.5. Exit 77 without systemd-analyze.

usage: check_units.py BUILT_SERVICE SOURCE_FOLDER
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

EXPOSURE_MAX = 1.5


def run(*command, **environment):
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    return result.returncode, result.stdout + result.stderr


def main():
    if not shutil.which("systemd-analyze"):
        print("systemd-analyze is not installed")
        return 77
    service, source = map(pathlib.Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        units = pathlib.Path(folder)
        # Verifying asks for the program to exist.
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", service.read_text(), flags=re.M)
        (units / "weftd.service").write_text(text)
        others = ("weftd.socket", "weftd-admin.socket", "weftd-device.service")
        for name in others:
            shutil.copy(source / name, units)
        paths = [str(units / n) for n in ("weftd.service", *others)]
        code, said = run("systemd-analyze", "verify", "--man=no", *paths, SYSTEMD_UNIT_PATH=f"{folder}:")
        ours = [line for line in said.splitlines() if "weft" in line]
        print("verify:", code, *ours, sep="\n  ")
        if code or ours:
            return 1
        code, said = run("systemd-analyze", "security", "--offline=true", paths[0])
        exposure = re.search(r"exposure level for \S+: ([0-9.]+)", said)
        print(exposure.group(0) if exposure else said)
        return 0 if exposure and float(exposure.group(1)) <= EXPOSURE_MAX else 1


sys.exit(main())
