"""packaging/release in a clone, with a package made here in place of the real ones: the same bytes twice, right checksums, the
whole source, the changelog's section, a list of libraries; and no release of a tree that is not in order. Argument: the
source folder. Exit status 77 where that is no git repository."""
import io
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

LIBRARY = "zlib1g"
LINKED = "libpng-dev"  # into the archive's programs
VERSION = re.search(r"version: '(.*)'", (pathlib.Path(sys.argv[1]) / "meson.build").read_text())[1]
BACKEND = b"weft-cuda.so of the programs"
PROGRAMS = f"weft-{VERSION}-linux-x86_64"


def run(*command, cwd=None):
    return subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True)


def make_package(folder):
    root = folder / "root"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(f"Package: weft\nVersion: {VERSION}\nArchitecture: amd64\nMaintainer: a <a@b.invalid>\n"
                                         f"Depends: {LIBRARY} (>= 1) | other, weft-other\nDescription: a package\n")
    done = run("dpkg-deb", "--root-owner-group", "-b", root, folder / f"weft_{VERSION}_amd64.deb")
    assert done.returncode == 0, done.stderr


def make_backend(folder, content):
    """The package weft-cuda beside the other one."""
    root = folder / "backend"
    (root / "DEBIAN").mkdir(parents=True, exist_ok=True)
    (root / "DEBIAN/control").write_text(f"Package: weft-cuda\nVersion: {VERSION}\nArchitecture: amd64\n"
                                         "Maintainer: a <a@b.invalid>\nDepends: weft\nDescription: a package\n")
    library = root / "usr/lib/weft/weft-cuda.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    library.write_bytes(content)
    done = run("dpkg-deb", "--root-owner-group", "-b", root, folder / f"weft-cuda_{VERSION}_amd64.deb")
    assert done.returncode == 0, done.stderr


def make_programs(folder):
    folder.mkdir()
    contents = {"share/licenses/versions": f"{LINKED} 9.8.7\n".encode(), "bin/weft-cuda.so": BACKEND}
    with tarfile.open(folder / f"{PROGRAMS}.tar.gz", "w:gz") as archive:
        for name, content in contents.items():
            header = tarfile.TarInfo(f"{PROGRAMS}/{name}")
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))


def release(clone, debs, out, *options):
    return run(clone / "packaging/release", *options, "--debs", debs, "--programs", debs / "programs", out)


def check_files(clone, out):
    names = {p.name for p in out.iterdir()}
    assert names == {"SHA256SUMS", f"weft-{VERSION}.cdx.json", f"weft-{VERSION}-changes.md", f"weft-{VERSION}.tar.gz",
                     f"weft_{VERSION}_amd64.deb", f"{PROGRAMS}.tar.gz", "install.sh"}, names
    assert run("sha256sum", "-c", "--strict", "SHA256SUMS", cwd=out).returncode == 0
    assert len((out / "SHA256SUMS").read_text().splitlines()) == len(names) - 1

    tracked = set(run("git", "ls-files", cwd=clone).stdout.splitlines())
    with tarfile.open(out / f"weft-{VERSION}.tar.gz") as archive:
        packed = {m.name.removeprefix(f"weft-{VERSION}/") for m in archive if not m.isdir()}
    assert packed == tracked, packed ^ tracked

    changes = (out / f"weft-{VERSION}-changes.md").read_text()
    assert changes.startswith(f"## {VERSION},") and changes.count("\n## ") == 0, changes[:200]


def check_list(out):
    parts = json.loads((out / f"weft-{VERSION}.cdx.json").read_text())
    assert (parts["bomFormat"], parts["specVersion"]) == ("CycloneDX", "1.5")
    by_name = {c["name"]: c for c in parts["components"]}
    assert {"weft", PROGRAMS, LIBRARY, LINKED, "libyyjson-dev"} <= set(by_name), set(by_name)
    version = run("dpkg-query", "-W", "-f", "${Version}\n", LIBRARY).stdout.split("\n")[0]
    of = {d["ref"]: d["dependsOn"] for d in parts["dependencies"]}
    assert of[f"weft-{VERSION}-amd64"] == [f"{LIBRARY}@{version}"] and PROGRAMS in of["weft"], of
    assert f"{LINKED}@9.8.7" in of[PROGRAMS], of
    digest = run("sha256sum", out / f"weft_{VERSION}_amd64.deb").stdout.split()[0]
    assert by_name["weft"]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert by_name[LIBRARY]["version"] == version and by_name[LIBRARY]["licenses"], by_name[LIBRARY]
    refs = {c["bom-ref"] for c in parts["components"]} | {"weft"}
    assert all(d["ref"] in refs and set(d["dependsOn"]) <= refs for d in parts["dependencies"])


def check_backend(clone, debs, folder):
    """With --cuda each package has a weft-cuda beside it, with the library of the programs."""
    done = release(clone, debs, folder / "none", "--cuda", "90")
    assert done.returncode == 1 and "has no" in done.stderr and "weft-cuda_" in done.stderr, done
    make_backend(debs, BACKEND + b", stripped")
    done = release(clone, debs, folder / "stripped", "--cuda", "90")
    assert done.returncode == 1 and "another weft-cuda.so" in done.stderr, done
    make_backend(debs, BACKEND)
    done = release(clone, debs, folder / "same", "--cuda", "90")
    assert done.returncode == 0, done
    assert f"weft-cuda_{VERSION}_amd64.deb" in (folder / "same/SHA256SUMS").read_text()


def check_refusals(clone, debs, folder):
    (clone / "new").write_text("not committed\n")
    done = release(clone, debs, folder / "dirty")
    assert done.returncode == 1 and "not committed" in done.stderr, done
    (clone / "new").unlink()

    build = clone / "meson.build"
    build.write_text(build.read_text().replace(f"version: '{VERSION}'", f"version: '{VERSION}.9'"))
    run("git", "-c", "user.name=a", "-c", "user.email=a@b.invalid", "commit", "-qam", "another version", cwd=clone)
    done = release(clone, debs, folder / "other")
    assert done.returncode == 1 and f"{VERSION}.9" in done.stderr and "debian/changelog" in done.stderr, done


def main(source):
    with tempfile.TemporaryDirectory() as where:
        folder = pathlib.Path(where)
        clone = folder / "clone"
        if run("git", "clone", "-q", source, clone).returncode != 0:
            print("skipped: the source is no git repository")
            return 77
        debs = folder / "debs"
        debs.mkdir()
        make_package(debs)
        make_programs(debs / "programs")
        for name in ("first", "second"):
            done = release(clone, debs, folder / name)
            assert done.returncode == 0, done.stderr
        for one in (folder / "first").iterdir():
            assert one.read_bytes() == (folder / "second" / one.name).read_bytes(), one.name
        check_files(clone, folder / "first")
        check_list(folder / "first")
        done = release(clone, debs, folder / "first")
        assert done.returncode == 1 and "not empty" in done.stderr, done
        check_backend(clone, debs, folder)
        check_refusals(clone, debs, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
