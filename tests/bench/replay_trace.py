#!/usr/bin/env python3
"""Replays a public trace of agents against a server with /v1/completions, reports AIPerf's metrics, writes a record to share.

usage: replay_trace.py URL TRACE... [--tokens X] [--times X] [--max-pause S] [--max-requests N] [--vocab A-B] [--model NAME]
                       [--slo-ttft MS] [--slo-itl MS] [--record FILE]

Traces: of Weka's kv-cache-tester, which InferenceX and AIPerf replay (one JSON object per file: "requests" of types n, s and
subagent, times in seconds, "hash_ids" of blocks of "block_size" tokens), and of Mooncake (JSON lines: "timestamp" in ms or
"delay", "input_length", "output_length", "hash_ids" of blocks of 512 tokens, "session_id" in AIPerf's form).

A trace has no text, only names of blocks: equal names in one file become equal tokens, so that prefixes are shared where
they were. A session waits for the answer and then as long as its agent did. Sub-agents begin as long after their parent's
answer as they did and run beside each other and beside its pause; all of them end before it goes on. --tokens and --times
scale lengths and pauses for a slower server, --max-pause cuts pauses (AgentX: 10); all three are part of the record.

Goodput counts the requests that meet --slo-ttft and, in the mean between tokens, --slo-itl. --tokens 1 --times 1
--max-pause 10 is AgentX's load without its start in the midst of sessions, its endless repetition and its marks against
caching; its own score has to be taken with AIPerf.
"""
import argparse
import concurrent.futures
import hashlib
import http.client
import json
import math
import os
import pathlib
import platform
import subprocess
import sys
import threading
import time
import urllib.parse

MOST = 1 << 24  # tokens of a prompt, and requests of a trace


def number(value, least=0):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < least:
        raise ValueError(f"not a number of at least {least}: {value!r:.40}")
    return value


def turn(row, names, pause, scope, size):
    """A request: its pause in s, blocks, lengths. Blocks are named by the file and the number."""
    ids, length, output = row.get("hash_ids") or [], int(number(row[names[0]], 1)), int(number(row[names[1]]))
    if not isinstance(ids, list) or length > MOST or output > MOST or not all(isinstance(i, int) for i in ids):
        raise ValueError("lengths or hash_ids")
    return {"pause": max(0.0, pause), "blocks": [f"{scope}/{i}" for i in ids], "in": length, "out": max(1, output), "size": size}


def weka_session(requests, scope, size):
    """Turns, each with the sessions of sub-agents that end before it, (pause after the last answer in s, session)."""
    session, children, before = [], [], None
    if not isinstance(requests, list) or len(requests) > MOST:
        raise ValueError("requests")
    for row in requests:
        if row["type"] == "subagent":
            at = number(row.get("t") or 0)
            children.append((max(0.0, at - (before or 0)), weka_session(row["requests"], scope, size)))
        elif row["type"] in ("n", "s"):
            at = number(row["t"])
            pause = row.get("think_time")
            pause = number(pause) if pause is not None else 0 if before is None else at - before
            session.append({**turn(row, ("in", "out"), pause, scope, size), "after": children})
            before, children = at + number(row.get("api_time") or 0), []
        else:
            raise ValueError(f"type {row['type']!r:.40}")
    if children:
        session.append({"after": children})
    return session


def read_weka(text, scope):
    trace = json.loads(text)
    return [(0.0, weka_session(trace["requests"], scope, int(number(trace["block_size"], 1))))]


def read_mooncake(text, scope):
    """[(start in s, session)]: lines of a session_id follow each other; without one each is a session."""
    sessions = {}
    for i, line in enumerate(text.splitlines()):
        if not line.strip():
            continue
        row = json.loads(line)
        key, at = row.get("session_id", i), row.get("timestamp")
        start, session, before = sessions.get(key) or (number(at or 0) / 1000, [], None)
        delay = row.get("delay")
        pause = number(delay) / 1000 if delay is not None else 0 if before is None or at is None else (number(at) - before) / 1000
        session.append({**turn(row, ("input_length", "output_length"), pause, scope, 512), "after": []})
        sessions[key] = (start, session, before if at is None else at)
    return [(start, session) for start, session, _ in sessions.values()]


