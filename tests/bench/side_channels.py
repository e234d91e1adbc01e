"""What one tenant's latency tells about another's requests.

    python3 tests/bench/side_channels.py [--model FILE] [--weftd FILE] [--samples 60] [--minutes 10] [--only NAME] [--keep FILE]

Tenant A sends a request, or another one; then tenant B sends the same request in both cases and measures its time (admission: see its
class). If B can tell the cases apart, the area under the ROC curve (AUC) of its times is not 0.5. The control asks the same question within
one tenant, whose second request may find what its first has left: it shows that the measurement can see a hit. Samples of all four kinds are
interleaved in random order, so that the load of the machine falls on all alike. With --keep, a channel's samples are added to those that FILE
has from earlier calls (of the same build on the same machine), and the table is about all of them. Prints a table with 95 % intervals (bootstrap, 2,000
resamples).
"""
import argparse
import base64
import json
import os
import random
import struct
import sys
import tempfile
import threading
import time
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))

import weftd  # noqa: E402

RESAMPLES = 2000


class Channel:
    """One kind of request. prime() is what A sends, probe() what B sends; both get a secret, a number."""
    flags = ()
    model = None  # that of --model
    path = "/v1/completions"

    def body(self, secret):
        raise NotImplementedError

    def prime(self, ask, key, secret):
        ask(key, self.path, self.body(secret))

    def probe(self, ask, key, secret):
        return ask(key, self.path, self.body(secret))

    def prime_other(self, ask, key, secret):
        """What A sends in the other case."""
        self.prime(ask, key, secret + 10**9)

    def settle(self, ask):
        """Between prime and probe."""

    def finish(self):
        """After the probe."""


def words(secret, n):
    r = random.Random(secret)
    return [r.randrange(300, 500) for _ in range(n)]


class Prefixes(Channel):
    def body(self, secret):
        return {"prompt": words(secret, 300), "max_tokens": 1, "temperature": 0}


class Embeddings(Channel):
    path = "/v1/embeddings"

    def body(self, secret):
        return {"input": [words(secret, 300)]}


class Grammars(Channel):
    def body(self, secret):
        properties = {f"customer_{j}": {"type": "string", "pattern": f"^[a-z]{{3,9}}-{secret + j}[0-9]{{2,5}}$"} for j in range(40)}
        return {"prompt": "x", "max_tokens": 1, "temperature": 0, "complete_output": False,
                "guided_json": {"type": "object", "properties": properties, "required": ["customer_0"], "additionalProperties": False}}


class Drafts(Channel):
    """An output of A is a draft for the same output of B."""
    flags = ("--draft-sources", "recent")

    def body(self, secret):
        return {"prompt": words(secret, 40), "max_tokens": 200, "temperature": 0, "ignore_eos": True}


class Disk(Channel):
    """A's prefix is on disk alone: other prompts drive it out of the pages that there are."""

    def __init__(self, folder):
        self.flags = ("--kv-disk", os.path.join(folder, "tier"), "--kv-disk-size", "256M", "--kv-pages", 33, "--host-kv-memory", "0")
        self.random = random.Random(7)

    def body(self, secret):
        return {"prompt": words(secret, 300), "max_tokens": 1, "temperature": 0}

    def settle(self, ask):
        for _ in range(4):
            ask("kc", self.path, self.body(self.random.randrange(1 << 30)))


def png(secret, side, block=16):
    """A picture of random squares: a small file with many points."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    r, rows = random.Random(secret), b""
    for _ in range(side // block):
        rows += block * (b"\0" + b"".join(block * r.randbytes(3) for _ in range(side // block)))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows, 1))
            + chunk(b"IEND", b""))


class Pictures(Channel):
    """The front knows the decoded picture, and the worker its rows and the pages behind them."""
    model = str(weftd.DATA / "golden-vision" / "qwen3vl.gguf")
    path = "/v1/chat/completions"

    def body(self, secret):
        url = "data:image/png;base64," + base64.b64encode(png(secret, 384)).decode()
        return {"max_tokens": 1, "temperature": 0, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


class Admission(Channel):
    """Behind A's two requests that run wait four more of A, or none; B asks meanwhile and needs a place as well."""
    flags = ("--max-running", "2")

    def __init__(self):
        self.threads = []

    def body(self, secret):
        return {"prompt": words(secret, 8), "max_tokens": 1, "temperature": 0}

    def start(self, ask, key, n):
        self.threads = [threading.Thread(target=ask, args=(key, self.path, {"prompt": words(i, 8), "max_tokens": 300, "ignore_eos": True}))
                        for i in range(n)]
        for t in self.threads:
            t.start()
        time.sleep(0.005)

    def prime(self, ask, key, secret):
        self.start(ask, key, 6)

    def prime_other(self, ask, key, secret):
        self.start(ask, key, 2)

    def finish(self):
        for t in self.threads:
            t.join()


