"""Ollama's client for JavaScript: models, chats, generations, vectors, an abort, errors."""
import sys

from clients import Skip, Weftd, install, node

try:
    folder = install("ollama")
    with Weftd("--max-context", "8192", "--model-name", "tiny", "--any-model-name", "no") as d:
        sys.exit(node(folder, "test.mjs", d.url()))
except Skip as why:
    print(f"1..0 # SKIP {why}")
