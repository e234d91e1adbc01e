#!/usr/bin/env python3
"""The static probes in the ELF notes of weftd are those of the page, with as many arguments.

usage: check_probes.py WEFTD PAGE yes|no     no: the build has none, and neither may the notes
"""
import re
import shutil
import subprocess
import sys

SKIP = 77


def in_notes(program):
    """{name: numbers of arguments} of provider weft; a probe may stand in several places."""
    text = subprocess.run(["readelf", "-n", program], capture_output=True, text=True, check=True, env={"LC_ALL": "C"}).stdout
    found = {}
    for name, arguments in re.findall(r"Provider: weft\n\s+Name: (\S+)\n.*\n\s+Arguments: (.*)", text):
        found.setdefault(name, set()).add(arguments.count("@"))  # size@place, in which spaces may be: -4@[x19, 8]
    return found


def in_page(page):
    with open(page) as file:
        rows = re.findall(r"^\| `weft:(\w+)` \|[^|]*\| (.*) \|$", file.read(), re.M)
    return {name: {len(arguments.split(", "))} for name, arguments in rows}


def main():
    program, page, has_probes = sys.argv[1:]
    if not shutil.which("readelf"):
        print("there is no readelf")
        return SKIP
    notes = in_notes(program)
    if has_probes == "no":
        assert not notes, notes
        print("built without <sys/sdt.h>")
        return SKIP
    assert len(notes) > 5 and notes == in_page(page), f"notes {notes}, page {in_page(page)}"
    return 0


sys.exit(main())
