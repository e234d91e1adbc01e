"""weftd as a service: signals, exit codes, socket activation, readiness and watchdog, the admin socket."""
import datetime
import fcntl
import http.client
import json
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

from weftd import BACKEND, LIMIT_S, Skip, UnixConnection, Weftd, has_device, keys_in, main, open_files, parallel, program, random_tokens, repeat_until, tiny_model, wait_until

OTHER_ISA = "avx2" if os.uname().machine == "aarch64" else "neon"
LONG = {"prompt": random_tokens(1, 20), "max_tokens": 1500, "ignore_eos": True, "temperature": 0}


def run_weftd(*flags):
    return subprocess.run([program("weftd"), *flags], capture_output=True, text=True, timeout=LIMIT_S)


def start_long(daemon, **more):
    """Starts a stream and waits for its first event; finish() reads the remaining events."""
    events = daemon.stream("/v1/completions", {**LONG, **more})
    next(events)
    return events


def test_bad_configuration_is_one_line_and_exit_78():
    with tempfile.TemporaryDirectory() as folder:
        bad = pathlib.Path(folder) / "weft.conf"
        cases = [
            ("[engine]\nthreads = many\n", ":2: threads: must be a whole number"),
            ("[engine]\nthread = 2\n", ":2: thread: unknown key"),
            ("[log]\nthreads = 2\n", "belongs in section [engine]"),
        ]
        for text, part in cases:
            bad.write_text(text)
            r = run_weftd("--config", str(bad), "--model", "x.gguf")
            assert r.returncode == 78, r
            assert str(bad) in r.stderr and part in r.stderr and r.stderr.count("\n") == 1, r.stderr
        r = run_weftd("--config", folder + "/none.conf")
        assert r.returncode == 78 and "none.conf: cannot be read" in r.stderr, r
        r = run_weftd("--no-such-flag", "1")
        assert r.returncode == 78 and "--no-such-flag: unknown option" in r.stderr, r
        r = run_weftd()
        assert r.returncode == 78 and "model: none is given" in r.stderr, r


def test_what_computes_steps_behind_the_front():
    if BACKEND == "cuda":
        raise Skip("a device computes")
    with Weftd() as d:
        front = os.getpriority(os.PRIO_PROCESS, d.process.pid)
        threads = [int(t) for t in os.listdir(f"/proc/{d.worker_pid()}/task")]
        nice = [os.getpriority(os.PRIO_PROCESS, t) for t in threads]
        assert all(n > front or n == 19 for n in nice), (front, nice)


def test_model_that_cannot_be_served_is_one_line_and_exit_78():
    with tempfile.TemporaryDirectory() as folder:
        for name, data in {"none": None, "empty": b"", "text": b"hello" * 100, "cut": open(tiny_model(), "rb").read(70000)}.items():
            path = pathlib.Path(folder) / (name + ".gguf")
            if data is not None:
                path.write_bytes(data)
            r = run_weftd("--model", str(path), "--listen", "127.0.0.1:0")
            assert r.returncode == 78, (name, r)
            assert r.stderr.count("\n") == 1 and str(path) in r.stderr, r.stderr


def write_gguf(path, **strings):
    """Writes a file of metadata alone; "_" in a key stands for "."."""
    def text(s):
        return struct.pack("<Q", len(s)) + s.encode()
    pairs = b"".join(text(key.replace("_", ".")) + struct.pack("<I", 8) + text(value) for key, value in strings.items())
    pathlib.Path(path).write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(strings)) + pairs + bytes(64))


