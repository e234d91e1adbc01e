"""The connections and body memory that one client or tenant uses in the front do not delay other clients."""
import json
import os
import re
import signal
import socket
import tempfile
import time

from weftd import LIMIT_S, Flood, UnixConnection, Weftd, keys_in, main, seen, wait_until

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def ask(daemon, key):
    body = {"prompt": "hi", "max_tokens": 1}
    return daemon.request("POST", "/v1/completions", body, {"Authorization": "Bearer " + key})[0]


def test_idle_connections_without_a_key_lock_out_no_tenant():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "u.sock")
        with Weftd("--api-keys", keys_in(folder), "--listen", "127.0.0.1:0," + "unix:" + path, "--max-connections", "100") as d:
            kept = d.connect()
            own = {"Authorization": "Bearer kb"}
            assert d.request("GET", "/v1/models", headers=own, connection=kept)[0] == 200
            sockets = []
            for _ in range(200):
                s = socket.create_connection(("127.0.0.1", d.port), LIMIT_S)
                s.sendall(HEALTH)
                assert s.recv(4096).startswith(b"HTTP/1.1 200"), "each is served"
                sockets.append(s)
            assert ask(d, "kb") == 200
            assert d.request("GET", "/v1/models", headers=own, connection=kept)[0] == 200, "a tenant's own connection stays"
            local = UnixConnection(path, LIMIT_S)
            local.request("GET", "/health")
            assert local.getresponse().status == 200
            assert d.stats()["front"]["displaced"] > 50
            for s in sockets:
                s.close()


def test_unfinished_bodies_of_one_tenant_refuse_no_other():
    size = 1 << 20
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ka\r\nContent-Length: %d\r\n\r\n" % size
    with tempfile.TemporaryDirectory() as folder:
        with Weftd("--api-keys", keys_in(folder), "--max-body", "1M") as d:
            sockets = []
            for _ in range(12):
                s = socket.create_connection(("127.0.0.1", d.port), LIMIT_S)
                s.sendall(head + b'{"prompt":"' + b"x" * (size - 12))
                sockets.append(s)
                assert ask(d, "kb") == 200
            # The bodies lie in the system's buffers until the front has read them.
            wait_until("lost bodies", lambda: d.stats()["front"]["lost_bodies"] >= 4)
            refused = sockets[0].recv(4096)
            assert refused.startswith(b"HTTP/1.1 503") and b"Retry-After" in refused, refused
            for s in sockets:
                s.close()


def test_a_flood_of_requests_leaves_the_log_to_others():
    """Alice may cause 10 log lines a second, with a burst of 100; one line reports the number of suppressed lines."""
    with tempfile.TemporaryDirectory() as folder:
        with Weftd("--api-keys", keys_in(folder), "--log-requests", "10") as d:

            def send(connection, key, name):
                headers = {"Authorization": "Bearer " + key, "X-Request-Id": name}
                assert d.request("POST", "/v1/completions", {"prompt": 7}, headers, connection)[0] == status, name

            alice, bob, start = d.connect(), d.connect(), time.monotonic()
            for i in range(400):
                status = 400
                send(alice, "ka", f"alice-{i}")
                if i % 20 == 0:
                    send(bob, "kb", f"bob-{i}")
            status = 401
            for i in range(150):
                send(d.connect(), "none", f"stranger-{i}")
            most = 100 + 10 * (time.monotonic() - start) + 1
            suppressed = d.stats()["front"]["log_suppressed"]
            d.process.terminate()
            d.process.wait(LIMIT_S)
            lines = {name: d.log.count(f"id={name}-") for name in ("alice", "bob", "stranger")}
            told = dict(re.findall(r'requests_not_logged client="(.*?)" suppressed=(\d+)', d.log))
            assert lines["bob"] == 20, lines
            assert 100 <= lines["alice"] <= most and 100 <= lines["stranger"] <= most, (lines, most)
            assert int(told["tenant:alice"]) + lines["alice"] == 400, (lines, told)
            assert int(told["address:127.0.0.1"]) + lines["stranger"] == 150, (lines, told)
            assert suppressed == 550 - lines["alice"] - lines["stranger"], (suppressed, lines)


def test_what_was_left_out_of_the_log_is_told_in_turns():
    """Of 150 addresses each one's suppressed lines are told once, in turns of 64. A few share one of 1,024 rows."""
    ask = b"GET /v1/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with Weftd("--log-requests", "1") as d:
        for i in range(150):
            with socket.create_connection(("127.0.0.1", d.port), LIMIT_S, source_address=(f"127.0.1.{i + 1}", 0)) as s:
                s.sendall(12 * ask)
                heard = b""
                while heard.count(b"HTTP/1.1 404") < 12:
                    heard += s.recv(65536)
        told = lambda: re.findall(r'requests_not_logged client="address:127\.0\.1\.(\d+)" suppressed=(\d+)', d.log)
        suppressed = d.stats()["front"]["log_suppressed"]
        wait_until("all suppressed lines", lambda: sum(int(n) for _, n in told()) == suppressed)
        assert suppressed >= 200 and len({a for a, _ in told()}) == len(told()) > 100, told()


