#!/usr/bin/env python3
"""What agents see while workers are killed, daemons restarted, and daemons upgraded in place: requests, lost ones, waits, and how long starts take.

A service manager of the tests holds the listening socket and the store of descriptors, as systemd does. Each agent asks
over a new connection each time, half of them stream, and every answer is compared with the one that the same request
got when nothing else happened. With --fresh nothing that was stored is passed on: a restart packs anew.

    restart_load.py BUILD [--model FILE] [--agents 8] [--kills 100] [--restarts 20] [--upgrades 20] [--fresh] [--out FILE.json]
"""
import argparse
import json
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("build")
parser.add_argument("--model")
parser.add_argument("--agents", type=int, default=8)
parser.add_argument("--kills", type=int, default=100)
parser.add_argument("--restarts", type=int, default=20)
parser.add_argument("--upgrades", type=int, default=20)
parser.add_argument("--pause", type=float, default=3.5, help="seconds between two events: a request that is there at three deaths fails")
parser.add_argument("--tokens", type=int, default=32)
parser.add_argument("--fresh", action="store_true")
parser.add_argument("--out", help="the figures as a file, as in tests/bench/results")
arguments = parser.parse_args()
os.environ["WEFT_BUILD"] = arguments.build
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "e2e"))
from manager import Manager  # noqa: E402
from weftd import Weftd, random_tokens, tiny_model  # noqa: E402

FLAGS = ("--max-context", "2048", "--kv-memory", "256M", "--log-level", "info")


def body_of(agent):
    return {"prompt": random_tokens(agent, 40), "max_tokens": arguments.tokens, "ignore_eos": True, "temperature": 0, "return_token_ids": True}


def ask(m, agent, streams):
    if not streams:
        status, _, value = m.request("POST", "/v1/completions", body_of(agent), connection=m.connect(120))
        assert status == 200, (status, value)
        return value["choices"][0]["token_ids"]
    tokens = []
    for event in Weftd.stream(m, "/v1/completions", body_of(agent), 120):
        assert "error" not in event, event
        for choice in event["choices"]:
            tokens += choice["token_ids"]
    return tokens


class Agents:
    def __init__(self, m):
        self.m, self.waits, self.lost, self.stop = m, [], [], False
        self.should = [ask(m, i, False) for i in range(arguments.agents)]
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(arguments.agents)]
        for t in self.threads:
            t.start()

    def run(self, i):
        while not self.stop:
            start = time.monotonic()
            try:
                if ask(self.m, i, i % 2) != self.should[i]:
                    self.lost.append("other tokens")
            except Exception as error:  # noqa: BLE001: counted
                self.lost.append(repr(error))
            self.waits.append(time.monotonic() - start)

    def end(self):
        self.stop = True
        for t in self.threads:
            t.join()


def starts(log, what):
    return [int(line.rsplit("load_ms=", 1)[1]) for line in log.splitlines() if f"weights={what} " in line]


def worker_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return int(file.read().split()[0])


def kill_worker(m):
    n = m.log.count(" worker_ready ")
    os.kill(worker_of(m.pid), 9)
    while m.log.count(" worker_ready ") == n:
        time.sleep(0.005)


def restart(m):
    """Seconds from the end of the one daemon to the readiness of the next."""
    m.stop()
    end = time.monotonic()
    if arguments.fresh:
        m.store = {}
    m.start()
    return time.monotonic() - end


def upgrade(m):
    """Seconds from the signal until the next daemon is the main process; then the old one has ended."""
    old, start = m.pid, time.monotonic()
    os.kill(old, signal.SIGUSR2)
    while m.pid == old:
        assert "upgrade_failed" not in m.log, m.log
        time.sleep(0.005)
    seconds = time.monotonic() - start
    m.wait(old)
    return seconds


def figures(waits):
    waits = sorted(waits)
    return {"requests": len(waits), "p50_s": round(waits[len(waits) // 2], 3), "p99_s": round(waits[len(waits) * 99 // 100], 3), "longest_s": round(waits[-1], 3)}


def phase(m, n, event, what_took=None):
    agents = Agents(m)
    before = len(m.log)
    results = []
    for _ in range(n):
        time.sleep(arguments.pause)
        results.append(event(m))
    time.sleep(arguments.pause)
    agents.end()
    log = m.log[before:]
    row = {"events": n, "lost": len(agents.lost), **figures(agents.waits)}
    for what in ("packed", "kept"):
        ms = sorted(starts(log, what))
        if ms:
            row[f"{what}_starts"] = len(ms)
            row[f"{what}_load_ms"] = {"median": ms[len(ms) // 2], "longest": ms[-1]}
    if what_took:
        results.sort()
        row[what_took] = {"median": round(results[len(results) // 2], 3), "longest": round(results[-1], 3)}
    for text in agents.lost[:5]:
        print("lost:", text, file=sys.stderr)
    return row


with tempfile.TemporaryDirectory() as folder, Manager(folder, arguments.model or tiny_model(), *FLAGS) as m:
    m.start()
    out = {"model": os.path.basename(m.model), "bytes": os.path.getsize(m.model), "agents": arguments.agents, "first_load_ms": starts(m.log, "packed")[0]}
    if arguments.kills:
        out["kills"] = phase(m, arguments.kills, kill_worker)
    if arguments.restarts:
        out["restarts"] = phase(m, arguments.restarts, restart, "from_end_to_ready_s")
    if arguments.upgrades:
        out["upgrades"] = phase(m, arguments.upgrades, upgrade, "from_signal_to_main_process_s")
        assert not m.foreign, m.foreign
text = json.dumps(out, indent=1)
print(text)
if arguments.out:
    pathlib.Path(arguments.out).write_text(text + "\n")
