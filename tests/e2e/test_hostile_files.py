"""Files of the daemon that others damage, cut off or exchange, at the start and while it runs. Answers stay as they were, bit
for bit; what cannot be used is named in the log; no process ends."""
import concurrent.futures
import os
import pathlib
import random
import shutil
import sqlite3
import subprocess
import tempfile
import time

import test_disk
import test_state
from test_disk import FLAGS, Folder, expected, notes
from test_manage import daemon, post
from test_models import folder_of
from weftd import LIMIT_S, Weftd, main, program, tiny_model, wait_until


def flip(path, rng, n):
    with open(path, "r+b") as f:
        size = f.seek(0, os.SEEK_END)
        for _ in range(n):
            at = rng.randrange(size)
            f.seek(at)
            old = f.read(1)[0]
            f.seek(at)
            f.write(bytes([old ^ 1 << rng.randrange(8)]))


def cut(path, rng):
    os.truncate(path, rng.randrange(os.path.getsize(path)))


def grow(path, rng):
    with open(path, "ab") as f:
        f.write(rng.randbytes(rng.randrange(1, 100000)))


def turn_round(path, rng):
    """Exchanges two blocks of 4 KiB."""
    data = bytearray(pathlib.Path(path).read_bytes())
    a, b = (rng.randrange(len(data) // 4096) * 4096 for _ in range(2))
    data[a:a + 4096], data[b:b + 4096] = data[b:b + 4096], data[a:a + 4096]
    pathlib.Path(path).write_bytes(data)


DAMAGES = {
    "flips 1": lambda path, rng: flip(path, rng, 1),
    "flips 3000": lambda path, rng: flip(path, rng, 3000),
    "cut": cut,
    "grow": grow,
    "turn round": turn_round,
}


def check_same(d, what):
    """Twice: as it is found, and as it is cached now."""
    for _ in range(2):
        assert test_disk.ask(d)[:2] == expected(), f"{what}: other tokens or logits"
    assert d.stats()["worker"]["deaths"] == 0, (what, d.log)


def written(folder, flags):
    """Makes the files of the disk tier of a daemon that answered once."""
    with Weftd(*flags) as d:
        test_disk.ask(d)
        test_disk.wait_written(d)


def test_damaged_prefixes_change_no_answer():
    with Folder() as f, tempfile.TemporaryDirectory() as kept:
        written(f, f.flags())
        shutil.copytree(f.name, kept, dirs_exist_ok=True)
        for number, (name, damage) in enumerate(DAMAGES.items()):
            for running in False, True:
                shutil.copytree(kept, f.name, dirs_exist_ok=True)
                rng = random.Random(number)
                if not running:
                    damage(f.file(), rng)
                with Weftd(*f.flags()) as d:
                    if running:
                        damage(f.file(), rng)
                    check_same(d, f"{name}, running: {running}")
                    d.replace_worker()
                    assert test_disk.ask(d)[:2] == expected(), f"{name}: other tokens or logits from a new worker"


def test_prefixes_of_another_model_or_key_are_not_used():
    other = test_disk.golden("qwen3")
    with Folder() as f, Folder() as g:
        written(f, f.flags())
        with Weftd(*g.flags(), model=other) as d:
            own = test_disk.ask(d)
            test_disk.wait_written(d)
        assert own[:2] != expected(), "the test is blind"
        shutil.copy(f.file(), g.file())  # of another model, sealed by another key
        with Weftd(*g.flags(), model=other) as d:
            assert test_disk.ask(d) == own, d.log
            assert d.stats()["worker"]["deaths"] == 0
        shutil.copy(os.path.join(f.name, "prefixes.key"), os.path.join(g.name, "prefixes.key"))
        shutil.copy(f.file(), g.file())  # of another model, with its key
        with Weftd(*g.flags(), model=other) as d:
            assert test_disk.ask(d) == own, d.log
        shutil.copy(f.file(), g.file())
        os.truncate(os.path.join(g.name, "prefixes.key"), 5)
        r = subprocess.run([program("weftd"), "--model", other, *map(str, g.flags()), "--listen", "127.0.0.1:0", "--backend", "cpu"],
                           capture_output=True, text=True, timeout=LIMIT_S)
        assert r.returncode in (75, 78) and "prefixes.key" in r.stderr, (r.returncode, r.stderr)


def strange_letters(path, old, new):
    data = pathlib.Path(path).read_bytes()
    assert old in data, path
    pathlib.Path(path).write_bytes(data.replace(old, new))


def test_a_damaged_row_of_the_state_is_not_served():
    """One letter of a stored text is another, which the database itself does not notice; then the tenant's name."""
    with tempfile.TemporaryDirectory() as folder:
        args = test_state.flags(folder)
        with Weftd(*args) as d:
            whole = test_state.create(d, "one")
            made = test_state.create(d, "a special text")
            mine = test_state.create(d, "of alice")
        strange_letters(args[3], b"a special text", b"a spezial text")
        db = sqlite3.connect(args[3])
        db.execute("UPDATE responses SET tenant = 'bob' WHERE id = ?", (mine["id"],))
        db.commit()
        db.close()
        with Weftd(*args) as d:
            assert test_state.call(d, "GET", "/v1/responses/" + whole["id"]) == (200, whole)
            assert test_state.call(d, "GET", "/v1/responses/" + made["id"])[0] == 404
            assert test_state.call(d, "GET", f"/v1/responses/{made['id']}/input_items")[0] == 404
            for key in "ka", "kb":
                assert test_state.call(d, "GET", "/v1/responses/" + mine["id"], key=key)[0] == 404
            line, = [text for text in d.log.splitlines() if " responses_damaged " in text]
            assert "state.db" in line and "responses=2" in line, line


def test_a_state_file_of_something_else_is_left_alone():
    """A folder, another program's database, and one of a later version: the daemon serves, and the file stays as it is."""
    with tempfile.TemporaryDirectory() as folder:
        args = test_state.flags(folder)
        path = pathlib.Path(args[3])
        for kind in "another", "later":
            db = sqlite3.connect(path)
            db.execute(f"PRAGMA application_id = {0x77656674 if kind == 'later' else 7}")
            db.execute("PRAGMA user_version = 99")
            db.execute("CREATE TABLE own (a)")
            db.commit()
            db.close()
            before = path.read_bytes()
            with Weftd(*args) as d:
                made = test_state.create(d, "one")
                assert test_state.call(d, "GET", "/v1/responses/" + made["id"]) == (200, made)
                assert " state_file " in d.log and "state.db" in d.log, d.log
            assert path.read_bytes() == before, kind
            path.unlink()


def all_stored(d, made):
    """Checks that each response is there as it was made, or not at all. Returns how many are there."""
    n = 0
    for r in made:
        status, answer = test_state.call(d, "GET", "/v1/responses/" + r["id"])
        assert (status, answer) == (200, r) or status == 404, (r["id"], status, answer)
        n += status == 200
    return n


def test_a_damaged_state_is_served_as_it_was_or_not_at_all():
    """At the start, and under a daemon that goes on to write into it."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as kept:
        args = test_state.flags(folder)
        path, seen = pathlib.Path(args[3]), set()
        with Weftd(*args) as d:
            made = [test_state.create(d, f"text {i} " + "word " * 40 * i) for i in range(12)]
        shutil.copy(path, kept)
        for seed in range(10):
            damage, running = DAMAGES[list(DAMAGES)[seed % 5]], seed >= 5
            for part in pathlib.Path(folder).glob("state.db*"):
                part.unlink()
            shutil.copy(os.path.join(kept, "state.db"), folder)
            if not running:
                damage(path, random.Random(seed))
            with Weftd(*args) as d:
                if running:
                    damage(path, random.Random(seed))
                seen.add(all_stored(d, made))
                new = test_state.create(d, "new")
                assert test_state.call(d, "GET", "/v1/responses/" + new["id"]) == (200, new)
                assert test_state.call(d, "DELETE", "/v1/responses/" + made[seed]["id"])[0] in (200, 404)
            assert d.process.returncode in (0, 75), (seed, d.process.returncode, d.log)
            told = d.process.returncode == 75
            with Weftd(*args) as d:
                all_stored(d, [*made, new])
                gone = test_state.call(d, "GET", "/v1/responses/" + made[seed]["id"])[0] == 404
                assert gone or told, f"{seed}: what was deleted is back"
        assert len(seen) > 1, "no damage has lost anything"


def test_damaged_presets_leave_the_others():
    """Read while the daemon runs, they are left out with a reason; the start names the file."""
    text = b"model = a\nmax-context = 512\nsampling = temperature=0\n"
    rng, damages = random.Random(5), list(DAMAGES.values())[:4]
    with folder_of("a") as models, tempfile.TemporaryDirectory() as presets:
        pathlib.Path(presets, "good.conf").write_bytes(text)
        with daemon(models, presets=presets) as d:
            def answer(name):
                body = {"model": name, "max_tokens": 6, "messages": [{"role": "user", "content": "hi"}]}
                status, _, value = d.request("POST", "/v1/chat/completions", body)
                return status, value.get("choices"), value.get("error")

            before, names = answer("good"), [f"bad{i}" for i in range(40)]
            assert before[0] == 200, before
            for i, name in enumerate(names):
                path = pathlib.Path(presets, name + ".conf")
                path.write_bytes(text)
                damages[i % 4](path, rng)
            wait_until("they are seen", lambda: " preset_not_read " in d.log or d.request("GET", "/v1/models")[0] != 200)
            refused = 0
            for name in names:
                status, choices, error = answer(name)
                assert status in (200, 400, 404, 503) and (status == 200 or error), (name, status, error)
                refused += status == 404
            assert refused > 5 and d.log.count(" preset_not_read ") >= refused // 2, (refused, d.log[-3000:])
            assert answer("good") == before
        r = subprocess.run([program("weftd"), "--models-dir", models, "--models", presets, "--listen", "127.0.0.1:0"], capture_output=True, text=True, timeout=LIMIT_S)
        assert r.returncode == 78 and any(name + ".conf" in r.stderr for name in names), (r.returncode, r.stderr)


def race(d, client, over):
    """Changes the names that all clients change; returns the statuses with what was done."""
    rng, seen = random.Random(client), set()
    names = ["n0", "n1", "n2"]
    blob = "sha256:" + "0" * 64
    for _ in range(over):
        name, other = rng.choice(names), rng.choice(names)
        what, path, body, method = rng.choice((
            ("create", "/api/create", {"model": name, "from": "a", "system": f"You are {rng.randrange(9)}.", "stream": False}, "POST"),
            ("create", "/api/create", {"model": name, "from": other, "stream": False}, "POST"),
            ("copy", "/api/copy", {"source": other, "destination": name}, "POST"),
            ("delete", "/api/delete", {"model": name}, "DELETE"),
            ("show", "/api/show", {"model": name}, "POST"),
            ("chat", "/api/chat", {"model": name, "messages": [{"role": "user", "content": "hi"}], "stream": False, "options": {"num_predict": 2}}, "POST"),
            ("blob", "/api/blobs/" + blob, {}, "POST"),
            ("tags", "/api/tags", None, "GET"),
        ))
        status, answer = post(d, path, body, method)
        seen.add((what, status))
        if status >= 400 and what != "blob":
            assert isinstance(answer, dict) and answer.get("error"), (what, status, answer)
    return seen


def test_clients_that_change_the_same_names_at_once():
    with folder_of("a") as models, tempfile.TemporaryDirectory() as presets:
        with daemon(models, presets=presets) as d:
            ask = {"model": "a", "prompt": [5, 6], "max_tokens": 4, "temperature": 0}
            before = d.request("POST", "/v1/completions", ask)[2]["choices"]
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                seen = set().union(*pool.map(lambda client: race(d, client, 60), range(8)))
            assert {("create", 200), ("copy", 200), ("delete", 200), ("chat", 200)} <= seen, sorted(seen)
            assert all(status < 500 or status == 503 for _, status in seen), sorted(seen)
            wait_until("the changes are taken", lambda: served(d) == made(presets), 30)
            assert not [p for p in os.listdir(presets) if p.endswith((".new", ".kept", ".checked"))], os.listdir(presets)
            for name in made(presets):
                assert system_of(d, name) == text_of(presets, name), name
            assert before == d.request("POST", "/v1/completions", ask)[2]["choices"]
            assert d.process.poll() is None


def served(d):
    """The models beside a. The admin socket does not read the folder again."""
    return {m["id"] for m in d.admin_request("GET", "/models")[1]["models"]} - {"a"}


def made(presets):
    return {p.name.removesuffix(".conf") for p in pathlib.Path(presets).glob("*.conf")}


def text_of(presets, name):
    path = pathlib.Path(presets, name + ".system")
    return path.read_text() if path.exists() else None


def system_of(d, name):
    """What the model is served with; it is opened first."""
    assert post(d, "/api/chat", {"model": name, "messages": [{"role": "user", "content": "hi"}], "stream": False, "options": {"num_predict": 1}})[0] == 200
    return post(d, "/api/show", {"model": name})[1].get("system")


def test_a_preset_that_changes_while_it_is_loaded_is_served_as_it_is_now():
    """Each change meets a load that the request before began."""
    with folder_of("a") as models, tempfile.TemporaryDirectory() as presets, daemon(models, presets=presets) as d:
        def create(text):
            assert post(d, "/api/create", {"model": "n", "from": "a", "system": text, "stream": False})[0] == 200

        chat = {"model": "n", "messages": [{"role": "user", "content": "hi"}], "stream": False, "options": {"num_predict": 1}}
        for number in range(6):
            create("first")
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                asked = pool.submit(post, d, "/api/chat", chat)
                time.sleep(0.004 * number)
                create(f"You are {number}.")
                asked.result()
            wait_until(f"the change {number}", lambda: system_of(d, "n") == f"You are {number}.", 20)
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                create("last")
                asked = pool.submit(post, d, "/api/chat", chat)
                time.sleep(0.004 * number)
                assert post(d, "/api/delete", {"model": "n"}, "DELETE")[0] == 200
                asked.result()
            wait_until("it is gone", lambda: served(d) == set(), 20)


main(globals())
