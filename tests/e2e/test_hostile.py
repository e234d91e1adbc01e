"""Hostile clients and model files: a short part of fuzz_http.py and fuzz_gguf.py with a fixed seed, and attacks by
volume. Run those two directly for longer tests."""
import json
import os
import socket
import tempfile
import time

import fuzz_gguf
import fuzz_http
from golden_models import golden
from weftd import BACKEND, BUILD, LIMIT_S, Skip, Weftd, main, synth, tiny_model

FLAGS = ("--max-context", "2048", "--kv-pages", "512", "--backend", BACKEND, "--threads", "2", "--header-timeout-ms", "3000", "--body-timeout-ms", "5000",
         "--stall-timeout-ms", "3000", "--idle-timeout-ms", "60000")
# CPU time of the event loop. The limit is generous, as the defects it detects take seconds or minutes.
LOOP_S = 5


def test_what_strangers_send_harms_nobody():
    with Weftd(*FLAGS) as d:
        counts = fuzz_http.attack(d, seed=1, n_rounds=250, n_threads=4, loop_limit_s=LOOP_S)
        assert counts.get(200, 0) > 10 and counts.get(400, 0) > 50 and counts["bystander"] > 0, counts


def test_damaged_models_are_refused_in_one_line_or_used():
    if BACKEND != "cpu":
        raise Skip("the backend does not matter")
    models = [fuzz_gguf.Model(tiny_model()), fuzz_gguf.Model(synth("tiny-llama-q8_0", "--arch", "llama", "--shape", "tiny", "--format", "Q8_0"))]
    runner = fuzz_gguf.Runner(BUILD, 120)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(40):
            runner.round(models, 2, number, folder, with_daemon=number % 4 == 0)
    assert any(k == ("verify", 0) for k in runner.counts) and any(k == ("verify", 1) for k in runner.counts), runner.counts


def test_damaged_drafters_are_refused_in_one_line_or_used():
    if BACKEND != "cpu":
        raise Skip("the backend does not matter")
    for model, names, n_rounds in (("qwen35-mtp", ("qwen35-dflash", "qwen35-dflash2"), 24), ("qwen3", ("qwen3-dspark",), 12)):
        runner = fuzz_gguf.Runner(BUILD, 120, golden(model))
        drafters = [fuzz_gguf.Model(golden(name)) for name in names]
        with tempfile.TemporaryDirectory() as folder:
            for number in range(n_rounds):
                runner.round(drafters, 2, number, folder, with_daemon=number % 2 == 0)
        assert any(k[0] == "served" for k in runner.counts), (model, runner.counts)
        assert any(k == ("weftd", 78) for k in runner.counts), (model, runner.counts)


def test_templates_of_a_model_end():
    """Expensive chat templates: each request is answered, and the event loop stays responsive meanwhile."""
    for text in fuzz_gguf.TEMPLATES:
        with tempfile.NamedTemporaryFile("wb", suffix=".jinja") as file:
            file.write(text.encode("utf-8", "surrogatepass"))
            file.flush()
            d = Weftd(*FLAGS, "--chat-template", file.name, wait=False)
            try:
                d.wait_ready()
            except AssertionError:
                assert d.process.wait(LIMIT_S) == 78 and d.log.count("\n") == 1, (text[:80], d.log[:2000])
                d.folder.cleanup()
                continue
            with d:
                before = fuzz_http.cpu_s(d.process.pid)
                status, _, answer = d.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
                assert status in (200, 400), (text[:80], answer)
                assert d.health() == 200
                spent = fuzz_http.cpu_s(d.process.pid) - before
                assert spent < LOOP_S, (text[:80], spent)
                rss = fuzz_http.figures(d.process.pid)[0]
                assert rss < 400 << 10, (text[:80], rss)


def test_two_thousand_idle_connections_cost_little():
    with Weftd(*FLAGS, "--max-connections", "3000") as d:
        expected = fuzz_http.ask_bystander(d)
        before, fds, _ = fuzz_http.figures(d.process.pid)
        sockets = []
        for i in range(2000):
            s = socket.create_connection(("127.0.0.1", d.port), LIMIT_S)
            if i % 2:
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: loc")
            sockets.append(s)
        assert fuzz_http.ask_bystander(d) == expected
        rss = fuzz_http.figures(d.process.pid)[0]
        assert rss - before < 2000 * 12, (before, rss)
        for s in sockets:
            s.close()
        fuzz_http.wait_quiet(d, fds + 1)
        assert fuzz_http.ask_bystander(d) == expected


def test_who_reads_nothing_costs_a_buffer():
    """Streams of long answers without a reader: their buffers are bounded, the requests are cancelled, and other
    clients are served."""
    with Weftd(*FLAGS, "--stream-buffer", "64K", "--max-context", "8192", "--kv-pages", "2048") as d:
        expected = fuzz_http.ask_bystander(d)
        before, fds, _ = fuzz_http.figures(d.process.pid)
        body = json.dumps({"prompt": "x", "max_tokens": 8000, "stream": True, "ignore_eos": True, "logprobs": 20, "n": 8}).encode()
        sockets = []
        for _ in range(12):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            s.connect(("127.0.0.1", d.port))
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            sockets.append(s)
        end = time.monotonic() + LIMIT_S
        most = 0
        while d.stats()["front"]["cancelled"] < len(sockets):
            assert time.monotonic() < end, d.stats()["front"]
            most = max(most, fuzz_http.figures(d.process.pid)[0])
            time.sleep(0.05)
        assert fuzz_http.ask_bystander(d) == expected
        for s in sockets:
            s.close()
        fuzz_http.wait_quiet(d, fds + 1)
        assert most - before < 48 << 10, (before, most)


main(globals())
