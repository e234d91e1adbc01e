"""Runs real weftd processes for the end-to-end tests, and a runner that prints TAP.

A test file calls `main(globals())`: every function whose name begins with test_ is a test; its name says what is
tested. A test that raises `Skip("why")` is skipped. Tests marked `@beside` wait more than they compute: they run in
threads concurrently with the others.
"""
import contextlib
import concurrent.futures
import glob
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback

BUILD = pathlib.Path(os.environ.get("WEFT_BUILD", "build")).resolve()
DATA = pathlib.Path(os.environ.get("WEFT_DATA") or BUILD / "tests" / "data").resolve()  # tests/data/README.md
# The longest wait for what must come about: a daemon's start, an answer, an end. Machines stall, so only a failure may take as long.
LIMIT_S = 180
# What the daemons compute with; "auto" is what users get.
BACKEND = os.environ.get("WEFT_BACKEND", "cpu")


class Skip(Exception):
    pass


def wait_until(what, condition, limit_s=LIMIT_S):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def free_port():
    """Returns a port for a program that cannot choose one: below those that the system gives to others, if there are any, so that
    none of them takes it meanwhile."""
    end = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if end < 2048:
        end = 65536
    for _ in range(1000):
        try:
            with socket.create_server(("127.0.0.1", random.randrange(max(1024, end // 2), end))) as s:
                return s.getsockname()[1]
        except OSError:  # taken
            pass
    raise AssertionError("every port is taken")


def has_device():
    return bool(glob.glob("/dev/nvidia[0-9]*")) or os.path.exists("/dev/dxg")


def cannot_run():
    """Returns the reason for which the backend of WEFT_BACKEND cannot run here, or None."""
    if BACKEND != "cuda":
        return None
    if not (BUILD / "weft-cuda.so").exists():
        return "weft-cuda.so was not built"
    return None if has_device() else "no CUDA device"


def program(name):
    return str(BUILD / name)


def synth(name, *args):
    """Returns a synthetic model of these weft-synth arguments, made once per build folder."""
    folder = BUILD / "tests" / "models"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (name + ".gguf")
    if not path.exists():
        part = folder / f"{name}.{os.getpid()}.{threading.get_ident()}.part"  # tests of a process run beside each other
        subprocess.run([program("weft-synth"), *args, "-o", str(part)], check=True, stdout=subprocess.DEVNULL)
        with contextlib.suppress(FileExistsError):  # another one's file stays, which a test may be linking
            os.link(part, path)
        part.unlink()
    return str(path)


def copy_daemon(folder):
    """Copies weftd next to the emulated CUDA backend."""
    module = BUILD / "tests" / "engine" / "cuda" / "weft-cuda.so"
    if not module.exists():
        raise Skip("the emulated CUDA backend was not built")
    for file in (program("weftd"), module):
        shutil.copy(file, folder)


def tiny_model():
    return synth("tiny-qwen3-q4_k_m-128k", "--arch", "qwen3", "--shape", "tiny,context=131072", "--format", "Q4_K_M", "--seed", "1")


def mtp_model(loud, n_vocab=1024):
    """Returns a hybrid model with a block of multi-token prediction; the less its layers add, the more often the block
    is right. With 3,072 tokens the vocabulary includes those around pictures."""
    return synth(f"tiny-mtp-{loud}-{n_vocab}", "--arch", "qwen35", "--shape",
                 f"tiny,n_layer=4,n_key=2,n_value=4,n_state=16,n_mtp=1,context=8192,n_vocab={n_vocab},loud={loud}",
                 "--format", "Q8_0")


def assisted_model(loud, form="Q8_0"):
    """Returns a Gemma 4 model and its assistant of the same width, in the format @form; the less the layers add, the
    more often the assistant is right."""
    shape = ("n_embd=256,n_head=4,n_kv=1,head_dim=64,n_kv_window=2,window_dim=32,window=48,n_vocab=1024,context=8192,"
             f"loud={loud}")
    model = synth(f"tiny-gemma4-{loud}-{form}", "--shape", "gemma-4-26b-a4b,n_layer=4,period=2,n_expert=4,n_used=2,n_ff=64,n_dense=128,"
                  + shape, "--format", form)
    return model, synth(f"tiny-gemma4-assistant-{loud}-{form}", "--shape", "gemma-4-26b-a4b-assistant,n_layer=2,period=2,n_ff=128,"
                        "n_embd_out=256," + shape, "--format", form)


def block_of(model, n_layer):
    """Returns a file with only the model's block of multi-token prediction."""
    data = pathlib.Path(model).read_bytes()
    at = 24
    n_tensors, n_kv = struct.unpack_from("<QQ", data, 8)

    def text():
        nonlocal at
        n, = struct.unpack_from("<Q", data, at)
        at += 8 + n
        return data[at - n:at].decode(errors="replace")

    def skip(kind):
        nonlocal at
        if kind == 8:
            text()
        elif kind == 9:
            of, n = struct.unpack_from("<IQ", data, at)
            at += 12
            for _ in range(n):
                skip(of)
        else:
            at += (1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)[kind]

    for _ in range(n_kv):
        text()
        at += 4
        skip(struct.unpack_from("<I", data, at - 4)[0])
    keys, tensors = data[24:at], []
    for _ in range(n_tensors):
        begin = at
        name = text()
        at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 4
        tensors.append((name, data[begin:at], struct.unpack_from("<Q", data, at)[0]))
        at += 8
    kept = [t for t in tensors if not any(t[0].startswith(f"blk.{i}.") for i in range(n_layer))]
    base, ends = -(-at // 32) * 32, sorted(t[2] for t in tensors) + [len(data)]
    head, body = b"", b""
    for _, entry, offset in kept:
        end = next(e for e in ends if e > offset)
        head += entry + struct.pack("<Q", len(body))
        body += data[base + offset:base + end]
        body += bytes(-len(body) % 32)
    head = data[:8] + struct.pack("<QQ", len(kept), n_kv) + keys + head
    path = pathlib.Path(model).with_suffix(f".block-{os.getpid()}.gguf")
    path.write_bytes(head + bytes(-len(head) % 32) + body)
    return str(path)


def dead_mount(prefix):
    """Returns the environment of a daemon for which files whose paths begin with @prefix are those of a server that is away
    while @prefix.away exists (tests/support/dead_mount.c)."""
    return {"LD_PRELOAD": str(BUILD / "tests" / "support" / "libdead_mount.so"), "WEFT_DEAD_MOUNT": str(prefix)}


def keys_in(folder):
    """Writes a file with the keys of two tenants, alice (ka) and bob (kb)."""
    path = os.path.join(folder, "keys")
    with open(path, "w") as file:
        file.write("alice:ka\nbob:kb\n")
    return path


class Flood:
    """While it is entered, clients with the key ka send these requests, (path, body), repeatedly: for each, one client
    waits for the answer, and one disconnects after 0.2 s. @took: time of each answer in seconds."""

    def __init__(self, daemon, *requests):
        self.daemon, self.over, self.took = daemon, threading.Event(), []
        self.threads = [threading.Thread(target=self.run, args=(path, json.dumps(body).encode(), leaves)) for path, body in requests for leaves in (False, True)]

    def run(self, path, body, leaves):
        while not self.over.is_set():
            start, c = time.monotonic(), self.daemon.connect(0.2 if leaves else 120)
            try:
                c.request("POST", path, body, {"Authorization": "Bearer ka", "Content-Type": "application/json"})
                r = c.getresponse()
                r.read()
                assert r.status in (200, 503), r.status
                self.took.append(time.monotonic() - start)
            except TimeoutError:
                pass
            c.close()

    def measure(self, ask, wanted, n=8):
        """Calls @ask() @n times, or until one of the flood's own answers has come, and checks that it returns @wanted.
        Returns the times in seconds, sorted."""
        waits = []
        while not self.took or len(waits) < n:
            start = time.monotonic()
            assert ask() == wanted
            waits.append(time.monotonic() - start)
        return sorted(waits)

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for t in self.threads:
            t.join()


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def open_files(pid):
    """Returns a process's open descriptors as (path under /proc, target, inode). Skips those that are closed
    meanwhile."""
    found = []
    folder = f"/proc/{pid}/fd"
    for fd in os.listdir(folder):
        path = os.path.join(folder, fd)
        try:
            found.append((path, os.readlink(path), os.stat(path).st_ino))
        except OSError:
            pass
    return found


class Weftd:
    """A running daemon; use as a context manager. Its log is in .log; a test that fails should print it."""

    def __init__(self, *flags, model=None, env=None, wait=True, popen=None, stderr=None, path=None):
        self.folder = tempfile.TemporaryDirectory(prefix="weft-e2e-")
        self.admin = os.path.join(self.folder.name, "admin.sock")
        self.log_path = os.path.join(self.folder.name, "log")
        self.port = None
        self.killed = None  # PID of the worker that was killed last
        command = [path or program("weftd"), "--admin-socket", self.admin]
        if model != "":  # "": the flags name models
            command += ["--model", model or tiny_model()]
            if not any(str(f).startswith(("--kv-memory", "--kv-pages", "--config")) for f in flags):
                command += ["--kv-memory", "64M"]  # a start is mostly clearing pages of the default
        if "--backend" not in flags:
            command += ["--backend", BACKEND]
        if "--listen" not in flags:
            command += ["--listen", "127.0.0.1:0"]
        if not any(str(f).startswith(("--threads", "--config")) for f in flags):
            command += ["--threads", "1"]  # with tiny models more threads would mostly spin
        environment = {**os.environ, "WEFT_WATCH_LOOP": "1", **(env or {})}  # lib/base/loop_bytes.h
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                command + [str(f) for f in flags], stderr=log if stderr is None else stderr, env=environment, **(popen or {})
            )
        if wait:
            self.wait_ready()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError("weftd did not stop after SIGTERM\n" + self.log)
        found = "Sanitizer" in self.log
        if found or kind and kind not in (Skip, SystemExit):
            print("# " + self.log.replace("\n", "\n# "), file=sys.stderr)
        self.folder.cleanup()
        assert not found, "a sanitizer's report is in the log"

    @property
    def log(self):
        with open(self.log_path) as file:
            return file.read()

    def wait_ready(self):
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"weftd exited with {self.process.returncode}: {self.log}")
            for line in self.log.splitlines():
                if '"event":"ready"' in line:  # log-format = json
                    line = "ready " + json.loads(line)["url"]
                if line.startswith(("ready http://", "ready https://")):
                    self.port = int(line.rsplit(":", 1)[1])
                    return
                if line.startswith("ready "):
                    return
            time.sleep(0.01)
        raise AssertionError("weftd was not ready in time: " + self.log)

    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def connect(self, timeout=LIMIT_S):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, connection=None):
        """Returns (status, headers, parsed JSON or text)."""
        connection = connection or self.connect()
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        text = response.read().decode()
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        return response.status, response.headers, value

    def complete(self, prompt, **params):
        """Returns the first choice of a completion; raises an AssertionError for an error."""
        status, _, value = self.request("POST", "/v1/completions", {"prompt": prompt, "return_token_ids": True, **params})
        assert status == 200, (status, value)
        return {**value["choices"][0], "usage": value["usage"]}

    def stream(self, path, body, timeout=LIMIT_S, connection=None, key=None):
        """Yields the parsed data of each SSE event; the final [DONE] ends it."""
        connection = connection or self.connect(timeout)
        connection.request("POST", path, json.dumps({"stream": True, **body}),
                           {"Content-Type": "application/json", **({"Authorization": "Bearer " + key} if key else {})})
        response = connection.getresponse()
        if response.status != 200:
            raise AssertionError((response.status, response.read()))
        for line in response:
            line = line.decode().rstrip("\r\n")
            if line == "data: [DONE]":
                connection.close()
                return
            if line.startswith("data: "):
                yield json.loads(line[6:])
        raise AssertionError("the stream ended without [DONE]")

    def admin_request(self, method, path):
        connection = UnixConnection(self.admin, LIMIT_S)
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def stats(self):
        return self.admin_request("GET", "/stats")[1]

    def stats_or_none(self):
        """Returns None if no daemon listens yet."""
        try:
            return self.stats()
        except OSError:
            return None

    def listening_port(self, beside=None):
        """Returns the front's port as the system reports it, where its log cannot be read; a port other than
        @beside."""
        inodes = {target for _, target, _ in open_files(self.process.pid)}
        with open("/proc/net/tcp") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                port = int(fields[1].split(":")[1], 16) if fields[3] == "0A" else None
                if port and port != beside and f"socket:[{fields[9]}]" in inodes:
                    return port
        raise AssertionError("it does not listen")

    def worker_pid(self):
        return self.stats()["worker"]["pid"]

    def health(self):
        return self.request("GET", "/health")[0]

    def replace_worker(self):
        """Kills it, and waits for the next one."""
        old = self.worker_pid()
        self.kill_worker(old)
        wait_until("the next worker", lambda: (w := self.stats()["worker"])["pid"] not in (0, None, old) and w["state"] == "serving")

    def kill_worker(self, pid=None):
        """Kills the worker. Returns false if that worker was killed before or none runs."""
        pid = pid or self.worker_pid()
        if not pid or pid == self.killed:
            return False
        os.kill(pid, signal.SIGKILL)
        self.killed = pid
        return True

    def wait_health(self, status, limit_s=LIMIT_S):
        wait_until(f"/health did not become {status}", lambda: self.health() == status, limit_s)


def parallel(functions):
    """Calls every function in a separate thread. Returns their results in order; raises the first error."""
    results, errors = [None] * len(functions), []

    def call(i):
        try:
            results[i] = functions[i]()
        except BaseException as error:  # noqa: BLE001: returned to the caller
            errors.append(error)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(functions))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results


def together(d, functions):
    """Calls the functions as parallel() does; each sends one request. The worker stands still until the front has them
    all, so it gets them at the same time."""
    def go_on():
        try:
            wait_until("all requests", lambda: (f := d.stats()["front"])["running"] + f["queued"] == len(functions))
        finally:
            os.kill(worker, signal.SIGCONT)

    worker = d.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    return parallel([*functions, go_on])[:-1]


def repeat_until(what, condition, turn):
    """Calls @turn() until the condition holds, which depends on the speed of the machine."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, what
        turn()


# No draft takes too long to be tried. Whether drafts pay depends on step times, but the scheduler tries them at intervals.
ANY_TIME = ("--itl-target-ms", "60000", "--max-step-ms", "60000")


def until_accepted(d, source, turn):
    """Calls @turn() until a draft of @source is accepted: on a busy machine drafts may seem to cost more than they save."""
    repeat_until("an accepted draft", lambda: d.stats()["worker"]["drafts"][source]["accepted"], turn)


def recomputed(d, model=None):
    """Returns how many tokens were cached on disk or in host memory and were computed again, since that was faster or they
    were not read in time: of the worker of @model, or the first. It reports them a little late."""
    workers = d.admin_request("GET", "/models")[1]["models"]
    (worker,) = [w["worker"] for w in workers if w["id"] == model] if model else [Weftd.stats(d)["worker"]]
    return worker["disk_recomputed_tokens"] + worker["host_recomputed_tokens"]


def libraries_of(folder):
    """The environment of a daemon that finds libraries in @folder first."""
    known = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": f"{folder}:{known}" if known else folder}


def random_tokens(seed, n, n_vocab=400):
    r = random.Random(seed)
    return [r.randrange(10, n_vocab) for _ in range(n)]


class Unseen(AssertionError):
    """A condition that depends on the machine's speed has not come about."""


def seen(condition, *what):
    """Checks a condition that depends on the machine's speed: a limit of time, or a share of it. The test fails if it is
    false in three attempts. Conditions that hold at any speed are asserted instead."""
    if not condition:
        raise Unseen(*what)


def every(all_of_them, one_of_each_kind):
    """Returns the first value in the suite "night", which sets WEFT_EVERY, else fewer() of the second."""
    return all_of_them if os.environ.get("WEFT_EVERY") else fewer(one_of_each_kind)


def fewer(values):
    """Returns a third of @values, a sequence or a number, at least one, where Meson sets WEFT_FEW (-Dtest-cases=few, as a
    plain ./check), which has a limit of twelve minutes; else all."""
    if not os.environ.get("WEFT_FEW"):
        return values
    return max(1, values // 3) if isinstance(values, int) else values[::3]


class Stalls(threading.Thread):
    """Records the pauses of this machine: a virtual machine may be stopped for seconds."""
    PERIOD, LIMIT = 0.02, 0.5

    def __init__(self):
        super().__init__(daemon=True)
        self.seen = []  # (time, duration)
        self.start()

    def run(self):
        while True:
            before = time.monotonic()
            time.sleep(self.PERIOD)
            length = time.monotonic() - before - self.PERIOD
            if length >= self.LIMIT:
                self.seen.append((before, length))

    def attempt(self, function):
        """Calls the test, and again (three attempts at most) if it raised Unseen, or if it failed while the machine was
        paused: time limits of the product (waiting for a disk, a worker's deadline) then act by design, and the failure
        is no defect."""
        for left in (2, 1, 0):
            start = time.monotonic()
            try:
                return function()
            except Skip:
                raise
            except Unseen as what:
                if left == 0:
                    raise
                print(f"# not seen: {what}: once more", file=sys.stderr)
            except Exception:  # noqa: BLE001: reported
                longest = max((length for when, length in self.seen if when + length > start), default=0)
                if left == 0 or not longest:
                    raise
                print(f"# the machine stood still for {longest:.1f} s: once more", file=sys.stderr)


def beside(test):
    test.beside = True
    return test


def run(name, function, stalls):
    """Runs a test and prints its result. Returns true if it failed."""
    title = name[5:].replace("_", " ")
    start = time.monotonic()
    failed = False
    try:
        stalls.attempt(function)
        result = f"ok - {title}"
    except Skip as why:
        result = f"ok - {title} # SKIP {why}"
    except BaseException:  # noqa: BLE001: reported
        failed = True
        print("# " + traceback.format_exc().replace("\n", "\n# "), file=sys.stderr)
        result = f"not ok - {title}"
    print(f"{result}\n", end="", flush=True)
    print(f"# {title}: {time.monotonic() - start:.1f} s\n", end="", file=sys.stderr)
    return failed


def make_pair(folder, secret=None, names="DNS:localhost,IP:127.0.0.1"):
    """Makes a self-signed certificate for @names in folder/cert.pem, with its key in folder/key.pem."""
    if not shutil.which("openssl"):
        raise Skip("no openssl to make certificates with")
    cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
    protect = ["-passout", "pass:" + secret] if secret else ["-nodes"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *protect, "-keyout", key,
                    "-out", cert, "-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=" + names], check=True, capture_output=True)
    os.chmod(key, 0o640)
    return cert, key


def main(names):
    tests = [(n, f) for n, f in names.items() if n.startswith("test_") and callable(f)]
    wanted = sys.argv[1:]
    tests = [(n, f) for n, f in tests if not wanted or any(w in n for w in wanted)]
    if cannot_run():
        print(f"1..0 # SKIP {cannot_run()}", flush=True)
        return
    print(f"1..{len(tests)}", flush=True)
    stalls = Stalls()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(run, n, f, stalls) for n, f in tests if hasattr(f, "beside")]
        failed = [run(n, f, stalls) for n, f in tests if not hasattr(f, "beside")] + [w.result() for w in waiting]
    sys.exit(1 if any(failed) else 0)
