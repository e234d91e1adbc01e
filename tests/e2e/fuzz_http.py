#!/usr/bin/env python3
"""A hostile client: its requests and its behaviour on connections are generated from a seed.

    tests/e2e/fuzz_http.py --seconds 600 --threads 8 [--seed N] [--build DIR] [-- FLAGS OF WEFTD]

starts a daemon, attacks it, and exits with 1 and the log if one of these promises is broken:

- every answer is valid HTTP, an error is the error object, and no answer is an internal error;
- a client that requests the same text during the attack gets the same tokens each time;
- no process ends, hangs or stays busy, and everything that clients held is released when they disconnect.

test_hostile.py runs a short part. --round N repeats the round of that number alone.
"""
import argparse
import json
import os
import pathlib
import random
import socket
import struct
import sys
import threading
import time

TIMEOUT_S = 60  # limit of silence, measured in CPU time of this process
HOSTILE_NUMBERS = [
    0, -0.0, -1, 1, 2, 3, 127, 128, 129, 1023, 1025, 2**15, 2**31 - 1, 2**31, -2**31 - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -2**63, 2**64,
    10**30, 1e-320, 1e300, 0.5, 1.0, "@1e999@", "@-1e999@", "@-0@", "@1E400@", "@NaN@", "@Infinity@", "@01@", "@1.@", "@.5@", "@+1@", "@0x10@",
    "@" + "9" * 400 + "@",
]
HOSTILE_TEXTS = [
    "", "\x00", "a\x00b", "\ufeff", "\uffff", "\U0010ffff", "e\u0301" * 50, "\u202e", "<|im_end|>", "<s></s>", "%s%n%p", "../../etc/passwd",
    "\r\nX-Evil: 1", "\x1b[2J", "'\"\\", "a" * 257, "a" * 5000, "\ud800", "\udfff\ud800", "\ud83d\ude00", "{{ 7*7 }}", "{% for i in range(10**9) %}",
    "true", "null", "[]", "@\"\\ud800\"@", "@\"\\ud800\\ud800\"@", "@\"\\u0000\"@", "@\"\\x41\"@", "@\"\x01\"@",
]
WORDS = "the small model writes a story about one day of a little agent that asks for much".split()


def encode(value):
    """Encodes JSON. Texts between @ signs are copied unquoted, and lone surrogates become bytes that are not UTF-8."""
    text = json.dumps(value, ensure_ascii=False)
    out, at = [], 0
    while (i := text.find('"@', at)) >= 0 and (j := text.find('@"', i + 2)) >= 0:
        raw = text[i + 2:j]
        out += [text[at:i], json.loads('"' + raw + '"') if "\\" in raw else raw]
        at = j + 2
    return ("".join(out) + text[at:]).encode("utf-8", "surrogatepass")


def nested(r, depth, pair="[]"):
    return "@" + pair[0] * depth + ("" if r.random() < 0.2 else pair[1] * depth) + "@"


def any_value(r, depth=0):
    kind = r.randrange(9 if depth < 3 else 5)
    if kind < 2:
        return r.choice(HOSTILE_NUMBERS)
    if kind < 4:
        return r.choice(HOSTILE_TEXTS)
    if kind == 4:
        return r.choice([None, True, False, [], {}])
    if kind == 5:
        return [any_value(r, depth + 1) for _ in range(r.choice([1, 2, 5, 17, 200]) if depth == 0 else 2)]
    if kind == 6:
        return {r.choice(HOSTILE_TEXTS[:20] + WORDS): any_value(r, depth + 1) for _ in range(r.randrange(1, 6))}
    if kind == 7:
        return nested(r, r.choice([10, 63, 64, 65, 5000]))
    return " ".join(r.choices(WORDS, k=r.choice([1, 30, 3000])))


# ---- bodies

REGEXES = [
    "(a{1000}){1000}", "((a|b)*c){500}", "(((((a{30}){30}){30}){30}){30})", "(" * 500 + ")" * 500, "[" * 100, "a{1000000000}", "(a*)*b", "\\p{L}{1000}",
    "(?=a)b", "\\1", "[\\s\\S]{5000}", ".{0,4000}x", "a**", "(?i)abc", "\\u{110000}", "|" * 3000, "[^\\x00-\\x{10ffff}]",
]


