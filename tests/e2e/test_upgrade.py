"""An upgrade in place: the next daemon starts beside the running one, takes over its sockets and weights, and serves
before the old one stops accepting and finishes its requests. A failure before that changes nothing."""
import http.client
import http.server
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from manager import Manager, wait_end, wait_until
from upgrading import ASK, FLAGS, LONG, PROMPT, Daemon, Installed, Stream, answer, ctl, daemons, refused, replace_version, upgrade
from weftd import LIMIT_S, UnixConnection, Weftd, beside, fewer, main, parallel, program, random_tokens, recomputed, tiny_model

class Held:
    """A daemon whose worker is stopped inside the block: its streams are still open at the end of the block."""

    def __init__(self, d):
        self.worker = d.stats()["worker"]["pid"]

    def __enter__(self):
        os.kill(self.worker, signal.SIGSTOP)

    def __exit__(self, *failure):
        try:
            os.kill(self.worker, signal.SIGCONT)
        except ProcessLookupError:  # its daemon has ended
            pass


class Clients:
    """Threads that send requests continuously until the block ends; one of each pair keeps its connection as long as
    the daemon does."""

    def __init__(self, d, n=8):
        self.d, self.n, self.wrong, self.n_answers, self.stop = d, n, [], 0, False
        self.should = [answer(d, prompt=random_tokens(i, 20)) for i in range(n)]

    def ask(self, i):
        connection = http.client.HTTPConnection("127.0.0.1", self.d.port, timeout=LIMIT_S)
        while not self.stop:
            try:
                body = {**ASK, "prompt": random_tokens(i, 20)}
                connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
                response = connection.getresponse()
                value = json.loads(response.read())
                if response.status != 200 or value["choices"][0]["token_ids"] != self.should[i]:
                    self.wrong.append((response.status, value))
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(error)
            if i % 2 or self.wrong:
                connection.close()
            self.n_answers += 1
        connection.close()

    def __enter__(self):
        self.threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(self.n)]
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, kind, error, trace):
        n = self.n_answers
        if not kind:
            wait_until("answers after it", lambda: self.n_answers >= n + 2 * self.n or self.wrong)
        self.stop = True
        for t in self.threads:
            t.join()


def test_the_next_daemon_takes_every_socket_and_streams_go_on_to_their_end():
    with tempfile.TemporaryDirectory() as folder:
        path, installed = folder + "/http.sock", Installed(folder)
        with Daemon(*FLAGS, "--listen", "127.0.0.1:0", "--listen", "unix:" + path, path=installed.path) as d:
            should = answer(d, max_tokens=LONG["max_tokens"])
            installed.replace_version()
            stream = Stream(d)
            with Held(d):
                pid = upgrade(d)
                assert pid != d.process.pid and len(stream.tokens) < len(should), "the stream ended before the upgrade"
                assert d.stats()["health"] == "serving" and answer(d) == should[:24]
                over_unix = UnixConnection(path, LIMIT_S)
                over_unix.request("GET", "/v1/models")
                assert over_unix.getresponse().status == 200
                assert d.process.poll() is None, "the old daemon has not waited for its stream"
            stream.join(LIMIT_S)
            assert stream.tokens == should and not stream.error, (len(stream.tokens), stream.error)
            assert d.process.wait(LIMIT_S) == 0
            assert answer(d) == should[:24]
            weights = [line.split(" weights=")[1].split()[0] for line in d.log.splitlines() if " worker_ready " in line]
            assert weights == ["packed", "kept"], weights
            os.kill(pid, signal.SIGTERM)
            assert wait_end(pid) == 0 and not os.path.exists(path) and not os.path.exists(d.admin)


def test_upgrades_under_load_refuse_and_cut_none():
    with tempfile.TemporaryDirectory() as folder, Manager(folder, tiny_model(), *FLAGS) as m:
        m.start()
        wait_until("weights are stored", lambda: len(m.store) == 1)
        with Clients(m, 4) as clients:
            for _ in range(fewer(8)):
                old, stream = m.pid, Stream(m, {**LONG, "max_tokens": 100})
                os.kill(old, signal.SIGUSR2)
                wait_until("the next main process", lambda: m.pid != old)
                assert m.wait(old) == 0
                stream.join(LIMIT_S)
                assert len(stream.tokens) == 100 and not stream.error, stream.error
        assert not clients.wrong, clients.wrong[:3]
        assert not m.foreign, m.foreign
        assert len(m.store) == 1 and m.log.count("weights=packed") == 1, m.log
        m.stop()


