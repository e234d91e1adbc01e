#!/usr/bin/env python3
"""What a client of another address waits for while clients send a request with a key and leave at once.

    tests/bench/bench_leaving.py BUILD WEFTD... [--seconds 5] [--rounds 2] [--clients 16] [--stay 0]

--stay: seconds that each client stays. Each round starts each WEFTD in turn, so that what else the machine does falls on all of them. The waiting client asks
for /health on a new connection and again on the same one. Prints connections a second, processor time of the front,
the length of the queue of connections that are not accepted, and the times of the waiting client.
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
arguments = parser.parse_args()
os.environ["WEFT_BUILD"] = arguments.build
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from weftd import Weftd  # noqa: E402

BODY = json.dumps({"messages": [{"role": "user", "content": "x " * 2000}], "max_tokens": 4000, "n": 8, "stream": True})
REQUEST = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ka\r\n"
           f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}").encode()


def leave(port, count):
    """Sends a request and leaves, again and again."""
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 30) as s:
                s.sendall(REQUEST)
                time.sleep(arguments.stay)
            with count.get_lock():
                count.value += 1
        except OSError:
            time.sleep(0.01)


def wait(port):
    """Returns the seconds of two requests, the first of which connects."""
    began = time.monotonic()
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=("127.0.0.2", 0))
    for _ in range(2):
        c.request("GET", "/health")
        c.getresponse().read()
    c.close()
    return time.monotonic() - began


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def not_accepted(port):
    line = subprocess.run(["ss", "-Hltn", f"sport = :{port}"], capture_output=True, text=True, check=True).stdout
    return int(line.split()[1])


def run(path):
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write("alice:ka\nbob:kb\n")
        keys.flush()
        with Weftd("--api-keys", keys.name, "--log-requests", "0", path=path) as d:
            count = multiprocessing.Value("L", 0)
            clients = [multiprocessing.Process(target=leave, args=(d.port, count), daemon=True) for _ in range(arguments.clients)]
            for c in clients:
                c.start()
            time.sleep(1)
            began, before, cpu = time.monotonic(), count.value, cpu_s(d.process.pid)
            waits, queue = [], []
            while time.monotonic() < began + arguments.seconds:
                queue.append(not_accepted(d.port))
                waits.append(wait(d.port) * 1000)
                time.sleep(0.02)
            seconds = time.monotonic() - began
            a_second, cpu = (count.value - before) / seconds, (cpu_s(d.process.pid) - cpu) / seconds
            for c in clients:
                c.kill()
                c.join()
    waits.sort()
    print(f"{path}: {a_second:.0f} connections/s, front {cpu:.2f} cpu, queue {statistics.median(queue):.0f} to {max(queue)}, "
          f"{len(waits)} waits: p50 {statistics.median(waits):.1f} ms, p90 {waits[len(waits) * 9 // 10]:.1f}, most {waits[-1]:.1f}", flush=True)


for _ in range(arguments.rounds):
    for weftd in arguments.weftd:
        run(weftd)