def test_files_that_are_no_language_model_are_told_apart():
    cases = [
        ({"general_architecture": "llama", "general_type": "adapter"}, "LoRA adapter"),
        ({"general_architecture": "clip"}, "image encoder"),
        ({"general_architecture": "t5"}, "architecture 't5' is not supported (docs/reference/architectures.md "),
        ({"general_name": "x"}, "has no 'general.architecture'"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for strings, part in cases:
            write_gguf(folder + "/x.gguf", **strings)
            r = run_weftd("--model", folder + "/x.gguf", "--listen", "127.0.0.1:0")
            assert r.returncode == 78 and folder + "/x.gguf: " in r.stderr and part in r.stderr and r.stderr.count("\n") == 1, r


def test_values_of_the_file_can_be_replaced():
    """A file of an unknown architecture answers as the known one, in a preset too; limits and forms are checked."""
    ask = {"max_tokens": 8, "temperature": 0}
    option = "--override-kv", "general.architecture=str:qwen3"
    with tempfile.TemporaryDirectory() as folder:
        strange = pathlib.Path(folder) / "strange.gguf"
        data = pathlib.Path(tiny_model()).read_bytes()
        end = data.rindex(b"qwen3.") + 6
        strange.write_bytes(data[:end].replace(b"qwen3", b"qwenX") + data[end:])
        r = run_weftd("--model", str(strange), "--listen", "127.0.0.1:0")
        assert r.returncode == 78 and "'qwenX' is not supported" in r.stderr and " ".join(option) in r.stderr, r
        with Weftd() as d:
            wanted = d.complete([5, 6, 7], **ask)["token_ids"]
        with Weftd(*option, model=str(strange)) as d:
            assert d.complete([5, 6, 7], **ask)["token_ids"] == wanted
        presets = pathlib.Path(folder) / "presets"
        presets.mkdir()
        (presets / "other.conf").write_text(f"model = {strange}\nkv-memory = 64M\noverride-kv = {option[1]}\n")
        (presets / "plain.conf").write_text(f"model = {tiny_model()}\nkv-memory = 64M\n")
        with Weftd("--models", str(presets), "--override-kv", "qwen3.attention.layer_norm_rms_epsilon=float:0.09") as d:
            assert d.complete([5, 6, 7], model="other", **ask)["token_ids"] == wanted
            assert d.complete([5, 6, 7], model="plain", **ask)["token_ids"] == wanted, "a preset has its own values"
            assert d.complete([5, 6, 7], **ask)["token_ids"] != wanted
        cases = [
            ("qwen3.block_count=int:0", "'qwen3.block_count' is 0"),
            ("qwen3.context_length=str:long", "'qwen3.context_length'"),
            ("qwen3.block_count=two", "override-kv: must be KEY=TYPE:VALUE"),
        ]
        for text, part in cases:
            r = run_weftd("--model", tiny_model(), "--override-kv", text, "--listen", "127.0.0.1:0")
            assert r.returncode == 78 and part in r.stderr and r.stderr.count("\n") == 1, (text, r)


def with_floats(model, path, values):
    """Copies @model with additional metadata before its own; padded, so that tensors stay aligned."""
    def pair(key, kind, value):
        return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value
    data = pathlib.Path(model).read_bytes()
    added = b"".join(pair(k, 4, struct.pack("<I", v)) if isinstance(v, int) else pair(k, 6, struct.pack("<f", v)) for k, v in values.items())
    empty = pair("test.pad", 8, struct.pack("<Q", 0))
    n = -(len(added) + len(empty)) % 32
    added += pair("test.pad", 8, struct.pack("<Q", n) + b"x" * n)
    version, n_tensors, n_kv = struct.unpack("<IQQ", data[4:24])
    pathlib.Path(path).write_bytes(b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_kv + len(values) + 1) + added + data[24:])


def test_sampling_is_the_requests_else_the_operators_else_the_models():
    def settings(d, **given):
        return d.request("POST", "/completion", {"prompt": "a", "n_predict": 1, **given})[2]["generation_settings"]
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/x.gguf"
        with_floats(tiny_model(), path, {"general.sampling.temp": 0.5, "general.sampling.top_k": 7, "general.sampling.penalty_repeat": 1.25})
        with Weftd(model=path) as d:
            s = settings(d)
            assert (s["temperature"], s["top_k"], s["top_p"], s["repeat_penalty"]) == (0.5, 7, 0.95, 1.25), s
            assert d.request("GET", "/props")[2]["sampling_source"] == "model-file"
            assert settings(d)["seed"] != s["seed"]
        with Weftd("--sampling", "top_k=9,min_p=0.125,seed=42", model=path) as d:
            s = settings(d, top_p=0.5)
            assert (s["temperature"], s["top_k"], s["top_p"], s["min_p"], s["seed"]) == (0.5, 9, 0.5, 0.125, 42), s
            assert d.request("GET", "/v1/models")[2]["data"][0]["sampling"]["source"] == "option"
            s = settings(d, temperature=2, top_k=1, seed=7)
            assert (s["temperature"], s["top_k"], s["seed"]) == (2, 1, 7), s
        with Weftd("--sampling", "openai,top_k=3", model=path) as d:
            s = settings(d)
            assert (s["temperature"], s["top_k"], s["top_p"], s["min_p"], s["repeat_penalty"]) == (1, 3, 1, 0, 1), s
    for bad in ("x=1", "top_k", "temperature=9", "seed=x", "top_p=0.5x"):
        r = run_weftd("--model", tiny_model(), "--listen", "127.0.0.1:0", "--sampling", bad)
        assert r.returncode == 78 and bad.split("=")[0] in r.stderr and r.stderr.count("\n") == 1, r


def test_backend_that_is_not_there_is_refused():
    if has_device():
        raise Skip("this machine has a CUDA device")
    r = run_weftd("--model", tiny_model(), "--listen", "127.0.0.1:0", "--backend", "cuda")
    assert r.returncode == 78 and "cuda" in r.stderr.lower(), r


def test_address_that_cannot_be_listened_on_is_named_with_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket(socket.AF_INET6) as taken6:
        port = taken.getsockname()[1]
        cases = [(f"127.0.0.1:{port}", 75, "address already in use. Stop the program that listens there (ss -ltnp names it)"),
                 (f"[::]:{port}", 75, "those of IPv4 too"), ("192.0.2.7:8080", 75, "No interface of this machine has this address")]
        try:
            taken6.bind(("::1", 0))
            taken6.listen()
            cases.append(("[::1]:%d" % taken6.getsockname()[1], 75, "in use"))
        except OSError:  # no IPv6 here
            cases.pop(1)
        for address, code, part in cases:
            r = run_weftd("--model", tiny_model(), "--anonymous", "yes", "--log-level", "error", "--listen", address)
            assert r.returncode == code and f"listen: {address}: " in r.stderr and part in r.stderr and r.stderr.count("\n") == 1, r


def test_what_only_root_may_listen_on_is_named_with_what_to_do():
    if os.geteuid() != 0:
        raise Skip("takes another user")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for file in (program("weftd"), tiny_model()):
            shutil.copy(file, folder)
        command = [folder + "/weftd", "--model", folder + "/" + os.path.basename(tiny_model()), "--listen"]
        cases = [(["unix:" + folder + "/s"], folder + "/s: permission denied. Choose a folder in which the user of weftd may write"),
                 (["127.0.0.1:0", "--admin-socket", folder + "/s"], folder + "/s: permission denied. Choose a folder")]
        if int(pathlib.Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) > 81:
            cases.append((["127.0.0.1:81"], "127.0.0.1:81: permission denied. Only root may take a port below 1024"))
        for flags, part in cases:
            r = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=LIMIT_S, user=65534, group=65534, extra_groups=[])
            assert r.returncode == 78 and part in r.stderr and r.stderr.count("\n") == 1, r