DISK_PROMPT = random_tokens(70, 1000)


def cached(d, prompt):
    """Returns the answer's tokens, and how many of the prompt's tokens were cached."""
    c = d.complete(prompt, **ASK)
    return c["token_ids"], c["usage"]["prompt_tokens_details"]["cached_tokens"]


UNWRITTEN = 'kv_disk what="the file was left before all pages were written"'


def finds(d, prompt):
    """The tokens behind @prompt, which is found, or computed again where that looks faster than reading, or where reading
    takes too long. On a slow machine the log may say that it was not written in time."""
    before, whole = recomputed(d), (len(prompt) - 1) // 32 * 32
    tokens, n = cached(d, prompt)
    wait_until(f"{whole - n} tokens were there", lambda: n + recomputed(d) - before >= whole or UNWRITTEN in d.log)
    return tokens


def faults(d):
    """Returns the lines of the log about the disk tier, except that of a slow machine."""
    return [line for line in d.log.splitlines() if "kv_disk" in line and UNWRITTEN not in line]


def test_the_disk_tier_moves_with_what_runs():
    with tempfile.TemporaryDirectory() as folder, Daemon(*FLAGS, "--kv-disk", folder, "--kv-disk-size", "64M") as d:
        should, n = cached(d, DISK_PROMPT)
        assert n == 0
        whole = answer(d, prompt=DISK_PROMPT[:500], max_tokens=2500)
        stream = Stream(d, {**LONG, "prompt": DISK_PROMPT[:500]})
        other = Stream(d, {**LONG, "prompt": DISK_PROMPT[500:]})
        os.kill(d.process.pid, signal.SIGUSR2)
        wait_until("the change", lambda: " upgraded " in d.log)
        assert finds(d, DISK_PROMPT) == should
        of_running = finds(d, DISK_PROMPT[500:])
        (pid,) = set(daemons(d.admin)) - {d.process.pid}
        for s in (stream, other):
            s.join(LIMIT_S)
            assert len(s.tokens) == 2500 and not s.error, (len(s.tokens), s.error)
        assert stream.tokens == whole and other.tokens[:24] == of_running
        assert d.process.wait(LIMIT_S) == 0 and "still" not in d.log and not faults(d), d.log
        os.kill(pid, signal.SIGTERM)
        assert wait_end(pid) == 0
        with Weftd(*FLAGS, "--kv-disk", folder, "--kv-disk-size", "64M") as after:
            assert finds(after, DISK_PROMPT) == should


def test_upgrades_with_the_disk_tier_lose_nothing_under_load():
    with tempfile.TemporaryDirectory() as folder, Manager(folder, tiny_model(), *FLAGS, "--kv-disk", folder + "/kv", "--kv-disk-size", "64M") as m:
        m.start()
        should, _ = cached(m, DISK_PROMPT)
        with Clients(m, 4) as clients:
            for n in range(1, 1 + fewer(6)):
                old, stream = m.pid, Stream(m, {**LONG, "max_tokens": 100})
                os.kill(old, signal.SIGUSR2)
                wait_until("the next main process", lambda: m.pid != old)
                wait_until("the change", lambda: m.log.count(" upgraded ") == n)
                assert finds(m, DISK_PROMPT) == should
                assert m.wait(old) == 0
                stream.join(LIMIT_S)
                assert len(stream.tokens) == 100 and not stream.error, stream.error
        assert not clients.wrong, clients.wrong[:3]
        assert not faults(m), m.log
        m.stop()


PRETENDER = """#!{python}
import os, socket
s = socket.socket(fileno=3)
s.send(b"started %d" % os.getpid())
s.send(b"ready")
s.recv(100)
"""


