"""weftctl launch: what a client is told, by which way, and that nothing is left of it."""
import http.server
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

from weftd import LIMIT_S, main, program

FOLDER = tempfile.TemporaryDirectory(prefix="weft-launch-")
HOME = os.path.join(FOLDER.name, "home")
BIN = os.path.join(FOLDER.name, "bin")
CLIENTS = ["claude", "codex", "opencode", "copilot", "qwen", "pi", "openclaw", "hermes", "aider", "goose", "kilo", "continue"]
TOML = __import__("tomllib") if sys.version_info >= (3, 11) else None

# Each client is a script that says with what it was started.
os.makedirs(BIN)
for name in [*CLIENTS, "cn"]:
    with open(os.path.join(BIN, name), "w") as file:
        file.write("#!%s\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n" % sys.executable)
    os.chmod(file.name, 0o755)


def launch(*args, before=(), **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "OPENAI_", "ANTHROPIC_"))}
    return subprocess.run([program("weftctl"), "launch", *args], capture_output=True, text=True, timeout=LIMIT_S,
                          env={**clean, "HOME": HOME, "PATH": BIN + ":/bin:/usr/bin", **env})


def fresh():
    subprocess.run(["rm", "-rf", HOME], check=True)
    os.makedirs(HOME)


def files():
    return sorted(os.path.relpath(os.path.join(d, f), HOME) for d, _, names in os.walk(HOME) for f in names)


def started(*args, **env):
    r = launch(*args, **env)
    assert r.returncode == 0, r
    return json.loads(r.stdout)


