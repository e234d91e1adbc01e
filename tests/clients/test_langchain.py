"""LangChain: chats, streams, tools, structured output, completions, embeddings."""
import sys

from clients import LOOKS, SCREENSHOT, WEATHER, Scripted, Skip, Weftd, check_encoded_once, check_looks, counting, install, node

SCRIPT = """\
=== has=Say goodbye.
Goodbye.
=== has=Say hello.
Hello, it is a fine day.
""" + WEATHER

try:
    folder = install("langchain")
    with (
        Scripted(SCRIPT, "--name", "scripted") as s,
        Scripted(LOOKS, "--name", "scripted", sees=True) as looks,
        Weftd("--max-context", "8192", "--model-name", "default", "--any-model-name", "no") as d,
        counting() as c,
    ):
        code = node(folder, "test.mjs", s.url, d.url(), looks.url, str(SCREENSHOT), c.url())
        check_looks(looks.runs)
        check_encoded_once(c, n_dialects=3)
        sys.exit(code)
except Skip as why:
    print(f"1..0 # SKIP {why}")