def asker(daemon):
    connections = threading.local()

    def ask(key, path, body):
        if not hasattr(connections, "c"):
            connections.c = daemon.connect(60)
        data = json.dumps(body).encode()
        start = time.perf_counter()
        connections.c.request("POST", path, data, {"Authorization": "Bearer " + key, "Content-Type": "application/json"})
        response = connections.c.getresponse()
        text = response.read()
        took = time.perf_counter() - start
        assert response.status == 200, (response.status, text[:300])
        return took
    return ask


def auc(hits, misses):
    """The probability that a time after the same request is below one after another request."""
    order = sorted([(t, 0) for t in hits] + [(t, 1) for t in misses])
    below, wins = 0, 0
    for _, missed in order:
        wins += below if missed else 0
        below += not missed
    return wins / (len(hits) * len(misses))


def interval(hits, misses, r):
    values = sorted(auc(r.choices(hits, k=len(hits)), r.choices(misses, k=len(misses))) for _ in range(RESAMPLES))
    return values[int(0.025 * RESAMPLES)], values[int(0.975 * RESAMPLES)]


def measure(daemon, channel, n, end, r):
    """{("other" or "own", hit): times}"""
    ask, times = asker(daemon), {(who, hit): [] for who in ("other", "own") for hit in (True, False)}
    for i in range(n + 3):
        for who, hit in sorted(times, key=lambda _: r.random()):
            secret = r.randrange(10**8)
            (channel.prime if hit else channel.prime_other)(ask, "ka", secret)
            channel.settle(ask)
            took = channel.probe(ask, "ka" if who == "own" else "kb", secret)
            channel.finish()
            if i >= 3:  # the first ones warm the machine
                times[who, hit].append(took)
        if time.monotonic() > end:
            break
    return times


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model")
    p.add_argument("--weftd")
    p.add_argument("--samples", type=int, default=60)
    p.add_argument("--minutes", type=float, default=10, help="for each channel, at most")
    p.add_argument("--only")
    p.add_argument("--keep")
    o = p.parse_args()
    kept = {}
    if o.keep and os.path.exists(o.keep):
        with open(o.keep) as file:
            kept = json.load(file)
    r = random.Random(11 + sum(len(times) for kinds in kept.values() for times in kinds.values()))  # other secrets each time
    with tempfile.TemporaryDirectory() as folder:
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.write("a:ka\nb:kb\nc:kc\n")
        channels = {"prefixes": Prefixes(), "embeddings": Embeddings(), "grammars": Grammars(), "drafts": Drafts(),
                    "admission": Admission(), "disk tier": Disk(folder), "pictures": Pictures()}
        print("| channel | samples | same, ms | other, ms | AUC for another tenant | AUC within one tenant |\n|---|---|---|---|---|---|")
        for name, channel in channels.items():
            if o.only and o.only != name:
                continue
            with weftd.Weftd("--api-keys", keys, "--max-context", "1024", *channel.flags, model=channel.model or o.model, path=o.weftd) as daemon:
                times = measure(daemon, channel, o.samples, time.monotonic() + 60 * o.minutes, r)
            mine = kept.setdefault(name, {})
            for kind, more in times.items():
                times[kind] = mine[str(kind)] = mine.get(str(kind), []) + more
            if o.keep:
                with open(o.keep, "w") as file:
                    json.dump(kept, file)
            cells = []
            for who in ("other", "own"):
                hits, misses = times[who, True], times[who, False]
                low, high = interval(hits, misses, r)
                cells.append(f"{auc(hits, misses):.2f} ({low:.2f} to {high:.2f})")
            middle = [sorted(times["other", hit])[len(times["other", hit]) // 2] * 1000 for hit in (True, False)]
            print(f"| {name} | {len(times['other', True])} | {middle[0]:.1f} | {middle[1]:.1f} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
