"""What a daemon is asked while a call of it fails: each scene returns a list of outcomes, (kind, value).

    ok       the whole answer, without what differs from run to run
    status   an error's status
    error    a stream that ended with an error event; the value is what came before
    cut      a connection that was closed in the middle
    hang     no answer in time
"""
import http.client
import itertools
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import time

from weftd import UnixConnection, parallel, program, random_tokens

LIMIT_S = 60
VOLATILE = {"id", "created", "created_at", "completed_at", "timings", "total_duration", "load_duration", "prompt_eval_duration", "eval_duration",
            "prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens", "input_tokens", "service_tier", "tokens_cached",
            "tokens_evaluated", "prompt_eval_count", "item_id", "call_id", "metrics", "system_fingerprint", "mtime"}
TEXT = "some text to go on with"
CHAT = [{"role": "system", "content": "You help."}, {"role": "user", "content": TEXT}]
FIXED = {"temperature": 1, "seed": 3}
DIGEST = {**FIXED, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True, "logits_digest": True}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string", "maxLength": 8}}, "required": ["at"]}}}]
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer ka"}
counter = itertools.count()


def stable(value):
    if isinstance(value, dict):
        return {k: stable(v) for k, v in value.items() if k not in VOLATILE}
    return [stable(v) for v in value] if isinstance(value, list) else value


def judge(answer):
    """The outcome of a function that talks HTTP."""
    try:
        return answer()
    except (TimeoutError, socket.timeout):
        return "hang", None
    except (OSError, http.client.HTTPException, EOFError) as error:
        return "cut", repr(error)


def exchange(connection, method, path, body=None, whole=True):
    connection.request(method, path, body and json.dumps(body), HEADERS)
    response = connection.getresponse()
    data = response.read()
    connection.close()
    if response.status >= 400:
        return "status", (response.status, data[:300].decode(errors="replace"))
    if not whole:
        return "ok", response.status
    return "ok", (response.status, stable(json.loads(data)) if "json" in response.getheader("Content-Type", "") else data)


def ask(method, path, body=None, whole=True):
    """A scene of one request."""
    return lambda d: [judge(lambda: exchange(d.connect(LIMIT_S), method, path, body() if callable(body) else body, whole))]


def read_stream(d, path, body, leave_after=None):
    """(tokens, digests, text) of a stream."""
    connection, tokens, digests, text, n = d.connect(LIMIT_S), [], [], "", 0
    try:
        connection.request("POST", path, json.dumps({"stream": True, **body}), HEADERS)
        response = connection.getresponse()
        if response.status != 200:
            return "status", (response.status, response.read()[:300].decode(errors="replace"))
        for line in response:
            line = line.decode().strip()
            if line == "data: [DONE]":
                return "ok", (tokens, digests, text)
            if not line.startswith("data: "):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                return "error", (tokens, digests, text)
            for c in event["choices"]:
                tokens += c.get("token_ids") or []
                digests += c.get("digests") or []
                text += c.get("text") or (c.get("delta") or {}).get("content") or ""
            n += 1
            if n == leave_after:
                return "ok", "left"
        return "cut", "no end"
    except (TimeoutError, socket.timeout):
        return "hang", None
    except (OSError, http.client.HTTPException) as error:
        return "cut", repr(error)
    finally:
        connection.close()


def stream(path, body):
    return lambda d: [read_stream(d, path, body)]


def fresh_schema():
    """One that nothing has compiled before."""
    n = next(counter)
    return {"type": "object", "properties": {"a": {"type": "string", "pattern": f"^[a-z]{{1,4}}-{n}$"}, "b": {"enum": [1, None, "x"]}}, "required": ["a", "b"]}


def grammar(d):
    body = {"prompt": TEXT, **FIXED, "max_tokens": 60, "guided_json": fresh_schema()}
    kind, value = ask("POST", "/v1/completions", body)(d)[0]
    if kind == "ok":
        got = json.loads(value[1]["choices"][0]["text"])
        value = got["a"].count("-") == 1 and got["b"] in (1, None, "x")
    return [(kind, value)]


