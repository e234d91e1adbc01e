"""Short chats beside a long prompt on a machine that is slow or that other programs use: busy loops run beside the server,
or the model takes as long for a row as a step may. Prints one line of JSON for each server: first tokens of the chats, gaps
between their tokens, Jain's index of their first tokens, and the prompt's tokens a second up to its own first token where
that comes within --limit seconds after the chats. One server runs at a time. Every wait ends after --limit seconds.

  weft-synth --shape qwen3-0.6b,context=32768 --format Q4_K_M --vocab tests/data/vocab/... -o q3.gguf
  tests/bench/slow_machine.py --weftd build/weftd --model q3.gguf --loops 8 [--peer llama-server]"""
import http.client
import json
import random
import statistics
import subprocess
import tempfile
import threading
import time

import servers

WORDS = "time year people way day man thing woman life child world school state family student group".split()


def arguments():
    p = servers.parser(__doc__)
    p.add_argument("--context", type=int, default=20480)
    p.add_argument("--loops", type=int, default=0, help="busy loops beside the server")
    p.add_argument("--words", type=int, default=9000, help="of the long prompt")
    p.add_argument("--chats", type=int, default=2, help="at the same time")
    p.add_argument("--rounds", type=int, default=3, help="of chats, one after the other")
    p.add_argument("--tokens", type=int, default=24, help="of a chat's answer")
    p.add_argument("--after", type=float, default=6, help="seconds from the long prompt to the first chats")
    p.add_argument("--limit", type=float, default=120, help="seconds of a round of chats")
    return p.parse_args()


def stream(port, prompt, n_tokens, limit, out, usage=None):
    """Notes in @out when each token of the answer came, in seconds from the request, and in @usage the server's count."""
    start = time.monotonic()
    body = {"model": "m", "prompt": prompt, "max_tokens": n_tokens, "stream": True, "temperature": 0, "ignore_eos": True,
            "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=limit)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        while time.monotonic() - start < limit:
            line = answer.readline()
            if not line:
                return
            event = json.loads(line[6:]) if line.startswith(b"data: {") else {}
            if event.get("choices"):
                out.append(time.monotonic() - start)
            if event.get("usage") and usage is not None:
                usage.update(event["usage"])
    except OSError:
        pass
    finally:
        connection.close()


def jain(values):
    return sum(values) ** 2 / len(values) / sum(v * v for v in values) if values else None


def measure(args, name, command, port):
    rng = random.Random(1)
    text = lambda n: " ".join(rng.choice(WORDS) for _ in range(n))
    long_times, usage, chats = [], {}, []
    with servers.Server(command, port):
        loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(args.loops)]
        try:
            prompt = threading.Thread(target=stream, args=(port, text(args.words), 2, 60 + args.limit * args.rounds, long_times),
                                      kwargs={"usage": usage}, daemon=True)
            prompt.start()
            time.sleep(args.after)
            for _ in range(args.rounds):
                if not prompt.is_alive():
                    break
                outs = [[] for _ in range(args.chats)]
                threads = [threading.Thread(target=stream, args=(port, text(12), args.tokens, args.limit, out)) for out in outs]
                for t in threads:
                    t.start()
                for t in threads:
                    t.join()
                chats += outs
            prompt.join(args.limit)
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
    first = sorted(c[0] for c in chats if c)
    gaps = sorted(b - a for c in chats for a, b in zip(c, c[1:]))
    print(json.dumps({
        "server": name, "loops": args.loops, "threads": args.threads, "chats": len(chats), "begun": len(first),
        "complete": sum(len(c) >= args.tokens for c in chats),
        "first_s": {"p50": statistics.median(first), "max": first[-1]} if first else None,
        "gap_s": {"p50": statistics.median(gaps), "max": gaps[-1]} if gaps else None,
        "jain": jain(first), "prompt_s": long_times[0] if long_times else None,
        "prompt_tokens_s": usage["prompt_tokens"] / long_times[0] if usage else None,
    }), flush=True)


def main():
    args = arguments()
    with tempfile.TemporaryDirectory() as where:
        measure(args, "weft", [args.weftd, "--model", args.model, "--listen", "127.0.0.1:24300", "--threads", args.threads,
                               "--max-context", args.context, "--admin-socket", f"{where}/a.sock"], 24300)
    if args.peer:
        measure(args, "llama-server", [args.peer, "-m", args.model, "--host", "127.0.0.1", "--port", 24301, "-t", args.threads,
                                       "-c", args.context * (args.chats + 1), "-np", args.chats + 1], 24301)


if __name__ == "__main__":
    main()
