#!/usr/bin/env python3
"""Replays the simulator's traces, scaled down for a CPU, against weft, against weft as a plain first-come-first-served
server, and against llama-server: interleaved runs on the same machine, the same file, threads, text and KV memory.

usage: compare_agents.py [--llama DIR] [--model FILE.gguf] [--build DIR] [--threads N] [--runs N] [--only ROW,...]
                         [--servers NAME,...] [--split-cores] [--json FILE]

  weft       the trace's tenants with keys and weights, sessions named, defaults otherwise
  weft-host  the same with host memory for all that the agents would like to keep; row tools only
  fcfs       the same daemon with one tenant: no keys, no sessions, pinning off
  llama      llama-server from DIR: slots that share as much KV memory, no prompt cache beside it, defaults otherwise. As many
             slots as there are agents, at most 16, and not more than fit: with too many it fails requests

--split-cores gives the load generator the last core and the servers the others, all the time, as if it were another machine.

Without --model one is made (random weights, 40 M parameters). Speculation is off: what random weights say repeats itself.

Rows:
  flood        tenants.trace: eight tenants; a ninth sends ten times what is served. With and without it
  tools        tools.trace: agents with a common prompt; KV memory for half of what they would like to keep
  long_prompt  long_prompt.trace: eight agents decode while a long prompt arrives
  overload     overload.trace: ten times what can be served, beside what is served at most
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from servers import Server, busy_s, commit, cpu_name, on_cores, split_cores

HERE = pathlib.Path(__file__).resolve().parent
TRACES = HERE.parent / "sim" / "traces"
SERVERS = ("weft", "weft-host", "fcfs", "llama")
SYNTH = ["--arch", "llama", "--shape", "n_layer=8,n_embd=512,n_head=8,n_kv=2,head_dim=64,n_ff=1536,context=32768",
         "--n-vocab", "16000", "--format", "Q4_K_M", "--seed", "1"]
KEY = "weft-bench-key-"
# weftd's own log: whole milliseconds from the request's first byte to the answer.
FRONT_429 = re.compile(r" status=429 .* total_ms=(\d+)")


# -- servers -----------------------------------------------------------------------------------------------


def tenants_of(trace):
    """{number: {"weight", "class"}} of the agents of a trace."""
    found = {}
    for line in trace.read_text().splitlines():
        words = line.split()
        if words[:1] == ["agents"]:
            keys = dict(w.split("=", 1) for w in words[2:])
            found.setdefault(int(keys.get("tenant", 0)), {
                "weight": int(keys.get("weight", 1000)) / 1000,
                "class": ("normal", "interactive", "batch")[int(keys.get("class", 0))],
            })
    return found


def tenant_files(folder, trace):
    tenants = tenants_of(trace)
    keys, conf = folder / "keys", folder / "tenants.conf"
    keys.write_text("".join(f"t{n}:{KEY}{n}\n" for n in tenants))
    conf.write_text("".join(f"[t{n}]\nweight = {t['weight']}\nclass = {t['class']}\n" for n, t in tenants.items()))
    return ["--api-keys", keys, "--tenants", conf]


def weft_command(a, row, folder, name):
    command = [a.build / "weftd", "--model", a.model, "--threads", a.threads, "--listen", f"127.0.0.1:{a.port}",
               "--kv-pages", row["kv_tokens"] // 16, "--page-tokens", 16, "--max-context", row["context"],
               "--max-connections", 8192, "--speculation", "off"]
    if name == "weft-host":
        command += ["--host-kv-memory", row["host_kv"]]
    return command + (["--pin", "off"] if name == "fcfs" else tenant_files(folder, TRACES / row["trace"]))


def llama_command(a, row):
    return [a.llama / "llama-server", "-m", a.model, "-t", a.threads, "-np", row["slots"], "-c", row["kv_tokens"], "--kv-unified",
            "--cache-ram", 0, "--port", a.port, "--no-webui", "--log-disable"]


@contextlib.contextmanager
def serving(a, row, name):
    with tempfile.TemporaryDirectory(prefix="weft-agents-") as folder:
        command = llama_command(a, row) if name == "llama" else weft_command(a, row, pathlib.Path(folder), name)
        with Server(command, a.port, a.server_cores) as server:
            yield server


def replay(a, row, name, *flags, **values):
    """One run against a fresh server: the result of weft-bench agents, and whose the cores were meanwhile."""
    with serving(a, row, name) as server, tempfile.NamedTemporaryFile(suffix=".json") as file:
        sets = {**row.get("set", {}), **values}
        command = [a.build / "weft-bench", "agents", "--trace", TRACES / row["trace"], "--url", server.url, "--endpoint", "completions",
                   "--tokens", row["tokens"], "--times", row["times"], "--words-per-token", a.words_per_token, "--json", file.name,
                   *(["--set", ",".join(f"{k.replace('__', '.')}={v}" for k, v in sets.items())] if sets else []),
                   *(["--keys", KEY] if name.startswith("weft") else ["--no-sessions"]), *flags]
        before = times(a, server)
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, preexec_fn=on_cores(a.load_cores))
        busy, elapsed, served, front, load = (y - x for x, y in zip(before, times(a, server)))
        if done.returncode != 0 and not file.read():  # a server may finish nothing
            sys.exit(f"{name}: {done.stderr}\n{server.text()[-2000:]}")
        if a.tables:
            print(f"-- {name} {' '.join(map(str, flags))} {values}\n{done.stdout}", file=sys.stderr, flush=True)
        result = json.load(open(file.name))
        result["refusals_at_the_front_ms"] = [int(t) for t in FRONT_429.findall(server.text())]
        result["server_memory_mib"] = server.memory_mib()
        result["server_cpu_s"], result["front_cpu_s"], result["load_cpu_s"] = served, front, load
        n_cores, ours = (len(a.server_cores), served) if a.split_cores else (os.cpu_count(), served + load)
        result["others_percent"] = 100 * max(busy - ours, 0) / (n_cores * elapsed)
        return result


def times(a, server):
    """So far, in seconds: CPU time of the server's cores, time, CPU time of the server, of its first process, of load generators."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # those that have ended: the servers of other runs, too
    return busy_s(a.server_cores), time.monotonic(), *server.cpu_s(), used.ru_utime + used.ru_stime