def read(text, scope):
    """Which of the two it is shows in the first object. ValueError names what is wrong."""
    try:
        try:
            first = json.loads(text)
        except ValueError:
            first = json.loads(text.split("\n", 1)[0])
        if not isinstance(first, dict):
            raise ValueError("no object")
        return (read_weka if "requests" in first else read_mooncake)(text, scope)
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as e:
        raise ValueError(f"not a trace: {e!r:.100}") from e


class Replay:
    def __init__(self, args):
        self.args, self.url, self.lock = args, urllib.parse.urlsplit(args.url), threading.Lock()
        self.first, self.last = (int(n) for n in args.vocab.split("-"))
        self.rows, self.failed, self.left = [], {}, args.max_requests

    def prompt(self, t):
        """Blocks of tokens that follow from the name, each as long as scaled; what is behind the last block is new."""
        n, size = max(1, round(t["in"] * self.args.tokens)), max(1, round(t["size"] * self.args.tokens))
        tokens, names, i = [], t["blocks"], 0
        while len(tokens) < n:
            name = names[i] if i < len(names) else f"{time.monotonic_ns()}"
            data, i = hashlib.shake_128(name.encode()).digest(2 * min(size, n - len(tokens))), i + 1
            tokens += [self.first + int.from_bytes(data[k:k + 2], "big") % (self.last - self.first) for k in range(0, len(data), 2)]
        return tokens

    def ask(self, t, session):
        with self.lock:
            if self.left == 0:
                return
            self.left -= 1
        body = {"prompt": self.prompt(t), "max_tokens": max(1, round(t["out"] * self.args.tokens)), "ignore_eos": True, "stream": True,
                "temperature": 0, "stream_options": {"include_usage": True}, **({"model": self.args.model} if self.args.model else {})}
        began, pieces, usage = time.monotonic(), [], None
        try:
            c = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=self.args.timeout)
            c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", "x-session-id": session})
            r = c.getresponse()
            if r.status != 200:
                raise OSError(f"status {r.status}")
            for line in r:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    usage = event.get("usage") or usage
                    if event.get("choices"):
                        pieces.append(time.monotonic())
        except (OSError, http.client.HTTPException, ValueError) as e:
            with self.lock:
                self.failed[str(e)[:60]] = self.failed.get(str(e)[:60], 0) + 1
            return
        if not pieces or not usage:
            return self.failed.update({"no text": self.failed.get("no text", 0) + 1})
        end, n = time.monotonic(), usage["completion_tokens"]
        self.rows.append({
            "time_to_first_token": 1000 * (pieces[0] - began), "request_latency": 1000 * (end - began), "began": began, "end": end,
            "inter_token_latency": 1000 * (pieces[-1] - pieces[0]) / max(1, n - 1) if n > 1 else None,
            "input_sequence_length": usage["prompt_tokens"], "output_sequence_length": n,
            "cached": (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)})

    def wait(self, pause, since):
        pause = min(pause, self.args.max_pause) * self.args.times
        time.sleep(max(0, since + pause - time.monotonic()))

    def run(self, session, name, pause=0):
        self.wait(pause, time.monotonic())
        for i, t in enumerate(session):
            since = time.monotonic()
            children = [threading.Thread(target=self.run, args=(s, f"{name}.{i}.{k}", at)) for k, (at, s) in enumerate(t["after"])]
            for c in children:
                c.start()
            for c in children:
                c.join()
            if "in" in t:
                self.wait(t["pause"], since)
                self.ask(t, name)

    def run_all(self, sessions):
        began = time.monotonic()

        def one(k):
            time.sleep(max(0, sessions[k][0] * self.args.times - (time.monotonic() - began)))
            self.run(sessions[k][1], f"trace-{k}")

        with concurrent.futures.ThreadPoolExecutor(self.args.concurrency) as pool:
            list(pool.map(one, range(len(sessions))))


