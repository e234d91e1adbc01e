"""weft-setup: one command from an installed package to a service with a model; what else the configuration has stays."""
import http.server
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request

import fake_hub
import hf_folder
from weftd import LIMIT_S, Skip, free_port, main, program, synth, wait_until

SCRIPT = pathlib.Path(program("weftd")).parent / "systemd/weft-setup"


class Machine:
    """A folder of programs: weftd as it was built, and a systemctl and a weftctl that note what they are told."""

    def __init__(self, boots):
        if not SCRIPT.exists():
            raise Skip("built without systemd")
        self.temporary = tempfile.TemporaryDirectory(prefix="weft-setup-", dir="/var/lib")
        self.folder = pathlib.Path(self.temporary.name)
        self.config, self.told = self.folder / "weft.conf", self.folder / "told"
        (self.folder / "bin").mkdir()
        (self.folder / "bin/weftd").symlink_to(program("weftd"))
        self.program("systemctl", f'echo "$@" >>{self.told}; [ "$1" != list-units ] || exit {0 if boots else 1}')
        self.program("weftctl", f'echo "weftctl $@" >>{self.told}; echo {self.folder}/model.gguf')
        self.model = self.folder / "model.gguf"
        self.model.write_bytes(pathlib.Path(synth("setup", "--shape", "tiny,n_layer=1,n_embd=256", "--format", "Q4_K", "--n-vocab", "512")).read_bytes())
        self.folder.chmod(0o755)
        self.model.chmod(0o644)

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def setup(self, *args, text=None):
        if text is not None:
            self.config.write_text(text)
        self.told.write_text("")
        return subprocess.run(["sh", str(SCRIPT), "--config", str(self.config), *map(str, args)], capture_output=True, text=True, timeout=LIMIT_S,
                              env={**os.environ, "PATH": f"{self.folder}/bin:/usr/bin:/bin"})


def test_the_configuration_names_the_model_and_keeps_the_rest():
    m = Machine(boots=True)
    line = f"model = {m.model}\n"
    cases = [
        ("[model]\n# the file\n#model =\n\n#model-name =\n[listen]\nlisten = 127.0.0.1:9\n", f"[model]\n# the file\n{line}\n#model-name =\n[listen]\nlisten = 127.0.0.1:9\n"),
        ("[model]\nmodel = /old.gguf\nmodel-name = x\n", f"[model]\n{line}model-name = x\n"),
        ("[listen]\nanonymous = no\n", f"[listen]\nanonymous = no\n\n[model]\n{line}"),
        ("[model]\nmodel-name = x\n[listen]\n", f"[model]\nmodel-name = x\n{line}[listen]\n"),
        ("", f"\n[model]\n{line}"),
    ]
    for before, after in cases:
        for _ in range(2):  # run again, nothing changes
            r = m.setup(m.model, text=before)
            assert r.returncode == 0, r
            assert m.config.read_text() == after, (before, m.config.read_text())
            before = after
    m.config.chmod(0o640)
    own = m.config.rename(m.folder / "own.conf")
    m.config.symlink_to(own)
    assert m.setup(m.model).returncode == 0 and m.config.is_symlink() and m.config.stat().st_mode & 0o777 == 0o640
    told = m.told.read_text()
    assert "enable --quiet --now weftd.socket weftd-admin.socket\n" in told and told.endswith("restart weftd\n"), told


def test_a_model_of_the_hub_is_fetched():
    m = Machine(boots=True)
    r = m.setup("--models", m.folder / "kept", "hf:some/repo:Q8_0", text="[model]\n")
    assert r.returncode == 0 and f"weftctl pull --models {m.folder}/kept hf:some/repo:Q8_0\n" in m.told.read_text(), (r, m.told.read_text())
    assert m.config.read_text() == f"[model]\nmodel = {m.model}\n" and (m.folder / "kept").is_dir()
    m.program("weftctl", "echo no such repository >&2; exit 69")
    assert m.setup("hf:some/other").returncode == 69 and m.config.read_text() == f"[model]\nmodel = {m.model}\n"


def test_without_systemd_it_says_how_to_start():
    m = Machine(boots=False)
    r = m.setup(m.model, text="[model]\n")
    assert r.returncode == 0 and f"weftd --config {m.config}" in r.stdout and m.told.read_text() == "list-units\n", r