def test_the_disk_tier_comes_back_when_the_next_daemon_does_not_take_over():
    with tempfile.TemporaryDirectory() as folder:
        installed, disk = Installed(folder), ("--kv-disk", folder + "/kv", "--kv-disk-size", "64M")
        with Daemon(*FLAGS, *disk, path=installed.path) as d:
            should, _ = cached(d, DISK_PROMPT)
            installed.replace(PRETENDER.format(python=sys.executable))
            refused(d, "ended before")
            assert finds(d, DISK_PROMPT) == should
            later = cached(d, DISK_PROMPT[100:])[0]
        with Weftd(*FLAGS, *disk) as after:
            assert finds(after, DISK_PROMPT) == should  # written before
            assert finds(after, DISK_PROMPT[100:]) == later  # written after it


def test_the_main_process_stays_the_same_when_the_next_daemon_does_not_take_over():
    with tempfile.TemporaryDirectory() as folder, Manager(folder, tiny_model(), *FLAGS) as m:
        installed = Installed(folder)
        m.program = installed.path
        m.start()
        should, old = answer(m), m.pid
        installed.replace(PRETENDER.format(python=sys.executable))
        os.kill(old, signal.SIGUSR2)
        wait_until("the failure", lambda: " upgrade_failed " in m.log)
        n = len(m.said)
        os.kill(old, signal.SIGHUP)
        wait_until("what it says of a reload", lambda: any("RELOADING" in s for s in m.said[n:]) or m.pid != old)
        assert m.pid == old and not m.foreign and answer(m) == should, (m.pid, old, m.foreign)
        m.stop()


def test_a_daemon_that_does_not_become_ready_changes_nothing():
    with tempfile.TemporaryDirectory(prefix="a-long-path-leaves-the-reason-whole" * 4) as folder:
        installed, conf = Installed(folder), pathlib.Path(folder, "weft.conf")
        conf.write_text("[engine]\nthreads = 1\n")
        with Daemon(*FLAGS[:4], "--config", conf, path=installed.path) as d:
            should, files = answer(d), os.stat(d.admin)
            for text, reason in (("#!/bin/sh\nexit 3\n", "ended before"), ("\x7fELF broken", "ended before"),
                                 ("#!/bin/sh\nkill -9 $$\n", "ended before"), (None, "threads: must be"), (None, "does not fit beside")):
                installed.replace(text)
                conf.write_text({"threads: must be": "[engine]\nthreads = many\n",
                                 "does not fit beside": "[engine]\nhost-kv-memory = 4000G\n"}.get(reason, "[engine]\nthreads = 1\n"))
                refused(d, reason)
                assert d.process.poll() is None and answer(d) == should and d.stats()["health"] == "serving"
                assert "upgrade_failed" in d.log and os.stat(d.admin).st_ino == files.st_ino
                wait_until("only one daemon", lambda: daemons(d.admin) == [d.process.pid])
            os.unlink(installed.path)
            refused(d, "no such file")
            installed.replace()
            conf.write_text("[engine]\nthreads = 1\n")
            pid = upgrade(d)
            assert d.process.wait(LIMIT_S) == 0 and answer(d) == should
            os.kill(pid, signal.SIGTERM)
            assert wait_end(pid) == 0


def test_a_program_found_by_its_name_is_the_one_that_is_installed_now():
    with tempfile.TemporaryDirectory() as folder:
        installed = Installed(folder)
        with Daemon(*FLAGS, path="weftd", env={"PATH": f"{folder}:{os.environ['PATH']}"}) as d:
            installed.replace()
            pid = upgrade(d)
            assert d.process.wait(LIMIT_S) == 0
            os.kill(pid, signal.SIGTERM)
            assert wait_end(pid) == 0


@beside
def test_a_program_that_says_nothing_is_killed():
    with tempfile.TemporaryDirectory() as folder:
        installed = Installed(folder)
        with Daemon(*FLAGS, path=installed.path) as d:
            installed.replace("#!/bin/sh\nexec sleep 100\n")
            refused(d, "did not answer within")
            assert answer(d)


