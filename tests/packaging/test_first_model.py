"""Which model ./quickstart takes when it has none: packaging/setup/fetch-model with a program in place of weftctl, whose pull
does what each test says, and a registry of npm that this test is. Argument: the source folder."""
import http.server
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

WANTED = "hf:Qwen/Qwen3-0.6B-GGUF:Q8_0"
TINYLLAMA = "TinyLlama-1.1B-Chat-IQ2_XXS.gguf"
WEFTCTL = """#!/bin/sh
echo "$*" >>calls
case $1 in
    models) [ -e have ] && echo /models/qwen.gguf ;;
    pull) [ "$(cat pull)" != 0 ] || echo /models/qwen.gguf; exit "$(cat pull)" ;;
esac
"""


class Tree:
    """A folder with the scripts and a weftctl; use as a context manager. @pull: the exit status of a pull."""

    def __init__(self, source, pull, registry="http://127.0.0.1:1"):
        self.made = tempfile.TemporaryDirectory(prefix="weft-model-")
        self.path = pathlib.Path(self.made.name)
        shutil.copytree(source / "packaging" / "setup", self.path / "packaging" / "setup")
        (self.path / "build").mkdir()
        (self.path / "models").mkdir()
        (self.path / "build" / "weftctl").write_text(WEFTCTL)
        (self.path / "build" / "weftctl").chmod(0o755)
        self.pull(pull)
        self.env = {"PATH": os.environ["PATH"], "HOME": self.made.name, "WEFT_MODELS": str(self.path / "models"),
                    "npm_config_registry": registry, "no_proxy": "127.0.0.1"}

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.made.cleanup()

    def pull(self, status):
        (self.path / "pull").write_text(str(status))

    def have(self, name):
        (self.path / name).write_text("GGUF")

    def fetch(self):
        """(exit status, the path, the calls of weftctl, what it says)"""
        (self.path / "calls").write_text("")
        p = subprocess.run([self.path / "packaging" / "setup" / "fetch-model"], env=self.env, capture_output=True, text=True, timeout=120)
        return p.returncode, p.stdout.strip(), (self.path / "calls").read_text().splitlines(), p.stderr


def test_a_model_that_is_here_is_taken_at_once(source):
    with Tree(source, 69) as tree:
        tree.have("have")
        assert tree.fetch()[:3] == (0, "/models/qwen.gguf", [f"models --path {WANTED}"])


def test_the_better_model_is_tried_again_at_each_call(source):
    """Shortly: the smaller one is here, and an answer must not wait for the hub."""
    with Tree(source, 69) as tree:
        tree.have("models/" + TINYLLAMA)
        for _ in range(2):
            status, path, calls, said = tree.fetch()
            assert (status, path) == (0, str(tree.path / "models" / TINYLLAMA)), (status, path, said)
            assert calls[1] == f"pull --tries 1 --stall 5 {WANTED}" and "TinyLlama instead" in said, (calls, said)
        tree.pull(0)
        assert tree.fetch()[:2] == (0, "/models/qwen.gguf")


def test_an_interrupted_pull_ends_it(source):
    with Tree(source, 130) as tree:
        tree.have("models/" + TINYLLAMA)
        assert tree.fetch()[:2] == (130, "")


def test_without_hub_and_registry_it_says_what_to_type(source):
    with Tree(source, 69) as tree:
        status, path, calls, said = tree.fetch()
        assert (status, path) == (1, "") and calls[1] == f"pull --tries 2 --stall 20 {WANTED}", (status, path, calls)
        assert "is there a network?" in said and "./quickstart --model FILE.gguf" in said, said


def test_another_file_than_the_pinned_one_is_removed(source):
    class Registry(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(archive)

        def log_message(self, *args):
            pass

    with tempfile.TemporaryDirectory() as folder, http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        pathlib.Path(folder, "package").mkdir()
        pathlib.Path(folder, "package", "model.part").write_text("another model")
        archive = subprocess.run(["tar", "-czC", folder, "package"], check=True, capture_output=True).stdout
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Tree(source, 69, f"http://127.0.0.1:{server.server_port}/") as tree:
            status, path, _, said = tree.fetch()
            assert (status, path) == (1, "") and "its checksum is another one" in said, (status, path, said)
            assert not list((tree.path / "models").iterdir()), "nothing is left"
        server.shutdown()


def main(source):
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test(source)
            print(name)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
