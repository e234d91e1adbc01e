"""weftctl against a daemon that is only a script: what it prints, asks, and how it fails."""
import contextlib
import copy
import fcntl
import json
import os
import pty
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import threading
import time
import urllib.parse

from weftd import LIMIT_S, Skip, beside, main, parallel, program, wait_until

FOLDER = tempfile.TemporaryDirectory(prefix="weft-ctl-")
SOCKET = os.path.join(FOLDER.name, "admin.sock")
STATS = {
    "version": "1.2.3", "uptime_s": 3725, "health": "serving",
    "model": {"id": "tiny", "max_context": 4096, "n_pages": 512, "page_tokens": 32},
    "front": {"connections": 7, "running": 3, "queued": 2, "requests": 1234, "ok": 1200, "client_errors": 20,
              "server_errors": 4, "rejected": 5, "cancelled": 6, "prompt_tokens": 98765, "output_tokens": 43210, "resumed": 8},
    "worker": {"state": "serving", "pid": 4711, "starts": 2, "deaths": 1, "hangs": 0, "age_ms": 45, "steps": 5555,
               "prompt_tokens": 1000, "cached_tokens": 600, "output_tokens": 2000, "preemptions": 9, "evicted": 10,
               "running": 3, "waiting": 1, "pages": 512, "pages_free": 100, "pages_cached": 284, "pages_used": 128,
               "last_rows": 16, "last_seqs": 3, "last_step_us": 4200, "first_row_us": 3900, "next_row_us": 210, "last_plan_us": 37},
}
REQUESTS = {"requests": [
    {"id": 17, "request_id": "first", "endpoint": "/v1/chat/completions", "state": "running", "session": "4f1e", "session_from": "x-session-id", "prompt_tokens": 120, "prompt_tokens_done": 120,
     "output_tokens": 40, "cached_tokens": 96, "max_tokens": 256, "age_ms": 1500},
    {"id": 18446744073709551615, "request_id": "a-rather-long-name-of-a-request", "endpoint": "/v1/completions",
     "state": "queued", "prompt_tokens": 1, "prompt_tokens_done": 0, "output_tokens": 0, "cached_tokens": 0, "max_tokens": 16, "age_ms": 90061000},
]}


def http(value, status="200 OK"):
    body = (value if isinstance(value, str) else json.dumps(value)).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Server:
    """Answers each request with answers[(method, path)], bytes to be sent as they are, or a list of them; then closes."""

    def __init__(self, answers, path=SOCKET):
        self.answers, self.seen, self.path = answers, [], path
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(path)
        self.socket.listen()

    def __enter__(self):
        threading.Thread(target=self.serve, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        os.unlink(self.path)

    def serve(self):
        while True:
            try:
                conn = self.socket.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.answer, args=(conn,), daemon=True).start()

    def answer(self, conn):
        with conn:
            data = b""
            while b"\r\n\r\n" not in data:
                more = conn.recv(4096)
                if not more:
                    return
                data += more
            method, path, _ = data.split(b"\r\n")[0].decode().split(" ")
            self.seen.append((method, path))
            answer = self.answers.get((method, path), http({"error": {"message": "no such path", "code": 404}}, "404 Not Found"))
            with contextlib.suppress(BrokenPipeError):
                for part in answer if isinstance(answer, list) else [answer]:
                    conn.sendall(part)
                    time.sleep(0.01)


def run(*args, code=0, env=None, timeout=LIMIT_S):
    """(stdout, stderr); the exit code must be @code, and an error one line."""
    p = subprocess.run([program("weftctl"), *args], capture_output=True, text=True, timeout=timeout,
                       env={**os.environ, "WEFT_ADMIN": SOCKET, **(env or {})})
    assert p.returncode == code, (args, p)
    assert p.stderr.count("\n") == (0 if code == 0 or not p.stderr else 1), p.stderr
    return p.stdout, p.stderr


def test_stats_show_every_figure():
    with Server({("GET", "/stats"): http(STATS)}):
        out, _ = run("stats")
        words = out.replace(":", " ").replace(",", " ").replace(";", " ").split()
        for part in ("model", "front", "worker"):
            for key, value in STATS[part].items():
                if key not in ("age_ms", "last_step_us", "last_plan_us", "first_row_us", "next_row_us"):
                    assert str(value) in words, (key, value, out)
        for text in ("1.2.3", "up 1 h 02 min", "4.2 ms", "37 us", "45.0 ms ago", "25 %"):
            assert text in out, (text, out)
        for text in ("drafts", "disk", "host", "pinned", "prewarm"):
            assert text not in out, (text, out)


