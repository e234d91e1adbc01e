"""How much longer one tenant's requests take while another sends the worst bodies as fast as it can.

    python3 tests/bench/bench_pool.py [--model FILE] [--weftd FILE] [--rounds 5]

Both need the front's pool: the attacker's bodies are large, slow to render or full of grammars, and half of its clients leave before the
answer. Rounds alternate between alone and attacked, so that what else the machine does falls on both. Prints the medians and their ratio.
"""
import argparse
import http.client
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))

import weftd  # noqa: E402

ATTACKERS = 4
REQUESTS = 8  # of each kind and round


def tools(n, pattern):
    return [
        {"type": "function", "function": {
            "name": f"f{i}", "parameters": {"type": "object", "properties": {"a": {"pattern": pattern + str(i)}}, "required": ["a"]}}}
        for i in range(n)
    ]


def bodies():
    """(path, body) of what costs the front most for its size, and of what is large."""
    chat = "/v1/chat/completions"
    message = [{"role": "user", "content": "a"}]
    calls = [{"type": "function_call", "call_id": f"c{i}", "name": "f", "arguments": "{}"} for i in range(50000)]
    results = [{"type": "function_call_output", "call_id": "c0", "output": "x"}] * 50000
    return [(path, json.dumps(body).encode()) for path, body in (
        (chat, {"messages": message, "tools": tools(30, "(a|b)*a(a|b){14}"), "max_tokens": 1}),
        (chat, {"messages": message, "tools": tools(400, "(a|b)*a(a|b){16}"), "max_tokens": 1}),
        (chat, {"messages": message, "tools": tools(20, "(a|b)*a(a|b){16}"), "tool_choice": "required", "max_tokens": 1}),
        ("/v1/responses/input_tokens", {"input": calls + results}),
        ("/tokenize", {"prompt": "ab" * 4000000}),
        ("/tokenize", {"prompt": "hello world " * 1000000}),
    )]


def send_all(port, key, k, over, count):
    """Sends them in turn until it is told to stop."""
    all_bodies = bodies()
    while not over.is_set():
        path, body = all_bodies[k % len(all_bodies)]
        k += 1
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=0.5 if k % 2 else 5)
        try:
            connection.request("POST", path, body, {"Authorization": "Bearer " + key, "Content-Type": "application/json"})
            connection.getresponse().read()
        except OSError:
            pass
        connection.close()
        with count.get_lock():
            count.value += 1


def attack_from(port, key, over, count):
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # what the clients themselves cost is not the question
    threads = [threading.Thread(target=send_all, args=(port, key, k, over, count)) for k in range(ATTACKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Attack:
    """A process of its own, so that the victim's clock is not held up by its interpreter."""

    def __init__(self, port, key):
        self.over, self.count = multiprocessing.Event(), multiprocessing.Value("i", 0)
        self.process = multiprocessing.Process(target=attack_from, args=(port, key, self.over, self.count), daemon=True)
        self.process.start()
        while self.count.value == 0:
            time.sleep(0.05)

    def stop(self):
        self.over.set()
        self.process.join()
        return self.count.value


class Victim:
    def __init__(self, daemon, key):
        self.daemon, self.headers, self.n = daemon, {"Authorization": "Bearer " + key}, 0

    def request(self, kind):
        self.n += 1
        if kind == "text":
            return "/tokenize", {"prompt": f"{self.n} " + "hello " * 20000}
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        if kind == "grammar":
            body["complete_output"] = False
            body["guided_choice"] = [f"choice number {i * 7919} {self.n}" for i in range(3000)]
        return "/v1/chat/completions", body

    def ask(self, kind):
        path, body = self.request(kind)
        data = json.dumps(body)
        begin = time.monotonic()
        status, _, value = self.daemon.request("POST", path, data, self.headers)
        assert status == 200, (status, value)
        return time.monotonic() - begin


KINDS = ("small", "text", "grammar")


def measure(daemon, rounds):
    times = {(kind, attacked): [] for kind in KINDS for attacked in (False, True)}
    victim = Victim(daemon, "kb")
    n_attacks = 0
    for kind in KINDS:
        victim.ask(kind)
    for _ in range(rounds):
        for attacked in (False, True):
            attack = Attack(daemon.port, "ka") if attacked else None
            time.sleep(1)
            for _ in range(REQUESTS):
                for kind in KINDS:
                    times[kind, attacked].append(victim.ask(kind))
            if attack:
                n_attacks += attack.stop()
                time.sleep(1)
    return times, n_attacks


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--weftd", help="another executable")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-context", default="8192")
    args = parser.parse_args()
    if args.weftd:
        weftd.program = lambda name, own=weftd.program: args.weftd if name == "weftd" else own(name)
    with tempfile.TemporaryDirectory() as folder:
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.write("alice:ka\nbob:kb\n")
        with weftd.Weftd("--api-keys", keys, "--max-context", args.max_context, model=args.model) as daemon:
            times, n = measure(daemon, args.rounds)
    print(f"requests of the attacker: {n}")
    print("| request | alone, p50 ms | p90 | attacked, p50 ms | p90 | ratio of p50 |")
    print("|---|---:|---:|---:|---:|---:|")
    for kind in KINDS:
        row = []
        for attacked in (False, True):
            q = statistics.quantiles(times[kind, attacked], n=10)
            row += [statistics.median(times[kind, attacked]) * 1e3, q[8] * 1e3]
        print(f"| {kind} | " + " | ".join(f"{v:.1f}" for v in row) + f" | {row[2] / row[0]:.2f} |")


if __name__ == "__main__":
    main()
