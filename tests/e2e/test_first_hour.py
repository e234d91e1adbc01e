"""What people type in their first hour, with what it has to answer: a daemon started by hand, commands of other programs,
wrong addresses, and configurations that cannot work. test_command_lines.py has the command lines of other servers."""
import http.client
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time

from weftd import LIMIT_S, free_port, main, program, tiny_model, wait_until

# (a line, the exit status, a pattern of what it prints). PORT, FOLDER and ID (of an answer) are replaced.
BY_HAND = [
    ("weftctl health", 0, r"^serving, worker serving"),
    ("weftctl stats", 0, r"^weftd .*serving"),
    ("weftctl ps", 0, r"(?m)^tiny +loaded"),
    ("weftctl requests", 0, r"^ID +REQUEST"),
    ("weftctl usage", 0, r"(?m)^default .* tiny "),
    ("weftctl tenants", 0, r"(?m)^default +normal"),
    ("weftctl top", 1, r"top needs a terminal; try stats --watch"),
    ("weftctl requests --ended --slowest --since=1h", 0, r"(?m)^ID .*/v1/chat/completions +200"),
    ("weftctl requests --ended --tenant=default --since 10m", 0, r"(?m)^ID "),
    ("weftctl requests --ended --tenant=agent7", 1, r"no tenant has this name; weftctl tenants lists them"),
    ("weftctl why ID", 0, r"^took .* of the prompt .* for the answer"),
    ("weftctl why nothing", 1, r"no recent request with this id"),
    ("weftctl list", 0, r"(?m)^tiny "),
    ("weftctl ls", 0, r"(?m)^tiny "),
    ("weftctl models --path ti", 1, r"no model ti; the models are: tiny"),
    ("weftctl chat hello", 0, r"."),
    ("weftctl run tiny hello", 0, r"."),
    ("weftctl run", 64, r"run takes the name of a model"),
    ("weftctl launch crush", 64, r"base URL, OpenAI +http://127.0.0.1:PORT/v1\n(?s:.*)model +tiny\n"),
    ("weftctl launch gemini", 64, r"base URL, OpenAI +http://127.0.0.1:PORT/v1\n(?s:.*)model +tiny\n"),
    ("weftctl launch claude --print", 0, r"ANTHROPIC_BASE_URL=\S*http://127.0.0.1:PORT"),
    ("weftctl stop tiny", 0, r"tiny: unloaded"),
    ("weftctl load tinny", 1, r"^weftctl: no model is named tinny; is tiny meant\? \(weftctl ps lists all\)\n$"),
    ("weftctl help", 0, r"^usage: weftctl"),
    ("weftctl help chat", 0, r"^usage: weftctl chat"),
    ("weftctl version", 64, r"use weftctl --version"),
    ("weftctl reqests", 64, r"unknown command \"reqests\"; is requests meant\?"),
    ("weftctl lanch claude", 64, r"is launch meant\?"),
    ("weftctl launch claud", 64, r"claud: unknown client; is claude meant\?"),
    ("weftctl --sokcet x stats", 64, r"unknown option --sokcet; is --socket meant\?"),
    ("weftctl --socket", 64, r"option --socket needs a value"),
    ("weftctl chat --modle=tiny hi", 64, r"unknown option --modle=tiny; is --model meant\?"),
    ("weft-gguf info --memory 16GB tiny", 64, r"option --memory: \"16GB\" is not a whole number from 1 on, such as 7 or 16G"),
    ("weftctl pull --memory 16GB hf:a/b", 64, r"option --memory: \"16GB\" is not a whole number from 1 on, such as 7 or 16G"),
    ("weft-gguf inof tiny", 64, r"unknown command \"inof\"; is info meant\?"),
    ("weftctl serve", 64, r"start weftd --model FILE"),
    ("weftctl show tiny", 64, r"use weft-gguf info FILE"),
    ("weftctl create x", 64, r"write a preset"),
    ("weftctl cp a b", 64, r"write a preset"),
    ("weftctl push x", 64, r"models are only pulled"),
    ("weftctl signin", 64, r"pull needs no account; HF_TOKEN"),
    ("weftctl pull llama3.2:3b", 64, r"Ollama's registry is not read.*pull hf:OWNER/REPO"),
    ("weftctl key new alice FOLDER/keys --expires=2999-06-30", 0, r"^weft-[0-9a-f]{64}"),
    ("weftctl key new --expires 2999-06-30 bob FOLDER/keys", 0, r"^weft-[0-9a-f]{64}"),
    ("weftd --version", 0, r"(?m)^commit: .*\ncompiler: .*\nbackends: .*cpu"),
    ("weftd --model tiny --port PORT", 75, r"127.0.0.1:PORT: address already in use. Stop the program .*ss -ltnp"),
]
# What --check-config says: 0 (with a line), or what a start would end with.
CHECKED = [
    ("weftd -m tiny -c 999999", 0, r"max-context: 999999 is lowered to the model's 131072 tokens\nmemory: weights"),
    ("weftd -m tiny", 0, r"memory: weights \d+ MiB \+ buffers \d+ MiB \+ keys and values \d+ MiB"),
    ("weftd -m tiny --kv-memory 4000G", 78, r"(kv-memory|tiny.gguf): does not fit: weights"),
    ("weftd -m tiny --host-kv-memory 4000G", 75, r"does not fit: weights"),
    ("weftd -m tiny --port PORT", 0, r"127.0.0.1:PORT cannot be used now: Address already in use"),
    ("weftd -m tiny --cors-origins http://*.x.*", 78, r"cors-origins: an origin has at most one \*"),
    ("weftd -m tiny --cors-origins app://*,http://192.168.*", 0, r"memory: weights"),
    ("weftd -m tiny --port 99999", 78, r"a port of at most 65535"),
    ("weftd -m tiny --host 0.0.0.0", 78, r"add --api-key KEY, or --anonymous yes"),
    ("weftd -m tiny --api-keys FOLDER/none", 78, r"api-keys: FOLDER/none: cannot be read: No such file"),
    ("weftd -m tiny --api-keys FOLDER/short", 0, r"short_key .*too short: weftctl key new"),
    ("weftd -m tiny --listen 192.0.2.1:8080 --api-key secret-of-16-letters", 0, r"192.0.2.1:8080 cannot be used now: Cannot assign"),
    ("weftd --config FOLDER/wrong.conf", 78, r"^weftd: FOLDER/wrong.conf:2: .*\bmdoel\b"),
    ("weftd -m tin", 78, r"no file and no model has this name; is tiny meant\?"),
    ("weftd -m tini", 78, r"no file and no model has this name \(weftctl models lists"),
    ("weftd -m FOLDER/nothing.gguf", 78, r"^weftd: model: FOLDER/nothing.gguf: No such file or directory\n$"),
    ("weftd -m FOLDER/cut.gguf", 78, r"was it copied or downloaded whole\?"),
    ("weftd -m tiny --draft-model FOLDER/cut.gguf", 78, r"^weftd: draft-model: FOLDER/cut.gguf: "),
    ("weftd -m tiny --mmproj FOLDER/x.gguf", 78, r"^weftd: mmproj: FOLDER/x.gguf: No such file or directory\n$"),
    ("weftd -m hf:Qwen/Qwen3-0.6B-GGUF", 78, r"has not been downloaded: run weftctl pull hf:Qwen/Qwen3-0.6B-GGUF"),
    ("weftd --models-dir FOLDER/none", 78, r"models-dir: FOLDER/none: cannot be used: No such file"),
    ("weftd -m tiny --kv-disk FOLDER --kv-disk-size 60000G", 0, r"kv-disk: FOLDER has room for \d+ MiB, less than kv-disk-size"),
    ("weftd -m tiny --listen unix:FOLDER/none/x.sock", 0, r"weftd: listen: FOLDER/none/x.sock: the folder FOLDER/none does not exist"),
    ("weftd -m tiny --admin-socket FOLDER/none/x.sock", 0, r"weftd: admin-socket: FOLDER/none/x.sock: the folder FOLDER/none does not exist"),
    ("weftd -m tiny --state-file FOLDER/none/state.db", 0, r"weftd: state-file: FOLDER/none/state.db: No such file or directory"),
    ("weftd -m tiny --state-file FOLDER", 0, r"weftd: state-file: FOLDER: Is a directory"),
    ("weftd -m tiny --system-prompt FOLDER/latin1", 78, r"system-prompt: FOLDER/latin1: is no text in UTF-8"),
    ("weftd -m tiny --sampling temp=0.7", 78, r"such as temperature=0.7,top_p=0.9, not \"temp=0.7\""),
    ("weftd -m tiny --api-keys FOLDER/latin1", 78, r"api-keys: FOLDER/latin1:1: must be NAME:KEY or KEY \(weftctl key new NAME FILE"),
    ("weftd -m tiny --tls-certificate FOLDER/latin1 --tls-key FOLDER/latin1", 78, r"tls-certificate: FOLDER/latin1: is no PEM file"),
    ("weftd --config FOLDER/model.conf", 78, r"^weftd: FOLDER/model.conf:2: model: FOLDER/nothing.gguf: No such file or directory\n$"),
    ("weftd --config FOLDER/listen.conf", 78, r"^weftd: FOLDER/listen.conf:4: listen: must be ADDRESS:"),
    ("weftd --config FOLDER/keys.conf", 78, r"(?m)^weftd: FOLDER/keys.conf:4: api-keys: FOLDER/latin1:1: must be NAME:KEY"),
    ("weftd --config FOLDER/empty.conf", 78, r"^weftd: model: none is given \(weftctl models lists those of this machine\): --model FILE, or model = FILE below \[model\]"),
    ("weftd -m tiny --chat-template nosuch", 78, r"one of the built-in templates: chatml "),
    ("weftd -m tiny --mdoel x", 78, r"--mdoel: unknown option; is --model meant\?"),
]
# Commands that print JSON with --json, whatever happens.
AS_JSON = [
    "stats", "stats --all", "requests", "requests --ended", "why ID", "why nothing", "cancel 1", "cancel abc", "health", "tenants",
    "usage", "reload", "ps", "load tiny", "load nothing", "swap tiny", "swap tiny FOLDER/nothing.gguf", "unload tiny", "top", "models",
    "models nothing", "chat hello", "dump FOLDER/flight", "dump FOLDER/none/flight", "launch", "launch claud", "rm nothing", "rm",
    "rm --partial", "key new", "key new bob FOLDER/none/keys", "key new bob FOLDER/more-keys", "pull", "pull llama3.2:3b", "serve",
    "nonsense", "stats --nonsense", "chat --nonsense",
]
CONFIGS = {
    "wrong.conf": "[model]\nmdoel = tiny\n",
    "model.conf": "[model]\nmodel = FOLDER/nothing.gguf\n",
    "listen.conf": "[model]\nmodel = tiny\n[listen]\nlisten = 8080\n",
    "keys.conf": "[model]\nmodel = tiny\n[listen]\napi-keys = FOLDER/latin1\n",
    "empty.conf": "",
}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
LOOP = {**CHAT, "max_tokens": 400, "logit_bias": {"100": 100}}
# (path, body, status, a pattern of the answer)
REQUESTS = [
    ("/v1", CHAT, 404, r"Did you mean /v1/chat/completions\?"),
    ("/v1/chat", CHAT, 404, r"Did you mean /v1/chat/completions\?"),
    ("/chat", CHAT, 404, r"Did you mean /v1/chat/completions\?"),
    ("/v1/completion", CHAT, 404, r"Did you mean /v1/completions\?"),
    ("/v1/v1/chat/completions", CHAT, 400, r"/v1 is in it twice"),
    ("/v1/api/chat", CHAT, 404, r"there is one without /v1"),
    ("/v1/chat/completions", {**CHAT, "extra_body": {"max_tokens": 2, "mirostat": 2}}, 400, r"mirostat is not supported"),
    ("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}, "options": {"temperature": "0"}}, 200, r"finish_reason"),
    ("/v1/chat/completions/", CHAT, 200, r"finish_reason"),
    ("/v1/chat/completions", {**CHAT, "max_tokens": -1, "n_predict": 4}, 200, r"finish_reason"),
    ("/v1/chat/completions", {**CHAT, "mirostat": 0, "repeat_last_n": 64}, 200, r"finish_reason"),
    ("/v1/chat/completions", {**CHAT, "mirostat": 2}, 400, r"mirostat is not supported"),
    ("/v1/chat/completions", {**CHAT, "reasoning_format": "none", "chat_template_kwargs": {"enable_thinking": False}}, 200, r"finish_reason"),
    ("/v1/chat/completions", LOOP, 200, r'"finish_reason":"length","loop_ended":true.*"completion_tokens":256\b'),
    ("/v1/chat/completions", {**LOOP, "loop_breaker": False}, 200, r'"finish_reason":"length".*"completion_tokens":400\b'),
    ("/v1/completions", {"prompt": "hi", "max_tokens": 400, "logit_bias": {"100": 100}}, 200, r'"finish_reason":"length"'),
    ("/api/pull", {"model": "qwen3:0.6b"}, 403, r"does not let this client change models \(option allow-pull\)"),
]


class ByHand:
    """A daemon with no option but its model and port, in the folders of a user who has nothing else."""

    def __init__(self, *more):
        self.folder = tempfile.TemporaryDirectory(prefix="weft-first-")
        self.path, self.port, self.id = pathlib.Path(self.folder.name).resolve(), free_port(), "ID"
        others = ("WEFT_", "LLAMA_", "OLLAMA_", "VLLM_", "XDG_", "HF_", "LMSTUDIO_", "STATE_")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(others)}
        self.env.update(HOME=str(self.path), XDG_RUNTIME_DIR=str(self.path / "run"), WEFT_MODELS=str(self.path / "models"))
        (self.path / "run").mkdir()
        (self.path / "models").mkdir()
        model = pathlib.Path(shutil.copy(tiny_model(), self.path / "models" / "tiny.gguf"))
        (self.path / "cut.gguf").write_bytes(model.read_bytes()[:1000])
        (self.path / "short").write_text("abcde\n")
        (self.path / "latin1").write_bytes(b"Guten Tag, \xdcbersetzer\n")
        for name, text in CONFIGS.items():
            (self.path / name).write_text(text.replace("FOLDER", str(self.path)))
        command = [program("weftd"), "-m", str(model), "--port", str(self.port), "--kv-memory", "64M", "--threads", "1", "--default-max-tokens", "32", *more]
        with open(self.path / "log", "w") as log:
            self.process = subprocess.Popen(command, env=self.env, cwd=self.path, stderr=log)

    def __enter__(self):
        wait_until("weftd is not ready", lambda: "ready http" in (self.path / "log").read_text() or self.process.poll() is not None)
        self.id = self.post("/v1/chat/completions", CHAT)[1]
        return self

    def __exit__(self, *why):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(LIMIT_S)
        self.folder.cleanup()

    def post(self, path, body):
        """(status, the request's id, text)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.headers["x-request-id"], response.read().decode()

    def get(self, path):
        """the status"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        connection.request("GET", path)
        return connection.getresponse().status

    def filled(self, text):
        for name, value in (("PORT", str(self.port)), ("FOLDER", str(self.path))):
            text = text.replace(name, value)
        return re.sub(r"\bID\b(?! \+)", self.id, text)

    def type(self, line, status, pattern, *more):
        """The difference from what was expected, or None."""
        name, *words = shlex.split(self.filled(line))
        p = subprocess.run([program(name), *words, *more], env=self.env, cwd=self.path, capture_output=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
        said = (p.stderr + p.stdout).decode(errors="replace")
        if p.returncode == status and re.search(self.filled(pattern), said):
            return None
        return f"{line}: exit status {p.returncode}, expected {status} and {pattern}\n{said[:600]}"


def none_of(problems):
    problems = [p for p in problems if p]
    assert not problems, "\n".join(problems)


def test_a_daemon_by_hand_answers_what_people_type():
    with ByHand() as d:
        none_of(d.type(*row) for row in BY_HAND)


def test_chat_finds_a_daemon_by_its_admin_socket():
    """As that of ./quickstart, whose name is no port."""
    with ByHand("--admin-socket", "own.sock") as d:
        d.env["WEFT_ADMIN"] = str(d.path / "own.sock")
        none_of(d.type(*row) for row in (("weftctl chat hello", 0, r"."), ("weftctl launch claude --print", 0, r"http://127.0.0.1:PORT'")))


def test_json_is_json_whatever_happens():
    with ByHand() as d:
        for words in (shlex.split(d.filled(line)) for line in AS_JSON):
            p = subprocess.run([program("weftctl"), "--json", *words], env=d.env, cwd=d.path, capture_output=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
            assert p.stdout and not p.stderr, (words, p)
            answer = json.loads(p.stdout if not p.returncode else p.stdout.splitlines()[-1])
            assert not p.returncode or (answer["status"], answer["code"]) == ("error", p.returncode), (words, p)


def test_check_config_says_what_a_start_says():
    with ByHand() as d:
        none_of(d.type(*row, "--check-config") for row in CHECKED)
        none_of(d.type(*row) for row in CHECKED if row[1])


def test_requests_of_other_habits_are_answered_or_told():
    with ByHand() as d:
        for path, body, status, pattern in REQUESTS:
            got, _, text = d.post(path, body)
            assert got == status and re.search(pattern, text), (path, body, got, text)


def test_the_log_has_requests_and_not_what_the_live_view_asks():
    with ByHand() as d:
        for path in ("/", "/metrics", "/health", "/web/history", "/v1/requests"):
            assert d.get(path) == 200, path
        assert d.get("/v1/nothing") == 404
        wait_until("the last request is in the log", lambda: "/v1/nothing" in (d.path / "log").read_text())
        paths = re.findall(r"request id=.* path=(\S+)", (d.path / "log").read_text())
    assert paths == ["/v1/chat/completions", '"/v1/nothing"'], paths


def test_chat_waits_for_a_daemon_that_loads():
    """As every command that a user types too early."""
    d = ByHand()
    try:
        start = time.monotonic()
        while time.monotonic() - start < LIMIT_S and not list((d.path / "run" / "weft").glob("*.sock")):
            time.sleep(0.01)
        assert not d.type("weftctl chat hello", 0, r".")
    finally:
        d.__exit__()


if __name__ == "__main__":
    main(globals())
