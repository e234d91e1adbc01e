#!/usr/bin/env python3
"""How long the front's event loop is busy at a time when clients send the worst that fits into small requests.

    tests/bench/bench_front.py [--size BYTES] [--model FILE] [--limit-ms N] [--json FILE] [NAME...]

Starts a weftd (WEFT_BUILD, default build/), sends every case of every route (or those whose names contain a NAME),
bodies of at most --size bytes (65536) and once more of 8000, which are the largest that are worked on on the loop,
and reads from weft_loop_lag_seconds and weft_loop_cpu_seconds what the longest iteration meanwhile was: the upper
bound of its bucket. CPU time is what a busy machine does not change. Exit 1: an iteration used more than --limit-ms of
it. The statuses of the answers stand behind each case.
"""
import argparse
import json
import pathlib
import re
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
import weftd  # noqa: E402

FLAGS = ("--max-context", "8192", "--max-queued", "1000", "--max-n", "128")
CASES = []  # (route, title, function of (run, size))
BUCKET = re.compile(r'^(weft_loop_(?:lag|cpu)_seconds)_bucket\{[^}]*le="([^"]+)"\} (\d+)$', re.M)


def case(route, title):
    def add(function):
        CASES.append((route, title, function))
        return function

    return add


# a tool that is left out of the prompt but repeated in the response
JUNK = [{"type": "web_search_preview", "junk": "x" * 15_000_000}]


class Run:
    """A daemon and what the cases share."""

    def __init__(self, daemon):
        self.d = daemon
        self.stored = {}
        self.status = set()  # of the case that runs

    def post(self, path, body, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        status, _, value = self.d.request("POST", path, data, headers=headers)
        self.status.add(status)
        return status, value

    def get(self, path):
        status = self.d.request("GET", path)[0]
        self.status.add(status)
        return status, None

    def stream(self, path, body):
        c = self.d.connect()
        c.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        r = c.getresponse()
        r.read()
        c.close()
        self.status.add(r.status)
        return r.status, None

    def histograms(self):
        text = self.d.request("GET", "/metrics")[2]
        out = {}
        for name, bound, count in BUCKET.findall(text):
            out.setdefault(name, []).append((float(bound), int(count)))
        return out

    def response(self, **fields):
        """The id of a stored response."""
        status, value = self.post("/v1/responses", {"input": "hi", "max_output_tokens": 1, "temperature": 0, **fields})
        assert status == 200, (status, value)
        return value["id"], value["output"][0]["id"]

    def large(self):
        """A stored response whose request was 15 MB, and its item."""
        if "large" not in self.stored:
            self.stored["large"] = self.response(tools=JUNK)
        return self.stored["large"]

    def chain(self):
        """A conversation of four requests of 7 MB, the last of them."""
        if "chain" not in self.stored:
            last = None
            for _ in range(4):
                junk = [{"role": "user", "content": "hi", "junk": [0] * 100_000}, {"type": "web_search_call", "id": "w", "junk": [0] * 3_400_000}]
                last, _ = self.response(input=junk, **({"previous_response_id": last} if last else {}))
            self.stored["chain"] = last
        return self.stored["chain"]

    def long_chain(self):
        """A conversation of 100 short turns."""
        if "long" not in self.stored:
            last = None
            for i in range(100):
                last, _ = self.response(input=f"turn {i}", **({"previous_response_id": last} if last else {}))
            self.stored["long"] = last
        return self.stored["long"]


def many(item, size, limit=10**9):
    """As many of @item (JSON, or a function of the number) as fit into @size bytes."""
    out, n = [], 0
    while len(out) < limit:
        one = item(len(out)) if callable(item) else item
        n += len(json.dumps(one, ensure_ascii=False)) + 2
        if n > size:
            break
        out.append(one)
    return out


# ---- any body ----

POSTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/responses/input_tokens", "/v1/embeddings", "/v1/messages",
         "/v1/messages/count_tokens", "/api/chat", "/api/generate", "/api/show", "/tokenize", "/detokenize", "/completion", "/infill", "/apply-template",
         "/v1/chat/completions/render", "/v1/completions/render", "/v1/rerank", "/v1/score", "/api/v0/chat/completions", "/api/v0/completions",
         "/api/v0/embeddings", "/api/v1/models/load", "/api/v1/models/unload")