def test_all_statistics_have_a_line_with_their_help():
    with Server({("GET", "/stats"): http(STATS)}):
        lines = run("stats", "--all")[0].splitlines()
    lines = [line.split(None, 2) for line in lines if line.startswith("  ")]
    assert len(lines) > 50 and all(len(line) == 3 and line[2].endswith(".") for line in lines), lines
    value = {line[0]: line[1] for line in lines[13:]}
    assert value["preemptions"] == str(STATS["worker"]["preemptions"]) and value["masks"] == "-", value


def test_stats_show_what_is_configured_or_has_happened():
    more = copy.deepcopy(STATS)
    more["worker"].update({"drafted": 200, "accepted": 50, "disk_pages": 900, "disk_pages_used": 7, "disk_snapshots": 5, "disk_loaded_snapshots": 2, "host_offloaded_tokens": 64, "pages_pinned": 3, "prewarm_tokens": 96})
    with Server({("GET", "/stats"): http(more)}):
        out = run("stats")[0]
    for text in ("50 of 200 tokens accepted (25 %)", "7 of 900 pages", "5 snapshots; - written, 2 read", "64 tokens offloaded", "3 pages for sessions", "96 tokens computed"):
        assert text in out, (text, out)


def on_terminal(columns, *args, code=0):
    """What weftctl prints on a terminal of so many columns."""
    pid, fd = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.execv(program("weftctl"), ["weftctl", "--socket", SOCKET, *args])
    text = b""
    with contextlib.suppress(OSError):
        while data := os.read(fd, 65536):
            text += data
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code, text
    return text.decode().replace("\r", "").splitlines()


def test_tables_leave_out_what_does_not_fit_the_terminal():
    one = {"requests": REQUESTS["requests"][:1]}
    with Server({("GET", "/requests"): http(one), ("GET", "/stats"): http(STATS)}):
        for columns in (20, 40, 60, 80, 100, 200):
            lines = on_terminal(columns, "requests")
            words = lines[0].split()
            assert len(lines) == 2 and len(lines[0]) == len(lines[1]) <= columns, lines
            kept = ["ID", "STATE", "PROMPT", "DONE", "CACHED", "OUTPUT", "MAX", "AGE"]
            shown = [w for w in words if w not in ("ENDPOINT", "REQUEST", "SESSION", "FROM", "WAITS", "EXPECTED")]
            assert shown == (kept if columns >= 60 else [w for w in kept if w in shown]) and {"ID", "STATE", "AGE"} <= set(shown), lines
            assert ("ENDPOINT" in words) == (columns >= 80) and ("FROM" in words) == (columns == 200), (columns, lines)


def test_tables_fit_narrow_terminals_and_keep_the_name():
    usage = {"usage": [{"date": time.strftime("%Y-%m-%d", time.gmtime()), "tenant": "default", "key": "alice", "model": "qwen3-8b-q4_k_m", "requests": 12345,
                        "prompt_tokens": 9876543210, "cached_tokens": 5, "output_tokens": 1234567}]}
    served = {"models": [{"id": "qwen3-8b-q4_k_m", "state": "unloaded", "memory_bytes": 1 << 30, "running": 0, "waiting": 0, "loads": 3,
                          "idle_ms": 1, "swap": None, "reason": "a reason that is long"}]}
    tenants = {"tenants": [{"tenant": "default", "class": "interactive", "weight": 1, "running": 1, "queued": 2, "requests": 3, "prompt_tokens": 4}]}
    story = {"records": [{"why": "prompt", "text": "computed its prompt", "at_ms": 400.0, "ms": 1000.0, "steps": 9, "rows": 2424, "row_us": 147}]}
    with Server({("GET", "/usage"): http(usage), ("GET", "/models"): http(served), ("GET", "/tenants"): http(tenants),
                 ("GET", "/stats"): http(STATS), ("GET", "/requests/7/why"): http(story)}):
        commands = {("usage",): "qwen3-8b-q4_k_m", ("ps",): "qwen3-8b-q4_k_m", ("tenants",): "default", ("stats",): "4711",
                    ("stats", "--all"): "preemptions", ("why", "7"): "steps)"}
        for command, name in commands.items():
            whole = run(*command)[0].split()
            for columns in (40, 60, 80):
                lines = on_terminal(columns, *command)
                words = [w for line in lines for w in line.split()]
                assert all(len(line) <= columns for line in lines) and any(name in w for w in words), (command, columns, lines)
                assert command[0] in ("usage", "ps", "tenants") or words == whole, (command, columns, lines)
        assert run("usage")[0].splitlines()[1:] == [
            "TENANT   KEY    MODEL              REQUESTS          PROMPT          CACHED          OUTPUT",
            "default  alice  qwen3-8b-q4_k_m       12345      9876543210               5         1234567"], run("usage")[0]


