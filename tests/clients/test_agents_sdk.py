"""OpenAI's Agents SDK: tools, streams, handoffs, typed outputs, conversations kept by the service or by the client."""
import sys

from clients import LOOKS, SCREENSHOT, SOURCE, WEATHER, Scripted, Skip, check_encoded_once, check_looks, counting, install, node

SCRIPT = """\
=== has=Write a summary of this conversation
The user wanted a greeting: a fine day.
=== has=The user wanted a greeting: a fine day.
It is in the summary.
=== has=What did you say?
I said hello.
=== has=Say hello.
Hello, it is a fine day.
=== has=As an object, please.
{"city": "Ghent", "degrees": 12}
=== results=0 has=Look and write.
<tool_call>
{"name": "shell", "arguments": {"commands": ["ls"]}}
</tool_call>
=== results=1 has=warp.txt
<tool_call>
{"name": "apply_patch", "arguments": {"type": "create_file", "path": "weft.txt", "diff": "+one\\n+two"}}
</tool_call>
=== results=2 has=Look and write.
<tool_call>
{"name": "apply_patch", "arguments": {"type": "update_file", "path": "weft.txt", "diff": "@@\\n one\\n-two\\n+three"}}
</tool_call>
=== results=3 has=Look and write.
Written.
=== results=0 has=A poem, please.
<tool_call>
{"name": "transfer_to_Poet", "arguments": {}}
</tool_call>
=== has=A poem, please.
Warp and weft.
=== results=0 has=Weather at once?
<tool_call>
{"name": "weather", "arguments": {"city": "Ghent"}}
</tool_call>
<tool_call>
{"name": "weather", "arguments": {"city": "Bruges"}}
</tool_call>
=== results=2 has=Weather at once?
Done.
""" + WEATHER

REASONING = """\
=== results=0
<think>
I look.
</think>

<tool_call>
{"name": "weather", "arguments": {"city": "Ghent"}}
</tool_call>
=== results=1 has=I look.
<think>
I think.
</think>

Therefore I am.
=== results=1
I have forgotten.
"""

try:
    folder = install("agents-sdk")
    template = (SOURCE / "thinking.jinja").read_text()
    with Scripted(SCRIPT) as s, Scripted(REASONING, template=template) as r, Scripted(LOOKS, sees=True) as looks, counting() as c:
        code = node(folder, "test.mjs", s.url, r.url, looks.url, str(SCREENSHOT), c.url())
        check_looks(looks.runs)
        check_encoded_once(c)
        sys.exit(code)
except Skip as why:
    print(f"1..0 # SKIP {why}")
