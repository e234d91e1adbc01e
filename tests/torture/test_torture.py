"""Calls of weftd that fail, one at a time: those that once broke it, a sample of all others, and a machine that has nothing left.
tests/torture/run tries every place."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent / "e2e")]
import scenes  # noqa: E402
from lives import Standing, make  # noqa: E402
from state import FILE, ROLES, State, explain  # noqa: E402
from weftd import BUILD, Skip, main  # noqa: E402

PROGRAM = str(BUILD / "tests" / "torture" / "weftd-torture")

# (scene, process, call, function among those that led to it, error): what each did is in docs/measurements/robustness.md.
REPAIRED = [
    ("health", "front", "calloc", "conn_accept", "ENOMEM"),
    ("health", "front", "realloc", "http_feed", "ENOMEM"),
    ("health", "front", "realloc", "respond_send_head", "ENOMEM"),
    ("health", "front", "malloc", "route_find", "ENOMEM"),
    ("pipelined", "front", "realloc", "conn_retain_ahead", "ENOMEM"),
    ("admin", "front", "malloc", "add_model", "ENOMEM"),
    ("reload", "front", "malloc", "tls_config_init", "ENOMEM"),
    ("embeddings", "front", "send", "chan_flush", "ECONNRESET"),
    ("grammar", "front", "malloc", "regex_of", "ENOMEM"),
    ("grammar", "front", "malloc", "schema_read", "ENOMEM"),
    ("grammar", "worker", "malloc", "read_doc", "ENOMEM"),
    ("grammar", "worker", "calloc", "automaton_analyse", "ENOMEM"),
    ("grammar", "worker", "calloc", "grammar_state_new", "ENOMEM"),
    ("tools", "front", "malloc", "object_decode", "ENOMEM"),
    ("swap", "front", "memfd_create", "workers_new", "ENOMEM"),
    ("swap", "front", "calloc", "model_new", "ENOMEM"),
    ("load", "front", "realloc", "port_submit", "ENOMEM"),
    ("start", "front", "eventfd", "front_serve", "EMFILE"),
    ("start", "front", "open64", "kvdisk_open", "EMFILE"),
    ("start", "front", "fgets", "read_keys", "EIO"),
    ("start", "front", "open64", "files_open", "EMFILE"),
    ("start", "front", "open64", "tls_read_key", "EMFILE"),
    ("start", "front", "malloc", "use_certificates", "ENOMEM"),
    ("start", "front", "malloc", "use_key", "ENOMEM"),
    ("start", "front", "malloc", "parser_parse", "ENOMEM"),
    ("start", "worker", "calloc", "new_sched", "ENOMEM"),
    ("start", "worker", "mmap64", "cpu_open_parts", "ENOMEM"),
    ("start", "worker", "fstat64", "shard_has_changed", "EIO"),
]


def fail(scene, cases):
    """Lets a call of each of @cases fail in @scene."""
    state = State(PROGRAM)
    life = make(PROGRAM, state, scene)
    try:
        sites = life.notes()
        explain(PROGRAM, sites)
        if not any(re.search(r"\.c:\d", s.where(PROGRAM)) for s in sites):
            raise Skip("without line numbers functions cannot be told apart; build with -Dc_args=-g1")
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


class Lasting:
    """A daemon for calls that fail again and again, until they do not."""

    def __init__(self, scene, *flags):
        self.life = Standing(PROGRAM, State(PROGRAM), scene, flags)

    def __enter__(self):
        self.life.open()
        return self.life

    def __exit__(self, kind, error, trace):
        if kind and self.life.d:
            print("# " + self.life.d.log[-3000:].replace("\n", "\n# "), file=sys.stderr)
        self.life.close()


def fail_all(life, call, error, also=(429, 503, 529), **more):
    """All calls of a kind fail while the scene runs, at least one and for 0.3 s; then it serves as before. What was answered, and how many failed."""
    over = threading.Event()

    def act():
        got = life.act()
        over.set()
        return got

    def release():
        begin = time.monotonic()
        while not over.wait(0.02) and not (life.state.hits and time.monotonic() > begin + 0.3):
            pass
        life.state.disarm()
    life.state.arm(call, error, lasts=1, **more)
    got = scenes.parallel([act, release])[0]
    hits = life.state.hits
    for (kind, value), should in zip(got, life.expected):
        assert kind in ("ok", "cut", "error") or kind == "status" and value[0] in also, (call, kind, value)
        assert kind != "ok" or value == should[1], (call, value, should)
    assert life.d.process.poll() is None, (call, life.d.process.returncode, life.d.log[-1500:])
    why = life.recovers()
    assert not why, (call, why, life.d.log[-1500:])
    return got, hits


def test_no_memory_at_all_and_then_again():
    for scene in ("complete", "chat stream", "grammar", "stored", "tls"):
        with Lasting(scene) as life:
            for call in ("malloc", "calloc", "realloc"):
                _, hits = fail_all(life, call, "ENOMEM", also=(400, 404, 503, 529), roles=1)
                assert hits or call == "calloc", f"{scene}: no {call} failed: the test is blind"


def test_no_descriptors_while_a_worker_dies():
    with Lasting("new worker") as life:
        for call in ("socketpair", "pipe2"):
            life.state.arm(call, "EMFILE", lasts=1, roles=1)
            life.d.kill_worker(life.d.worker)
            end = time.monotonic() + 60
            while not life.state.hits:
                assert time.monotonic() < end, call
                time.sleep(0.01)
            life.state.disarm()
            why = life.recovers()
            assert not why, why


def test_a_full_disk_and_a_full_journal_change_no_answer():
    with Lasting("disk") as life:
        end = time.monotonic() + 60
        while " kv_disk " not in life.d.log:  # prefixes are written while nothing else is done
            got, _ = fail_all(life, "pwrite64", "ENOSPC", roles=2)
            assert got == life.expected and time.monotonic() < end, got
    with Lasting("complete") as life:
        got, hits = fail_all(life, "write", "ENOSPC", file_kind=FILE)
        assert hits and got == life.expected, (hits, got)


def test_clocks_jump():
    with Lasting("stream") as life:
        for field, seconds in (("realtime_s", 400 * 86400), ("realtime_s", -400 * 86400), ("monotonic_s", 7200)):
            def jump():
                time.sleep(0.002)
                life.state.set(**{field: seconds})
            got = scenes.parallel([life.act, jump])[0]
            assert got == life.expected, (field, seconds, got)
            assert not life.recovers()
        assert life.d.stats()["worker"]["deaths"] == 0, life.d.log


def test_a_process_that_stands_still_or_is_killed_for_memory():
    with Lasting("long stream", "--hang-timeout-ms", "1500") as life:
        for pid, seconds in ((life.d.worker, 0.5), (life.d.process.pid, 0.5), (life.d.worker, 3)):
            def stop():
                time.sleep(0.01)
                os.kill(pid, signal.SIGSTOP)
                time.sleep(seconds)
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:  # it was replaced
                    pass
            assert scenes.parallel([life.act, stop])[0] == life.expected
            assert not life.recovers()
        d = life.d
        os.kill(d.worker, signal.SIGKILL)
        assert not life.recovers()
        os.kill(d.process.pid, signal.SIGKILL)  # while the tier on the disk is open
        d.process.wait()
        with open(d.log_path, "w") as log:
            d.process = subprocess.Popen([PROGRAM, *map(str, d.flags), "--admin-socket", d.admin], stderr=log)
        d.wait_ready()
        assert not life.recovers()


main(globals())