def test_the_problem_of_a_model_gets_a_line_on_narrow_terminals():
    name = "a-model-whose-name-is-longer-than-the-terminal"
    with tempfile.TemporaryDirectory(prefix="weft-models-") as models:
        with open(os.path.join(models, name + ".gguf"), "wb") as f:
            f.write(b"no model")
        for columns in (20, 40, 400):
            lines = on_terminal(columns, "models", "--models", models)
            at = next(i for i, line in enumerate(lines) if line.startswith(name))
            alone = at + 1 < len(lines) and lines[at + 1].startswith("    ")
            assert alone == (columns < 400) and ("GGUF" in lines[at]) != alone, (columns, lines)


def test_json_is_what_the_daemon_said():
    text = '{"version" : "1.2.3",\n "unknown":[1, 2.50]}'
    with Server({("GET", "/stats"): http(text), ("GET", "/requests"): http(REQUESTS), ("POST", "/drain"): http({"draining": True})}):
        assert run("--json", "stats")[0] == text + "\n"
        assert json.loads(run("--json", "requests")[0]) == REQUESTS
        assert json.loads(run("--json", "drain")[0]) == {"draining": True}


def test_requests_are_a_table_in_columns():
    with Server({("GET", "/requests"): http(REQUESTS)}):
        lines = run("requests")[0].splitlines()
    assert len(lines) == 3 and len({len(line) for line in lines}) == 1, lines
    assert lines[0].split() == ["ID", "REQUEST", "ENDPOINT", "STATE", "WAITS", "EXPECTED", "SESSION", "FROM", "PROMPT", "DONE", "CACHED", "OUTPUT", "MAX", "AGE"]
    assert lines[1].split() == ["17", "first", "/v1/chat/completions", "running", "-", "-", "4f1e", "x-session-id", "120", "120", "96", "40", "256", "1.5", "s"]
    assert lines[2].split()[0] == "18446744073709551615" and lines[2].endswith("1 d 01 h"), lines[2]


def test_empty_list_has_its_headline():
    with Server({("GET", "/requests"): http({"requests": []})}):
        assert run("requests")[0].split()[0] == "ID"


def test_missing_and_strange_fields_are_dashes():
    odd = {"version": 7, "front": {"running": "three"}, "worker": [1, 2], "model": None}
    for value in ({}, odd):
        with Server({("GET", "/stats"): http(value), ("GET", "/requests"): http({"requests": [{}, 5, None]})}):
            out = run("stats")[0]
            assert out.count("\n") == 13 and out.count("-") >= 30 and not any(c in out for c in "03456789"), out
            table = run("requests")[0].splitlines()
            assert len(table) == 4 and all(set(line.split()) == {"-"} for line in table[1:]), table


def test_every_field_may_be_missing_alone():
    for part in ("model", "front", "worker"):
        for key in STATS[part]:
            less = copy.deepcopy(STATS)
            del less[part][key]
            with Server({("GET", "/stats"): http(less)}):
                out = run("stats")[0]
                assert " -" in out, (key, out)


def test_texts_cannot_steer_the_terminal():
    evil = copy.deepcopy(REQUESTS)
    evil["requests"][0]["request_id"] = "a\x1b[2J\x07\n\x7f\u009b31mb\u00e9"
    evil["requests"][1]["request_id"] = "\u00e9" * 3000
    with Server({("GET", "/requests"): http(evil)}):
        out = run("requests")[0]
    assert "a\\x1b[2J\\x07\\n\\x7f\\u009b31mb\u00e9" in out and out.count("\n") == 3 and "\u00e9..." in out, out
    assert all(ord(c) >= 32 and not 127 <= ord(c) < 160 or c == "\n" for c in out), repr(out)


def test_cancel_and_drain_post():
    answers = {("POST", "/requests/17/cancel"): http({"cancelled": True}), ("POST", "/drain"): http({"draining": True})}
    with Server(answers) as s:
        assert run("cancel", "17")[0] == "cancelled\n"
        assert run("drain")[0] == "draining\n"
        assert s.seen == [("POST", "/requests/17/cancel"), ("POST", "/drain")]


