"""The web page, by clicking, in a headless Chromium: chats, branches, tools, keys, files, the live view, hostile texts,
and axe's rules of accessibility. Skipped where there is no Chromium, or no npm.

WEFT_SHOTS=FOLDER: pictures of the page are put there.
"""
import os
import shutil
import sys
import tempfile

from clients import SCREENSHOT, SOURCE, Scripted, Skip, install, node

HOSTILE = """\
<script>window.broken = 1</script><img src=x onerror="window.broken = 2"> [go](javascript:window.broken=3)
[data](data:text/html;base64,PHNjcmlwdD4=) ![p](https://elsewhere.example/p.png) <a href="javascript:window.broken=4">x</a>
[t](https://example.org/"onmouseover="window.broken=5) **<svg onload=window.broken=6>** `<b>` <iframe srcdoc="<script>window.broken=7</script>"></iframe>

```<img src=x onerror=window.broken=8>
</code></pre><script>window.broken = 9</script>
```

| <img src=x onerror=window.broken=10> | b |
|---|---|
| [y](vbscript:window.broken=11) | <style>body{display:none}</style> |
"""

LOOM = """\
A loom weaves two sets of threads into cloth, and each pass repeats the same **five motions**:

1. **Shedding**: some warp threads are lifted, and a gap, the *shed*, opens.
2. **Picking**: the shuttle carries the weft through it.
3. **Beating**: the reed pushes the new thread against the cloth.
4. **Taking up**: the finished cloth is wound on.
5. **Letting off**: new warp is released at the other end.

| motion | part | moves |
|---|---|--:|
| shedding | heddles | 2 |
| picking | shuttle | 1 |
| beating | reed | 1 |

In code, with `warp` and `weft` as lists:

```python
def weave(warp, weft):
    # every second thread is lifted, the others next time
    for i, pick in enumerate(weft):
        shed = warp[i % 2::2]
        yield [(thread, pick) for thread in shed]
```

> The weft passes through every warp.
"""

SCRIPT = f"""\
=== has=Be hostile.
{HOSTILE}
=== has=Name a fibre.
<think>
Wool, linen, cotton? Linen is **old**.
</think>

Linen.
=== has=Count for long.
{" ".join(str(n) for n in range(1, 4000))}
=== fail=429 has=Refuse this.
=== results=0 has=Weather in Ghent
<tool_call>
{{"name": "weather", "arguments": {{"city": "Ghent"}}}}
</tool_call>
=== results=1 has=Weather in Ghent
It has 12 degrees in Ghent.
=== has=the second time
Answered to the edited message.
=== has=How does a loom work?
{LOOM}
===
Hello from the script.
"""


SEEN = """\
=== has=<|image_pad|>
It is a screenshot of a **chat**: a list of conversations on the left, and an answer about how a loom works, with five
numbered motions, a table of the parts and a function in Python.
===
There is no picture.
"""


def chromium():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return shutil.which(name)
    raise Skip("there is no Chromium")


def run():
    """The exit code of the tests."""
    browser = chromium()
    folder = install("web")
    template = (SOURCE / "thinking.jinja").read_text()
    with tempfile.TemporaryDirectory(prefix="weft-keys-") as keys:
        path = os.path.join(keys, "keys")
        with open(path, "w") as file:
            file.write("one:sk-one\ntwo:sk-two\nroot:sk-root operator\n")
        flags = ("--name", "scripted", "--pause-ms", "3")
        with Scripted(SCRIPT, *flags, template=template) as s, Scripted(SCRIPT, *flags, "--api-keys", path) as k, \
                Scripted(SEEN, *flags, template=template, sees=True) as e:
            return node(folder, "test.mjs", browser, s.url, k.url, e.url, SCREENSHOT)


if __name__ == "__main__":
    try:
        sys.exit(run())
    except Skip as why:
        print(f"1..0 # SKIP {why}")
