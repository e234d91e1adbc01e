"""LibreChat's agents, the library with which its server asks the models of a custom endpoint: streams and tools."""
import sys

from clients import WEATHER, Scripted, Skip, install, node

SCRIPT = """\
=== has=Say hello.
Hello, it is a fine day.
""" + WEATHER

try:
    folder = install("librechat")
    with Scripted(SCRIPT, "--name", "scripted") as s:
        sys.exit(node(folder, "test.mjs", s.url))
except Skip as why:
    print(f"1..0 # SKIP {why}")
