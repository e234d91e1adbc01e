"""weft-bench replays a trace of agents against a real daemon: two tenants with keys, sessions, and a queue that overflows."""
import json
import os
import subprocess
import tempfile

from weftd import LIMIT_S, Weftd, main, program

TRACE = """pool pages=100
agents team tenant=1 count=2 turns=3 system=200 first=20-60 more=10-30 output=8-12 pause=10-50
agents lone tenant=2 weight=500 count=3 start=0-50 turns=1 first=100 output=6
"""


def replay(daemon, folder, *args, trace=TRACE):
    path, result = os.path.join(folder, "a.trace"), os.path.join(folder, "a.json")
    with open(path, "w") as f:
        f.write(trace)
    done = subprocess.run([program("weft-bench"), "agents", "--url", daemon.url(), "--trace", path, "--endpoint", "completions",
                           "--json", result, *args], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    with open(result) as f:
        return json.load(f), done.stdout


def tenants(folder):
    keys, conf = os.path.join(folder, "keys"), os.path.join(folder, "tenants.conf")
    with open(keys, "w") as f:
        f.write("one:secret-key-1\ntwo:secret-key-2\n")
    with open(conf, "w") as f:
        f.write("[one]\n[two]\nweight = 0.5\n")
    return "--api-keys", keys, "--tenants", conf


def test_the_table_agrees_with_the_daemon():
    with tempfile.TemporaryDirectory() as folder, Weftd("--max-context", "2048", "--kv-pages", "256", *tenants(folder)) as d:
        r, out = replay(d, folder, "--keys", "secret-key-")
        team, lone = r["tenants"]
        assert (team["turns"], team["finished"], team["jobs"]) == (6, 6, 2), out
        assert (lone["turns"], lone["finished"], lone["jobs"], lone["output_tokens"]) == (3, 3, 3, 18), out
        assert team["short"] == team["failed"] == team["refused"] == 0 and 48 <= team["output_tokens"] <= 72, out
        for t in r["tenants"]:
            # The vocabulary holds the words of the planned trace.
            assert 0.8 < t["prompt_tokens"] / t["planned_prompt_tokens"] < 1.25, t
            assert t["ttft_ms"]["n"] == t["turns"] and t["itl_ms"]["n"] == t["received_pieces"] - t["turns"], t
        assert team["cached_tokens"] > team["prompt_tokens"] * 0.4, "later turns find the earlier ones' pages"
        served = {t["name"]: t["prompt_tokens"] + t["output_tokens"] for t in r["tenants"]}
        x = [served["team"], served["lone"] / 0.5]
        assert abs(r["jain"] - sum(x) ** 2 / (2 * sum(v * v for v in x))) < 1e-9
        text = d.request("GET", "/metrics", headers={"Authorization": "Bearer secret-key-1"})[2]
        counted = {line.split('tenant="')[1].split('"')[0]: int(float(line.rsplit(" ", 1)[1]))
                   for line in text.splitlines() if line.startswith("weft_tenant_output_tokens_total{")}
        assert counted["two"] == 18 and counted["one"] == team["output_tokens"], counted


def test_an_overflow_is_refused_with_retry_after():
    with tempfile.TemporaryDirectory() as folder, Weftd("--max-running", "1", "--max-queued", "2", "--max-context", "2048") as d:
        trace = "pool pages=100\nagents many tenant=1 count=30 turns=1 first=50 output=1500\n"
        r, out = replay(d, folder, "--retries", "0", trace=trace)
        many = r["all"]
        assert many["finished"] + many["refused"] == 30 and many["failed"] == many["refused"] > 0, out
        assert many["refused_without_retry_after"] == 0 and many["refusal_ms"]["n"] == many["refused"]
        assert many["output_tokens"] == 1500 * many["finished"]


main(globals())
