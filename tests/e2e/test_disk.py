"""The disk tier: prefixes computed before a restart are found after it, with the same bits, only by their tenant, and
whatever damage the file has."""
import os
import stat
import subprocess
import tempfile

from golden_models import golden
from test_models import folder_of
from weftd import BACKEND, LIMIT_S, Weftd, fewer, main, program, random_tokens, recomputed, tiny_model, wait_until

FLAGS = ("--max-context", "4096", "--kv-pages", "256", "--backend", BACKEND, "--threads", "2")
PROMPT = random_tokens(70, 1000)
CACHED = 999 // 32 * 32
N_TOKENS = 20
_expected = []

if BACKEND == "reference":
    raise SystemExit("1..0 # SKIP its pages do not lie in one piece")


def ask(daemon, prompt=PROMPT, **more):
    c = daemon.complete(prompt, max_tokens=N_TOKENS, ignore_eos=True, logits_digest=True, temperature=1, seed=3, **more)
    return c["token_ids"], c["digests"], c["usage"]["prompt_tokens_details"]["cached_tokens"]


def expected():
    if not _expected:
        with Weftd(*FLAGS) as d:
            _expected.append(ask(d)[:2])
    return _expected[0]


def check_cached(daemon, before, n, cached, what):
    """On a slow machine tokens are computed where reading them looks slower, or takes seconds: recomputed(), which was
    @before, counts those."""
    assert n <= cached, f"{what}: {n} tokens came from the cache, not {cached}"
    wait_until(f"{what}: {n} tokens came from the cache, not {cached}", lambda: n + recomputed(daemon) - before >= cached)


def check(daemon, cached, what):
    before = recomputed(daemon)
    tokens, digests, n = ask(daemon)
    assert (tokens, digests) == expected(), f"{what}: other tokens or logits"
    check_cached(daemon, before, n, cached, what)


def wait_for(daemon, key, n):
    """What the worker reports is a little late."""
    wait_until(f"{n} {key}", lambda: daemon.stats()["worker"][key] >= n)


def wait_written(daemon):
    wait_for(daemon, "disk_saved_tokens", CACHED)


def notes(daemon):
    return [line for line in daemon.log.splitlines() if " kv_disk " in line]


class Folder(tempfile.TemporaryDirectory):
    def __enter__(self):
        return self

    def flags(self, *more):
        return (*FLAGS, "--kv-disk", self.name, "--kv-disk-size", "64M", *more)

    def file(self):
        return os.path.join(self.name, "prefixes.kv")


