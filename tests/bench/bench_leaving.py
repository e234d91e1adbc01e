#!/usr/bin/env python3
"""What a client of another address waits for while clients send a request with a key and leave at once.

    tests/bench/bench_leaving.py BUILD WEFTD... [--seconds 5] [--rounds 2] [--clients 16] [--stay 0] [--model FILE]

--stay: seconds that each client stays. Each round starts each WEFTD in turn, so that what else the machine does falls on all of them. The waiting client asks
for /health on a new connection and again on the same one; with --model also for a chat of one token. Prints connections a second, processor time of the front,
the length of the queue of connections that are not accepted, and the times of the waiting client.

Each round has three parts: no clients; clients that connect to another program, which accepts and closes; and clients
of the daemon. The second part is what the clients cost by themselves, since they share the processors with the daemon.
"""
import argparse
import http.client
import json
import multiprocessing
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("build")
parser.add_argument("weftd", nargs="+")
parser.add_argument("--seconds", type=float, default=5)
parser.add_argument("--rounds", type=int, default=2)
parser.add_argument("--clients", type=int, default=16)
parser.add_argument("--stay", type=float, default=0)
parser.add_argument("--model")
arguments = parser.parse_args()
os.environ["WEFT_BUILD"] = arguments.build
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from weftd import Weftd  # noqa: E402

BODY = json.dumps({"messages": [{"role": "user", "content": "x " * 2000}], "max_tokens": 4000, "n": 8, "stream": True})
REQUEST = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ka\r\n"
           f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}").encode()

CHAT = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})


def leave(port, count):
    """Sends a request and leaves, again and again, in the time that other programs leave."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 30) as s:
                s.sendall(REQUEST)
                time.sleep(arguments.stay)
            with count.get_lock():
                count.value += 1
        except OSError:
            time.sleep(0.01)


def accept_and_close(listener):
    """Is the program that only accepts and closes."""
    while True:
        listener.accept()[0].close()


def ask(port, *request):
    """Returns the milliseconds of two requests, the first of which connects."""
    began = time.monotonic()
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=("127.0.0.2", 0))
    for _ in range(2):
        c.request(*request)
        c.getresponse().read()
    c.close()
    return (time.monotonic() - began) * 1000


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def not_accepted(port):
    line = subprocess.run(["ss", "-Hltn", f"sport = :{port}"], capture_output=True, text=True, check=True).stdout
    return int(line.split()[1])


def text(times):
    times.sort()
    return f"p50 {statistics.median(times):.1f}, p90 {times[len(times) * 9 // 10]:.1f}, p99 {times[len(times) * 99 // 100]:.1f}, most {times[-1]:.1f} ms"


def measure(d, port, name):
    """Prints what the waiting client sees of @d while clients connect to @port (None: there are none)."""
    count = multiprocessing.Value("L", 0)
    n = arguments.clients if port else 0
    clients = [multiprocessing.Process(target=leave, args=(port, count), daemon=True) for _ in range(n)]
    for c in clients:
        c.start()
    time.sleep(1)
    began, before, cpu = time.monotonic(), count.value, cpu_s(d.process.pid)
    health, chats, queue = [], [], []
    while time.monotonic() < began + arguments.seconds:
        queue.append(not_accepted(d.port))
        health.append(ask(d.port, "GET", "/health"))
        if arguments.model:
            chats.append(ask(d.port, "POST", "/v1/chat/completions", CHAT, {"Authorization": "Bearer kb", "Content-Type": "application/json"}))
        time.sleep(0.02)
    seconds = time.monotonic() - began
    a_second, cpu = (count.value - before) / seconds, (cpu_s(d.process.pid) - cpu) / seconds
    for c in clients:
        c.kill()
        c.join()
    print(f"{name:8} {a_second:6.0f} connections/s, front {cpu:.2f} cpu, queue {statistics.median(queue):.0f} to {max(queue)}, "
          f"{len(health)} waits, two /health: {text(health)}" + (f"; two chats: {text(chats)}" if chats else ""), flush=True)


def run(path, other):
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write("alice:ka\nbob:kb\n")
        keys.flush()
        with Weftd("--api-keys", keys.name, model=arguments.model, path=path) as d:
            print(path)
            measure(d, None, "none")
            measure(d, other, "another")
            measure(d, d.port, "weftd")


with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
    multiprocessing.Process(target=accept_and_close, args=(listener,), daemon=True).start()
    for _ in range(arguments.rounds):
        for weftd in arguments.weftd:
            run(weftd, listener.getsockname()[1])