def stored(d):
    """A response is stored, continued, read; both are removed."""
    path, body, names, out = "/v1/responses", {**FIXED, "max_output_tokens": 4}, [], []

    def one(method, where, value=None):
        c = d.connect(LIMIT_S)
        c.request(method, where, value and json.dumps(value), HEADERS)
        r = c.getresponse()
        data = r.read()
        c.close()
        if r.status != 200:
            return "status", (r.status, data[:300].decode())
        if method == "POST":
            names.append(json.loads(data)["id"])
        return "ok", None
    out.append(judge(lambda: one("POST", path, {"input": TEXT, **body})))
    for method, what, value in (("POST", "", {"input": "more", **body}), ("GET", "/%s", None), ("GET", "/%s/input_items", None)):
        if names:
            out.append(judge(lambda: one(method, path + (what % names[0] if what else ""), value and {**value, "previous_response_id": names[0]})))
    return out + [judge(lambda n=n: one("DELETE", f"{path}/{n}")) for n in names]


def cancel(d):
    return [read_stream(d, "/v1/completions", {"prompt": TEXT, **DIGEST, "max_tokens": 1500}, leave_after=2)]


def over_tls(d):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return [judge(lambda: exchange(http.client.HTTPSConnection("127.0.0.1", d.tls_port, timeout=LIMIT_S, context=context), "POST", "/v1/completions",
                                   {"prompt": TEXT, **DIGEST}))]


def over_unix(d):
    return [judge(lambda: exchange(UnixConnection(d.unix, LIMIT_S), "POST", "/v1/completions", {"prompt": TEXT, **DIGEST}))]


def pipelined(d):
    def run():
        s = socket.create_connection(("127.0.0.1", d.port), LIMIT_S)
        s.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ka\r\n\r\n" * 7 + b"GET /health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ka\r\nConnection: close\r\n\r\n")
        data = b""
        while piece := s.recv(65536):
            data += piece
        s.close()
        n = data.count(b"HTTP/1.1 200")
        return ("ok", n) if n == 8 else ("status", (503, data[-200:].decode())) if b"HTTP/1.1 503" in data else ("cut", n)
    return [judge(run)]


def crowd(d):
    """More than the pages hold: some are preempted, and go on with the same tokens."""
    return parallel([lambda i=i: stream("/v1/completions", {"prompt": random_tokens(500 + i, 400), **DIGEST, "max_tokens": 300})(d)[0] for i in range(4)])


def long_prompts(d):
    """Prefixes that take turns in the pages: they go to host memory and to the disk, and come back."""
    out = []
    for i in (0, 1, 2, 3, 0, 1):
        out += ask("POST", "/v1/completions", {"prompt": random_tokens(700 + i, 1200), **DIGEST})(d)
    return out


def long_new_prompt(d):
    prompt = random_tokens(1000 + next(counter), 1200)
    return [(k, k == "ok" or v) for k, v in ask("POST", "/v1/completions", {"prompt": prompt, **DIGEST})(d)]


def reload(d):
    """One by a signal and two by requests, which are refused with 409 while another one reads its files: the signal's may
    come behind the first request's, but not behind the second."""
    os.kill(d.process.pid, signal.SIGHUP)
    return [reload_when_free(d), reload_when_free(d)]


def reload_when_free(d):
    end = time.monotonic() + LIMIT_S
    while True:
        found = judge(lambda: exchange(UnixConnection(d.admin, LIMIT_S), "POST", "/reload", whole=False))
        if found[0] != "status" or found[1][0] != 409 or time.monotonic() > end:
            return found
        time.sleep(0.01)


def admin(*paths, method="GET"):
    return lambda d: [judge(lambda: exchange(UnixConnection(d.admin, LIMIT_S), method, p, whole=False)) for p in paths]


def new_worker(d):
    """The worker is killed in the middle of a stream, which goes on."""
    body, got = {"prompt": TEXT, **DIGEST, "max_tokens": 400}, []

    def kill():
        time.sleep(0.005)
        d.kill_worker(d.worker)
    parallel([lambda: got.append(stream("/v1/completions", body)(d)[0]), kill])
    return got


def preset(d):
    """A client makes a preset of the model and removes it."""
    return [o for method, path, body in (("POST", "/api/create", {"model": "mine", "from": d.model_name, "system": "Be brief.", "stream": False}),
                                         ("DELETE", "/api/delete", {"model": "mine"})) for o in ask(method, path, body, whole=False)(d)]


def is_swapping(d):
    try:
        status, value = d.admin_request("GET", "/models")
    except (OSError, ValueError, http.client.HTTPException):
        return True
    return status != 200 or any(m.get("swap") in ("next", "old") or m["state"] == "loading" for m in value["models"])


