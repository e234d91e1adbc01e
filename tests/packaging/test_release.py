"""packaging/release in a clone, with a package made here in place of the real ones: the same bytes twice, right checksums, the
whole source, the changelog's section, a list of libraries; and no release of a tree that is not in order. Argument: the
source folder. Which builds a release makes, with which weft-cuda.so, is seen by scripts in place of theirs. Exit status 77 where that is no git repository."""
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

LIBRARY = "zlib1g"
LINKED = "libpng-dev"  # into the archive's programs
VERSION = re.search(r"version: '(.*)'", (pathlib.Path(sys.argv[1]) / "meson.build").read_text())[1]
BACKEND = b"weft-cuda.so of the programs"
PROGRAMS = f"weft-{VERSION}-linux-x86_64"
RUNTIME = "cuda-cudart-dev-99 99.1-2 deb/nvidia cuda-cudart"  # linked into weft-cuda.so


def run(*command, cwd=None):
    return subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True)


def make_package(folder, architecture="amd64", name="weft"):
    root = folder / "root"
    (root / "DEBIAN").mkdir(parents=True, exist_ok=True)
    (root / "DEBIAN/control").write_text(f"Package: {name}\nVersion: {VERSION}\nArchitecture: {architecture}\nMaintainer: a <a@b.invalid>\n"
                                         f"Depends: {LIBRARY} (>= 1) | other, weft-other\nDescription: a package\n")
    done = run("dpkg-deb", "--root-owner-group", "-b", root, folder / f"{name}_{VERSION}_{architecture}.deb")
    assert done.returncode == 0, done.stderr


def make_backend(folder, content, architecture="amd64"):
    """The package weft-cuda beside the other one."""
    root = folder / "backend"
    (root / "DEBIAN").mkdir(parents=True, exist_ok=True)
    (root / "DEBIAN/control").write_text(f"Package: weft-cuda\nVersion: {VERSION}\nArchitecture: {architecture}\n"
                                         "Maintainer: a <a@b.invalid>\nDepends: weft\nDescription: a package\n")
    library = root / "usr/lib/weft/weft-cuda.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    library.write_bytes(content)
    done = run("dpkg-deb", "--root-owner-group", "-b", root, folder / f"weft-cuda_{VERSION}_{architecture}.deb")
    assert done.returncode == 0, done.stderr


def make_programs(folder, processor="x86_64", backend=BACKEND, runtime=RUNTIME):
    folder.mkdir(exist_ok=True)
    whole = f"weft-{VERSION}-linux-{processor}"
    contents = {"share/licenses/versions": f"{LINKED} 9.8.7\n{runtime}\n".encode(), "bin/weft-cuda.so": backend}
    with tarfile.open(folder / f"{whole}.tar.gz", "w:gz") as archive:
        for name, content in contents.items():
            header = tarfile.TarInfo(f"{whole}/{name}")
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
    check_linked_runtime(clone, debs, folder)


def check_linked_runtime(clone, debs, folder):
    """The list names the CUDA runtime in the programs' weft-cuda.so and in the package, and each must be known."""
    parts = json.loads((folder / f"same/weft-{VERSION}.cdx.json").read_text())
    runtime = next(c for c in parts["components"] if c["name"] == "cuda-cudart-dev-99")
    assert runtime["version"] == "99.1-2" and runtime["purl"] == "pkg:deb/nvidia/cuda-cudart-dev-99@99.1-2", runtime
    assert runtime["properties"] == [{"name": "weft:source-package", "value": "cuda-cudart"}], runtime
    of = {d["ref"]: d["dependsOn"] for d in parts["dependencies"]}
    users = {ref for ref, used in of.items() if runtime["bom-ref"] in used}
    assert users == {PROGRAMS, f"weft-cuda-{VERSION}-amd64"}, users

    def refused(package, runtime):
        unnamed = folder / "unnamed"
        make_programs(unnamed, runtime=runtime)
        archive = unnamed / f"{PROGRAMS}.tar.gz"
        done = run("env", "SOURCE_DATE_EPOCH=0", sys.executable, clone / "packaging/sbom.py", VERSION, package, archive)
        assert done.returncode == 1 and not done.stdout, done
        return done.stderr

    assert "names 0 CUDA runtimes" in refused(debs / f"weft-cuda_{VERSION}_amd64.deb", "")
    make_backend(folder, BACKEND, "arm64")
    assert f"there is no weft-{VERSION}-linux-aarch64.tar.gz" in refused(folder / f"weft-cuda_{VERSION}_arm64.deb", RUNTIME)


