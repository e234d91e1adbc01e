"""Calls of weftd that fail, one at a time: those that once broke it, a sample of all others, and a machine that has nothing left.
tests/torture/run tries every place."""
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent / "e2e")]
import scenes  # noqa: E402
from lives import PROBE, Daemon, Standing, make  # noqa: E402
from state import ROLES, SOCKET, State  # noqa: E402
from weftd import BUILD, main, program  # noqa: E402

PROGRAM = str(BUILD / "tests" / "torture" / "weftd-torture")

# (scene, process, call, function among those that led to it, error): what each did is in docs/measurements/robustness.md.
REPAIRED = [
    ("health", "front", "calloc", "conn_accept", "ENOMEM"),
    ("health", "front", "realloc", "http_feed", "ENOMEM"),
    ("health", "front", "realloc", "send_head", "ENOMEM"),
    ("health", "front", "malloc", "route_find", "ENOMEM"),
    ("pipelined", "front", "realloc", "keep", "ENOMEM"),
    ("admin", "front", "malloc", "add_model", "ENOMEM"),
    ("reload", "front", "malloc", "tls_config_init", "ENOMEM"),
    ("embeddings", "front", "send", "chan_flush", "ECONNRESET"),
]


def fail(scene, cases):
    """Lets a call of each of @cases fail in @scene."""
    state = State(PROGRAM)
    life = make(PROGRAM, state, scene)
    try:
        sites = life.notes()
        for process, call, function, error in cases:
            found = [s for s in sites if s.call == call and ROLES[s.role] == process and f" {function} " in f" {s.where(PROGRAM)} "]
            assert found, f"{scene}: {call} of {function} in the {process} is not reached: the test is blind"
            outcome, defect = life.run(found[0], error)
            print(f"# {scene}: {process} {call} {error} in {function}: {outcome}", file=sys.stderr)
            assert not defect, (process, call, function, defect)
    finally:
        life.close()


def test_calls_that_broke_something_once():
    for scene in dict.fromkeys(r[0] for r in REPAIRED):
        fail(scene, [r[1:] for r in REPAIRED if r[0] == scene])


main(globals())