def measure_words(a):
    """Words for each token of the model's vocabulary, once for all servers, so that the text is the same."""
    row = {"kv_tokens": 4096, "context": 4096, "trace": "tools.trace"}
    with serving(a, row, "fcfs") as server, tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([str(c) for c in (
            a.build / "weft-bench", "agents", "--trace", TRACES / "tools.trace", "--url", server.url, "--endpoint", "completions",
            "--tokens", 0.01, "--times", 0.001, "--set", "a.count=1,a.turns=1", "--json", file.name)], check=True, capture_output=True)
        return json.load(open(file.name))["config"]["words_per_token"]


# -- rows --------------------------------------------------------------------------------------------------
#
# A row's function runs one server once and returns {figure: number}.

BEHAVED = range(1, 9)


def total(r, key, tenants):
    return sum(t[key] for t in r["tenants"] if t["tenant"] in tenants)


def median_of(r, tenants, key, q):
    return statistics.median(t[key][q] for t in r["tenants"] if t["tenant"] in tenants)


def run_flood(a, row, name):
    calm = replay(a, row, name, "--without", 9)
    flood = replay(a, row, name)
    turns = [total(r, "finished", BEHAVED) for r in (calm, flood)]
    ttft = [median_of(r, BEHAVED, "ttft_ms", "p99") for r in (calm, flood)]
    return {
        "turns without the flood": turns[0],
        "turns with it": turns[1],
        "of a fair part (8/9), %": 100 * turns[1] / max(turns[0] * 8 / 9, 1),
        "first token p99 without, ms": ttft[0],
        "first token p99 with, ms": ttft[1],
        "first token p50 with, ms": median_of(flood, BEHAVED, "ttft_ms", "p50"),
        "between tokens p99 with, ms": median_of(flood, BEHAVED, "itl_ms", "p99"),
        "unanswered of the eight": total(flood, "unanswered", BEHAVED),
        "all output tokens/s with": flood["output_tokens_per_s"],
        **refusals(flood), **health(flood),
    }


