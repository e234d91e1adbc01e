#!/usr/bin/env python3
"""What a fifth tenant gets while four hostile ones attack the daemon in every way that we know.

    tests/bench/bench_attack.py [--minutes 10] [--model FILE] [--weftd FILE] [--json FILE] [--seed N] [--only ACT...]

The hostile tenants send the worst bodies, bodies that they do not finish, schemas and grammars that are hard, chains of
stored responses; they open connections by the hundred, read slowly or not at all, leave in the middle, are refused as
often as they can; and all four keep long generations running, so that the worker's time is short as well. The fifth
keeps four streams and checks every text against what it got alone: that is measured, in turns alone and attacked, so
that what else the machine does falls on both. Prints and, with --json, writes its share of the computed tokens, the
time to its first token, its errors, the longest iteration of the front's loop, and what the front needed. Exit 1: an
error, another text, a worker that died, something left behind.
"""
import argparse
import collections
import hashlib
import http.client
import json
import multiprocessing
import os
import pathlib
import platform
import queue
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
import bench_front  # noqa: E402
import bench_pool  # noqa: E402
import weftd  # noqa: E402

HOSTILE = ("bodies", "sockets", "schemas", "stored")
MEASURED = "measured"
FLAGS = ("--max-context", "4096", "--max-body", "8M", "--max-n", "8", "--max-connections", "256", "--stall-timeout-ms", "3000")
STREAMS = 4  # of the measured tenant
TOKENS = 32
ACTS = {}  # tenant: [function of (attacker)]; a name twice: two threads


def small_model():
    """Large enough that the worker is what is short."""
    shape = "n_layer=8,n_embd=512,n_head=8,n_kv=2,head_dim=64,n_ff=1536,context=32768"
    return weftd.synth("attack-llama-q4_k_m", "--arch", "llama", "--shape", shape, "--n-vocab", "16000", "--format", "Q4_K_M", "--seed", "1")


def act(tenant, threads=1):
    def add(function):
        ACTS.setdefault(tenant, []).extend([function] * threads)
        return function

    return add


