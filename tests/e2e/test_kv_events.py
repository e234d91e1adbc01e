"""KV events as their readers expect them: the format of vLLM's ZmqEventPublisher (three frames, a sequence number of 8
bytes, MessagePack arrays), the use of llm-d's prefix scorer, which computes keys of its own from the tokens."""
import base64
import hashlib
import json
import os
import random
import re
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import time

from pictures import FOLDER, uri
from weftd import LIMIT_S, Skip, Weftd, keys_in, main, program

try:
    import msgpack
    import zmq
except ImportError:  # the packages belong to the system's Python, which is not this one
    sys.path.append("/usr/lib/python3/dist-packages")
    try:
        import msgpack
        import zmq
    except ImportError:
        zmq = None

PAGE = 16
FLAGS = ["--page-tokens", PAGE, "--max-context", 2048]


class Router:
    """A subscriber with an index like the prefix scorer's: it maps the engine's hashes, which are opaque names, to keys
    over the tokens, and predicts which prefix a prompt finds."""

    def __init__(self, folder, topic="kv@"):
        if zmq is None:
            raise Skip("python3-zmq and python3-msgpack are not installed")
        self.events, self.replay = f"ipc://{folder}/events", f"ipc://{folder}/replay"
        self.flags = [*FLAGS, "--kv-events", self.events, "--kv-events-replay", self.replay, "--kv-events-topic", "kv@pod-1"]
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.socket.connect(self.events)
        self.key_of, self.next_number, self.n_cleared, self.n_removed, self.batches = {}, None, 0, 0, []
        self.below = {"CPU": set(), "DISK": set()}  # names of the blocks in host memory and on disk
        self.ends, self.kinds = set(), set()  # names of blocks where a prompt can continue; (kind, window) seen

    def read(self, quiet_s=0.5):
        """Reads events until none arrives for a while."""
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

    def stored(self, hashes, parent, tokens, block_size, lora, medium, lora_name, extra, group, kind, window=None):
        assert block_size == PAGE and len(tokens) == len(hashes) * PAGE and lora is None and lora_name is None
        assert extra is None or len(extra) == len(hashes), extra
        assert group == (kind in ("sliding_window", "mamba")) and (window is not None) == (kind == "sliding_window"), (group, kind)
        self.kinds.add((kind, window))
        if group:
            assert all(name in self.key_of for name in hashes) or medium != "GPU"
            self.ends |= set(hashes) if medium == "GPU" else set()
            return
        if medium != "GPU":
            self.below[medium] |= set(hashes)
            return
        assert parent is None or parent in self.key_of, "a block behind one that is not known"
        key = b"" if parent is None else self.key_of[parent]
        for i, name in enumerate(hashes):
            assert isinstance(name, int) and 0 < name < 1 << 64 and name not in self.key_of
            key = self.key(key, tokens[i * PAGE:(i + 1) * PAGE], extra and extra[i])
            self.key_of[name] = key

    def removed(self, hashes, medium, group):
        assert hashes
        if group:
            self.ends -= set(hashes) if medium == "GPU" else set()
        elif medium != "GPU":
            self.below[medium] -= set(hashes)
        else:
            for name in hashes:
                assert self.key_of.pop(name, None) or self.batches[0][0] > 0, "one that was told, or before it met"
            self.n_removed += len(hashes)

    def cleared(self):
        self.key_of, self.n_cleared, self.ends = {}, self.n_cleared + 1, set()
        self.below = {"CPU": set(), "DISK": set()}

    @staticmethod
    def key(parent, tokens, extra):
        """Returns the key of a block. The position of a picture in its block does not count, as in llm-d's index."""
        names = [e[0] if isinstance(e, list) else e for e in extra or []]
        return hashlib.sha256(parent + str((tokens, names)).encode()).digest()

    def finds(self, tokens, extra={}):
        """Returns how many tokens of the prompt are cached according to the events; at least one token is computed.
        @extra: values of blocks, by block number."""
        keys, key, n = set(self.key_of.values()), b"", 0
        for i in range(0, (len(tokens) - 1) // PAGE * PAGE, PAGE):
            key = self.key(key, tokens[i:i + PAGE], extra.get(i // PAGE))
            if key not in keys:
                break
            n += PAGE
        return n

    def wait_told(self, tokens):
        """Until all full pages of a prompt that was computed are told, and with them what came before."""
        self.read_until("its pages are not told", lambda: self.finds(tokens + [0]) >= len(tokens) // PAGE * PAGE)

    def read_until(self, what, condition):
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, what
            self.read(0.02)

    def meet(self, w):
        """Waits until the subscription has arrived: what is told before is lost."""
        end, i = time.monotonic() + LIMIT_S, 0
        while not self.batches:
            assert time.monotonic() < end, "no event has come"
            i += 1
            last = [200 + i] * (PAGE + 2)
            w.complete(last, max_tokens=1)
            self.read(0.1)
        self.wait_told(last)


def cached(w, tokens, headers=None):
    status, _, value = w.request("POST", "/v1/completions", {"prompt": tokens, "max_tokens": 1, "temperature": 0}, headers)
    assert status == 200, value
    return value["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)


def some_prompt(rng):
    """Returns a prompt with one of few beginnings and any length, so that prompts share prefixes."""
    tokens = []
    while len(tokens) < 400 and (not tokens or rng.random() < 0.85):
        tokens += [30 + rng.randrange(4)] * rng.choice([PAGE, PAGE, 2 * PAGE, 5])
    return tokens


def test_the_events_say_what_every_prompt_finds():
    """Each prompt finds the prefix that the events predict, token for token, also while pages are evicted."""
    rng = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        router = Router(folder)
        with Weftd(*router.flags, "--kv-memory", "2M", "--speculation", "off", "--prewarm", "no", "--pin", "off") as w:
            router.meet(w)
            missed = found = 0
            first_unseen = router.batches[0][0] > 0  # blocks stored before the subscription are evicted in time
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
            router.wait_told([319] * 40)
            ask = zmq.Context.instance().socket(zmq.DEALER)
            ask.connect(router.replay)
            for start in (0, router.batches[-3][0], router.next_number):
                ask.send_multipart([b"", struct.pack(">Q", start)])
                got = []
                while True:
                    assert ask.poll(LIMIT_S * 1000), "no answer"
                    empty, number, payload = ask.recv_multipart()
                    assert empty == b""
                    if struct.unpack(">q", number)[0] == -1:
                        assert payload == b""
                        break
                    got.append((struct.unpack(">Q", number)[0], payload))
                assert [n for n, _ in got] == list(range(start, router.next_number)), (start, [n for n, _ in got])
                assert all(b in got for b in router.batches if b[0] >= start)
            ask.send_multipart([b"", b"short"])  # not a request
            ask.send_multipart([b"x"])
            ask.send_multipart([b"", struct.pack(">Q", router.next_number)])
            assert ask.poll(LIMIT_S * 1000) and len(ask.recv_multipart()) == 3
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
            end = time.monotonic() + LIMIT_S
            while not router.batches:
                assert time.monotonic() < end
                last = [random.randrange(30, 900) for _ in range(20)]
                cached(w, last, {"Authorization": "Bearer ka"})
                router.read(0.1)
            router.wait_told(last)
            before = len(router.key_of)
            assert cached(w, prompt, {"Authorization": "Bearer ka"}) == 0
            assert cached(w, prompt, {"Authorization": "Bearer kb"}) == 0
            router.read_until("the blocks of both", lambda: len(router.key_of) >= before + 6)
            assert len(router.key_of) == before + 6 and len(set(router.key_of.values())) == before + 3


def salted(w, tokens, salt):
    assert w.request("POST", "/v1/completions", {"prompt": tokens, "max_tokens": 1, "cache_salt": salt})[0] == 200


def test_a_salt_is_an_extra_key_of_the_first_block():
    with tempfile.TemporaryDirectory() as folder:
        router = Router(folder)
        with Weftd(*router.flags) as w:
            router.meet(w)
            prompt, n = [60 + i for i in range(3 * PAGE)] + [1], 3 * PAGE
            for salt in ("mine", "of another", "x" * 300):
                salted(w, prompt, salt)
            plain = [90 + i for i in range(PAGE)]  # what comes later is told later
            w.complete(plain + [1], max_tokens=1)
            router.wait_told(plain)
            assert [router.finds(prompt, {0: [salt]}) for salt in ("mine", "of another", "nobody's")] == [n, n, 0]
            assert router.finds(prompt) == 0 == router.finds(prompt, {0: ["x" * 300]}), "one that is too long is not told"


def test_a_rendered_prompt_with_pictures_finds_its_blocks():
    """The key of a block has the digests of the pictures with tokens in it, from `features` of /render, as in llm-d."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "word " * 20}, *({"type": "image_url", "image_url": {"url": uri(f)}} for f in
                ("resize/bicubic-224x128.png", "resize/source-97x61.png")), {"type": "text", "text": "word " * 20}]}]
    with tempfile.TemporaryDirectory() as folder:
        router = Router(folder)
        with Weftd(*router.flags, model=str(FOLDER / "qwen3vl.gguf")) as w:
            router.meet(w)
            status, _, rendered = w.request("POST", "/v1/chat/completions/render", {"messages": messages})
            assert status == 200 and rendered["features"] == rendered["prompts"][0]["features"], rendered
            tokens, hashes, places = rendered["token_ids"], rendered["features"]["mm_hashes"]["image"], rendered["features"]["mm_placeholders"]["image"]
            assert len(set(hashes)) == len(places) == 2 and all(re.fullmatch("[0-9a-f]{64}", h) for h in hashes), rendered["features"]
            extra = {}
            for name, place in zip(hashes, places):
                of = set(tokens[place["offset"]:place["offset"] + place["length"]])
                assert len(of) == 1 and tokens.count(of.pop()) == sum(p["length"] for p in places), "all of its tokens, and nothing else"
                for block in range(place["offset"] // PAGE, (place["offset"] + place["length"] - 1) // PAGE + 1):
                    extra.setdefault(block, []).append(name)
            assert w.request("POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 1})[0] == 200
            router.read_until("its blocks", lambda: router.finds(tokens, extra) >= (len(tokens) - 1) // PAGE * PAGE)
            assert router.finds(tokens, extra) == (len(tokens) - 1) // PAGE * PAGE
            assert router.finds(tokens, {k: ["0" * 64] for k in extra}) == min(extra) * PAGE
            plain = w.request("POST", "/v1/completions/render", {"prompt": "word"})[2]
            assert "features" not in plain[0], plain


def test_blocks_in_host_memory_and_on_disk():
    with tempfile.TemporaryDirectory() as folder:
        router = Router(folder)
        disk = ("--kv-memory", "2M", "--host-kv-memory", "8M", "--kv-disk", folder, "--kv-disk-size", "64M", "--prewarm", "no")
        with Weftd(*router.flags, *disk) as w:
            router.meet(w)
            end, i = time.monotonic() + LIMIT_S, 0
            while not (router.below["CPU"] and router.below["DISK"] and router.n_removed):
                assert time.monotonic() < end, (len(router.below["CPU"]), len(router.below["DISK"]), router.n_removed)
                i += 1
                w.request("POST", "/v1/completions", {"prompt": [100 + i] * 400, "max_tokens": 1}, {"x-session-id": str(i % 3)})
                router.read(0.05)
            assert router.kinds == {("full_attention", None)}, router.kinds


def test_windows_and_states_are_groups_of_their_own():
    from golden_models import golden
    for name, *kinds in (("gemma3", "full_attention", "sliding_window"), ("qwen35-mtp", "full_attention", "mamba"),
                         ("bailingmoe3", "mla_attention", "mamba")):
        with tempfile.TemporaryDirectory() as folder:
            router = Router(folder)
            with Weftd(*router.flags[2:], "--page-tokens", PAGE, "--max-context", 1024, model=golden(name)) as w:
                router.meet(w)
                end, i = time.monotonic() + LIMIT_S, 0
                while not router.ends:
                    assert time.monotonic() < end, name
                    i += 1
                    w.complete([40 + i % 5] * 200, max_tokens=2)
                    router.read(0.1)
                assert {k for k, _ in router.kinds} == set(kinds), router.kinds
                assert router.ends <= set(router.key_of)


class Reader:
    """An external program that reads batches; an environment variable names its command. One line of JSON in each
    direction."""

    def __init__(self, variable):
        if not os.environ.get(variable):
            raise Skip(variable + " is not set")
        self.process = subprocess.Popen(shlex.split(os.environ[variable]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        stderr=subprocess.DEVNULL)

    def ask(self, **line):
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def batches_of_everything(folder):
    """Returns a router that has received batches of text, salts, host memory, disk and removals; and the prompts that
    are still cached."""
    router = Router(folder)
    disk = ("--kv-memory", "2M", "--host-kv-memory", "8M", "--kv-disk", folder, "--kv-disk-size", "64M", "--prewarm", "no")
    with Weftd(*router.flags, *disk) as w:
        router.meet(w)
        rng, prompts = random.Random(9), []
        for i in range(60):
            prompts.append((some_prompt(rng), i % 3 and f"salt-{i % 3}"))
            body = {"prompt": prompts[-1][0], "max_tokens": 1, **({"cache_salt": prompts[-1][1]} if prompts[-1][1] else {})}
            assert w.request("POST", "/v1/completions", body)[0] == 200
        router.read(2)
        assert router.below["CPU"] and router.below["DISK"] and router.n_removed
    return router, prompts


def test_llm_d_finds_what_our_reader_finds():
    """WEFT_TEST_LLMD reads {"topic", "payload"} (base64), and {"tokens", "model", "extra"}, which it answers with the
    pods that have each block."""
    reader = Reader("WEFT_TEST_LLMD")
    with tempfile.TemporaryDirectory() as folder:
        router, prompts = batches_of_everything(folder)
        for _, payload in router.batches:
            answer = reader.ask(topic=router.topic, payload=base64.b64encode(payload).decode())
            assert answer.get("events"), answer
        found = 0
        for prompt, salt in prompts:
            tokens, model = prompt[:(len(prompt) - 1) // PAGE * PAGE], router.topic.split("@")[2]
            if not tokens:  # llm-d looks up full blocks only
                continue
            extra = [[salt] if i == 0 and salt else None for i in range(len(tokens) // PAGE)]
            blocks = reader.ask(tokens=tokens, model=model, extra=extra)["blocks"]
            n = next((i for i, pods in enumerate(blocks) if not any(p.startswith("pod-1@gpu") for p in pods)), len(blocks))
            assert n * PAGE == router.finds(prompt, {0: [salt]} if salt else {}), (n, prompt[:4], salt)
            found += n > 0
        assert found > 5, found


def test_dynamo_decodes_the_batches():
    """WEFT_TEST_DYNAMO reads {"hex"}, and answers with the batch as Dynamo's wire types serialise it."""
    reader = Reader("WEFT_TEST_DYNAMO")
    with tempfile.TemporaryDirectory() as folder:
        router, _ = batches_of_everything(folder)
        media = set()
        for _, payload in router.batches:
            got, should = reader.ask(hex=payload.hex()), msgpack.unpackb(payload, strict_map_key=False)[1]
            assert "error" not in got, got
            for event, raw in zip(got["events"], should):
                assert event["type"] == raw[0]
                if raw[0] == "AllBlocksCleared":
                    continue
                assert event["block_hashes"] == raw[1] and event["group_idx"] == raw[3 if raw[0] == "BlockRemoved" else 9]
                media.add(event["medium"])
                if raw[0] == "BlockStored":
                    assert event["token_ids"] == raw[3] and event["parent_block_hash"] == raw[2] and event["block_size"] == PAGE
                    assert event["kv_cache_spec_kind"] == raw[10] == "full_attention"
        assert media == {"GPU", "CPU", "DISK"}, media


def test_a_new_worker_begins_with_nothing():
    with tempfile.TemporaryDirectory() as folder:
        router = Router(folder)
        with Weftd(*router.flags) as w:
            router.meet(w)
            assert router.key_of
            cleared = router.n_cleared
            w.kill_worker()
            end = time.monotonic() + LIMIT_S
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
            r = subprocess.run([program("weftctl"), "--json", "--socket", w.admin, "upgrade"], capture_output=True, text=True, timeout=LIMIT_S)
            assert r.returncode == 0, r
            pid = json.loads(r.stdout)["pid"]
            try:
                router.next_number = None  # the next one counts anew
                end, i = time.monotonic() + LIMIT_S, 0
                while not router.finds([300 + i] * 50):
                    assert time.monotonic() < end, w.log
                    router.key_of, router.next_number = {}, None
                    i += 1
                    w.request("POST", "/v1/completions", {"prompt": [300 + i] * 50, "max_tokens": 1})
                    router.read(0.2)
            finally:
                os.kill(pid, signal.SIGTERM)
                w.process.wait(LIMIT_S)


def test_what_cannot_be_is_refused_at_the_start():
    for flags, why in ((["--kv-events", "nowhere"], "kv-events: nowhere"), (["--kv-events-replay", "ipc:///x"], "set kv-events, too")):
        w = Weftd(*FLAGS, *flags, wait=False)
        assert w.process.wait(LIMIT_S) != 0 and why in w.log, w.log
        w.folder.cleanup()


main(globals())
