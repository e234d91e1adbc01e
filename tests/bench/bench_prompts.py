#!/usr/bin/env python3
"""What the front needs to make the tokens of an agent's request: 25 tools and 42 messages, 60 KB.

    tests/bench/bench_prompts.py MODEL WEFTD... [--requests 300] [--rounds 3]

Asks to count the tokens of the request, which needs no worker. Each round starts each WEFTD in turn, so that what else
the machine does falls on all of them. Prints processor time of the front and the median time of an answer.
"""
import argparse
import json
import pathlib
import random
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from weftd import Weftd  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", type=pathlib.Path)
parser.add_argument("weftd", nargs="+")
parser.add_argument("--requests", type=int, default=300)
parser.add_argument("--rounds", type=int, default=3)
arguments = parser.parse_args()

WORDS = "file path read the content of a project directory and return lines matching pattern with context number limit".split()
rng = random.Random(1)


def text(n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


def tool(i):
    fields = {f"{rng.choice(WORDS)}_{k}": {"type": "string", "description": text(15)} for k in range(6)}
    return {"name": f"tool_{i}", "description": text(80), "input_schema": {"type": "object", "properties": fields}}


messages = [{"role": role, "content": text(60)} for _ in range(20) for role in ("user", "assistant")]
REQUEST = {"model": "any", "system": text(800), "messages": [*messages, {"role": "user", "content": "go"}], "tools": [tool(i) for i in range(25)]}
BODY = json.dumps(REQUEST)


def cpu_s(pid):
    return sum(int(f.read_text().split()[0]) for f in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def run(path):
    with Weftd("--max-context", "32768", "--kv-memory", "128M", model=arguments.model, path=path) as d:
        connection = d.connect()
        ask = lambda: d.request("POST", "/v1/messages/count_tokens", BODY, {"Content-Type": "application/json"}, connection)  # noqa: E731
        answer = [ask() for _ in range(20)][-1][2]
        waits, cpu = [], cpu_s(d.process.pid)
        for _ in range(arguments.requests):
            began = time.monotonic()
            ask()
            waits.append(time.monotonic() - began)
        cpu = cpu_s(d.process.pid) - cpu
        print(f"{path}: {answer}, {cpu / arguments.requests * 1e3:.2f} ms of processor time, median {statistics.median(waits) * 1e3:.2f} ms", flush=True)


for _ in range(arguments.rounds):
    for path in arguments.weftd:
        run(path)
