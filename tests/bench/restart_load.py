#!/usr/bin/env python3
"""What agents see while workers are killed, models swapped, daemons restarted, and daemons upgraded in place: requests, lost ones, waits, how long starts take, and memory.

A service manager of the tests holds the listening socket and the store of descriptors, as systemd does. Each agent asks
over a new connection each time, half of them stream, and every answer is compared with the one that the same request
got when nothing else happened (in swaps: with those of either file). With --fresh nothing that was stored is passed on:
a restart packs anew. --loads: starts without agents, of a file that is not in the page cache, and again of one that is.

Of each event: seconds, CPU seconds of the new worker up to its readiness, and the largest sum of what the daemon's
processes have (PSS: shared pages are counted once), with the part of it that is shared memory, which packed weights are.

    restart_load.py BUILD [--model FILE] [--agents 8] [--loads 0] [--kills 100] [--swaps 0 --other FILE] [--restarts 20] [--upgrades 20] [--fresh] [--out FILE.json]
"""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("build")
parser.add_argument("--model")
parser.add_argument("--agents", type=int, default=8)
parser.add_argument("--kills", type=int, default=100)
parser.add_argument("--loads", type=int, default=0)
parser.add_argument("--swaps", type=int, default=0)
parser.add_argument("--other", help="the file that swaps take in turns with the model's")
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
from servers import commit, cpu_name, cpu_s_of, tree_of  # noqa: E402
from weftd import Weftd, program, random_tokens, tiny_model  # noqa: E402

MIB = 1 << 20
LIMIT_S = 900  # of a start, a step or an answer: the machine may be busy
FLAGS = ("--max-context", "2048", "--kv-memory", "256M", "--log-level", "info", "--hang-timeout-ms", LIMIT_S * 1000, "--drain-timeout-ms", LIMIT_S * 1000)
READY = re.compile(r" worker_ready .*?pid=(\d+) ")


def body_of(agent):
    return {"prompt": random_tokens(agent, 40), "max_tokens": arguments.tokens, "ignore_eos": True, "temperature": 0, "return_token_ids": True}


def ask(m, agent, streams):
    if not streams:
        status, _, value = m.request("POST", "/v1/completions", body_of(agent), connection=m.connect(LIMIT_S))
        assert status == 200, (status, value)
        return value["choices"][0]["token_ids"]
    tokens = []
    for event in Weftd.stream(m, "/v1/completions", body_of(agent), LIMIT_S):
        assert "error" not in event, event
        for choice in event["choices"]:
            tokens += choice["token_ids"]
    return tokens


class Agents:
    """They ask until end(); @should: for each of them the answers that are right."""

    def __init__(self, m, should):
        self.m, self.waits, self.lost, self.stop, self.should = m, [], [], False, should
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(arguments.agents)]
        for t in self.threads:
            t.start()

    def run(self, i):
        while not self.stop:
            start = time.monotonic()
            try:
                if ask(self.m, i, i % 2) not in self.should[i]:
                    self.lost.append("other tokens")
            except Exception as error:  # noqa: BLE001: counted
                self.lost.append(repr(error))
            self.waits.append(time.monotonic() - start)

    def end(self):
        self.stop = True
        for t in self.threads:
            t.join()


class Memory(threading.Thread):
    """The largest sum of what all daemons and workers of this process have, from its start to end()."""

    def __init__(self):
        super().__init__()
        self.stop, self.largest = threading.Event(), {"pss": 0, "shared": 0, "processes": 0}
        self.start()

    @staticmethod
    def now():
        """In KiB. Of a process that is just ending nothing."""
        sums = {"pss": 0, "shared": 0, "processes": 0}
        for pid, name in tree_of(os.getpid()):
            try:
                lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if name.startswith("weft") else []
            except OSError:
                continue
            has = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
            sums["pss"] += has.get("Pss", 0)
            sums["shared"] += has.get("Pss_Shmem", 0)
            sums["processes"] += bool(has)
        return sums

    def run(self):
        while not self.stop.wait(0.2):
            now = self.now()
            if now["pss"] > self.largest["pss"]:
                self.largest = now

    def end(self):
        self.stop.set()
        self.join()
        return {"processes": self.largest["processes"], "pss_mib": self.largest["pss"] >> 10, "of_these_shared_mib": self.largest["shared"] >> 10}


def starts(log, what):
    return [int(line.rsplit("load_ms=", 1)[1]) for line in log.splitlines() if f"weights={what} " in line]


def wait_ready(m, n):
    """Waits for one more than @n starts of workers; CPU seconds of the last up to here."""
    while len(found := READY.findall(m.log)) <= n:
        assert "upgrade_failed" not in m.log, m.log
        time.sleep(0.005)
    return cpu_s_of(int(found[-1]))


def n_ready(m):
    return len(READY.findall(m.log))


def worker_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return int(file.read().split()[0])


def kill_worker(m):
    n, start = n_ready(m), time.monotonic()
    os.kill(worker_of(m.pid), 9)
    cpu = wait_ready(m, n)
    return time.monotonic() - start, cpu