def test_what_the_service_cannot_use_changes_nothing():
    m = Machine(boots=True)
    text = "[model]\nmodel = /old.gguf\n"
    m.model.chmod(0o600)
    r = m.setup(m.model, text=text)
    assert r.returncode == 1 and "may not read it" in r.stderr, r
    m.model.chmod(0o644)
    m.folder.chmod(0o750)
    r = m.setup(m.model)
    assert r.returncode == 1 and f"{m.folder}: the service may not enter it" in r.stderr, r
    m.folder.chmod(0o755)
    bad = m.folder / "bad.gguf"
    bad.write_bytes(b"not a model" * 100)
    bad.chmod(0o644)
    with tempfile.NamedTemporaryFile(dir="/tmp", suffix=".gguf") as hidden:
        for model, why in ((bad, "is unchanged"), (m.folder / "none.gguf", "there is no such file"), (hidden.name, "neither home folders nor temporary")):
            r = m.setup(model)
            assert r.returncode == 1 and why in r.stderr, (model, r)
    assert m.config.read_text() == text and not list(m.folder.glob("*.weft-setup")) and not m.told.read_text()
    assert m.setup().returncode == 64 and m.setup("a", "b").returncode == 64 and m.setup("--help").returncode == 0
    m.config.unlink()
    assert "run this as root" in m.setup(m.model).stderr


def test_quickstart_says_how_much_is_left():
    script = pathlib.Path(__file__).parents[2] / "packaging/setup/progress.sh"
    for said, seconds, shown in (("5/100", 10, "5/100"), ("50/100", 30, "50/100, about 30 s left"), ("25/100", 9, "25/100, about 27 s left"),
                                 ("100/100", 9, "100/100"), ("downloading 5 %", 3, "downloading 5 %")):
        r = subprocess.run(["bash", "-c", f'. {script}; echo "$1" | progress_left {seconds}', "-", said], capture_output=True, text=True, timeout=LIMIT_S)
        assert r.stdout.strip() == shown, (said, r)


def test_the_first_chat_needs_no_proxy_and_no_unicode():
    class Answer(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def answer(self, body):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            self.answer(b'data: {"choices": [{"delta": {"content": "Paris \xe2\x9c\x93"}}]}\n\ndata: [DONE]\n\n')

        def do_GET(self):
            self.answer(b'{"data": []}')

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        script = pathlib.Path(__file__).parents[2] / "packaging/setup/first-chat"
        r = subprocess.run([str(script), f"http://127.0.0.1:{server.server_port}"], capture_output=True, text=True, timeout=LIMIT_S,
                           env={"PATH": os.environ["PATH"], "PYTHONIOENCODING": "latin-1", "http_proxy": "http://127.0.0.1:1"})
        server.shutdown()
    assert r.returncode == 0 and "\nParis ?\n" in r.stdout, r


def quickstart_folder(folder):
    """A checkout in which everything is built and no package is missing."""
    source = pathlib.Path(__file__).parents[2]
    (folder / "packaging/setup").mkdir(parents=True)
    (folder / "build").mkdir()
    shutil.copy(source / "quickstart", folder)
    for name in ("progress.sh", "quick-options.sh", "first-chat"):
        shutil.copy(source / "packaging/setup" / name, folder / "packaging/setup")
    (folder / "packaging/setup/install-deps").write_text("#!/bin/sh\n")
    (folder / "packaging/setup/install-deps").chmod(0o755)
    (folder / "build/build.ninja").write_text("build weftd weftctl: phony\n")
    for name in ("weftd", "weftctl"):
        (folder / "build" / name).symlink_to(program(name))


def test_weftctl_finds_the_model_that_quickstart_fetches():
    m = Machine(boots=True)
    folder, home = m.folder / "checkout", m.folder / "a home"
    quickstart_folder(folder)
    shutil.copy(pathlib.Path(__file__).parents[2] / "packaging/setup/fetch-model", folder / "packaging/setup")
    model = home / ".local/share/weft/models/TinyLlama-1.1B-Chat-IQ2_XXS.gguf"
    model.parent.mkdir(parents=True)
    shutil.copy(m.model, model)  # fetched before
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    for command in (["bash", "packaging/setup/fetch-model"], ["build/weftctl", "models", "--path", "tinyllama-1.1b-chat"]):
        r = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S)
        assert r.stdout == f"{model}\n", (command, r)


