"""Helpers of the tests of upgrades: daemons that hand over to others, streams that continue meanwhile, and programs
that are replaced."""
import json
import os
import pathlib
import re
import signal
import subprocess
import threading

from manager import adopt, wait_end, wait_until
from weftd import BUILD, LIMIT_S, Weftd, program, random_tokens

# A worker that a test has stopped does not hang.
FLAGS = ("--max-context", "16384", "--kv-memory", "64M", "--threads", "1", "--hang-timeout-ms", "3600000")
ASK = {"max_tokens": 24, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
PROMPT = random_tokens(1, 30)
LONG = {"prompt": PROMPT, **ASK, "max_tokens": 2500}
adopt()


def ctl(d, *command):
    return subprocess.run([program("weftctl"), "--socket", d.admin, *command], capture_output=True, text=True, timeout=LIMIT_S)


def upgrade(d):
    """Runs an upgrade. Returns the PID of the next daemon."""
    r = ctl(d, "--json", "upgrade")
    assert r.returncode == 0, (r, d.log)
    return json.loads(r.stdout)["pid"]


def refused(d, reason):
    r = ctl(d, "upgrade")
    assert r.returncode == 1 and reason in r.stderr, r


def answer(d, prompt=PROMPT, **more):
    return d.complete(prompt, **{**ASK, **more})["token_ids"]


class Stream(threading.Thread):
    """Reads one stream: its tokens, and the error that ended it."""

    def __init__(self, d, body=LONG, key=None):
        super().__init__()
        self.d, self.body, self.key, self.tokens, self.error = d, body, key, [], None
        self.start()
        wait_until("the first token", lambda: self.tokens or self.error)

    def run(self):
        try:
            self.connection = self.d.connect()
            for event in Weftd.stream(self.d, "/v1/completions", self.body, connection=self.connection, key=self.key):
                for choice in event["choices"]:
                    self.tokens += choice["token_ids"]
        except Exception as error:  # noqa: BLE001: inspected by the test
            self.error = error


def put_program(path, data):
    """Writes the program from a separate process: children of other threads inherit this process' open files for a
    moment, and a program that is open for writing cannot be executed."""
    subprocess.run(["cp", "/dev/stdin", path], input=data, check=True)
    os.chmod(path, 0o755)


def replace_version(path):
    """Replaces the program by one with another digest of the sources that requests depend on, as another version has:
    no requests move to it."""
    text = (BUILD / "engine" / "build_id.h").read_text()
    # The first 16 of 20 bytes: an optimised copy may store the other 4 elsewhere.
    digest = bytes(int(b, 16) for b in re.search(r"REQUEST_SOURCES (.*)", text)[1].split(", "))[:16]
    data = pathlib.Path(program("weftd")).read_bytes()
    assert digest in data
    put_program(path + ".new", data.replace(digest, digest[::-1]))
    os.rename(path + ".new", path)


class Installed:
    """A folder with a copy of the program, which an upgrade replaces."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "weftd")
        put_program(self.path, pathlib.Path(program("weftd")).read_bytes())

    def replace(self, text=None):
        """Replaces the program by a script, or by the real program."""
        new = self.path + ".new"
        put_program(new, text.encode() if text else pathlib.Path(program("weftd")).read_bytes())
        os.rename(new, self.path)

    def replace_version(self):
        replace_version(self.path)

    def delay(self, seconds):
        self.replace(f'#!/bin/sh\nsleep {seconds}\nexec {program("weftd")} "$@"\n')


def daemons(admin):
    """Returns the daemons with this admin socket: the one that the test started, and its adopted successors."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = pathlib.Path("/proc", pid, "stat").read_text().rsplit(")", 1)
            is_ours = int(stat[1].split()[1]) == os.getpid() and "(weftd" in stat[0] and stat[1].split()[0] != "Z"
            if is_ours and admin.encode() in pathlib.Path("/proc", pid, "cmdline").read_bytes().split(b"\0"):
                found.append(int(pid))
        except (OSError, IndexError):
            pass
    return found


class Daemon(Weftd):
    """A daemon with its successors: none outlives the test."""

    def __exit__(self, *failure):
        try:
            super().__exit__(*failure)
        finally:
            for pid in daemons(self.admin):
                os.kill(pid, signal.SIGKILL)
                wait_end(pid)
