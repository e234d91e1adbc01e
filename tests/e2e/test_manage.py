"""Ollama's clients change the models: pull from a hub, presets of served models, copies, removals; only permitted
clients may."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "cmd"))
import fake_hub  # noqa: E402
import hf_folder  # noqa: E402
from test_models import FLAGS, ask, folder_of, listed, models, until  # noqa: E402
from weftd import LIMIT_S, Skip, UnixConnection, Weftd, keys_in, main, program, synth, wait_until  # noqa: E402

MODEL = pathlib.Path(synth("pull", "--shape", "tiny,n_layer=1,n_embd=256", "--format", "Q4_K", "--n-vocab", "512")).read_bytes()
FILES = {"Some-Q4_K_M.gguf": MODEL, "Some-Q8_0.gguf": MODEL + b"8" * 32}
PULLED = f"hf.co/{fake_hub.REPO}"


def daemon(folder, *flags, hub=None, presets=None, allow="*", **more):
    env = {"HOME": str(folder), **({"HF_ENDPOINT": hub.url} if hub else {})}
    all_flags = ["--models-dir", folder, *FLAGS, *(["--models", presets] if presets else []), *(["--allow-pull", allow] if allow else [])]
    return Weftd(*all_flags, *flags, env=env, model="", **more)


def post(d, path, body, method="POST", key=None):
    """Returns (status, the answer or its lines)."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    status, head, value = d.request(method, path, body, headers)
    if "ndjson" in (head["Content-Type"] or "") and isinstance(value, str):
        value = [json.loads(line) for line in value.splitlines()]
    return status, value


def need_curl():
    text = os.popen(f"{program('weftctl')} pull hf:x 2>&1").read()
    if "without libcurl" in text:
        raise Skip("weftctl was built without libcurl")