def test_two_quickstarts_at_once_serve_beside_each_other():
    m = Machine(boots=True)
    folder = m.folder / "it's a \"folder\" $x"
    quickstart_folder(folder)
    ports = []
    while len(set(ports)) < 2:
        ports = [free_port(), free_port()]
    started = [subprocess.Popen(["bash", "./quickstart", "--model", str(m.model), "--port", str(port)], cwd=folder,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for port in ports]
    try:
        sockets = set()
        for p, port in zip(started, ports):
            said = []
            for line in p.stdout:
                said.append(line)
                if line.endswith(" top\n"):
                    break
            assert said[-1].endswith(" top\n"), said
            own = f"build/admin-{port}.sock"
            sockets.add(own if f"--socket {own}" in said[-1] else "build/admin.sock")
        assert len(sockets) == 2 and "build/admin.sock" in sockets and all((folder / s).is_socket() for s in sockets), sockets
    finally:
        for p in started:
            p.terminate()
            p.communicate(timeout=LIMIT_S)


def test_quickstart_serves_a_repository_under_the_name_that_vllm_takes():
    """From an empty folder of models to an answer: the hub has the model as a folder of safetensors."""
    m = Machine(boots=True)
    folder, port = m.folder / "checkout", free_port()
    quickstart_folder(folder)
    speaks = synth("tiny-bf16", "--arch", "qwen3", "--shape", "tiny", "--format", "BF16")
    published = pathlib.Path(hf_folder.write_folder(speaks, m.folder / "published", 2))
    with fake_hub.Hub({p.name: p.read_bytes() for p in published.iterdir()} | {"README.md": b"hello"}) as hub:
        env = {**os.environ, "HOME": str(m.folder), "WEFT_MODELS": str(m.folder / "models"), "HF_ENDPOINT": hub.url}
        p = subprocess.Popen(["bash", "./quickstart", "--model", fake_hub.REPO, "--port", str(port)], cwd=folder, env=env,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            said = []
            for line in p.stdout:
                said.append(line)
                if line.endswith(" top\n"):
                    break
            assert said[-1].endswith(" top\n") and "2 files of weights (safetensors)" in "".join(said), said
            body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0, "model": "Some-GGUF"}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(),
                                             {"Content-Type": "application/json"})
            answer = json.load(urllib.request.urlopen(request, timeout=LIMIT_S))
            assert answer["model"] == "Some-GGUF" and answer["usage"]["completion_tokens"] > 0, answer
        finally:
            p.terminate()
            p.communicate(timeout=LIMIT_S)
    (m.folder / "nothing").mkdir()
    for name, reason in ((str(m.folder / "nothing"), "a folder without config.json is no model"), ("no.gguf", "there is no such file")):
        r = subprocess.run(["bash", "./quickstart", "--model", name], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
        assert r.returncode == 1 and reason in r.stderr, r


def test_quickstarts_of_one_folder_build_one_after_the_other():
    m = Machine(boots=True)
    folder = m.folder / "checkout"
    quickstart_folder(folder)
    (folder / "build/build.ninja").unlink()
    # Programs that fail where another of them is at work.
    alone = f"mkdir {m.folder}/busy || {{ echo two at a time; exit 1; }}; sleep 1.5; rmdir {m.folder}/busy"
    m.program("meson", f"{alone}; touch build/build.ninja")
    m.program("ninja", alone)
    started = []
    for _ in range(2):  # the second one while the first is at work
        started.append(subprocess.Popen(["bash", "./quickstart", "--build"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        env={**os.environ, "PATH": f"{m.folder}/bin:/usr/bin:/bin"}))
        wait_until("it is at work", (m.folder / "busy").exists)
    said = [p.communicate(timeout=LIMIT_S)[0] for p in started]
    assert [p.returncode for p in started] == [0, 0], said
    assert sum("Another ./quickstart is at work in this folder" in s for s in said) == 1, said


def test_quickstart_reads_ports_as_decimal_numbers():
    m = Machine(boots=True)
    quickstart_folder(m.folder / "checkout")
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
        for zeros in ("0", "00"):
            r = subprocess.run(["bash", "./quickstart", "--model", str(m.model), "--port", f"{zeros}{port}"], cwd=m.folder / "checkout",
                               capture_output=True, text=True, timeout=LIMIT_S)
            assert r.returncode == 1 and r.stderr == f"Something listens on port {port} already. Another one: ./quickstart --port {port + 1}\n", r


def test_quickstart_says_first_that_it_may_not_write():
    m = Machine(boots=True)
    folder = m.folder / "checkout"
    quickstart_folder(folder)
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "bash", "./quickstart", "--model", str(m.model), "--port", "1"]
    for unwritable in ("build", "build/weftd.log"):
        shutil.rmtree(folder)
        quickstart_folder(folder)
        (folder / "build/weftd.log").write_text("ready http://127.0.0.1:1\n")  # of the last time
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, 65534, 65534, follow_symlinks=False)
        os.chown(folder / unwritable, 0, 0)
        r = subprocess.run(as_nobody, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
        assert r.returncode == 1 and r.stdout == "" and r.stderr == f"{folder}/{unwritable}: you may not write there. Its owner is root.\n", r


if __name__ == "__main__":
    if os.getuid() != 0:
        print("1..0 # SKIP not root: the files of this test must lie where a service sees them")
        sys.exit(0)
    main(globals())
