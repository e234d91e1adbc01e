"""weftctl chat against a server that is only a script, and against weftd."""
import http.server
import json
import os
import pty
import select
import signal
import socketserver
import subprocess
import tempfile
import threading
import time

from weftd import LIMIT_S, Weftd, main, program, seen

FOLDER = tempfile.TemporaryDirectory(prefix="weft-chat-")


def chunk(**delta):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


class Server:
    """Answers each POST with the next of @answers: a list of chunks, "[DONE]" and numbers (pauses), or (status, body)."""

    def __init__(self, *answers, unix=None):
        self.answers, self.bodies, self.headers = list(answers), [], []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def address_string(self):
                return "client"

            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps({"data": [{"id": "one"}, {"id": "two\x1b[31m"}]}).encode())

            def do_POST(self):
                outer.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                outer.headers.append(dict(self.headers))
                answer = outer.answers.pop(0)
                if isinstance(answer, tuple):
                    self.send_response(answer[0])
                    self.end_headers()
                    self.wfile.write(json.dumps(answer[1]).encode())
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for part in answer:
                    if isinstance(part, (int, float)):
                        time.sleep(part)
                        continue
                    try:
                        self.wfile.write(b"data: " + (part if isinstance(part, str) else json.dumps(part)).encode() + b"\n\n")
                        self.wfile.flush()
                    except OSError:
                        return

        if unix:
            self.server = socketserver.ThreadingUnixStreamServer(unix, Handler)
        else:
            self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            self.url = "http://127.0.0.1:%d" % self.server.server_port
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def chat(*args, text="", before=(), env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_")}
    return subprocess.run([program("weftctl"), *before, "chat", *args], input=text, capture_output=True, text=True, timeout=LIMIT_S, env={**clean, **(env or {})})


def test_the_base_url_of_other_clients_is_an_address():
    for scheme in ("http://", ""):
        for end in ("", "/v1", "//v1//"):
            with Server([chunk(role="assistant"), chunk(content="Yes."), END, "[DONE]"]) as s:
                url = scheme + s.url.removeprefix("http://") + end
                r = chat("--url", url, "hi")
            assert (r.returncode, r.stdout, len(s.bodies)) == (0, "Yes.\n", 1), (url, r)


def test_a_message_of_the_command_line_is_answered():
    with Server([chunk(role="assistant"), chunk(content="It is "), chunk(content="Paris."), END, USAGE, "[DONE]"]) as s:
        r = chat("--url", s.url + "/", "--system", "Be brief.", "--model", "m", "capital", "of France?")
    assert (r.returncode, r.stdout, r.stderr) == (0, "It is Paris.\n", ""), r
    assert s.bodies[0]["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "capital of France?"}]
    assert s.bodies[0]["model"] == "m" and s.bodies[0]["stream"] is True


def test_an_answer_says_that_a_loop_was_ended():
    ended = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length", "loop_ended": True}]}
    answer = [chunk(content="sea, sea, sea"), ended, USAGE, "[DONE]"]
    with Server(answer, answer, [chunk(content="sea"), END, USAGE, "[DONE]"]) as s:
        plain, asked, other = chat("--url", s.url, "a"), chat("--url", s.url, "a", before=("--json",)), chat("--url", s.url, "a")
    assert (plain.stdout, plain.stderr.count("\n")) == ("sea, sea, sea\n", 1) and "only repeated itself" in plain.stderr, plain
    said = json.loads(asked.stdout)
    assert (said["finish_reason"], said["loop_ended"], asked.stderr) == ("length", True, ""), asked
    assert other.stderr == "", other


def test_stdin_is_a_message_and_json_has_the_usage():
    path = os.path.join(FOLDER.name, "unix.sock")
    with Server([chunk(reasoning_content="Hm."), chunk(content="Yes."), END, USAGE, "[DONE]"], unix=path) as s:
        r = chat("--unix", path, text="One\ntwo", before=("--json",))
    assert json.loads(r.stdout) == {"content": "Yes.", "reasoning_content": "Hm.", "finish_reason": "stop", "usage": USAGE["usage"]}, r
    assert s.bodies[0]["messages"] == [{"role": "user", "content": "One\ntwo"}]


def test_a_failure_is_json_too():
    with Server((429, {"error": {"message": "Too many requests."}})) as s:
        r = chat("--url", s.url, "a", before=("--json",))
    failed = json.loads(r.stdout)
    assert failed["status"] == "error" and failed["code"] == r.returncode == 1 and "Too many" in failed["error"], r
    assert r.stderr == "", r


def test_a_proxy_is_not_asked_for_this_machine():
    with Server([chunk(content="a"), "[DONE]"]) as s:
        r = chat("--url", s.url, "a", env={"http_proxy": "http://127.0.0.1:1"})
    assert r.returncode == 0 and r.stdout.startswith("a"), r


def test_the_key_comes_from_a_file_or_the_environment():
    path = os.path.join(FOLDER.name, "key")
    with open(path, "w") as file:
        file.write("sk-file\n")
    answer = [chunk(content="a"), "[DONE]"]
    no = (401, {"error": {"message": "The API key is wrong."}})
    with Server(answer, answer, answer, no, no) as s:
        assert chat("--url", s.url, "--key-file", path, "a").returncode == 0
        assert chat("--url", s.url, "a", env={"WEFT_API_KEY": "sk-env"}).returncode == 0
        assert chat("a", env={"WEFT_URL": s.url}).returncode == 0
        r = chat("--url", s.url, "a")
        wrong = chat("--url", s.url, "a", env={"WEFT_API_KEY": "sk-env"})
    assert [h.get("Authorization") for h in s.headers] == ["Bearer sk-file", "Bearer sk-env", None, None, "Bearer sk-env"]
    assert wrong.returncode == 77 and "does not accept the given API key: The API key is wrong." in wrong.stderr, wrong
    assert r.returncode == 77 and "WEFT_API_KEY" in r.stderr, r


def test_what_is_wrong_is_said():
    cases = [
        ((503, {"error": {"message": "The model is being loaded."}}), 1, "The model is being loaded. (status 503)"),
        ([chunk(content="a"), {"error": {"message": "engine fault"}}, "[DONE]"], 1, "engine fault"),
        ([chunk(content="a")], 69, "ended too early"),
        (["not json"], 69, "connection was lost"),
    ]
    for answer, code, words in cases:
        with Server(answer) as s:
            r = chat("--url", s.url, "a")
        assert r.returncode == code and words in r.stderr, r
    r = chat("--url", "http://127.0.0.1:1", "a")
    assert r.returncode == 69 and "no weftd answers" in r.stderr, r
    assert chat("--url", "http://127.0.0.1:1", "--key-file", "/no/such", "a").returncode == 1
    assert chat(text="").returncode == 64
    with Server() as s:  # no request is sent
        for args in ((b"caf\xe9",), ("--system", b"\xff", "a"), ("--model", b"\xff", "a")):
            r = chat("--url", s.url, *args)
            assert r.returncode == 1 and r.stderr == "weftctl: the text is not UTF-8\n", r
        for file in ("/no/such", __file__):
            r = chat("--url", s.url, "--load", file, "a")
            assert r.returncode == 1 and r.stderr.startswith(f"weftctl: {file}: ") and not r.stdout, r
        assert not s.bodies


def test_a_load_is_waited_for():
    loading = (503, {"error": {"message": "The model is being loaded.", "code": "model_loading"}})
    with Server(loading, loading, [chunk(content="Yes"), "[DONE]"]) as s:
        r = chat("--url", s.url, "a")
    assert r.returncode == 0 and r.stdout == "Yes\n" and r.stderr.count("the model is being loaded; waiting\n") == 1, r


def test_a_model_cannot_steer_the_terminal():
    with Server([chunk(content="a\x1b[2Jb\x07\x9b31mc\ttab\n"), chunk(content="\x7f\u0085é"), "[DONE]"]) as s:
        r = chat("--url", s.url, "a")
    assert r.stdout == "a\\x1b[2Jb\\x07\\u009b31mc\ttab\n\\x7f\\u0085é\n", repr(r.stdout)


class Terminal:
    """weftctl chat on a terminal of its own."""

    def __init__(self, *args, **env):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "dumb"} | env)
            os.execv(program("weftctl"), ["weftctl", "chat", *args])
        self.text = ""

    def until(self, words):
        end = time.monotonic() + LIMIT_S
        while words not in self.text:
            assert time.monotonic() < end, self.text
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    self.text += os.read(self.fd, 65536).decode(errors="replace").replace("\r", "")
                except OSError:
                    break
        assert words in self.text, self.text
        at = self.text.index(words) + len(words)
        before, self.text = self.text[:at], self.text[at:]
        return before

    def say(self, text):
        os.write(self.fd, text.encode() + b"\n")

    def end(self):
        while True:
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_figures_are_dim_where_a_terminal_and_its_user_take_it():
    for env, dim in (({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": ""}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False),
                     ({"TERM": "dumb"}, False)):
        with Server([chunk(content="Hello"), END, USAGE, "[DONE]"]) as s:
            t = Terminal("--url", s.url, "hi", **env)
            text = t.until("tokens/s)")
            assert ("\x1b[2m" in text) == dim, (env, text)
            assert t.end() == 0


def test_a_mistyped_command_of_the_conversation_suggests_one():
    with Server() as s:
        t = Terminal("--url", s.url)
        for line, answer in (("/hlep", "unknown command /hlep; is /help meant?"), ("/frobnicate", "unknown command /frobnicate; /help lists all")):
            t.until("> ")
            t.say(line)
            t.until(answer)
        os.write(t.fd, b"\x04")
        assert t.end() == 0


def test_a_conversation_goes_on_and_can_be_steered():
    saved = os.path.join(FOLDER.name, "saved.json")
    answer = lambda text: [chunk(content=text), END, USAGE, "[DONE]"]  # noqa: E731
    with Server(answer("first"), answer("second"), answer("third"), answer("fourth"), answer("fifth")) as s:
        t = Terminal("--url", s.url)
        t.until("> ")
        t.say("One")
        t.until("tokens/s)")
        t.say('"""')
        t.say("Two")
        t.say("lines")
        t.say('"""')
        t.until("second")
        t.until("tokens/s)")
        t.say("/set temperature 0.5")
        t.say("/retry")
        t.until("third")
        t.until("tokens/s)")
        t.say("/save " + saved)
        t.say("/undo")
        t.say("/models")
        t.until("one\ntwo\\x1b[31m")
        t.say("Three")
        t.until("fourth")
        t.until("tokens/s)")
        t.say("/quit")
        assert t.end() == 0
        u = Terminal("--url", s.url, "--load", saved)
        u.until("> ")
        u.say("Four")
        u.until("fifth")
        u.until("tokens/s)")
        os.write(u.fd, b"\x04")
        assert u.end() == 0
    said = [[(m["role"], m["content"]) for m in b["messages"]] for b in s.bodies]
    one = [("user", "One"), ("assistant", "first")]
    two = ("user", "Two\nlines\n")
    assert said[0] == one[:1] and said[1] == said[2] == [*one, two], said
    assert said[3] == [*one, ("user", "Three")], said
    assert said[4] == [*one, two, ("assistant", "third"), ("user", "Four")], said
    assert [b.get("temperature") for b in s.bodies] == [None, None, 0.5, 0.5, 0.5]
    assert os.stat(saved).st_mode & 0o777 == 0o600


def test_an_answer_is_stopped_and_the_conversation_goes_on():
    with Server([chunk(content="begun"), 30, "[DONE]"], [chunk(content="again"), END, USAGE, "[DONE]"]) as s:
        t = Terminal("--url", s.url)
        t.until("> ")
        t.say("Long")
        t.until("begun")
        begin = time.monotonic()
        os.kill(t.pid, signal.SIGINT)
        t.until("(stopped)")
        seen(time.monotonic() - begin < 5, "it does not wait for the answer")
        t.say("More")
        t.until("again")
        t.until("tokens/s)")
        os.kill(t.pid, signal.SIGINT)
        assert t.end() == -signal.SIGINT
    assert [m["content"] for m in s.bodies[1]["messages"]] == ["Long", "begun", "More"]


def test_weftd_answers_it():
    with Weftd("--default-max-tokens", "50") as d:  # a model of random weights need not come to an end
        r = chat("--url", d.url(), "Hello", before=("--json",))
    assert r.returncode == 0 and json.loads(r.stdout)["usage"]["completion_tokens"] > 0, r


main(globals())