class Attacker:
    """One thread of a hostile tenant: does the same thing again and again."""

    def __init__(self, port, tenant, act_, seed, over, seen):
        self.port, self.key, self.act, self.over, self.seen = port, "k-" + tenant, act_, over, seen
        self.random = random.Random(seed)
        self.n = 0
        self.kept = {}  # between calls

    def run(self):
        while not self.over.is_set():
            self.n += 1
            try:
                self.act(self)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.note(type(error).__name__)
                time.sleep(0.01)

    def note(self, what):
        self.seen[self.act.__name__, str(what)] += 1

    def headers(self, key=None):
        return {"Authorization": "Bearer " + (key or self.key), "Content-Type": "application/json"}

    def raw(self, timeout=5):
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def post(self, path, body, timeout=20):
        """The parsed answer, None where the status is not 200."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            c.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), self.headers())
            r = c.getresponse()
            text = r.read()
        finally:
            c.close()
        self.note(r.status)
        return json.loads(text) if r.status == 200 and text.startswith(b"{") else None

    def head(self, path, length, key=None):
        return b"POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n" % (
            path.encode(), (key or self.key).encode(), length)

    def hold(self, seconds):
        self.over.wait(seconds)


# ---- every tenant ----


def words(r, n):
    return " ".join(r.choice(("the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "dog")) for _ in range(n))


def generate(a):
    """Long generations, so that there is no time to spare."""
    a.post("/v1/completions", {"prompt": words(a.random, 300), "max_tokens": 200, "n": 4, "ignore_eos": True}, 120)


for TENANT in HOSTILE:
    act(TENANT, threads=2)(generate)

# ---- worst bodies, clients that leave ----

WORST = bench_pool.bodies()


@act("bodies", threads=2)
def worst_bodies(a):
    path, body = a.random.choice(WORST)
    a.post(path, body, a.random.choice((0.5, 20)))


@act("bodies")
def odd_bodies(a):
    body = a.random.choice(list(bench_front.RAW.values()))(a.random.choice((8000, 65536, 1 << 20)))
    a.post(a.random.choice(bench_front.POSTS), body)


@act("bodies")
def leave(a):
    """Leaves before the answer, in its head, in its stream."""
    body = json.dumps({"prompt": words(a.random, 400), "max_tokens": 200, "stream": True, "n": 8, "logprobs": 5}).encode()
    s = a.raw()
    s.sendall(a.head("/v1/completions", len(body)) + body)
    for _ in range(a.random.randrange(4)):
        s.recv(2000)
    s.close()


# ---- connections ----


@act("sockets", threads=2)
def unfinished_bodies(a):
    size = 8 << 20
    sockets = []
    for _ in range(6):
        s = a.raw()
        sockets.append(s)
        s.sendall(a.head("/v1/completions", size) + b'{"prompt":"' + b"x" * (size - 4096))
    a.hold(2)
    for s in sockets:
        s.close()


@act("sockets")
def many_connections(a):
    """Without a key, beyond what there is room for; each asks once and stays."""
    sockets = []
    for _ in range(300):
        s = a.raw()
        sockets.append(s)
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    a.hold(1)
    for s in sockets:
        s.close()


@act("sockets", threads=2)
def slow_readers(a):
    body = json.dumps({"prompt": "a", "max_tokens": 1000, "n": 8, "stream": True, "logprobs": 20, "ignore_eos": True}).encode()
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(5)
    s.connect(("127.0.0.1", a.port))
    s.sendall(a.head("/v1/completions", len(body)) + body)
    for _ in range(20):
        a.hold(0.3)
        if a.over.is_set() or not s.recv(500):
            break
    s.close()


@act("sockets")
def slow_senders(a):
    s = a.raw()
    for byte in a.head("/v1/completions", 100)[:40]:
        a.hold(0.05)
        s.sendall(bytes([byte]))
    s.close()


@act("sockets")
def refused(a):
    """As many log lines as can be had: requests in a row that are refused at once."""
    kinds = [a.head("/v1/nothing", 0), a.head("/v1/completions", 0, "none"), b"GET /v1/models/none HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
             + a.key.encode() + b"\r\n\r\n", b"\0\1 HTTP/9\r\n\r\n"]
    s = a.raw()
    try:
        for _ in range(200):
            s.sendall(a.random.choice(kinds[:3]))
            a.note(s.recv(4096)[9:12].decode())
        s.sendall(kinds[3])
    finally:
        s.close()


@act("sockets")
def pipelined(a):
    """Hundreds of small requests in one read, each dearer than its bytes."""
    one = a.random.choice((b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", a.head("/v1/nothing", 0)))
    s = a.raw()
    try:
        s.sendall(one * 600)
        while a.n % 4 and s.recv(1 << 16) and not a.over.is_set():
            a.note("bytes")
    except TimeoutError:
        pass
    finally:
        s.close()


# ---- schemas ----


@act("schemas")
def hard_schemas(a):
    r, hard = a.random, "(a|b)*a(a|b){%d}%d" % (a.random.randrange(8, 18), a.n)
    schema = r.choice((
        {"type": "object", "properties": {"a": {"type": "string", "pattern": hard}}, "required": ["a"]},
        {"type": "array", "items": {"anyOf": [{"type": "string", "pattern": hard + str(i)} for i in range(20)]}, "minItems": 50},
        {"type": "object", "properties": {f"p{i}{a.n}": {"type": "string"} for i in range(1500)}},
        {"type": "string", "minLength": r.randrange(1000, 200000)},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "array", "items": {"$ref": "#/$defs/a"}}]}}},
    ))
    a.post("/v1/chat/completions", {"messages": [bench_front.USER], "max_tokens": 20,
           "response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}}, 60)


@act("schemas")
def hard_grammars(a):
    r, n = a.random, a.random.randrange(50, 1000)
    rules = "\n".join('r%d ::= "a" r%d | "b" r%d | "%d"' % (i, i + 1, r.randrange(n), a.n) for i in range(n))
    body = r.choice((
        {"guided_grammar": 'root ::= r0\n%s\nr%d ::= "c"' % (rules, n)},
        {"guided_grammar": 'root ::= root root root | root root | "a" | ""\n# %d' % a.n},
        {"guided_regex": "(a|b)*a(a|b){%d}" % r.randrange(10, 20) * r.randrange(1, 4) + str(a.n)},
        {"guided_regex": "(" * 40 + "a" + ")*" * 40 + str(a.n)},
        {"guided_choice": ["choice %d %d" % (i, a.n) for i in range(5000)]},
    ))
    a.post("/v1/completions", {"prompt": "a", "max_tokens": 20, **body}, 60)


@act("schemas")
def hard_tools(a):
    tools = bench_pool.tools(a.random.choice((5, 50, 400)), "(a|b)*a(a|b){%d}%d" % (a.random.randrange(6, 16), a.n))
    a.post("/v1/chat/completions", {"messages": [bench_front.USER], "tools": tools, "max_tokens": 10,
                                    "tool_choice": a.random.choice(("auto", "required"))}, a.random.choice((0.3, 60)))


# ---- stored responses ----


def store(a, junk, **fields):
    item = {"type": "web_search_call", "id": "w", "junk": junk}
    v = a.post("/v1/responses", {"input": [bench_front.USER, item], "max_output_tokens": 1, **fields}, 60)
    return (v["id"], v["output"][0]["id"]) if v else None


@act("stored")
def chains(a):
    """A conversation of large turns, whose past is removed while it goes on."""
    last = a.kept.get("last")
    made = store(a, a.random.choice(("x" * 7_000_000, [0] * 1_000_000)), **({"previous_response_id": last} if last else {}))
    if made and last and a.random.random() < 0.5:
        c = http.client.HTTPConnection("127.0.0.1", a.port, timeout=20)
        c.request("DELETE", "/v1/responses/" + last, headers=a.headers())
        c.getresponse().read()
        c.close()
    a.kept["last"] = made[0] if made and a.n % 10 else None


@act("stored")
def references(a):
    if a.n % 20 == 1 or not a.kept.get("item"):
        a.kept["item"] = store(a, "x" * 4_000_000)
    if not a.kept["item"]:
        return
    made, item = a.kept["item"]
    refer = {"type": "item_reference", "id": item}
    a.post("/v1/responses/input_tokens", {"input": [refer] * a.random.choice((1, 119, 1000))})
    c = http.client.HTTPConnection("127.0.0.1", a.port, timeout=20)
    c.request("GET", "/v1/responses/%s%s" % (made, a.random.choice(("", "/input_items", "/input_items?limit=100&after=x"))), headers=a.headers())
    a.note(c.getresponse().status)
    c.close()


@act("stored")
def small_ones(a):
    a.post("/v1/responses", {"input": "hi", "max_output_tokens": 1})


@act("stored")
def many_inputs(a):
    a.post("/v1/embeddings", {"input": ["a"] * 2048}, 120)


def attack_from(port, seed, over, results, only):
    os.nice(10)  # what the clients themselves cost is not the question
    seen = collections.Counter()
    attackers = [Attacker(port, tenant, f, f"{seed}/{tenant}/{i}", over, seen)
                 for tenant in HOSTILE for i, f in enumerate(ACTS[tenant]) if not only or f.__name__ in only]
    threads = [threading.Thread(target=a.run, daemon=True) for a in attackers]
    for t in threads:
        t.start()
    over.wait()
    end = time.monotonic() + 5
    for t in threads:
        t.join(max(0, end - time.monotonic()))
    results.put([[*k, n] for k, n in list(seen.items())])  # who still waits for an answer leaves without it


# ---- the measured tenant ----

PROMPTS = [f"{words(random.Random(i), 20 + 20 * i)}." for i in range(8)]


class Stream:
    """One of its streams: a request after the other."""

    def __init__(self, port, number, kind="first"):
        self.port, self.n, self.kind, self.rows, self.errors = port, number, kind, [], []
        self.headers = {"Authorization": "Bearer k-" + MEASURED, "Content-Type": "application/json"}

    def ask(self, prompt):
        """(seconds to the first token, to the last one, tokens, digest of the text)"""
        body = {"prompt": PROMPTS[prompt], "max_tokens": TOKENS, "seed": prompt, "temperature": 0.8, "stream": True,
                "stream_options": {"include_usage": True}, "ignore_eos": True}
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        start, first, text, n = time.monotonic(), None, "", 0
        try:
            c.request("POST", "/v1/completions", json.dumps(body), {**self.headers, "X-Request-Id": f"measured-{self.kind}-{self.n}"})
            r = c.getresponse()
            if r.status != 200:
                raise ValueError(f"{r.status} {r.read()[:200]}")
            for line in r:
                if not line.startswith(b"data: {"):
                    continue
                v = json.loads(line[6:])
                if "error" in v:
                    raise ValueError(str(v)[:200])
                if v.get("choices"):
                    first = first or time.monotonic() - start
                    text += v["choices"][0]["text"]
                if v.get("usage"):
                    n = v["usage"]["completion_tokens"]
        finally:
            c.close()
        if n != TOKENS:
            raise ValueError(f"{n} tokens instead of {TOKENS}")
        return first, time.monotonic() - start, n, hashlib.sha256(text.encode()).hexdigest()

    def run(self, until, wanted):
        while time.monotonic() < until:
            self.n += 1
            prompt = self.n % len(PROMPTS)
            try:
                first, whole, n, digest = self.ask(prompt)
                self.rows.append((first, whole, n))
                if digest != wanted[prompt]:
                    self.errors.append("another text")
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                time.sleep(0.1)


def measure_from(port, seconds, wanted, kind, results):
    until = time.monotonic() + seconds
    streams = [Stream(port, i * 3, kind) for i in range(STREAMS)]
    threads = [threading.Thread(target=s.run, args=(until, wanted)) for s in streams]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    results.put(([r for s in streams for r in s.rows], [e for s in streams for e in s.errors]))


class Phase:
    """What was measured alone, or attacked, in all its turns."""

    def __init__(self):
        self.rows, self.errors, self.seconds = [], [], 0.0
        self.tokens = collections.Counter()  # computed, by tenant
        self.jain = []  # the worker's index of fairness of device time, at the end of each turn
        self.cpu_s = collections.Counter()  # of front and worker
        self.lag_ms = self.cpu_ms = 0.0

    def figures(self):
        first = sorted(r[0] for r in self.rows)
        whole = sum(self.tokens.values())
        return {
            "seconds": round(self.seconds, 1),
            "requests": len(self.rows),
            "errors": len(self.errors),
            "tokens_per_s": round(sum(r[2] for r in self.rows) / max(self.seconds, 1e-9), 1),
            "first_token_ms_p50": round(statistics.median(first) * 1e3, 1) if first else None,
            "first_token_ms_p99": round(first[int(len(first) * 0.99)] * 1e3, 1) if first else None,
            "first_token_ms_most": round(first[-1] * 1e3, 1) if first else None,
            "request_ms_p50": round(statistics.median(r[1] for r in self.rows) * 1e3, 1) if first else None,
            "share_of_tokens": round(self.tokens[MEASURED] / whole, 3) if whole else None,
            "cores_used": {k: round(v / max(self.seconds, 1e-9), 2) for k, v in self.cpu_s.items()},
            "jain_of_device_time": [round(j, 3) for j in self.jain],
            "computed_tokens": dict(self.tokens),
            "longest_loop_cpu_ms": self.cpu_ms,
            "longest_loop_wall_ms": self.lag_ms,
        }


def histograms(d):
    out = {}
    for name, bound, count in bench_front.BUCKET.findall(d.request("GET", "/metrics")[2]):
        out.setdefault(name, []).append((float(bound), int(count)))
    return out


def computed(d):
    """Tokens that the worker computed, by tenant."""
    rows = d.admin_request("GET", "/tenants")[1]
    rows = rows["tenants"] if isinstance(rows, dict) else rows
    return collections.Counter({r["tenant"]: r["prompt_tokens"] - r["cached_tokens"] + r["output_tokens"] for r in rows})


def rss_mb(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1)) // 1024


def cpu_s(pid):
    """CPU time of a process, all its threads."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_phase(d, phase, seconds, wanted, attack):
    """One turn: the measured tenant in a process of its own, the attackers in another."""
    results, seen, over = multiprocessing.Queue(), multiprocessing.Queue(), multiprocessing.Event()
    acts = []
    hostile = multiprocessing.Process(target=attack_from, args=(d.port, attack[0], over, seen, attack[1])) if attack else None
    if hostile:
        hostile.start()
        time.sleep(2)  # until all are at it
    pids = {"front": d.process.pid, "worker": d.worker_pid()}
    before, tokens, start = histograms(d), computed(d), time.monotonic()
    used = {k: cpu_s(p) for k, p in pids.items()}
    client = multiprocessing.Process(target=measure_from, args=(d.port, seconds, wanted, "attacked" if attack else "alone", results))
    client.start()
    rows, errors = results.get()
    client.join()
    phase.seconds += time.monotonic() - start
    phase.cpu_s.update({k: cpu_s(p) - used[k] for k, p in pids.items()})
    phase.jain.append(d.stats()["worker"]["jain"])
    phase.rows += rows
    phase.errors += errors
    after = computed(d)
    after.subtract(tokens)
    phase.tokens.update(after)
    lag, cpu = bench_front.longest(before, histograms(d))
    phase.lag_ms, phase.cpu_ms = max(phase.lag_ms, lag), max(phase.cpu_ms, cpu)
    if hostile:
        over.set()
        try:
            acts = seen.get(timeout=60)
        except queue.Empty:
            errors.append("the attackers did not end")
        hostile.join(5)
        hostile.kill()
        hostile.join()
    return acts


