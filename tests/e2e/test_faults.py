"""What goes wrong around the daemon: nobody reads its log, descriptors or disk run out. It serves on."""
import fcntl
import os
import time

from weftd import BACKEND, Weftd, main

FLAGS = ("--max-context", "2048", "--kv-pages", "256", "--backend", BACKEND, "--threads", "2")


def wait_until(what, condition, limit_s=60):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def test_a_log_that_nobody_reads_stops_nothing():
    """stderr is a full pipe. The streams of a worker that dies meanwhile go on, too."""
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
        os.set_blocking(read_end, False)
        os.read(read_end, 1 << 16)
        assert d.request("GET", "/nothing")[0] == 404
        assert d.request("GET", "/nothing")[0] == 404
        text = os.read(read_end, 1 << 16).decode()
        assert "warn front log_dropped lines=" in text and "path=- status=404" in text, text
    os.close(read_end)
    os.close(write_end)


main(globals())