def hostile_schema(r):
    kind = r.randrange(12)
    if kind == 0:  # nested alternatives
        s = {"type": "string"}
        for _ in range(r.choice([3, 8, 20])):
            s = {r.choice(["anyOf", "oneOf", "allOf"]): [s, {"type": "integer"}, s]}
            if len(json.dumps(s)) > 100000:
                break
        return s
    if kind == 1:
        return {"$ref": r.choice(["#", "#/$defs/a", "#/nowhere", "http://x/y", "#/%24defs/a", 7]), "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    if kind == 2:
        return {"$defs": {"n": {"type": "object", "properties": {k: {"$ref": "#/$defs/n"} for k in "abcdefgh"}, "required": list("abcdefgh")}}, "$ref": "#/$defs/n"}
    if kind == 3:
        return {"type": "string", "pattern": r.choice(REGEXES)}
    if kind == 4:
        return {"enum": [f"value {i} " + "x" * r.randrange(40) for i in range(r.choice([10, 1000, 20000]))]}
    if kind == 5:
        return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(r.choice([10, 300, 5000]))}, "additionalProperties": bool(r.randrange(2))}
    if kind == 6:
        return {"type": "array", "items": {"type": "array", "items": {"type": "number"}, "minItems": r.choice(HOSTILE_NUMBERS)}, "maxItems": r.choice(HOSTILE_NUMBERS)}
    if kind == 7:
        return {"type": "string", "minLength": r.choice([0, 1000, 2**31, -1]), "maxLength": r.choice([0, 5000, 2**31, 2**64])}
    if kind == 8:
        return {"type": "integer", "minimum": r.choice(HOSTILE_NUMBERS), "maximum": r.choice(HOSTILE_NUMBERS)}
    if kind == 9:
        s = {}
        for _ in range(r.choice([5, 25, 40])):
            s = {"type": "object", "properties": {"x": s}, "required": ["x"]}
        return s
    if kind == 10:
        return {"type": "object", "patternProperties": {r.choice(REGEXES): {}}, "propertyNames": {"pattern": r.choice(REGEXES)}}
    return any_value(r)


def tools(r):
    n = r.choice([1, 2, 30, 1000])
    return [{"type": "function", "function": {
        "name": r.choice([f"tool_{i}", "same", "a" * 100, "ä b", ""]) if r.random() < 0.3 else f"tool_{i}",
        "description": r.choice(HOSTILE_TEXTS) if r.random() < 0.2 else "what it does",
        "parameters": hostile_schema(r) if r.random() < (0.5 if n < 30 else 0.002) else {"type": "object", "properties": {"a": {"type": "string"}}},
        "strict": r.random() < 0.3,
    }} for i in range(n)]


