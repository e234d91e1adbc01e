#!/usr/bin/env python3
"""Draws the chart of README from stored results: weft and llama.cpp with the same file, on a CPU and on a GPU.

usage: tests/bench/chart.py > docs/images/speed.svg
"""
import json
import pathlib
import statistics
import sys

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
WIDTH, LEFT, BAR, ROW = 800, 190, 13, 44
PANELS = [
    (
        "2 cores of an AMD EPYC (Zen 5), shape of Qwen3-0.6B, Q4_K_M",
        "2026-11-20-epyc-2-cores-engine-3.json",
        [("1 stream", "decode"), ("8 streams", "batch8"), ("prompt of 512 tokens", "prefill")],
    ),
    (
        "NVIDIA H200, shape of Qwen3-8B, Q4_K_M",
        "2026-11-27-h200-qwen3-8b.json",
        [
            ("1 stream", "decode, 1 x 1024 tokens"),
            ("64 streams", "decode, 64 x 1024 tokens"),
            ("prompt of 4,096 tokens", "prompt of 4096 in steps of 512"),
        ],
    ),
]
STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.soft { fill: #59636e }
.weft { fill: #1f6f5c }
.other { fill: #b0b8c1 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .soft { fill: #9198a1 } .weft { fill: #4fb39a } .other { fill: #59636e }
}"""


def figure(value):
    """Returns the median of repeated runs, as compare_llama.py prints it, or the one value."""
    return statistics.median_high(value) if isinstance(value, list) else value


def bar(y, value, most, kind, text):
    width = round((WIDTH - LEFT - 200) * value / most, 1)
    return [
        f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width}" height="{BAR}" rx="2"/>',
        f'<text x="{LEFT + width + 6}" y="{y + 11}">{text}</text>',
    ]


def chart():
    """Returns the SVG. Each row has its own scale: its ratio is what it shows."""
    out, y = [], 22
    for title, name, rows in PANELS:
        results = json.loads((RESULTS / name).read_text())["rows"]
        out.append(f'<text class="title" x="0" y="{y}">{title} ({name[:10]})</text>')
        y += 12
        for label, key in rows:
            weft, other = figure(results[key]["weft"]), figure(results[key]["llama"])
            ratio, most = results[key]["ratio"], max(weft, other)
            out.append(f'<text class="soft" x="0" y="{y + 19}">{label}</text>')
            out += bar(y, weft, most, "weft", f"weft {weft:,.0f} tokens/s ({ratio:.1f}x)")
            out += bar(y + BAR + 2, other, most, "other", f"llama.cpp {other:,.0f}")
            y += ROW
        y += 24
    note = "llama.cpp 0.5.0 (CPU: built for the machine; H200: its npm package); one file of random weights for both."
    out.append(f'<text class="soft" x="0" y="{y - 8}">{note}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img" aria-label="Speed of weft and llama.cpp">'
    return "\n".join([head, f"<style>{STYLE}</style>", *out, "</svg>", ""])


if __name__ == "__main__":
    sys.stdout.write(chart())
