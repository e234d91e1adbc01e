"""OpenAI's, Anthropic's and Ollama's libraries for Python, from Debian's unstable release, which has the newest ones.

They are unpacked into a tree below the build folder and run there by its own Python: the lines of the page as they
stand on its page, and python-sdks/checks.py. Trees need mmdebstrap and root.
"""
import functools
import os
import re
import shutil
import subprocess

from clients import BUILD, SOURCE, Skip, Weftd, main

PACKAGES = "base-files,ca-certificates,python3-openai,python3-anthropic,python3-ollama"
UNREACHABLE = re.compile(r"(Could not resolve|Could not connect|Temporary failure|Connection timed out|Failed to fetch).*")
PAGE = SOURCE.parent.parent / "docs" / "reference" / "client-settings.md"
# No package was configured, so that the list of authorities does not exist, which httpx reads without a need for it.
AUTHORITIES = "/usr/share/ca-certificates/mozilla/ISRG_Root_X1.crt"
LIBRARIES = ("openai", "anthropic", "ollama")


@functools.cache
def tree():
    """Returns the tree, which is made once per build folder."""
    if not shutil.which("mmdebstrap") or os.geteuid() != 0:
        raise Skip("mmdebstrap is not installed, or this is not root")
    made = BUILD / "tests" / "clients" / "python-sdks"
    if not (made / "complete").exists():
        shutil.rmtree(made, ignore_errors=True)
        # A mirror may stand still for longer than the lists of this release are valid.
        done = subprocess.run(["mmdebstrap", "--quiet", "--variant=extract", '--aptopt=Acquire::Check-Valid-Until "false"',
                               f"--include={PACKAGES}", "sid", str(made), "http://deb.debian.org/debian"],
                              capture_output=True, text=True, timeout=500)
        if why := UNREACHABLE.search(done.stderr):
            raise Skip("the packages cannot be fetched: " + why[0][:120])
        assert done.returncode == 0, done.stderr
        (made / "complete").touch()
    shutil.copy(SOURCE / "python-sdks" / "checks.py", made / "checks.py")
    return made


def python(*words):
    command = [shutil.which("chroot"), str(tree()), "/usr/bin/python3", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120,
                          env={"PATH": "/usr/bin", "HOME": "/root", "SSL_CERT_FILE": AUTHORITIES, "PYTHONDONTWRITEBYTECODE": "1"})


def daemon():
    tree()  # skips before a daemon starts
    return Weftd("--max-context", "8192", "--model-name", "tiny", "--any-model-name", "no")


def snippets():
    """Yields (library, lines) of each block of the page with a library that is here."""
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        library = re.match(r"(?:from|import) (\w+)", block)[1]
        if library in LIBRARIES:
            yield library, block


def test_lines_of_the_page():
    with daemon() as d:
        seen = set()
        for library, lines in snippets():
            lines = lines.replace("http://127.0.0.1:8080", d.url()).replace("MODEL", "tiny")
            done = python("-c", lines + "\nassert answer\n")
            assert done.returncode == 0, (library, done.stderr)
            seen.add(library)
        assert seen == set(LIBRARIES), seen


def run_checks(name):
    with daemon() as d:
        done = python("/checks.py", d.url(), name)
        assert done.returncode == 0, done.stderr
        print(done.stdout, end="", flush=True)


def test_openai_chats():
    run_checks("openai_chat")


def test_openai_responses():
    run_checks("openai_responses")


def test_anthropic_messages():
    run_checks("anthropic_messages")


def test_ollama_chats():
    run_checks("ollama_chat")


main(globals())