def test_long_names_and_paths_are_sent_whole():
    name, file = "\u6a21" * 80, os.path.join(FOLDER.name, "\u578b" * 80)
    open(file, "w").close()
    quoted = urllib.parse.quote(name)
    answers = {("POST", f"/models/{quoted}/swap?file={urllib.parse.quote(os.path.realpath(file))}"): http({"accepted": True}),
               ("GET", "/models"): http({"models": [{"id": name, "swap": "done"}]}), ("GET", f"/flight/{quoted}"): http("flight")}
    with Server(answers):
        run("swap", name, file)
        run("dump", os.path.join(FOLDER.name, "dump"), name)


def test_refusals_say_why_and_exit_with_1():
    refusal = http({"error": {"message": "no live request has this id", "code": 404}}, "404 Not Found")
    with Server({("POST", "/requests/5/cancel"): refusal, ("POST", "/drain"): http("<html>", "500 Oops")}):
        assert run("cancel", "5", code=1)[1] == "weftctl: no live request has this id\n"
        said = json.loads(run("--json", "cancel", "5", code=1)[0])["error"]
        assert SOCKET in said and "no live request has this id (status 404)" in said, said
        assert "(status 500)" in run("drain", code=1)[1]


def test_another_program_or_version_is_told_apart():
    """A command that the daemon lacks, and the daemon's API in place of its admin socket."""
    of_api = {"error": {"message": "This path does not exist. Did you mean /load?", "type": "not_found", "code": "not_found"}}
    answers = {("GET", "/usage"): http("<html>", "405 Method Not Allowed"), ("POST", "/models/m/load"): http(of_api, "404 Not Found"),
               ("GET", "/health"): http({"status": "ok"}), ("GET", "/models"): http({"object": "list", "data": []})}
    with Server(answers):
        for command, path in ((["stats"], "/stats"), (["reload"], "/reload"), (["usage"], "/usage"), (["load", "m"], "/models/m/load"),
                              (["health"], "/health"), (["ps"], "/models")):
            err = run(*command, code=1)[1]
            assert f"does not know {path}: this is not the admin socket, or the daemon has another version" in err, err


def test_health_tells_by_its_exit_code():
    for word, code in (("serving", 0), ("draining", 1), ("replacing", 1)):
        with Server({("GET", "/health"): http({"health": word, "worker": "serving"})}):
            assert run("health", code=code)[0] == f"{word}, worker serving\n"
            assert json.loads(run("--json", "health", code=code)[0])["health"] == word


