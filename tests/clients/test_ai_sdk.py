"""The AI SDK of Vercel: texts, streams, tools, objects, embeddings."""
import sys

from clients import LOOKS, SCREENSHOT, WEATHER, Scripted, Skip, Weftd, check_encoded_once, check_looks, counting, install, node

SCRIPT = """\
=== has=Say hello.
Hello, it is a fine day.
=== fail=503 has=Fail now.
=== results=0 has=Weather at once?
<tool_call>
{"name": "weather", "arguments": {"city": "Ghent"}}
</tool_call>
<tool_call>
{"name": "weather", "arguments": {"city": "Bruges"}}
</tool_call>
=== has=Weather at once?
Done.
""" + WEATHER + """\
=== results=0 has=How warm is it?
<tool_call>
{"name": "tool_search_tool_bm25", "arguments": {"query": "weather"}}
</tool_call>
=== results=1 has=How warm is it?
<tool_call>
{"name": "weather", "arguments": {"city": "Ghent"}}
</tool_call>
=== results=2 has=How warm is it?
12 degrees.
"""

# A model that reasons.
REASONING = """\
=== has=And?
<think>
I thought.
</think>

So I was.
===
<think>
I think.
</think>

Therefore I am.
"""
TEMPLATE = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
{{- m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

try:
    folder = install("ai-sdk")
    with (
        Scripted(SCRIPT, "--name", "scripted") as s,
        Scripted(REASONING, "--name", "scripted", template=TEMPLATE) as r,
        Scripted(LOOKS, "--name", "scripted", sees=True) as looks,
        Weftd("--max-context", "8192", "--model-name", "default", "--any-model-name", "no") as d,
        counting() as c,
    ):
        code = node(folder, "test.mjs", s.url, r.url, d.url(), looks.url, str(SCREENSHOT), c.url())
        check_looks(looks.runs)
        check_encoded_once(c, n_dialects=3)
        prompt = r.runs[-1]["prompt"]
        assert "I think." in prompt and "Therefore I am." in prompt, prompt
        sys.exit(code)
except Skip as why:
    print(f"1..0 # SKIP {why}")
