#!/usr/bin/env python3
"""What the next turn of a long context costs after a restart, an upgrade, and a time in which the model was unloaded: with
the prefix cache on disk (kv-disk) and without it.

usage: WEFT_BUILD=BUILD tests/bench/kept_context.py MODEL.gguf [--tokens 2500] [--rounds 3]

Each round has a context of its own. A turn computes it, the event follows, and the same turn comes again. Printed for each
event: CPU seconds of the worker and seconds until the second turn's first token, cached tokens, and CPU seconds of the
first turn. The logits of both turns must have the same digest. CPU seconds depend little on what else runs on the
machine; seconds do.
"""
import argparse
import os
import pathlib
import signal
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "e2e"))

from manager import adopt, wait_end  # noqa: E402
from upgrading import upgrade  # noqa: E402
from weftd import Weftd, random_tokens, wait_until  # noqa: E402

NAME = "context"


def worker(d):
    """Returns the statistics of the model's worker."""
    row, = [m for m in d.admin_request("GET", "/models")[1]["models"] if m["id"] == NAME]
    return row["worker"] if "worker" in row else {"state": row["state"]}


def cpu_s(pid):
    """Returns the CPU seconds of all threads of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def turn(d, prompt):
    """Returns {cpu, seconds, cached, digests} of the answer of one token."""
    pid, begin = worker(d)["pid"], time.monotonic()
    before = cpu_s(pid)
    status, _, answer = d.request("POST", "/v1/completions", {
        "model": NAME, "prompt": prompt, "max_tokens": 1, "ignore_eos": True, "temperature": 0, "logits_digest": True})
    assert status == 200, answer
    return {"cpu": cpu_s(pid) - before, "seconds": time.monotonic() - begin,
            "cached": answer["usage"]["prompt_tokens_details"]["cached_tokens"], "digests": answer["choices"][0]["digests"]}


def load(d):
    d.admin_request("POST", f"/models/{NAME}/load")
    wait_until("the load", lambda: worker(d)["state"] == "serving")


def unload(d):
    d.admin_request("POST", f"/models/{NAME}/unload")
    wait_until("the unload", lambda: worker(d)["state"] != "serving")


class Rounds:
    """Rounds of one event. @disk: the folder of kv-disk, or None."""

    def __init__(self, models, n_tokens, disk):
        self.n_tokens = n_tokens
        self.flags = ("--models-dir", models, "--max-context", n_tokens + 64, "--kv-memory", "512M", "--threads", "2",
                      "--itl-target-ms", "60000", *(("--kv-disk", disk, "--kv-disk-size", "4G") if disk else ()))
        self.disk, self.later = disk, []

    def first_turn(self, d, prompt):
        load(d)
        first = turn(d, prompt)
        assert first["cached"] == 0, first
        if self.disk:
            wait_until("the pages on disk", lambda: worker(d)["disk_saved_tokens"] >= self.n_tokens // 32 * 32 - 32)
        return first

    def second_turn(self, d, prompt):
        load(d)
        return turn(d, prompt)

    def restart(self, prompt):
        with Weftd(*self.flags, model="") as d:
            first = self.first_turn(d, prompt)
        with Weftd(*self.flags, model="") as d:
            return first, self.second_turn(d, prompt)

    def unload(self, prompt):
        with Weftd(*self.flags, model="") as d:
            first = self.first_turn(d, prompt)
            unload(d)
            return first, self.second_turn(d, prompt)

    def upgrade(self, prompt):
        with Weftd(*self.flags, model="") as d:
            first = self.first_turn(d, prompt)
            pid = upgrade(d)
            d.process.wait()
            try:
                return first, self.second_turn(d, prompt)
            finally:
                os.kill(pid, signal.SIGTERM)
                wait_end(pid)


def report(event, kept, pairs):
    for first, second in pairs:
        assert first["digests"] == second["digests"], "other logits"

    def median(turns, key):
        return statistics.median(t[key] for t in turns)
    firsts, seconds = zip(*pairs)
    print(f"{event:8} kv-disk={kept:3} first turn: {median(firsts, 'cpu'):.2f} CPU s; then {median(seconds, 'cpu'):.2f} CPU s, "
          f"{median(seconds, 'seconds'):.1f} s, {median(seconds, 'cached'):.0f} tokens cached", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=2500)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    adopt()
    with tempfile.TemporaryDirectory() as models:
        os.symlink(os.path.abspath(arguments.model), os.path.join(models, NAME + ".gguf"))
        for event, kept in (("restart", "no"), ("restart", "yes"), ("unload", "yes"), ("upgrade", "yes")):
            pairs = []
            for i in range(arguments.rounds):
                with tempfile.TemporaryDirectory() as disk:
                    rounds = Rounds(models, arguments.tokens, disk if kept == "yes" else None)
                    pairs.append(getattr(rounds, event)(random_tokens(i, arguments.tokens)))
            report(event, kept, pairs)


main()