def test_a_pull_tells_how_far_it_is_and_the_model_is_served():
    need_curl()
    with fake_hub.Hub(dict(FILES)) as hub, folder_of("a") as folder, daemon(folder, hub=hub) as d:
        hub.faults["cdn"] = [fake_hub.slow(len(MODEL) // 8, 0.1)]
        status, lines = post(d, "/api/pull", {"model": f"{PULLED}:Q4_K_M"})
        assert status == 200 and lines[0] == {"status": "pulling manifest"} and lines[-1] == {"status": "success"}, lines
        bars = [line for line in lines if "total" in line]
        assert bars and all(b["digest"].startswith("sha256:") and b["total"] == len(MODEL) for b in bars), lines
        assert sorted(b["completed"] for b in bars) == [b["completed"] for b in bars] and bars[-1]["completed"] > 0, lines
        assert listed(d) == ["a", "Some-Q4_K_M"]
        body = {"prompt": [20, 21], "max_tokens": 2, "ignore_eos": True}
        for name in ("Some-Q4_K_M", PULLED, f"{PULLED}:Q4_K_M"):
            assert d.request("POST", "/v1/completions", {"model": name, **body})[0] == 200, name
        n = len(hub.seen)
        assert post(d, "/api/pull", {"model": PULLED, "stream": False}) == (200, {"status": "success"})
        assert len(hub.seen) == n, "what is served is pulled again"
        assert post(d, "/api/pull", {"model": f"{PULLED}:Q8_0", "stream": False}) == (200, {"status": "success"})
        assert listed(d) == ["a", "Some-Q4_K_M", "Some-Q8_0"]
        assert post(d, "/api/delete", {"model": "Some-Q8_0"}, "DELETE") == (200, "")
        assert listed(d) == ["a", "Some-Q4_K_M"] and not list(pathlib.Path(folder).rglob("*Q8_0.gguf"))


def test_a_folder_of_safetensors_is_pulled_and_served():
    need_curl()
    model = synth("pull-folder", "--arch", "qwen3", "--shape", "tiny,n_layer=1", "--format", "BF16", "--n-vocab", "512")
    with tempfile.TemporaryDirectory() as where:
        made = hf_folder.write_folder(model, where, 2)
        files = {p.name: p.read_bytes() for p in pathlib.Path(made).iterdir()}
    body = {"prompt": [20, 21], "max_tokens": 8, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
    with Weftd(*FLAGS, model=model) as d:
        should = d.request("POST", "/v1/completions", body)[2]["choices"][0]["token_ids"]
    with fake_hub.Hub(files) as hub, folder_of("a") as folder:
        with daemon(folder, hub=hub) as d:
            status, lines = post(d, "/api/pull", {"model": PULLED})
            assert status == 200 and lines[-1] == {"status": "success"}, lines
            bars = [line for line in lines if "total" in line]
            assert bars and all(b["completed"] <= b["total"] for b in bars), lines
            assert listed(d) == ["a", "Some-GGUF"], listed(d)
            for name in ("Some-GGUF", PULLED):
                status, _, value = d.request("POST", "/v1/completions", {"model": name, **body})
                assert status == 200 and value["choices"][0]["token_ids"] == should, (name, value)
            status, _ = post(d, "/api/pull", {"model": PULLED, "stream": False})
            assert status == 200 and models(d)["Some-GGUF"]["state"] == "loaded", models(d)
        with Weftd(*FLAGS, env={"HOME": str(folder), "WEFT_MODELS": str(folder)}, model=f"hf:{fake_hub.REPO}") as d:
            assert d.request("POST", "/v1/completions", body)[2]["choices"][0]["token_ids"] == should
        with daemon(folder, hub=hub) as d:
            assert post(d, "/api/delete", {"model": "Some-GGUF"}, "DELETE") == (200, "")
            assert listed(d) == ["a"] and not list(pathlib.Path(folder).rglob("*.safetensors"))


def test_the_admin_socket_pulls_too():
    need_curl()
    with fake_hub.Hub(dict(FILES)) as hub, folder_of("a") as folder, daemon(folder, hub=hub, allow=None) as d:
        def pull(name):
            connection = UnixConnection(d.admin, LIMIT_S)
            connection.request("POST", f"/pull?name={name}")
            response = connection.getresponse()
            return response.status, [json.loads(line) for line in response.read().splitlines()]

        status, lines = pull(f"hf%3A{fake_hub.REPO}:Q4_K_M")
        assert status == 200 and lines[-1]["status"] == "success" and lines[-1]["name"] == "Some-Q4_K_M", lines
        assert any("completed" in line for line in lines), lines
        assert listed(d) == ["a", "Some-Q4_K_M"]
        status, lines = pull(f"hf:{fake_hub.REPO}:Q2_K")
        assert status == 200 and "Q2_K" in lines[-1]["error"]["message"] and len([line for line in lines if "error" in line]) == 1, lines
        status, lines = pull("llama3.2")
        assert status == 400 and "hf.co/OWNER/REPO" in lines[0]["error"]["message"], lines


def test_a_pull_that_fails_says_why_and_one_that_is_left_ends():
    need_curl()
    with fake_hub.Hub(dict(FILES)) as hub, folder_of("a") as folder, daemon(folder, "--drain-timeout-ms", "500", hub=hub) as d:
        status, lines = post(d, "/api/pull", {"model": f"{PULLED}:Q2_K"})
        assert status == 200 and "Q2_K" in lines[-1]["error"] and "Q8_0" in lines[-1]["error"], lines
        status, value = post(d, "/api/pull", {"model": "hf.co/owner/nothing", "stream": False})
        assert status == 400 and value["error"], value
        for name in ("llama3.2", "hf.co/owner", "hf.co/../x", "hf:-x/y", "hf.co/a/b c", "https://example.org/a/b"):
            status, value = post(d, "/api/pull", {"model": name})
            assert status == 400 and "hf.co/OWNER/REPO" in value["error"], value
        hub.faults["cdn"] = [fake_hub.slow(100, 0.2)]
        connection = d.connect()
        connection.request("POST", "/api/pull", json.dumps({"model": PULLED}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        until(lambda: b'"total"' in response.readline())
        children = f"/proc/{d.process.pid}/task/{d.process.pid}/children"
        assert pathlib.Path(children).read_text().split()
        # Other requests are served meanwhile.
        assert ask(d, "a")
        response.close()
        connection.close()
        until(lambda: len(pathlib.Path(children).read_text().split()) == 1)  # the worker of model a
        assert list(pathlib.Path(folder).rglob("*.part")), "what has arrived is lost"
        assert post(d, "/api/pull", {"model": PULLED, "stream": False})[0] == 200
        assert listed(d) == ["a", "Some-Q4_K_M"]
        # A stopped daemon leaves no child process.
        hub.faults["cdn"] = [fake_hub.slow(1000, 0.2)]
        threading.Thread(target=lambda: post(d, "/api/pull", {"model": f"{PULLED}:Q8_0"}), daemon=True).start()
        until(lambda: hub.asked("cdn") and len(pathlib.Path(children).read_text().split()) > 1)
        d.process.terminate()
        d.process.wait(LIMIT_S)  # less than the rest of the file takes


def test_presets_are_made_copied_and_removed():
    template = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
    with folder_of("ab") as folder, tempfile.TemporaryDirectory() as presets:
        pathlib.Path(presets, "own.conf").write_text("model = b\n")
        presets_of_a_client(folder, presets, template)


def presets_of_a_client(folder, presets, template):
    with daemon(folder, presets=presets) as d:
        status, lines = post(d, "/api/create", {"model": "mario", "from": "a", "system": "You are\nMario.", "template": template,
                                                "parameters": {"temperature": 0, "top_k": 3, "num_ctx": 512}})
        assert status == 200 and lines[-1] == {"status": "success"}, lines
        assert "mario" in listed(d)
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        rendered = d.request("POST", "/apply-template", {"model": "mario", **chat})
        if rendered[0] == 200:
            assert rendered[2]["prompt"] == "system=You are\nMario.;user=hi;", rendered
        own = d.request("POST", "/v1/chat/completions", {"model": "mario", "max_tokens": 8, **chat})
        given = d.request("POST", "/v1/chat/completions", {"model": "mario", "max_tokens": 8, "messages": [{"role": "system", "content": "You are\nMario."}] + chat["messages"]})
        assert own[0] == given[0] == 200 and own[2]["usage"] == given[2]["usage"], (own, given)
        assert own[2]["choices"][0]["message"] == given[2]["choices"][0]["message"], "the system message is another, or temperature is"
        assert {m["id"]: m for m in d.request("GET", "/v1/models")[2]["data"]}["mario"]["max_model_len"] == 512
        assert d.request("POST", "/api/show", {"model": "mario"})[2]["system"] == "You are\nMario."
        bad = d.request("POST", "/v1/chat/completions", {"model": "mario", "messages": [{"role": "user", "content": "a"}, {"role": 7}]})
        assert bad[0] == 400 and bad[2]["error"]["param"].startswith("messages[1]"), bad
        # A copy stays when its source is removed.
        assert post(d, "/api/copy", {"source": "mario", "destination": "luigi:latest"}) == (200, "")
        assert post(d, "/api/delete", {"model": "mario"}, "DELETE") == (200, "")
        assert "luigi" in listed(d) and "mario" not in listed(d)
        again = d.request("POST", "/v1/chat/completions", {"model": "luigi", "max_tokens": 8, **chat})
        assert again[2]["choices"][0]["message"] == own[2]["choices"][0]["message"], again
        # Created again, it is a different model.
        assert post(d, "/api/create", {"model": "luigi", "from": "luigi", "system": "L", "stream": False}) == (200, {"status": "success"})
        until(lambda: d.request("POST", "/v1/chat/completions", {"model": "luigi", "max_tokens": 8, **chat})[2]["usage"]["prompt_tokens"] < own[2]["usage"]["prompt_tokens"])
        for body, part in (({"model": "x"}, "from is required"), ({"model": "x", "from": "none"}, "not found"),
                           ({"model": "../x", "from": "a"}, "is not a valid model name"), ({"model": "-x", "from": "a"}, "is not a valid model name"),
                           ({"model": "x", "from": "a", "template": "{{ .System }} {{ if"}, "template: must be a Jinja chat template"),
                           ({"model": "x", "from": "a", "parameters": {"stop": ["a"]}}, "parameters.stop"),
                           ({"model": "x", "from": "a", "parameters": {"temperature": -3}}, "temperature"),
                           ({"model": "x", "from": "a", "files": {"f": "sha256:1"}}, "files"),
                           ({"model": "a", "from": "b"}, "belongs to the operator"), ({"model": "own", "from": "b"}, "belongs to the operator")):
            status, value = post(d, "/api/create", body)
            assert status in (400, 404) and part in value["error"], (body, value)
        for name, part in (("own", "belongs to the operator"), ("b", "own"), ("none", "not found")):
            status, value = post(d, "/api/delete", {"model": name}, "DELETE")
            assert status in (400, 404) and part in value["error"], value
        for method, path, body in (("POST", "/api/create", {"model": "x\0y", "from": "a"}), ("POST", "/api/create", {"model": "x", "from": "a\0y"}),
                                   ("POST", "/api/create", {"model": "x", "from": "a", "system": "s\0"}), ("POST", "/api/pull", {"model": "a\0"}),
                                   ("POST", "/api/copy", {"source": "a", "destination": "x\0"}), ("POST", "/api/copy", {"source": "a\0", "destination": "x"}),
                                   ("DELETE", "/api/delete", {"model": "luigi\0"}), ("POST", "/api/show", {"model": "a\0"})):
            status, value = post(d, path, body, method)
            assert status == 400 and "NUL" in value["error"], (path, body, value)
        assert sorted(p.name for p in pathlib.Path(presets).iterdir()) == ["luigi.conf", "luigi.jinja", "luigi.system", "own.conf"]
        assert set(models(d)) == {"a", "b", "luigi", "own"}


def test_a_preset_that_is_refused_leaves_the_old_one_whole():
    """The disk has room for the preset's template but not for its system message."""
    if os.geteuid() != 0:
        raise Skip("a file system is mounted by root only")
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with folder_of("a") as folder, tempfile.TemporaryDirectory() as presets:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", presets], capture_output=True).returncode:
            raise Skip("tmpfs cannot be mounted here")
        try:
            with daemon(folder, presets=presets) as d:
                assert post(d, "/api/create", {"model": "old", "from": "a", "system": "one", "template": template, "stream": False})[0] == 200
                before = {p.name: p.read_bytes() for p in pathlib.Path(presets).iterdir()}
                for name in ("old", "new"):
                    status, value = post(d, "/api/create", {"model": name, "from": "a", "system": "2" * 300000, "template": template + "2", "stream": False})
                    assert status == 500 and f"{name}.system" in value["error"] and "No space left" in value["error"], value
                    assert {p.name: p.read_bytes() for p in pathlib.Path(presets).iterdir()} == before, name
                assert post(d, "/api/create", {"model": "old", "from": "a", "system": "2", "template": template + "2", "stream": False})[0] == 200
                assert {p.name for p in pathlib.Path(presets).iterdir()} == set(before) and (pathlib.Path(presets) / "old.system").read_text() == "2"
        finally:
            subprocess.run(["umount", presets], check=True)


def test_presets_made_and_removed_at_once():
    """Several clients create presets of a model that others remove and create: each answer has a reason, without the
    operator's paths."""
    answers = []

    def change(d, k):
        for _ in range(15):
            answers.append(post(d, "/api/create", {"model": "base", "from": "a", "system": "s", "stream": False}))
            answers.append(post(d, "/api/create", {"model": f"x{k}", "from": "base", "stream": False}))
            answers.append(post(d, "/api/delete", {"model": "base"}, "DELETE"))

    with folder_of("a") as folder, tempfile.TemporaryDirectory() as presets, daemon(folder, presets=presets) as d:
        threads = [threading.Thread(target=change, args=(d, k)) for k in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(LIMIT_S)
        assert len(answers) == 135
        bad = [a for a in answers if a[0] not in (200, 404, 400) or presets in str(a[1])]
        assert not bad, bad[:3]


def reads(d, path):
    """Tells whether weftd has the file open."""
    links = pathlib.Path(f"/proc/{d.process.pid}/fd")
    for link in links.iterdir():
        try:
            if os.readlink(link) == path:
                return True
        except FileNotFoundError:
            pass  # closed since the folder was listed
    return False


def connections(d):
    return d.stats()["front"]["connections"]


def refused_to_create(d):
    """Asks for one more preset. Leaves and returns false if it has to wait; returns true if there are too many."""
    c = d.connect(0.5)
    try:
        status, _, value = d.request("POST", "/api/create", {"model": "more", "from": "a"}, connection=c)
    except TimeoutError:
        return False
    finally:
        c.close()
    assert status == 429 and "16 presets" in value["error"], value
    return True


def test_a_disk_that_hangs_stops_no_other_client():
    with folder_of("a") as folder, tempfile.TemporaryDirectory() as presets, daemon(folder, presets=presets) as d:
        template = f"{presets}/base.jinja"
        assert post(d, "/api/create", {"model": "base", "from": "a", "template": "{{ 1 }}", "stream": False})[0] == 200
        os.unlink(template)
        os.mkfifo(template)
        fifo, over = os.open(template, os.O_RDWR), threading.Event()

        def dribble():
            while not over.wait(0.05):
                os.write(fifo, b" ")  # its reader waits for more

        writer = threading.Thread(target=dribble, daemon=True)
        writer.start()
        bodies = [{"model": "slow", "from": "base", "system": "x"}, {"model": "next", "from": "a"}]
        answers = {}
        threads = [threading.Thread(target=lambda b=b: answers.update({b["model"]: post(d, "/api/create", b)})) for b in bodies]
        wait_until("those before have left", lambda: connections(d) == 0)
        threads[0].start()
        wait_until("slow reads its template", lambda: reads(d, template))
        threads[1].start()
        assert ask(d, "a") and d.health() == 200 and listed(d) == ["a", "base"]
        # More than 16 are refused; queued ones whose clients disconnect are not created.
        left = [d.connect() for _ in range(14)]
        for c in left:
            c.request("POST", "/api/create", json.dumps({"model": "left", "from": "a"}), {"Content-Type": "application/json"})
        wait_until("those that wait", lambda: connections(d) == 16)
        wait_until("a refusal", lambda: refused_to_create(d))  # until those before are read, one more is queued
        for c in left:
            c.close()
        wait_until("those that have left", lambda: connections(d) == 2)
        assert not answers, answers
        over.set()
        writer.join()
        pathlib.Path(template).rename(f"{presets}/fifo")
        pathlib.Path(template).write_text("{{ 1 }}")
        os.close(fifo)
        for t in threads:
            t.join(LIMIT_S)
        assert answers["slow"][0] == answers["next"][0] == 200, answers
        assert set(listed(d)) == {"a", "base", "next", "slow"}, answers


def test_bodies_that_are_read_on_the_loop_are_small():
    large = "x" * (1 << 20)
    with folder_of("a") as folder, tempfile.TemporaryDirectory() as presets, daemon(folder, presets=presets) as d:
        for method, path in (("POST", "/api/show"), ("POST", "/api/pull"), ("POST", "/api/copy"), ("DELETE", "/api/delete")):
            status, value = post(d, path, {"model": "a", "source": "a", "destination": "b", "junk": large[:8000]}, method)
            assert status != 413, (path, value)
            status, value = post(d, path, {"model": "a", "source": "a", "destination": "c", "junk": large}, method)
            assert status == 413 and "larger than 8192 bytes" in value["error"], (path, value)
        # The texts of a preset may be larger than those of other requests: they are read on the pool.
        for n, status in ((1 << 20, 200), (1 + (1 << 20), 400)):
            got, value = post(d, "/api/create", {"model": "large", "from": "a", "system": "x" * n, "template": "{{ 1 }}" + "y" * (n - 7), "stream": False})
            assert got == status, value
        assert post(d, "/api/create", b'{"model": "large",')[0] == 400
        assert {"large", "a"} <= set(listed(d)), listed(d)


def test_only_those_who_may_change_models_do():
    with folder_of("a") as folder, tempfile.TemporaryDirectory() as presets, tempfile.TemporaryDirectory() as keys:
        with daemon(folder, "--api-keys", keys_in(keys), presets=presets, allow="bob") as d:
            for method, path, body in (("POST", "/api/pull", {"model": PULLED}), ("POST", "/api/create", {"model": "x", "from": "a"}),
                                       ("POST", "/api/copy", {"source": "a", "destination": "x"}), ("DELETE", "/api/delete", {"model": "a"})):
                status, value = post(d, path, body, method, key="ka")
                assert status == 403 and "allow-pull" in value["error"], value
            assert post(d, "/api/pull", {"model": "a", "stream": False}, key="ka") == (200, {"status": "success"})
            assert post(d, "/api/copy", {"source": "a", "destination": "x"}, key="kb") == (200, "")
        with daemon(folder, presets=presets, allow=None) as d:
            assert post(d, "/api/delete", {"model": "x"}, "DELETE")[0] == 403
            assert "x" in listed(d), "the preset is not there after a restart"


if __name__ == "__main__":
    main(globals())
