"""Anthropic's official SDK: messages, streams, thoughts, tools, counts, errors, and what Claude Code asks."""
import os
import sys
import tempfile

from clients import LOOKS, SCREENSHOT, SOURCE, WEATHER, Scripted, Skip, Weftd, check_encoded_once, check_looks, counting, install, node

SCRIPT = """\
=== has=Well,
hello again.
=== has=Say hello.
Hello, it is a fine day.
=== fail=503 has=Fail now.
=== fail=429 has=Refuse now.
=== fail=500 has=Break now.
=== has=And?
So I was.
=== has=Think first.
<think>
I think.
</think>

Therefore I am.
=== results=0 has=Weather at once?
<tool_call>
{"name": "weather", "arguments": {"city": "Ghent"}}
</tool_call>
<tool_call>
{"name": "weather", "arguments": {"city": "Bruges \\"\\u00e9\\""}}
</tool_call>
=== results=2 has=Error: 12 in Bruges
Done.
""" + WEATHER + """\
=== results=0 has=How warm is it?
<tool_call>
{"name": "tool_search_tool_regex", "arguments": {"pattern": "weather"}}
</tool_call>
=== results=1 has=How warm is it?
<tool_call>
{"name": "weather", "arguments": {"city": "Ghent"}}
</tool_call>
=== results=2 has=How warm is it?
12 degrees.
=== results=0 has=Look at the loom.
<think>
A loom. Two threads?
</think>

I pull both.
<tool_call>
{"name": "long", "arguments": {"option_1": "a", "option_59": "b"}}
</tool_call>
<tool_call>
{"name": "long", "arguments": {}}
</tool_call>
=== results=2 has=Look at the loom.
<tool_call>
{"name": "long", "arguments": {"option_2": "line\\nline"}}
</tool_call>
=== results=3 has=Look at the loom.
<think>
One more.
</think>

<tool_call>
{"name": "weather", "arguments": {"city": "Ghent"}}
</tool_call>
=== results=4 has=Look at the loom.
It is threaded.
"""

try:
    folder = install("anthropic-sdk")
    template = (SOURCE / "thinking.jinja").read_text()
    with tempfile.TemporaryDirectory(prefix="weft-keys-") as keys:
        path = os.path.join(keys, "keys")
        with open(path, "w") as file:
            file.write("one:sk-one\n")
        with (
            Scripted(SCRIPT, "--name", "scripted", template=template) as s,
            Scripted(SCRIPT, "--api-keys", path) as k,
            Scripted(LOOKS, sees=True) as looks,
            Weftd("--max-context", "8192") as d,
            counting() as c,
        ):
            code = node(folder, "test.mjs", s.url, k.url, d.url(), looks.url, str(SCREENSHOT), c.url())
            check_looks(looks.runs)
            check_encoded_once(c)
            for r in s.runs:
                assert "x-anthropic-billing-header" not in r["prompt"]
            sys.exit(code)
except Skip as why:
    print(f"1..0 # SKIP {why}")