def test_socket_path_that_cannot_be_used_is_named():
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as taken:
        pathlib.Path(folder, "file").write_text("")
        taken.bind(folder + "/taken")
        taken.listen()
        cases = [("none/s", 78, f"the folder {folder}/none does not exist"), ("file", 78, "not a socket"), ("taken", 75, "in use. Stop the program that listens there (ss -lxp names it; remove the file if there is none)")]
        for name, code, part in cases:
            path = f"{folder}/{name}"
            for flags in (["--listen", "unix:" + path], ["--listen", "127.0.0.1:0", "--admin-socket", path]):
                r = run_weftd("--model", tiny_model(), *flags)
                assert r.returncode == code and path in r.stderr and part in r.stderr, r
                assert r.stderr.count("\n") == 1, r.stderr


def test_model_that_needs_more_memory_than_there_is_is_refused():
    r = run_weftd("--model", tiny_model(), "--listen", "127.0.0.1:0", "--backend", "cpu", "--kv-memory", "4000G")
    assert r.returncode == 78 and "does not fit" in r.stderr and tiny_model() in r.stderr, r
    assert r.stderr.count("error") == 0, r.stderr


def test_daemon_without_standard_descriptors_serves():
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/http.sock"
        p = subprocess.Popen(["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', program("weftd"), "--model", tiny_model(),
                              "--backend", BACKEND, "--kv-memory", "64M", "--listen", "unix:" + path])
        try:
            while True:
                assert p.poll() is None, p.returncode
                connection = UnixConnection(path, LIMIT_S)
                try:
                    connection.request("GET", "/health")
                    if connection.getresponse().status == 200:
                        break
                except OSError:
                    pass
                finally:
                    connection.close()
                time.sleep(0.05)
            p.send_signal(signal.SIGTERM)
            assert p.wait(LIMIT_S) == 0
        finally:
            p.kill()
            p.wait()


