"""Answers against the types of OpenAI's and Anthropic's SDKs, by the TypeScript compiler."""
import sys

from clients import SOURCE, Scripted, Skip, install, node

SCRIPT = """\
=== results=0 has=How warm is it?
<tool_call>
{"name": "tool_search_tool_bm25", "arguments": {"query": "weather"}}
</tool_call>
=== results=0 has=Weather in Ghent?
<tool_call>
{"name": "weather", "arguments": {"city": "Ghent"}}
</tool_call>
=== has=Weather there?
<tool_call>
{"name": "sky__weather", "arguments": {"city": "Ghent"}}
</tool_call>
=== has=Weather at once?
<tool_call>
{"name": "weather", "arguments": {"city": "Ghent"}}
</tool_call>
<tool_call>
{"name": "weather", "arguments": {"city": "Bruges"}}
</tool_call>
=== has=Patch it.
<tool_call>
{"name": "patch", "arguments": {"input": "a line"}}
</tool_call>
=== has=Run it.
<tool_call>
{"name": "local_shell", "arguments": {"command": ["ls"]}}
</tool_call>
=== has=As JSON.
{"a": 1}
=== has=Think first.
<think>
I think.
</think>

Therefore I am.
===
Hello, it is a fine day.
"""

try:
    folder = install("types")
    with Scripted(SCRIPT, "--name", "scripted", template=(SOURCE / "thinking.jinja").read_text()) as s:
        sys.exit(node(folder, "test.mjs", s.url))
except Skip as why:
    print(f"1..0 # SKIP {why}")