def test_broken_answers_are_one_line():
    full = http(STATS)
    broken = {
        b"": 69, b"HTTP/1.1 200 OK\r\n": 1, b"SSH-2.0-OpenSSH\r\n": 69, b"\0\1\2\3": 69, full[:-10]: 69,
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{": 69, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n": 69,
        http(""): 1, http("[]"): 1, http("{"): 1, http('{"a":1} x'): 1, http("nonsense"): 1, http("[" * 100000): 1,
        b"HTTP/1.1 200 OK\r\nContent-Length: 20000000\r\n\r\n" + b" " * 20000000: 1,
    }
    for answer, code in broken.items():
        with Server({("GET", "/stats"): answer, ("GET", "/requests"): answer, ("GET", "/health"): answer}):
            for command in ("stats", "requests", "health"):
                assert run(command, code=code)[1].startswith("weftctl: "), answer[:60]


def test_json_says_why_a_command_fails():
    with Server({("POST", "/reload"): http({"error": {"message": "weft.conf:3: no"}}, "400 Bad Request")}):
        for command in ("reload", "requests", "health"):
            out, err = run("--json", command, code=1)
            said = json.loads(out)
            assert said["status"] == "error" and said["code"] == 1 and ("refused" if command == "reload" else "not know") in said["error"] and not err, said
        assert "weft.conf:3: no" in json.loads(run("--json", "reload", code=1)[0])["error"]
    assert json.loads(run("--json", "reload", code=69)[0])["code"] == 69
    with Server({("GET", "/flight"): http("flight")}):
        assert "/nowhere/f: No such" in json.loads(run("--json", "dump", "/nowhere/f", code=1)[0])["error"]


def test_reload_names_what_it_cannot():
    for keys, lines in ((["listen", "max-n", 5], ["listen: takes effect when weftd is restarted", "max-n: takes effect when weftd is restarted"]), ([], []), (None, [])):
        with Server({("POST", "/reload"): http({"reloaded": True, "needs_restart": keys})}):
            assert run("reload")[0].splitlines() == ["reloaded", *lines]


def test_no_daemon_is_69():
    for path in ("/proc/nonexistent/admin.sock", "/dev/null", FOLDER.name, "/" + "x" * 200):
        for command in (["stats"], ["stats", "--watch"], ["requests"], ["cancel", "1"], ["health"], ["drain"], ["top"]):
            err = run("--socket", path, *command, code=69)[1]
            assert path in err, err
    s = socket.socket(socket.AF_UNIX)
    s.bind(SOCKET)
    s.close()
    assert "refused" in run("stats", code=69)[1].lower()
    os.unlink(SOCKET)


@beside
def test_a_daemon_that_is_stopped_keeps_no_command_waiting():
    """The system accepts for it."""
    path = os.path.join(FOLDER.name, "stopped.sock")
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(path)
        stopped.listen()
        for _, err in parallel([lambda command=command: run("--socket", path, command, code=69) for command in ("stats", "upgrade")]):
            assert "no answer in time: the daemon hangs or is stopped" in err, err


def test_the_daemon_of_a_user_is_found_in_his_folders():
    """A file on which no process listens, as a killed daemon leaves it, is no daemon; two daemons are listed."""
    with tempfile.TemporaryDirectory() as folder:
        runtime, home = os.path.join(folder, "run"), os.path.join(folder, "home")
        where = [os.path.join(runtime, "weft", "1.sock"), os.path.join(home, ".local/state/weft", "2.sock")]
        env = {**os.environ, "XDG_RUNTIME_DIR": runtime, "HOME": home}
        for name in ("WEFT_ADMIN", "WEFT_URL", "XDG_STATE_HOME"):
            env.pop(name, None)

        def command(*words, **more):
            p = subprocess.run([program("weftctl"), *words], capture_output=True, text=True, env={**env, **more},
                               timeout=LIMIT_S, cwd=folder)
            return p.returncode, p.stdout + p.stderr

        def address(**more):
            """That of the HTTP API, as a client gets it; no process listens there."""
            return re.search(r"Anthropic +(\S+)", command("launch", "unknown", **more)[1])[1]

        def health():
            return command("health")

        for path in where:
            os.makedirs(os.path.dirname(path))
            with socket.socket(socket.AF_UNIX) as s:
                s.bind(path)
        code, text = health()
        assert code == 69 and "no daemon of this user runs" in text, text
        answers = {("GET", "/health"): http({"health": "serving", "worker": "serving"})}
        for path in where:
            with Server(answers, path):
                assert health() == (0, "serving, worker serving\n"), path
                assert address() == f"http://127.0.0.1:{os.path.basename(path)[0]}", path
                assert address(WEFT_ADMIN="/tmp/3.sock") == "http://127.0.0.1:3"
                assert address(WEFT_URL="http://127.0.0.1:4") == "http://127.0.0.1:4"
        with Server(answers, where[0]), Server(answers, where[1]):
            code, text = health()
            assert code == 69 and "2 daemons run" in text and all(path in text for path in where), text
            both = "2 daemons run: choose one with --url URL or $WEFT_URL: http://127.0.0.1:1, http://127.0.0.1:2"
            for words in (["chat", "hi"], ["run", "m", "hi"], ["launch", "claude"], ["launch", "unknown"]):
                code, text = command(*words)
                assert code == 69 and both in text, text
            code, text = command("--json", "chat", "hi")
            assert code == 69 and json.loads(text)["error"] == both, text
            assert address(WEFT_URL="http://127.0.0.1:4") == "http://127.0.0.1:4"


def test_ended_requests_are_asked_for_by_tenant_and_time():
    ended = {"requests": [{"request_id": "task-7", "tenant": "agent 7", "endpoint": "/v1/messages", "status": 200, "finish": "stop", "prompt_tokens": 8028,
                           "cached_tokens": 0, "output_tokens": 9, "queue_ms": 371, "ttft_ms": 26522, "total_ms": 27100, "ago_ms": 60000}]}
    path = "/requests/ended?tenant=agent%207&oldest_s=7200&newest_s=900&order=slowest"
    with Server({("GET", path): http(ended)}):
        lines = run("requests", "--ended", "--tenant", "agent 7", "--since=2h", "--until", "15m", "--slowest")[0].splitlines()
        assert lines[0].split()[:3] == ["REQUEST", "TENANT", "ENDPOINT"] and "26.5 s" in lines[1] and "8028" in lines[1], lines
    with Server({}) as s:
        now = time.localtime()
        run("requests", "--ended", f"--since={now.tm_hour:02}:{now.tm_min:02}", code=1)
        later = time.localtime(time.time() + 3600)  # of yesterday
        run("requests", "--ended", f"--since={later.tm_hour:02}:{later.tm_min:02}", code=1)
        ago = [int(path.rsplit("=", 1)[1]) for _, path in s.seen]
        assert 0 <= ago[0] < 120 and 82000 < ago[1] <= 83000, s.seen
    for wrong in (["--since=10"], ["--since=25:00"], ["--until=x"], ["--tenant="], ["--slowest"], ["x"], ["--ended", "--since=1m2"]):
        err = run("requests", *wrong, code=64)[1]
        assert "requests takes only" in err or "need --ended" in err or "a TIME is 10:30" in err, err


def test_why_begins_with_a_sentence():
    story = {"records": [
        {"why": "queued", "text": "waited behind other requests", "at_ms": 0.0, "ms": 400.0, "steps": 1, "rows": 0},
        {"why": "admitted", "text": "was admitted", "at_ms": 400.0, "ms": 0.0, "steps": 1, "rows": 0, "cached_tokens": 1600},
        {"why": "prompt", "text": "computed its prompt", "at_ms": 400.0, "ms": 1000.0, "steps": 9, "rows": 2424, "row_us": 147},
        {"why": "decode", "text": "generated tokens", "at_ms": 1400.0, "ms": 600.0, "steps": 22, "rows": 32},
        {"why": "ended", "text": "ended", "at_ms": 2000.0, "ms": 0.0, "steps": 1, "rows": 0, "finish": "length"}]}
    with Server({("GET", "/requests/task-7/why"): http(story), ("GET", "/requests/8/why"): http({"records": []})}):
        lines = run("why", "task-7")[0].splitlines()
        assert lines[0] == "took 2.0 s: 50 % for 2424 tokens of the prompt (1600 were cached), 30 % for the answer, 20 % waiting (400 ms waited behind other requests)", lines
        assert lines[3].endswith("computed its prompt: 2424 tokens in 1.0 s (2424 tokens/s, 9 steps)"), lines
        assert len(lines) == 6 and run("why", "8")[0].strip() == "", lines


def test_why_names_the_waits_that_are_worth_it():
    story = {"records": [
        {"why": "load", "text": "waited for its model to be loaded", "at_ms": 2.0, "ms": 4400.0, "steps": 1, "rows": 0},
        {"why": "queued", "text": "waited behind other requests", "at_ms": 4402.0, "ms": 98.0, "steps": 1, "rows": 0},
        {"why": "prompt", "text": "computed its prompt", "at_ms": 4500.0, "ms": 3500.0, "steps": 9, "rows": 7},
        {"why": "worker", "text": "waited for the worker", "at_ms": 8000.0, "ms": 2000.0, "steps": 1, "rows": 0}]}
    with Server({("GET", "/requests/7/why"): http(story)}):
        lines = run("why", "7")[0].splitlines()
        assert lines[0].endswith(" 65 % waiting (4.4 s waited for its model to be loaded, 2.0 s waited for the worker)"), lines
        assert lines[1].split() == "2.0 ms load waited for its model to be loaded: 4.4 s".split(), lines


def test_words_of_other_programs():
    with Server({("GET", "/health"): http({"status": "ok"})}):
        assert run("help")[0].startswith("usage: weftctl")
        assert run("list", "no-model-has-this-name", code=1) == run("models", "no-model-has-this-name", code=1)
        assert "unload takes the name" in run("stop", code=64)[1]
        assert "run takes the name of a model" in run("run", code=64)[1]
        assert "start weftd --model FILE" in run("serve", code=64)[1] and "weft-gguf info" in run("show", "x", code=64)[1]
        assert "hf:unsloth/" in run("pull", "llama3.2:3b", code=64)[1]
        for word, remedy in (("status", "weftctl health"), ("restart", "weftctl upgrade"), ("logs", "journalctl -u weftd"), ("search", "huggingface.co/models")):
            assert remedy in run(word, code=64)[1], word
        for word in ("delete", "remove"):
            assert run(word, code=64)[1] == run("rm", code=64)[1]
        assert "is -V meant?" in run("-v", code=64)[1]
        for name, client in (("claude-code", "claude"), ("codex-cli", "codex"), ("cluade", "claude")):
            assert f"is {client} meant?" in run("launch", name, code=64)[1], name


def test_options_of_key_stand_anywhere():
    path = os.path.join(FOLDER.name, "dated")
    for args in (["new", "alice", path, "--expires=2999-01-01"], ["new", "--expires", "2999-01-01", "alice", path], ["--expires=2999-01-01", "new", "alice", path]):
        run("key", *args)
    with open(path) as file:
        lines = file.read().splitlines()
    assert len(lines) == 3 and all(line.endswith(" expires=2999-01-01") for line in lines), lines
    run("key", "new", "alice", path, "--expires=2001-01-01", code=64)


def test_help_of_key_makes_no_key():
    path = os.path.join(FOLDER.name, "helped")
    for args in (["--help"], ["-h"], ["new", "--help"], ["new", "--help", path]):
        r = subprocess.run([program("weftctl"), "key", *args], capture_output=True, text=True)
        assert r.returncode == 0 and r.stdout.startswith("usage: weftctl key new "), (args, r)
    assert not os.path.exists(path)


def test_a_key_that_has_no_room_leaves_no_part():
    path = os.path.join(FOLDER.name, "keys")
    subprocess.run([program("weftctl"), "key", "new", "alice", path], check=True, stdout=subprocess.DEVNULL)
    with open(path) as file:
        before = file.read()

    def fill_the_disk():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20,) * 2)

    r = subprocess.run([program("weftctl"), "key", "new", "bob", path], capture_output=True, text=True, preexec_fn=fill_the_disk)
    with open(path) as file:
        assert file.read() == before, r
    assert r.returncode == 1 and r.stdout == "" and "File too large" in r.stderr, r