def refusals(r):
    t, front = r["all"]["refusal_ms"], sorted(r["refusals_at_the_front_ms"]) or [float("nan")]
    return {"refused": t["n"], "without Retry-After": r["all"]["refused_without_retry_after"],
            "refusal p50, ms": t["p50"], "refusal p99, ms": t["p99"], "refusal longest, ms": t["max"],
            "at the front p99, ms": front[int(0.99 * (len(front) - 1))]}


def health(r):
    return {"failed turns": r["all"]["failed"], "short answers": r["all"]["short"], "server's CPU time, s": r["server_cpu_s"],
            "of its first process, s": r["front_cpu_s"], "load generator's, s": r["load_cpu_s"],
            "of its cores taken by others, %": r["others_percent"], "memory at the end, MiB": r["server_memory_mib"]}


def run_tools(a, row, name):
    r = replay(a, row, name)
    t = r["all"]
    return {
        "jobs done": t["jobs"],
        "of jobs": t["jobs_all"],
        "all done, s": r["seconds"],
        "median job, s": t["job_s"]["p50"],
        "turns/s": r["turns_per_s"],
        "cached, %": 100 * t["cached_tokens"] / max(t["prompt_tokens"], 1),
        "first token p50, ms": t["ttft_ms"]["p50"],
        "first token p99, ms": t["ttft_ms"]["p99"],
        **health(r),
    }


def run_long(a, row, name):
    r = replay(a, row, name, "--during", 2)
    chat, book = r["tenants"]
    return {
        "during the prompt: between tokens p50, ms": chat["itl_during_ms"]["p50"],
        "during the prompt: p90, ms": chat["itl_during_ms"]["p90"],
        "during the prompt: p99, ms": chat["itl_during_ms"]["p99"],
        "during the prompt: longest, ms": chat["itl_during_ms"]["max"],
        "tokens heard meanwhile": chat["itl_during_ms"]["n"],
        "the prompt's first token, ms": book["ttft_ms"]["max"],
        "in all: between tokens p50, ms": chat["itl_ms"]["p50"],
        "jobs done": r["all"]["jobs"],
        **health(r),
    }


def run_overload(a, row, name):
    """Ten times what can be served; what was served; more than that, so that not all is done; ten times again: the machine drifts."""
    done = max(replay(a, row, name)["all"]["finished"], 20)
    much = replay(a, row, name, one__count=10 * done)
    some = replay(a, row, name, one__count=done)
    for x in (1.3, 1.7, 2.2):
        more = replay(a, row, name, one__count=int(done * x))
        if more["all"]["finished"] < 0.97 * more["all"]["turns"]:
            break
    again = replay(a, row, name, one__count=10 * done)
    best = max(some, more, key=lambda r: r["output_tokens_per_s"])
    worse = max(much, again, key=lambda r: r["all"]["refusal_ms"]["p99"])
    return {
        "offered / served": much["all"]["turns"] / max(much["all"]["finished"], 1),
        "requests done": much["all"]["finished"],
        "output tokens/s": (much["output_tokens_per_s"] + again["output_tokens_per_s"]) / 2,
        "offered what was served, tokens/s": some["output_tokens_per_s"],
        "offered somewhat more, tokens/s": more["output_tokens_per_s"],
        "first token p50, ms": much["all"]["ttft_ms"]["p50"],
        "unanswered": much["all"]["unanswered"],
        **refusals(worse), **health(much),
        "at the peak: server's CPU time, s": best["server_cpu_s"],
        "at the peak: of its first process, s": best["front_cpu_s"],
        "at the peak: load generator's, s": best["load_cpu_s"],
        "at the peak: taken by others, %": best["others_percent"],
    }


def sum_up_overload(runs):
    """Each load beside its neighbour in time. The best of several single figures would be the one that was lucky."""
    ratios = [statistics.median(r["output tokens/s"] / max(r[f], 1e-9) for r in runs)
              for f in ("offered what was served, tokens/s", "offered somewhat more, tokens/s")]
    return {"of the peak, %": 100 * min(ratios)}


