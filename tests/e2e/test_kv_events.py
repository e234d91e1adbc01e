"""KV events as those who read them expect them: the form from vLLM's description of them (ZmqEventPublisher: three frames, a
number of 8 bytes, MessagePack arrays), the use from llm-d's prefix scorer, which makes keys of its own from the tokens."""
import hashlib
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

from weftd import Skip, Weftd, keys_in, main, program

try:
    import msgpack
    import zmq
except ImportError:  # this Python is not the system's, to which the packages belong
    sys.path.append("/usr/lib/python3/dist-packages")
    try:
        import msgpack
        import zmq
    except ImportError:
        zmq = None

PAGE = 16
FLAGS = ["--page-tokens", PAGE, "--max-context", 2048]


class Router:
    """A subscriber with an index as the prefix scorer has one: from the hashes of the engine, which are names and no more, to
    keys over the tokens; what a prompt would find."""

    def __init__(self, folder, topic="kv@"):
        if zmq is None:
            raise Skip("python3-zmq and python3-msgpack are not installed")
        self.events, self.replay = f"ipc://{folder}/events", f"ipc://{folder}/replay"
        self.flags = [*FLAGS, "--kv-events", self.events, "--kv-events-replay", self.replay, "--kv-events-topic", "kv@pod-1"]
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.socket.connect(self.events)
        self.key_of, self.next_number, self.n_cleared, self.n_removed, self.batches = {}, None, 0, 0, []

    def read(self, quiet_s=0.5):
        """Takes in what comes until nothing does for a while."""
        while self.socket.poll(int(quiet_s * 1000)):
            frames = self.socket.recv_multipart()
            assert len(frames) == 3 and len(frames[1]) == 8, frames
            number = struct.unpack(">Q", frames[1])[0]
            assert self.next_number in (None, number), (self.next_number, number)
            self.next_number = number + 1
            self.topic = frames[0].decode()
            self.batches.append((number, frames[2]))
            self.take(msgpack.unpackb(frames[2], strict_map_key=False))

    def take(self, batch):
        stamp, events, rank = batch
        assert abs(stamp - time.time()) < 60 and rank == 0 and isinstance(stamp, float) and events, batch[:1]
        for event in events:
            {"BlockStored": self.stored, "BlockRemoved": self.removed, "AllBlocksCleared": self.cleared}[event[0]](*event[1:])

    def stored(self, hashes, parent, tokens, block_size, lora, medium):
        assert block_size == PAGE and len(tokens) == len(hashes) * PAGE and lora is None and medium == "GPU"
        assert parent is None or parent in self.key_of, "a block behind one that is not known"
        key = b"" if parent is None else self.key_of[parent]
        for i, name in enumerate(hashes):
            assert isinstance(name, int) and 0 < name < 1 << 64 and name not in self.key_of
            key = hashlib.sha256(key + str(tokens[i * PAGE:(i + 1) * PAGE]).encode()).digest()
            self.key_of[name] = key

    def removed(self, hashes, medium):
        assert hashes and medium == "GPU"
        for name in hashes:
            assert self.key_of.pop(name, None) or self.batches[0][0] > 0, "one that was told, or before it met"
        self.n_removed += len(hashes)

    def cleared(self):
        self.key_of, self.n_cleared = {}, self.n_cleared + 1

    def finds(self, tokens):
        """How many of its tokens the prompt would find, by the events alone. One token at least is computed."""
        keys, key, n = set(self.key_of.values()), b"", 0
        for i in range(0, (len(tokens) - 1) // PAGE * PAGE, PAGE):
            key = hashlib.sha256(key + str(tokens[i:i + PAGE]).encode()).digest()
            if key not in keys:
                break
            n += PAGE
        return n

    def wait_told(self, tokens):
        """Until all full pages of a prompt that was computed are told, and with them what came before."""
        end = time.monotonic() + 20
        while self.finds(tokens + [0]) < len(tokens) // PAGE * PAGE:
            assert time.monotonic() < end, "its pages are not told"
            self.read(0.02)

    def meet(self, w):
        """Waits until the subscription has arrived: what is told before is lost."""
        for i in range(100):
            w.complete([200 + i] * (PAGE + 2), max_tokens=1)
            self.read(0.1)
            if self.batches:
                return
        raise AssertionError("no event has come")


def cached(w, tokens, headers=None):
    status, _, value = w.request("POST", "/v1/completions", {"prompt": tokens, "max_tokens": 1, "temperature": 0}, headers)
    assert status == 200, value
    return value["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)


def some_prompt(rng):
    """Of few beginnings and any length, so that prompts share some of it."""
    tokens = []
    while len(tokens) < 400 and (not tokens or rng.random() < 0.85):
        tokens += [30 + rng.randrange(4)] * rng.choice([PAGE, PAGE, 2 * PAGE, 5])
    return tokens


def test_the_events_say_what_every_prompt_finds():
    """Each prompt finds the prefix that the events promise, token for token, also while pages are evicted."""
    rng = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        router = Router(folder)
        with Weftd(*router.flags, "--kv-memory", "2M", "--speculation", "off", "--prewarm", "no", "--pin", "off") as w:
            router.meet(w)
            missed = found = 0
            first_unseen = router.batches[0][0] > 0  # what was told before it met is evicted in time
            for i in range(200):
                prompt = some_prompt(rng)
                promised, has = router.finds(prompt), cached(w, prompt)
                router.wait_told(prompt)
                assert promised == has or (first_unseen and promised < has), (i, promised, has)
                found, missed = found + (has > 0), missed + (has == 0)
            router.read()
            pages = w.stats()["worker"]["n_pages"] if "n_pages" in w.stats()["worker"] else 1 << 30
            assert found > 20 and missed > 1 and router.n_removed > 0 and len(router.key_of) <= pages, (found, missed, router.n_removed)
            assert router.topic.startswith("kv@pod-1@tiny"), router.topic


def test_what_was_missed_comes_again():
    with tempfile.TemporaryDirectory() as folder:
        router = Router(folder)
        with Weftd(*router.flags) as w:
            router.meet(w)
            for i in range(20):
                w.complete([300 + i] * 40, max_tokens=1)
            router.read()
            ask = zmq.Context.instance().socket(zmq.DEALER)
            ask.connect(router.replay)
            for start in (0, router.batches[-3][0], router.next_number):
                ask.send_multipart([b"", struct.pack(">Q", start)])
                got = []
                while True:
                    assert ask.poll(5000), "no answer"
                    empty, number, payload = ask.recv_multipart()
                    assert empty == b""
                    if struct.unpack(">q", number)[0] == -1:
                        assert payload == b""
                        break
                    got.append((struct.unpack(">Q", number)[0], payload))
                assert [n for n, _ in got] == list(range(start, router.next_number)), (start, [n for n, _ in got])
                assert all(b in got for b in router.batches if b[0] >= start)
            ask.send_multipart([b"", b"short"])  # is no request
            ask.send_multipart([b"x"])
            ask.send_multipart([b"", struct.pack(">Q", router.next_number)])
            assert ask.poll(5000) and len(ask.recv_multipart()) == 3
            ask.close(0)
            page = w.request("GET", "/metrics")[2]
            count = {name: int(float(re.search(rf"^weft_kv_events_{name}_total\S* (\S+)$", page, re.M)[1]))
                     for name in ("published", "overruns", "replayed")}
            assert count == {"published": router.next_number, "overruns": 0, "replayed": router.next_number + 3}, count


def test_tenants_with_the_same_prompt_have_blocks_of_their_own():
    with tempfile.TemporaryDirectory() as folder:
        router = Router(folder)
        with Weftd(*router.flags, "--api-keys", keys_in(folder)) as w:
            prompt = list(range(40, 40 + 3 * PAGE))
            end = time.monotonic() + 20
            while not router.batches:
                assert time.monotonic() < end
                cached(w, [random.randrange(30, 900) for _ in range(20)], {"Authorization": "Bearer ka"})
                router.read(0.1)
            before = len(router.key_of)
            assert cached(w, prompt, {"Authorization": "Bearer ka"}) == 0
            assert cached(w, prompt, {"Authorization": "Bearer kb"}) == 0
            router.read(1)
            assert len(router.key_of) == before + 6 and len(set(router.key_of.values())) == before + 3


def test_a_new_worker_begins_with_nothing():
    with tempfile.TemporaryDirectory() as folder:
        router = Router(folder)
        with Weftd(*router.flags) as w:
            router.meet(w)
            assert router.key_of
            cleared = router.n_cleared
            w.kill_worker()
            end = time.monotonic() + 60
            while router.n_cleared == cleared:
                assert time.monotonic() < end, w.log
                router.read(0.1)
            assert not router.key_of
            prompt = [77] * 50
            w.complete(prompt, max_tokens=1)
            router.wait_told(prompt)
            assert router.finds(prompt) == 48 == cached(w, prompt)


def test_the_next_daemon_has_the_addresses():
    with tempfile.TemporaryDirectory() as folder:
        router = Router(folder)
        with Weftd("--listen", "127.0.0.1:0", *router.flags) as w:
            router.meet(w)
            r = subprocess.run([program("weftctl"), "--json", "--socket", w.admin, "upgrade"], capture_output=True, text=True, timeout=120)
            assert r.returncode == 0, r
            pid = json.loads(r.stdout)["pid"]
            try:
                router.next_number = None  # the next one counts anew
                end, i = time.monotonic() + 60, 0
                while not router.finds([300 + i] * 50):
                    assert time.monotonic() < end, w.log
                    router.key_of, router.next_number = {}, None
                    i += 1
                    w.request("POST", "/v1/completions", {"prompt": [300 + i] * 50, "max_tokens": 1})
                    router.read(0.2)
            finally:
                os.kill(pid, signal.SIGTERM)
                w.process.wait(40)


def test_what_cannot_be_is_refused_at_the_start():
    for flags, why in ((["--kv-events", "nowhere"], "kv-events: nowhere"), (["--kv-events-replay", "ipc:///x"], "needs kv-events")):
        w = Weftd(*FLAGS, *flags, wait=False)
        assert w.process.wait(30) != 0 and why in w.log, w.log
        w.folder.cleanup()


main(globals())