RAW = {
    "nested deeply": lambda n: b'{"a":' + b"[" * (n - 6),
    "64 levels of lists": lambda n: b'{"a":' + b",".join([b"[" * 60 + b"]" * 60] * (n // 121 - 1)).join([b"[", b"]"]) + b"}",
    "numbers": lambda n: b'{"prompt":[' + b"1," * ((n - 20) // 2) + b"1]}",
    "members": lambda n: ("{" + ",".join('"k%d":1' % i for i in range(n // 11)) + "}").encode(),
    "escapes": lambda n: b'{"prompt":"' + b"\\u00e9" * ((n - 20) // 6) + b'"}',
    "spaces": lambda n: b'{"prompt":"a"' + b" " * (n - 20) + b"}",
}


def add_raw(path, title):
    @case(path, "raw: " + title)
    def send(run, size):
        run.post(path, RAW[title](size))


for path in POSTS:
    for title in RAW:
        add_raw(path, title)

# ---- chats ----

USER = {"role": "user", "content": "a"}


def chat(run, size, **fields):
    return run.post("/v1/chat/completions", {"messages": [USER], "max_tokens": 1, "complete_output": False, **fields})


@case("/v1/chat/completions", "messages")
def _(run, size):
    chat(run, size, messages=many(lambda i: {"role": ("user", "assistant")[i % 2], "content": "a"}, size))


@case("/v1/chat/completions", "messages of parts")
def _(run, size):
    chat(run, size, messages=[{"role": "user", "content": many({"type": "text", "text": "a"}, size)}])


@case("/v1/chat/completions", "calls and their results")
def _(run, size):
    calls = many(lambda i: {"id": "c%d" % i, "type": "function", "function": {"name": "f", "arguments": "{}"}}, size * 3 // 5)
    results = many(lambda i: {"role": "tool", "tool_call_id": "c%d" % (len(calls) - 1 - i), "content": "x"}, size * 2 // 5, len(calls))
    chat(run, size, messages=[USER, {"role": "assistant", "content": None, "tool_calls": calls}, *results])


def tool(i, parameters):
    return {"type": "function", "function": {"name": "f%d" % i, "parameters": parameters}}


@case("/v1/chat/completions", "tools")
def _(run, size):
    chat(run, size, tools=many(lambda i: tool(i, {"type": "object", "properties": {"a": {"type": "string"}}}), size - 100, 1024))


@case("/v1/chat/completions", "tools, one is required")
def _(run, size):
    chat(run, size, tool_choice="required", tools=many(lambda i: tool(i, {"type": "object", "properties": {"a": {"type": "string"}}}), size - 100, 1024))


@case("/v1/chat/completions", "tools with hard patterns")
def _(run, size):
    parameters = {"type": "object", "properties": {"a": {"pattern": "(a|b)*a(a|b){%d}"}}, "required": ["a"]}
    chat(run, size, tools=many(lambda i: tool(i, json.loads(json.dumps(parameters) % (7 + i % 3))), size - 100, 1024), tool_choice="required")


@case("/v1/chat/completions", "a schema of many members")
def _(run, size):
    properties = {"p%d" % i: {"type": "string"} for i in range(size // 32)}
    chat(run, size, response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", "properties": properties}}})


@case("/v1/chat/completions", "a hard schema")
def _(run, size):
    schema = {"type": "object", "properties": {"a": {"pattern": "(a|b)*a(a|b){12}"}}, "required": ["a"]}
    chat(run, size, response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})


@case("/v1/chat/completions", "a long prompt")
def _(run, size):
    chat(run, size, messages=[{"role": "user", "content": "a b " * ((size - 200) // 4)}])


@case("/v1/chat/completions", "combining marks")
def _(run, size):
    chat(run, size, messages=[{"role": "user", "content": "\u0301" * ((size - 200) // 2)}])


@case("/v1/chat/completions", "a long prediction")
def _(run, size):
    chat(run, size, prediction={"type": "content", "content": "a b " * ((size - 200) // 4)})


@case("/v1/chat/completions", "128 choices with log probabilities, streamed")
def _(run, size):
    run.stream("/v1/chat/completions", {"messages": [USER], "n": 128, "max_tokens": 4, "logprobs": True, "top_logprobs": 20, "ignore_eos": True})


@case("/v1/chat/completions", "128 choices with log probabilities, whole")
def _(run, size):
    chat(run, size, n=128, max_tokens=4, logprobs=True, top_logprobs=20, ignore_eos=True)


@case("/v1/chat/completions", "a long answer with log probabilities")
def _(run, size):
    chat(run, size, n=4, max_tokens=400 if size < 10000 else 1000, logprobs=True, top_logprobs=20, ignore_eos=True)


# ---- completions ----


def completion(run, **fields):
    return run.post("/v1/completions", {"prompt": "hi", "max_tokens": 1, "complete_output": False, **fields})


@case("/v1/completions", "128 prompts with log probabilities")
def _(run, size):
    prompt = "a b c " * ((size // 128 - 8) // 6)
    completion(run, prompt=[prompt] * 128, prompt_logprobs=20, echo=True, logprobs=20)


@case("/v1/completions", "128 prompts with log probabilities, streamed")
def _(run, size):
    prompt = "a b c " * ((size // 128 - 8) // 6)
    run.stream("/v1/completions", {"prompt": [prompt] * 128, "max_tokens": 1, "echo": True, "logprobs": 20})


@case("/v1/completions", "a prompt with log probabilities")
def _(run, size):
    completion(run, prompt="a b c " * (min(size, 14000) // 6), prompt_logprobs=20, echo=True, logprobs=20)


@case("/v1/completions", "a prompt with log probabilities, streamed")
def _(run, size):
    run.stream("/v1/completions", {"prompt": "a b c " * (min(size, 14000) // 6), "max_tokens": 1, "echo": True, "logprobs": 20})


@case("/v1/completions", "128 prompts, echoed")
def _(run, size):
    completion(run, prompt=many("a b c d e f", size, 128), echo=True)


@case("/v1/completions", "one prompt 128 times, echoed")
def _(run, size):
    completion(run, prompt="a b c " * (min(size, 14000) // 6), n=128, echo=True, return_token_ids=True)


@case("/v1/completions", "128 prompts of the whole context, echoed")
def _(run, size):
    completion(run, prompt=["a b c " * 2300] * 128, echo=True)


@case("/v1/completions", "stop strings")
def _(run, size):
    completion(run, stop=many("x" * 250 + "y", size, 16), max_tokens=200, ignore_eos=True)


@case("/v1/completions", "more stop strings than may be")
def _(run, size):
    completion(run, stop=many("x", size))


@case("/v1/completions", "stop tokens")
def _(run, size):
    completion(run, stop_token_ids=many(lambda i: i + 100, size))


@case("/v1/completions", "logit bias")
def _(run, size):
    completion(run, logit_bias={str(i): 1 for i in range((size - 100) // 10)})


@case("/v1/completions", "guided choice")
def _(run, size):
    completion(run, guided_choice=many(lambda i: "choice %d" % i, size))


@case("/v1/completions", "a grammar")
def _(run, size):
    rules = "\n".join('r%d ::= "a" r%d | "b"' % (i, i + 1) for i in range(size // 26))
    completion(run, guided_grammar='root ::= r0\n%s\nr%d ::= "c"' % (rules, size // 26))


@case("/v1/completions", "a pattern")
def _(run, size):
    completion(run, guided_regex="(a|b)*a(a|b){9}" * (size // 200))


@case("/v1/completions", "digits")
def _(run, size):
    completion(run, prompt="1" * (size - 100))


@case("/v1/completions", "an emoji many times")
def _(run, size):
    completion(run, prompt="\U0001f600" * ((size - 100) // 4))


@case("/v1/completions/render", "128 prompts")
def _(run, size):
    run.post("/v1/completions/render", {"prompt": many("a b c d", size, 128)})


@case("/v1/completions/render", "one long prompt")
def _(run, size):
    run.post("/v1/completions/render", {"prompt": "a b " * ((size - 100) // 4)})


@case("/v1/chat/completions/render", "messages")
def _(run, size):
    run.post("/v1/chat/completions/render", {"messages": many(USER, size - 100)})


# ---- embeddings, tokens ----


@case("/v1/embeddings", "2048 inputs")
def _(run, size):
    run.post("/v1/embeddings", {"input": many("a", size, 2048)})


@case("/v1/embeddings", "lists of tokens")
def _(run, size):
    run.post("/v1/embeddings", {"input": many([100, 101], size, 2048), "encoding_format": "base64"})


@case("/tokenize", "text")
def _(run, size):
    run.post("/tokenize", {"prompt": "a" * (size - 100), "return_token_strs": True})


@case("/tokenize", "text with its pieces")
def _(run, size):
    run.post("/tokenize", {"content": "a" * (size - 100), "with_pieces": True})


@case("/tokenize", "messages")
def _(run, size):
    run.post("/tokenize", {"messages": many(USER, size - 100), "return_token_strs": True})


@case("/detokenize", "tokens")
def _(run, size):
    run.post("/detokenize", {"tokens": many(lambda i: 100 + i % 100, size - 100)})


# ---- responses ----


def count(run, size, **fields):
    return run.post("/v1/responses/input_tokens", {"input": "hi", **fields})


@case("/v1/responses", "items")
def _(run, size):
    run.post("/v1/responses", {"input": many(USER, size - 100), "max_output_tokens": 1})


@case("/v1/responses", "calls and their outputs")
def _(run, size):
    calls = many(lambda i: {"type": "function_call", "call_id": "c%d" % i, "name": "f", "arguments": "{}"}, size // 2)
    outputs = many({"type": "function_call_output", "call_id": "c0", "output": "x"}, size // 2)
    run.post("/v1/responses", {"input": [*calls, *outputs], "max_output_tokens": 1})


@case("/v1/responses", "tools")
def _(run, size):
    tools = many(lambda i: {"type": "function", "name": "f%d" % i, "parameters": {"type": "object"}}, size - 100, 1024)
    run.stream("/v1/responses", {"input": "hi", "tools": tools, "max_output_tokens": 1})


@case("/v1/responses", "references to a response of 15 MB")
def _(run, size):
    item = {"type": "item_reference", "id": run.large()[1]}
    count(run, size, input=many(item, size - 100))


@case("/v1/responses", "continues a response of 15 MB")
def _(run, size):
    run.post("/v1/responses", {"input": "go on", "previous_response_id": run.large()[0], "max_output_tokens": 1})


@case("/v1/responses", "continues a chain of 28 MB")
def _(run, size):
    count(run, size, previous_response_id=run.chain())


@case("/v1/responses", "continues 100 turns")
def _(run, size):
    count(run, size, previous_response_id=run.long_chain())


@case("/v1/responses/*", "a response of 15 MB")
def _(run, size):
    run.get("/v1/responses/" + run.large()[0])


@case("/v1/responses", "a stream that repeats 15 MB")
def _(run, size):
    run.stream("/v1/responses", {"input": "hi", "max_output_tokens": 2, "tools": JUNK})
    run.stream("/v1/responses", {"input": "hi", "max_output_tokens": 2, "tools": JUNK, "store": False})


@case("/v1/responses", "a background response that repeats 15 MB, read, watched and cancelled")
def _(run, size):
    body = {"input": "hi", "max_output_tokens": 4000, "ignore_eos": True, "background": True, "tools": JUNK}
    path = "/v1/responses/" + run.post("/v1/responses", body)[1]["id"]
    readers = [run.d.connect() for _ in range(8)]  # as many as a response may have; they read nothing before its end
    for c in readers:
        c.request("GET", path + "?stream=true")
    for _ in range(3):
        run.get(path)
    run.post(path + "/cancel", {})
    for c in readers:
        r = c.getresponse()
        run.status.add(r.status)
        assert r.read().rstrip().endswith(b"}"), "the last event is whole"
        c.close()


@case("/v1/responses/*", "one that is not there")
def _(run, size):
    run.get("/v1/responses/" + "x" * 7000)


@case("/v1/responses/*/input_items", "of a chain of 28 MB")
def _(run, size):
    run.get("/v1/responses/%s/input_items" % run.chain())
    run.get("/v1/responses/%s/input_items?limit=1&order=asc" % run.chain())


@case("/v1/responses/*/input_items", "of 100 turns, after one that is not there")
def _(run, size):
    run.get("/v1/responses/%s/input_items?limit=100&after=msg_x" % run.long_chain())


@case("/v1/responses/* DELETE", "a response of 15 MB")
def _(run, size):
    run.d.request("DELETE", "/v1/responses/" + run.large()[0])
    del run.stored["large"]


# ---- other dialects ----


def anthropic(run, path, **fields):
    return run.post(path, {"model": "x", "max_tokens": 1, "messages": [USER], **fields})


for PATH in ("/v1/messages", "/v1/messages/count_tokens"):
    def add_anthropic(path):
        @case(path, "messages")
        def _(run, size):
            anthropic(run, path, messages=many(lambda i: {"role": ("user", "assistant")[i % 2], "content": "a"}, size))

        @case(path, "blocks")
        def _(run, size):
            anthropic(run, path, messages=[{"role": "user", "content": many({"type": "text", "text": "a"}, size)}])

        @case(path, "tool uses and their results")
        def _(run, size):
            uses = many(lambda i: {"type": "tool_use", "id": "t%d" % i, "name": "f", "input": {}}, size // 2)
            results = many(lambda i: {"type": "tool_result", "tool_use_id": "t%d" % (len(uses) - 1 - i), "content": "b"}, size // 2, len(uses))
            tools = [{"name": "f", "input_schema": {"type": "object"}}]
            anthropic(run, path, tools=tools, messages=[USER, {"role": "assistant", "content": uses}, {"role": "user", "content": results}])

        @case(path, "tools")
        def _(run, size):
            anthropic(run, path, tools=many(lambda i: {"name": "f%d" % i, "input_schema": {"type": "object", "properties": {"a": {}}}}, size - 100, 1024))

    add_anthropic(PATH)


@case("/api/chat", "messages")
def _(run, size):
    run.post("/api/chat", {"model": "", "messages": many(USER, size - 200), "stream": False, "options": {"num_predict": 1}})


@case("/api/generate", "a long prompt")
def _(run, size):
    run.post("/api/generate", {"model": "", "prompt": "a b " * ((size - 200) // 4), "stream": False, "options": {"num_predict": 1}})


@case("/completion", "a long prompt")
def _(run, size):
    run.post("/completion", {"prompt": "a b " * ((size - 200) // 4), "n_predict": 1})


@case("/infill", "a long file")
def _(run, size):
    run.post("/infill", {"input_prefix": "a b " * ((size - 200) // 8), "input_suffix": "c d " * ((size - 200) // 8), "n_predict": 1})


@case("/apply-template", "messages")
def _(run, size):
    run.post("/apply-template", {"messages": many(USER, size - 100)})


for PATH in ("/v1/models", "/v1/models/" + "x" * 7000, "/metrics", "/health", "/props", "/api/tags", "/api/ps", "/api/v0/models", "/api/v1/models", "/v1/loads", "/", "/" + "x" * 7900):
    def add_get(path):
        @case(path[:40], "alone")
        def _(run, size):
            run.get(path)

    add_get(PATH)

for PATH in ("/stats", "/requests", "/tenants", "/flight", "/health"):
    def add_admin(path):
        @case("admin " + path, "beside 200 requests")
        def _(run, size):
            threads = [threading.Thread(target=completion, args=(run,), kwargs={"max_tokens": 20, "n": 4}) for _ in range(50)]
            for t in threads:
                t.start()
            for _ in range(10):
                c = weftd.UnixConnection(run.d.admin, 60)
                c.request("GET", path)
                c.getresponse().read()
                c.close()
            for t in threads:
                t.join()

    add_admin(PATH)


@case("connections", "200 requests at once")
def _(run, size):
    body = {"prompt": "a b " * 300, "max_tokens": 2}
    weftd.parallel([lambda: run.post("/v1/completions", body)] * 200)


@case("connections", "200 that send a body and leave")
def _(run, size):
    body = json.dumps({"prompt": "a b " * ((size - 100) // 4)}).encode()
    for _ in range(200):
        c = run.d.connect()
        c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        c.close()
    time.sleep(0.2)


# ---- measuring ----


def longest(before, after):
    """The upper bound, in ms, of the highest bucket that has grown, of each histogram."""
    out = {}
    for name, rows in after.items():
        was = dict(before[name])
        below, top = 0, 0.0
        for bound, n in rows:
            grown = n - was[bound]
            if grown > below:
                top = bound
            below = grown
        out[name] = top * 1e3
    return out["weft_loop_lag_seconds"], out["weft_loop_cpu_seconds"]


def measure(run, sizes, wanted, out=sys.stdout):
    rows = []
    for route, title, function in CASES:
        if wanted and not any(w in route + " " + title for w in wanted):
            continue
        function_worst = [0.0, 0.0]
        start = time.monotonic()
        run.status.clear()
        for size in sizes:
            before = run.histograms()
            function(run, size)
            time.sleep(0.02)
            lag, cpu = longest(before, run.histograms())
            function_worst = [max(function_worst[0], lag), max(function_worst[1], cpu)]
        rows.append({"route": route, "case": title, "lag_ms": function_worst[0], "cpu_ms": function_worst[1], "s": time.monotonic() - start})
        line = "%-32s %-48s lag <= %7.1f ms, CPU <= %7.1f ms  (%.1f s) %s"
        print(line % (route[:32], title, *function_worst, rows[-1]["s"], " ".join(map(str, sorted(run.status)))), file=out, flush=True)
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--size", type=int, default=65536)
    p.add_argument("--model")
    p.add_argument("--limit-ms", type=float, default=20)
    p.add_argument("--json")
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    with weftd.Weftd(*FLAGS, model=a.model) as d:
        rows = measure(Run(d), (8000, a.size), a.names)
        assert d.process.poll() is None and d.health() == 200, d.log
    worst = {}
    for r in rows:
        worst[r["route"]] = max(worst.get(r["route"], (0, 0)), (r["cpu_ms"], r["lag_ms"]))
    print("\nlongest by route (CPU, wall):")
    for route, (cpu, lag) in sorted(worst.items(), key=lambda x: -x[1][0]):
        print("%8.1f ms %8.1f ms  %s" % (cpu, lag, route))
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(any(r["cpu_ms"] > a.limit_ms for r in rows))


if __name__ == "__main__":
    main()
