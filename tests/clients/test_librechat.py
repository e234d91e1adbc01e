"""LibreChat's agents, the library with which its server asks the models of a custom endpoint: streams and tools."""
import sys

from clients import Scripted, Skip, install, node

SCRIPT = """\
=== has=Say hello.
Hello, it is a fine day.
=== results=0 has=Weather in Ghent
<tool_call>
{"name": "weather", "arguments": {"city": "Ghent"}}
</tool_call>
=== results=1 has=Weather in Ghent
And now the other.
<tool_call>
{"name": "weather", "arguments": {"city": "Bruges"}}
</tool_call>
=== results=2 has=Weather in Ghent
Both have 12 degrees.
"""

try:
    folder = install("librechat")
    with Scripted(SCRIPT, "--name", "scripted") as s:
        sys.exit(node(folder, "test.mjs", s.url))
except Skip as why:
    print(f"1..0 # SKIP {why}")
