"""Tenants of a real daemon: limits, identification, a reload, the output of weftctl; and a session's pages."""
import json
import os
import re
import shutil
import subprocess
import tempfile

from weftd import LIMIT_S, Weftd, main, program, random_tokens, tiny_model, wait_until


def weftctl(daemon, *args):
    done = subprocess.run([program("weftctl"), "--socket", daemon.admin, *args], capture_output=True, text=True, timeout=LIMIT_S)
    return done.returncode, done.stdout + done.stderr


def ask(daemon, key, prompt="hello", headers=None, **params):
    return daemon.request(
        "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 8, **params},
        {"Authorization": "Bearer " + key, **(headers or {})},
    )


def files(folder, tenants):
    keys, conf = os.path.join(folder, "keys"), os.path.join(folder, "tenants.conf")
    with open(keys, "w") as f:
        f.write("alice:ka\nbob:kb\n")
    write(conf, tenants)
    return keys, conf


def write(path, text):
    with open(path, "w") as f:
        f.write(text)


def test_limits_are_held_told_and_reloaded():
    with tempfile.TemporaryDirectory() as folder:
        keys, conf = files(folder, "[alice]\nrequests-per-minute = 2\n")
        with Weftd("--api-keys", keys, "--tenants", conf) as d:
            for left in (1, 0):
                status, headers, _ = ask(d, "ka")
                assert status == 200 and headers["x-ratelimit-remaining-requests"] == str(left), headers
            status, headers, body = ask(d, "ka")
            assert status == 429 and int(headers["Retry-After"]) > 0, (status, body)
            assert body["error"]["code"] == "rate_limit_exceeded"
            status, headers, _ = ask(d, "kb")
            assert status == 200 and "x-ratelimit-limit-requests" not in headers

            write(conf, "[alice]\nrequests-per-minute = many\n")
            code, text = weftctl(d, "reload")
            assert code == 1 and "tenants.conf:2: requests-per-minute" in text, text
            assert ask(d, "ka")[0] == 429, "the old limit stays"
            write(conf, "[alice]\nclass = batch\n")
            assert weftctl(d, "reload") == (0, "reloaded\n")
            assert ask(d, "ka")[0] == 200

            code, text = weftctl(d, "tenants")
            rows = {line.split()[0]: line.split() for line in text.splitlines()[1:]}
            assert rows["alice"][1] == "batch" and rows["alice"][5] == "3" and rows["alice"][6] == "2", text
            assert 'weft_tenant_limited_total{' in d.request("GET", "/metrics")[2]


def test_a_bad_file_ends_the_start_with_one_line():
    with tempfile.TemporaryDirectory() as folder:
        keys, conf = files(folder, "[alice]\n\nweight = 0\n")
        d = Weftd("--api-keys", keys, "--tenants", conf, wait=False)
        assert d.process.wait(LIMIT_S) == 78
        lines = [line for line in d.log.splitlines() if line.startswith("weftd: ")]
        assert len(lines) == 1 and "tenants.conf:3: weight: must be a number" in lines[0], d.log
        d.folder.cleanup()