def test_socket_option_wins_over_the_environment():
    with Server({("GET", "/stats"): http(STATS)}):
        for args in (["--socket", SOCKET], ["--socket=" + SOCKET]):
            run(*args, "stats", env={"WEFT_ADMIN": "/proc/nonexistent"})
        run("stats", env={"http_proxy": "http://127.0.0.1:1", "ALL_PROXY": "http://127.0.0.1:1"})


def test_options_may_stand_behind_the_command():
    with Server({("GET", "/stats"): http(STATS), ("GET", "/requests"): http(REQUESTS)}):
        assert run("requests", "--json") == run("--json", "requests")
        assert run("stats", "--json", "--all") == run("--json", "stats", "--all")
    assert "/nowhere:" in run("requests", "--socket", "/nowhere", code=69)[1]
    assert "/nowhere:" in run("health", "--socket=/nowhere", code=69)[1]
    assert "--socket" in run("requests", "--socket", code=64)[1]


def test_wrong_usage_is_64():
    for args in ([], ["nothing"], ["--what", "stats"], ["--socket"], ["cancel"], ["cancel", "x"], ["cancel", "-1"], ["cancel", "1", "2"],
                 ["cancel", "99999999999999999999"], ["stats", "x"], ["stats", "--watch=0"], ["stats", "--watch=x"],
                 ["stats", "--watchx"], ["requests", "x"], ["health", "x"], ["drain", "x"], ["top", "x"]):
        p = subprocess.run([program("weftctl"), *args], capture_output=True, text=True, timeout=LIMIT_S)
        assert p.returncode == 64 and p.stderr and not p.stdout, (args, p)
    for args in (["--help"], ["-h"], ["stats", "--help"], ["top", "-h"], ["swap", "--help"]):
        assert run(*args)[0].startswith("usage: weftctl [--socket PATH]"), args
    assert "claude, codex, opencode" in run("launch", "nothing", code=64)[0]


