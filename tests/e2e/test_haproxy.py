"""HAProxy with packaging/haproxy.cfg in front of two daemons: sessions keep their daemon, and no request fails when one
daemon stops."""
import http.client
import json
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading

from weftd import LIMIT_S, Skip, Weftd, free_port, main, parallel, wait_until

CONFIG = pathlib.Path(__file__).resolve().parents[2] / "packaging" / "haproxy.cfg"


class Proxy:
    """HAProxy in front of daemons at @ports."""

    def __init__(self, ports):
        program = shutil.which("haproxy") or shutil.which("/usr/sbin/haproxy")
        if not program:
            raise Skip("no haproxy")
        self.port = free_port()
        text = CONFIG.read_text()
        for was, port in zip(("8000", "8081", "8082"), (self.port, *ports)):
            text, n = re.subn(r"127\.0\.0\.1:" + was, f"127.0.0.1:{port}", text)
            assert n == 1, was
        self.file = tempfile.NamedTemporaryFile("w", suffix=".cfg")
        self.file.write(text)
        self.file.flush()
        check = subprocess.run([program, "-c", "-f", self.file.name], capture_output=True, text=True)
        assert check.returncode == 0 and "WARNING" not in check.stderr, check
        self.process = subprocess.Popen([program, "-db", "-f", self.file.name], stderr=subprocess.DEVNULL)

    def __enter__(self):
        wait_until("HAProxy finds no daemon", lambda: self.ask("GET", "/health")[0] == 200)
        return self

    def __exit__(self, *error):
        self.process.terminate()
        self.process.wait(LIMIT_S)

    def ask(self, method, path, body=None, session=None):
        """(status, text)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        headers = {"Content-Type": "application/json", **({"x-session-id": session} if session else {})}
        try:
            connection.request(method, path, body and json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except OSError as error:
            return 0, repr(error)
        finally:
            connection.close()

    def text(self, session, n, seed=1):
        """Returns the text of a streamed completion; raises an AssertionError if the stream is incomplete."""
        status, got = self.ask("POST", "/v1/completions", {"prompt": "weft", "max_tokens": n, "seed": seed, "temperature": 1,
                                                           "ignore_eos": True, "stream": True}, session)
        assert status == 200 and got.endswith("data: [DONE]\n\n"), (status, got[-300:])
        events = [json.loads(e[6:]) for e in got.split("\n\n")[:-2] if e.startswith("data: ")]
        return "".join(e["choices"][0]["text"] for e in events if e["choices"])


def requests_of(w):
    """Returns the number of generations that ended without an error."""
    text = w.request("GET", "/metrics")[2]
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("vllm:request_success_total{"))


def test_a_session_stays_where_its_prefix_is():
    with Weftd() as a, Weftd() as b, Proxy((a.port, b.port)) as proxy:
        for i in range(16):
            before = requests_of(a), requests_of(b)
            for _ in range(3):
                proxy.text(f"session {i}", 4)
            after = requests_of(a), requests_of(b)
            assert sorted((after[0] - before[0], after[1] - before[1])) == [0, 3], (before, after)
        assert requests_of(a) >= 9 and requests_of(b) >= 9, "both have sessions"


def test_events_are_passed_on_as_they_come():
    with Weftd() as a, Weftd() as b, Proxy((a.port, b.port)) as proxy:
        connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=LIMIT_S)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 20000, "stream": True, "ignore_eos": True}),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        live = [r for w in (a, b) for r in w.admin_request("GET", "/requests")[1]["requests"]]
        assert len(live) == 1, "it is still being written"
        connection.sock.close()
        response.close()
        wait_until("the client has left, its generation goes on",
                   lambda: not any(w.admin_request("GET", "/requests")[1]["requests"] for w in (a, b)))


def test_a_daemon_that_is_stopped_costs_no_request():
    with Weftd("--listen", f"127.0.0.1:{free_port()}") as a, Weftd() as b, Proxy((a.port, b.port)) as proxy:
        want = {seed: proxy.text("alone", 60, seed) for seed in range(4)}
        over, n = threading.Event(), [0] * 8

        def agent(i):
            while not over.is_set():
                assert proxy.text(f"agent {i}", 60, i % 4) == want[i % 4]
                n[i] += 1

        def stop_and_start():
            answers(8)
            for _ in range(3):
                a.process.send_signal(signal.SIGTERM)
                a.process.wait(LIMIT_S)
                answers(8)
                a.process = subprocess.Popen(a.process.args, stderr=subprocess.DEVNULL)
                wait_until("it serves", lambda: a.stats_or_none() and a.health() == 200)
                answers(8)
            over.set()

        def answers(more):
            before = sum(n)
            wait_until("answers", lambda: sum(n) >= before + more or over.is_set())

        def guard(function):
            try:
                function()
            finally:
                over.set()

        parallel([lambda i=i: guard(lambda: agent(i)) for i in range(8)] + [lambda: guard(stop_and_start)])
        assert requests_of(a) > 0, "the new one has its sessions again"


main(globals())
