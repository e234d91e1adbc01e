"""All attackers of the event loop at once, beside a quiet tenant whose answers must not change and whose memory of the daemon must
not grow. WEFT_SOAK_S (default 600) is the length in seconds. The table that it prints has what the quiet tenant waited for.

Times are asserted only where the machine was idle before: what a loaded one adds is not the daemon's.
"""
import contextlib
import http.client
import json
import os
import random
import re
import select
import signal
import socket
import sys
import tempfile
import threading
import time

import fuzz_http
from websocket import WebSocket
from weftd import Weftd, keys_in, main

SOAK_S = float(os.environ.get("WEFT_SOAK_S", "600"))
QUIET_S = max(10.0, SOAK_S / 20)
PAUSE_S = 0.03
HEALTH_S = 0.010
# A chat of four tokens beside others: a first step of max-step-ms, then steps of itl-target-ms.
CHAT_S = 0.2 + 4 * 0.05
FLAGS = ("--max-context", "8192", "--kv-pages", "2048", "--threads", "1", "--header-timeout-ms", "3000", "--body-timeout-ms", "5000", "--stall-timeout-ms", "4000",
         "--stream-buffer", "64K", "--max-connections", "2000", "--log-requests", "0")
QUIET = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0, "logprobs": True}


def head(path, n=0, method="POST"):
    return (f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ka\r\nContent-Type: application/json\r\n"
            f"Content-Length: {n}\r\n\r\n").encode()


def connect(port):
    return socket.create_connection(("127.0.0.1", port), 30)


def post(port, path, body):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(c):
        c.request("POST", path, json.dumps(body), {"Authorization": "Bearer ka", "Content-Type": "application/json"})
        answer = c.getresponse()
        return answer.status, answer.read()


def echo(n, **more):
    """A response that repeats @n bytes of its request."""
    return {"input": "tell a story", "max_output_tokens": 200, "tools": [{"type": "web_search_preview", "junk": "A" * n}], **more}


def drain(sockets, seconds):
    """Reads all of them for a while, or until they end."""
    end, left = time.monotonic() + seconds, set(sockets)
    while left and time.monotonic() < end:
        for s in select.select(list(left), [], [], 0.2)[0]:
            if not s.recv(1 << 20):
                left.discard(s)


def fan_out(port, rng):
    """Many readers of one background response; every second one reads nothing."""
    status, answer = post(port, "/v1/responses", echo(3 << 20, background=True))
    if status != 200:
        return
    name = json.loads(answer)["id"]
    with contextlib.ExitStack() as all_of_them:
        readers = [all_of_them.enter_context(connect(port)) for _ in range(60)]
        for s in readers:
            s.sendall(head(f"/v1/responses/{name}?stream=true", method="GET"))
        drain(readers[::2], rng.uniform(0.2, 3))
        post(port, f"/v1/responses/{name}/cancel", {})


def big_echo(port, rng):
    """Large bodies that the answer repeats: whole, as a stream, in the background, and read again while it runs."""
    kind = rng.choice(({"stream": True}, {"background": True}, {"stream": True, "store": False}, {}))
    status, answer = post(port, "/v1/responses", echo(rng.choice((1, 4, 14)) << 20, **kind))
    if status != 200 or "background" not in kind:
        return
    name = json.loads(answer)["id"]
    for _ in range(20):
        with connect(port) as s:
            s.sendall(head(f"/v1/responses/{name}", method="GET"))
            s.recv(10 if rng.random() < 0.5 else 1 << 20)


def leave(port, rng):
    """Requests that cost much, whose clients leave at once."""
    body = json.dumps({"messages": [{"role": "user", "content": "x " * 2000}], "max_tokens": 2000, "n": 8, "stream": True}).encode()
    for _ in range(50):
        with connect(port) as s:
            s.sendall(head("/v1/chat/completions", len(body)) + body)
            time.sleep(rng.choice((0, 0, 0.02)))


def stall(port, rng):
    """Long streams that nobody reads, and requests that never come to their end."""
    body = json.dumps({"prompt": "x", "max_tokens": 4000, "stream": True, "ignore_eos": True, "logprobs": 20, "n": 4}).encode()
    with contextlib.ExitStack() as all_of_them:
        for i in range(12):
            s = all_of_them.enter_context(socket.socket())
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            s.connect(("127.0.0.1", port))
            part = head("/v1/completions", len(body)) + body
            s.sendall(part[:rng.randrange(20, len(part))] if i % 3 == 0 else part)
        time.sleep(rng.uniform(1, 6))


def connections(port, rng):
    """Hundreds of connections with half a head, which all close at once."""
    with contextlib.ExitStack() as all_of_them:
        sockets = [all_of_them.enter_context(connect(port)) for _ in range(400)]
        for s in sockets:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        time.sleep(rng.uniform(0, 1))


def websockets(port, rng):
    """Large messages, fragments and pings, and answers that are left."""
    with WebSocket(port, Authorization="Bearer ka") as w:
        what = rng.randrange(4)
        if what == 0:
            w.send(json.dumps({"type": "x", "a": rng.choice(("a", "é", "好")) * (4 << 20)}, ensure_ascii=False).encode())
            w.frame()
        elif what == 1:
            w.socket.sendall(b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 100000)
        elif what == 2:
            w.socket.sendall(b"\x89\x84\0\0\0\0abcd" * 20000)
        else:
            w.create(**echo(2 << 20))
            w.frame()