def keeps(d, stored):
    """How many of its stored responses the measured tenant still finds."""
    return sum(d.request("GET", "/v1/responses/" + i, headers={"Authorization": "Bearer k-" + MEASURED})[0] == 200 for i in stored)


def wait_quiet(d, limit_s=60):
    """What is still running when all clients have left."""
    end = time.monotonic() + limit_s
    while True:
        s = d.stats()
        left = {"front running": s["front"]["running"], "front queued": s["front"]["queued"], "worker running": s["worker"]["running"],
                "worker waiting": s["worker"]["waiting"], "compiling": s["worker"]["grammars_compiling"], "connections": s["front"]["connections"]}
        left = {k: v for k, v in left.items() if v}
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.2)


def measure(d, args):
    headers = {"Authorization": "Bearer k-" + MEASURED}
    alone, attacked, acts = Phase(), Phase(), collections.Counter()
    one = Stream(d.port, 0)
    wanted = [one.ask(i)[3] for i in range(len(PROMPTS))]
    stored = [d.request("POST", "/v1/responses", {"input": f"remember {i}", "max_output_tokens": 1}, headers)[2]["id"] for i in range(20)]
    begin, rss, start = time.monotonic(), [rss_mb(d.process.pid)], time.monotonic()
    end = start + args.minutes * 60
    turn = min(100, args.minutes * 60 * 0.8)
    n = 0
    while time.monotonic() < end or n == 0:
        n += 1
        run_phase(d, alone, turn / 20, wanted, None)
        for name, what, count in run_phase(d, attacked, turn, wanted, (args.seed + n, args.only)):
            acts[name, what] += count
        rss.append(rss_mb(d.process.pid))
        print(f"# {time.monotonic() - begin:.0f} s: {len(attacked.rows)} requests attacked, {len(attacked.errors)} errors, front {rss[-1]} MB", flush=True)
        left = wait_quiet(d)
        if left:
            attacked.errors.append(f"left behind: {left}")
    stats = d.stats()
    front = {k: stats["front"][k] for k in ("requests", "client_errors", "server_errors", "rejected", "cancelled", "displaced", "lost_bodies",
                                            "lost_outputs", "log_suppressed")}
    found = keeps(d, stored)
    if found != len(stored):
        attacked.errors.append(f"{found} of {len(stored)} stored responses are left")
    if stats["worker"]["deaths"]:
        attacked.errors.append(f"{stats['worker']['deaths']} workers died")
    with open(d.log_path) as log:
        text = log.read()
    front.update(rss_mb=rss, log_lines=text.count("\n"), log_lines_per_s=round(text.count("\n") / (time.monotonic() - begin), 1))
    queued = {kind: sorted(map(int, re.findall(r"id=measured-%s-\d+ .* queue_ms=(\d+)" % kind, text))) for kind in ("alone", "attacked")}
    by_act = collections.defaultdict(dict)
    for (name, what), count in sorted(acts.items()):
        by_act[name][what] = count
    figures = {"alone": alone.figures(), "attacked": attacked.figures()}
    for kind, waits in queued.items():
        figures[kind]["queue_ms_p50_p99"] = [waits[len(waits) // 2], waits[int(len(waits) * 0.99)]] if waits else None
    return {**figures, "front": front, "acts": by_act,
            "errors": collections.Counter(alone.errors + attacked.errors).most_common(20)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--minutes", type=float, default=10)
    p.add_argument("--model")
    p.add_argument("--weftd", help="another executable")
    p.add_argument("--json")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", nargs="*", help="names of acts")
    a = p.parse_args()
    if a.weftd:
        weftd.program = lambda name, own=weftd.program: a.weftd if name == "weftd" else own(name)
    with tempfile.TemporaryDirectory() as folder:
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.writelines(f"{t}:k-{t}\n" for t in (*HOSTILE, MEASURED))
        with weftd.Weftd("--api-keys", keys, *FLAGS, model=a.model or small_model()) as d:
            result = measure(d, a)
            assert d.process.poll() is None and d.health() == 200, d.log[-5000:]
            start = time.monotonic()
        result["front"]["stop_s"] = round(time.monotonic() - start, 1)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    result = {"date": time.strftime("%Y-%m-%d"), "commit": commit, "command": " ".join(["tests/bench/bench_attack.py", *sys.argv[1:]]),
              "cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()[1],
              "model": os.path.basename(a.model) if a.model else "8 layers of 512", **result}
    print(json.dumps(result, indent=1))
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(bool(result["errors"]))


if __name__ == "__main__":
    main()
