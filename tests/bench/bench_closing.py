"""Processor time of the event loop while many connections close at once, and how long another address waits for /health.

    python3 tests/bench/bench_closing.py [--weftd FILE] [--model FILE] [--counts 500,1000,2000,4000]

The time for each connection is the same at all counts where the work is linear.
"""
import argparse
import http.client
import os
import resource
import socket
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))

import weftd  # noqa: E402

FEW = 60  # descriptors of a daemon without connections, at most


def cpu_s(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def health_s(port):
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120, source_address=("127.0.0.2", 0))
    connection.request("GET", "/health")
    connection.getresponse().read()
    return time.monotonic() - began


def close(daemon, n):
    """CPU seconds and the wait of another address while @n connections close."""
    pid = daemon.process.pid
    connections = [socket.create_connection(("127.0.0.1", daemon.port)) for _ in range(n)]
    while descriptors(pid) < n:
        time.sleep(0.05)
    time.sleep(0.3)
    before = cpu_s(pid)
    for connection in connections:
        connection.close()
    waited = health_s(daemon.port)
    while descriptors(pid) > FEW:
        time.sleep(0.05)
    return cpu_s(pid) - before, waited


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weftd")
    parser.add_argument("--model")
    parser.add_argument("--counts", default="500,1000,2000,4000")
    args = parser.parse_args()
    counts = [int(n) for n in args.counts.split(",")]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print("| connections | CPU s | us each | /health of another address, s |\n|--:|--:|--:|--:|")
    with weftd.Weftd("--max-connections", str(2 * max(counts)), "--header-timeout-ms", "60000",
                     model=args.model, path=args.weftd) as daemon:
        for n in counts:
            cpu, waited = close(daemon, n)
            print(f"| {n:,} | {cpu:.2f} | {cpu / n * 1e6:.0f} | {waited:.2f} |", flush=True)


main()