def test_models_that_a_key_may_not_use_do_not_exist_for_it():
    with tempfile.TemporaryDirectory() as folder:
        keys, conf = files(folder, "[alice]\nmodels = one\n[bob]\nmodels = t*, three\n")
        models = os.path.join(folder, "models")
        os.mkdir(models)
        for name in ("one", "three", "two"):
            shutil.copy(tiny_model(), os.path.join(models, name + ".gguf"))
        with Weftd("--api-keys", keys, "--tenants", conf, "--models-dir", models, "--kv-memory", "16M", model="") as d:
            def names(path, key, member):
                status, _, body = d.request("GET", path, None, {"Authorization": "Bearer " + key, "anthropic-version": "1"})
                assert status == 200, body
                return [m["id"] if "id" in m else m["model"].removesuffix(":latest") for m in body[member]]

            for path, member in (("/v1/models", "data"), ("/api/tags", "models"), ("/api/v0/models", "data")):
                assert names(path, "ka", member) == ["one"], path
                assert names(path, "kb", member) == ["three", "two"], path
            for key, model, want in (("ka", "two", 404), ("kb", "one", 404), ("ka", "none", 404), ("kb", "two", 200)):
                status, _, body = ask(d, key, model=model, ignore_eos=True)
                assert status == want, (key, model, body)
                if want == 404:
                    assert body["error"]["code"] == "model_not_found" and "may not use it" in body["error"]["message"], body
                    known = {"ka": ("two", "three"), "kb": ("one",)}[key]
                    assert not any(f"`{n}`" in body["error"]["message"] for n in known if n != model), body
            status, _, body = d.request("POST", "/tokenize", {"content": "a", "model": "one"}, {"Authorization": "Bearer kb"})
            assert status == 404, body
            for path in ("/v1/models/one", "/props?model=one"):
                assert d.request("GET", path, None, {"Authorization": "Bearer kb"})[0] == 404, path
                assert d.request("GET", path, None, {"Authorization": "Bearer ka"})[0] != 404, path
            assert ask(d, "kb", model="three", ignore_eos=True)[0] == 200
            series = re.findall(r'weft_tenant_(\w+){model_name="(\w+)",engine="0",tenant="(\w+)"} (\d+)', d.request("GET", "/metrics")[2])
            counts = {(name, model, tenant): int(n) for name, model, tenant, n in series}
            for model in ("two", "three"):
                assert counts["requests_total", model, "bob"] == 1 and counts["output_tokens_total", model, "bob"] == 8, counts
                assert ("requests_total", model, "alice") not in counts, counts
            assert counts["requests_total", "one", "bob"] == 0, counts
            loaded = {m["id"]: m["state"] for m in json.loads(weftctl(d, "--json", "ps")[1])["models"]}
            assert loaded["one"] == "unloaded" and loaded["two"] == "loaded", loaded


def test_why_tells_the_story_of_a_request():
    with Weftd() as d:
        status, _, _ = d.request("POST", "/v1/completions", {"prompt": random_tokens(1, 100), "max_tokens": 5},
                                 {"x-request-id": "story-1"})
        assert status == 200
        code, text = weftctl(d, "why", "story-1")
        words = [line.split() for line in text.splitlines()]
        assert code == 0 and any("queued" in w for w in words), text
        for what in ("admitted", "prompt", "decode", "ended"):
            assert any(what in w for w in words), text
        assert weftctl(d, "why", "another")[0] == 1
        assert weftctl(d, "why", "987654")[0] == 1


def test_what_a_request_waits_for_is_told():
    with Weftd("--max-running", "1", "--max-context", "16384") as d:
        first = d.connect()
        events = d.stream("/v1/completions", {"prompt": "hello", "max_tokens": 12000, "ignore_eos": True}, connection=first)
        next(events)
        second = d.connect()
        body = json.dumps({"prompt": "hello", "max_tokens": 2})
        second.request("POST", "/v1/completions", body, {"Content-Type": "application/json", "x-request-id": "second"})

        def waiting():
            rows = json.loads(weftctl(d, "--json", "requests")[1])["requests"]
            return [r for r in rows if r["request_id"] == "second" and r["waits_for"] == "place"]

        wait_until("the second request in the queue", waiting)
        code, text = weftctl(d, "why", "second")
        assert code == 0 and "now: place: waited in the queue" in text, text
        assert "place" in weftctl(d, "requests")[1]
        first.close()
        assert second.getresponse().status == 200