def test_after_a_restart_prefixes_are_there():
    with Folder() as f:
        with Weftd(*f.flags()) as d:
            check(d, 0, "first")
            check(d, CACHED, "second")
            wait_written(d)
        with Weftd(*f.flags()) as d:
            check(d, CACHED, "after a restart")
            before = recomputed(d)
            wait_for(d, "disk_loaded_tokens", CACHED - before)
            check_cached(d, before, ask(d, PROMPT[:500] + [7] + PROMPT[500:])[2], 500 // 32 * 32, "half of it")
        with Weftd(*FLAGS) as d:
            check(d, 0, "without the file")


def test_after_kill_9_what_was_written_is_there():
    with Folder() as f:
        with Weftd(*f.flags()) as d:
            check(d, 0, "first")
            wait_written(d)
            d.process.kill()
            d.process.wait()
        with Weftd(*f.flags()) as d:
            check(d, CACHED, "after kill -9")
            assert not notes(d), notes(d)


def test_a_deleted_folder_is_one_line():
    """The file can be written without its name, so no error tells of it; requests do not notice."""
    with Folder() as f, Weftd(*f.flags()) as d:
        check(d, 0, "first")
        wait_written(d)
        assert not notes(d), notes(d)
        for name in os.listdir(f.name):
            os.unlink(os.path.join(f.name, name))
        for seed in (71, 72):
            ask(d, random_tokens(seed, 1000))
            wait_for(d, "disk_saved_tokens", CACHED * (seed - 69))
        wait_until("the event", lambda: notes(d))
        assert len(notes(d)) == 1 and "was deleted" in notes(d)[0] and f'path="{f.file()}"' in notes(d)[0], notes(d)
        check(d, CACHED, "from memory")


def test_a_new_worker_has_what_the_dead_one_wrote():
    with Folder() as f, Weftd(*f.flags()) as d:
        check(d, 0, "first")
        wait_written(d)
        d.replace_worker()
        check(d, CACHED, "after the worker died")


def test_each_model_finds_its_own_after_it_was_unloaded():
    """Three models, of which one fits: loading one unloads another; each finds its own prefixes."""
    def turn(d, model, cached):
        status, _, c = d.request("POST", "/v1/completions", {"model": model, "prompt": PROMPT, "max_tokens": N_TOKENS, "ignore_eos": True, "logits_digest": True,
                                                             "temperature": 1, "seed": 3, "return_token_ids": True})
        assert status == 200, c
        n = c["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert n <= cached, (model, n)
        wait_until(f"{model}: {n} tokens: {d.log}", lambda: n + recomputed(d, model) >= cached)  # counted from 0 by a new worker
        return c["choices"][0]["token_ids"], c["choices"][0]["digests"]

    flags = ("--max-context", "4096", "--kv-memory", "16M", "--models-memory", "100M", "--backend", BACKEND, "--threads", "2")
    with folder_of("abc") as models, Folder() as f:
        disk = ("--models-dir", models, *flags, "--kv-disk", f.name, "--kv-disk-size", "64M")
        with Weftd(*disk, model="") as d:
            should = {m: turn(d, m, 0) for m in "abc"}
            assert len({str(s) for s in should.values()}) == 3
            for m in "abc":
                assert turn(d, m, CACHED) == should[m], f"{m}: other tokens or logits"
            states = {m["id"]: m["loads"] for m in d.admin_request("GET", "/models")[1]["models"]}
            assert states == {"a": 2, "b": 2, "c": 2}, f"nothing was unloaded: the test is blind: {states}"
        assert sorted(os.listdir(f.name)) == ["prefixes-a.kv", "prefixes-b.kv", "prefixes-c.kv", "prefixes.key", "prefixes.kv"]
        with Weftd(*disk, model="") as d:
            for m in "abc":
                assert turn(d, m, CACHED) == should[m], f"{m}: other tokens or logits after a restart"
            assert not notes(d), notes(d)
            # The model is replaced by one with other weights, which finds no prefix of the old one.
            assert d.admin_request("POST", f"/models/c/swap?file={models}/a.gguf")[0] == 200
            wait_until("the swap", lambda: all(m["id"] != "c" or m.get("swap") == "done" for m in d.admin_request("GET", "/models")[1]["models"]))
            assert turn(d, "c", 0) == should["a"]


def test_a_damaged_page_is_one_line_and_is_computed():
    with Folder() as f:
        with Weftd(*f.flags()) as d:
            check(d, 0, "first")
        with open(f.file(), "r+b") as file:
            data = file.read()
            heads = [i for i in range(4096, len(data), 4096) if data[i:i + 8] == b"weftKV03"]
            assert len(heads) >= CACHED // 32, len(heads)
            file.seek(heads[5] + 4096 + 100)
            file.write(bytes(b ^ 0xFF for b in data[heads[5] + 4196:heads[5] + 4200]))
        with Weftd(*f.flags()) as d:
            tokens, digests, n = ask(d)
            assert (tokens, digests) == expected(), "other tokens or logits"
            assert n < CACHED and len(notes(d)) <= 1, (n, notes(d))
            # Pages before the damaged one are found, unless reading looked too slow.
            wait_until("the damage", lambda: n > 0 and notes(d) or recomputed(d) > 0)
            check(d, CACHED, "again")
        with Weftd(*f.flags()) as d:
            check(d, CACHED, "written anew")


def damage_states(path):
    """Damages one byte of each state; a slot whose header names no tokens holds a state."""
    with open(path, "r+b") as file:
        data = file.read()
        states = [i for i in range(4096, len(data), 4096) if data[i:i + 8] == b"weftKV03" and data[i + 96:i + 100] == bytes(4)]
        for i in states:
            file.seek(i + 4096 + 50)
            file.write(bytes([data[i + 4096 + 50] ^ 1]))
    return len(states)


def test_a_hybrid_model_goes_on_where_its_state_is():
    """Before a restart all 900 tokens of a prompt are computed; after it only those behind the last page before the
    template's tail."""
    prompt = random_tokens(71, 900, 300)  # ordinary tokens: none ends a message
    for name in fewer(("nemotron-h-moe-mtp", "qwen4exp", "deepseek4", "qwen35-mtp")):
        flags = ("--max-context", "1024", "--kv-pages", "256", "--backend", BACKEND, "--threads", "2")
        with Folder() as f:
            disk = (*flags, "--kv-disk", f.name, "--kv-disk-size", "64M")
            with Weftd(*disk, model=golden(name)) as d:
                should = ask(d, prompt)
                assert should[2] == 0, should
                wait_for(d, "disk_saved_snapshots", 1)
            with Weftd(*disk, model=golden(name)) as d:
                *same, n = ask(d, prompt)
                assert same == [*should[:2]], name
                check_cached(d, 0, n, (900 - 16) // 32 * 32, name)
                wait_for(d, "disk_loaded_snapshots", 1)
                shown = subprocess.run([program("weftctl"), "--socket", d.admin, "stats"], capture_output=True, text=True, check=True).stdout
                assert " snapshots; " in shown and " written, 1 read" in shown, shown
            if name != "qwen35-mtp":
                continue
            n = damage_states(f.file())
            with Weftd(*disk, model=golden(name)) as d:
                assert ask(d, prompt) == (*should[:2], 0)
                assert 1 <= len(notes(d)) <= n, (n, notes(d))


def test_rubbish_in_place_of_the_file_is_one_line():
    with Folder() as f:
        with Weftd(*f.flags()) as d:
            check(d, 0, "first")
        size = os.path.getsize(f.file())
        with open(f.file(), "wb") as file:
            file.write(os.urandom(min(size, 1 << 22)))
        with Weftd(*f.flags()) as d:
            check(d, 0, "after the file was lost")
            assert len(notes(d)) == 1, notes(d)
        with Weftd(*f.flags("--page-tokens", "16")) as d:
            check(d, 0, "other pages")
            assert len(notes(d)) == 1, notes(d)


def test_nobody_finds_the_pages_of_another_tenant():
    with Folder() as f, tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("annabel:secret-of-annabel\nbartholomew:secret-of-bartholomew\n")
        keys.flush()
        flags = f.flags("--api-keys", keys.name)

        def cached(d, key):
            body = {"prompt": PROMPT, "max_tokens": 1}
            status, _, value = d.request("POST", "/v1/completions", body, {"Authorization": "Bearer " + key})
            assert status == 200, value
            return value["usage"]["prompt_tokens_details"]["cached_tokens"]

        with Weftd(*flags) as d:
            assert cached(d, "secret-of-annabel") == 0
            wait_written(d)
        with open(f.file(), "rb") as file:
            data = file.read()
        assert b"weftKV03" in data[4096:], "nothing was written"
        for word in (b"annabel", b"bartholomew", b"secret-of", b"tenant"):
            assert word not in data, word
        with Weftd(*flags) as d:
            assert cached(d, "secret-of-bartholomew") == 0
            check_cached(d, 0, cached(d, "secret-of-annabel"), CACHED, "their own")


def test_only_its_user_can_read_it():
    with Folder() as f:
        with Weftd(*f.flags()):
            for name in os.listdir(f.name):
                mode = os.stat(os.path.join(f.name, name)).st_mode
                assert stat.S_IMODE(mode) == 0o600, (name, oct(mode))
        for name in ("prefixes.kv", "prefixes.key"):
            path = os.path.join(f.name, name)
            os.chmod(path, 0o640)
            command = [program("weftd"), "--model", tiny_model(), *f.flags(), "--listen", "127.0.0.1:0"]
            r = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=LIMIT_S)
            assert r.returncode == 78 and name in r.stderr, (r.returncode, r.stderr)
            os.chmod(path, 0o600)


def test_two_daemons_do_not_share_a_folder():
    with Folder() as f, Weftd(*f.flags()):
        command = [program("weftd"), "--model", tiny_model(), *f.flags(), "--listen", "127.0.0.1:0"]
        r = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=LIMIT_S)
        assert r.returncode == 75 and "another weftd" in r.stderr, (r.returncode, r.stderr)


if __name__ == "__main__":
    main(globals())
