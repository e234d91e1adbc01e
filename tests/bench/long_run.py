"""Resident memory of front and worker while mixed requests come, a third of which leave before their answer ends.

    python3 tests/bench/long_run.py [--model FILE] [--minutes 60] [--clients 4] [--pause 0.05] [--csv FILE] [-- FLAG...]

Every minute one line: requests so far, resident memory and descriptors of both processes, and the bounded caches that /metrics names.
The summary gives the growth after the first ten minutes, with and without these caches. Flags behind -- go to weftd.
"""
import argparse
import json
import os
import random
import string
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))

import weftd  # noqa: E402

CACHES = ("weft_grammar_bytes", "weft_grammar_state_bytes", "weft_grammar_shared_bytes", "weft_snapshot_bytes", "weft_stored_bytes")
SETTLED_MIN = 10


def word(r):
    return "".join(r.choice(string.ascii_lowercase) for _ in range(r.randrange(2, 9)))


def text(r, n):
    return " ".join(word(r) for _ in range(n))


def schema(r):
    return {"type": "object", "required": ["a"], "additionalProperties": False, "properties": {
        "a": {"type": "string", "pattern": f"^{word(r)}[a-z]{{2,{r.randrange(3, 9)}}}$"}, word(r): {"type": "integer"}}}


def tool(r):
    return {"type": "function", "function": {"name": word(r), "parameters": schema(r)}}


def some_request(r):
    """(path, body): every kind of cache in the daemon gets something new."""
    n = r.randrange(1, 24)
    chat = [{"role": "user", "content": text(r, r.randrange(1, 120))}]
    return r.choice((
        lambda: ("/v1/completions", {"prompt": text(r, r.randrange(1, 200)), "max_tokens": n, "stream": r.random() < 0.7}),
        lambda: ("/v1/chat/completions", {"messages": chat, "max_tokens": n, "stream": r.random() < 0.7}),
        lambda: ("/v1/chat/completions", {"messages": chat, "max_tokens": n, "tools": [tool(r)], "tool_choice": "required", "stream": True}),
        lambda: ("/v1/completions", {"prompt": text(r, 4), "max_tokens": n, "guided_json": schema(r), "stream": r.random() < 0.5}),
        lambda: ("/v1/responses", {"input": text(r, r.randrange(1, 120)), "max_output_tokens": n, "store": r.random() < 0.5}),
        lambda: ("/v1/messages", {"messages": chat, "max_tokens": n, "stream": r.random() < 0.7}),
        lambda: ("/v1/embeddings", {"input": [text(r, 8) for _ in range(r.randrange(1, 4))]}),
        lambda: ("/tokenize", {"prompt": text(r, r.randrange(1, 4000))}),
        lambda: ("/v1/completions", {"prompt": 5, "max_tokens": "x"}),
    ))()


class Client(threading.Thread):
    def __init__(self, daemon, seed, over, pause):
        super().__init__(daemon=True)
        self.daemon_, self.random, self.over, self.pause = daemon, random.Random(seed), over, pause
        self.done, self.left, self.failed, self.statuses = 0, 0, 0, {}

    def run(self):
        while not self.over.is_set():
            path, body = some_request(self.random)
            leaves = self.random.random() < 1 / 3
            c = self.daemon_.connect(60)
            try:
                c.request("POST", path, json.dumps(body), {"Content-Type": "application/json", "Authorization": f"Bearer k{self.random.randrange(4)}"})
                if leaves:
                    time.sleep(self.random.random() * 0.05)
                    self.left += 1
                else:
                    response = c.getresponse()
                    response.read()
                    self.statuses[response.status] = self.statuses.get(response.status, 0) + 1
            except OSError:
                self.failed += 1
            c.close()
            self.done += 1
            time.sleep(self.pause)


def resident(pid):
    """Resident memory of a process without the pages of files, in MB."""
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file if line.startswith(("RssAnon", "RssShmem")))
    return sum(int(v.split()[0]) for v in fields.values()) / 1024


def metrics(daemon):
    values = {}
    for line in daemon.request("GET", "/metrics")[2].splitlines():
        if line and line[0] != "#":
            name, value = line.rsplit(" ", 1)
            values[name.split("{")[0]] = values.get(name.split("{")[0], 0) + float(value)
    return values


def sample(daemon, clients, minute):
    worker = daemon.worker_pid()
    m = metrics(daemon)
    row = {"minute": minute, "requests": sum(c.done for c in clients), "front_mb": resident(daemon.process.pid), "worker_mb": resident(worker),
           "front_fds": len(os.listdir(f"/proc/{daemon.process.pid}/fd")), "worker_fds": len(os.listdir(f"/proc/{worker}/fd"))}
    row.update({k: m[k] / 2**20 for k in CACHES if k in m})
    print("  ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    return row


def main():
    flags = sys.argv[sys.argv.index("--") + 1:] if "--" in sys.argv else []
    p = argparse.ArgumentParser()
    p.add_argument("--model")
    p.add_argument("--minutes", type=int, default=60)
    p.add_argument("--clients", type=int, default=4)
    p.add_argument("--pause", type=float, default=0.05)
    p.add_argument("--csv")
    o = p.parse_args(sys.argv[1:sys.argv.index("--")] if "--" in sys.argv else None)
    over, rows = threading.Event(), []
    with tempfile.TemporaryDirectory() as folder:
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.writelines(f"tenant{i}:k{i}\n" for i in range(4))
        with weftd.Weftd("--api-keys", keys, "--max-context", "2048", *flags, model=o.model) as daemon:
            clients = [Client(daemon, i, over, o.pause) for i in range(o.clients)]
            for c in clients:
                c.start()
            for minute in range(o.minutes + 1):
                rows.append(sample(daemon, clients, minute))
                if minute < o.minutes:
                    time.sleep(60)
            over.set()
            for c in clients:
                c.join()
    statuses = {}
    for c in clients:
        for k, v in c.statuses.items():
            statuses[k] = statuses.get(k, 0) + v
    print(f"{sum(c.done for c in clients)} requests, {sum(c.left for c in clients)} left early, {sum(c.failed for c in clients)} failed, {statuses}")
    begin = rows[min(SETTLED_MIN, len(rows) - 1)]
    for name in ("front_mb", "worker_mb"):
        print(f"{name}: {rows[0][name]:.1f} at the start, {begin[name]:.1f} after {begin['minute']} min, {rows[-1][name]:.1f} at the end")
    if o.csv:
        with open(o.csv, "w") as file:
            file.write(",".join(rows[0]) + "\n")
            file.writelines(",".join(str(row.get(k, "")) for k in rows[0]) + "\n" for row in rows)


if __name__ == "__main__":
    main()
