"""Running requests move to the next daemon in an upgrade if it produces the same tokens. Clients receive the same bytes
as without an upgrade, except for ids, times and where a stream is divided into events. The old daemon finishes requests
that do not move."""
import json
import os
import pathlib
import re
import shutil
import signal
import tempfile
import threading
import time

from manager import wait_end, wait_until
from upgrading import FLAGS, Daemon, Installed, Stream, refused, replace_version, upgrade
from weftd import LIMIT_S, copy_daemon, keys_in, main, random_tokens, seen, tiny_model

N = 800
ARRAY = {"type": "array", "items": {"enum": ["one", 2, None]}, "minItems": 400}
TOOL = {"type": "function", "function": {"name": "write", "parameters": {"type": "object", "properties": {"text": {"type": "string", "minLength": 2000}},
                                                                         "required": ["text"]}}}
TALK = [{"role": "user", "content": "Tell me all of it."}]
SAMPLED = {"max_tokens": N, "temperature": 1, "ignore_eos": True}
REQUESTS = [
    ("/v1/completions", {**SAMPLED, "prompt": random_tokens(1, 90), "seed": 1, "logprobs": 3, "logits_digest": True, "stream": True}),
    ("/v1/completions", {**SAMPLED, "prompt": random_tokens(2, 40), "seed": 2, "n": 2, "repetition_penalty": 1.2, "logprobs": 1}),
    ("/v1/completions", {**SAMPLED, "prompt": random_tokens(3, 40), "seed": 3, "echo": True, "logprobs": 2}),
    ("/v1/completions", {**SAMPLED, "prompt": random_tokens(4, 40), "seed": 4, "guided_regex": "[a-z .]{2000}", "complete_output": False, "stream": True}),
    ("/v1/chat/completions", {**SAMPLED, "messages": TALK, "seed": 5, "tools": [TOOL], "tool_choice": "required", "complete_output": False, "stream": True}),
    ("/v1/chat/completions", {**SAMPLED, "messages": TALK, "seed": 6, "complete_output": False,
                              "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": ARRAY}}}),
    ("/v1/messages", {"messages": TALK, "max_tokens": N, "temperature": 0, "model": "m", "stream": True}),
    ("/v1/responses", {"input": "Tell me all of it.", "max_output_tokens": N, "temperature": 0, "stream": True}),
]
OTHER = re.compile(r'"(id|item_id|response_id|created|created_at|completed_at|x_request_id|prompt_per_s|output_per_s|sequence_number|obfuscation|timings|tokens_per_second|'
                   r'tool_call_id|call_id|system_fingerprint|cached_tokens|cache_read_input_tokens|input_tokens|accepted_prediction_tokens|rejected_prediction_tokens|drafted|accepted)": ?("[^"]*"|[0-9.]+|null|\{[^}]*\}),? ?')


def joined(value, into):
    """Joins texts and lists of events: appends the values of @value to @into."""
    for key, v in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(v, dict) or (isinstance(v, list) and any(isinstance(x, dict) for x in v)):
            joined(v, into.setdefault(str(key), {}))
        elif isinstance(v, (str, list)) and key not in ("type", "role", "object", "model", "event", "finish_reason", "name"):
            into[str(key)] = into.get(str(key), type(v)()) + v
        else:
            into[str(key)] = v
    return into


def ask(d, path, body):
    """What the client is told, less ids and times; of a stream its events, end to end."""
    connection = d.connect()
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = OTHER.sub("", response.read().decode()).lstrip()  # spaces keep the connection of one that waits
    assert response.status == 200 and "error" not in text[:80], text
    if not body.get("stream"):
        return re.sub(r", ?}", "}", text)
    events, kinds = {}, []
    for line in text.splitlines():
        data = line[6:] if line.startswith("data: ") else None
        if data == "[DONE]":
            kinds.append(data)
        elif data:
            event = json.loads(re.sub(r", ?}", "}", data))
            kind = event.get("type", "")
            if not kinds or kinds[-1] != kind:
                kinds.append(kind)
            joined(event, events.setdefault(kind, {}))
    return kinds, events


def running(d):
    return d.admin_request("GET", "/requests")[1]["requests"]


def worker_of(d):
    return d.stats()["worker"]["pid"]


def is_there(pid):
    return os.path.exists(f"/proc/{pid}")


