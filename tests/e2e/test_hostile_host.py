"""A hostile machine: too little memory or disk, model files that others rewrite. The front stays, says what is wrong, and
serves again as soon as the machine allows it."""
import errno
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from test_models import ask, folder_of, states
from weftd import LIMIT_S, Skip, Weftd, main, synth, wait_until

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


main(globals())