def common(r):
    """Returns the fields of a generation: most are valid, so that the request is computed; some are not."""
    body = {"max_tokens": r.choice([1, 5, 30, 120]), "stream": r.random() < 0.6}
    choices = {
        "n": lambda: r.choice([1, 2, 8, 9, 128]),
        "best_of": lambda: r.choice([1, 4, 8, 128]),
        "temperature": lambda: r.choice([0, 0.7, 2, -1] + HOSTILE_NUMBERS),
        "top_p": lambda: r.choice([0, 1e-300, 0.5, 1]),
        "top_k": lambda: r.choice([-1, 0, 1, 2**31]),
        "min_p": lambda: r.choice([0, 1, 0.3]),
        "seed": lambda: r.choice(HOSTILE_NUMBERS),
        "stop": lambda: r.choice([["a"] * r.choice([1, 16, 17, 5000]), "x" * 256, ["", "b"], ["\x00"], "the"]),
        "stop_token_ids": lambda: [r.randrange(-2, 600) for _ in range(r.choice([1, 128, 4000]))],
        "logit_bias": lambda: {str(r.choice([i, i, i, -i, 10**12, "x"])): r.choice([-100, 100, 0, 101]) for i in range(r.choice([3, 300, 1024, 5000]))},
        "logprobs": lambda: r.choice([0, 1, 5, 20, 21, True, False]),
        "top_logprobs": lambda: r.choice([0, 20, 21]),
        "prompt_logprobs": lambda: r.choice([0, 5, 20]),
        "echo": lambda: True,
        "repetition_penalty": lambda: r.choice([1.1, 0, 1e30, 2]),
        "presence_penalty": lambda: r.choice([2, -2, 3]),
        "min_tokens": lambda: r.choice([0, 10, 10**9]),
        "ignore_eos": lambda: True,
        "priority": lambda: r.choice([0, -32768, 32767, 32768]),
        "cache_salt": lambda: r.choice(HOSTILE_TEXTS),
        "user": lambda: r.choice(HOSTILE_TEXTS),
        "speculation": lambda: r.choice(["auto", "off", "on"]),
        "prediction": lambda: {"type": "content", "content": " ".join(r.choices(WORDS, k=r.choice([5, 500])))},
        "return_token_ids": lambda: True,
        "logits_digest": lambda: True,
        "stream_options": lambda: {"include_usage": True, "continuous_usage_stats": r.random() < 0.5},
        "response_format": lambda: r.choice([{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x", "schema": hostile_schema(r)}}]),
        "guided_regex": lambda: r.choice(REGEXES + ["[a-z ]{1,50}"]),
        "guided_choice": lambda: [f"choice {i}" for i in range(r.choice([1, 50, 20000]))],
        "guided_grammar": lambda: r.choice(["root ::= root", "root ::= \"a\" root | \"b\"", "root ::= (" * 300, "root ::= [a-z]{1000000}", "x ::= y"]),
        "thinking_budget": lambda: r.choice([-1, 0, 5, 10**9]),
        "reasoning_effort": lambda: r.choice(["none", "high", "", 3]),
    }
    for name in r.sample(sorted(choices), r.choice([0, 0, 1, 1, 2, 4])):
        body[name] = choices[name]()
    if r.random() < 0.25:
        body[r.choice(list(body) + list(choices) + WORDS)] = any_value(r)
    return body


def prompt(r):
    kind = r.randrange(10)
    if kind < 5:
        return " ".join(r.choices(WORDS, k=r.choice([1, 8, 40, 200])))
    if kind < 7:
        return [r.randrange(10, 260) for _ in range(r.choice([1, 40, 400, 1900]))]
    if kind == 7:
        return [[r.randrange(10, 260) for _ in range(20)] for _ in range(r.choice([1, 8, 129]))]
    if kind == 8:
        return r.choice(HOSTILE_TEXTS)
    return any_value(r)


def messages(r):
    out = [{"role": "system", "content": " ".join(r.choices(WORDS, k=10))}] if r.random() < 0.5 else []
    for i in range(r.choice([1, 1, 2, 4, 60])):
        out.append({"role": "user", "content": " ".join(r.choices(WORDS, k=8)) if r.random() < 0.8 else r.choice(HOSTILE_TEXTS)})
        if r.random() < 0.4:
            out.append({"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {
                "name": "tool_0", "arguments": r.choice(["{}", "{\"a\":", nested(r, 300)[1:-1], "\x00"])}}]})
            out.append({"role": "tool", "tool_call_id": "c", "content": r.choice(HOSTILE_TEXTS)})
    if r.random() < 0.15:
        out[r.randrange(len(out))] = any_value(r)
    return out


def any_body(r):
    """Returns (path, body)."""
    kind = r.randrange(14)
    if kind < 4:
        return "/v1/completions", {"prompt": prompt(r), **common(r)}
    if kind < 8:
        body = {"messages": messages(r), **common(r)}
        if r.random() < 0.4:
            body["tools"] = tools(r)
            body["tool_choice"] = r.choice(["auto", "required", "none", {"type": "function", "function": {"name": "tool_0"}}, any_value(r)])
        if r.random() < 0.1:
            body["chat_template_kwargs"] = any_value(r)
        return "/v1/chat/completions" + ("/render" if r.random() < 0.1 else ""), body
    if kind == 8:
        return "/v1/messages", {"max_tokens": 20, "messages": messages(r), "stream": r.random() < 0.5,
                                "tools": [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in tools(r)][:50]}
    if kind == 9:
        return "/v1/responses", {"input": r.choice([prompt(r), messages(r)]), "max_output_tokens": 20, "stream": r.random() < 0.5, "store": r.random() < 0.8}
    if kind == 10:
        return "/v1/embeddings", {"input": prompt(r), "encoding_format": r.choice(["float", "base64", "x"]), "pooling": r.choice(["last", "mean"])}
    if kind == 11:
        return "/tokenize", {"prompt": prompt(r)} if r.random() < 0.5 else {"messages": messages(r)}
    if kind == 12:
        return "/detokenize", {"tokens": prompt(r)}
    return "/v1/completions", any_value(r)


