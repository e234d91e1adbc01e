#!/usr/bin/env python3
"""Where a quiet tenant's time goes beside other clients: who burdens the front, who the worker, and how long steps are.

    tests/bench/bench_soak.py BUILD [--seconds 8] [--rounds 3] [--target 50,12,4]

Each round measures the quiet tenant of tests/e2e/test_soak.py alone, beside attackers whose requests never reach the
worker (`front`), beside clients that send prompts and read the answers (`worker`), and beside all attackers of the
soak, each with every itl-target-ms of --target. The parts are those of `weftctl why` of the quiet tenant's chats, as
sums over a chat: waits before the scheduler (those of at least 1 ms), until a step has the prompt, its steps, and the
remaining time of the client, which is transport and waits that are not told.
"""
import argparse
import http.client
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("build")
parser.add_argument("--seconds", type=float, default=8)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--target", default="50,12,4", help="values of itl-target-ms")
parser.add_argument("--only", default="alone,front,worker,all")
arguments = parser.parse_args()
os.environ["WEFT_BUILD"] = arguments.build
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
sys.argv = sys.argv[:1]
import test_soak as soak  # noqa: E402
from weftd import Weftd, keys_in  # noqa: E402

FRONT_CODES = {"read", "load", "place", "worker"}


def bad_bodies(port, rng):
    """Bodies of 8 MB that are refused, once they are read."""
    del rng
    soak.post(port, "/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * (8 << 20)}], "n": -1})


def tokenizing(port, rng):
    """Texts of 300 KB that the pool turns into tokens."""
    del rng
    soak.post(port, "/tokenize", {"content": "a story " * 40000})


def stored(port, rng):
    """A stored response of 4 MB, read again and again; every second reader leaves."""
    status, answer = soak.post(port, "/v1/responses", soak.echo(4 << 20, max_output_tokens=1))
    if status != 200:
        return
    name = json.loads(answer)["id"]
    for _ in range(50):
        with soak.connect(port) as s:
            s.sendall(soak.head(f"/v1/responses/{name}", method="GET"))
            s.recv(10 if rng.random() < 0.5 else 1 << 20)


def prompts(port, rng):
    """A prompt of some thousand tokens that no other one begins like."""
    text = " ".join(str(rng.randrange(1000)) for _ in range(1000))
    soak.post(port, "/v1/completions", {"prompt": text, "max_tokens": 1})


def answers(port, rng):
    """Eight answers of 500 tokens at once."""
    del rng
    soak.post(port, "/v1/completions", {"prompt": "x", "max_tokens": 500, "n": 8, "ignore_eos": True})


SCENES = {
    "alone": (),
    "front": (bad_bodies, tokenizing, stored, stored, soak.connections, soak.connections, soak.websockets),
    "prompts": (prompts,) * 4,
    "answers": (answers,) * 4,
    "worker": (prompts,) * 4 + (answers,) * 3,
    "all": soak.ATTACKERS,
}


def parts(d, name):
    """Returns the ms that a chat waited in front of the scheduler, waited in it, and had in steps; None: it is not told."""
    status, story = d.admin_request("GET", f"/requests/{name}/why")
    if status != 200:
        return None
    sums = {"front": 0.0, "waits": 0.0, "prompt": 0.0, "decode": 0.0}
    for r in story["records"]:
        ms = r["ms"]
        if r["why"] in FRONT_CODES:
            sums["front"] += ms
        elif r["why"] in ("prompt", "decode", "last"):
            sums["prompt" if r["why"] == "prompt" else "decode"] += ms
        else:
            sums["waits"] += ms
    return sums


def chats(d, seconds):
    """Sends chats for some seconds; returns the ms of each, and the parts of some."""
    c = http.client.HTTPConnection("127.0.0.1", d.port, timeout=120, source_address=("127.0.0.2", 0))
    times, told, end, n = [], [], time.monotonic() + seconds, 0
    while time.monotonic() < end:
        name, n = f"quiet-{n}", n + 1
        begin = time.monotonic()
        c.request("POST", "/v1/chat/completions", json.dumps(soak.QUIET),
                  {"Authorization": "Bearer kb", "Content-Type": "application/json", "X-Request-Id": name})
        assert c.getresponse().read()
        times.append((time.monotonic() - begin) * 1e3)
        if n % 4 == 0:
            of = parts(d, name)
            if of:
                told.append({**of, "total": times[-1]})
        time.sleep(soak.PAUSE_S)
    c.close()
    return times, told


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(scene, target):
    soak.ATTACKERS = SCENES[scene]
    with tempfile.TemporaryDirectory() as folder, Weftd("--api-keys", keys_in(folder), "--itl-target-ms", target, *soak.FLAGS) as d:
        chats(d, 1)
        with soak.attackers(d.port):
            time.sleep(2 if SCENES[scene] else 0)
            before = [cpu_s(p) for p in (d.process.pid, d.worker_pid())]
            times, told = chats(d, arguments.seconds)
            used = [(cpu_s(p) - b) / arguments.seconds for p, b in zip((d.process.pid, d.worker_pid()), before)]
    return times, told, used


def show(scene, target, runs):
    times = [t for r in runs for t in r[0]]
    told = [t for r in runs for t in r[1]]
    cores = [statistics.mean(r[2][i] for r in runs) for i in (0, 1)]
    line = f"{scene:8} target {target:>3}  n {len(times):5}  p50 {soak.share(times, .5):6.1f}  p99 {soak.share(times, .99):6.1f} ms"
    if told:
        line += "  median of: " + ", ".join(f"{k} {statistics.median(t[k] for t in told):.1f}" for k in ("front", "waits", "prompt", "decode"))
    print(line + f"  cores: front {cores[0]:.2f}, worker {cores[1]:.2f}", flush=True)


collected = {}
for _ in range(arguments.rounds):
    for scene in arguments.only.split(","):
        for target in arguments.target.split(","):
            collected.setdefault((scene, target), []).append(run(scene, target))
for (scene, target), runs in collected.items():
    show(scene, target, runs)