class Asked:
    """Requests that are sent at once and computed in part: the worker is stopped until the end of the block, or of its
    process. Then compare()."""

    def __init__(self, d, requests, workers=None):
        self.d, self.workers, self.results, self.errors = d, workers, [None] * len(requests), []
        self.threads = [threading.Thread(target=self.run, args=(i, *r)) for i, r in enumerate(requests)]

    def run(self, i, path, body):
        try:
            self.results[i] = ask(self.d, path, body)
        except Exception as error:  # noqa: BLE001: inspected by the test
            self.errors.append(error)

    def __enter__(self):
        self.workers = self.workers or [worker_of(self.d)]
        self.worker = self.workers[0]
        self.signal(signal.SIGSTOP)
        for t in self.threads:
            t.start()
        wait_until("all requests", self.goes_on)
        n = len(self.threads)
        self.n = len(running(self.d))
        assert not self.errors and self.n >= n, (self.errors, self.n)
        return self

    def signal(self, number):
        for pid in filter(is_there, self.workers):
            os.kill(pid, number)

    def goes_on(self):
        """Computes for a moment. Returns true if all requests have some of their output."""
        self.signal(signal.SIGCONT)
        time.sleep(0.005)
        self.signal(signal.SIGSTOP)
        if not self.errors and any(self.results):  # the machine paused this process, and the worker computed all of it
            self.__exit__()
            seen(False, "a request in part")
        now = running(self.d)
        return self.errors or (len({r["request_id"] for r in now}) >= len(self.threads) and all(r["output_tokens"] > 0 for r in now))

    def __exit__(self, *_):
        self.signal(signal.SIGCONT)
        for t in self.threads:
            t.join()

    def compare(self, should):
        assert not self.errors, self.errors
        for i, (got, want) in enumerate(zip(self.results, should)):
            assert got == want, f"request {i}: {got}\ninstead of\n{want}"


def end(pid):
    os.kill(pid, signal.SIGTERM)
    assert wait_end(pid) == 0


def test_every_kind_of_request_goes_on_in_the_next_daemon():
    with Daemon(*FLAGS) as d:
        text = d.complete(random_tokens(5, 40), **SAMPLED, seed=7)["text"]
        requests = REQUESTS + [("/v1/completions", {**SAMPLED, "prompt": random_tokens(5, 40), "seed": 7, "stop": text[-30:-20], "stream": True})]
        should = [ask(d, *r) for r in requests]
        with Asked(d, requests) as asked:
            pid = upgrade(d)
            wait_until("the end of the old worker", lambda: not is_there(asked.worker))
        asked.compare(should)
        assert f" requests_moved n={asked.n}" in d.log, d.log
        assert d.process.wait(LIMIT_S) == 0 and d.log.count("worker_ready") == 2
        end(pid)


def one(seed, **more):
    return "/v1/completions", {**SAMPLED, "prompt": random_tokens(seed, 40), "seed": seed, "stream": True, **more}


def test_what_befalls_the_next_daemon_does_not_befall_the_requests():
    requests = [one(20, max_tokens=1500), one(21, max_tokens=1500)]
    with Daemon(*FLAGS) as d:
        should = [ask(d, *r) for r in requests]
        # The worker of the next daemon is killed; then a client disconnects, whose request ends there, too; then the next
        # daemon is killed, and the old one continues.
        leaves = Stream(d, {"prompt": random_tokens(22, 30), "max_tokens": 16000, "ignore_eos": True, "temperature": 0, "return_token_ids": True})
        with Asked(d, requests) as asked:
            pid = upgrade(d)
            next_worker = worker_of(d)
            wait_until("the requests", lambda: f" requests_moved n={asked.n}" in d.log and told(d, next_worker) == asked.n)
            refused(d, "still finishes its requests")
            os.kill(next_worker, signal.SIGKILL)
            wait_until("its third worker", lambda: d.log.count(" worker_ready ") == 3)
            third_worker = worker_of(d)
            wait_until("the requests again", lambda: told(d, third_worker) == asked.n)
            leaves.connection.sock.shutdown(2)
            wait_until("the end of its request", lambda: tenant(d)["running"] == asked.n - 1)
            assert d.process.poll() is None
            os.kill(pid, signal.SIGKILL)
            wait_end(pid)
        asked.compare(should)
        assert " requests_came_back n=2" in d.log and d.process.wait(LIMIT_S) == 0