def chunk(value):
    line = json.dumps(value) + "\n"
    return f"{len(line):x}\r\n{line}\r\n".encode()


def test_watch_prints_a_line_for_each_and_rates():
    later = copy.deepcopy(STATS)
    later["worker"]["output_tokens"] += 100
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    both = chunk(STATS) + chunk(later)
    parts = [head] + [chunk(STATS)] * 21 + [chunk(later)[:30], chunk(later)[30:], b"0\r\n\r\n"]
    with Server({("GET", "/stats?watch=1000ms"): parts, ("GET", "/stats?watch=250ms"): head + both + b"0\r\n\r\n"}):
        p = subprocess.run([program("weftctl"), "--socket", SOCKET, "stats", "--watch"], capture_output=True, text=True, timeout=LIMIT_S)
        lines = p.stdout.splitlines()
        assert p.returncode == 69 and "has ended" in p.stderr, p
        assert len(lines) == 24 and sum(line.startswith("health") for line in lines) == 2, p.stdout
        assert lines[1].split()[4:6] == ["-", "-"] and lines[2].split()[5] == "0" and int(lines[23].split()[5]) > 0, lines
        p = subprocess.run([program("weftctl"), "--socket", SOCKET, "--json", "stats", "--watch=0.25"],
                           capture_output=True, text=True, timeout=LIMIT_S)
        assert [json.loads(line) for line in p.stdout.splitlines()] == [STATS, later], p