def test_constrained_requests_of_one_tenant_stop_no_other():
    """A constrained request of Alice has many parses of its output, each with a stack; their memory is released when
    the clients disconnect."""
    rules = [f'y{k} ::= "a" y{k} "c{k}" | "b"' for k in range(40)]
    grammar = "root ::= (" + " | ".join(f"y{k}" for k in range(40)) + ")+\n" + "\n".join(rules)
    body = {"prompt": "hi", "max_tokens": 20000, "ignore_eos": True, "stream": True, "structured_outputs": {"grammar": grammar}}
    with tempfile.TemporaryDirectory() as folder:
        with Weftd("--api-keys", keys_in(folder)) as d:
            streams = []
            for _ in range(150):
                streams.append(d.connect())
                streams[-1].request("POST", "/v1/completions", json.dumps(body), {"Authorization": "Bearer ka", "Content-Type": "application/json"})
            assert streams[0].getresponse().status == 200
            own = {"prompt": "hi", "max_tokens": 8, "structured_outputs": {"regex": "[a-d]{4}"}}
            status, _, answer = d.request("POST", "/v1/completions", own, {"Authorization": "Bearer kb"})
            assert status == 200 and re.fullmatch("[a-d]{4}", answer["choices"][0]["text"]), answer
            wait_for(d, lambda w: w["grammar_state_bytes"] > 150 * 10000)
            for connection in streams:
                connection.close()
            wait_for(d, lambda w: w["grammar_state_bytes"] == 0 and w["grammar_waiting"] == 0)


def test_grammars_of_clients_that_left_are_not_compiled():
    """The grammars of disconnected clients are dropped from the worker's queue, and the worker keeps reporting."""
    with tempfile.TemporaryDirectory() as folder:
        with Weftd("--api-keys", keys_in(folder), "--hang-timeout-ms", "3600000") as d:
            clients, worker = [], d.worker_pid()
            os.kill(worker, signal.SIGSTOP)  # it gets them all at once
            for i in range(8):  # a fifth of a second each
                body = {"prompt": "hi", "max_tokens": 20, "structured_outputs": {"choice": [f"choice {k} {i}" for k in range(40000)]}}
                clients.append(d.connect())
                clients[-1].request("POST", "/v1/completions", json.dumps(body), {"Authorization": "Bearer ka", "Content-Type": "application/json"})
            wait_until("all requests", lambda: (f := d.stats()["front"])["running"] + f["queued"] == len(clients))
            os.kill(worker, signal.SIGCONT)
            wait_for(d, lambda w: w["grammars_compiling"] >= 2)
            for connection in clients:
                connection.close()
            wait_for(d, lambda w: w["grammars_compiling"] == 0 and w["running"] == 0)


def test_embeddings_of_one_tenant_keep_no_other_waiting():
    """Alice requests thousands of embeddings at once, long ones too, and cancels half of them; Bob's single requests
    are not queued behind hers."""
    many, long = {"input": ["a"] * 1000}, {"input": ["the cat sat on a mat " * 60] * 40}
    with tempfile.TemporaryDirectory() as folder:
        with Weftd("--api-keys", keys_in(folder), "--max-context", "4096") as d:

            def vector():
                status, _, answer = d.request("POST", "/v1/embeddings", {"input": "hello"}, {"Authorization": "Bearer kb"})
                assert status == 200, answer
                return answer["data"][0]["embedding"]

            alone = vector()
            with Flood(d, ("/v1/embeddings", many), ("/v1/embeddings", long)) as flood:
                waits = flood.measure(vector, alone)
            seen(waits[len(waits) // 2] < max(flood.took) / 3, waits, flood.took)
            wait_for(d, lambda w: w["running"] == 0)
            wait_until("their end", lambda: d.stats()["front"]["running"] + d.stats()["front"]["queued"] == 0)


def test_pipelined_requests_of_one_client_keep_no_other_waiting():
    """1,500 requests arrive in one read, without a key; another tenant is answered between two of them."""
    with tempfile.TemporaryDirectory() as folder:
        with Weftd("--api-keys", keys_in(folder)) as d:
            flood = socket.create_connection(("127.0.0.1", d.port), LIMIT_S)
            other = d.connect()
            other.connect()
            os.kill(d.process.pid, signal.SIGSTOP)  # it gets both at once
            flood.sendall(b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1500)
            other.request("POST", "/tokenize", json.dumps({"prompt": "hello"}), {"Authorization": "Bearer kb"})
            os.kill(d.process.pid, signal.SIGCONT)
            assert other.getresponse().status == 200
            flood.setblocking(False)
            early = 0
            try:
                while True:
                    early += flood.recv(1 << 20).count(b"HTTP/1.1 200")
            except BlockingIOError:
                pass
            seen(early < 1000, f"{early} answers came before the other tenant's")
            flood.close()


def wait_for(daemon, holds):
    wait_until("the worker's figures", lambda: holds(daemon.stats()["worker"]))


main(globals())
