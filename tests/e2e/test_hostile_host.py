"""A hostile machine: too little memory or disk, model files that others rewrite. The front stays, says what is wrong, and
serves again as soon as the machine allows it."""
import base64
import errno
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib

from test_manage import FILES, PULLED, need_curl, post
from test_models import ask, folder_of
from weftd import DATA, LIMIT_S, Skip, Weftd, main, parallel, program, random_tokens, synth, wait_until

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "cmd"))
import fake_hub  # noqa: E402

FLAGS = ("--max-context", "2048", "--threads", "1")


class Group:
    """A control group of its own for a daemon; .limit() bounds the memory that it may use beyond what it has."""

    def __init__(self):
        unified = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
        self.folder = tempfile.mkdtemp(prefix="weft-e2e-", dir="/sys/fs/cgroup" if unified else "/sys/fs/cgroup/memory")
        self.most, self.used = ("memory.max", "memory.current") if unified else ("memory.limit_in_bytes", "memory.usage_in_bytes")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        wait_until("the group is empty", lambda: not self.read("cgroup.procs"))
        os.rmdir(self.folder)

    def read(self, name):
        return pathlib.Path(self.folder, name).read_text()

    def write(self, name, value):
        pathlib.Path(self.folder, name).write_text(str(value))

    def limit(self, n_bytes):
        """Returns false if more is in use."""
        try:
            self.write(self.most, n_bytes)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            raise
        return True


def group():
    try:
        g = Group()
    except OSError as error:
        raise Skip(f"no control group can be made: {error}")
    if not os.path.exists(os.path.join(g.folder, g.most)):
        os.rmdir(g.folder)
        raise Skip("the memory of control groups is not managed here")
    return g


def test_a_limit_of_memory_ends_workers_and_not_the_front():
    """There is no more room for a worker, so each is killed until there is."""
    with group() as g, Weftd(*FLAGS, "--kv-memory", "256M", popen={"preexec_fn": lambda: g.write("cgroup.procs", os.getpid())}) as d:
        body = {"max_tokens": 8, "ignore_eos": True, "temperature": 0}
        expected = d.complete("hello", **body)["token_ids"]
        least = int(g.read(g.used)) - (150 << 20)
        begin, starts = time.monotonic(), d.stats()["worker"]["starts"]
        wait_until("the limit", lambda: d.kill_worker() and g.limit(least))
        status, headers, answer = d.request("POST", "/v1/completions", {"prompt": "hello", **body})
        assert status == 503 and "enough memory" in answer["error"]["message"] and int(headers["Retry-After"]) > 0, (status, answer)
        assert "enough memory" in d.request("GET", "/health")[2]["reason"]
        assert d.stats()["worker"]["starts"] - starts < 12 + time.monotonic() - begin, d.log
        assert d.process.poll() is None and 'reason="killed: is there enough memory?"' in d.log, d.log
        assert g.limit(1 << 40)
        d.wait_health(200)
        assert d.complete("hello", **body)["token_ids"] == expected


