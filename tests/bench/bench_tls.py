#!/usr/bin/env python3
"""What a TLS handshake costs the front, and what a client of another address waits for beside a flood of them.

    tests/bench/bench_tls.py BUILD [--seconds 5] [--clients 8] [--keys ec,rsa4096]

For each kind of key: processor time of the front for one whole handshake, and for a client that leaves at once. Then a
kept and a new connection of another address, each of which asks for /health, and a chat of four tokens on a UNIX
socket, alone and beside each flood:

    hello    replays the first message and leaves, so that the client computes nothing
    whole    ends its handshake and leaves
    records  sends 200 records of one byte
    halves   sends a part of the first message on each of 100 connections, and leaves them open
    drip     sends the first message byte by byte
    plain    sends a request of HTTP without TLS
    junk     sends random records before and after a handshake
    again    asks for a new handshake on an old connection (openssl s_client, TLS 1.2)

Prints p50 and p99 of the waits, floods a second, and the longest iteration of the event loop in processor time, of those
of at least 20 ms. With a build under AddressSanitizer it fails if there is a report.
"""
import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import pathlib
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("build")
parser.add_argument("--seconds", type=float, default=5)
parser.add_argument("--clients", type=int, default=8)
parser.add_argument("--keys", default="ec,rsa4096")
parser.add_argument("--floods", default="hello,whole,records,halves,drip,plain,junk,again")
arguments = parser.parse_args()
os.environ["WEFT_BUILD"] = arguments.build
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
import test_soak as soak  # noqa: E402
from weftd import UnixConnection, Weftd, make_pair  # noqa: E402


def pair(folder, kind):
    if kind == "ec":
        return make_pair(folder)
    cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:" + kind.removeprefix("rsa"), "-nodes", "-keyout", key, "-out", cert,
                    "-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    os.chmod(key, 0o640)
    return cert, key


def first_message():
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def hello(port, context, message):
    del context
    with socket.create_connection(("127.0.0.1", port), 30) as s:
        s.sendall(message)


def whole(port, context, message):
    del message
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port), 30), server_hostname="localhost"):
        pass


def records(port, context, message):
    del message
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port), 30), server_hostname="localhost") as s:
        for _ in range(200):
            s.sendall(b"G")


def halves(port, context, message):
    del context
    with contextlib.ExitStack() as all_of_them:
        for i in range(100):
            s = all_of_them.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            s.sendall(message[:1 + i * (len(message) - 2) // 99])
        time.sleep(1)


def drip(port, context, message):
    del context
    with socket.create_connection(("127.0.0.1", port), 30) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(len(message)):
            s.sendall(message[i:i + 1])


def plain(port, context, message):
    del context, message
    with socket.create_connection(("127.0.0.1", port), 30) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 65536)
        s.recv(1000)


def junk(port, context, message):
    with socket.create_connection(("127.0.0.1", port), 0.2) as s:
        s.sendall(random.choice((os.urandom(3000), message[:random.randrange(1, 200)] + os.urandom(300), message + os.urandom(2000))))
        with contextlib.suppress(OSError):
            s.recv(1000)
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port), 30), server_hostname="localhost") as s:
        s.settimeout(0.2)
        os.write(s.fileno(), random.choice((b"\x17\x03\x03", b"\x16\x03\x03", b"\x14\x03\x03")) + os.urandom(400))
        with contextlib.suppress(OSError):
            s.recv(1000)


def again(port, context, message):
    del context, message
    subprocess.run(["openssl", "s_client", "-tls1_2", "-connect", f"127.0.0.1:{port}"], input=b"R\n" * 20, capture_output=True, timeout=60)


def flood(what, port, count):
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    context, message = ssl._create_unverified_context(), first_message()
    while True:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            what(port, context, message)
            with count.get_lock():
                count.value += 1


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Probes:
    """A client of another address: /health on a kept connection, on a new one, and a chat."""

    def __init__(self, port, unix):
        self.port, self.context = port, ssl._create_unverified_context()
        self.kept, self.unix = self.connect(), unix
        self.waits = {"kept": [], "new": [], "chat": []}

    def connect(self):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self.context, source_address=("127.0.0.2", 0))

    def timed(self, name, connection, *request):
        begin = time.monotonic()
        connection.request(*request)
        assert connection.getresponse().read()
        self.waits[name].append((time.monotonic() - begin) * 1e3)

    def round(self):
        self.timed("kept", self.kept, "GET", "/health")
        with contextlib.closing(self.connect()) as new:
            self.timed("new", new, "GET", "/health")
        self.timed("chat", self.unix, "POST", "/v1/chat/completions", json.dumps(soak.QUIET), {"Content-Type": "application/json"})
        time.sleep(0.01)

    def line(self):
        return "  ".join(f"{k} {soak.share(w, .5):5.1f} {soak.share(w, .99):6.1f}" for k, w in self.waits.items())


def beside(d, port, unix, what):
    count = multiprocessing.Value("L", 0)
    clients = [multiprocessing.Process(target=flood, args=(what, port, count), daemon=True) for _ in range(arguments.clients if what else 0)]
    for c in clients:
        c.start()
    time.sleep(1 if what else 0)
    seen, used, began = len(d.log), cpu_s(d.process.pid), count.value
    probes = Probes(port, UnixConnection(unix, 60))
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        probes.round()
    rate, cores = (count.value - began) / arguments.seconds, (cpu_s(d.process.pid) - used) / arguments.seconds
    for c in clients:
        c.kill()
        c.join()
    longest = max(soak.busy(d.log[seen:]), default=0)
    print(f"  {what.__name__ if what else 'alone':8} {rate:6.0f}/s  front {cores:.2f} cores  p50, p99 in ms: {probes.line()}  longest {longest:.0f} ms",
          flush=True)


def run(kind):
    with tempfile.TemporaryDirectory() as folder:
        cert, key = pair(folder, kind)
        unix = os.path.join(folder, "plain.sock")
        with Weftd("--listen", "tls:127.0.0.1:0", "--listen", "unix:" + unix, "--tls-certificate", cert, "--tls-key", key, "--log-requests", "0",
                   env={"WEFT_WATCH_LOOP": ""}) as d:
            port = d.port
            used, n = cpu_s(d.process.pid), 300
            for _ in range(n):
                whole(port, ssl._create_unverified_context(), None)
            print(f"{kind}: {(cpu_s(d.process.pid) - used) / n * 1e3:.2f} ms of processor time for a handshake", flush=True)
            used, message = cpu_s(d.process.pid), first_message()
            for _ in range(n):
                hello(port, None, message)
            time.sleep(2)
            print(f"  {(cpu_s(d.process.pid) - used) / n * 1e3:.2f} ms for a first message whose client has left", flush=True)
            for what in (None, *(globals()[name] for name in arguments.floods.split(","))):
                beside(d, port, unix, what)


for name in arguments.keys.split(","):
    run(name)