def told(d, worker):
    """Lets a stopped worker run for a moment. Returns the number of requests that it has reported to the front."""
    os.kill(worker, signal.SIGCONT)
    time.sleep(0.005)
    os.kill(worker, signal.SIGSTOP)
    return tenant(d)["running"]


def tenant(d, name="default"):
    return next((t for t in d.admin_request("GET", "/tenants")[1]["tenants"] if t["tenant"] == name), {"running": 0})


def test_what_would_not_get_the_same_tokens_is_ended_by_the_old_daemon():
    with tempfile.TemporaryDirectory() as folder:
        conf, requests = pathlib.Path(folder, "weft.conf"), [one(30)]
        conf.write_text("")
        installed = Installed(folder)
        for change in (installed.replace_version, lambda: conf.write_text("[engine]\nkv-type = q8_0\n"), lambda: conf.write_text("[engine]\nmax-context = 4096\n")):
            with Daemon(*FLAGS[2:], "--config", conf, path=installed.path) as d:
                should = [ask(d, *r) for r in requests]
                change()
                with Asked(d, requests) as asked:
                    pid = upgrade(d)
                    assert is_there(asked.worker)
                asked.compare(should)
                assert "requests_moved" not in d.log and d.process.wait(LIMIT_S) == 0
                end(pid)
            conf.write_text("")


def test_requests_of_several_models_and_tenants_move():
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a", "b"):
            shutil.copy(tiny_model(), f"{folder}/{name}.gguf")
        with Daemon(*FLAGS, "--models-dir", folder, "--models-memory", "600M", model="") as d:
            requests = [one(40, model="a"), one(41, model="b")]
            should = [ask(d, *r) for r in requests]
            workers = list(map(int, pathlib.Path(f"/proc/{d.process.pid}/task/{d.process.pid}/children").read_text().split()))
            assert len(workers) == 2
            with Asked(d, requests, workers):
                pid = upgrade(d)
                wait_until("the end of the old workers", lambda: not any(map(is_there, workers)))
            assert d.log.count(" requests_moved n=1") == 2
            d.process.wait(LIMIT_S)
            end(pid)
        with Daemon(*FLAGS, "--api-keys", keys_in(folder)) as d:
            stream = Stream(d, {"prompt": random_tokens(42, 30), "max_tokens": 16000, "ignore_eos": True, "return_token_ids": True}, key="ka")
            pid = upgrade(d)
            wait_until("alice's request", lambda: tenant(d, "alice")["running"] == 1)
            stream.connection.sock.shutdown(2)
            assert d.process.wait(LIMIT_S) == 0
            wait_until("its end", lambda: tenant(d, "alice")["running"] == 0)
            end(pid)


def test_on_a_device_the_old_worker_ends_before_the_next_one_loads():
    with tempfile.TemporaryDirectory(prefix="weft-device-") as folder:
        copy_daemon(folder)
        conf = pathlib.Path(folder, "weft.conf")
        conf.write_text("")
        flags = ("--backend", "cuda", "--kv-memory", "64M", "--max-context", "2048", "--config", conf)
        with Daemon(*flags, path=folder + "/weftd") as d:
            requests = [one(50, max_tokens=60), one(51, max_tokens=60, stream=False)]
            should = [ask(d, *r) for r in requests]
            with Asked(d, requests) as asked:
                # A daemon that cannot load, one with different tokens, one of another version: the old worker comes
                # back.
                conf.write_text("[engine]\nkv-pages = 1\n")
                refused(d, "a context of 2048 tokens")
                conf.write_text("[engine]\nkv-type = q8_0\n")
                refused(d, "other tokens")
                conf.write_text("")
                worker = worker_of(d)
            asked.compare(should)
            with Asked(d, requests) as asked:
                pid = upgrade(d)
            asked.compare(should)
            log = d.log
            assert log.index(f" worker_gave_way pid={asked.worker}") < log.rindex(" worker_started "), log
            assert d.process.wait(LIMIT_S) == 0
            replace_version(folder + "/weftd")
            worker = worker_of(d)
            refused(d, "another version")
            assert worker_of(d) == worker and d.complete("a", max_tokens=1)
            end(pid)


main(globals())
