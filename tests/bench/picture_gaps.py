"""Streams that decode while a picture is encoded: prints one line of JSON for each server, with the longest gap between tokens
of any stream before the picture comes and from then until its answer, and how long the request with the picture takes. With
--streams 0 that is the time of the picture alone. One server runs at a time.

  weft-synth --arch qwen35 --shape tiny,n_layer=8,n_embd=1024,n_ff=3072,n_vocab=3072,n_key=8,n_value=16,n_state=64,context=32768 \\
    --format Q8_0 -o text.gguf
  weft-synth --projector qwen3vl_merger --shape qwen3.6-27b,n_layer=1,n_out=1024 --format F16 -o mmproj.gguf
  tests/bench/picture_gaps.py --weftd build/weftd --model text.gguf --mmproj mmproj.gguf --picture 4k.png [--peer llama-server]"""
import base64
import http.client
import json
import pathlib
import statistics
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


def measure(args, name, command, port):
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
        sent, cpu = time.monotonic(), server.cpu_s()[0]
        body = {"prompt": {"prompt_string": marker + " what is it?", "multimodal_data": [data]}, "n_predict": 1, "temperature": 0}
        took = None
        try:
            c, answer = ask(port, body, args.limit)
            result = json.loads(answer.read())
            assert answer.status == 200, result
            took = time.monotonic() - sent
        except TimeoutError:
            result = {}
        done, cpu = time.monotonic(), server.cpu_s()[0] - cpu
        end.set()
        for t in threads:
            t.join()
        before, beside = gaps_of(times, begun, sent), gaps_of(times, sent, done)
        rate = lambda a, b: sum(a <= x <= b for t in times for x in t) / (b - a) if threads else None
    print(json.dumps({
        "server": name, "streams": args.streams, "threads": args.threads, "prompt_tokens": result.get("tokens_evaluated"),
        "picture_s": took, "cpu_s": round(cpu, 2),
        "gap_before_s": {"p50": statistics.median(before), "max": max(before)} if before else None,
        "gap_beside_s": {"p50": statistics.median(beside), "max": max(beside)} if beside else None,
        "ratio": max(beside) / max(before) if before and beside else None,
        "tokens_per_s": {"before": rate(begun, sent), "beside": rate(sent, done)},
    }), flush=True)


def main():
    args = arguments()
    with tempfile.TemporaryDirectory() as where:
        if args.weftd:
            measure(args, "weft", [args.weftd, "--model", args.model, "--mmproj", args.mmproj, "--listen", "127.0.0.1:24310",
                                   "--threads", args.threads, "--max-context", args.context, "--backend", "cpu",
                                   "--admin-socket", f"{where}/a.sock"], 24310)
    if args.peer:
        n = args.streams + 1
        measure(args, "llama-server", [args.peer, "-m", args.model, "--mmproj", args.mmproj, "--host", "127.0.0.1", "--port", 24311,
                                       "-t", args.threads, "-tb", args.threads, "-c", args.context * n, "-np", n], 24311)


if __name__ == "__main__":
    main()