def test_there_is_one_upgrade_at_a_time():
    with tempfile.TemporaryDirectory() as folder:
        installed = Installed(folder)
        with Daemon(*FLAGS, path=installed.path) as d:
            installed.delay(4)
            pids, first = [], threading.Thread(target=lambda: pids.append(upgrade(d)))
            first.start()
            wait_until("its start", lambda: "upgrade_started" in d.log)
            refused(d, "still running")
            d.process.send_signal(signal.SIGUSR2)
            wait_until("what a signal changes: nothing", lambda: d.log.count('upgrade_failed reason="another upgrade is still running') == 2)
            connection = d.connect()
            connection.request("POST", "/v1/completions", json.dumps({**LONG, "max_tokens": 16000, "stream": True}), {"Content-Type": "application/json"})
            assert connection.getresponse().readline()
            os.kill(d.stats()["worker"]["pid"], signal.SIGSTOP)  # the stream does not end
            first.join()
            refused(d, "previous daemon")
            os.kill(pids[0], signal.SIGUSR2)
            wait_until("the next one's answer to it", lambda: d.log.count('upgrade_failed reason="the previous daemon') == 2)
            connection.sock.shutdown(socket.SHUT_RDWR)
            assert d.process.wait(LIMIT_S) == 0
            wait_until("the second upgrade", lambda: ctl(d, "upgrade").returncode == 0)
            assert wait_end(pids[0]) == 0 and answer(d)
            (pid,) = daemons(d.admin)
            os.kill(pid, signal.SIGTERM)
            assert wait_end(pid) == 0


def test_sigterm_while_the_next_daemon_loads_ends_both():
    with tempfile.TemporaryDirectory() as folder:
        installed = Installed(folder)
        with Daemon(*FLAGS, path=installed.path) as d:
            should = answer(d, max_tokens=LONG["max_tokens"])
            installed.delay(30)
            stream = Stream(d)
            d.process.send_signal(signal.SIGUSR2)
            wait_until("its start", lambda: "upgrade_started" in d.log)
            d.process.terminate()
            stream.join(LIMIT_S)
            assert stream.tokens == should and d.process.wait(LIMIT_S) == 0
            wait_until("no daemon is left", lambda: not daemons(d.admin))
            assert d.log.count("worker_ready") == 1 and not os.path.exists(d.admin)


def test_a_daemon_that_has_taken_over_ends_after_the_one_before_it():
    with tempfile.TemporaryDirectory() as folder, Daemon(*FLAGS, path=Installed(folder).path) as d:
        should = answer(d, max_tokens=LONG["max_tokens"])
        replace_version(folder + "/weftd")
        stream = Stream(d)
        with Held(d):
            pid = upgrade(d)
            os.kill(pid, signal.SIGTERM)
            time.sleep(0.3)
            assert d.process.poll() is None and pid in daemons(d.admin)
        stream.join(LIMIT_S)
        assert stream.tokens == should and not stream.error, (len(stream.tokens), stream.error)
        assert d.process.wait(LIMIT_S) == 0 and wait_end(pid) == 0


@beside
def test_the_old_one_waits_for_its_requests_without_a_limit_and_with_one():
    def try_one(flags, signals, whole):
        with tempfile.TemporaryDirectory() as folder, Daemon(*FLAGS, *flags, path=Installed(folder).path) as d:
            replace_version(folder + "/weftd")
            stream = Stream(d)
            with Held(d):
                pid = upgrade(d)
                for _ in range(signals):
                    d.process.terminate()
                if whole:
                    time.sleep(6)  # more than the limit and what may come behind it
                    assert d.process.poll() is None, flags
                else:
                    d.process.wait(LIMIT_S)
            stream.join(LIMIT_S)
            assert (len(stream.tokens) == LONG["max_tokens"]) == whole, (len(stream.tokens), stream.error)
            assert d.process.wait(LIMIT_S) == 0
            os.kill(pid, signal.SIGTERM)
            assert wait_end(pid) == 0

    parallel([lambda: try_one(("--drain-timeout-ms", "100"), 0, True), lambda: try_one(("--drain-timeout-ms", "100"), 1, False),
              lambda: try_one(("--drain-timeout-ms", "0"), 1, False),
              lambda: try_one(("--upgrade-timeout-ms", "100"), 0, False)])