def test_a_session_finds_its_pages_after_others():
    turn = random_tokens(2, 400)
    flags = ("--kv-pages", "40", "--page-tokens", "32", "--max-context", "1024")
    for pin in ("auto", "off"):
        with Weftd(*flags, "--pin", pin) as d:
            def send(prompt, session):
                headers = {"x-session-id": session} if session else {}
                status, _, value = d.request("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 4}, headers)
                assert status == 200, value
                return value["usage"]["prompt_tokens_details"]["cached_tokens"]

            send(turn, "agent")
            for i in range(6):
                send(random_tokens(10 + i, 500), None)
            cached = send(turn + random_tokens(3, 20), "agent")
            assert cached >= 384 if pin == "auto" else cached == 0, (pin, cached)


def test_the_key_of_an_operator_sees_the_requests_of_all_tenants():
    def seen(d, key, query=""):
        status, _, body = d.request("GET", "/v1/requests" + query, None, {"Authorization": "Bearer " + key})
        return [(r["tenant"], r["output_tokens"]) for r in body["requests"]] if status == 200 else status

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "keys")
        write(path, "alice:ka\nbob:kb\nroot:kr operator\n")
        with Weftd("--api-keys", path) as d:
            assert ask(d, "ka", max_tokens=2, ignore_eos=True)[0] == 200 and ask(d, "kb", max_tokens=3, ignore_eos=True)[0] == 200
            assert seen(d, "kr") == [("bob", 3), ("alice", 2)] and seen(d, "kr", "?tenant=alice&order=slowest") == [("alice", 2)]
            assert seen(d, "ka") == [("alice", 2)] and seen(d, "ka", "?tenant=bob") == 403 and seen(d, "nobody") == 401
            generation = d.request("GET", "/v1/requests", None, {"Authorization": "Bearer kr"})[2]["requests"][1]["generation"]
            for key, status in (("kr", 200), ("ka", 200), ("kb", 404)):
                got, _, why = d.request("GET", f"/v1/requests/{generation}/why", None, {"Authorization": "Bearer " + key})
                assert got == status, (key, why)
                assert got != 200 or "ended" in [r["code"] for r in why["records"]], why
            write(path, "alice:ka\nbob:kb\nroot:kr\n")
            assert weftctl(d, "reload")[0] == 0 and seen(d, "kr") == []


def test_keys_are_stored_as_checksums_and_expire():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "keys")
        write(path, "bob:kb expires=2001-02-28\ncarol:kc expires=2999-12-31")
        made = subprocess.run([program("weftctl"), "key", "new", "alice", path], capture_output=True, text=True, timeout=LIMIT_S)
        key, text = made.stdout.strip(), open(path).read()
        assert made.returncode == 0 and len(key) == 69 and key not in text, (made, text)
        assert text.splitlines()[2].startswith("alice:sha256$"), text
        for day in ("2001-02-28", "2027-02-30", "2027-1-1", ""):
            assert subprocess.run([program("weftctl"), "key", "new", "--expires=" + day, "erin", path], capture_output=True).returncode == 64
        assert open(path).read() == text
        made = subprocess.run([program("weftctl"), "key", "new", "--expires=2999-02-28", "erin", path], capture_output=True, text=True)
        assert made.returncode == 0 and open(path).read().splitlines()[3].endswith(" expires=2999-02-28"), made
        erin = made.stdout.strip()
        for flags, words in ((["--operator"], " operator"), (["--operator", "--expires=2999-02-28"], " expires=2999-02-28 operator")):
            made = subprocess.run([program("weftctl"), "key", "new", "root", path, *flags], capture_output=True, text=True)
            assert made.returncode == 0 and re.fullmatch(r"root:sha256\$[0-9a-f]{64}" + words, open(path).read().splitlines()[-1]), made
        os.chmod(path, 0o644)
        with Weftd("--api-keys", path) as d:
            assert " keys_readable " in d.log, d.log
            assert ask(d, key)[0] == 200 and ask(d, "kc")[0] == 200 and ask(d, erin)[0] == 200
            status, _, body = ask(d, "kb")
            assert status == 401 and body["error"]["code"] == "expired_api_key", body
            checksum = text.splitlines()[2].split(":")[1]
            assert ask(d, checksum)[2]["error"]["code"] == "invalid_api_key", "the checksum is not the key"
            os.chmod(path, 0o600)
            write(path, "dave:kd expires=2026-02-30\n")
            assert weftctl(d, "reload")[0] == 1 and ask(d, key)[0] == 200


main(globals())
