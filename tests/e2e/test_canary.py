"""Prompts and answers are secret: unique strings are sent in every dialect and searched for in every byte that the
daemon stores or shows to others: log, metrics, admin socket, flight recordings, disk tier, command lines, core
dumps."""
import base64
import glob
import itertools
import json
import os
import re
import resource
import signal
import stat
import struct
import subprocess
import tempfile
import urllib.parse

from test_traces import Collector
from weftd import BACKEND, LIMIT_S, Weftd, main, parallel, program, wait_until

FLAGS = ("--max-context", "2048", "--kv-pages", "256", "--host-kv-memory", "64M", "--threads", "2", "--log-level", "debug",
         "--log-requests", "0", "--max-body", "256K")
# Prefix of every secret; the name of the field follows. Each base64 form has 8 characters, since pages contain 4 of
# them by chance.
MARK = "kQ7vZxW3b"


class Secrets:
    """Creates the secrets and records them, so that they can be searched for."""

    def __init__(self):
        self.number = itertools.count()
        self.tokens = []  # lists of ids

    def __call__(self, field):
        return f"{MARK}{field}{next(self.number):04d}{MARK}"

    def found_in(self, data):
        """Returns the secrets found in these bytes, with their position; "" if none is."""
        folded = data.lower()
        for form in self.forms():
            at = folded.find(form.lower())
            if at >= 0:
                return repr(data[max(at - 60, 0):at + 60])
        for ids in self.tokens:
            for at in range(0, len(ids) - 5, 3):
                some = ids[at:at + 6]
                for form in (*(struct.pack(f"<6{t}", *some) for t in "HIQ"), json.dumps(some)[1:-1].encode(),
                             json.dumps(some, separators=(",", ":"))[1:-1].encode()):
                    if form in data:
                        return f"tokens {some} as {form!r}"
        return ""

    @staticmethod
    def forms():
        """Returns the encodings of the mark: plain, escaped, UTF-16, hexadecimal, and base64 at each of three
        offsets."""
        mark = MARK.encode()
        yield mark
        yield mark.hex().encode()
        yield MARK.encode("utf-16-le")
        yield "".join(f"%{c:02x}" for c in mark).encode()
        for shift in range(3):
            coded = base64.b64encode(b"\0" * shift + mark)
            yield coded[4 if shift else 0:len(coded) // 4 * 4 - (0 if (len(mark) + shift) % 3 == 0 else 4)]


def tool(s):
    return {"name": s("toolname"), "description": s("tooldescription"),
            "parameters": {"type": "object", "properties": {s("toolfield"): {"enum": [s("toolenum")]}}}}


def chat_messages(s):
    call = {"id": s("callid"), "type": "function",
            "function": {"name": s("callname"), "arguments": json.dumps({s("argumentname"): s("argument")})}}
    return [{"role": "system", "content": s("system")}, {"role": "user", "content": s("prompt"), "name": s("username")},
            {"role": "assistant", "content": s("assistant"), "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": s("toolresult")}, {"role": "user", "content": s("prompt")}]


def image_of(s):
    return "data:image/png;base64," + base64.b64encode(s("image").encode()).decode()


def bodies(s):
    """Returns (path, body) of all ways to send text in each dialect, and of requests that are refused."""
    short = {"max_tokens": 12, "ignore_eos": True, "user": s("user"), "metadata": {s("metakey"): s("metadata")}}
    text = s("prompt")
    yield "/v1/chat/completions", {"messages": chat_messages(s), "tools": [{"type": "function", "function": tool(s)}],
                                   "prompt_cache_key": s("cachekey"), "safety_identifier": s("safety"), **short}
    yield "/v1/chat/completions", {"messages": [{"role": "user", "content": [
        {"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": image_of(s)}}]}], **short}
    yield "/v1/chat/completions", {"messages": [{"role": "user", "content": [
        {"type": "file", "file": {"filename": s("filename"), "file_data": image_of(s)}}]}], **short}
    yield "/v1/chat/completions", {"messages": [{"role": s("role"), "content": text}], **short}
    yield "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **short, "response_format": {
        "type": "json_schema", "json_schema": {"name": s("schema"), "schema": {"$ref": "#/" + s("ref")}}}}
    yield "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **short, "response_format": {
        "type": "json_schema", "json_schema": {"name": s("schema"), "schema": {"enum": [s("enum"), s("enum")]}}}}
    yield "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "temperature": s("temperature")}
    yield "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "chat_template_kwargs": {s("kwarg"): s("kwarg")}, **short}
    yield "/v1/chat/completions/render", {"messages": chat_messages(s)}
    yield "/v1/completions", {"prompt": text, "stop": [s("stop")], "suffix": s("suffix"), **short}
    yield "/v1/completions", {"prompt": text, "stop": [s("stop")], "return_token_ids": True, **short}
    yield "/v1/completions", {"prompt": text * 400, **short}
    yield "/v1/completions", {"prompt": text * 20000, **short}
    yield "/v1/completions", {"prompt": text, "model": s("model"), **short}
    for kind, value in (("regex", s("regex") + "["), ("regex", s("regex")), ("grammar", "root ::= " + s("rule")),
                        ("choice", [s("choice"), s("choice")])):
        yield "/v1/completions", {"prompt": text, "guided_" + kind: value, **short}
    yield "/v1/embeddings", {"input": [text, s("input")]}
    yield "/v1/rerank", {"query": s("query"), "documents": [s("document")]}
    yield "/v1/responses", {"instructions": s("system"), "input": text, "max_output_tokens": 16, "user": s("user"),
                            "tools": [{"type": "function", **tool(s)}], "metadata": {s("metakey"): s("metadata")}}
    yield "/v1/responses", {"input": [{"role": "user", "content": [
        {"type": "input_text", "text": text}, {"type": "input_file", "filename": s("filename"), "file_data": image_of(s)}]}]}
    yield "/v1/responses", {"input": text, "previous_response_id": s("previous")}
    yield "/v1/messages", {"model": "tiny", "system": s("system"), "max_tokens": 12, "metadata": {"user_id": s("user")}, "messages": [
        {"role": "user", "content": text}, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "toolu_1", "name": s("callname"), "input": {s("argumentname"): s("argument")}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": s("toolresult")}]}]}
    yield "/v1/messages", {"model": "tiny", "max_tokens": 12, "messages": [{"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image_of(s)}}]}]}
    yield "/v1/messages/count_tokens", {"model": "tiny", "messages": [{"role": "user", "content": text}]}
    yield "/api/chat", {"model": "tiny", "messages": [{"role": "user", "content": text, "images": [image_of(s)]}]}
    yield "/api/chat", {"model": "tiny", "messages": [{"role": "system", "content": s("system")}, {"role": "user", "content": text}],
                        "options": {"num_predict": 12}}
    yield "/api/generate", {"model": "tiny", "prompt": text, "system": s("system"), "template": s("template"), "options": {"num_predict": 12}}
    yield "/api/show", {"model": s("model")}
    yield "/api/pull", {"model": s("model")}
    yield "/completion", {"prompt": text, "n_predict": 12, "grammar": s("grammar")}
    yield "/completion", {"prompt": text, "n_predict": 12, "stop": [s("stop")]}
    yield "/infill", {"input_prefix": s("prefix"), "input_suffix": s("suffix"), "n_predict": 12,
                      "input_extra": [{"filename": s("filename"), "text": text}]}
    yield "/apply-template", {"messages": chat_messages(s)}
    yield "/tokenize", {"content": text}
    yield "/v1/nothing/" + s("path"), {}
    yield "/v1/completions?key=" + s("query"), {"prompt": text, **short}


def head_of(s, key):
    return {"Authorization": "Bearer " + key, "X-Secret": s("header"), "Cookie": s("cookie"), "X-Session-Id": s("session"),
            "User-Agent": s("agent"), "X-Forwarded-For": s("forwarded")}


def say_everything(d, s, key):
    """Sends each request complete, as a stream, with a truncated body, and with a wrong key."""
    statuses = set()
    for path, body in bodies(s):
        for variant in ({}, {"stream": True}):
            status, _, answer = d.request("POST", path, {**body, **variant}, head_of(s, key))
            statuses.add((path.split("?")[0], status))
            choice = answer["choices"][0] if isinstance(answer, dict) and "choices" in answer else {}
            s.tokens += [ids for place in (choice, answer) if isinstance(place, dict) for ids in (place.get("prompt_token_ids"), place.get("token_ids")) if ids]
        assert d.request("POST", path, json.dumps(body)[:-1], head_of(s, key))[0] in (400, 404, 413)
        assert d.request("POST", path, body, head_of(s, s("wrongkey")))[0] in (401, 404)
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/api/chat", "/completion", "/tokenize",
                 "/v1/messages/count_tokens"):
        assert (path, 200) in statuses, (path, sorted(statuses))
    raw = d.connect()
    raw.connect()
    raw.sock.sendall(f"{s('method')} /{s('target')} HTTP/9.9\r\n{s('name')}: {s('value')}\r\n\r\n".encode())
    raw.sock.recv(4096)
    raw.close()


def leave(d, s, key):
    """Disconnects in the middle of a stream."""
    c = d.connect()
    c.request("POST", "/v1/completions", json.dumps({"prompt": s("prompt"), "max_tokens": 1500, "ignore_eos": True, "stream": True}),
              {**head_of(s, key), "Content-Type": "application/json"})
    c.getresponse().readline()
    c.sock.close()
    c.close()


def kill_in_a_stream(d, s, key, signum):
    """Kills the worker while a request runs; the stream must continue. Returns what the admin socket and other clients
    see meanwhile."""
    shown = []
    c = d.connect()
    c.request("POST", "/v1/completions", json.dumps({"prompt": s("prompt"), "max_tokens": 600, "ignore_eos": True, "stream": True}),
              {**head_of(s, key), "Content-Type": "application/json"})
    stream = c.getresponse()
    assert stream.status == 200 and stream.readline()
    shown += views(d)
    os.kill(d.worker_pid(), signum)
    assert b"[DONE]" in stream.read()
    c.close()
    return shown


def weftctl(d, *args):
    """What it prints, stderr too."""
    return subprocess.run([program("weftctl"), "--socket", d.admin, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S).stdout


def views(d):
    """Returns (name, bytes) of everything that is shown to clients which did not send the secrets."""
    shown = []
    for path in ("/metrics", "/health", "/version", "/v1/models", "/slots", "/props", "/api/ps", "/api/tags", "/v1/requests"):
        for key in ("", "other-key-of-bob"):
            c = d.connect()
            c.request("GET", path, headers={"Authorization": "Bearer " + key} if key else {})
            shown.append((f"GET {path} by another", c.getresponse().read()))
            c.close()
    ids = [r["request_id"] for r in d.admin_request("GET", "/requests")[1].get("requests", []) if "request_id" in r]
    for path in ("/stats", "/requests", "/tenants", "/health", "/models", *(f"/requests/{i}/why" for i in ids)):
        shown.append((f"admin {path}", json.dumps(d.admin_request("GET", path)[1]).encode()))
    for args in (("stats",), ("requests",), ("tenants",), ("models",), ("ps",)):
        shown.append(("weftctl " + args[0], weftctl(d, *args)))
    path = os.path.join(d.folder.name, "dump.flight")
    weftctl(d, "dump", path)
    with open(path, "rb") as file:
        shown.append(("weftctl dump", file.read()))
    for pid in (d.process.pid, d.worker_pid()):
        for name in ("cmdline", "environ"):
            with open(f"/proc/{pid}/{name}", "rb") as file:
                shown.append((f"/proc/{pid}/{name}", file.read()))
    return shown


def check(s, shown):
    for name, data in shown:
        # The log lines of requests name the client and the path, and contain no other part of the request.
        found = s.found_in(re.sub(rb' (agent|path)=("[^"]*"|\S+)', b"", data) if name == "log" else data)
        assert not found, f"{name} shows what a client sent: {found}"


def check_files(s, folder, may_have_tokens=()):
    for path in glob.glob(folder + "/**", recursive=True):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                data = file.read()
            had, s.tokens = s.tokens, [] if os.path.basename(path) in may_have_tokens else s.tokens
            found = s.found_in(data)
            s.tokens = had
            assert not found, f"{path} has what a client sent: {found}"


def test_the_search_finds_what_it_looks_for():
    s = Secrets()
    word = s("word")
    s.tokens = [list(range(300, 320))]
    for data in (word, json.dumps({"a": word}), word.upper(), word.encode().hex(), urllib.parse.quote(word),
                 "".join(f"%{c:02X}" for c in word.encode()), "[1, 300, 301, 302, 303, 304, 305, 306, 307, 308]"):
        assert s.found_in(data.encode()), data
    for shift in range(4):
        assert s.found_in(base64.b64encode(b"x" * shift + word.encode())), shift
    assert s.found_in(b"\0" * 7 + struct.pack("<10I", *range(303, 313)))
    assert not s.found_in(b"nothing of it: " + MARK[:-1].encode() + struct.pack("<10I", *range(10)))


def unlimited_cores(folder):
    """Returns options of a process that may write cores, in a folder of its own, where relative core names end."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    return {"cwd": folder, "preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))}


def test_no_secret_leaves_the_daemon():
    s = Secrets()
    key = s("apikey")
    collector = Collector()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("faults", "disk", "cwd"):
            os.mkdir(os.path.join(folder, name), 0o700)
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.write(f"alice:{key}\nbob:other-key-of-bob\n")
        flags = ("--api-keys", keys, "--fault-dir", folder + "/faults", "--otlp-endpoint", collector.endpoint)
        if BACKEND != "reference":
            flags += ("--kv-disk", folder + "/disk", "--kv-disk-size", "16M")
        with Weftd(*FLAGS, *flags, popen=unlimited_cores(folder + "/cwd")) as d:
            say_everything(d, s, key)
            assert len(s.tokens) >= 2, "no tokens to look for"
            for _ in range(4):
                leave(d, s, key)
            parallel([lambda: leave(d, s, key), lambda: check(s, views(d))])
            for signum in (signal.SIGSEGV, signal.SIGABRT):
                check(s, kill_in_a_stream(d, s, key, signum))
                wait_until("no fault was written", lambda: d.stats()["worker"]["state"] == "serving")
            with open(keys, "a") as file:
                file.write(f"{s('name')}:{s('badkey')} {s('badkey')}\n:{s('badkey')}\n{s('badkey')}\x01\n")
            check(s, [("weftctl reload", weftctl(d, "reload"))])
            wait_until("the refusal", lambda: " reload_refused " in d.log)
            check(s, views(d))
            d.process.send_signal(signal.SIGTERM)
            d.process.wait(LIMIT_S)
            check(s, [("log", d.log.encode())])
            check(s, [("a trace", body) for _, _, body in collector.posts])
            assert len(collector.spans()) > 100, "traces were not sent"
            assert d.log.count(" request ") > 100, "requests are not logged"
            assert " stopped drained=yes" in d.log, d.log
        with Weftd(*FLAGS, "--fault-dir", folder + "/faults", popen=unlimited_cores(folder + "/cwd")) as d:
            d.complete(s("prompt"), max_tokens=8)
            for pid in (d.process.pid, d.worker_pid()):
                # 1 instead of 0: with 0 the system would still pipe the core to a program.
                assert resource.prlimit(pid, resource.RLIMIT_CORE)[0] == 1
            d.process.send_signal(signal.SIGABRT)  # as the watchdog of systemd
            d.process.wait(LIMIT_S)
        os.remove(keys)
        assert glob.glob(folder + "/faults/*.flight"), "no flight recording was written"
        # The disk tier stores tokens by design (docs/manual/prefix-cache-on-disk.md); only its owner can read it.
        check_files(s, folder, may_have_tokens=("prefixes.kv",))
        for path in glob.glob(folder + "/disk/*"):
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600, path
        left = os.listdir(folder + "/cwd")
        assert not left, f"{left} of a process that died, with what its clients sent"


main(globals())
