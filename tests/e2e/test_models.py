"""Several models in one daemon: loaded on request, unloaded for others, without losing requests."""
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import re
import threading
import time

from weftd import BACKEND, LIMIT_S, Weftd, beside, dead_mount, fewer, main, parallel, program, random_tokens, seen, synth, wait_until

MIB = 1 << 20
# KV of 16 MiB, weights and buffers of about 37 MiB: two models fit.
FLAGS = ("--kv-memory", "16M", "--models-memory", "120M", "--threads", "1", "--max-context", "2048", "--backend", BACKEND)


def folder_of(names):
    """Returns a temporary folder with tiny models of these names, each with different weights."""
    folder = tempfile.TemporaryDirectory(prefix="weft-models-")
    for i, name in enumerate(names):
        model = synth(f"tiny-of-many-{i}", "--arch", "qwen3", "--shape", "tiny,context=131072", "--format", "Q4_K_M", "--seed", str(40 + i))
        os.link(model, os.path.join(folder.name, name + ".gguf")) if same_device(model, folder.name) else copy(model, folder.name, name)
    return folder


def same_device(a, b):
    return os.stat(a).st_dev == os.stat(b).st_dev


def copy(model, folder, name):
    pathlib.Path(folder, name + ".gguf").write_bytes(pathlib.Path(model).read_bytes())


