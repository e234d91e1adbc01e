#!/usr/bin/env python3
"""Tests that count_results.py counts failed tests whatever bytes they have printed."""
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).with_name("count_results.py")
RESULTS = b"""<?xml version='1.0' encoding='utf-8'?>
<testsuites><testsuite name="fuzz" tests="3">
<testcase name="first" /><testcase name="second"><failure /></testcase><testcase name="third"><skipped /></testcase>
<system-out>not ok 2 second: BYTES\n1..0 # SKIP third has no device</system-out>
</testsuite></testsuites>
"""
EXPECTED = "1 passed, 1 failed, 1 skipped"


def count(output):
    """Exit status and lines of the script for results whose failed test has printed these bytes."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as file:
        file.write(RESULTS.replace(b"BYTES", output))
        file.flush()
        done = subprocess.run([sys.executable, SCRIPT, file.name], capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines(), done.stderr


def main():
    every = bytes(b for b in range(256) if b not in b"<&")
    for output in (b"plain", b"\0\x01\x1b[31m\x7f", b"\xff\xfe\x80", b"\xed\xa0\x80", b"\xef\xbf\xbf", every):
        status, lines, error = count(output)
        assert status == 1 and lines and lines[-1] == EXPECTED, (output, lines, error)
        assert "failed   fuzz: second" in lines, (output, lines)
    empty, _, _ = count(b"plain</system-out>")  # not XML at all: no sum, and not success
    assert empty == 1


main()