def test_check_config_stands_anywhere_and_opens_what_is_named():
    for flags in (["--check-config", "--model", tiny_model()], ["--model", tiny_model(), "--check-config"]):
        r = run_weftd(*flags)
        assert r.returncode == 0 and "valid" in r.stdout and not r.stderr, r
    with tempfile.TemporaryDirectory() as folder:  # a start creates missing folders
        assert run_weftd("--check-config", "--model", tiny_model(), "--kv-disk", folder + "/kv").returncode == 0
    for flags, part in ((["--model", "/proc/nonexistent.gguf"], "/proc/nonexistent.gguf"), (["--model", tiny_model(), "--api-keys", "/proc/nonexistent"], "api-keys: /proc/nonexistent"),
                        (["--model", tiny_model(), "--api-keys", "/"], "api-keys: /: cannot be read: Is a directory"),
                        (["--model", tiny_model(), "--api-keys", "/dev/null"], "api-keys: /dev/null: contains no key"),
                        (["--model", tiny_model(), "--chat-template", "nosuch"], "nosuch is neither a file nor one of the built-in templates: chatml llama2 "),
                        (["--model", tiny_model(), "--chat-template", "/"], "chat-template: /: "),
                        (["--model", tiny_model(), "--kv-disk", "/proc/nonexistent/kv"], "kv-disk: /proc/nonexistent: cannot be used: No such file"),
                        (["--model", tiny_model(), "--kv-disk", tiny_model()], "cannot be used: Not a directory"),
                        (["--model", tiny_model(), "--kv-events", "tcp://nowhere"], "kv-events: "),
                        (["--model", tiny_model(), "--isa", OTHER_ISA], f'isa "{OTHER_ISA}" is unknown, or this weftd was built without it'),
                        (["--models-dir", "/proc/nonexistent"], "models-dir: /proc/nonexistent: cannot be used: No such file"),
                        (["--models", "/proc/nonexistent"], "models: /proc/nonexistent: cannot be used: No such file"),
                        (["--models-dir", "/proc/self/fdinfo"], "models-dir: the folders contain no model")):
        r = run_weftd("--check-config", *flags)
        assert r.returncode == 78 and part in r.stderr and r.stderr.count("\n") == 1, r
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/other.conf", "w") as preset:
            preset.write(f"model = {tiny_model()}\nisa = {OTHER_ISA}\n")
        r = run_weftd("--check-config", "--models", folder)
        assert r.returncode == 78 and f'models: other: isa "{OTHER_ISA}" is unknown' in r.stderr, r
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write("alice:ka\n")
        keys.flush()
        for mode, readable in ((0o644, True), (0o640, False)):
            os.chmod(keys.name, mode)
            r = run_weftd("--check-config", "--model", tiny_model(), "--api-keys", keys.name)
            assert r.returncode == 0 and ("every user can read it" in r.stderr) == readable, r
            assert 'short_key name="alice" characters=2 reason="too short' in r.stderr, r


def test_check_config_checks_context_memory_ports_and_room():
    check = lambda *flags: run_weftd("--check-config", "--backend", "cpu", "--model", tiny_model(), *flags)
    r = check("--max-context", "999999")
    assert r.returncode == 0 and "max-context: 999999 is lowered to the model's 131072 tokens" in r.stdout, r
    r = check("--max-context", "4096")
    assert r.returncode == 0 and re.search(r"memory: weights \d+ MiB .* a context of 4096 tokens\n", r.stdout), r
    r = check("--host-kv-memory", "4000G")  # as a start with it
    assert r.returncode == 75 and "does not fit: weights" in r.stderr, r
    r = check("--kv-memory", "4000G")  # never, whatever else ends
    assert r.returncode == 78 and re.search(r"kv-memory.* does not fit: weights \d+ MiB \+ keys and values 4096000 MiB", r.stderr), r
    assert run_weftd("--backend", "cpu", "--model", tiny_model(), "--listen", "127.0.0.1:0", "--kv-memory", "4000G").returncode == 78
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        address = f"127.0.0.1:{used.getsockname()[1]}"
        r = check("--listen", address)
        assert r.returncode == 0 and f"listen: {address} cannot be used now: Address already in use" in r.stderr, r
    with tempfile.TemporaryDirectory() as folder:
        r = check("--kv-disk", folder, "--kv-disk-size", "60000G")
        assert r.returncode == 0 and "less than kv-disk-size" in r.stderr, r


def test_sigterm_lets_streams_finish_and_takes_no_new_connections():
    with Weftd("--max-context", "4096", "--hang-timeout-ms", "3600000") as d:
        should = d.complete(**LONG)["token_ids"]
        kept = d.connect()
        d.request("GET", "/v1/models", connection=kept)
        events = d.stream("/v1/completions", {**LONG, "return_token_ids": True})
        first = next(events)
        worker = d.worker_pid()
        os.kill(worker, signal.SIGSTOP)  # the stream does not end before it is looked at
        d.process.send_signal(signal.SIGTERM)
        wait_until("it drains", lambda: " draining " in d.log)
        status, headers, _ = d.request("GET", "/health", connection=kept)
        assert status == 503 and headers["Connection"] == "close", (status, headers)
        try:
            d.request("GET", "/health")
            raise AssertionError("a new connection was accepted while draining")
        except ConnectionError:
            pass
        os.kill(worker, signal.SIGCONT)
        rest = [first, *events]
        tokens = sum(len(c["token_ids"]) for e in rest for c in e["choices"])
        assert rest[-1]["choices"][0]["finish_reason"] == "length", rest[-1]
        assert tokens == len(should), (tokens, len(should))
        assert d.process.wait(LIMIT_S) == 0


def test_drain_limit_ends_streams_with_an_error():
    with Weftd("--max-context", "24000", "--drain-timeout-ms", "300", "--hang-timeout-ms", "3600000") as d:
        events = start_long(d, max_tokens=22000)
        os.kill(d.worker_pid(), signal.SIGSTOP)  # the stream does not end by itself
        start = time.monotonic()
        d.process.send_signal(signal.SIGTERM)
        last = None
        try:
            for last in events:
                pass
        except (AssertionError, ConnectionError):
            pass
        assert d.process.wait(LIMIT_S) == 0
        took = time.monotonic() - start
        assert "error" in last and took > 0.2, (last, took)