ATTACKERS = (fan_out, big_echo, leave, leave, stall, connections, websockets)


def attack(attacker, port, seed, counter):
    """The life of an attacker's process: one byte to @counter for each attack."""
    rng = random.Random(seed)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        with contextlib.suppress(OSError, EOFError, IndexError, TypeError, ValueError, http.client.HTTPException):
            attacker(port, rng)
            os.write(counter, b"x")
        time.sleep(0.01)


@contextlib.contextmanager
def attackers(port):
    """Yields the pipes that count what each attacker has done; ends them."""
    children, pipes = [], []
    for i, attacker in enumerate(ATTACKERS):
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                attack(attacker, port, i, theirs)
            finally:
                os._exit(1)
        os.close(theirs)
        os.set_blocking(ours, False)
        children.append(pid)
        pipes.append(ours)
    try:
        yield pipes
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


class Probe(threading.Thread):
    """Sends the same request on a kept connection from another address, as a tenant of its own; @waits has the seconds of each."""

    def __init__(self, port, method, path, body=None):
        super().__init__(daemon=True)
        self.port, self.what, self.over = port, (method, path, body and json.dumps(body), {"Authorization": "Bearer kb", "Content-Type": "application/json"}), threading.Event()
        self.waits, self.answers, self.errors = [], set(), []
        self.start()

    def run(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120, source_address=("127.0.0.2", 0))
        while not self.over.is_set():
            begin = time.monotonic()
            try:
                c.request(*self.what)
                answer = c.getresponse()
                self.answers.add((answer.status, json.dumps(json.loads(answer.read()).get("choices"))))
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.errors.append(f"{error!r} after {time.monotonic() - begin:.2f} s")
                c.close()
            self.waits.append(time.monotonic() - begin)
            time.sleep(PAUSE_S)

    def end(self):
        self.over.set()
        self.join()
        assert not self.errors and len(self.answers) == 1, (self.errors[:5], self.answers)
        assert {status for status, _ in self.answers} == {200}, self.answers
        return self


def share(values, part):
    return sorted(values)[int(len(values) * part)]


class Watch:
    """Probes for some seconds; meanwhile writes down the memory of both processes, in KiB."""

    def __init__(self, d, seconds):
        probes = {"health": Probe(d.port, "GET", "/health"), "chat": Probe(d.port, "POST", "/v1/chat/completions", QUIET)}
        self.memory, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            self.memory.append([fuzz_http.figures(pid)[0] for pid in (d.process.pid, d.worker_pid())])
            time.sleep(min(1.0, seconds / 40))
        self.probes = {name: p.end() for name, p in probes.items()}
        self.answers = self.probes["chat"].answers

    def line(self, name):
        waits = self.probes[name].waits
        return f"n {len(waits)}, p50 {share(waits, 0.5) * 1e3:.1f} ms, p99 {share(waits, 0.99) * 1e3:.1f} ms, most {max(waits) * 1e3:.1f} ms"

    def p99(self, name):
        return share(self.probes[name].waits, 0.99)

    def growth(self, process):
        """The most of the last half minus the most of the first, in KiB."""
        values = [m[process] for m in self.memory]
        return max(values[len(values) // 2:]) - max(values[:len(values) // 2])


def say(*what):
    print("#", *what, file=sys.stderr, flush=True)


def busy(log):
    """The CPU times of long iterations of the event loop, in ms."""
    return [float(ms) for ms in re.findall(r" loop_busy .*?cpu_ms=([0-9.]+)", log)]


def test_a_quiet_tenant_beside_all_attackers_at_once():
    idle = os.getloadavg()[0] < 0.5
    with tempfile.TemporaryDirectory() as folder, Weftd("--api-keys", keys_in(folder), *FLAGS, env={"WEFT_WATCH_LOOP": ""}) as d:
        worker = d.worker_pid()
        before = Watch(d, QUIET_S)
        with attackers(d.port) as pipes:
            during = Watch(d, SOAK_S)
            done = [len(os.read(p, 1 << 20)) for p in pipes]
        say(f"load {os.getloadavg()[0]:.1f}, attacks", ", ".join(f"{a.__name__} {n}" for a, n in zip(ATTACKERS, done)))
        for name in ("health", "chat"):
            say(f"{name} before: {before.line(name)}; beside the attackers: {during.line(name)}")
        for process, name in enumerate(("front", "worker")):
            every_tenth = [m[process] >> 10 for m in during.memory[::max(1, len(during.memory) // 10)]]
            say(f"{name}: {before.memory[-1][process] >> 10} MiB before, then {every_tenth}, growth of the second half {during.growth(process) >> 10} MiB")
        long_ones = busy(d.log)
        say(f"loop_busy: {len(long_ones)} iterations, the longest {max(long_ones, default=0):.0f} ms of CPU")
        assert before.answers == during.answers
        assert d.worker_pid() == worker, d.log[-2000:]
        assert all(done), done
        assert during.growth(0) < 32 << 10 and during.growth(1) < 32 << 10, during.memory
        if idle:
            assert during.p99("health") < HEALTH_S, during.line("health")
            assert during.p99("chat") < CHAT_S, during.line("chat")


if __name__ == "__main__":
    main(globals())
