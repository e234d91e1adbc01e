"""What the tests of clients share: packages from npm, and weft's front with a scripted model.

A client lives in a folder with package.json and a lock file; install() puts it into the build folder, once. Where npm is
missing or does not reach its registry the test is skipped, with npm's reason.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).parent
sys.path.insert(0, str(SOURCE.parent / "e2e"))

from pictures import pictures_total, settled  # noqa: E402
from weftd import BUILD, DATA, Skip, Weftd, main, tiny_model  # noqa: E402,F401

UNREACHABLE = re.compile(r"\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|ERR_SOCKET_TIMEOUT|ENOTCACHED)\b.*")


# Briefly: where there is no registry, nobody waits minutes to hear of it.
NPM = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1", "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=2000", "--fetch-timeout=120000"]
refused = {}  # why, by client


def install(name, *flags, source=None):
    """The folder of client @name in the build folder, with its packages in it. @source: where its lock file is."""
    source, folder = source or SOURCE / name, BUILD / "tests" / "clients" / name
    stamp, lock = folder / "node_modules" / ".package-lock.json", source / "package-lock.json"
    if not shutil.which("npm"):
        raise Skip("npm is not installed")
    if name in refused:
        raise Skip(refused[name])
    folder.mkdir(parents=True, exist_ok=True)
    for file in [*source.iterdir(), SOURCE / "tap.mjs"]:
        if file.is_file():
            shutil.copy(file, folder)
    if stamp.exists() and stamp.stat().st_mtime >= lock.stat().st_mtime:
        return folder
    npm = subprocess.run([*NPM, *flags], cwd=folder, capture_output=True, text=True)
    if npm.returncode:
        why = UNREACHABLE.search(npm.stderr)
        if why:
            refused[name] = "npm does not reach its registry: " + why.group(0)[:120]
            raise Skip(refused[name])
        raise AssertionError("npm ci failed: " + npm.stderr)
    return folder


class Scripted:
    """A running scripted_server; use as a context manager. @script: see scripted_server.c. @template: text of a chat
    template, instead of the model's. @sees: the model takes pictures; each is <|image_pad|> many times in its prompt."""

    def __init__(self, script, *flags, template=None, sees=False):
        model = str(DATA / "golden-vision" / "qwen3vl.gguf") if sees else tiny_model()
        if sees:
            flags += ("--mmproj", str(DATA / "golden-vision" / "mmproj-qwen3vl.gguf"))
        self.folder = tempfile.TemporaryDirectory(prefix="weft-clients-")
        path, self.log_path = os.path.join(self.folder.name, "script"), os.path.join(self.folder.name, "log")
        with open(path, "w") as file:
            file.write(script)
        if template:
            flags += ("--chat-template", os.path.join(self.folder.name, "template"))
            with open(flags[-1], "w") as file:
                file.write(template)
        self.process = subprocess.Popen(
            [str(BUILD / "tests" / "clients" / "scripted_server"), "--model", model, "--script", path, "--log", self.log_path, *flags],
            stdout=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            raise AssertionError("scripted_server did not start: " + line)
        self.url = line.split()[1]

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind and kind not in (Skip, SystemExit):
            for run in self.runs:
                print("# answer %d to: %s" % (run["answer"], run["prompt"][-1500:].replace("\n", "\n#   ")), file=sys.stderr)
        self.process.terminate()
        self.process.wait(20)
        self.process.stdout.close()
        self.folder.cleanup()

    @property
    def runs(self):
        """One dictionary for each generation so far."""
        with open(self.log_path) as file:
            return [json.loads(line) for line in file]


SCREENSHOT = SOURCE.parent.parent / "docs" / "images" / "web-chat.png"

# For a model that sees: a picture in the user's message, or in the result of a tool.
LOOKS = """\
=== results=0 has=Use the camera.
<tool_call>
{"name": "camera", "arguments": {}}
</tool_call>
=== results=1 has=<|image_pad|><|image_pad|>
The camera shows a chat.
=== results=0 has=<|image_pad|><|image_pad|>
It shows a chat.
===
There is no picture.
"""

# A city after the other: two calls of a tool, then the answer.
WEATHER = """\
=== results=0 has=Weather in Ghent
<tool_call>
{"name": "weather", "arguments": {"city": "Ghent"}}
</tool_call>
=== results=1 has=Weather in Ghent
And now the other.
<tool_call>
{"name": "weather", "arguments": {"city": "Bruges"}}
</tool_call>
=== results=2 has=Weather in Ghent
Both have 12 degrees.
"""


def check_looks(runs):
    """Every answer about the picture came from a prompt that has it once, and where its message is: with a tool, in the result."""
    seen = [r for r in runs if r["answer"] in (1, 2)]
    for r in seen:
        before, *rest = r["prompt"].split("<|vision_start|>")
        assert len(rest) == 1, r["prompt"][-2000:]
        assert ("<tool_response>" in before[before.rindex("<|im_start|>"):]) == (r["answer"] == 1), before[-2000:]
    assert {r["answer"] for r in seen} == {1, 2} and all(r["answer"] != 3 for r in runs), [r["answer"] for r in runs]


LOOKS_A_DIALECT = 12  # requests of look() in tap.mjs


def counting():
    """A daemon that computes and sees: only there are encodings to count."""
    return Weftd("--max-context", "4096", model=str(DATA / "golden-vision" / "qwen3vl.gguf"))


def check_encoded_once(d, n_dialects=1):
    """look() sent one picture with every request of @n_dialects, and its rows were computed for the first of them only."""
    decoded, known = pictures_total(d)
    assert decoded + known == n_dialects * LOOKS_A_DIALECT, (decoded, known)
    settled(d, 1)


def node(folder, script, *args):
    """Runs a script that prints TAP, as this test's own output; its exit code."""
    sys.stdout.flush()
    return subprocess.run(["node", script, *args], cwd=folder).returncode