def test_second_sigterm_stops_at_once():
    with Weftd("--max-context", "24000", "--drain-timeout-ms", "3600000", "--hang-timeout-ms", "3600000") as d:
        events = start_long(d, max_tokens=22000)
        os.kill(d.worker_pid(), signal.SIGSTOP)  # the stream does not end by itself
        d.process.send_signal(signal.SIGTERM)
        wait_until("it drains", lambda: " draining " in d.log)
        assert d.process.poll() is None
        d.process.send_signal(signal.SIGTERM)
        assert d.process.wait(LIMIT_S) == 0
        events.close()


def test_sighup_reloads_keys_and_says_what_it_cannot():
    with tempfile.TemporaryDirectory() as folder:
        keys, conf = pathlib.Path(folder) / "keys", pathlib.Path(folder) / "weft.conf"
        keys.write_text("first:key-number-one\n")
        conf.write_text(f"[listen]\napi-keys = {keys}\n[engine]\nthreads = 1\n")
        with Weftd("--config", conf, "--kv-memory", "64M") as d:
            ask = lambda key: d.request("GET", "/v1/models", headers={"Authorization": "Bearer " + key})[0]
            assert ask("key-number-one") == 200 and ask("key-number-two") == 401
            keys.write_text("second:key-number-two\n")
            conf.write_text(f"[listen]\napi-keys = {keys}\n[engine]\nthreads = 2\n[log]\nlog-level = debug\n")
            d.process.send_signal(signal.SIGHUP)
            wait_until("the other key", lambda: ask("key-number-two") == 200)
            assert ask("key-number-one") == 401
            assert d.admin_request("POST", "/reload")[1] == {"reloaded": True, "needs_restart": ["threads"]}
            assert "reload_needs_restart key=threads" in d.log and "reloaded key=log-level" in d.log, d.log
            conf.write_text("[engine]\nthreads = none\n")
            d.process.send_signal(signal.SIGHUP)
            wait_until("the refusal", lambda: "reload_refused" in d.log)
            assert ask("key-number-two") == 200
            assert "key-number" not in d.log, "a key is in the log"


