#!/usr/bin/env python3
"""packaging/freeze in a copy of the files that it changes: each place has the version, no entry of the changelog is lost, and a
version that is frozen again has the new entries. Argument: the source folder."""
import collections
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
FILES = ("meson.build", "flake.nix", "README.md", "CHANGELOG.md", "debian/changelog", "tests/api/test_http.c", "packaging/freeze")
PAGES = "docs/manual", "docs/reference"


def entries(text):
    """The lines of all entries of the changelog, with their numbers."""
    return collections.Counter(line for line in text.splitlines() if re.match(r"[- ] ", line))


def section(text, version):
    return re.search(rf"^## {version}(?:, [^\n]*)?\n(.*?)^## ", text, re.S | re.M).group(1)


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in FILES:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
        for name in PAGES:
            shutil.copytree(ROOT / name, root / name)

        def freeze(*args):
            return subprocess.run([sys.executable, root / "packaging/freeze", *args], capture_output=True, text=True)

        log = root / "CHANGELOG.md"
        before = log.read_text()
        old = re.search(r"version: '(.*)'", (root / "meson.build").read_text())[1]
        assert freeze("9.8").returncode and freeze("9.8.7", "today").returncode and log.read_text() == before
        done = freeze("9.8.7", "2031-02-03")
        assert done.returncode == 0, done.stderr
        once = log.read_text()
        assert entries(once) == entries(before) and not entries(section(once, "Unreleased"))
        assert entries(section(once, "9.8.7")) == entries(section(before, "Unreleased"))
        assert "## 9.8.7, 2031-02-03\n" in once
        debian = (root / "debian/changelog").read_text()
        assert debian.startswith("weft (9.8.7) unstable") and "  Mon, 03 Feb 2031 12:00:00 +0000\n" in debian
        for name in set(FILES) - {"CHANGELOG.md", "debian/changelog", "packaging/freeze"}:
            text = (root / name).read_text()
            assert "9.8.7" in text and old not in text, name
        pages = [page.read_text() for name in PAGES for page in (root / name).glob("*.md")]
        assert any("weft_9.8.7_amd64.deb" in text for text in pages)
        assert not any(re.search(rf"(?:weft|cuda)[-_:]{re.escape(old)}|{re.escape(old)}~", text) for text in pages)

        added = "### Fixed\n\n- One more.\n\n### Removed\n\n- A thing.\n\n"
        log.write_text(once.replace("Changes since 9.8.7 are added here.\n\n", "Changes since 9.8.7 are added here.\n\n" + added))
        done = freeze("9.8.7", "2031-02-04")
        assert done.returncode == 0, done.stderr
        twice = log.read_text()
        assert entries(twice) == entries(before) + entries(added) and "## 9.8.7, 2031-02-04\n" in twice
        assert "### Fixed\n\n- One more.\n" in section(twice, "9.8.7") and "### Removed\n\n- A thing.\n" in section(twice, "9.8.7")
        assert (root / "debian/changelog").read_text().count("9.8.7") == 1


main()