def ask(d, model, n=8, seed=1, key="", **more):
    body = {"model": model, "prompt": random_tokens(seed, 30), "max_tokens": n, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
    status, headers, value = d.request("POST", "/v1/completions", {**body, **more}, {"Authorization": "Bearer " + key} if key else None)
    assert status == 200, (status, value)
    assert value["model"] == model, value
    return value["choices"][0]["token_ids"]


def models(d):
    """Returns the models that are served, without those that a swap loads or unloads."""
    return {m["id"]: m for m in d.admin_request("GET", "/models")[1]["models"] if m.get("swap") not in ("next", "old")}


def states(d):
    return {name: m["state"] for name, m in models(d).items()}


def wait_state(d, name, state):
    wait_until(f"{name} is not {state}", lambda: states(d)[name] == state)


def test_models_are_loaded_when_they_are_asked_for_and_the_least_recently_used_leaves():
    with folder_of("abc") as folder, Weftd("--models-dir", folder, *FLAGS, model="") as d:
        assert states(d) == {"a": "unloaded", "b": "unloaded", "c": "unloaded"}, states(d)
        assert d.health() == 200
        a = ask(d, "a")
        b = ask(d, "b")
        assert a != b, "they are the same model: the test is blind"
        assert states(d) == {"a": "loaded", "b": "loaded", "c": "unloaded"}, states(d)
        assert ask(d, "a") == a
        ask(d, "c")  # b was used before a
        assert states(d)["a"] == "loaded" and states(d)["b"] == "unloaded" and states(d)["c"] == "loaded", states(d)
        assert ask(d, "b") == b
        assert states(d)["a"] == "unloaded", states(d)
        assert ask(d, "a") == a
        got = models(d)
        assert sum(m["bytes"] for m in got.values() if m["state"] == "loaded") <= 120 * MIB, got
        status, _, value = d.request("POST", "/v1/completions", {"model": "d", "prompt": "x"})
        assert status == 404 and "The models are: a, b, c." in value["error"]["message"], value
        status, _, value = d.request("POST", "/v1/completions", {"prompt": [20, 21], "max_tokens": 1})
        assert status == 200 and value["model"] == "a", value  # the first model


def test_figures_are_of_a_model_that_is_loaded():
    """a file that cannot be loaded stands before it"""
    with folder_of("ab") as folder:
        a = pathlib.Path(folder, "a.gguf")
        content = a.read_bytes()[:1000]
        a.unlink()
        a.write_bytes(content)
        with Weftd("--models-dir", folder, *FLAGS, model="") as d:
            assert d.request("POST", "/v1/completions", {"model": "a", "prompt": "x"})[0] == 503
            assert not any("memory_bytes" in m for m in models(d).values()), models(d)
            ask(d, "b")
            got = models(d)
            assert "memory_bytes" not in got["a"] and got["b"]["memory_bytes"] == got["b"]["bytes"] > 0, got
            assert d.stats()["model"]["id"] == "b", d.stats()
            wait_until("the figures are not b's", lambda: d.stats()["worker"]["output_tokens"] == 8)
            table = subprocess.run([program("weftctl"), "--socket", d.admin, "ps"], capture_output=True, text=True, check=True).stdout
            assert re.search(r"(?m)^a +failed +- ", table) and re.search(r"(?m)^b +loaded +[\d.]+ [KM]iB ", table), table


def stream(d, model, n, begun=None):
    """Returns the tokens of a stream; sets @begun when the first tokens have arrived."""
    got = []
    body = {"model": model, "prompt": random_tokens(1, 30), "max_tokens": n, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
    for chunk in d.stream("/v1/completions", body):
        assert "error" not in chunk, chunk
        if begun:
            begun.set()
        for choice in chunk["choices"]:
            got += choice.get("token_ids") or []
    return got


def test_a_running_request_is_never_ended_for_another_model():
    """With every model busy, the one that was loaded first accepts no more requests until its streams have ended."""
    with folder_of("abc") as folder, Weftd("--models-dir", folder, *FLAGS, model="") as d:
        should = {m: ask(d, m, 1500) for m in "ab"}
        ask(d, "c")
        ends = {}
        begun = {m: threading.Event() for m in "ab"}

        def run(model):
            got = stream(d, model, 1500, begun[model])
            ends[model] = time.monotonic()
            assert got == should[model], f"{model} differs after {len(got)} tokens"

        def third():
            for event in begun.values():
                event.wait(LIMIT_S)
            ask(d, "c", 2)
            ends["c"] = time.monotonic()

        parallel([lambda: run("a"), lambda: run("b"), third])
        assert ends["c"] > min(ends["a"], ends["b"]), f"nothing had to wait: the test is blind: {ends}"


def test_a_model_that_a_request_waits_for_is_loaded_whatever_the_operator_unloads():
    """There is room for one model. The operator unloads the other one while it and a request for it wait for room."""
    flags = [flag if flag != "120M" else "60M" for flag in FLAGS]
    with folder_of("ab") as folder, Weftd("--models-dir", folder, "--load-wait-ms", "120000", "--hang-timeout-ms", "600000", *flags, model="") as d:
        begun = threading.Event()
        ask(d, "a", 2)
        worker = models(d)["a"]["worker"]["pid"]  # asked for now: a stream takes a tenth of a second

        def waits():
            assert begun.wait(LIMIT_S)
            os.kill(worker, signal.SIGSTOP)  # its stream does not end before it is looked at
            ask(d, "b", 2)

        def operator():
            wait_state(d, "b", "queued")
            assert d.admin_request("POST", "/models/b/unload")[0] == 200
            assert states(d)["b"] == "queued", states(d)
            os.kill(worker, signal.SIGCONT)

        parallel([lambda: stream(d, "a", 1500, begun), waits, operator])


def test_a_tenants_many_models_do_not_drive_out_anothers():
    """There is room for one model. Without shares, each request of the other tenant would find its model unloaded."""
    flags = [flag if flag != "120M" else "60M" for flag in FLAGS]
    with folder_of("abcd") as folder, tempfile.TemporaryDirectory() as keys:
        pathlib.Path(keys, "keys").write_text("alice:ka\nbob:kb\n")
        with Weftd("--models-dir", folder, "--api-keys", keys + "/keys", *flags, model="") as d:
            over, n_flood = threading.Event(), [0] * 3

            def flood(k):
                while not over.is_set():
                    ask(d, "bcd"[k], 2, key="ka")
                    n_flood[k] += 1

            def asks_now_and_then():
                n = 0
                while min(n_flood) == 0:
                    time.sleep(0.01)
                until = sum(n_flood) + 6
                while n < 24 or sum(n_flood) < until:
                    ask(d, "a", 2, key="kb")
                    time.sleep(0.02)
                    n += 1
                over.set()
                return n

            n = parallel([asks_now_and_then, *(lambda k=k: flood(k) for k in range(3))])[0]
            loads = models(d)["a"]["loads"]
            seen(loads <= n / 3, f"{loads} loads for {n} requests")


def test_a_tenant_that_asks_two_models_has_not_twice_as_much():
    """The two tenants share the only slot of one model; it would be split evenly if usage of the other model did not
    count."""
    with folder_of("ab") as folder, tempfile.TemporaryDirectory() as keys:
        pathlib.Path(keys, "keys").write_text("alice:ka\nbob:kb\n")
        with Weftd("--models-dir", folder, "--api-keys", keys + "/keys", "--max-seqs", "1", *FLAGS, model="") as d:
            over, had = threading.Event(), {"ka": 0, "kb": 0}

            def client(key, model, k):
                i = 0
                while not over.is_set():
                    i += 1
                    ask(d, model, 60, seed=100 * k + i, key=key)
                    if model == "a":
                        had[key] += 1
                    if sum(had.values()) >= 320:
                        over.set()

            ask(d, "a", 1, key="kb")
            ask(d, "b", 1, key="kb")
            parallel([lambda a=a, k=k: client(*a, k) for a in (("ka", "a"), ("ka", "b"), ("kb", "a")) for k in range(3)])
            # A ninth, but for the first tenths of a second, until the workers are told; without being told a half.
            assert had["ka"] >= 1, had
            seen(had["ka"] <= 110, had)
            text = d.request("GET", "/metrics", headers={"Authorization": "Bearer ka"})[2]
            seconds = {"alice": 0, "bob": 0, "default": 0}
            for line in text.splitlines():
                if line.startswith("weft_tenant_device_seconds_total{"):
                    seconds[line.split('tenant="')[1].split('"')[0]] += float(line.rsplit(" ", 1)[1])
            assert seconds["alice"] > 0.1 and seconds["bob"] > 0.1 and seconds["default"] == 0, seconds


def test_swaps_under_load_lose_nothing():
    """Clients of three models, of which two fit, while the operator loads and unloads models."""
    with folder_of("abc") as folder, Weftd("--models-dir", folder, *FLAGS, "--load-wait-ms", "60000", model="") as d:
        should = {(m, seed): ask(d, m, 24, seed) for m in "abc" for seed in range(3)}
        stop = threading.Event()

        def loads():
            return sum(m["loads"] for m in models(d).values())

        def client(i):
            r = random.Random(i)
            n, end = 0, time.monotonic() + LIMIT_S
            while n < fewer(12) or loads() <= fewer(6):
                assert time.monotonic() < end, f"{loads()} loads"
                n += 1
                m, seed = r.choice("abc"), r.randrange(3)
                assert ask(d, m, 24, seed) == should[m, seed]

        def operator():
            r = random.Random(99)
            while not stop.is_set():
                status, value = d.admin_request("POST", f"/models/{r.choice('abc')}/{r.choice(['load', 'unload'])}")
                assert status == 200, value
                time.sleep(0.05)

        thread = threading.Thread(target=operator)
        thread.start()
        try:
            parallel([lambda i=i: client(i) for i in range(6)])
        finally:
            stop.set()
            thread.join()
        assert d.stats()["front"]["server_errors"] == 0, d.stats()["front"]


def swap(d, name, file=None, limit_s=LIMIT_S):
    """How it ended; and all that was replaced is gone."""
    end = time.monotonic() + limit_s
    status = 0
    while status != 200:  # no second swap starts during a load
        status, value = d.admin_request("POST", f"/models/{name}/swap" + (f"?file={file}" if file else ""))
        assert status == 200 or "is being" in value["error"]["message"], value
        assert time.monotonic() < end, value
    while models(d)[name]["swap"] == "under way" or any(m.get("swap") == "old" for m in d.admin_request("GET", "/models")[1]["models"]):
        assert time.monotonic() < end, d.admin_request("GET", "/models")
        time.sleep(0.01)
    return models(d)[name]["swap"]


def swap_under_load(d, name, files, should, n_swaps):
    """Clients stream while the model is replaced repeatedly, at least @n_swaps times; each answer has the tokens of exactly
    one file, complete, and there are answers of each. At the end the last file is served."""
    stop = threading.Event()
    done = []

    def client(i):
        while not stop.is_set():
            got = tuple(stream(d, name, 200)) if i % 2 else tuple(ask(d, name, 200))
            assert got in should, f"{len(got)} tokens that are neither file's"
            done.append(got)

    def operator():
        i, end = 0, time.monotonic() + LIMIT_S
        try:
            while i < n_swaps or i % len(files) or len(done) <= i or not all(done.count(s) for s in should):
                assert time.monotonic() < end, (i, len(done))
                assert swap(d, name, files[i % len(files)]) == "done"
                i += 1
        finally:
            stop.set()

    parallel([lambda i=i: client(i) for i in range(4)] + [operator])
    front = d.stats()["front"]
    assert front["server_errors"] == 0 and front["rejected"] == 0, front
    return len(done)


def test_a_swap_of_the_only_model_loses_nothing_and_leaves_nothing_behind():
    with folder_of("ab") as folder, Weftd(*FLAGS[4:], "--kv-memory", "16M", model=f"{folder}/a.gguf") as d:
        a, b = f"{folder}/a.gguf", f"{folder}/b.gguf"
        d.request("POST", "/api/generate", {"model": "a", "keep_alive": 0})
        assert models(d)["a"]["unload_ms"] == -1, "what is always loaded is never unloaded"
        should = [tuple(ask(d, "a", 200))]
        assert swap(d, "a", b) == "done"
        should.append(tuple(ask(d, "a", 200)))
        assert should[0] != should[1]
        fds = len(os.listdir(f"/proc/{d.process.pid}/fd"))
        swap_under_load(d, "a", [a, b], should, fewer(10))
        assert swap(d, "a", f"{folder}/none.gguf").startswith("failed: ")
        assert tuple(ask(d, "a", 200)) == should[1], "the old one is not served on"
        wait_until("descriptors are left open", lambda: len(os.listdir(f"/proc/{d.process.pid}/fd")) <= fds + 6)


@beside
def test_a_mount_that_does_not_answer_delays_only_its_model():
    with folder_of("ab") as folder, Weftd("--models-dir", folder, *FLAGS, "--load-wait-ms", "600000", model="",
                                          env=dead_mount(f"{folder}/a.gguf")) as d:
        away, should, got = pathlib.Path(folder, "a.gguf.away"), ask(d, "a"), []
        assert d.admin_request("POST", "/models/a/unload")[0] == 200
        wait_state(d, "a", "unloaded")
        away.touch()
        waiter = threading.Thread(target=lambda: got.append(ask(d, "a")))
        waiter.start()
        wait_state(d, "a", "opening")
        assert ask(d, "b") and d.health() == 200
        assert d.admin_request("POST", "/models/b/swap?file=" + str(pathlib.Path(folder, "a.gguf")))[0] == 200, "another way to it"
        assert ask(d, "b") and d.health() == 200
        assert states(d)["a"] == "opening" and not got, states(d)
        away.unlink()
        waiter.join(LIMIT_S)
        assert got == [should], got


@beside
def test_many_files_that_do_not_answer_delay_no_other_load_and_no_reload():
    dead, got = [f"a{i}" for i in range(6)], []
    with folder_of([*dead, "b"]) as folder, Weftd("--models-dir", folder, *FLAGS, "--load-wait-ms", "600000", model="",
                                                  env=dead_mount(f"{folder}/a")) as d:
        away = pathlib.Path(folder, "a.away")
        away.touch()
        waiters = [threading.Thread(target=lambda m=m: got.append(ask(d, m))) for m in dead]
        for w in waiters:
            w.start()
        for m in dead:
            wait_state(d, m, "opening")
        assert ask(d, "b") and not got
        assert d.admin_request("POST", "/reload")[0] == 200
        assert set(states(d)[m] for m in dead) == {"opening"} and not got
        away.unlink()
        for w in waiters:
            w.join(LIMIT_S)
        assert len(got) == len(dead), got


@beside
def test_weftctl_lists_loads_unloads_and_swaps():
    def ctl(d, *args):
        done = subprocess.run([program("weftctl"), "--socket", d.admin, *args], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    with folder_of("ab") as folder, Weftd("--models-dir", folder, *FLAGS, model="") as d:
        assert ctl(d, "load", "a") == (0, "a: loaded\n")
        code, out = ctl(d, "ps")
        assert code == 0 and [line.split()[:2] for line in out.splitlines()] == [["MODEL", "STATE"], ["a", "loaded"], ["b", "unloaded"]], out
        before = ask(d, "a")
        assert ctl(d, "swap", "a", f"{folder}/b.gguf") == (0, "a: done\n")
        assert ask(d, "a") == ask(d, "b") != before
        assert ctl(d, "unload", "a") == (0, "a: unloaded\n")
        flights = [pathlib.Path(folder, f"flight-{name}") for name in "ab"]
        for name, file in zip("ab", flights):
            assert ctl(d, "dump", str(file), name)[0] == 0
        assert flights[0].read_bytes() != flights[1].read_bytes()
        status, value = d.admin_request("GET", "/flight/none")
        assert status == 404 and "no model is named none" in value["error"]["message"], value
        code, out = ctl(d, "load", "none")
        assert code == 1 and "no model is named none" in out, out
        time.sleep(2.1)
        copy(f"{folder}/b.gguf", folder, "later")
        assert ctl(d, "load", "later") == (0, "later: loaded\n")
        os.unlink(f"{folder}/later.gguf")
        pathlib.Path(folder, "bad.gguf").write_bytes(b"GGUF")
        code, out = ctl(d, "swap", "b", f"{folder}/bad.gguf")
        assert code == 1 and "failed: " in out and "bad.gguf" in out, out


def test_a_swap_without_room_for_both_waits_for_the_old_one():
    with folder_of("ab") as folder, Weftd("--models-dir", folder, "--kv-memory", "16M", "--models-memory", "70M", *FLAGS[4:], model="") as d:
        should = [tuple(ask(d, "a", 200)), tuple(ask(d, "b", 200))]
        swap_under_load(d, "a", [f"{folder}/b.gguf", f"{folder}/a.gguf"], should, 6)
        assert set(states(d)) == {"a", "b"}, states(d)


def test_the_death_of_one_worker_leaves_the_others_alone():
    with folder_of("ab") as folder, Weftd("--models-dir", folder, *FLAGS, model="") as d:
        should = {m: ask(d, m, 1500) for m in "ab"}
        pids = {name: m["worker"]["pid"] for name, m in models(d).items()}
        begun = threading.Event()

        def kill():
            begun.wait(LIMIT_S)
            os.kill(pids["a"], 9)

        got = parallel([lambda: stream(d, "a", 1500, begun), lambda: stream(d, "b", 1500), kill])
        assert got[0] == should["a"] and got[1] == should["b"]
        wait_until("its death is counted", lambda: models(d)["a"]["worker"]["deaths"] == 1)
        assert models(d)["b"]["worker"]["pid"] == pids["b"] and models(d)["b"]["worker"]["deaths"] == 0, models(d)


def test_tokens_of_front_and_worker_are_the_same():
    with folder_of("a") as folder, Weftd("--models-dir", folder, *FLAGS, model="") as d:
        ask(d, "a", 4, seed=1)
        ask(d, "a", 6, seed=2)
        wait_until("the worker's report", lambda: d.stats()["worker"]["output_tokens"] == 10)
        s = d.stats()
        assert s["front"]["output_tokens"] == 10 and s["worker"]["finished"] == 2, s
        assert s["worker"]["prompt_tokens"] + s["worker"]["cached_tokens"] == s["front"]["prompt_tokens"] == 60, s


def why(d, name):
    """Returns the story of the request @name, with times in ms, and queue_ms of its line in the log."""
    status, story = d.admin_request("GET", f"/requests/{name}/why")
    assert status == 200, story
    queued = re.search(f" id={name} .* queue_ms=([0-9]+)", d.log)
    return story["records"], int(queued[1])


def test_why_tells_the_waits_before_the_scheduler():
    with folder_of("a") as folder, Weftd("--models-dir", folder, *FLAGS, model="") as d:
        for name, waits in (("first", True), ("second", False)):
            body = {"model": "a", "prompt": random_tokens(1, 30), "max_tokens": 4, "ignore_eos": True}
            assert d.request("POST", "/v1/completions", body, {"x-request-id": name})[0] == 200
            records, queue_ms = why(d, name)
            loads = [r["ms"] for r in records if r["why"] == "load"]
            prompt = next(r for r in records if r["why"] == "prompt")
            assert len(loads) == waits and abs(prompt["at_ms"] - queue_ms) <= 5 + queue_ms / 20, (records, queue_ms)
            assert not waits or loads[0] > 0.5 * queue_ms, (records, queue_ms)
            assert all(a["at_ms"] + a["ms"] <= b["at_ms"] + 0.01 for a, b in zip(records, records[1:])), records
        text = subprocess.run([program("weftctl"), "--socket", d.admin, "why", "first"], capture_output=True, text=True, timeout=LIMIT_S).stdout
        assert re.match(r"took .* waiting \(.* waited for its model to be loaded", text), text
        assert re.search(r"\bload +waited for its model to be loaded: ", text), text


def test_why_tells_the_wait_for_a_new_worker():
    with folder_of("a") as folder, Weftd("--models-dir", folder, *FLAGS, model="") as d:
        ask(d, "a")

        def story_of_a_death():
            pid, begun = models(d)["a"]["worker"]["pid"], threading.Event()

            def kill():
                begun.wait(LIMIT_S)
                os.kill(pid, 9)

            parallel([lambda: stream(d, "a", 1500, begun), kill])
            wait_until("a new worker", lambda: models(d)["a"]["worker"]["pid"] not in (0, pid))
            return why(d, re.findall(r" request id=(\S+) .*output=1500 ", d.log)[-1])[0]

        for _ in range(10):  # a kill may come behind the last token
            records = story_of_a_death()
            codes = [r["why"] for r in records]
            if codes.count("queued") == 2:
                break
        n = len(codes) - 1 - codes[::-1].index("worker")  # an earlier one may be the way to the first worker
        assert codes[n - 1] in ("prompt", "decode") and codes[n + 1] == "queued" and records[n]["ms"] > 1, records


def test_what_cannot_be_loaded_says_why_and_harms_nothing():
    with folder_of("ab") as folder:
        whole = pathlib.Path(folder, "b.gguf").read_bytes()
        pathlib.Path(folder, "cut.gguf").write_bytes(whole[:5000])
        pathlib.Path(folder, "none.gguf").write_bytes(b"not a model" * 100)
        with Weftd("--models-dir", folder, *FLAGS, model="") as d:
            a = ask(d, "a")
            for name in ("cut", "none"):
                status, headers, value = d.request("POST", "/v1/completions", {"model": name, "prompt": "x"})
                assert status == 503 and value["error"]["code"] == "model_unavailable", value
                assert name + ".gguf" in value["error"]["message"] and int(headers["Retry-After"]) >= 1, value
                assert states(d)[name] == "failed" and models(d)[name]["reason"], models(d)
            assert ask(d, "a") == a
            has = models(d)["a"]["bytes"]
        with Weftd("--models-dir", folder, *FLAGS[2:], "--kv-memory", "128M", model="") as d:
            status, _, value = d.request("POST", "/v1/completions", {"model": "a", "prompt": "x"})
            assert status == 503 and "models-memory" in value["error"]["message"], value
            # The estimate before loading equals the size after it, with the larger KV.
            assert f"it needs {(has >> 20) + 112} MiB" in value["error"]["message"], (has, value)


def test_capabilities_are_known_before_a_model_is_loaded():
    with folder_of("ab") as folder:
        a = pathlib.Path(folder, "a.gguf")
        data = a.read_bytes()
        a.unlink()
        part = b"You can call these functions:"  # of the template
        a.write_bytes(data.replace(part, b"</think>".ljust(len(part))))
        pathlib.Path(folder, "mmproj-b.gguf").write_bytes(b"")
        with Weftd("--models-dir", folder, *FLAGS, model="") as d:
            for name, last in (("a", "thinking"), ("b", "vision")):
                status, _, value = d.request("POST", "/api/show", {"model": name})
                assert status == 200 and value["capabilities"] == ["completion", "tools", last], (name, value["capabilities"])
            types = {m["id"]: m["type"] for m in d.request("GET", "/api/v0/models")[2]["data"]}
            assert types == {"a": "llm", "b": "vlm"}, types
            assert set(states(d).values()) == {"unloaded"}, states(d)


@beside
def test_presets_have_their_own_options_and_idle_models_are_unloaded():
    with folder_of("ab") as folder, tempfile.TemporaryDirectory() as presets:
        pathlib.Path(presets, "small.conf").write_text("model = a\naliases = gpt-*, tiny\nmax-context = 512\nkeep-alive-s = 5\n")
        pathlib.Path(presets, "kept.conf").write_text(f"# always there\nmodel = {folder}/b.gguf\npinned = yes\n")
        with Weftd("--models", presets, "--models-dir", folder, *FLAGS, model="") as d:
            assert set(states(d)) == {"small", "kept", "a", "b"}, states(d)
            listed = {m["id"]: m for m in d.request("GET", "/v1/models")[2]["data"]}
            for name, m in listed.items():  # only "kept" was loaded
                assert m["max_model_len"] == (512 if name == "small" else 2048), m
                assert m["meta"]["n_ctx"] == m["max_model_len"], m
                assert m["meta"]["n_ctx_train"] > 2048 and m["meta"]["n_params"] > 0 and m["meta"]["n_vocab"] > 0, m
                file = pathlib.Path(folder, ("b" if name in ("kept", "b") else "a") + ".gguf")
                assert m["created"] == int(file.stat().st_mtime), m
            assert d.request("GET", "/props?model=small")[2]["default_generation_settings"]["n_ctx"] == 512
            wait_state(d, "kept", "loaded")
            status, _, value = d.request("POST", "/v1/completions", {"model": "gpt-5", "prompt": "x", "max_tokens": 1})
            assert status == 200 and value["model"] == "small", value
            listed = {m["id"]: m for m in d.request("GET", "/v1/models")[2]["data"]}
            assert listed["small"]["max_model_len"] == 512 and listed["kept"]["max_model_len"] == 2048, listed
            assert listed["small"]["status"]["value"] == "loaded" and listed["a"]["status"]["value"] == "unloaded", listed
            wait_state(d, "small", "unloaded")
            status, value = d.admin_request("POST", "/models/kept/unload")
            assert status == 400 and "pinned" in value["error"]["message"], value
            ask(d, "a")
            ask(d, "b")
            assert states(d)["kept"] == "loaded", states(d)


@beside
def test_an_idle_model_sleeps_and_the_next_request_wakes_it():
    """One model and no folder: with keep-alive-s it is unloaded when idle, and by /sleep without that option."""
    def workers(d):
        return pathlib.Path(f"/proc/{d.process.pid}/task/{d.process.pid}/children").read_text().split()

    def sleeping(d):
        return d.request("GET", "/is_sleeping")[2] == {"is_sleeping": True}

    body = {"prompt": random_tokens(1, 30), "max_tokens": 8, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
    flags = [*FLAGS[:2], *FLAGS[4:]]

    def tokens(d):
        status, _, value = d.request("POST", "/v1/completions", body)
        assert status == 200, value
        return value["choices"][0]["token_ids"]

    with folder_of("a") as folder:
        with Weftd(*flags, "--keep-alive-s", "3", model=f"{folder}/a.gguf") as d:
            first = tokens(d)
            assert len(workers(d)) == 1 and not sleeping(d)
            until(lambda: sleeping(d) and not workers(d))
            assert d.health() == 200
            assert tokens(d) == first
            until(lambda: sleeping(d))
            assert d.request("POST", "/sleep")[0] == 403
        with Weftd(*flags, "--allow-pull", "*", model=f"{folder}/a.gguf") as d:
            assert not sleeping(d)
            longer = []
            for chunk in d.stream("/v1/completions", {**body, "max_tokens": 1500}):
                if not longer:
                    assert d.request("POST", "/sleep?level=1")[0] == 200
                longer += [t for c in chunk["choices"] for t in c.get("token_ids") or []]
            assert len(longer) == 1500 and longer[:8] == first, "a running request did not end before the sleep"
            until(lambda: sleeping(d) and not workers(d))
            assert d.request("POST", "/wake_up")[0] == 200
            until(lambda: workers(d) and not sleeping(d))
            assert tokens(d) == first and d.request("POST", "/sleep")[0] == 200
            until(lambda: sleeping(d))
            assert tokens(d) == first


def listed(d):
    return [m["id"] for m in d.request("GET", "/v1/models")[2]["data"]]


def until(what):
    wait_until("it did not come about", what)


@beside
def test_files_that_come_and_go_are_found_without_a_restart():
    with folder_of("abcd") as folder, tempfile.TemporaryDirectory(dir=folder) as aside:
        def put(name, as_name):
            os.rename(f"{aside}/{name}", f"{folder}/{as_name}.gguf")

        for name in "cd":
            os.rename(f"{folder}/{name}.gguf", f"{aside}/{name}")
        with Weftd("--models-dir", folder, *FLAGS, model="") as d:
            assert listed(d) == ["a", "b"]
            a, b = ask(d, "a", 1500), ask(d, "b", 1500)
            put("c", "c")
            until(lambda: "c" in listed(d))
            assert len({tuple(ask(d, m)) for m in "abc"}) == 3
            # An unknown name causes the folder to be read before the request is refused.
            time.sleep(2.1)
            put("d", "d")
            of_d = ask(d, "d")
            # A removed model finishes its requests, and new requests do not find it.
            begun = threading.Event()

            def remove():
                begun.wait(LIMIT_S)
                os.unlink(f"{folder}/b.gguf")
                until(lambda: "b" not in listed(d))

            got = parallel([lambda: stream(d, "b", 1500, begun), remove])
            assert got[0] == b
            until(lambda: all(m["id"] != "b" for m in d.admin_request("GET", "/models")[1]["models"]))
            status, _, value = d.request("POST", "/v1/completions", {"model": "b", "prompt": "x"})
            assert status == 404 and "The models are: a, c, d." in value["error"]["message"], value
            # A model that is replaced by rename is the new one after it is loaded again.
            assert d.admin_request("POST", "/models/d/unload")[0] == 200
            wait_state(d, "d", "unloaded")
            os.link(f"{folder}/a.gguf", f"{aside}/a")
            put("a", "d")
            assert ask(d, "d") == a[:8] != of_d
            # The first one is removed: the next one is the default. The last one stays.
            os.unlink(f"{folder}/a.gguf")
            until(lambda: listed(d) == ["c", "d"])
            assert d.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})[2]["model"] == "c"
            for name in "cd":
                os.unlink(f"{folder}/{name}.gguf")
            until(lambda: len(listed(d)) == 1)
            time.sleep(2.1)
            assert len(listed(d)) == 1 and d.health() == 200


@beside
def test_a_bad_preset_stops_no_other_and_is_named():
    with folder_of("ab") as folder, tempfile.TemporaryDirectory() as presets:
        def put(name, text):
            pathlib.Path(presets, "new").write_text(text)
            os.rename(f"{presets}/new", f"{presets}/{name}.conf")

        def not_read(d):
            return {p["id"]: p["reason"] for p in d.admin_request("GET", "/models")[1]["presets_not_read"]}

        put("first", "model = a\n")
        os.rename(f"{folder}/b.gguf", f"{folder}/b.later")
        with Weftd("--models-dir", folder, "--models", presets, *FLAGS, model="") as d:
            first = ask(d, "first")
            put("b", "modle = b\n")  # file b is not served without the options of its preset
            os.rename(f"{folder}/b.later", f"{folder}/b.gguf")
            put("first", "model = nowhere\n")  # served unchanged
            put("good", "model = a\nmax-context = 512\n")
            until(lambda: "good" in listed(d))
            assert listed(d) == ["first", "a", "good"], listed(d)
            assert ask(d, "good") == ask(d, "first") == first
            value = d.request("GET", "/v1/models")[2]
            assert sorted(value["presets_not_read"]) == ["b", "first"], value
            reasons = not_read(d)
            assert "is model meant?" in reasons["b"] and "no such file" in reasons["first"], reasons
            status, _, value = d.request("POST", "/v1/completions", {"model": "b", "prompt": "x"})
            assert status == 404 and "cannot be read; the" in value["error"]["message"], value
            put("first", "model = a\n")
            put("b", "model = b\n")
            until(lambda: "b" in listed(d))
            assert "presets_not_read" not in d.request("GET", "/v1/models")[2] and not_read(d) == {}
            lines = [line for line in d.log.splitlines() if "preset_not_read" in line]
            assert len(lines) == 2 and "model=\"b\"" in "".join(lines), "each reason is told once: " + d.log


@beside
def test_ollamas_clients_load_keep_and_unload():
    with folder_of("ab") as folder, Weftd("--models-dir", folder, *FLAGS, model="") as d:
        def generate(**body):
            status, _, value = d.request("POST", "/api/generate", {"stream": False, **body})
            assert status == 200, value
            return value

        def running():
            return {m["name"]: m["expires_at"] for m in d.request("GET", "/api/ps")[2]["models"]}

        assert running() == {}
        assert generate(model="a", keep_alive="1h")["done_reason"] == "load"
        assert states(d)["a"] == "loaded"
        hour = time.strftime("%Y-%m-%dT%H", time.gmtime(time.time() + 3600 - 30))
        assert running()["a"] >= hour and running()["a"] < "2099", running()
        generate(model="b:latest", prompt="x", keep_alive="300ms", options={"num_predict": 1})
        wait_state(d, "b", "unloaded")
        assert list(running()) == ["a"], running()
        assert generate(model="a", keep_alive=0)["done_reason"] == "unload"
        wait_state(d, "a", "unloaded")
        generate(model="a", keep_alive=-1)
        assert running()["a"].startswith("2100"), running()
        status, _, value = d.request("POST", "/api/generate", {"model": "a", "keep_alive": "soon"})
        assert status == 400 and "keep_alive" in value["error"], value
        assert {m["name"] for m in d.request("GET", "/api/tags")[2]["models"]} == {"a", "b"}


def test_lm_studios_clients_load_and_unload():
    with folder_of("ab") as folder, Weftd("--models-dir", folder, *FLAGS, model="") as d:
        def post(path, status, **body):
            answer = d.request("POST", "/api/v1/models/" + path, body)
            assert answer[0] == status, answer
            return answer[2]

        def loaded():
            listed = {m["key"]: m["loaded_instances"] for m in d.request("GET", "/api/v1/models")[2]["models"]}
            older = {m["id"]: m["state"] for m in d.request("GET", "/api/v0/models")[2]["data"]}
            assert older == {name: "loaded" if of else "not-loaded" for name, of in listed.items()} and set(older) == {"a", "b"}, (older, listed)
            return [of[0]["id"] for of in listed.values() if of]

        assert loaded() == []
        for again in (False, True):
            value = post("load", 200, model="a", context_length=512, stream=True)
            assert value["type"] == "llm" and value["instance_id"] == "a" and value["status"] == "loaded", value
            assert (value["load_time_seconds"] == 0) == again, value
        assert loaded() == ["a"] and d.request("GET", "/api/v0/models/a")[2]["loaded_context_length"] == 2048
        assert post("unload", 200, instance_id="a") == {"instance_id": "a"}
        wait_state(d, "a", "unloaded")
        assert "is loaded" in post("unload", 404, instance_id="a")["error"]["message"]
        post("load", 200, model="a")
        time.sleep(0.5)
        assert loaded() == ["a"], "what was asked of the one that is gone holds no more"
        status, _, value = d.request("POST", "/api/v0/completions", {"model": "b", "prompt": "x", "max_tokens": 2, "ttl": 0.3, "ignore_eos": True})
        assert status == 200 and value["stats"]["stop_reason"] == "maxPredictedTokensReached", value
        assert value["stats"]["generation_time"] >= value["stats"]["time_to_first_token"] > 0 and value["model_info"]["context_length"] == 2048
        wait_state(d, "b", "unloaded")
        post("load", 400)
        post("load", 404, model="c")


def test_a_slip_in_a_preset_is_told_at_the_start():
    for text, part in (("model = nowhere\n", "no such file"), ("modle = x\n", "is model meant?"), ("listen = 1:2\n", "cannot be set in a preset")):
        with tempfile.TemporaryDirectory() as presets:
            pathlib.Path(presets, "x.conf").write_text(text)
            d = Weftd("--models", presets, model="", wait=False)
            assert d.process.wait(LIMIT_S) == 78, d.log
            assert part in d.log and "x.conf" in d.log, d.log
            d.folder.cleanup()


def test_an_alias_that_another_model_has_is_told_at_the_start():
    with folder_of("ab") as folder, tempfile.TemporaryDirectory() as presets:
        first, second = pathlib.Path(presets, "first.conf"), pathlib.Path(presets, "second.conf")
        first.write_text("model = a\naliases = gpt, first\n")
        for aliases in ("first", "x, gpt"):
            second.write_text(f"# below\nmodel = b\naliases = {aliases}\n")
            for more in ((), ("--check-config",)):
                d = Weftd("--models", presets, "--models-dir", folder, *more, model="", wait=False)
                assert d.process.wait(LIMIT_S) == 78, d.log
                assert f"{second}:3: aliases: another model has the name {aliases.split()[-1]}" in d.log, d.log
                d.folder.cleanup()


if __name__ == "__main__":
    main(globals())