def test_signals_while_it_starts_end_nothing():
    """The start waits for the file of the disk tier, which another process has locked."""
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "prefixes.kv"), "w") as file:
        os.chmod(file.name, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        with Weftd("--kv-disk", folder, wait=False) as d:
            wait_until("the file", lambda: any(target == os.path.realpath(file.name) for _, target, _ in open_files(d.process.pid)))
            d.process.send_signal(signal.SIGHUP)
            d.process.send_signal(signal.SIGUSR2)
            fcntl.flock(file, fcntl.LOCK_UN)
            d.wait_ready()
            assert "action=reload" in d.log and 'upgrade_failed reason="the daemon is starting"' in d.log, d.log


class Manager:
    """The functions of systemd for a service: passes listening sockets, listens to notifications."""

    def __init__(self, folder):
        self.http = socket.create_server(("127.0.0.1", 0))
        self.admin_path = os.path.join(folder, "inherited-admin.sock")
        self.admin = socket.socket(socket.AF_UNIX)
        self.admin.bind(self.admin_path)
        self.admin.listen()
        self.notify_path = os.path.join(folder, "notify.sock")
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(self.notify_path)
        self.said = []
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            self.said.append((time.monotonic(), self.notify.recv(4096).decode()))

    def start(self, *flags):
        a, b = os.dup(self.http.fileno()), os.dup(self.admin.fileno())

        def child():  # runs between fork and exec
            high = [os.dup(a), os.dup(b)]  # both may have the number that the other one needs
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        env = {
            **os.environ,
            "LISTEN_FDS": "2",
            "LISTEN_FDNAMES": "http:admin",
            "NOTIFY_SOCKET": self.notify_path,
            "WATCHDOG_USEC": "1000000",
        }
        command = ["sh", "-c", 'export LISTEN_PID=$$ WATCHDOG_PID=$$; exec "$0" "$@"', program("weftd"), "--model", tiny_model(), "--backend", BACKEND, "--kv-memory", "64M", *flags]
        process = subprocess.Popen(command, env=env, preexec_fn=child, close_fds=False, stderr=subprocess.DEVNULL)
        os.close(a)
        os.close(b)
        return process

    def wait_for(self, text):
        wait_until((text, self.said), lambda: any(text in said for _, said in self.said))

    def ask(self, path):
        connection = http.client.HTTPConnection(*self.http.getsockname(), timeout=LIMIT_S)
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()


def test_sockets_are_inherited_and_the_manager_is_told():
    with tempfile.TemporaryDirectory() as folder:
        m = Manager(folder)
        p = m.start()
        try:
            m.wait_for("READY=1")
            assert m.ask("/health")[0] == 200
            curl = subprocess.run(["curl", "-s", "--unix-socket", m.admin_path, "http://x/stats"], capture_output=True)
            assert json.loads(curl.stdout)["health"] == "serving"
            wait_until("pings", lambda: sum("WATCHDOG=1" in said for _, said in m.said) >= 4)
            p.send_signal(signal.SIGTERM)
            m.wait_for("STOPPING=1")
            assert p.wait(LIMIT_S) == 0
            # Clients that come while nobody serves are not refused: the next daemon answers them.
            answer = []
            waiting = threading.Thread(target=lambda: answer.append(m.ask("/v1/models")))
            waiting.start()
            p = m.start()
            waiting.join(LIMIT_S)
            assert answer and answer[0][0] == 200, answer
        finally:
            p.kill()
            p.wait()


def test_a_socket_that_does_not_listen_is_named():
    connected, _ = socket.socketpair()  # as of a socket unit with Accept=yes
    number = connected.fileno()
    r = subprocess.run(["sh", "-c", 'export LISTEN_PID=$$; exec "$0" "$@" 3<&$NUMBER', program("weftd"), "--model", tiny_model()],
                       env={**os.environ, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "http", "NUMBER": str(number)}, pass_fds=[number],
                       capture_output=True, text=True, timeout=LIMIT_S)
    assert r.returncode == 78 and "descriptor 3 (http) of the service manager is not a listening stream socket" in r.stderr, r


def test_the_manager_is_told_why_a_reload_was_refused():
    with tempfile.TemporaryDirectory() as folder:
        conf = pathlib.Path(folder) / "weft.conf"
        conf.write_text("[log]\nlog-level = info\n")
        m = Manager(folder)
        p = m.start("--config", str(conf))
        try:
            m.wait_for("READY=1")
            for text, status in (("[engine]\nthreads = none\n", "; reload refused: "), ("[log]\nlog-level = debug\n", "")):
                conf.write_text(text)
                m.said.clear()
                p.send_signal(signal.SIGHUP)
                m.wait_for("READY=1")
                said = [said for _, said in m.said if "WATCHDOG" not in said]
                assert said[0].startswith("RELOADING=1\nMONOTONIC_USEC=") and said[2:] == ["READY=1"], said
                assert said[1].startswith("STATUS=serving ") and (status in said[1] if status else "refused" not in said[1]), said
        finally:
            p.kill()
            p.wait()


def test_a_fifo_without_a_writer_keeps_no_reload_waiting():
    with tempfile.TemporaryDirectory() as folder:
        conf = pathlib.Path(folder, "weft.conf")
        os.mkfifo(conf)
        r = run_weftd("--check-config", "--model", tiny_model(), "--chat-template", str(conf))
        assert r.returncode == 75 and "chat-template: " in r.stderr, r  # the FIFO may get a writer later
        writer = threading.Thread(target=conf.write_text, args=("[log]\nlog-level = info\n",))
        writer.start()
        with Weftd("--config", conf, "--kv-memory", "64M") as d:
            writer.join()
            d.process.send_signal(signal.SIGHUP)
            wait_until("the refusal", lambda: "reload_refused" in d.log)
            assert f"{conf}: cannot be read: Resource temporarily unavailable" in d.log and d.health() == 200, d.log
            writer = threading.Thread(target=conf.write_text, args=("[log]\nlog-level = warn\n",))
            writer.start()
            d.process.send_signal(signal.SIGHUP)
            wait_until("the reload", lambda: "reloaded key=log-level" in d.log)
            writer.join()


def test_a_file_that_does_not_end_keeps_nobody_waiting():
    """The writer of the FIFO stops in the middle, as a mount without its server does."""
    with tempfile.TemporaryDirectory() as folder:
        conf = pathlib.Path(folder, "weft.conf")
        conf.write_text("")
        with Weftd("--config", conf, "--kv-memory", "64M") as d:
            conf.unlink()
            os.mkfifo(conf)
            reader = os.open(conf, os.O_RDONLY | os.O_NONBLOCK)  # the writer can open it before the daemon does
            with open(conf, "w") as writer:
                writer.write("[log]\n")
                writer.flush()
                d.process.send_signal(signal.SIGHUP)
                wait_until("the first line is read", lambda: not select.select([reader], [], [], 0)[0])
                assert d.health() == 200
                assert d.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200
                status, answer = d.admin_request("POST", "/reload")[:2]
                assert status == 409 and "another reload still reads" in answer["error"]["message"], answer
                d.process.send_signal(signal.SIGHUP)  # reads the file once more when this one has ended
                wait_until("two signals", lambda: d.log.count("action=reload by=signal") == 2)
                os.rename(conf, os.path.join(folder, "fifo"))
                conf.write_text("[log]\nlog-level = info\n[engine]\nthreads = 9\n")
                writer.write("log-level = debug\n")
            wait_until("both reloads", lambda: d.log.count("reloaded key=log-level") == 2)
            assert d.log.count("reload_needs_restart key=threads") == 1, d.log
            os.close(reader)


def test_admin_socket_answers_lists_cancels_and_drains():
    with Weftd("--max-context", "24000") as d:
        assert os.stat(d.admin).st_mode & 0o777 == 0o660
        stats = d.stats()
        assert stats["health"] == "serving" and stats["worker"]["state"] == "serving", stats
        # The worker's report may come a little later.
        wait_until(stats, lambda: d.stats()["worker"]["pages"] == stats["model"]["n_pages"])
        assert stats["model"]["max_context"] > 0, stats
        events = start_long(d, max_tokens=22000)
        status, listed = d.admin_request("GET", "/requests")
        assert status == 200 and len(listed["requests"]) == 1, listed
        assert listed["requests"][0]["prompt_tokens"] == 20 and listed["requests"][0]["state"] == "running", listed
        assert listed["requests"][0]["prompt_tokens_done"] == 20, listed
        assert d.admin_request("POST", "/requests/999999/cancel")[0] == 404
        assert d.admin_request("POST", f"/requests/{listed['requests'][0]['id']}/cancel")[0] == 200
        try:
            list(events)
        except (AssertionError, ConnectionError):
            pass
        wait_until("its end", lambda: not d.admin_request("GET", "/requests")[1]["requests"] and not d.stats()["worker"]["running"])
        assert d.admin_request("GET", "/nothing")[0] == 404
        assert d.admin_request("POST", "/stats")[0] == 405
        watch = subprocess.Popen(["curl", "-sN", "--unix-socket", d.admin, "http://x/stats?watch=100ms"], stdout=subprocess.PIPE)
        lines = [json.loads(watch.stdout.readline()) for _ in range(3)]
        watch.kill()
        watch.wait()
        assert all(line["health"] == "serving" for line in lines)
        for command in (["stats"], ["requests"], ["health"], ["--json", "stats"]):
            r = subprocess.run([program("weftctl"), "--socket", d.admin, *command], capture_output=True, text=True, timeout=LIMIT_S)
            assert r.returncode == 0 and r.stdout, (command, r)
        r = subprocess.run([program("weftctl"), "--socket", d.admin, "drain"], capture_output=True, text=True, timeout=LIMIT_S)
        assert r.returncode == 0, r
        assert d.process.wait(LIMIT_S) == 0
        r = subprocess.run([program("weftctl"), "--socket", d.admin, "stats"], capture_output=True, text=True, timeout=LIMIT_S)
        assert r.returncode == 69 and r.stderr.count("\n") == 1, r


def test_names_that_are_not_utf8_break_no_page():
    """A model's file name becomes text, a key's name is refused, and a path in a reason is converted to text."""
    with tempfile.TemporaryDirectory() as folder:
        file, bad = (pathlib.Path(folder, os.fsdecode(name)) for name in (b"m\xe8\n.gguf", b"bad\xe8.gguf"))
        shutil.copy(tiny_model(), file)
        keys = pathlib.Path(folder, "keys")
        keys.write_bytes(b"ok:k0\nm\xfcller:k1\n")
        r = run_weftd("--model", tiny_model(), "--listen", "127.0.0.1:0", "--api-keys", str(keys))
        assert r.returncode == 78 and "keys:2: NAME must be text in UTF-8" in r.stderr, r
        bad.write_bytes(b"no model")
        with Weftd(model=str(file)) as d:
            assert r'model_name="m\\xe8\\n"' in d.request("GET", "/metrics")[2]
            swap = [program("weftctl"), "--socket", d.admin, "swap", r"m\xe8\n"]
            assert subprocess.run(swap, capture_output=True, timeout=LIMIT_S).returncode == 0
            assert subprocess.run([*swap, bad], capture_output=True, timeout=LIMIT_S).returncode == 1
            model = d.admin_request("GET", "/models")[1]["models"][0]
            assert model["id"] == r"m\xe8\n" and "/bad?.gguf: " in model["swap"], model


def test_log_has_one_line_per_request_and_no_prompt():
    with Weftd("--kv-memory", "16M") as d:
        assert re.search(r" memory .* kv_mib=16 .* free_mib=[1-9]", d.log), d.log
        status, _, value = d.request("POST", "/v1/completions", {"prompt": "a secret word", "max_tokens": 3}, headers={"X-Request-Id": "my-id-1"})
        assert status == 200, value
        d.process.terminate()
        d.process.wait(LIMIT_S)
        assert "secret" not in d.log
        lines = [line for line in d.log.splitlines() if "my-id-1" in line]
        assert len(lines) == 1 and "status=200" in lines[0], d.log


def test_the_workers_log_has_the_format_and_the_level_of_the_fronts():
    with Weftd("--log-format", "json") as d:
        events = [json.loads(line)["event"] for line in d.log.splitlines()]
        assert "memory" in events, events
    with Weftd("--log-level", "warn", "--kv-memory", "256M") as d:  # a smaller value causes a separate warning
        assert d.log.splitlines() == [f"ready {d.url()}"], d.log


def test_log_tells_who_did_what():
    with tempfile.TemporaryDirectory() as folder:
        with Weftd("--api-keys", keys_in(folder), "--log-format", "json", "--log-level", "warn") as d:
            assert d.admin_request("POST", "/reload")[0] == 200
            d.process.send_signal(signal.SIGHUP)
            wait_until("the lines", lambda: d.log.count('"event":"audit"') == 2)
            admin, by_signal = [json.loads(line) for line in d.log.splitlines() if '"event":"audit"' in line]
            assert admin["level"] == "notice" and admin["client"] == f"uid:{os.getuid()}", admin
            assert (admin["action"], admin["by"], admin["result"]) == ("reload", "admin", "accepted"), admin
            assert (by_signal["action"], by_signal["by"]) == ("reload", "signal"), by_signal
            assert abs(time.time() - datetime.datetime.fromisoformat(admin["time"].replace("Z", "+00:00")).timestamp()) < 600
        with Weftd("--api-keys", keys_in(folder), "--log-format", "json") as d:
            agent = {"User-Agent": 'me "1"\u00e9', "Authorization": "Bearer ka"}
            assert d.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, agent)[0] == 200
            assert d.request("GET", "/v1/%0acompletion?key=ka", headers=agent)[0] in (400, 404)
            assert d.request("GET", "/v1/nothing?key=ka", headers={"Authorization": "Bearer wrong"})[0] == 404
            assert d.request("GET", "/v1/models", headers={"Authorization": "Bearer wrong"})[0] == 401
            wait_until("the lines", lambda: d.log.count('"event":"request"') == 4)
            first, bad, none, refused = [json.loads(line) for line in d.log.splitlines() if '"event":"request"' in line]
            assert (first["tenant"], first["key"], first["client"]) == ("alice", "alice", "127.0.0.1"), first
            assert first["model"] and first["agent"].startswith('me "1"') and first["status"] == 200, first
            assert none["path"] == "/v1/nothing" and none["tenant"] is None, none
            assert refused["status"] == 401 and refused["tenant"] is None and refused["error"] == "invalid_api_key", refused
            assert "key=ka" not in d.log