def test_the_death_of_the_old_one_ends_a_daemon_that_has_not_taken_over():
    with tempfile.TemporaryDirectory() as folder:
        installed = Installed(folder)
        with Daemon(*FLAGS, path=installed.path) as d:
            installed.delay(3)
            d.process.send_signal(signal.SIGUSR2)
            wait_until("its start", lambda: "upgrade_started" in d.log)
            d.process.kill()
            d.process.wait()
            wait_until("no daemon is left", lambda: not daemons(d.admin))


def test_a_daemon_that_ends_says_so_to_who_asked_for_its_upgrade():
    with tempfile.TemporaryDirectory() as folder:
        installed = Installed(folder)
        with Daemon(*FLAGS, path=installed.path) as d:
            installed.delay(100)

            def end():
                wait_until("its start", lambda: "upgrade_started" in d.log)
                d.process.terminate()

            parallel([lambda: refused(d, "this daemon is ending"), end])
            assert d.process.wait(LIMIT_S) == 0


def test_addresses_may_come_and_go():
    with tempfile.TemporaryDirectory() as folder:
        conf, names = pathlib.Path(folder, "weft.conf"), [folder + "/" + n for n in ("a.sock", "b.sock")]
        conf.write_text(f"[listen]\nlisten = unix:{names[0]}\n")

        def status(path):
            connection = UnixConnection(path, LIMIT_S)
            connection.request("GET", "/health")
            return connection.getresponse().status

        admin = folder + "/admin.sock"
        p = subprocess.Popen([program("weftd"), *FLAGS, "--model", tiny_model(), "--backend", "cpu", "--config", conf, "--admin-socket", admin], stderr=subprocess.PIPE, text=True)
        for line in p.stderr:
            if line.startswith("ready"):
                break
        threading.Thread(target=p.stderr.read, daemon=True).start()
        conf.write_text(f"[listen]\nlisten = unix:{names[1]}\n")
        assert status(names[0]) == 200
        p.send_signal(signal.SIGUSR2)
        assert p.wait(LIMIT_S) == 0
        assert status(names[1]) == 200 and not os.path.exists(names[0])
        (pid,) = daemons(admin)
        os.kill(pid, signal.SIGTERM)
        assert wait_end(pid) == 0 and not os.path.exists(names[1])


def test_a_swap_or_a_pull_that_is_under_way_is_not_ended():
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a", "b"):
            shutil.copy(tiny_model(), f"{folder}/{name}.gguf")
        hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), SlowHub)
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        env = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}"}
        # Without room for two the swap lasts until the old worker has ended its requests.
        with Daemon(*FLAGS, "--models-dir", folder, "--models-memory", "150M", model="", env=env) as d:
            should, worker = answer(d, model="a"), d.stats()["worker"]["pid"]
            os.kill(worker, signal.SIGSTOP)  # its requests do not end
            stuck = threading.Thread(target=lambda: answer(d, model="a"))
            stuck.start()
            wait_until("the request", lambda: d.admin_request("GET", "/requests")[1]["requests"])
            assert d.admin_request("POST", "/models/a/swap?file=" + folder + "/b.gguf")[0] == 200
            refused(d, "is being replaced")
            os.kill(worker, signal.SIGCONT)
            wait_until("the swap", lambda: '"under way"' not in json.dumps(d.admin_request("GET", "/models")[1]))
            stuck.join(LIMIT_S)
            pull = subprocess.Popen(["curl", "-sN", "-X", "POST", "--unix-socket", d.admin, "http://x/pull?name=hf:some/repo"], stdout=subprocess.PIPE)
            wait_until("the pull", lambda: SlowHub.asked)
            refused(d, "is being pulled")
            SlowHub.go.set()
            pull.wait(LIMIT_S)
            wait_until("the upgrade", lambda: ctl(d, "upgrade").returncode == 0)
            assert d.process.wait(LIMIT_S) == 0 and answer(d, model="a") == should
            (pid,) = daemons(d.admin)
            os.kill(pid, signal.SIGTERM)
            assert wait_end(pid) == 0


class SlowHub(http.server.BaseHTTPRequestHandler):
    """A hub that has no model, and answers late."""
    asked, go = False, threading.Event()

    def do_GET(self):
        SlowHub.asked = True
        SlowHub.go.wait(LIMIT_S)
        self.send_error(404)

    def log_message(self, *_):
        pass


main(globals())
