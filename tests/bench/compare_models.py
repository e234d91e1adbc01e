#!/usr/bin/env python3
"""Measures weft beside llama-server's router where models are loaded by name: a load on demand, a change of models with room for one, and the first answer after it.

usage: compare_models.py --llama DIR [--build DIR] --models A.gguf B.gguf [--pairs 3] [--threads 2] [--out FILE.json]

DIR holds llama-server. Each pair starts a fresh server of each, without a model, and asks in this order for: A whose file is not in the
page cache, A again, B (read ahead into the page cache), A again, and B while an answer of A is under way. Of each: seconds
to the first token, CPU seconds of all processes up to there. The load average is in the result: on a busy machine seconds say little.
"""
import argparse
import json
import os
import pathlib
import sys
import tempfile
import threading
import time
import urllib.request

from servers import Server, TICKS, commit, cpu_name, tree_of

PROMPT = "one two three four five six seven eight nine ten"
LIMIT_S = 900


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--llama", type=pathlib.Path, required=True)
    p.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    p.add_argument("--models", nargs=2, required=True)
    p.add_argument("--pairs", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--port", type=int, default=18234)
    p.add_argument("--out")
    return p.parse_args()


def weft(a, folder):
    """With memory for one of the two."""
    memory = max(os.path.getsize(m) for m in a.models) * 3 // 2 + (256 << 20)
    return [a.build / "weftd", "--listen", f"127.0.0.1:{a.port}", "--models-dir", folder, "--models-memory", f"{memory >> 20}M", "--threads", a.threads,
            "--backend", "cpu", "--kv-memory", "256M", "--max-context", "2048", "--admin-socket", folder + ".sock", "--load-wait-ms", LIMIT_S * 1000]


def llama(a, folder):
    return [a.llama / "llama-server", "--host", "127.0.0.1", "--port", a.port, "--models-dir", folder, "--models-max", 1, "-t", a.threads, "-c", 2048]


def cpu_s(pid):
    """Of the processes below @pid, those that have ended too."""
    total = 0
    for p, _ in tree_of(pid):
        try:
            total += sum(map(int, pathlib.Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()[11:15])) / TICKS
        except OSError:
            pass
    return total


def ask(server, model, n, on_first=lambda: None):
    """The number of events with text of a streamed answer of @n tokens."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    n_events = 0
    with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
        for line in response:
            if line.startswith(b"data: {"):
                n_events += bool(json.loads(line[6:])["choices"])
                if n_events == 1:
                    on_first()
            elif line.startswith(b"data: [DONE]"):
                return n_events
    raise SystemExit(f"{model}: the answer was cut after {n_events} events\n" + server.text()[-2000:])


def first(server, model):
    """(seconds to the first token, CPU seconds)"""
    start, cpu, end = time.monotonic(), cpu_s(server.process.pid), []
    ask(server, model, 2, lambda: end.append((time.monotonic() - start, cpu_s(server.process.pid) - cpu)))
    return end[0]


def page_cache(path, wanted):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        if not wanted:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while wanted and file.read(1 << 20):
            pass


def during(server, model, other):
    """Of @other's first token, asked for while @model answers 64 tokens: seconds behind the end of that answer, which is whole."""
    begun, ended = threading.Event(), []
    thread = threading.Thread(target=lambda: (ask(server, model, 64, begun.set), ended.append(time.monotonic())))
    thread.start()
    begun.wait(LIMIT_S)
    cpu, end = cpu_s(server.process.pid), []
    ask(server, other, 2, lambda: end.append((time.monotonic(), cpu_s(server.process.pid) - cpu)))
    thread.join()
    return end[0][0] - ended[0], end[0][1]


def once(a, command):
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(a.models[0]))) as folder:
        for name, path in zip("AB", a.models):
            os.link(path, f"{folder}/{name}.gguf")
        page_cache(a.models[0], False)
        with Server(command(a, folder), a.port) as server:
            rows = {"load, file not in the page cache": first(server, "A"), "loaded": first(server, "A")}
            page_cache(a.models[1], True)
            rows["change to the other"] = first(server, "B")
            page_cache(a.models[0], True)
            rows["and back"] = first(server, "A")
            page_cache(a.models[1], True)
            rows["change while one answers, behind its end"] = during(server, "A", "B")
    return rows


def main():
    a = arguments()
    runs = {"weft": [], "llama-server": []}
    loads = [os.getloadavg()[0]]
    for _ in range(a.pairs):
        for name, command in (("weft", weft), ("llama-server", llama)):
            runs[name].append(once(a, command))
            print(name, runs[name][-1], file=sys.stderr, flush=True)
            loads.append(os.getloadavg()[0])
    least = {name: {row: {"s": round(min(r[row][0] for r in all_runs), 2), "cpu_s": round(min(r[row][1] for r in all_runs), 2)} for row in all_runs[0]} for name, all_runs in runs.items()}
    out = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": commit(), "cpu": cpu_name(), "threads": a.threads, "pairs": a.pairs,
           "bytes": [os.path.getsize(m) for m in a.models], "load_average": [round(x, 1) for x in loads], "least": least, "runs": runs}
    print(json.dumps(least, indent=1))
    if a.out:
        pathlib.Path(a.out).write_text(json.dumps(out, indent=1) + "\n")


main()
