"""A router of another project in front of two daemons: it serves 1,000 streams while the worker of one daemon is
killed, then the daemon. WEFT_TEST_ROUTER is a command with the options of the vLLM production stack's router; without
it the test is skipped."""
import collections
import http.client
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import threading
import time

from weftd import LIMIT_S, Skip, Weftd, free_port, main, tiny_model

N, WORKERS, TOKENS = int(os.environ.get("WEFT_TEST_REQUESTS", "1000")), 8, 48
FLAGS = ("--max-context", 2048, "--model-name", "tiny")


def metric(d, name):
    return sum(float(v) for v in re.findall(rf"^{name}\S* (\S+)$", d.request("GET", "/metrics")[2], re.M))


class Router:
    def __init__(self, daemons):
        if not os.environ.get("WEFT_TEST_ROUTER"):
            raise Skip("WEFT_TEST_ROUTER is not set")
        self.port = free_port()
        self.process = subprocess.Popen(
            [*shlex.split(os.environ["WEFT_TEST_ROUTER"]), "--host", "127.0.0.1", "--port", str(self.port),
             "--service-discovery", "static", "--static-backends", ",".join(d.url() for d in daemons),
             "--static-models", ",".join("tiny" for _ in daemons), "--static-backend-health-checks",
             "--static-model-types", ",".join("completion" for _ in daemons),
             "--max-instance-failover-reroute-attempts", "1", "--routing-logic", "session", "--session-key", "x-session-id",
             "--engine-stats-interval", "1"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        end = time.monotonic() + 240
        while self.ask("ready", 0)[0] != "whole":
            assert self.process.poll() is None and time.monotonic() < end, "the router does not serve"
            time.sleep(0.5)
        return self

    def __exit__(self, *error):
        self.process.terminate()
        self.process.wait(LIMIT_S)

    def ask(self, session, seed):
        """Returns (status that the client received, text) of one stream."""
        text, ended = "", False
        body = {"model": "tiny", "prompt": [30 + seed % 50] * 40, "max_tokens": TOKENS, "temperature": 1, "seed": seed,
                "ignore_eos": True, "stream": True}
        try:
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
            c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", "x-session-id": session})
            r = c.getresponse()
            if r.status != 200:
                return f"status {r.status}", text
            for line in r:
                if line.startswith(b"data: [DONE]"):
                    ended = True
                elif line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        return "error in the stream", text
                    text += event["choices"][0]["text"] if event.get("choices") else ""
        except (OSError, http.client.HTTPException, ValueError):
            return ("cut" if text else "no answer"), text
        return ("whole" if ended else "cut"), text


def test_a_thousand_requests_with_a_dead_worker_and_a_dead_daemon():
    """Each complete text equals that of an undisturbed daemon. A killed worker breaks no stream; a killed daemon breaks
    those that it was sending."""
    model = tiny_model()
    with Weftd(*FLAGS, model=model) as a:
        b = Weftd(*FLAGS, model=model)
        try:
            with Router([a, b]) as router:
                seen, lock, phase = [], threading.Lock(), ["quiet"]
                counter = itertools.count()

                def client(i):
                    while (n := next(counter)) < N:
                        began = phase[0]
                        result = router.ask(f"agent-{n % 40}", n)
                        with lock:
                            seen.append((began, n, *result, time.monotonic()))

                threads = [threading.Thread(target=client, args=(i,)) for i in range(WORKERS)]
                for t in threads:
                    t.start()
                for share, name in ((0.3, "worker"), (0.6, "daemon")):
                    while len(seen) < share * N:
                        time.sleep(0.02)
                    phase[0] = name
                    if name == "worker":
                        assert b.kill_worker()
                    else:
                        while metric(b, "vllm:num_requests_running") < 2:  # interrupted streams
                            assert len(seen) < N, "the router sends nothing to it any more"
                            time.sleep(0.005)
                        served = [metric(d, "weft_http_requests_total") for d in (a, b)]
                        killed = time.monotonic()
                        os.kill(b.process.pid, signal.SIGKILL)
                for t in threads:
                    t.join()
            lost = [s for s in seen if s[2] != "whole"]
            print(f"# {N - len(lost)} whole, lost {collections.Counter(s[2] for s in lost)}; begun {collections.Counter(s[0] for s in seen)}")
            assert len(seen) == N and min(served) > N / 20, (len(seen), served)
            # A stream of the killed daemon cannot be restarted. The router sends other requests to the remaining one.
            assert all(ended >= killed for *_, ended in lost) and len(lost) <= WORKERS, lost
            assert sum(s[0] == "daemon" and s[2] == "whole" for s in seen) > 0.1 * N
            for _, n, what, text, _ in sorted(seen)[::37]:
                if what == "whole":
                    should = a.complete([30 + n % 50] * 40, max_tokens=TOKENS, temperature=1, seed=n, ignore_eos=True)["text"]
                    assert text == should, (n, text, should)
        finally:
            b.process.kill()
            b.process.wait()
            b.folder.cleanup()


main(globals())