def test_watch_leaves_out_what_does_not_fit_the_terminal():
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with Server({("GET", "/stats?watch=1000ms"): [head] + [chunk(STATS)] * 2 + [b"0\r\n\r\n"]}):
        for columns, n in ((20, 3), (40, 5), (60, 8), (79, 11), (200, 11)):
            lines = on_terminal(columns, "stats", "--watch", code=69)[:3]
            assert [len(line) for line in lines] == [len(lines[0])] * 3 and len(lines[0]) <= columns, (columns, lines)
            assert lines[0].split()[0] == "health" and "run" in lines[0] and len(lines[0].split()) == n, (columns, lines)


def test_watch_ends_when_nobody_reads():
    parts = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"] + [chunk(STATS)] * 500
    with Server({("GET", "/stats?watch=1000ms"): parts}):
        p = subprocess.Popen([program("weftctl"), "--socket", SOCKET, "stats", "--watch"], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN))
        p.stdout.readline()
        p.stdout.close()
        assert p.wait(LIMIT_S) != 69


class Terminal:
    """weftctl top on a terminal of its own."""

    def __init__(self, *args, term="xterm", size=(24, 100)):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = term
            os.execv(program("weftctl"), ["weftctl", "--socket", SOCKET, "top", *args])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.text = ""

    def until(self, text, limit_s=LIMIT_S):
        end = time.monotonic() + limit_s
        while text not in self.text:
            assert time.monotonic() < end, (text, self.text)
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    break
        assert text in self.text, (text, self.text)
        self.text = ""

    def key(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        while True:
            try:
                data = os.read(self.fd, 65536)
                if not data:
                    break
                self.text += data.decode(errors="replace")
            except OSError:
                break
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def need_top():
    p = subprocess.run([program("weftctl"), "--socket", SOCKET, "top"], capture_output=True, text=True)
    if "without ncurses" in p.stderr:
        raise Skip("weftctl was built without ncurses")


def test_top_shows_selects_and_cancels():
    answers = {("GET", "/stats"): http(STATS), ("GET", "/requests"): http(REQUESTS), ("POST", "/requests/17/cancel"): http({"cancelled": True})}
    with Server(answers) as s:
        need_top()
        t = Terminal("0.2", size=(24, 200))
        t.until("a-rather-long-name")
        t.key("j")
        t.key("c")
        t.until("cancel request 17?")
        t.key("n")
        t.until("q quit")
        assert ("POST", "/requests/17/cancel") not in s.seen
        t.key("c")
        t.until("cancel request 17?")
        t.key("y")
        t.until("q quit")
        assert ("POST", "/requests/17/cancel") in s.seen
        n = len(s.seen)
        wait_until("it asks again", lambda: len(s.seen) >= n + 4)
        s.answers.clear()
        t.until("does not know /stats")
        s.answers.update({("GET", "/stats"): http({}), ("GET", "/requests"): http({"requests": []})})
        t.until("q quit")
        s.answers[("GET", "/tenants")] = http({"tenants": [{"tenant": "somebody", "class": "batch"}]})
        t.key("t")
        t.until("somebody")
        t.key("t")
        t.until("up, down")
        model = {"id": "big", "state": "loaded", "model": {"id": "big"}, "worker": {"pid": 1}}
        small = {**model, "id": "small", "state": "unloaded", "unload_ms": 61000, "model": {"id": "small"}, "worker": {"pid": 4321}}
        s.answers.update({("GET", "/stats"): http({"model": {"id": "big"}, "worker": {"pid": 1}, "models": [model, small]}),
                          ("GET", "/models"): http({"models": [model, small]})})
        t.key("m")
        t.until("1 min 01 s")
        t.key("jj")
        t.until("4321")
        t.key("m")
        t.until("c cancel")
        t.key("q")
        assert t.end() == 0
        for keys in ("\x03", "jc\x03"):
            t = Terminal("0.2", size=(24, 200))
            t.until("q quit")
            t.key(keys)
            assert t.end() == 0, (keys, t.text)


def test_top_fits_any_terminal_and_refuses_none():
    many = {"requests": [{**REQUESTS["requests"][0], "id": i} for i in range(300)]}
    with Server({("GET", "/stats"): http(STATS), ("GET", "/requests"): http(many)}):
        need_top()
        assert "needs a terminal" in run("top", code=1)[1]
        for size in ((1, 1), (2, 10), (5, 20), (24, 80), (200, 300)):
            t = Terminal(size=size)
            for _ in range(3):
                t.key("jk\x1b[B")
            time.sleep(0.1)
            t.key("q")
            assert t.end() == 0, (size, t.text)
        t = Terminal(term="no-such-terminal")
        assert t.end() == 1 and "needs a terminal" in t.text, t.text


main(globals())
