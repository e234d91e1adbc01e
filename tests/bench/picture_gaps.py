"""Streams that decode beside a picture: prints one line of JSON for each server, with the gaps between the tokens of any stream
before the picture comes; from then until its answer; of weftd also while the picture is encoded and while the prompt's rows are
computed, by the times of `weftctl why`; and at last beside a prompt of as many tokens of text. With --streams 0 only the time of
the picture alone. One server runs at a time.

  weft-synth --arch qwen35 --shape tiny,n_layer=8,n_embd=1024,n_ff=3072,n_vocab=3072,n_key=8,n_value=16,n_state=64,context=32768 \\
    --format Q8_0 -o text.gguf
  weft-synth --projector qwen3vl_merger --shape qwen3.6-27b,n_layer=1,n_out=1024 --format F16 -o mmproj.gguf
  tests/bench/picture_gaps.py --weftd build/weftd --model text.gguf --mmproj mmproj.gguf --picture 4k.png [--peer llama-server]"""
import base64
import http.client
import json
import pathlib
import random
import statistics
import subprocess
import tempfile
import threading
import time

import servers


def arguments():
    p = servers.parser(__doc__, weftd_required=False)
    p.add_argument("--mmproj", required=True)
    p.add_argument("--picture", required=True)
    p.add_argument("--streams", type=int, default=8)
    p.add_argument("--vocab", type=int, default=3072, help="tokens of the model")
    p.add_argument("--context", type=int, default=8192, help="of a request")
    p.add_argument("--before", type=float, default=8, help="seconds of decoding before the picture comes")
    p.add_argument("--limit", type=float, default=120, help="seconds from then on")
    return p.parse_args()


def ask(port, body, limit):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=limit)
    c.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    return c, c.getresponse()


def without_text(port, n_vocab):
    """Special tokens, and those that are a part of a character: a server sends nothing for them, as if it had paused."""
    c, found = http.client.HTTPConnection("127.0.0.1", port), []
    for token in range(n_vocab):
        c.request("POST", "/detokenize", json.dumps({"tokens": [token]}), {"Content-Type": "application/json"})
        text = json.loads(c.getresponse().read())["content"]
        if not text or "\ufffd" in text or (text[0] == "<" and text[-1] == ">"):
            found.append(token)
    return found


def stream(port, i, banned, end, out):
    """Notes in @out when each token came, until @end is set."""
    body = {"prompt": f"stream {i} says " + "one two three " * 8, "n_predict": 6000, "stream": True, "temperature": 0,
            "ignore_eos": True, "cache_prompt": False, "logit_bias": [[token, False] for token in banned]}
    c, answer = ask(port, body, 600)
    while not end.is_set():
        line = answer.readline()
        if not line:
            break
        if line.startswith(b"data: {"):
            out.append(time.monotonic())
    c.close()


def gaps_of(times, begin, end):
    """Gaps that end between @begin and @end."""
    return [b - a for t in times for a, b in zip(t, t[1:]) if begin <= b and a <= end]


def summary(times, begin, end):
    """Of the streams in a phase."""
    gaps = gaps_of(times, begin, end)
    rate = sum(begin <= x <= end for t in times for x in t) / (end - begin)
    return {"s": round(end - begin, 2), "gap_p50_ms": round(statistics.median(gaps) * 1000, 1), "gap_max_ms": round(max(gaps) * 1000, 1),
            "tokens_per_s": round(rate)} if gaps else None


def encoded(admin, request, done):
    """When weftd had encoded the picture of a request that ended at @done: the first decision behind the encoding."""
    answer = subprocess.run([admin[0], "--socket", admin[1], "--json", "why", request], capture_output=True, text=True, check=True)
    records = json.loads(answer.stdout)["records"]
    last = max(i for i, r in enumerate(records) if r["why"] == "encode")
    return done - (records[-1]["at_ms"] - records[last + 1]["at_ms"]) / 1000


def prompt(port, what, limit):
    """Sends the prompt @what for one token: (sent, done, tokens, its id), without the last three after @limit seconds."""
    sent = time.monotonic()
    try:
        c, answer = ask(port, {"prompt": what, "n_predict": 1, "temperature": 0, "cache_prompt": False}, limit)
        result = json.loads(answer.read())
        assert answer.status == 200, result
        return sent, time.monotonic(), result["tokens_evaluated"], answer.getheader("X-Request-Id")
    except TimeoutError:
        return sent, time.monotonic(), None, None


def measure(args, name, command, port, admin=None):
    data = base64.b64encode(pathlib.Path(args.picture).read_bytes()).decode()
    with servers.Server(command, port) as server:
        c = http.client.HTTPConnection("127.0.0.1", port)
        c.request("GET", "/props")
        marker = json.loads(c.getresponse().read()).get("media_marker", "<__media__>")
        end, times = threading.Event(), [[] for _ in range(args.streams)]
        banned = without_text(port, args.vocab) if args.streams else []
        threads = [threading.Thread(target=stream, args=(port, i, banned, end, t)) for i, t in enumerate(times)]
        for t in threads:
            t.start()
        limit = time.monotonic() + args.limit
        while any(len(t) < 20 for t in times) and time.monotonic() < limit:
            time.sleep(0.05)
        begun = time.monotonic()
        time.sleep(args.before if threads else 0)
        sent, done, n, request = prompt(port, {"prompt_string": marker + " what is it?", "multimodal_data": [data]}, args.limit)
        between = encoded(admin, request, done) if admin and n else None
        words = random.Random(1).choices([t for t in range(args.vocab) if t not in banned], k=n or 1)
        text_sent, text_done, n_text, _ = prompt(port, words, args.limit) if n else (done, done, None, None)
        end.set()
        for t in threads:
            t.join()
    print(json.dumps({
        "server": name, "streams": args.streams, "threads": args.threads, "prompt_tokens": n, "picture_s": n and round(done - sent, 2),
        "before": summary(times, begun, sent), "picture": summary(times, sent, done),
        "encoding": between and summary(times, sent, between), "rows": between and summary(times, between, done),
        "text_tokens": n_text, "text": n_text and summary(times, text_sent, text_done),
    }), flush=True)


def main():
    args = arguments()
    with tempfile.TemporaryDirectory() as where:
        if args.weftd:
            measure(args, "weft", [args.weftd, "--model", args.model, "--mmproj", args.mmproj, "--listen", "127.0.0.1:24310",
                                   "--threads", args.threads, "--max-context", args.context, "--backend", "cpu",
                                   "--admin-socket", f"{where}/a.sock"], 24310, (pathlib.Path(args.weftd).with_name("weftctl"), f"{where}/a.sock"))
    if args.peer:
        n = args.streams + 1
        measure(args, "llama-server", [args.peer, "-m", args.model, "--mmproj", args.mmproj, "--host", "127.0.0.1", "--port", 24311,
                                       "-t", args.threads, "-tb", args.threads, "-c", args.context * n, "-np", n], 24311)


if __name__ == "__main__":
    main()
