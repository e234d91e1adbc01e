"""Traces by OTLP/HTTP: the spans that a collector receives; collectors that refuse, hang, or are absent do not affect
requests."""
import http.server
import json
import os
import re
import socket
import socketserver
import ssl
import subprocess
import tempfile
import threading
import time

from weftd import LIMIT_S, Weftd, beside, keys_in, main, make_pair, program, seen, wait_until

FLAGS = ("--threads", "2", "--max-context", "2048", "--kv-pages", "256")
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

QUEUE = 2048  # of api/service/otlp.c


class Collector:
    """A collector that accepts spans; `answer` gives its reply: (status, headers), or None for no reply. Uses HTTPS
    with a @pair (make_pair())."""

    def __init__(self, path=None, pair=None):
        self.posts, self.answer, self.changed = [], lambda n: (200, {}), threading.Condition()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with collector.changed:
                    collector.posts.append((self.path, self.headers, body))
                    n = len(collector.posts)
                    collector.changed.notify_all()
                answer = collector.answer(n)
                if not answer:
                    time.sleep(60)
                    return
                self.send_response(answer[0])
                for name, value in answer[1].items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

            def address_string(self):
                return ""

        class Tcp(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True
            block_on_close = False

            def finish_request(self, request, client_address):
                if pair:
                    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                    context.load_cert_chain(*pair)
                    request = context.wrap_socket(request, server_side=True)
                super().finish_request(request, client_address)

            def handle_error(self, request, client_address):
                pass  # the client has refused the certificate

        class Unix(Tcp):
            address_family = socket.AF_UNIX

            def server_bind(self):
                socketserver.TCPServer.server_bind(self)

        self.server = Unix(path, Handler) if path else Tcp(("127.0.0.1", 0), Handler)
        self.endpoint = f"unix:{path}" if path else f"http{'s' if pair else ''}://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def wait(self, n, limit_s=LIMIT_S):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.posts) >= n, limit_s), f"{len(self.posts)} posts and not {n}"

    def spans(self):
        return [s for _, _, body in self.posts for s in spans_of(json.loads(body))]

    def wait_spans(self, condition):
        wait_until("spans", lambda: condition(self.spans()))
        return self.spans()


def spans_of(request):
    """Checks the shape of an ExportTraceServiceRequest in JSON. Returns its spans."""
    assert set(request) == {"resourceSpans"}, request
    found = []
    for resource in request["resourceSpans"]:
        assert set(resource) == {"resource", "scopeSpans"}
        attributes = attributes_of(resource["resource"])
        assert attributes["service.name"] == "weft" and attributes["service.version"] and attributes["process.pid"] > 0
        for scope in resource["scopeSpans"]:
            assert set(scope) == {"scope", "spans"} and scope["scope"]["name"] == "weft"
            found += scope["spans"]
    for s in found:
        assert set(s) <= {"traceId", "spanId", "parentSpanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano", "attributes",
                          "status"}, s
        assert re.fullmatch("[0-9a-f]{32}", s["traceId"]) and re.fullmatch("[0-9a-f]{16}", s["spanId"]), s
        assert re.fullmatch(r"\d{19}", s["startTimeUnixNano"]) and int(s["startTimeUnixNano"]) <= int(s["endTimeUnixNano"]), s
        assert abs(int(s["endTimeUnixNano"]) / 1e9 - time.time()) < 300
        attributes_of(s)
    assert len({s["spanId"] for s in found}) == len(found)
    return found


def attributes_of(what):
    values = {}
    for a in what.get("attributes", []):
        assert set(a) == {"key", "value"} and len(a["value"]) == 1, a
        (kind, value), = a["value"].items()
        assert kind in ("stringValue", "intValue", "arrayValue"), a
        if kind == "arrayValue":
            value = [v["stringValue"] for v in value["values"]]
        assert kind != "intValue" or isinstance(value, str), "64-bit numbers are strings in JSON of protobuf"
        assert a["key"] not in values
        values[a["key"]] = int(value) if kind == "intValue" else value
    return values


def ask(d, headers=None, path="/v1/completions", **more):
    return d.request("POST", path, {"prompt": "hello", "max_tokens": 8, "ignore_eos": True, **more}, headers)


def has_curl(d):
    with open(f"/proc/{d.process.pid}/maps") as file:
        return "libcurl" in file.read()


def test_a_daemon_without_a_collector_loads_no_libcurl():
    """The library and those that it needs take each start 30 ms."""
    with Weftd(*FLAGS) as d:
        assert ask(d)[0] == 200 and not has_curl(d)


def roots(spans):
    return [s for s in spans if s["kind"] == 2]


def counts(d):
    page = d.request("GET", "/metrics")[2]
    return [int(float(re.search(rf"^weft_traces_{name}\S* (\S+)$", page, re.M)[1])) for name in ("exported_total", "waiting", "dropped_total")]


def wait_counts(d, exported, dropped):
    wait_until(f"{exported} exported, {dropped} dropped", lambda: counts(d) == [exported, 0, dropped])


def test_a_request_is_a_span_with_its_phases():
    c = Collector()
    with tempfile.TemporaryDirectory() as folder, \
            Weftd(*FLAGS, "--otlp-endpoint", c.endpoint, "--api-keys", keys_in(folder)) as d:
        status, headers, _ = ask(d, {"Authorization": "Bearer ka", "traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"})
        assert status == 200
        assert has_curl(d), "the test of a daemon without it is blind"
        spans = c.wait_spans(lambda spans: len(spans) == 4)
        path, head, _ = c.posts[0]
        assert path == "/v1/traces" and head["Content-Type"] == "application/json", (path, head)
        root, = roots(spans)
        assert root["traceId"] == TRACE and root["parentSpanId"] == PARENT and "status" not in root, root
        a = attributes_of(root)
        model = "tiny-qwen3-q4_k_m-128k"
        assert root["name"] == "text_completion " + model
        assert a.pop("gen_ai.usage.input_tokens") > 0
        assert a == {
            "gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "weft", "gen_ai.request.model": model,
            "gen_ai.response.model": model, "gen_ai.response.finish_reasons": ["length"], "gen_ai.usage.cache_read.input_tokens": 0,
            "gen_ai.usage.output_tokens": 8, "server.address": socket.gethostname(), "server.port": d.port,
            "http.request.method": "POST", "http.route": "/v1/completions", "http.response.status_code": 200,
            "weft.request_id": "mine", "weft.tenant": "alice"}, a
        phases = [s for s in spans if s["kind"] == 1]
        assert [s["name"] for s in phases] == ["queue", "prefill", "decode"]
        for s in phases:
            assert s["traceId"] == TRACE and s["parentSpanId"] == root["spanId"]
        times = [t for s in phases for t in (s["startTimeUnixNano"], s["endTimeUnixNano"])]
        assert times == sorted(times) and times[1] == times[2] and times[3] == times[4], times
        assert times[0] == root["startTimeUnixNano"] and times[-1] == root["endTimeUnixNano"]
        wait_counts(d, 1, 0)


def test_errors_and_dialects_have_their_names():
    c = Collector()
    with tempfile.TemporaryDirectory() as folder, \
            Weftd(*FLAGS, "--otlp-endpoint", c.endpoint + "/custom/path", "--api-keys", keys_in(folder)) as d:
        key = {"Authorization": "Bearer ka"}
        chat = {"messages": [{"role": "user", "content": "secret words"}], "model": "tiny"}
        assert d.request("POST", "/v1/chat/completions", {**chat, "max_tokens": 4}, key)[0] == 200
        assert d.request("POST", "/v1/messages", {**chat, "max_tokens": 4}, key)[0] == 200
        assert d.request("POST", "/api/embed", {"input": "secret words", "model": "tiny"}, key)[0] == 200
        assert ask(d, key, temperature="hot")[0] == 400
        assert ask(d)[0] == 401
        assert d.request("POST", "/tokenize", {"prompt": "secret words"}, key)[0] == 200, "no span: it generates nothing"
        spans = roots(c.wait_spans(lambda spans: len(roots(spans)) == 5))
        seen = {(a["http.route"], a["gen_ai.operation.name"], a["http.response.status_code"], a.get("error.type"))
                for a in map(attributes_of, spans)}
        assert seen == {("/v1/chat/completions", "chat", 200, None), ("/v1/messages", "chat", 200, None),
                        ("/api/embed", "embeddings", 200, None), ("/v1/completions", "text_completion", 400, "invalid_value"),
                        ("/v1/completions", "text_completion", 401, "invalid_api_key")}, seen
        assert {path for path, _, _ in c.posts} == {"/custom/path"}
        assert not any(b"secret" in body for _, _, body in c.posts)
        assert len({s["traceId"] for s in spans}) == 5 and not any("parentSpanId" in s for s in spans)


def test_only_a_well_formed_parent_is_taken_over():
    c = Collector()
    wrong = ["", "00", f"00-{TRACE}-{PARENT}", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{PARENT}-01",
             f"00-{TRACE.upper()}-{PARENT}-01", f"00-{TRACE}-{PARENT}-01-more", f"00-{TRACE}-{PARENT}-0g", f"0x-{TRACE}-{PARENT}-01",
             f"00-{TRACE}-{PARENT}-01x", f"00_{TRACE}-{PARENT}-01"]
    with Weftd(*FLAGS, "--otlp-endpoint", c.endpoint) as d:
        for parent in wrong:
            assert ask(d, {"traceparent": parent})[0] == 200
        assert ask(d, {"traceparent": f"00-{TRACE}-{PARENT}-00"})[0] == 200, "not sampled: no span"
        assert ask(d, {"traceparent": f"cc-{TRACE}-{PARENT}-03-what-comes"})[0] == 200
        found = roots(c.wait_spans(lambda spans: len(roots(spans)) > len(wrong)))
        assert [s["traceId"] == TRACE for s in found] == [False] * len(wrong) + [True], found
        assert found[-1]["parentSpanId"] == PARENT


@beside
def test_a_collector_that_asks_for_patience_gets_the_same_spans_again():
    c = Collector()
    c.answer = lambda n: [(429, {"Retry-After": "1"}), (503, {}), (200, {})][min(n, 3) - 1]
    with Weftd(*FLAGS, "--otlp-endpoint", c.endpoint) as d:
        assert ask(d)[0] == 200
        c.wait(3)
        wait_counts(d, 1, 0)
        traces = [[s["traceId"] for s in spans_of(json.loads(body))] for _, _, body in c.posts]
        assert traces[0] == traces[1] == traces[2], traces
        c.answer = lambda n: (400, {})
        assert ask(d)[0] == 200
        wait_counts(d, 1, 1)
        time.sleep(1.5)
        assert len(c.posts) == 4, "what was refused is not sent again"


def test_a_collector_at_a_unix_socket_and_the_last_spans_at_a_stop():
    with tempfile.TemporaryDirectory() as folder:
        c = Collector(os.path.join(folder, "collector.sock"))
        with Weftd(*FLAGS, "--otlp-endpoint", c.endpoint) as d:
            assert ask(d)[0] == 200
        assert len(roots(c.spans())) == 1, "the stop has not waited for the batch"


def test_a_collector_is_reached_by_https():
    with tempfile.TemporaryDirectory() as folder:
        pair = make_pair(folder)
        for host in ("127.0.0.1", "localhost"):
            c = Collector(pair=pair)
            with Weftd(*FLAGS, "--otlp-endpoint", c.endpoint.replace("127.0.0.1", host), env={"SSL_CERT_FILE": pair[0]}) as d:
                assert ask(d)[0] == 200
                wait_counts(d, 1, 0)
                assert len(roots(c.spans())) == 1 and c.posts[0][1]["Host"] == host
                assert ask(d)[0] == 200
                assert "traces taken" not in d.log, d.log


def test_a_collector_whose_certificate_is_wrong_gets_nothing():
    """A self-signed certificate, one of another host, and none at all. The reason is logged once."""
    with tempfile.TemporaryDirectory() as folder:
        other = os.path.join(folder, "other")
        os.mkdir(other)
        right, wrong = make_pair(folder), make_pair(other, names="DNS:other.invalid")
        for pair, trusted, why in ((right, wrong, "its certificate: self-signed"), (wrong, wrong, "its certificate: SSL: no alternative certificate subject name"),
                                   (None, right, "no answer")):
            c = Collector(pair=pair)
            with Weftd(*FLAGS, "--otlp-endpoint", c.endpoint.replace("http:", "https:"), env={"SSL_CERT_FILE": trusted[0]}) as d:
                n, end = 0, time.monotonic() + LIMIT_S
                while f'traces taken=no why="{why}' not in d.log:
                    assert time.monotonic() < end, (why, d.log)
                    assert ask(d)[0] == 200
                    n += 1
                    time.sleep(0.1)
                assert ask(d)[0] == 200
                assert counts(d) == [0, n + 1, 0] and not c.posts, (counts(d), c.posts)
                assert d.log.count("traces taken") == 1, d.log


def ask_many(d, n):
    """Sends requests that are refused, which end as fast as possible."""
    request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"prompt\": 1.5}"
    with socket.create_connection(("127.0.0.1", d.port)) as s:
        for _ in range(n):
            s.sendall(request)
            assert s.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_no_request_waits_for_a_collector():
    """The collector is absent, or accepts the connection and never answers. The daemon stops in time."""
    hanging = Collector()
    hanging.answer = lambda n: None
    gone = socket.socket()
    gone.bind(("127.0.0.1", 0))  # a port that does not listen
    backlog = socket.socket()
    backlog.bind(("127.0.0.1", 0))
    backlog.listen(0)  # a listener that does not accept
    for endpoint in (hanging.endpoint, f"http://127.0.0.1:{gone.getsockname()[1]}", f"http://127.0.0.1:{backlog.getsockname()[1]}",
                     "http://no.such.host.invalid", "unix:/no/such/socket"):
        with Weftd(*FLAGS, "--otlp-endpoint", endpoint) as d:
            assert ask(d)[0] == 200
            if endpoint == hanging.endpoint:
                hanging.wait(1)
            ask_many(d, 20 if endpoint != hanging.endpoint else QUEUE + 50)
            assert counts(d) == ([0, QUEUE + 1, 50] if endpoint == hanging.endpoint else [0, 21, 0]), (endpoint, counts(d))
            begin = time.monotonic()
            d.process.terminate()
            d.process.wait(LIMIT_S)
            took = time.monotonic() - begin
            assert d.process.returncode == 0, endpoint
            seen(took < 5, endpoint, took)


def test_an_endpoint_that_is_none_is_refused_at_the_start():
    for wrong in ("https://", "https:/localhost:4318", "ftp://localhost:4318", "localhost:4318", "http://", "http://h:port", "http://h:", "http://h:999999", "unix:relative",
                  "http://a b", "unix:/" + "x" * 200):
        done = subprocess.run([program("weftd"), "--model", __file__, "--otlp-endpoint", wrong], capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 78 and "otlp-endpoint: must be http[s]://" in done.stderr, (wrong, done)


if __name__ == "__main__":
    main(globals())