# In place of packaging/tarball, image, check-packages and build-arm64: writes its name and arguments, and weft-cuda.so's
# content, and makes what the real one makes.
FAKE = """#!/bin/sh
name=${0##*/}
for last; do :; done
backend=
[ ! -f "${WEFT_CUDA:-}" ] || backend=$(cat "$WEFT_CUDA")
echo "$name $* [$backend${WEFT_CUDA:+$([ -f "$WEFT_CUDA" ] || echo "$WEFT_CUDA")}]" >>"$CALLS"
case "$name $*" in
    tarball*aarch64*) mkdir -p "$last"; tar -xzf "$FAKES/weft-aarch64.tar.gz" -C "$last" ;;
    tarball*) mkdir -p "$last"; tar -xzf "$FAKES/weft-x86_64.tar.gz" -C "$last" ;;
    check-packages*) mkdir -p "$1/bookworm"; cp "$FAKES"/*_amd64.deb "$1/bookworm" ;;
    build-arm64*) mkdir -p "$last"; cp "$FAKES"/*_arm64.deb "$last" ;;
esac
"""


def fakes(folder):
    """Archives of archives of programs, and packages, of both processors; ARM's programs have weft-cuda.so, too."""
    for processor, architecture in (("x86_64", "amd64"), ("aarch64", "arm64")):
        programs = folder / f"programs-{processor}"
        make_programs(programs, processor, BACKEND + processor.encode())
        run("tar", "-czf", folder / f"weft-{processor}.tar.gz", "-C", programs, f"weft-{VERSION}-linux-{processor}.tar.gz")
        make_package(folder, architecture)
        make_backend(folder, BACKEND + processor.encode(), architecture)


def check_builds(source, folder):
    """With --cuda the kernels are compiled for x86-64 alone, and each package gets the library of its processor."""
    clone = folder / "small"  # only what a release reads, so that the source's archive is made quickly
    for name in run("git", "ls-files", "packaging", "debian", "meson.build", "CHANGELOG.md", cwd=source).stdout.split():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, clone / name)
    made, tools, calls = folder / "fakes", folder / "tools", folder / "calls"
    made.mkdir()
    tools.mkdir()
    fakes(made)
    for name in ("tarball", "image", "check-packages", "build-arm64"):
        (clone / "packaging" / name).write_text(FAKE)
    for name in ("mmdebstrap", "patchelf", "aarch64-linux-gnu-gcc"):
        (tools / name).write_text("#!/bin/sh\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    run("git", "init", "-q", cwd=clone)
    run("git", "add", "-A", cwd=clone)
    run("git", "-c", "user.name=a", "-c", "user.email=a@b.invalid", "commit", "-qm", "scripts in place of builds", cwd=clone)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(calls), "FAKES": str(made)}

    def calls_of(name, *options):
        work, out = folder / f"work-{name}", folder / f"out-{name}"
        calls.write_text("")
        done = subprocess.run([clone / "packaging/release", *options, "--work", work, out], capture_output=True, text=True, env=env)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return calls.read_text().replace(str(work), "W").splitlines(), out

    x86, arm = (f"[{BACKEND.decode()}{processor}]" for processor in ("x86_64", "aarch64"))
    image = f"image W/programs/weft-{VERSION}-linux-%s.tar.gz W/programs []"
    packages = "check-packages W/debs bookworm trixie noble "
    lines, out = calls_of("without")
    assert lines == ["tarball --processor x86_64 W/x86_64 W/programs []", image % "x86_64", "tarball --processor aarch64 W/aarch64 W/programs []",
                     image % "aarch64", packages + "[]", "build-arm64 W/debs/arm64 [none]"], lines
    lines, out = calls_of("with", "--cuda", "all")
    assert lines == ["tarball --processor x86_64 --cuda all W/x86_64 W/programs []", image % "x86_64",
                     "tarball --processor aarch64 --cuda all --code W/x86_64 W/aarch64 W/programs []", image % "aarch64",
                     packages + x86, "build-arm64 W/debs/arm64 " + arm], lines
    assert {p.name for p in out.glob("weft-cuda_*")} == {f"weft-cuda_{VERSION}_{a}.deb" for a in ("amd64", "arm64")}
    make_backend(made, BACKEND, "arm64")  # another library than ARM's programs have
    done = subprocess.run([clone / "packaging/release", "--cuda", "all", folder / "out-other"], capture_output=True, text=True, env=env)
    assert done.returncode == 1 and "arm64.deb has another weft-cuda.so" in done.stderr, done


def check_rules(source, folder):
    """The package takes WEFT_CUDA also where Meson has installed no library of its own beside it, as on Debian 13."""
    if not shutil.which("make") or not os.path.exists("/usr/share/dpkg/architecture.mk"):
        return  # without dpkg-dev
    tree, tools, backend = folder / "rules", folder / "dh", folder / "weft-cuda.so"
    for path in (tree, tools):
        path.mkdir()
    backend.write_bytes(BACKEND)
    (tools / "dh_auto_install").write_text("#!/bin/sh\nmkdir -p debian/tmp/usr/bin\n")
    (tools / "dh_auto_install").chmod(0o755)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "DEB_BUILD_PROFILES": "pkg.weft.cuda", "WEFT_CUDA": str(backend)}
    done = subprocess.run(["make", "-f", source / "debian/rules", "override_dh_auto_install"], cwd=tree, env=env,
                          capture_output=True, text=True)
    assert done.returncode == 0, done
    installed = list(tree.glob("debian/tmp/usr/lib/*/weft/weft-cuda.so"))
    assert len(installed) == 1 and installed[0].read_bytes() == BACKEND, installed