# ---- heads

HEADS = [
    b"Content-Length: %d\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked\r\nContent-Length: %d", b"Content-Length: %d\r\nContent-Length: %d",
    b"Content-Length: %d\r\nContent-Length: 5", b"Content-Length: +%d", b"Content-Length: 0x%x", b"Content-Length: %d, %d", b"Content-Length: -1",
    b"Content-Length: 18446744073709551616", b"Content-Length: 9223372036854775807", b"Content-Length : %d", b"Content-Length:\t%d",
    b"Transfer-Encoding: xchunked", b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: identity", b"Transfer-Encoding:\x0bchunked", b"X: a\r\n b\r\nContent-Length: %d", b"X: a\nContent-Length: %d", b"X\x00: a\r\nContent-Length: %d",
    b"X: \x00\r\nContent-Length: %d", b"Content-Length: %d\r\nExpect: 100-continue", b"Content-Length: %d\r\nUpgrade: h2c\r\nConnection: Upgrade",
    b"Content-Length: %d\r\nContent-Encoding: gzip", b"Content-Length: %d\r\nHost: evil", b"Content-Length: %d\r\n: empty", b"\xff: x\r\nContent-Length: %d",
]


def head(r, path, n, method=b"POST"):
    def numbers(line):
        k = line.count(b"%")
        return line % ((n,) * k) if k else line

    lines = [method + b" " + path.encode() + b" " + r.choice([b"HTTP/1.1"] * 120 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.10", b"http/1.1", b""])]
    lines.append(b"Host: localhost")
    lines.append(b"Content-Type: application/json")
    lines.append(numbers(r.choice(HEADS)) if r.random() < 0.06 else b"Content-Length: %d" % n)
    if r.random() < 0.05:
        lines += [b"X-%d: %s" % (i, b"v" * r.choice([1, 100])) for i in range(r.choice([50, 99, 200, 3000]))]
    if r.random() < 0.03:
        lines.append(b"X-Long: " + b"y" * r.choice([8000, 17000, 1 << 20]))
    if r.random() < 0.1:
        lines.append(r.choice([b"X-Request-Id: a\x7fb", b"X-Request-Id: " + b"i" * 70, b"X-Stainless-Read-Timeout: -1", b"X-Stainless-Read-Timeout: 1e99",
                               b"Authorization: Bearer " + b"k" * 9000, b"session-id: " + b"s" * 5000, b"Origin: null", b"Connection: close, keep-alive"]))
    return b"\r\n".join(lines) + b"\r\n\r\n"


TARGETS = ["/health", "/metrics", "/v1/models", "/v1/models/%00", "/version", "//health", "/v1/../health", "/health?x=%ff", "*", "http://localhost/health", "/" + "a" * 9000,
           "/v1/responses/resp_x", "/v1/responses/" + "r" * 3000, "/v1/responses/resp_0/input_items?limit=99999999999999999999&after=%zz", "/v1/completions"]
METHODS = [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT", b"PRI", b"GETT", b"get", b""]


def chunked(r, body, path):
    """Returns the body in chunks; some chunk sizes are wrong."""
    out = [b"POST " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"]
    at = 0
    while at < len(body):
        n = r.choice([1, 2, 17, 1000, 100000])
        piece = body[at:at + n]
        at += n
        size = b"%x" % len(piece)
        if r.random() < 0.01:
            size = r.choice([b"ffffffffffffffff", b"10000000000000000", b"7fffffffffffffff", b"-1", b"0x5", b" 5", b"", b"g", b"5 ", b"1" * 5000])
        if r.random() < 0.02:
            size += b";ext=" + b"e" * r.choice([1, 100, 20000])
        out.append(size + b"\r\n" + piece + (b"\r\n" if r.random() < 0.995 else b"\n"))
        if len(out) > 3000:
            break
    out.append(r.choice([b"0\r\n\r\n"] * 9 + [b"0\r\nX: y\r\n\r\n", b"0\r\nContent-Length: 7\r\n" + b"T: t\r\n" * r.choice([1, 5000]) + b"\r\n", b""]))
    return b"".join(out)


def mutate(r, data):
    data = bytearray(data)
    for _ in range(r.choice([1, 1, 3, 20])):
        at = r.randrange(len(data) + 1)
        kind = r.randrange(5)
        if kind == 0 and at < len(data):
            data[at] = r.randrange(256)
        elif kind == 1 and at < len(data):
            data[at] ^= 1 << r.randrange(8)
        elif kind == 2:
            data[at:at] = bytes(r.choices(b"\x00\r\n {}[]\",:\xff\x80\xed\xa0\x80", k=r.randrange(1, 9)))
        elif kind == 3:
            del data[at:at + r.choice([1, 5, 100])]
        else:
            data[at:at] = data[at:at + r.choice([1, 30, 300])]
    return bytes(data)


# ---- behaviour

class Broken(Exception):
    """A promise of the daemon is broken."""


class Awake:
    """Measures the time in which this process ran, so that a pause of the whole machine counts as no delay."""

    def __init__(self):
        self.s = 0.0
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        last = time.monotonic()
        while True:
            time.sleep(0.1)
            now = time.monotonic()
            self.s += min(now - last, 0.3)
            last = now


awake = Awake()


class Answers:
    """Parses the bytes that came back on one connection as HTTP."""

    def __init__(self, sock):
        self.sock, self.data, self.ended = sock, b"", False

    def more(self):
        if self.ended:
            return False
        begin = awake.s
        while True:
            try:
                piece = self.sock.recv(65536)
                break
            except (ConnectionError, BrokenPipeError):
                piece = b""
                break
            except socket.timeout:
                if awake.s - begin > TIMEOUT_S:
                    raise
        self.data += piece
        self.ended = not piece
        return bool(piece)

    def until(self, mark):
        while mark not in self.data:
            if not self.more():
                return None
        before, self.data = self.data.split(mark, 1)
        return before

    def take(self, n):
        while len(self.data) < n and self.more():
            pass
        piece, self.data = self.data[:n], self.data[n:]
        return piece if len(piece) == n else None

    def next(self, head_only=False):
        """Returns (status, headers, body), or None if the connection ended first."""
        block = self.until(b"\r\n\r\n")
        if block is None:
            if self.data and self.ended and not self.data.startswith(b"HTTP/1.1 "[:len(self.data)]):
                raise Broken(f"no HTTP: {self.data[:200]!r}")
            return None
        first, *lines = block.split(b"\r\n")
        words = first.split(b" ", 2)
        if words[0] != b"HTTP/1.1" or len(words) < 3 or not words[1].isdigit():
            raise Broken(f"no status line: {first!r}")
        status = int(words[1])
        if status == 100:
            return self.next(head_only)
        headers = {}
        for line in lines:
            name, colon, value = line.partition(b": ")
            if not colon:
                raise Broken(f"no header: {line!r}")
            headers[name.lower().decode("latin-1")] = value.decode("latin-1")
        if head_only:
            return status, headers, b""
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while True:
                size = self.until(b"\r\n")
                piece = None if size is None else self.take(int(size, 16) + 2)
                if piece is None:
                    return None
                body += piece[:-2]
                if size == b"0":
                    return status, headers, body
        if "content-length" in headers:
            body = self.take(int(headers["content-length"]))
            return None if body is None else (status, headers, body)
        while self.more():
            pass
        body, self.data = self.data, b""
        return status, headers, body


def check_answer(answer, head_only=False):
    status, headers, body = answer
    if "x-request-id" not in headers:
        raise Broken(f"no X-Request-Id: {status} {headers}")
    if status in (500, 501, 502):
        raise Broken(f"{status}: {body[:500]!r}")
    if status >= 400 and not head_only:
        try:
            error = json.loads(body)["error"]
        except (ValueError, KeyError, TypeError):
            raise Broken(f"not an error object: {status} {body[:300]!r}") from None
        if not isinstance(error.get("message"), str) or not isinstance(error.get("type"), str):
            raise Broken(f"not an error object: {error}")
        for word in ("/tmp/", "/proc/", ".c:", "0x7f", "errno"):
            if word in error["message"] and "Malformed" not in error["message"]:
                raise Broken(f"an error tells what is inside: {error}")
        if status in (429, 503, 529) and "retry-after" not in headers and error.get("code") != "cancelled":
            raise Broken(f"{status} without Retry-After")
    if status == 200 and not head_only:
        check_body(headers, body)
    return status


def check_body(headers, body):
    kind = headers.get("content-type", "")
    body.decode("utf-8")
    if kind.startswith("application/json"):
        json.loads(body)
    if kind.startswith("text/event-stream"):
        for line in body.split(b"\n"):
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                value = json.loads(line[6:])
                error = value.get("error") if isinstance(value, dict) else None
                if error and error.get("code") in ("engine_error", "engine_fault", "internal_error"):
                    raise Broken(f"in a stream: {error}")


def reset(sock):
    """Returns true if the peer reset the connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Attacker:
    def __init__(self, port, seed):
        self.port, self.seed, self.statuses = port, seed, {}

    def connect(self, **options):
        s = socket.socket()
        for name, value in options.items():
            s.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        s.settimeout(TIMEOUT_S / 4)
        s.connect(("127.0.0.1", self.port))
        return s

    def read(self, sock, n=1, head_only=False):
        answers = Answers(sock)
        for _ in range(n):
            try:
                answer = answers.next(head_only)
            except socket.timeout:
                raise Broken(f"no answer within {TIMEOUT_S} s") from None
            if answer is None:
                return
            status = check_answer(answer, head_only)
            self.statuses[status] = self.statuses.get(status, 0) + 1

    @staticmethod
    def send(sock, data):
        try:
            sock.sendall(data)
        except OSError:
            pass  # the server may refuse a request before it is complete

    def request(self, r):
        path, body = any_body(r)
        data = encode(body)
        kind = r.random()
        if kind < 0.12:
            data = mutate(r, data)
        if kind > 0.9:
            return chunked(r, data, path)
        return head(r, path, len(data)) + data

    # Behaviours of a client; each gets a random generator.

    def ask(self, r):
        with self.connect() as s:
            self.send(s, self.request(r))
            s.shutdown(socket.SHUT_WR) if r.random() < 0.05 else None
            self.read(s)

    def ask_plainly(self, r):
        method = r.choice(METHODS)
        with self.connect() as s:
            self.send(s, method + b" " + r.choice(TARGETS).encode() + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            self.read(s, head_only=method == b"HEAD")

    def garble(self, r):
        data = mutate(r, self.request(r)[:200000])
        with self.connect() as s:
            self.send(s, data)
            s.shutdown(socket.SHUT_WR)
            self.read(s, 50)

    def pipeline(self, r):
        data = b"".join(r.choice([self.request(r)[:30000], b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"]) for _ in range(r.choice([2, 5, 40])))
        with self.connect() as s:
            thread = threading.Thread(target=self.send, args=(s, data))
            thread.start()
            time.sleep(r.random() * 0.3)
            reset(s) if r.random() < 0.5 else s.shutdown(socket.SHUT_WR)
            thread.join()

    def leave(self, r):
        """Closes the connection at a random moment."""
        s = self.connect()
        data = self.request(r)
        if r.random() < 0.3:
            data = data[:r.randrange(len(data) + 1)]
        self.send(s, data)
        time.sleep(r.choice([0, 0.001, 0.01, 0.1, 0.5]) * r.random())
        reset(s) if r.random() < 0.6 else s.close()

    def trickle(self, r):
        data = self.request(r)[:4000]
        with self.connect() as s:
            at = 0
            while at < len(data):
                n = r.choice([1, 1, 5, 400])
                self.send(s, data[at:at + n])
                at += n
                if r.random() < 0.05:
                    time.sleep(0.01)
            s.shutdown(socket.SHUT_WR)
            self.read(s)

    def do_not_read(self, r):
        with self.connect(SO_RCVBUF=1024) as s:
            body = encode({"prompt": "x", "max_tokens": 1500, "stream": True, "ignore_eos": True, "logprobs": 20})
            self.send(s, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            time.sleep(r.random() * 2)
            reset(s)

    def idle(self, r):
        sockets = [self.connect() for _ in range(r.choice([1, 20]))]
        for s in sockets:
            if r.random() < 0.5:
                self.send(s, b"POST /v1/completions HTTP/1.1\r\nHost: lo")
        time.sleep(r.random())
        for s in sockets:
            reset(s) if r.random() < 0.3 else s.close()

    WAYS = [ask] * 12 + [ask_plainly] * 2 + [garble] * 3 + [pipeline] * 2 + [leave] * 5 + [trickle, do_not_read, idle]

    def round(self, number):
        """Runs round @number, which draws the same values each time; only timing differs."""
        r = random.Random(f"{self.seed}.{number}")
        way = r.choice(self.WAYS)
        try:
            way(self, r)
        except (ConnectionError, BrokenPipeError, OSError) as error:
            self.statuses[type(error).__name__] = self.statuses.get(type(error).__name__, 0) + 1
        except (Broken, ValueError) as error:
            raise Broken(f"seed {self.seed} round {number} ({way.__name__}): {error}") from None


# ---- invariants during the attack and at the end

BYSTANDER = {"prompt": [(7 * i + 11) % 240 + 10 for i in range(70)], "max_tokens": 40, "temperature": 0.8, "seed": 5, "ignore_eos": True, "return_token_ids": True,
             "priority": -32768}


def ask_bystander(daemon):
    tokens = []
    for chunk in daemon.stream("/v1/completions", BYSTANDER, timeout=10 * TIMEOUT_S):
        if "error" in chunk:
            raise Broken(f"the bystander was told {chunk}")
        for choice in chunk["choices"]:
            tokens += choice.get("token_ids") or []
    return tokens


def watch_bystander(daemon, expected, stop, broken, counts):
    while not stop.is_set():
        try:
            got = ask_bystander(daemon)
        except AssertionError as error:
            if any(code in str(error) for code in ("rate_limit_exceeded", "too_many_connections", "'overloaded'", "queue_timeout", '"overloaded"')):
                time.sleep(0.05)
                continue
            broken.append(f"the bystander: {error}")
            return
        except (OSError, ValueError, Broken) as error:
            broken.append(f"the bystander: {error!r}")
            return
        if got != expected:
            broken.append(f"the bystander got other tokens: {got} instead of {expected}")
            return
        counts["bystander"] = counts.get("bystander", 0) + 1
        stop.wait(0.02)


def cpu_s(pid):
    """Returns the CPU time of a process' first thread, which runs the event loop in the front."""
    fields = pathlib.Path(f"/proc/{pid}/task/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def watch_loop(daemon, limit_s, stop, broken):
    """Checks that /health is answered before the event loop has used @limit_s of CPU time. CPU time is measured because
    wall time depends on the load of the machine."""
    while not stop.is_set():
        try:
            begin = cpu_s(daemon.process.pid)
            daemon.health()
            spent = cpu_s(daemon.process.pid) - begin
        except (OSError, ValueError):
            continue
        if spent > limit_s:
            broken.append(f"the loop computed {spent:.1f} s before it answered /health")
        stop.wait(0.05)


def figures(pid):
    """Returns (RSS in KiB, descriptors, threads) of a process."""
    folder = pathlib.Path("/proc") / str(pid)
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]), len(os.listdir(folder / "fd")), int(status["Threads"])


def wait_quiet(daemon, fds, limit_s=45):
    """Waits until everything that clients held is released: connections, generations, pages, descriptors."""
    end = awake.s + limit_s
    while True:
        stats = daemon.stats()
        front, worker = stats["front"], stats["worker"]
        left = {k: front[k] for k in ("running", "queued", "connections") if front[k]}
        left.update({"worker " + k: worker[k] for k in ("running", "waiting") if worker[k]})
        if worker["pages_used"]:
            left["pages"] = worker["pages_used"]
        open_now = figures(daemon.process.pid)[1]
        if open_now > fds:
            left["descriptors"] = open_now - fds
        if not left:
            return stats
        if awake.s > end:
            raise Broken(f"what stayed behind when all clients were gone: {left}")
        time.sleep(0.05)


def attack(daemon, seed, n_rounds=None, seconds=None, n_threads=4, first=0, loop_limit_s=0.5):
    """Runs rounds. Returns how often each status was answered; raises Broken."""
    expected = ask_bystander(daemon)
    before = daemon.stats()["worker"]
    fds = figures(daemon.process.pid)[1] + 1
    stop, broken, counts = threading.Event(), [], {}
    end = None if seconds is None else time.monotonic() + seconds
    lock, upcoming = threading.Lock(), [first]

    def work():
        attacker = Attacker(daemon.port, seed)
        while not broken and not stop.is_set() and (end is None or time.monotonic() < end):
            with lock:
                number = upcoming[0]
                upcoming[0] += 1
            if n_rounds is not None and number >= first + n_rounds:
                break
            try:
                attacker.round(number)
            except Broken as error:
                broken.append(str(error))
        with lock:
            for status, n in attacker.statuses.items():
                counts[status] = counts.get(status, 0) + n
            counts["rounds"] = upcoming[0] - first

    threads = [threading.Thread(target=work) for _ in range(n_threads)]
    watchers = [threading.Thread(target=watch_bystander, args=(daemon, expected, stop, broken, counts)),
                threading.Thread(target=watch_loop, args=(daemon, loop_limit_s, stop, broken))]
    for t in threads + watchers:
        t.start()
    for t in threads:
        t.join()
    stop.set()
    for t in watchers:
        t.join()
    if daemon.process.poll() is not None:
        raise Broken(f"the front ended with {daemon.process.returncode}; {broken}")
    if broken:
        raise Broken("; ".join(broken[:3]))
    stats = wait_quiet(daemon, fds)
    if stats["worker"]["deaths"] != before["deaths"]:
        raise Broken("the worker died")
    if ask_bystander(daemon) != expected:
        raise Broken("the bystander got other tokens afterwards")
    return counts


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seed", type=int, default=None)
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--threads", type=int, default=6)
    p.add_argument("--round", type=int, help="this one alone")
    p.add_argument("--build", default=os.environ.get("WEFT_BUILD", "build"))
    p.add_argument("--model", help="a GGUF file; a small synthetic one where none is given")
    p.add_argument("--loop-limit", type=float, default=0.5, help="seconds that the front's loop may compute at once")
    p.add_argument("flags", nargs="*")
    a = p.parse_args()
    os.environ["WEFT_BUILD"] = a.build
    import weftd

    seed = a.seed if a.seed is not None else random.SystemRandom().randrange(1 << 32)
    print("seed", seed, flush=True)
    flags = ("--max-context", "2048", "--kv-pages", "512", "--threads", "2", "--header-timeout-ms", "3000", "--body-timeout-ms", "5000",
             "--stall-timeout-ms", "3000", "--idle-timeout-ms", "4000", *a.flags)
    with weftd.Weftd(*flags, model=a.model) as d:
        start = figures(d.process.pid), figures(d.worker_pid())
        try:
            if a.round is not None:
                counts = attack(d, seed, n_rounds=1, first=a.round, n_threads=1, loop_limit_s=a.loop_limit)
            else:
                counts = attack(d, seed, seconds=a.seconds, n_threads=a.threads, loop_limit_s=a.loop_limit)
        except Broken as error:
            print(d.log[-6000:])
            print(f"BROKEN: {error}")
            sys.exit(1)
        print(counts)
        print("KiB, descriptors, threads: front", start[0], "then", figures(d.process.pid), "worker", start[1], "then", figures(d.worker_pid()))


if __name__ == "__main__":
    main()
