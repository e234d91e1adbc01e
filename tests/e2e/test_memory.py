"""Without free memory every route answers, with 503 where it needs memory, and the daemon recovers."""
import json
import os
import re
import resource
import subprocess

from weftd import Skip, Weftd, main, program, synth, wait_until

FREE = (0, 256 << 10, 1 << 20, 3 << 20)  # bytes of address space that the front may still allocate
ROOM = 768 << 20  # bytes of address space of a daemon that knows of it from the start
SMALL = ("--max-context", "512", "--threads", "1", "--kv-memory", "4M")
TEXT = "some text"
PADDING = "x" * 9000  # a body above 8 KB is read on the pool
CHAT = [{"role": "user", "content": TEXT}]
SCHEMA = {"type": "object", "properties": {f"p{i}": {"pattern": f"^[a-z]{{3,9}}-{i}$"} for i in range(60)}}
REQUESTS = [
    ("GET", "/health", None),
    ("GET", "/v1/models", None),
    ("GET", "/metrics", None),
    ("GET", "/", None),
    ("POST", "/tokenize", {"prompt": TEXT}),
    ("POST", "/v1/completions", {"prompt": TEXT, "max_tokens": 2}),
    ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2, "guided_json": SCHEMA}),
    ("POST", "/v1/chat/completions", {"messages": CHAT, "max_tokens": 2}),
    ("POST", "/v1/responses", {"input": TEXT, "max_output_tokens": 2}),
    ("POST", "/v1/messages", {"messages": CHAT, "max_tokens": 2}),
    ("POST", "/v1/embeddings", {"input": [TEXT, "b"]}),
    ("POST", "/api/chat", {"messages": CHAT, "options": {"num_predict": 2}}),
    ("POST", "/api/generate", {"prompt": TEXT, "options": {"num_predict": 2}}),
    ("POST", "/v1/score", {"text_1": TEXT, "text_2": ["a", "b"]}),
    ("POST", "/v1/completions", {"prompt": "x" * 3000000, "max_tokens": 2}),
]


def size_of(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(next(line for line in file if line.startswith("VmSize")).split()[1]) << 10


def ask_all(d, order):
    """Returns the status of each request; 0 where the connection was closed, as when it cannot be accepted."""
    statuses = []
    for method, path, body in order:
        try:
            statuses.append(d.request(method, path, body and json.dumps({**body, "padding": PADDING}))[0])
        except ConnectionError:
            statuses.append(0)
        assert d.process.poll() is None, (path, d.process.returncode, d.log)
    return statuses


def resident(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(next(line for line in file if line.startswith("VmRSS")).split()[1]) << 10


def test_the_loop_returns_no_memory_to_the_system_and_a_thread_does():
    """By jemalloc's report of its options, and by what a daemon keeps of large bodies."""
    report = subprocess.run([program("weftd"), "--version"], capture_output=True, text=True, env={**os.environ, "MALLOC_CONF": "stats_print:true"}).stderr
    if "jemalloc statistics" not in report:
        raise Skip("the program is not linked with jemalloc")
    for option in ("oversize_threshold: 0", "background_thread: true"):
        assert f"opt.{option}\n" in report or f"opt.{option} " in report, report[:3000]
    with Weftd(model=synth("memory-32k", "--shape", "tiny,context=32768", "--format", "Q8_0", "--seed", "3")) as d:
        pid = d.process.pid
        before = resident(pid)
        body = json.dumps({"input": "a", "max_output_tokens": 1, "store": False, "tools": [{"type": "web_search_preview", "junk": "x" * (24 << 20)}]})
        assert d.request("POST", "/v1/responses", body)[0] == 200
        wait_until("the memory of a body", lambda: resident(pid) < before + (12 << 20))


def test_the_largest_body_is_what_the_memory_at_the_start_allows():
    """Reading a body takes up to 22 times its size, so the largest is a sixty-fourth part of what the model leaves."""
    path, head = "/tokenize", len(json.dumps({"prompt": "weft", "padding": ""}))
    limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))}
    with Weftd(*SMALL, popen=limit) as d:
        words = re.search(r" bodies_limited max_body=(\d+) available=(\d+)", d.log)
        assert words, d.log
        most, available = map(int, words.groups())
        assert most == available // 64 and 2 << 20 < most < ROOM // 64, words
        for n, expected in ((most, 200), (most + 1, 413), (32 << 20, 413), (most, 200)):
            status, _, answer = d.request("POST", path, json.dumps({"prompt": "weft", "padding": "x" * (n - head)}))
            assert status == expected, (n, status, answer)
            assert status == 200 or f"larger than {most} bytes" in answer["error"]["message"], answer
        values = '{"prompt":"weft","padding":[' + ",".join("1" * 4_000_000)[:most - 100].rstrip(",") + "]}"
        assert d.request("POST", path, values)[0] == 200
        assert d.stats()["worker"]["starts"] == 1 and d.process.poll() is None, d.log
    with Weftd(*SMALL[:-1], "128M", popen=limit) as d:
        left = int(re.search(r" bodies_limited max_body=\d+ available=(\d+)", d.log)[1])
        assert 100 << 20 < available - left < 150 << 20, (available, left)  # what the model takes does not count
    with Weftd(*SMALL, "--max-body", "1M", popen=limit) as d:
        assert " bodies_limited " not in d.log, d.log


def test_without_memory_every_route_answers_and_the_daemon_recovers():
    model = synth("memory-32k", "--shape", "tiny,context=32768", "--format", "Q8_0", "--seed", "3")
    for number, free in enumerate(FREE):
        with Weftd("--max-context", "8192", model=model) as d:
            pid = d.process.pid
            before = resource.prlimit(pid, resource.RLIMIT_AS)
            resource.prlimit(pid, resource.RLIMIT_AS, (size_of(pid) + free, before[1]))
            order = REQUESTS[number * 4:] + REQUESTS[:number * 4]
            statuses = ask_all(d, order)
            print("#", free, statuses)
            for (_, path, _), status in zip(order, statuses):
                assert status in (0, 200, 400, 404, 413, 501, 503), (free, path, status)
            if free == 0:
                assert 503 in statuses, statuses
            resource.prlimit(pid, resource.RLIMIT_AS, before)
            assert d.complete("a", max_tokens=2)["token_ids"]
            assert 0 not in ask_all(d, REQUESTS)


main(globals())