# In place of apt-get: it finds the packages that lie in $ARCHIVE.
FAKE_APT = """#!/bin/sh
for last; do :; done
case "$*" in *" download "*) cp "$ARCHIVE/$last"_*.deb . ;; esac
"""


def make_archive(folder, files):
    """Packages for the fake apt-get: path and content of the one file of each."""
    folder.mkdir()
    for package, (path, content) in files.items():
        root = folder / f"{package}-root"
        for name, text in ((path, content), (f"usr/share/doc/{package}/copyright", f"licence of {package}\n")):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        (root / "DEBIAN").mkdir()
        (root / "DEBIAN/control").write_text(f"Package: {package}\nVersion: 13.1.2-3\nArchitecture: all\n"
                                             "Maintainer: a <a@b.invalid>\nDescription: a package\n")
        assert run("dpkg-deb", "--root-owner-group", "-b", root, folder / f"{package}_13.1.2-3_all.deb").returncode == 0


def check_runtime(source, folder):
    """The CUDA runtime for ARM comes from Ubuntu's package, unless the toolkit has it; never for another nvcc. What is
    linked is named for both processors, with its licence."""
    tools, toolkit, archive = folder / "apt", folder / "nvidia/cu13", folder / "archive"
    tools.mkdir()
    library = "targets/sbsa-linux/lib/libcudart_static.a"
    make_archive(archive, {"ubuntu-keyring": ("usr/share/keyrings/ubuntu-archive-keyring.gpg", "keys"),
                           "cuda-cudart-dev-13-1": (f"usr/local/cuda-13.1/{library}", "runtime of ARM")})
    (tools / "apt-get").write_text(FAKE_APT)
    (tools / "nvcc").write_text(f"#!/bin/sh\necho '#$ TOP={toolkit}' >&2\necho \"Cuda compilation tools, release $NVCC, V\"\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)

    def found(name, version="13.0", packages=archive, processor="aarch64"):
        env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "NVCC": version, "ARCHIVE": str(packages)}
        command = [source / "packaging/setup/cuda-runtime", processor, folder / name]
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        placed = folder / name / "usr/lib/aarch64-linux-gnu/libcudart_static.a"
        named = folder / name / "usr/share/doc/cuda-runtime"
        words = named.read_text().split() if named.exists() else []
        assert not words or (named.parent / words[0] / "copyright").read_text() == f"licence of {words[0]}\n"
        return done, placed.read_text() if placed.exists() else None, " ".join(words)

    done, content, named = found("root")
    assert done.returncode == 0 and content == "runtime of ARM", done
    assert named == "cuda-cudart-dev-13-1 13.1.2-3 deb/ubuntu cuda-cudart-dev-13-1", named
    done, content, named = found("old", "12.4")
    assert done.returncode == 1 and not content and "nvcc is 12.4, and the runtime is for 13" in done.stderr, done
    done, content, named = found("unreached", packages=folder / "nothing")
    assert done.returncode == 1 and not content and "the keys of Ubuntu's archive cannot be had" in done.stderr, done
    done, content, named = found("x86", processor="x86_64")
    assert done.returncode == 1 and "has no libcudart_static.a" in done.stderr, done

    # The toolkit of NVIDIA's installer, and then that of PyPI.
    for path in (library, "lib64/libcudart_static.a"):
        (toolkit / path).parent.mkdir(parents=True)
        (toolkit / path).write_text("the toolkit's own")
    done, content, named = found("unlicensed", processor="x86_64")
    assert done.returncode == 1 and not named and "EULA.txt" in done.stderr, done
    (toolkit / "EULA.txt").write_text("licence of cuda-cudart\n")
    assert found("release", processor="x86_64")[2] == "cuda-cudart 13.0 generic"
    parts = {"cuda_cccl": {"version": "13.0.1"}, "cuda_cudart": {"name": "CUDA Runtime", "version": "13.0.96"}}
    (toolkit / "version.json").write_text(json.dumps(parts, indent=3))
    assert found("installer", processor="x86_64")[2] == "cuda-cudart 13.0.96 generic"
    assert found("arm")[1:] == (None, "cuda-cudart 13.0.96 generic")
    wheel = toolkit / "../../nvidia_cuda_runtime-13.0.97.dist-info"
    (wheel / "licenses").mkdir(parents=True)
    (wheel / "METADATA").write_text("Name: nvidia-cuda-runtime\nVersion: 13.0.97\n")
    (wheel / "licenses/License.txt").write_text("licence of nvidia-cuda-runtime\n")
    assert found("wheel", processor="x86_64")[2] == "nvidia-cuda-runtime 13.0.97 pypi"
    assert not list(folder.glob("*.cuda")), list(folder.iterdir())


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
        make_package(debs, name="weft-dbgsym")  # is not published
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
        check_builds(clone, folder)
        check_rules(pathlib.Path(source).resolve(), folder)
        check_runtime(pathlib.Path(source), folder)
        check_refusals(clone, debs, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
