"""Faults around the daemon: the log has no reader, descriptors or disk space run out. The daemon continues to serve."""
import fcntl
import os
import resource
import signal
import socket
import tempfile
import time

from weftd import BACKEND, LIMIT_S, Weftd, beside, main, random_tokens, wait_until

FLAGS = ("--max-context", "2048", "--kv-pages", "256", "--backend", BACKEND, "--threads", "2")


def test_a_log_that_nobody_reads_stops_nothing():
    """stderr is a full pipe. The streams continue, also those of a worker that is killed meanwhile."""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, 1031, 4096)  # F_SETPIPE_SZ
    os.set_blocking(write_end, False)
    try:
        while True:
            os.write(write_end, b"x" * 512)
    except BlockingIOError:
        pass
    os.set_blocking(write_end, True)
    with Weftd(*FLAGS, wait=False, stderr=write_end) as d:
        wait_until("it does not serve", lambda: d.stats_or_none() and d.stats()["worker"]["state"] == "serving")
        d.port = d.listening_port()
        for _ in range(50):
            assert d.request("GET", "/nothing")[0] == 404
        d.kill_worker()
        assert len(d.complete("hello", max_tokens=8, ignore_eos=True)["token_ids"]) == 8
        assert os.get_blocking(write_end), "the pipe is not the daemon's alone"
        os.read(read_end, 1 << 16)
        assert d.request("GET", "/nothing")[0] == 404
        assert d.request("GET", "/nothing")[0] == 404
        text = os.read(read_end, 1 << 16).decode()
        assert "warn front log_dropped lines=" in text and 'path="/nothing" status=404' in text, text
    os.close(read_end)
    os.close(write_end)


def test_a_log_at_the_limit_of_files_stops_nothing():
    limit = 32 << 20
    with tempfile.TemporaryFile() as log:
        log.truncate(limit)
        log.seek(limit)
        with Weftd(*FLAGS, wait=False, stderr=log, popen={"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))}) as d:
            wait_until("it does not serve", lambda: d.process.poll() is not None or d.stats_or_none() and d.stats()["worker"]["state"] == "serving")
            assert d.process.poll() is None, d.process.returncode
            d.port = d.listening_port()
            assert len(d.complete("hello", max_tokens=8, ignore_eos=True)["token_ids"]) == 8 and d.process.poll() is None


def few_files(soft, hard):
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))}


def occupy(d, n):
    """Opens connections that send nothing."""
    sockets = []
    for _ in range(n):
        s = socket.socket()
        s.settimeout(LIMIT_S)
        s.connect(("127.0.0.1", d.port))
        sockets.append(s)
    return sockets


def test_a_worker_is_replaced_though_all_descriptors_are_taken():
    with Weftd(*FLAGS, "--max-connections", "1000", popen=few_files(160, 160)) as d:
        assert " connections_limited " in d.log, d.log
        sockets = occupy(d, 400)
        wait_until("none was displaced", lambda: d.stats()["front"]["displaced"] > 200)
        d.kill_worker()
        working = d.connect()
        body = {"prompt": "hello", "max_tokens": 8, "ignore_eos": True}
        status, _, answer = d.request("POST", "/v1/completions", body, connection=working)
        assert status == 200 and answer["usage"]["completion_tokens"] == 8, answer
        for s in sockets:
            s.close()
        working.close()
        assert d.stats()["worker"]["deaths"] == 1


def test_a_worker_that_could_not_be_started_is_started_later():
    """A worker cannot start without a descriptor: the front has none free after the limit is lowered."""
    with Weftd(*FLAGS) as d:
        _, hard = resource.prlimit(d.process.pid, resource.RLIMIT_NOFILE)
        pid = d.worker_pid()
        resource.prlimit(d.process.pid, resource.RLIMIT_NOFILE, (3, hard))
        d.kill_worker(pid)
        wait_until("it was not tried", lambda: d.log.count(" worker_spawn ") >= 2)
        resource.prlimit(d.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert len(d.complete("hello", max_tokens=8, ignore_eos=True)["token_ids"]) == 8


def test_open_files_are_raised_to_what_is_needed():
    with Weftd(*FLAGS, "--max-connections", "1000", popen=few_files(64, 4096)) as d:
        assert " connections_limited " not in d.log, d.log
        sockets = occupy(d, 900)
        assert d.health() == 200
        wait_until("they are not all there", lambda: d.stats()["front"]["connections"] >= 900)
        for s in sockets:
            s.close()


@beside
def test_who_stood_still_does_not_blame_the_worker():
    """The worker gets no step done for a moment, and then the front is stopped for longer than a worker may hang, as on a machine
    that was paused."""
    with Weftd(*FLAGS, "--hang-timeout-ms", "5000") as d:
        stream = d.stream("/v1/completions", {"prompt": random_tokens(1, 20), "max_tokens": 1500, "ignore_eos": True})
        next(stream)
        worker, front = d.worker_pid(), d.process.pid
        os.kill(worker, signal.SIGSTOP)
        time.sleep(0.6)
        os.kill(front, signal.SIGSTOP)
        time.sleep(5.2)
        os.kill(front, signal.SIGCONT)
        time.sleep(0.3)
        os.kill(worker, signal.SIGCONT)
        for _ in stream:
            pass
        assert d.stats()["worker"]["hangs"] == 0, d.log


main(globals())
