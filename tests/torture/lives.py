"""Daemons whose calls fail, and the judgement of what became of them."""
import os
import pathlib
import re
import shutil
import signal
import tempfile
import time

import scenes
from manager import adopt, wait_end
from weftd import Weftd, make_pair, synth
from state import SOCKET, State

FLAGS = ("--backend", "cpu", "--max-context", "2048", "--kv-pages", "64", "--threads", "1", "--drain-timeout-ms", "8000", "--log-requests", "0", "--log-level", "info")
PROBE = scenes.ask("POST", "/v1/completions", {"prompt": scenes.TEXT, **scenes.DIGEST})
SETTLE_S = 60
EXIT_AGAIN = 75
adopt()


def n_files(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except FileNotFoundError:
        return 0


class Daemon(Weftd):
    """weftd-torture, with all that scenes need."""

    def __init__(self, path, state, many, wait=True, more=()):
        self.model_path = synth("torture", "--arch", "qwen3", "--shape", "tiny,n_layer=1,context=4096", "--format", "Q4_K_M", "--seed", "5")
        self.model_name = "tiny"
        self.own = tempfile.TemporaryDirectory(prefix="weft-torture-")
        folder = pathlib.Path(self.own.name)
        (folder / "keys").write_text("alice:ka\nbob:kb\n")
        (folder / "tenants").write_text("[alice]\nweight = 2\n")
        for name in ("models", "presets", "disk"):
            (folder / name).mkdir()
        shutil.copy(self.model_path, folder / "models" / "tiny.gguf")
        self.model_path = str(folder / "models" / "tiny.gguf")
        self.unix = str(folder / "http.sock")
        cert, key = make_pair(str(folder))
        flags = [*FLAGS, "--listen", "127.0.0.1:0", "--listen", "unix:" + self.unix, "--listen", "tls:127.0.0.1:0",
                 "--tls-certificate", cert, "--tls-key", key, "--api-keys", folder / "keys", "--tenants", folder / "tenants",
                 "--host-kv-memory", "4M", "--kv-disk", folder / "disk", "--kv-disk-size", "16M", "--fault-dir", folder]
        if many:
            flags += [*more, "--models-dir", folder / "models", "--models", folder / "presets", "--allow-pull", "*"]
        self.flags = flags
        super().__init__(*flags, model="" if many else self.model_path, path=path, wait=wait, env={"WEFT_TORTURE": state.path, "HOME": str(folder)})

    def __exit__(self, *failure):
        try:
            super().__exit__(*failure)
        finally:
            self.own.cleanup()

    def end(self):
        """Ends it and those that came after it, whatever they do."""
        for pid in (self.process.pid, *self.others()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        for pid in self.others():
            wait_end(pid)
        self.own.cleanup()
        self.folder.cleanup()

    def others(self):
        """Processes of this daemon that were adopted."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                parent = int(pathlib.Path("/proc", pid, "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == os.getpid() and int(pid) != self.process.pid and self.admin.encode() in pathlib.Path("/proc", pid, "cmdline").read_bytes():
                    found.append(int(pid))
            except (OSError, IndexError):
                pass
        return found


def crash_in(log, site):
    """A line of a process that crashed, and did not end by its own will. A child of the front that has no descriptor left is aborted by libuv
    before it becomes a worker."""
    if site.call == "pipe2" and site.role == 0:
        log = log.replace("signal=6", "signal=9")
    for line in log.splitlines():
        m = re.search(r"worker_died .*signal=(\d+) hang=(\d)", line)
        if m and m[1] not in ("0", "9") or "Assertion" in line or "stack smashing" in line or m and m[2] == "1":
            return line
    return None


def last_lines(log):
    return " / ".join(line[:200] for line in log.splitlines() if " request id=" not in line)[-500:]


def judge(outcomes, expected, site, also=()):
    """(outcome, defect or None) of what requests got."""
    words = set()
    for got, should in zip(outcomes, expected):
        kind, value = got
        if kind == "ok" and value == should[1]:
            continue
        if kind == "ok":
            return "defect", f"wrong answer: {str(value)[:300]} instead of {str(should[1])[:300]}"
        if kind == "hang":
            return "defect", f"no answer in {scenes.LIMIT_S} s"
        if kind == "status" and value[0] not in (503, 529, *also):
            return "defect", f"status {value}"
        if kind == "error" and any(got != of[:len(got)] for got, of in zip(value, should[1])):
            return "defect", f"wrong tokens before an error: {value}"
        if kind == "cut" and site.kind != SOCKET and not (site.role == 0 and "alloc" in site.call):
            return "defect", f"connection lost: {value}"
        words.add({"status": "refused", "error": "error in the stream", "cut": "connection closed"}[kind])
    return (sorted(words) or ["same answers"])[0], None


class Standing:
    """A daemon that serves while one call of it fails after the other."""

    def __init__(self, path, state, name, flags=()):
        self.path, self.state, self.d, self.flags = path, state, None, flags
        self.name, self.scene, self.also = name, scenes.STANDING[name], scenes.ALSO.get(name, ())

    def open(self):
        self.state.set(call=0, notes=0)
        self.d = Daemon(self.path, self.state, many=True, more=self.flags)
        self.d.tls_port = self.d.listening_port(beside=self.d.port)
        assert PROBE(self.d)[0][0] == "ok", self.d.log  # loads the model
        self.settle()
        for _ in range(3):  # what is kept for later is there afterwards
            assert PROBE(self.d)[0][0] == "ok", self.d.log
            self.expected = self.act()
            self.settle()
        assert all(kind == "ok" for kind, _ in self.expected), (self.expected, self.d.log)
        self.probe, end = PROBE(self.d), time.monotonic() + SETTLE_S
        witness = scenes.WITNESS.get(self.name)
        while not self.settle()["worker"].get(witness, 1):  # what the worker reports is a little late
            assert time.monotonic() < end, f"{self.name}: no {witness}: the test is blind"
            time.sleep(0.05)

    def act(self):
        return self.scene(self.d)

    def settle(self):
        """Waits until nothing runs; the counts that come back to what they were."""
        end = time.monotonic() + SETTLE_S
        while True:
            s = self.d.stats()
            self.d.worker = s["worker"]["pid"]
            if s["front"]["running"] + s["front"]["queued"] == 0 and s["worker"]["running"] + s["worker"]["waiting"] == 0 and s["worker"]["state"] == "serving":
                return s
            assert time.monotonic() < end, f"requests do not end: {s['front']} {s['worker']['state']}"
            time.sleep(0.005)

    def counts(self):
        self.settle()
        return {"front's descriptors": n_files(self.d.process.pid), "worker's descriptors": n_files(self.d.worker),
                "front's allocations": self.state.live_front}

    def notes(self):
        self.open()
        self.state.note()
        for _ in range(3):
            self.act()
            self.settle()
        return self.state.sites()

    def run(self, site, error):
        """(outcome, defect or None)"""
        if not self.d:
            self.open()
        before, deaths = self.counts(), self.d.stats()["worker"]["deaths"]
        outcome, defect = self.once(site, error)
        if defect is None:
            defect = self.leaks(site, error, before)
        if defect is None and outcome == "same answers" and self.name != "new worker" and self.d.stats()["worker"]["deaths"] > deaths:
            outcome = "worker replaced"
        if defect or len(self.d.log) > 1 << 20:
            self.close()
        return ("defect", defect) if defect else (outcome, None)

    def once(self, site, error):
        self.at = len(self.d.log)
        self.state.arm(site.call, error, site.key, roles=1 << site.role)
        try:
            got = self.act()
        except OSError as e:  # of the admin socket
            got = [("cut", repr(e))]
        hits = self.state.disarm()
        code = self.d.process.poll()
        log = self.d.log[self.at:]
        if code is not None:
            return "defect", f"the front ended with {code}: {last_lines(log)}"
        if crash_in(log, site):
            return "defect", crash_in(log, site)
        outcome, defect = judge(got, self.expected, site, self.also)
        if defect is None and not hits:
            outcome = "not reached"
        if defect is None:
            defect = self.recovers()
        return ("defect", f"{defect}; log: {last_lines(log)}") if defect else (outcome, None)

    def recovers(self):
        """None, or why it does not serve as before: a model that could not be loaded is tried again after a pause."""
        end = time.monotonic() + SETTLE_S
        while (got := PROBE(self.d)) != self.probe:
            if got[0][0] != "status" or got[0][1][0] != 503 or time.monotonic() > end:
                return f"afterwards: {got}"
            time.sleep(0.1)
        try:
            self.settle()
        except (OSError, AssertionError, TypeError) as e:
            return f"afterwards: {e!r}"
        return None

    def leaks(self, site, error, before):
        """None, or what grows each time that the call fails."""
        grown = {k: [] for k in before}
        for _ in range(20):  # what libraries keep of errors is bounded
            end = time.monotonic() + 0.3
            while any((after := self.counts())[k] > before[k] for k in before) and time.monotonic() < end:
                time.sleep(0.02)
            for k in before:
                grown[k].append(after[k] - before[k])
            if all(g[-1] <= 0 for g in grown.values()):
                return None
            before = after
            outcome, defect = self.once(site, error)
            if defect:
                return defect
        found = {k: g for k, g in grown.items() if all(n > 0 for n in g)}
        return f"leaks {found}" if found else None

    def close(self):
        if self.d:
            self.d.end()
            self.d = None


class Life:
    """A daemon of its own for each failing call."""

    def __init__(self, path, state):
        self.path, self.state, self.d, self.expected = path, state, None, None

    def open(self, wait=True):
        self.d = Daemon(self.path, self.state, many=False, wait=wait)

    def close(self):
        if self.d:
            self.d.end()
            self.d = None

    def wait_code(self, limit_s=60):
        end = time.monotonic() + limit_s
        while self.d.process.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        return self.d.process.poll()

    def notes(self):
        self.before()
        self.state.note()
        self.expected = self.act()
        sites = self.state.sites()
        self.close()
        return sites

    def run(self, site, error):
        self.state.set(call=0, notes=0)
        if self.expected is None:
            self.before()
            self.expected = self.act()
            self.close()
        self.before()
        self.state.arm(site.call, error, site.key, roles=1 << site.role)
        try:
            return self.look(site, self.act())
        finally:
            self.state.disarm()
            self.close()

    def look(self, site, got):
        hits = self.state.disarm()
        log = self.d.log
        code = self.d.process.poll()
        if crash_in(log, site):
            return "defect", crash_in(log, site)
        if code is not None and code < 0:
            return "defect", f"signal {-code}: {last_lines(log)}"
        outcome, defect = self.end(got, site, code, log)
        if defect:
            return "defect", defect
        return outcome if hits else "not reached", None


class Start(Life):
    """From exec to the first answer."""

    def before(self):
        pass

    def act(self):
        self.open(wait=False)
        begin = time.monotonic()
        while time.monotonic() < begin + 60 and self.d.process.poll() is None:
            self.d.port = self.port_of(time.monotonic() > begin + 5)
            if self.d.port:
                return PROBE(self.d)
            time.sleep(0.005)
        self.wait_code(0)
        return [("hang", None)]

    def port_of(self, late):
        """None before it is ready. A line of the log may be lost, also the one that says so."""
        m = re.search(r"^ready http://127.0.0.1:(\d+)$", self.d.log, re.M)
        if m or not late:
            return m and int(m[1])
        if (self.d.stats_or_none() or {}).get("health") != "serving":
            return None
        self.d.port = self.d.listening_port()
        return self.d.port if PROBE(self.d)[0][0] == "ok" else self.d.listening_port(beside=self.d.port)  # the other one speaks TLS

    def end(self, got, site, code, log):
        if code is None and got[0][0] == "hang":
            return None, f"neither ready nor ended: {last_lines(log)}"
        if code is None:
            outcome, defect = judge(got, self.expected, site)
            again = PROBE(self.d)
            return outcome, defect or (f"afterwards: {again}; {last_lines(log)}" if again != self.expected else None)
        if "weftd: " not in log:
            return None, f"ended with {code} and no reason: {last_lines(log)}"
        if code != EXIT_AGAIN:
            return None, f"ended with {code}, which no service manager tries again: {last_lines(log)}"
        return "start refused", None


class Stop(Life):
    """SIGTERM while a stream and a request run: both end, then the daemon."""

    def before(self):
        self.open()
        PROBE(self.d)

    def act(self):
        body = {"prompt": scenes.TEXT, **scenes.DIGEST, "max_tokens": 1200}

        def stop():
            time.sleep(0.02)
            self.d.process.send_signal(signal.SIGTERM)
        got = scenes.parallel([lambda: scenes.stream("/v1/completions", body)(self.d)[0], stop])[:1]
        self.wait_code()
        return got

    def end(self, got, site, code, log):
        outcome, defect = judge(got, self.expected, site)
        if defect is None and code is None:
            defect = "it does not end"
        if defect is None and code != 0:
            defect = f"exit status {code}: {last_lines(log)}"
        return outcome, defect


class Upgrade(Life):
    """The next daemon takes over while a stream runs; or it does not, and the old one serves on."""

    def before(self):
        self.open()
        PROBE(self.d)

    def act(self):
        body = {"prompt": scenes.TEXT, **scenes.DIGEST, "max_tokens": 1200}

        def upgrade():
            time.sleep(0.01)
            try:
                self.told = self.d.admin_request("POST", "/upgrade")[0]
            except (OSError, ValueError, scenes.http.client.HTTPException) as e:
                self.told = repr(e)
        got = scenes.parallel([lambda: scenes.stream("/v1/completions", body)(self.d)[0], upgrade])[:1]
        if self.told == 200:
            self.wait_code()
        return got + PROBE(self.d)

    def end(self, got, site, code, log):
        outcome, defect = judge(got, self.expected, site)
        if defect is None and self.told == 200 and code != 0:
            defect = f"the old daemon ended with {code}: {last_lines(log)}"
        elif defect is None and self.told not in (200, 503) and code is not None:  # 503: also where only the answer had no memory
            defect = f"the upgrade failed ({self.told}) and the old daemon ended with {code}: {last_lines(log)}"
        if defect is None:
            again = PROBE(self.d)
            defect = None if again[0] == self.expected[1] else f"afterwards: {again}"
        return outcome if self.told == 200 else "upgrade refused", defect


LIVES = {"start": Start, "stop": Stop, "upgrade": Upgrade}


def make(path, state, name):
    return Standing(path, state, name) if name in scenes.STANDING else LIVES[name](path, state)


def notes_of(path, name):
    """The sites of a scene."""
    life = make(path, State(path), name)
    try:
        return life.notes()
    finally:
        life.close()
