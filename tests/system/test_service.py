"""weft as it is installed: units exactly as shipped, under a systemd that is PID 1. The tests share one machine and run
in the order of this file; each leaves the service serving.
"""
import http.client
import json
import os
import threading
import time

from machine import CONF, MEMBER, STRANGER, Machine
from weftd import BACKEND, UnixConnection, main, random_tokens, tiny_model

BASE_CONF = f"[model]\nmodel = /srv/models/tiny.gguf\n[engine]\nbackend = {BACKEND}\nmax-context = 16384\nkv-memory = 64M\n"
LONG = {"prompt": random_tokens(1, 20), "max_tokens": 1500, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
SHORT = {"prompt": random_tokens(2, 8), "max_tokens": 4, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
machine = None


def request(path, body=None, headers=None, timeout=90):
    """(status, parsed JSON) over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=timeout)
    data = json.dumps(body) if body is not None else None
    connection.request("POST" if data else "GET", path, data, {"Content-Type": "application/json", **(headers or {})})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, json.loads(text) if text[:1] in "[{" else text


def complete(**body):
    status, value = request("/v1/completions", body)
    assert status == 200, (status, value)
    return value["choices"][0]["token_ids"]


def stats():
    return json.loads(machine.run("weftctl", "--json", "stats").stdout)


def wait_until(what, condition, limit_s=60):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, what + "\n" + journal_text()
        time.sleep(0.05)


def is_serving():
    return machine.run("systemctl", "is-active", "weftd", check=False).stdout.strip() == "active" and request("/health")[0] == 200


def journal(*match):
    said = machine.run("journalctl", "--sync", check=False) and machine.run("journalctl", "-u", "weftd", "-o", "json", "--no-pager", *match)
    return [json.loads(line) for line in said.stdout.splitlines()]


def journal_text():
    return machine.run("journalctl", "-u", "weftd", "--no-pager", "-n", "30").stdout


class Clients:
    """Threads that ask without a pause, each time over a new connection, until the block ends. Of each pair one keeps its
    connection as long as the daemon does."""

    def __init__(self, n=8):
        self.n, self.n_answers, self.wrong, self.stop = n, 0, [], False

    def ask_kept(self):
        connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=90)
        while not self.stop:
            try:
                connection.request("POST", "/v1/completions", json.dumps(SHORT), {"Content-Type": "application/json"})
                response = connection.getresponse()
                value = response.read()
                if response.status != 200:
                    self.wrong.append((response.status, value))
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(error)
                connection.close()
            self.n_answers += 1
        connection.close()

    def ask(self):
        while not self.stop:
            try:
                status, value = request("/v1/completions", SHORT)
                if status != 200:
                    self.wrong.append((status, value))
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(error)
            self.n_answers += 1

    def __enter__(self):
        self.threads = [threading.Thread(target=self.ask_kept if i % 2 else self.ask) for i in range(self.n)]
        for t in self.threads:
            t.start()
        wait_until("the first answers", lambda: self.n_answers >= self.n or self.wrong)
        return self

    def __exit__(self, kind, error, trace):
        n = self.n_answers
        if not kind:
            wait_until("answers after it", lambda: self.n_answers >= n + 2 * self.n)
        self.stop = True
        for t in self.threads:
            t.join()


class Stream(threading.Thread):
    """Reads one long stream; .tokens so far, .error when it broke."""

    def __init__(self):
        super().__init__()
        self.tokens, self.error = [], None
        self.start()
        wait_until("the stream's first token", lambda: self.tokens or self.error)

    def run(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=90)
            connection.request("POST", "/v1/completions", json.dumps({**LONG, "stream": True}), {"Content-Type": "application/json"})
            for line in connection.getresponse():
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        self.tokens += choice["token_ids"]
        except (OSError, http.client.HTTPException, KeyError) as error:
            self.error = error


def test_installed_and_configured_it_starts_and_serves():
    machine.run("systemd-sysusers")
    group = machine.root / "etc/group"
    text = [line + "member" if line.startswith("weft-admin:") else line for line in group.read_text().splitlines()]
    group.write_text("\n".join(text) + "\n")
    installed = (machine.root / "local-etc/weft/weft.conf").read_text()
    machine.write_conf(installed.replace("#model =", "model = /srv/models/tiny.gguf").replace("#backend = auto", "backend = " + BACKEND))
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "enable", "--now", "weftd.socket", "weftd-admin.socket", "weftd")
    assert is_serving(), journal_text()
    assert request("/v1/models")[1]["data"][0]["id"] == "tiny"
    assert len(complete(**SHORT)) == 4
    assert "serving tiny" in machine.show("StatusText"), machine.show("StatusText")
    machine.write_conf(BASE_CONF)
    machine.run("systemctl", "restart", "weftd")


def test_the_process_has_no_network_no_privileges_and_an_own_user():
    pid = machine.show("MainPID")
    status = dict(line.split(":\t", 1) for line in machine.run("cat", f"/proc/{pid}/status").stdout.splitlines())
    assert int(status["CapEff"], 16) == 0 and int(status["CapBnd"], 16) == 0, status
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2", status
    assert int(status["Uid"].split()[0]) >= 61184, status["Uid"]  # a dynamic one
    own = lambda ns: machine.run("readlink", f"/proc/{pid}/ns/{ns}").stdout != machine.run("readlink", f"/proc/1/ns/{ns}").stdout
    assert own("net") and own("mnt") and own("user")
    worker = stats()["worker"]["pid"]
    assert len(machine.processes("weft")) == 2
    assert machine.run("cat", f"/proc/{worker}/comm").stdout.strip() == "weft-worker"
    assert machine.run("systemctl", "is-failed", "weftd", check=False).stdout.strip() == "active"


def test_journal_has_the_request_as_fields_and_no_prompt():
    secret = "the-prompt-that-nobody-may-log"
    status, value = request("/v1/completions", {**SHORT, "prompt": secret}, {"X-Request-Id": "system-test-1"})
    assert status == 200, value
    wait_until("the log line", lambda: journal("WEFT_ID=system-test-1"))
    (entry,) = journal("WEFT_ID=system-test-1")
    assert entry["WEFT_EVENT"] == "request" and entry["WEFT_STATUS"] == "200" and entry["WEFT_OUTPUT"] == "4", entry
    assert entry["PRIORITY"] == "6" and entry["SYSLOG_IDENTIFIER"] == "weftd" and entry["WEFT_PROCESS"] == "front", entry
    assert journal("WEFT_EVENT=worker_ready")[-1]["WEFT_BACKEND"], journal_text()
    assert secret not in json.dumps(journal())


def test_weftctl_answers_root_and_members_only():
    assert stats()["health"] == "serving"
    assert json.loads(machine.run("weftctl", "--json", "health", user=MEMBER).stdout)
    r = machine.run("weftctl", "stats", user=STRANGER, check=False)
    assert r.returncode == 77 and r.stderr.count("\n") == 1 and "permission denied" in r.stderr, r
    mode = machine.run("stat", "-c", "%a %U %G", "/run/weft-admin.sock").stdout.split()
    assert mode == ["660", "root", "weft-admin"], mode


def test_killed_worker_under_load_costs_no_stream():
    should = complete(**LONG)
    before = stats()["worker"]
    with Clients(4) as clients:
        streams = [Stream() for _ in range(3)]
        machine.kill("KILL", before["pid"])
        for s in streams:
            s.join(90)
    assert not clients.wrong, clients.wrong[:3]
    assert all(s.tokens == should for s in streams), [(len(s.tokens), s.error) for s in streams]
    after = stats()["worker"]
    assert after["pid"] != before["pid"] and after["deaths"] == before["deaths"] + 1, after
    assert machine.show("NRestarts") == "0"


def test_killed_front_under_load_comes_back_and_refuses_nobody():
    pid, worker = machine.show("MainPID"), stats()["worker"]["pid"]
    with Clients(8) as clients:
        machine.kill("KILL", pid)
        wait_until("the restart", lambda: machine.show("MainPID") not in (pid, "0"))
    # Only answers that were under way may be lost, one per client, and nobody is refused.
    assert len(clients.wrong) <= 8, clients.wrong
    assert not [e for e in clients.wrong if isinstance(e, (tuple, ConnectionRefusedError))], clients.wrong
    assert machine.run("test", "-e", f"/proc/{worker}", check=False).returncode == 1, "the old worker lives on"
    assert is_serving()


def weights():
    """Where the last worker's were."""
    return journal("WEFT_EVENT=worker_ready")[-1]["WEFT_WEIGHTS"]


def test_the_next_daemon_finds_packed_weights_until_the_service_is_stopped():
    if BACKEND == "cuda":
        return  # they are the device's
    machine.run("systemctl", "stop", "weftd")
    machine.run("systemctl", "start", "weftd")
    before = complete(**SHORT)
    assert weights() == "packed" and machine.show("NFileDescriptorStore") == "1", journal_text()
    for signal in (None, "KILL"):
        pid = machine.show("MainPID")
        if signal:
            machine.kill(signal, pid)
        else:
            machine.run("systemctl", "restart", "weftd")
        wait_until("the next daemon", lambda: machine.show("MainPID") not in (pid, "0") and is_serving())
        assert complete(**SHORT) == before
        assert weights() == "kept" and machine.show("NFileDescriptorStore") == "1", journal_text()
    machine.run("systemctl", "stop", "weftd")
    assert machine.show("NFileDescriptorStore") == "0"
    machine.run("systemctl", "start", "weftd")
    assert complete(**SHORT) == before and weights() == "packed", journal_text()


def test_restart_under_load_refuses_nobody_and_ends_no_stream():
    should = complete(**LONG)
    with Clients(8) as clients:
        stream = Stream()
        for _ in range(5):
            machine.run("systemctl", "restart", "weftd")
            machine.run("systemctl", "reset-failed", "weftd")  # the limit of starts is not meant here
        stream.join(90)
    assert not clients.wrong, clients.wrong[:3]
    assert stream.tokens == should, (len(stream.tokens), stream.error)


def test_upgrades_under_load_refuse_none_and_end_no_stream():
    should, store = complete(**LONG), machine.show("NFileDescriptorStore")
    with Clients(8) as clients:
        for _ in range(5):
            pid, stream = machine.show("MainPID"), Stream()
            machine.run("weftctl", "upgrade")
            assert machine.show("MainPID") != pid and machine.show("SubState") == "running", journal_text()
            stream.join(90)
            assert stream.tokens == should, (len(stream.tokens), stream.error)
            wait_until("the end of the old daemon", lambda: machine.run("test", "-e", f"/proc/{pid}", check=False).returncode)
    assert not clients.wrong, clients.wrong[:3]
    assert machine.show("NRestarts") == "0" and machine.show("NFileDescriptorStore") == store, journal_text()
    assert len(machine.processes("weft")) == 2 and weights() in ("kept", "own")
    assert "only permitted for main PID" not in journal_text()
    # A configuration that cannot be used leaves the daemon as it is.
    pid = machine.show("MainPID")
    machine.write_conf(BASE_CONF + "threads = many\n")
    failed = machine.run("weftctl", "upgrade", check=False)
    machine.write_conf(BASE_CONF)
    assert failed.returncode == 1 and "threads: must be" in failed.stderr, failed
    assert machine.show("MainPID") == pid and is_serving()


def test_a_daemon_that_took_over_is_watched_restarted_and_stopped_as_the_first():
    pid = machine.show("MainPID")
    machine.run("weftctl", "upgrade")
    wait_until("the end of the old daemon", lambda: machine.run("test", "-e", f"/proc/{pid}", check=False).returncode)
    pid = machine.show("MainPID")
    machine.kill("KILL", pid)
    wait_until("the restart", lambda: machine.show("MainPID") not in (pid, "0") and is_serving())
    assert weights() in ("kept", "own"), journal_text()
    machine.run("weftctl", "upgrade")
    pid = machine.show("MainPID")
    machine.kill("STOP", pid)
    wait_until("the watchdog", lambda: machine.show("MainPID") not in (pid, "0") and is_serving(), limit_s=60)
    machine.run("weftctl", "upgrade")
    stream = Stream()
    machine.run("weftctl", "upgrade", check=False)  # the stream's daemon may still be the first
    machine.run("systemctl", "stop", "weftd")
    stream.join(90)
    assert stream.tokens == complete(**LONG), (len(stream.tokens), stream.error)


def test_reload_takes_new_keys_without_an_interruption():
    keys = machine.root / "local-etc/weft/keys"
    ask = lambda key: request("/v1/models", headers={"Authorization": "Bearer " + key})[0]
    keys.write_text("first:key-number-one\n")
    machine.run("chown", "root:weft", "/usr/local/etc/weft/keys")
    machine.run("chmod", "640", "/usr/local/etc/weft/keys")
    try:
        machine.write_conf(BASE_CONF + "[listen]\napi-keys = /usr/local/etc/weft/keys\n")
        machine.run("systemctl", "restart", "weftd")
        pid = machine.show("MainPID")
        assert ask("key-number-one") == 200 and ask("key-number-two") == 401
        keys.write_text("second:key-number-two\n")
        machine.run("systemctl", "reload", "weftd")
        wait_until("the new key", lambda: ask("key-number-two") == 200)
        assert ask("key-number-one") == 401 and machine.show("MainPID") == pid
        assert machine.show("SubState") == "running"
    finally:
        machine.write_conf(BASE_CONF)
        machine.run("systemctl", "restart", "weftd")


def test_bad_configuration_is_not_tried_again():
    machine.write_conf(BASE_CONF + "threads = many\n")
    machine.run("systemctl", "stop", "weftd.socket", "weftd-admin.socket", "weftd")
    assert machine.run("systemctl", "start", "weftd", check=False).returncode != 0
    assert machine.show("ExecMainStatus") == "78" and machine.show("NRestarts") == "0"
    assert machine.show("ActiveState") == "failed"
    assert f"{CONF}:7: threads: must be" in journal_text(), journal_text()
    machine.write_conf(BASE_CONF)
    machine.run("systemctl", "reset-failed")
    machine.run("systemctl", "start", "weftd.socket", "weftd-admin.socket", "weftd")
    assert is_serving()


def test_waiting_client_does_not_make_a_bad_configuration_run_for_ever():
    machine.write_conf(BASE_CONF + "threads = many\n")
    machine.run("systemctl", "stop", "weftd")
    machine.run("systemctl", "reset-failed")
    try:
        request("/v1/models", timeout=30)
        raise AssertionError("a daemon with a bad configuration answered")
    except (OSError, http.client.HTTPException):
        pass
    wait_until("the end of the attempts", lambda: machine.show("ActiveState", "weftd.socket") == "failed")
    assert machine.show("ActiveState") == "failed"
    machine.write_conf(BASE_CONF)
    machine.run("systemctl", "reset-failed", "weftd", "weftd.socket")
    machine.run("systemctl", "start", "weftd.socket", "weftd-admin.socket", "weftd")
    assert is_serving()


def test_stopped_front_is_killed_by_the_watchdog_and_comes_back():
    pid = machine.show("MainPID")
    machine.kill("STOP", pid)
    wait_until("the watchdog", lambda: machine.show("MainPID") not in (pid, "0"), limit_s=60)
    assert request("/health")[0] == 200
    assert "Watchdog timeout" in journal_text(), journal_text()


def test_stop_leaves_nothing_and_a_client_starts_it_again():
    machine.run("systemctl", "stop", "weftd")
    assert machine.show("Result") == "success" and machine.show("ActiveState") == "inactive"
    assert machine.processes("weft") == []
    assert request("/v1/models")[0] == 200
    assert is_serving()


def run():
    global machine
    machine = Machine(tiny_model())
    try:
        main(globals())
    finally:
        machine.stop()


run()