def test_unix_socket_and_tcp_at_once():
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/http.sock"
        with Weftd("--listen", "127.0.0.1:0", "--listen", "unix:" + path) as d:
            assert d.health() == 200
            r = subprocess.run(["curl", "-s", "--unix-socket", path, "http://localhost/v1/models"], capture_output=True)
            assert json.loads(r.stdout)["object"] == "list"


def test_hung_worker_is_replaced_and_streams_go_on():
    with Weftd("--hang-timeout-ms", "1000") as d:
        should = d.complete(**LONG)["token_ids"]

        def turn():
            got = []

            def read():
                for event in d.stream("/v1/completions", {**LONG, "return_token_ids": True}):
                    for choice in event["choices"]:
                        got.extend(choice["token_ids"])

            reader = threading.Thread(target=read)
            reader.start()
            wait_until("the first tokens", lambda: got)
            os.kill(d.worker_pid(), signal.SIGSTOP)
            reader.join(LIMIT_S)
            assert got == should

        before = d.stats()["worker"]["hangs"]
        repeat_until("a hang", lambda: d.stats()["worker"]["hangs"] > before, turn)  # the stream may have ended before


def test_daemon_whose_file_was_replaced_starts_its_own_worker():
    with tempfile.TemporaryDirectory() as folder:
        own = pathlib.Path(folder, "weftd")
        shutil.copy(program("weftd"), own)
        with Weftd(popen={"executable": str(own)}) as d:
            should = d.complete(random_tokens(1, 20), max_tokens=5, temperature=0)["token_ids"]
            pathlib.Path(folder, "new").write_text("#!/bin/false\n")
            os.replace(folder + "/new", own)
            d.kill_worker()
            d.wait_health(200)
            assert d.complete(random_tokens(1, 20), max_tokens=5, temperature=0)["token_ids"] == should
            assert d.stats()["worker"]["deaths"] == 1


def test_many_clients_at_once_get_what_they_get_alone():
    with Weftd() as d:
        prompts = [random_tokens(i, 10 + 7 * i) for i in range(32)]
        ask = lambda p: d.complete(p, max_tokens=20, temperature=0)["token_ids"]
        alone = [ask(p) for p in prompts]
        assert parallel([lambda p=p: ask(p) for p in prompts]) == alone


main(globals())
