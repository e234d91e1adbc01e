"""Ollama's client for JavaScript: models, chats, generations, vectors, an abort, errors."""
import sys

from clients import LOOKS, SCREENSHOT, Scripted, Skip, Weftd, check_encoded_once, check_looks, counting, install, node

try:
    folder = install("ollama")
    with Weftd("--max-context", "8192", "--model-name", "tiny", "--any-model-name", "no") as d, Scripted(LOOKS, "--name", "scripted", sees=True) as looks, counting() as c:
        code = node(folder, "test.mjs", d.url(), looks.url, str(SCREENSHOT), c.url())
        check_looks(looks.runs)
        check_encoded_once(c)
        sys.exit(code)
except Skip as why:
    print(f"1..0 # SKIP {why}")