ROWS = {
    # Numbers of tokens are a sixteenth of the traces' (40 M parameters on a CPU instead of 8 G on an H200), times less.
    "flood": {"run": run_flood, "trace": "tenants.trace", "tokens": 1 / 16, "times": 0.2, "kv_tokens": 24576, "context": 4096, "slots": 16,
              "set": {"flood.count": 4000, "until": 100000}},
    "tools": {"run": run_tools, "trace": "tools.trace", "tokens": 1 / 16, "times": 0.25, "kv_tokens": 10240, "context": 4096, "slots": 8,
              "host_kv": "128M", "set": {"until": 180000}},
    "long_prompt": {"run": run_long, "trace": "long_prompt.trace", "tokens": 1 / 16, "times": 0.25, "kv_tokens": 32768, "context": 8192, "slots": 9,
                    "set": {"chat.turns": 5, "chat.output": "3200-6400", "until": 200000}},
    "overload": {"run": run_overload, "sum_up": sum_up_overload, "trace": "overload.trace", "tokens": 1 / 16, "times": 0.3, "kv_tokens": 16384, "context": 2048,
                 "slots": 16},
}


# -- the whole ---------------------------------------------------------------------------------------------


def print_row(name, runs, sums):
    print(f"\n{name:44}" + "".join(f"{s:>12}" for s in runs))
    for figure in next(iter(runs.values()))[0]:
        values = [statistics.median(r[figure] for r in of_one) for of_one in runs.values()]
        print(f"  {figure:42}" + "".join(f"{v:12.1f}" for v in values), flush=True)
    for figure in next(iter(sums.values())):
        print(f"  {figure:42}" + "".join(f"{s[figure]:12.1f}" for s in sums.values()), flush=True)


def synth(a):
    path = pathlib.Path(tempfile.gettempdir()) / "weft-compare-agents.gguf"
    subprocess.run([str(a.build / "weft-synth"), *SYNTH, "-o", str(path)], check=True, stdout=subprocess.DEVNULL)
    return path


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--llama", type=pathlib.Path)
    p.add_argument("--model", type=pathlib.Path)
    p.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    p.add_argument("--threads", type=int, help="default: one for each core that servers have")
    p.add_argument("--runs", type=int, default=2)
    p.add_argument("--port", type=int, default=18090)
    p.add_argument("--only", default=",".join(ROWS))
    p.add_argument("--servers", default=",".join(SERVERS))
    p.add_argument("--split-cores", action="store_true", help="the load generator has a core of its own")
    p.add_argument("--tables", action="store_true", help="the table of every run on stderr")
    p.add_argument("--json", type=pathlib.Path)
    a = p.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a flood has thousands of connections
    servers = [s for s in a.servers.split(",") if s != "llama" or a.llama]
    a.build = a.build.resolve()
    a.server_cores, a.load_cores = split_cores() if a.split_cores else (None, None)
    a.threads = a.threads or len(a.server_cores or os.sched_getaffinity(0))
    a.model = a.model or synth(a)
    a.words_per_token = measure_words(a)
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "command": f"tests/bench/compare_agents.py --threads {a.threads} --runs {a.runs} --only {a.only} --servers {','.join(servers)}"
        + (" --split-cores" if a.split_cores else ""),
        "cpu": cpu_name(),
        "threads": a.threads,
        "model": "weft-synth " + " ".join(SYNTH) if a.model.name == "weft-compare-agents.gguf" else a.model.name,
        "words_per_token": a.words_per_token,
        "rows": {},
    }
    for name in a.only.split(","):
        row = ROWS[name]
        runs = {s: [] for s in servers if s != "weft-host" or "host_kv" in row}
        for i in range(a.runs):
            for s in runs if i % 2 == 0 else reversed(runs):
                began = time.monotonic()
                runs[s].append(row["run"](a, row, s))
                print(f"  {name} run {i + 1}, {s}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        sums = {s: row["sum_up"](of_one) if "sum_up" in row else {} for s, of_one in runs.items()}
        print_row(name, runs, sums)
        settings = {k: v for k, v in row.items() if not callable(v)}
        result["rows"][name] = {"settings": settings, "runs": runs, "sums": sums}
        if a.json:
            a.json.write_text(json.dumps(result, indent=1) + "\n")


main()