def swap(m):
    """From the command to its end, when the old worker has ended what it had."""
    n, start = n_ready(m), time.monotonic()
    m.files = m.files[::-1]
    command = [program("weftctl"), "--socket", m.admin, "swap", pathlib.Path(m.model).stem, m.files[0]]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as ctl:
        cpu = wait_ready(m, n)
        assert ctl.wait() == 0
    return time.monotonic() - start, cpu


def restart(m):
    """From the end of the one daemon to the readiness of the next."""
    m.stop(limit_s=LIMIT_S)
    n, start = n_ready(m), time.monotonic()
    if arguments.fresh:
        m.store = {}
    m.start(LIMIT_S)
    return time.monotonic() - start, wait_ready(m, n)


def upgrade(m):
    """From the signal until the next daemon is the main process; then the old one has ended."""
    n, old, start = n_ready(m), m.pid, time.monotonic()
    os.kill(old, signal.SIGUSR2)
    cpu = wait_ready(m, n)
    while m.pid == old:
        time.sleep(0.005)
    seconds = time.monotonic() - start
    m.wait(old, LIMIT_S)
    return seconds, cpu


def load(m, cold):
    """From the start of the daemon to the first answer. @cold: nothing of the file is in the page cache."""
    m.store, n = {}, n_ready(m)
    if cold:
        with open(m.model, "rb") as file:
            os.fsync(file.fileno())  # what is not written yet stays
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        resident = subprocess.run(["fincore", "-b", "-n", "-o", "RES", m.model], capture_output=True, text=True, check=True).stdout
        assert int(resident) < MIB, f"{resident} bytes of the file are still in the page cache"
    start = time.monotonic()
    m.start(LIMIT_S)
    cpu = wait_ready(m, n)
    ask(m, 0, False)
    return time.monotonic() - start, cpu


def spread(values):
    values = sorted(values)
    return {"least": round(values[0], 2), "median": round(values[len(values) // 2], 2), "longest": round(values[-1], 2)}


def figures(waits):
    waits = sorted(waits)
    return {"requests": len(waits), "p50_s": round(waits[len(waits) // 2], 3), "p99_s": round(waits[len(waits) * 99 // 100], 3), "longest_s": round(waits[-1], 3)}


def measured(m, events):
    """What the events took, one after the other; each returns seconds and CPU seconds."""
    before, memory = len(m.log), Memory()
    try:
        took = [event() for event in events]
    finally:
        most = memory.end()
    row = {"events": len(took), "s": spread([t for t, _ in took]), "worker_cpu_s": spread([c for _, c in took]), "memory": most}
    for what in ("packed", "kept"):
        ms = starts(m.log[before:], what)
        if ms:
            row[f"{what}_starts"] = len(ms)
            row[f"{what}_load_ms"] = spread(ms)
    return row


def phase(m, n, event, should):
    agents = Agents(m, should)

    def after_a_pause():
        time.sleep(arguments.pause)
        return event(m)

    try:
        row = measured(m, [after_a_pause] * n)
        time.sleep(arguments.pause)
    finally:
        agents.end()
    for text in agents.lost[:5]:
        print("lost:", text, file=sys.stderr)
    return {**row, "lost": len(agents.lost), **figures(agents.waits)}


def loads(m):
    def once(cold):
        result = load(m, cold)
        m.stop(limit_s=LIMIT_S)
        return result

    return {what: measured(m, [lambda: once(what == "cold")] * arguments.loads) for what in ("cold", "from_page_cache")}


def answers(m):
    return [ask(m, i, False) for i in range(arguments.agents)]


def main():
    with tempfile.TemporaryDirectory() as folder:
        with Manager(folder, arguments.model or tiny_model(), *FLAGS) as m:
            pathlib.Path(m.log_path).touch()
            m.files = [m.model, arguments.other]
            out = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": commit(), "command": " ".join(["tests/bench/restart_load.py BUILD", *map(os.path.basename, sys.argv[2:])]), "cpu": cpu_name(),
                   "model": os.path.basename(m.model), "bytes": os.path.getsize(m.model), "agents": arguments.agents}
            if arguments.loads:
                out["loads"] = loads(m)
            m.start(LIMIT_S)
            should = [[a] for a in answers(m)]
            if arguments.swaps:
                swap(m)
                of_both = [s + [a] for s, a in zip(should, answers(m))]
                swap(m)
                out["swaps"] = phase(m, arguments.swaps // 2 * 2, swap, of_both)  # the last one takes the first file
            for n, event in ((arguments.kills, kill_worker), (arguments.restarts, restart), (arguments.upgrades, upgrade)):
                if n:
                    out[event.__name__ + "s"] = phase(m, n, event, should)
            out["load_average"] = os.getloadavg()
            assert not m.foreign, m.foreign
    text = json.dumps(out, indent=1)
    print(text)
    if arguments.out:
        pathlib.Path(arguments.out).write_text(text + "\n")


main()