def swap(d):
    """The model is replaced by one with the same weights, while it serves."""
    out = [judge(lambda: exchange(UnixConnection(d.admin, LIMIT_S), "POST", f"/models/{d.model_name}/swap?file={d.model_path}", whole=False))]
    end = time.monotonic() + LIMIT_S
    while is_swapping(d):
        if time.monotonic() > end:
            return out + [("hang", "swap")]
        time.sleep(0.01)
    return out


def unload_and_load(d):
    out = [judge(lambda: exchange(UnixConnection(d.admin, LIMIT_S), "POST", f"/models/{d.model_name}/unload", whole=False))]
    return out + ask("POST", "/v1/completions", {"prompt": TEXT, **DIGEST})(d)


def ctl(d):
    r = subprocess.run([program("weftctl"), "--socket", d.admin, "dump", os.path.join(d.folder.name, "dump")], capture_output=True, text=True, timeout=LIMIT_S)
    pathlib.Path(d.folder.name, "dump").unlink(missing_ok=True)
    return [("ok", 0) if r.returncode == 0 else ("status", (503, r.stderr[:300]))]


# What an answer may also say: a response of which nothing could be kept, an action of the operator that failed with its reason.
ALSO = {"stored": (404,), "reload": (400,), "preset": (400, 404, 500), "swap": (400,), "load": (400,), "dump": (400,)}

# The worker's counters that say that a scene did what it is for.
WITNESS = {"preempt": "preemptions", "offload": "host_loaded_tokens", "disk": "disk_saved_tokens", "grammar": "masks", "new worker": "deaths"}

# Of a daemon that stands. Each place that several reach is tried in the first of them.
STANDING = {
    "health": ask("GET", "/health"),
    "models": ask("GET", "/v1/models"),
    "metrics": ask("GET", "/metrics", whole=False),
    "page": ask("GET", "/"),
    "tokenize": ask("POST", "/tokenize", {"prompt": TEXT}),
    "complete": ask("POST", "/v1/completions", {"prompt": TEXT, **DIGEST, "n": 2, "logprobs": 2}),
    "chat": ask("POST", "/v1/chat/completions", {"messages": CHAT, **FIXED, "max_tokens": 6}),
    "tools": ask("POST", "/v1/chat/completions", {"messages": CHAT, **FIXED, "max_tokens": 60, "tools": TOOLS, "tool_choice": "required"}),
    "stream": stream("/v1/completions", {"prompt": TEXT, **DIGEST, "max_tokens": 40}),
    "long stream": stream("/v1/completions", {"prompt": TEXT, **DIGEST, "max_tokens": 1500}),
    "chat stream": stream("/v1/chat/completions", {"messages": CHAT, **FIXED, "max_tokens": 40, "ignore_eos": True}),
    "grammar": grammar,
    "regex": ask("POST", "/v1/completions", lambda: {"prompt": TEXT, **FIXED, "max_tokens": 30, "guided_regex": "(yes|no) [a-f]{5}", "cache_salt": str(next(counter))}),
    "embeddings": ask("POST", "/v1/embeddings", {"input": [TEXT, "b"]}),
    "stored": stored,
    "messages": ask("POST", "/v1/messages", {"model": "tiny", "messages": CHAT[1:], "temperature": 1, "max_tokens": 4}, whole=False),
    "ollama": ask("POST", "/api/chat", {"model": "tiny", "messages": CHAT, "stream": False, "options": {"num_predict": 4, **FIXED}}),
    "llama-server": ask("POST", "/completion", {"prompt": TEXT, "n_predict": 4, **FIXED}, whole=False),
    "large body": ask("POST", "/v1/completions", {"prompt": TEXT, **DIGEST, "padding": "x" * 20000}),
    "wrong body": lambda d: [("ok", 400) if k == "status" and v[0] == 400 else (k, v) for k, v in ask("POST", "/v1/completions", {"prompt": 3})(d)],
    "tls": over_tls,
    "unix": over_unix,
    "pipelined": pipelined,
    "cancel": cancel,
    "preempt": crowd,
    "offload": long_prompts,
    "disk": long_new_prompt,
    "reload": reload,
    "admin": admin("/stats", "/requests", "/tenants", "/health", "/models", "/flight"),
    "dump": ctl,
    "preset": preset,
    "new worker": new_worker,
    "swap": swap,
    "load": unload_and_load,
}
