#!/usr/bin/env python3
"""Takes the pictures of the web page in docs/images, in a headless Chromium.

usage: WEFT_BUILD=build tests/clients/screenshots.py MODEL.gguf [FOLDER]

The chat, the formulas and the answer to a picture are scripted. MODEL (a small chat model with a context of 16,384
tokens or more) computes the long prompt and the load of the live view. Brackets of formulas grow where the machine has
a font for mathematics (Debian: fonts-lmodern). pngquant, where it is installed, makes the files small.
"""
import shutil
import subprocess
import sys

from clients import SCREENSHOT, SOURCE, Scripted, Skip, Weftd, install
from test_web import LOOM, SEEN, chromium

SCRIPT = rf"""
=== has=Show me formulas.
The most famous identity is $e^{{i\pi}} + 1 = 0$, and the integral of the bell curve is

$$\int_{{-\infty}}^{{\infty}} e^{{-x^2}}\,dx = \sqrt{{\pi}}$$

A matrix:

$$A = \begin{{pmatrix}} a & b \\ c & d \end{{pmatrix}}, \quad \det A = ad - bc$$

It costs $5 and $10. With $x = \frac{{-b \pm \sqrt{{b^2 - 4ac}}}}{{2a}}$ you are done.
===
{LOOM}
""".lstrip()


def main(model, folder=SCREENSHOT.parent):
    template = (SOURCE / "thinking.jinja").read_text()
    flags = ("--name", "scripted", "--pause-ms", "3")
    with Scripted(SCRIPT, *flags, template=template) as chat, Scripted(SEEN, *flags, template=template, sees=True) as seeing, \
            Weftd("--max-context", 32768, "--kv-memory", "512M", model=model) as real:
        subprocess.run(["node", "screenshots.mjs", chromium(), str(folder), chat.url, seeing.url, real.url()], cwd=install("web"), check=True)
    if shutil.which("pngquant"):
        names = ["chat", "phone", "formulas", "picture", "progress", "live", "requests"]
        files = [f"{folder}/web-{name}.png" for name in names]
        subprocess.run(["pngquant", "--force", "--skip-if-larger", "--strip", "--speed=1", "--ext=.png", "--quality=80-100", *files], check=True)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except Skip as why:
        sys.exit(str(why))