def picture_of(side, seed):
    """Returns the URL of a PNG of @side x @side pixels."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\0" + bytes((seed + i) % 256 for i in range(3 * side))
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row * side)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def large(kind, i, max_body):
    """Returns the path and the body of a request that takes much memory; each @i brings new work."""
    chat = {"max_tokens": 4, "messages": [{"role": "user", "content": "a"}]}
    if kind == "body":
        return "/tokenize", {"prompt": "weft", "padding": "x" * (max_body - 4096)}
    if kind == "answer":
        return "/tokenize", {"content": "weft " * 12_000, "with_pieces": True}
    if kind == "grammar":
        fields = {f"p{i}_{k}": {"type": "string", "pattern": f"^[a-z{k}]{{3,{50 + k}}}x{i}$"} for k in range(60)}
        schema = {"name": "a", "schema": {"type": "object", "properties": fields}}
        return "/v1/chat/completions", {**chat, "response_format": {"type": "json_schema", "json_schema": schema}}
    if kind == "picture":
        parts = [{"type": "image_url", "image_url": {"url": picture_of(900, i)}}]
        return "/v1/chat/completions", {**chat, "messages": [{"role": "user", "content": parts}]}
    return "/v1/completions", {"prompt": [5 + (i + k) % 200 for k in range(1800)], "max_tokens": 4}


def test_large_requests_need_no_more_memory_than_their_limits():
    """Ten clients send what takes the most memory. A group with room for twice what all bodies may have needs to end no process."""
    max_body, kinds = 4 << 20, ("body", "answer", "grammar", "picture", "context")
    flags = (*FLAGS, "--kv-pages", "128", "--max-body", str(max_body))
    with group() as g, Weftd(*flags, model=str(DATA / "golden-vision" / "qwen3vl.gguf"),
                             popen={"preexec_fn": lambda: g.write("cgroup.procs", os.getpid())}) as d:
        body = {"max_tokens": 8, "ignore_eos": True, "temperature": 0}
        expected = d.complete("hello", **body)["token_ids"]
        assert g.limit(int(g.read(g.used)) + 2 * 8 * max_body)
        end = time.monotonic() + 8

        def client(kind, i):
            statuses = set()
            while time.monotonic() < end or not statuses:
                i += 1
                status, _, answer = d.request("POST", *large(kind, i, max_body))
                assert status == 200 or answer["error"]["message"], (kind, status, answer)
                statuses.add(status)
            return statuses

        clients = 2 * kinds
        said = parallel([lambda kind=kind, i=i: client(kind, 1000 * i) for i, kind in enumerate(clients)])
        assert set().union(*said) <= {200, 503} and all(200 in s for s in said), list(zip(clients, said))
        assert d.process.poll() is None and d.stats()["worker"]["starts"] == 1, d.log
        assert d.complete("hello", **body)["token_ids"] == expected


def test_the_kernel_ends_a_worker_before_the_front():
    with Weftd(*FLAGS) as d:
        front, worker = (int(pathlib.Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (d.process.pid, d.worker_pid()))
        assert worker == min(front + 100, 1000), (front, worker)


def rewrite(path, data, over):
    """Cuts the file off and writes it again, as cp does, until @over is set."""
    rng = random.Random(7)
    with open(path, "r+b", buffering=0) as f:
        while not over.is_set():
            f.truncate(0)
            f.seek(0)
            f.write(data)
            time.sleep(rng.random() * 0.004)


def test_models_that_others_rewrite_are_read_again():
    """Scans read headers while the files are cut off and written. A model is there or not; no read ends the front."""
    large = pathlib.Path(synth("rewritten", "--shape", "tiny", "--format", "Q8_0", "--n-vocab", "60000")).read_bytes()
    with folder_of("a") as folder:
        paths = [pathlib.Path(folder, f"large-{i}.gguf") for i in range(8)]
        for path in paths:
            path.write_bytes(large)
        with Weftd("--models-dir", folder, "--kv-memory", "16M", *FLAGS, model="") as d:
            expected = ask(d, "a")
            over = threading.Event()
            threads = [threading.Thread(target=rewrite, args=(path, large, over)) for path in paths]
            for t in threads:
                t.start()
            try:
                end = time.monotonic() + 7
                while time.monotonic() < end:  # a scan every two seconds
                    assert d.request("GET", "/v1/models")[0] == 200
                    status, _, answer = d.request("POST", "/v1/completions", {"model": "large-3", "prompt": [5, 6], "max_tokens": 1})
                    assert status in (200, 404, 503), (status, answer)
                    assert ask(d, "a") == expected
            finally:
                over.set()
                for t in threads:
                    t.join(LIMIT_S)
            assert d.process.poll() is None, d.log
            wait_until("the files are whole", lambda: d.request("POST", "/v1/completions", {"model": "large-3", "prompt": [5, 6], "max_tokens": 1})[0] == 200)


class Disk:
    """A small file system of its own; .fill() takes all its room and .free() gives that back."""

    def __init__(self, n_bytes):
        self.folder = tempfile.mkdtemp(prefix="weft-e2e-")
        self.filler = pathlib.Path(self.folder, "filler")
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "none", self.folder], capture_output=True).returncode:
            os.rmdir(self.folder)
            raise Skip("tmpfs cannot be mounted here")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", self.folder], check=True)
        os.rmdir(self.folder)

    def path(self, name):
        path = os.path.join(self.folder, name)
        os.makedirs(path, exist_ok=True)
        return path

    def fill(self):
        with open(self.filler, "ab", buffering=0) as f:
            for n in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        f.write(b"x" * n)
                except OSError as error:
                    assert error.errno == errno.ENOSPC, error

    def free(self):
        self.filler.unlink()


def store(d, text):
    status, _, answer = d.request("POST", "/v1/responses", {"model": "a", "input": text, "max_output_tokens": 4})
    assert status == 200, answer
    return answer["id"]


def is_there(d, response):
    return d.request("GET", "/v1/responses/" + response)[0] == 200


def test_a_disk_that_is_full_fails_what_writes_and_nothing_else():
    """State, prefixes, recordings, presets and pulls on one disk. Each says that it has no room, none loses what was there,
    and each goes on when there is room."""
    need_curl()
    full = threading.Event()
    large = {name: data + b"1" * (16 << 20) for name, data in FILES.items()}  # more than the disk has
    with Disk(96 << 20) as disk, folder_of("a") as models, fake_hub.Hub(large) as hub:
        home, presets = disk.path("home"), disk.path("presets")
        shutil.copy(os.path.join(models, "a.gguf"), home)
        state = os.path.join(disk.path("state"), "state.db")
        flags = ("--models-dir", home, "--models", presets, "--allow-pull", "*", "--state-file", state, "--fault-dir", disk.path("faults"), "--kv-disk",
                 disk.path("kv"), "--kv-disk-size", "8M", "--kv-memory", "16M", *FLAGS)
        env = {"HOME": home, "HF_ENDPOINT": hub.url}
        with Weftd(*flags, env=env, model="") as d:
            expected, kept = ask(d, "a"), store(d, "before")
            assert post(d, "/api/create", {"model": "old", "from": "a", "system": "one", "stream": False})[0] == 200
            wait_until("the row", lambda: os.path.getsize(state) > 0 and not os.path.exists(state + "-journal"))
            hub.faults["cdn"] = [fake_hub.held(1 << 20, full)]
            pulled = []
            pull = threading.Thread(target=lambda: pulled.append(post(d, "/api/pull", {"model": f"{PULLED}:Q8_0"})), daemon=True)
            pull.start()
            wait_until("a part of the file", lambda: list(pathlib.Path(home).rglob("*.part")))
            disk.fill()
            full.set()
            pull.join(LIMIT_S)
            error = pulled[0][1][-1]["error"]
            assert pulled[0][0] == 200 and "o space left" in error and "models-dir/" in error and disk.folder not in error, pulled
            disk.fill()
            status, answer = post(d, "/api/create", {"model": "new", "from": "a", "system": "two", "stream": False})
            assert status == 500 and "No space left" in answer["error"], answer
            status, lines = post(d, "/api/pull", {"model": f"{PULLED}:Q4_K_M"})
            assert status == 200 and "the disk of models-dir has only 0 B free" in lines[-1]["error"], lines
            status, _, late = d.request("POST", "/v1/conversations", {"items": [{"role": "user", "content": "x" * 500000}]})
            assert status == 200 and is_there(d, kept), late
            d.kill_worker()
            assert ask(d, "a") == expected and ask(d, "old")
            wait_until("the recording", lambda: " fault_not_written " in d.log)
            wait_until("the state", lambda: " state_file " in d.log)
            assert d.health() == 200
            disk.free()
            assert post(d, "/api/create", {"model": "new", "from": "a", "system": "two", "stream": False})[0] == 200
            assert post(d, "/api/pull", {"model": f"{PULLED}:Q4_K_M", "stream": False}) == (200, {"status": "success"})
            last = store(d, "after")
            wait_until("the worker", lambda: d.kill_worker() and ask(d, "a") == expected)
            wait_until("the next recording", lambda: os.listdir(disk.path("faults")))
            d.process.terminate()
            assert d.process.wait(LIMIT_S) == 0, d.log
        with Weftd(*flags, env=env, model="") as d:
            assert is_there(d, kept) and is_there(d, last), d.log
            assert d.request("GET", "/v1/conversations/" + late["id"])[2] == late
            assert ask(d, "new") and ask(d, "old") and ask(d, "a") == expected


def test_a_start_on_a_full_disk_serves_or_says_why():
    """A disk with room for 0 to 8 pages when the daemon makes its files: it serves without them, or names the file and asks to
    be started again. With room, the next start serves, and nothing half made disturbs it."""
    served = 0
    with Disk(16 << 20) as disk, folder_of("a") as models:
        files = {name: disk.path(name) for name in ("state", "kv", "faults", "presets")}
        flags = ("--models-dir", models, "--models", files["presets"], "--state-file", f"{files['state']}/state.db", "--fault-dir", files["faults"],
                 "--kv-disk", files["kv"], "--kv-disk-size", "8M", "--kv-memory", "16M", *FLAGS)
        for n_pages in range(9):
            disk.fill()
            os.truncate(disk.filler, disk.filler.stat().st_size - n_pages * PAGE)
            with Weftd(*flags, model="", wait=False) as d:
                wait_until("a start or its end", lambda: "ready http" in d.log or d.process.poll() is not None)
                if d.process.poll() is None:
                    d.wait_ready()
                    assert ask(d, "a") and d.health() == 200
                    served += 1
                else:
                    assert d.process.returncode == 75 and "No space left" in d.log and disk.folder in d.log, (n_pages, d.process.returncode, d.log)
            disk.free()
            with Weftd(*flags, model="") as d:
                assert ask(d, "a") and store(d, "after"), d.log
            for name in ("state", "kv"):
                shutil.rmtree(files[name])
                os.mkdir(files[name])
        print("# served without room for all:", served)
        assert served


PAGE = 4096


def files_below(folder):
    return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mode) for p in pathlib.Path(folder).rglob("*") if p.is_file() and p.name != "filler"}


def test_what_the_programs_write_is_whole_or_as_it_was():
    """Keys, settings of clients, recordings and results, on a disk with room for 0 to 6 pages: the exit code tells whether the
    file is the new one, and nothing else is left."""
    with Disk(1 << 20) as disk, Weftd(*FLAGS) as d:
        home = pathlib.Path(disk.path("home"))
        settings, keys, recording, result = home / ".claude" / "settings.json", home / "keys", home / "recording", home / "result.json"
        settings.parent.mkdir()
        settings.write_text('{"padding": "%s"}' % ("x" * PAGE))
        keys.write_bytes(b"# " + b"k" * (PAGE - 3) + b"\n")  # so that the next key needs a page
        for path in recording, result:
            path.write_text("old")
            path.chmod(0o640)
        link = home / "link"
        link.symlink_to(result)
        before = files_below(home)
        bench = ("weft-bench", "serve", "--url", d.url(), "--clients", "1", "--requests", "1", "--prompt-tokens", "4", "--output-tokens", "2", "--json")
        commands = {
            settings: ("weftctl", "launch", "claude", "--write", "--url", d.url()),
            keys: ("weftctl", "key", "new", "bob", str(keys)),
            recording: ("weftctl", "--socket", d.admin, "dump", str(recording)),
            result: (*bench, str(link)),
        }
        fine = dict.fromkeys(commands, 0)
        for n_pages in range(7):
            for path, (name, *args) in commands.items():
                disk.fill()
                os.truncate(disk.filler, disk.filler.stat().st_size - n_pages * PAGE)
                r = subprocess.run([program(name), *args], capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, "HOME": str(home)})
                after, own = files_below(home), str(path.relative_to(home))
                if r.returncode:
                    assert r.returncode == 1 and "No space left" in r.stderr and not r.stdout.startswith("weft-"), r
                    assert after == before, (n_pages, args, after.keys())
                    continue
                fine[path] += 1
                assert after[own][0] != before[own][0] and after[own][1] == before[own][1], (n_pages, own)
                if path == settings:
                    subprocess.run([program("weftctl"), "launch", "claude", "--undo"], check=True, stdout=subprocess.DEVNULL, env={**os.environ, "HOME": str(home)})
                else:
                    path.write_bytes(before[own][0])
                assert files_below(home) == before, (n_pages, own)
                disk.filler.unlink(missing_ok=True)
        assert link.is_symlink() and all(0 < n < 7 or path == recording for path, n in fine.items()), fine


main(globals())
