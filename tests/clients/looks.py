#!/usr/bin/env python3
"""Takes pictures of each part of the web page, 1280 and 390 pixels wide, light and dark, for a person to look at; fails where
something lies outside of its window.

usage: WEFT_BUILD=build tests/clients/looks.py FOLDER [SCENE...]     SCENE: a name in web/looks.mjs; without one all are taken
"""
import os
import subprocess
import sys
import tempfile

from clients import SOURCE, Scripted, Skip, Weftd, install
from test_web import SCRIPT, chromium
from weftd import synth

MARKS = r"""
=== has=Show all marks.
## A heading

- a first point
    1. nested, with `code`
    2. and a [link](https://example.org)
- a second point whose text is long enough that it does not fit into one line of the window of a telephone

| name | what the value means to someone who reads it | 2024 | 2025 | 2026 |
|---|---|--:|--:|--:|
| alphabet | the first row | 1.00 | 22.50 | 1,024.25 |
| beta-carotene | the second row | 3.14 | 2.72 | 65,536.00 |

```python
def a_function_with_a_long_name(first_argument, second_argument, third_argument, fourth_argument): return first_argument
```

> A quotation of a sentence.

$$\int_{-\infty}^{\infty} e^{-x^2}\,dx = \sqrt{\pi}, \qquad \sum_{n=1}^{\infty} \frac{1}{n^2} = \frac{\pi^2}{6}, \qquad e^{i\pi} + 1 = 0$$

https://example.org/a/very/long/address/that/has/no/place/to/break/in/a/narrow/window/of/a/telephone?with=arguments&and=more
""".lstrip()


MODELS = {"qwen3-4b-instruct-q4_k_m": "40", "gemma": "41"}  # seeds of their weights


def main(folder, *scenes):
    os.makedirs(folder, exist_ok=True)
    flags = ("--name", "scripted", "--pause-ms", "3")
    template = (SOURCE / "thinking.jinja").read_text()
    with tempfile.TemporaryDirectory(prefix="weft-looks-") as own:
        keys, models = os.path.join(own, "keys"), os.path.join(own, "models")
        with open(keys, "w") as file:
            file.write("one:sk-one\n")
        os.mkdir(models)
        for name, seed in MODELS.items():
            model = synth(f"tiny-looks-{seed}", "--arch", "qwen3", "--shape", "tiny", "--format", "Q4_K_M", "--seed", seed)
            os.symlink(model, os.path.join(models, name + ".gguf"))
        script = MARKS + SCRIPT
        with Scripted(script, *flags, template=template) as s, Scripted(script, *flags, "--api-keys", keys) as k, \
                Weftd("--models-dir", models, "--max-context", "4096", model="") as d:
            for i in range(6):
                for name in MODELS:
                    status, _, answer = d.request("POST", "/v1/completions", {"model": name, "prompt": "Once " * (i + 1), "max_tokens": 40})
                    assert status == 200, answer
            return subprocess.run(["node", "looks.mjs", chromium(), os.path.abspath(folder), s.url, k.url, d.url(), *scenes],
                                  cwd=install("web")).returncode


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        sys.exit(main(*sys.argv[1:]))
    except Skip as why:
        sys.exit(str(why))