def summary(values):
    values = sorted(v for v in values if v is not None)
    at = lambda share: values[min(len(values) - 1, int(share * len(values)))]
    return {"avg": sum(values) / len(values), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": values[-1]} if values else None


def joules():
    """{counter: (J so far, J at which it begins again or None)} of RAPL's packages and NVML's devices, and why others are missing."""
    found, missing = {}, []
    packages = list(pathlib.Path("/sys/class/powercap").glob("intel-rapl:?"))
    for path in packages:
        try:
            found[path.name] = (int((path / "energy_uj").read_text()) / 1e6, int((path / "max_energy_range_uj").read_text()) / 1e6)
        except OSError as e:
            missing.append(f"{path.name}: {e.strerror}")
    if not packages:
        missing.append("no RAPL")
    try:
        import pynvml
        pynvml.nvmlInit()
        for i in range(pynvml.nvmlDeviceGetCount()):
            found[f"nvml:{i}"] = (pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(i)) / 1000, None)
    except Exception as e:  # no module, or no device
        missing.append(f"NVML: {str(e) or type(e).__name__}")
    return found, missing


def used(before, after):
    """Joules between two readings, of the counters that both have; None: there is none."""
    both = [(before[k][0], *after[k]) for k in before if k in after]
    return sum(b - a if b >= a else b - a + (wraps or 0) for a, b, wraps in both) if both else None


def is_good(row, ttft, itl):
    """Whether a request meets the objectives, each in ms or None."""
    return (ttft is None or row["time_to_first_token"] <= ttft) and (itl is None or (row["inter_token_latency"] or 0) <= itl)


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip() or None
    except OSError:
        return None


def hardware():
    cpu = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    gpus = output_of("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    return {"cpu": cpu[0] if cpu else platform.machine(), "cpus": os.cpu_count(), "gpus": gpus.splitlines() if gpus else [],
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")}


def report(replay, energy):
    rows, slo = replay.rows, (replay.args.slo_ttft, replay.args.slo_itl)
    n_good = sum(is_good(r, *slo) for r in rows)
    seconds = max(r["end"] for r in rows) - min(r["began"] for r in rows)
    n_in, n_out = sum(r["input_sequence_length"] for r in rows), sum(r["output_sequence_length"] for r in rows)
    names = ("time_to_first_token", "inter_token_latency", "request_latency", "input_sequence_length", "output_sequence_length")
    return {**{name: summary([r[name] for r in rows]) for name in names},
            "request_count": len(rows), "error_request_count": sum(replay.failed.values()), "errors": replay.failed,
            "benchmark_duration": seconds, "request_throughput": len(rows) / seconds, "output_token_throughput": n_out / seconds,
            "total_token_throughput": (n_in + n_out) / seconds, "cached_prompt_share": sum(r["cached"] for r in rows) / n_in,
            "goodput": None if slo == (None, None) else n_good / seconds,
            "good_request_share": None if slo == (None, None) else n_good / (len(rows) + sum(replay.failed.values())),
            "joules_per_output_token": None if energy is None else energy / n_out}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("url")
    p.add_argument("trace", nargs="+")
    p.add_argument("--tokens", type=float, default=1.0)
    p.add_argument("--times", type=float, default=1.0)
    p.add_argument("--max-pause", type=float, default=math.inf)
    p.add_argument("--slo-ttft", type=float)
    p.add_argument("--slo-itl", type=float)
    p.add_argument("--max-requests", type=int, default=-1)
    p.add_argument("--concurrency", type=int, default=64)
    p.add_argument("--vocab", default="300-30000")
    p.add_argument("--model")
    p.add_argument("--timeout", type=float, default=600)
    p.add_argument("--record")
    args = p.parse_args()
    sessions = [s for path in args.trace for s in read(pathlib.Path(path).read_text(), path)]
    replay, (before, _) = Replay(args), joules()
    replay.run_all(sessions)
    if not replay.rows:
        sys.exit(f"no request was answered: {replay.failed}")
    after, missing = joules()
    record = {"hardware": hardware(), "commit": output_of("git", "rev-parse", "HEAD"), "command": " ".join(sys.argv),
              "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "sessions": len(sessions),
              "metrics": report(replay, used(before, after)), "energy_counters": sorted(before.keys() & after.keys()),
              "energy_missing": missing}
    print(json.dumps(record, indent=1))
    if args.record:
        pathlib.Path(args.record).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