def test_a_client_is_started_and_nothing_is_written():
    fresh()
    at = ("--url", "http://127.0.0.1:1/v1/", "--model", 'a "b"\\c')
    args, env = started("claude", *at, "--", "-p", "Hello", "--url", "x", WEFT_API_KEY="sk-1")
    assert args == ["-p", "Hello", "--url", "x"]
    assert [env["ANTHROPIC_" + k] for k in ("BASE_URL", "AUTH_TOKEN", "MODEL")] == ["http://127.0.0.1:1", "sk-1", 'a "b"\\c']
    args, env = started("codex", *at, "--", "exec", "x")
    assert args[0:2] == ["-c", 'model="a \\"b\\"\\\\c"'] and args[-2:] == ["exec", "x"] and env["WEFT_API_KEY"] == "none"
    if TOML:
        provider = TOML.loads(args[5])["model_providers"]["weft"]
        assert provider == {"name": "weft", "base_url": "http://127.0.0.1:1/v1", "wire_api": "responses", "env_key": "WEFT_API_KEY"}
    args, env = started("opencode", *at)
    config = json.loads(env["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == 'weft/a "b"\\c' and config["provider"]["weft"]["options"]["baseURL"] == "http://127.0.0.1:1/v1"
    for name, key, value in (("qwen", "OPENAI_BASE_URL", "http://127.0.0.1:1/v1"), ("aider", "OPENAI_API_BASE", "http://127.0.0.1:1/v1"), ("aider", "AIDER_SHOW_MODEL_WARNINGS", "false"),
                             ("goose", "OPENAI_HOST", "http://127.0.0.1:1"),
                             ("copilot", "COPILOT_PROVIDER_BASE_URL", "http://127.0.0.1:1/v1")):
        assert started(name, *at)[1][key] == value
    assert files() == []


def test_a_proxy_is_not_asked_for_this_machine():
    proxy = {"http_proxy": "http://proxy.example:3128"}
    local = ("--url", "http://127.0.0.1:1", "--model", "m")
    for more, told in (({}, "127.0.0.1,localhost,::1"), ({"no_proxy": "intern"}, "intern,127.0.0.1,localhost,::1")):
        env = started("claude", *local, **proxy, **more)[1]
        assert (env["no_proxy"], env["NO_PROXY"]) == (told, told), env
        assert f"export NO_PROXY='{told}' no_proxy=" in launch("claude", "--print", *local, **proxy, **more).stdout
    assert "NO_PROXY" not in started("claude", *local)[1]
    assert "NO_PROXY" not in launch("claude", "--print", *local, NO_PROXY="intern").stdout
    assert "NO_PROXY" not in started("claude", "--url", "http://127.0.0.1.example", "--model", "m", all_proxy="http://127.0.0.1:1")[1]


def test_what_is_printed_is_for_a_shell():
    for name in set(CLIENTS) - {"pi", "openclaw", "hermes", "continue"}:  # which read their files alone
        r = launch(name, "--print", "--url", "http://127.0.0.1:1", "--model", "it's $HOME")
        assert r.returncode == 0, r
        shell = subprocess.run(["/bin/sh", "-c", r.stdout], capture_output=True, text=True, env={"PATH": BIN + ":/bin:/usr/bin"}, check=True)
        args, env = json.loads(shell.stdout)
        told = " ".join(args) + " ".join(f"{k}={v}" for k, v in env.items())
        assert "it's $HOME" in told and "http://127.0.0.1:1" in told, (name, told)


def test_the_block_of_a_client_that_reads_its_file_alone_is_printed():
    for name, file in (("pi", ".pi/agent/models.json"), ("openclaw", ".openclaw/openclaw.json"), ("hermes", ".hermes/config.yaml"),
                       ("continue", ".continue/config.yaml")):
        r = launch(name, "--print", "--url", "http://127.0.0.1:1", "--model", "mine")
        assert r.returncode == 0 and f"# in ~/{file}, where weftctl launch {name} --write puts it:\n" in r.stdout, r
        assert '"http://127.0.0.1:1/v1"' in r.stdout and '"mine"' in r.stdout and "\n# then:\n" in r.stdout, r
        assert not files(), files()


def test_the_model_is_the_first_that_is_served():
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"data": [{"id": "first", "max_model_len": 4096}, {"id": "second", "max_model_len": 65536},'
                             b' {"id": "short", "max_model_len": 4096, "meta": {"n_ctx_train": 4096}},'
                             b' {"id": "cut", "max_model_len": 4096, "meta": {"n_ctx_train": 40960}},'
                             b' {"id": "third", "max_model_len": 131072, "capabilities": ["completion", "multimodal"]}]}')

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = "http://127.0.0.1:%d" % server.server_port
    r = launch("crush", "--url", url, "--model", "second", WEFT_API_KEY="sk-1")
    assert r.returncode == 64 and not r.stderr and "sk-1" not in r.stdout, r
    for words in ("knows claude, codex", "not crush.", url + "/v1\n", "your key of weftd", "second", "65536", "OPENAI_BASE_URL=" + url + "/v1 OPENAI_API_KEY=KEY"):
        assert words in r.stdout, (words, r)
    r = launch("crush", "--write", "--url", url)
    assert r.returncode == 1 and not r.stdout and "only for claude" in r.stderr, r
    r = launch("crush", "--url", "http://127.0.0.1:1")  # nothing listens there
    assert r.returncode == 64 and r.stderr and "a name from /v1/models" in r.stdout and "any text" in r.stdout, r
    r = launch("claude", "--url", url)
    assert r.returncode == 1 and "sends about 12000 tokens first; first has a context of 4096: it cannot work" in r.stderr, r
    assert "cannot work" in launch("claude", "--url", url, "--print").stderr
    for model, remedy in (("first", "weftd --max-context N, or a model with a longer context"), ("cut", "weftd --max-context N, or"),
                          ("short", "(this is the model's limit; choose a model with a longer context)")):
        assert remedy in launch("claude", "--url", url, "--model", model).stderr, model
    assert "sends about 14000 tokens first" in launch("qwen", "--url", url).stderr
    assert "copilot sends about 11000 tokens first" in launch("copilot", "--url", url).stderr
    assert "goose sends about 4500 tokens first" in launch("goose", "--url", url).stderr
    assert started("goose", "--url", url, "--model", "second")[1]["GOOSE_CONTEXT_LIMIT"] == "65536"
    r = launch("claude", "--url", url, "--model", "second")
    assert r.returncode == 0 and not r.stderr, r
    assert launch("claude", "--url", url, "--model", "third").stderr == "weftctl: third reads pictures\n"
    env = started("claude", "--anyway", WEFT_URL=url)[1]
    assert env["ANTHROPIC_MODEL"] == "first" and "CLAUDE_CODE_AUTO_COMPACT_WINDOW" not in env
    assert started("claude", "--url", url, "--model", "third")[1]["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "131072"
    assert "--config=model_context_window=65536" in started("codex", "--url", url, "--model", "second")[0]
    config = json.loads(started("opencode", "--url", url, "--model", "second")[1]["OPENCODE_CONFIG_CONTENT"])
    assert config["provider"]["weft"]["models"] == {"second": {"name": "second", "limit": {"context": 65536, "output": 8192}}}
    assert started("copilot", "--anyway", "--url", url)[1]["COPILOT_PROVIDER_MAX_PROMPT_TOKENS"] == "4096"
    fresh()
    assert launch("codex", "--write", "--url", url, "--model", "second").returncode == 0
    with open(os.path.join(HOME, ".codex/weft.config.toml")) as file:
        assert "\nmodel_context_window = 65536\n\n[" in file.read()
    assert launch("openclaw", "--write", "--url", url).returncode == 0
    assert "openclaw sends about 14000 tokens first" in launch("openclaw", "--url", url).stderr
    assert launch("pi", "--write", "--url", url).returncode == 0
    with open(os.path.join(HOME, ".pi/agent/models.json")) as file:
        assert json.load(file)["providers"]["weft"]["models"] == [{"id": "first", "contextWindow": 4096, "maxTokens": 2048}]
    assert launch("continue", "--write", "--url", url).returncode == 0
    with open(os.path.join(HOME, ".continue/config.yaml")) as file:
        assert file.read().endswith("\n    capabilities: [tool_use]\n    defaultCompletionOptions:\n      contextLength: 4096\n")
    server.shutdown()
    r = launch("claude", "--url", "http://127.0.0.1:1")
    assert r.returncode == 69 and "no weftd answers" in r.stderr, r


def test_the_time_of_the_first_prompt_is_told():
    """A server that reads 1,000 tokens a second: Claude Code's 30,000 take half a minute."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"data": [{"id": "m", "max_model_len": 65536}]}')

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            words = body["messages"][0]["content"].split()
            asked.append((words, body["max_tokens"]))
            time.sleep(len(words) / 1000)
            usage = {"prompt_tokens": len(words) + 20, "prompt_tokens_details": {"cached_tokens": 20}}
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for chunk in ({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "length"}]}, {"choices": [], "usage": usage}):
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = "http://127.0.0.1:%d" % server.server_port
    r = launch("claude", "--url", url)
    told = re.search(r"sends about 12000 tokens first: about (\d+) (s|min) at (\d+) tokens/s", r.stderr)
    assert r.returncode == 0 and told, r
    seconds = int(told[1]) * (60 if told[2] == "min" else 1)
    assert abs(seconds - 12000 / int(told[3])) <= (31 if told[2] == "min" else 3), r.stderr
    assert [(n, len(words)) for words, n in asked] == [(1, 1), (1, 1), (1, 150)] and len(set(asked[2][0])) > 100, asked
    launch("claude", "--url", url)
    assert asked[5][0] != asked[2][0], "the second measurement finds the first one's prompt in the cache"
    n = len(asked)
    for more in (["claude", "--print"], ["claude", "--write"], ["aider"]):
        launch(*more, "--url", url)
    assert len(asked) == n, "it measures though nothing is started, or nothing is known of the client"
    server.shutdown()
    fresh()


def test_a_file_is_changed_and_given_back():
    at = ("--url", "http://127.0.0.1:1", "--model", "m")
    cases = [
        ("claude", ".claude/settings.json", '{"env": {"A": "1"}, "theme": "dark"}\n'),
        ("opencode", ".config/opencode/opencode.json", '{"provider": {"other": {}}, "model": "x/y"}'),
        ("pi", ".pi/agent/models.json", '{"providers": {"other": {}}}'),
        ("openclaw", ".openclaw/openclaw.json", '{"models": {"providers": {"other": {}}}, "agents": {"defaults": {"workspace": "/w"}}}'),
        ("hermes", ".hermes/config.yaml", "model:\n  provider: nous\n  default: x"),
        ("continue", ".continue/config.yaml", "# mine\n"),
        ("codex", ".codex/weft.config.toml", 'approval_policy = "never"\n'),
    ]
    for name, path, old in cases:
        for text in (None, old):
            fresh()
            path_of = os.path.join(HOME, path)
            if text is not None:
                os.makedirs(os.path.dirname(path_of))
                with open(path_of, "w") as file:
                    file.write(text)
                os.chmod(path_of, 0o640)
            r = launch(name, "--write", *at)
            assert r.returncode == 0, r
            with open(path_of) as file:
                new = file.read()
            if name == "codex":
                assert new.startswith(text or "") and '[model_providers.weft]\nname = "weft"\nbase_url = "http://127.0.0.1:1/v1"' in new
                value = TOML and TOML.loads(new)
                assert not TOML or (value["model"], value["model_provider"]) == ("m", "weft")
            elif name == "hermes":
                own = 'custom_providers:\n  - name: weft\n    base_url: "http://127.0.0.1:1/v1"\n    api_key: "none"\n    model: "m"\n'
                assert new == f"{text or ''}\n{own}"
                assert started("hermes", *at)[0] == ["chat", "--provider", "custom:weft", "--model", "m"]
            elif name == "continue":
                own = '    provider: openai\n    model: "m"\n    apiBase: "http://127.0.0.1:1/v1"\n    apiKey: "none"\n    capabilities: [tool_use]\n'
                assert new.startswith((text or "") + "\nname: weft\n") and new.endswith(own), new
                assert started("continue", *at)[0] == []
            elif name == "claude":
                value = json.loads(new)
                assert value["env"]["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:1"
                assert text is None or (value["env"]["A"], value["theme"]) == ("1", "dark")
            elif name == "pi":
                value = json.loads(new)["providers"]
                assert value["weft"] == {"baseUrl": "http://127.0.0.1:1/v1", "api": "openai-completions", "apiKey": "none", "models": [{"id": "m"}]}
                assert (text is None or "other" in value) and started("pi", *at)[0] == ["--provider", "weft", "--model", "m"]
            elif name == "openclaw":
                value = json.loads(new)
                provider = value["models"]["providers"]["weft"]
                assert provider == {"baseUrl": "http://127.0.0.1:1/v1", "apiKey": "none", "api": "openai-completions", "models": [{"id": "m", "name": "m", "input": ["text"]}]}
                assert value["agents"]["defaults"]["model"] == {"primary": "weft/m"}
                assert text is None or (value["agents"]["defaults"]["workspace"] == "/w" and "other" in value["models"]["providers"])
            else:
                value = json.loads(new)
                assert value["model"] == "weft/m" and (text is None or "other" in value["provider"])
            again = launch(name, "--write", *at)
            assert "\\n" not in again.stderr, again
            assert again.returncode == 1 and "--undo" in again.stderr, again
            r = launch(name, "--undo")
            assert r.returncode == 0, r
            assert files() == ([] if text is None else [path]), files()
            if text is not None:
                with open(path_of) as file:
                    assert file.read() == text
                assert os.stat(path_of).st_mode & 0o777 == 0o640
            r = launch(name, "--undo")
            assert r.returncode == 1 and "nothing to undo" in r.stderr, r


def test_what_was_changed_since_is_left_alone():
    fresh()
    path = os.path.join(HOME, ".claude/settings.json")
    assert launch("claude", "--write", "--model", "m").returncode == 0
    with open(path, "a") as file:
        file.write("\n")
    r = launch("claude", "--undo")
    assert r.returncode == 1 and "changed after weftctl wrote it" in r.stderr and os.path.exists(path), r


def test_a_link_to_settings_stays_one():
    fresh()
    path, kept = os.path.join(HOME, ".claude/settings.json"), os.path.join(HOME, "dotfiles/claude.json")
    for at in path, kept:
        os.makedirs(os.path.dirname(at))
    with open(kept, "w") as file:
        file.write('{"theme": "dark"}')
    os.symlink(kept, path)
    assert launch("claude", "--write", "--model", "m").returncode == 0
    with open(kept) as file:
        assert json.load(file)["env"]["ANTHROPIC_BASE_URL"] and os.path.islink(path)
    assert launch("claude", "--undo").returncode == 0
    with open(kept) as file:
        assert file.read() == '{"theme": "dark"}' and os.path.islink(path)
    assert sorted(files()) == [".claude/settings.json", "dotfiles/claude.json"], files()


def test_a_file_that_is_not_plain_json_is_not_touched():
    fresh()
    path = os.path.join(HOME, ".config/opencode/opencode.json")
    os.makedirs(os.path.dirname(path))
    with open(path, "w") as file:
        file.write('{ // mine\n "a": 1 }')
    r = launch("opencode", "--write", "--model", "m")
    assert r.returncode == 1 and "by hand" in r.stderr and files() == [".config/opencode/opencode.json"], r


def test_wrong_usage_is_said():
    for args, code in ((["nobody"], 64), ([], 64), (["claude", "--print", "--write"], 64), (["aider", "--write", "--model", "m"], 1), (["pi", "--model", "m"], 1)):
        assert launch(*args).returncode == code, args
    assert all(client in launch().stderr for client in CLIENTS)
    r = launch("claude", "--model", "m", PATH="/nonexistent")
    assert r.returncode == 1 and "not installed" in r.stderr, r


main(globals())
