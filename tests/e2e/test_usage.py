"""Usage of each key and model: what is counted, persistence across restarts and upgrades, who may read it, and
quotas."""
import csv
import io
import json
import os
import signal
import sqlite3
import subprocess
import tempfile

from manager import wait_end, wait_until
from upgrading import FLAGS, LONG, Daemon, Stream, upgrade
from weftd import LIMIT_S, Weftd, main, program


def weftctl(daemon, *args):
    done = subprocess.run([program("weftctl"), "--socket", daemon.admin, *args], capture_output=True, text=True, timeout=LIMIT_S)
    return done.returncode, done.stdout + done.stderr


def ask(daemon, key, tokens=8):
    return daemon.request(
        "POST", "/v1/completions", {"prompt": "hello", "max_tokens": tokens, "ignore_eos": True}, {"Authorization": "Bearer " + key}
    )


def own(daemon, key):
    status, _, body = daemon.request("GET", "/v1/usage", None, {"Authorization": "Bearer " + key})
    assert status == 200, body
    return body


def write(path, text):
    with open(path, "w") as f:
        f.write(text)
    return path


def setup(folder, tenants=""):
    keys = write(os.path.join(folder, "keys"), "alice:ka\nlaptop:kl\nbob:kb\n")
    os.chmod(keys, 0o600)
    conf = write(os.path.join(folder, "tenants.conf"), "[alice]\nkeys = laptop\n" + tenants)
    return ("--api-keys", keys, "--tenants", conf, "--state-file", os.path.join(folder, "state.db"))


def counted(path):
    """The requests in the database, as an operator reads it."""
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    n = db.execute("SELECT sum(requests) FROM usage").fetchone()[0]
    db.close()
    return n


def test_counts_outlive_a_restart_and_each_key_sees_its_own():
    with tempfile.TemporaryDirectory() as folder:
        flags = setup(folder)
        with Weftd(*flags) as d:
            for key in ("ka", "kl", "kl", "kb"):
                status, _, body = ask(d, key)
                assert status == 200, body
            prompt = body["usage"]["prompt_tokens"]
            rows = own(d, "kl")["data"]
            assert len(rows) == 1 and rows[0]["requests"] == 2 and rows[0]["output_tokens"] == 16, rows
            assert rows[0]["prompt_tokens"] == 2 * prompt, rows
            assert own(d, "kl")["tenant"] == "alice" and own(d, "kl")["key"] == "laptop"
            assert d.request("GET", "/v1/usage")[0] == 401
        with Weftd(*flags) as d:
            assert ask(d, "kl")[0] == 200
            assert own(d, "kl")["data"][0]["requests"] == 3
            assert own(d, "ka")["data"][0]["requests"] == 1
            code, text = weftctl(d, "usage")
            lines = [line.split() for line in text.splitlines()[2:]]
            assert code == 0 and [(r[0], r[1], r[3], r[6]) for r in lines] == [
                ("alice", "alice", "1", "8"), ("alice", "laptop", "3", "24"), ("bob", "bob", "1", "8")], text
            code, text = weftctl(d, "usage", "--csv", "--since=2026-01")
            table = list(csv.DictReader(io.StringIO(text)))
            assert code == 0 and sum(int(r["requests"]) for r in table) == 5, text
            code, text = weftctl(d, "usage", "--csv", "--since=2999-12-31")
            assert code == 0 and len(text.splitlines()) == 1, text
            for since in ("yesterday", "2026-13", "2026-02-30", "2026-1-1"):
                assert weftctl(d, "usage", "--since=" + since)[0] == 64, since
            assert len(json.loads(weftctl(d, "--json", "usage")[1])["usage"]) == 3


def test_counts_are_written_while_the_daemon_runs():
    with tempfile.TemporaryDirectory() as folder:
        flags = setup(folder)
        with Weftd(*flags) as d:
            assert ask(d, "kb")[0] == 200
            wait_until("the count", lambda: counted(flags[-1]) == 1)
            d.process.send_signal(signal.SIGKILL)
            d.process.wait(LIMIT_S)
        with Weftd(*flags) as d:
            assert own(d, "kb")["data"][0]["requests"] == 1


def test_an_upgrade_neither_loses_nor_doubles():
    with tempfile.TemporaryDirectory() as folder:
        with Daemon(*setup(folder), *FLAGS) as d:
            for _ in range(3):
                assert ask(d, "kb")[0] == 200
            stream = Stream(d, {**LONG, "max_tokens": 400}, key="kb")
            upgrade(d)
            stream.join(LIMIT_S)
            assert len(stream.tokens) == 400, stream.error
            for _ in range(2):
                assert ask(d, "kb")[0] == 200
            wait_end(d.process.pid)  # the old daemon has written its own counts

            def own_counts():
                row = own(d, "kb")["data"][0]
                return (row["requests"], row["output_tokens"])

            ask(d, "kb")  # the next daemon reads the counts when it writes its own counts
            wait_until("all counts", lambda: own_counts() == (7, 400 + 6 * 8))


def test_quotas_of_a_day_hold_across_a_restart():
    with tempfile.TemporaryDirectory() as folder:
        flags = setup(folder, "requests-per-month = 1000\ntokens-per-day = 50\n")
        with Weftd(*flags) as d:
            assert ask(d, "ka", 30)[0] == 200
            status, headers, body = ask(d, "kl", 30)
            assert status == 429 and body["error"]["code"] == "insufficient_quota", body
            assert "tokens per day, the limit is 50" in body["error"]["message"], body
            assert 0 < int(headers["Retry-After"]) <= 86400 and headers["X-Should-Retry"] == "false", headers
            assert ask(d, "kb", 30)[0] == 200, "others have their own day"
        with Weftd(*flags) as d:
            assert ask(d, "ka", 30)[0] == 429
            assert ask(d, "ka", 2)[0] == 200, "what is left can be used"
            limits = {row["name"]: row for row in own(d, "ka")["limits"]}
            assert limits["tokens_per_day"]["limit"] == 50 and limits["tokens_per_day"]["used"] > 30, limits
            assert limits["requests_per_month"]["used"] == 2, limits
            assert limits["tokens_per_day"]["resets_at"].endswith("T00:00:00Z"), limits


main(globals())
