"""packaging/install.sh and packaging/oci.py with a small archive made here in place of the real one. Argument: the source
folder."""
import gzip
import hashlib
import io
import json
import os
import pathlib
import platform
import subprocess
import sys
import tarfile
import tempfile

NAME = f"weft-9.9.9-linux-{platform.machine()}"
SOURCE = pathlib.Path(sys.argv[1])
PROGRAM = "#!/bin/sh\necho weftd 9.9.9\n"


def add(tar, name, data, mode=0o644):
    header = tarfile.TarInfo(name)
    header.size, header.mode = len(data), mode
    tar.addfile(header, io.BytesIO(data))


def make_release(base, program=PROGRAM):
    base.mkdir()
    archive = base / f"{NAME}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for p in ("weftd", "weftctl", "weft-gguf"):
            add(tar, f"{NAME}/bin/{p}", program.encode(), 0o755)
        add(tar, f"{NAME}/lib/weft/liba.so.1", b"a library")
        add(tar, f"{NAME}/share/weft-install.sh", (SOURCE / "packaging/install.sh").read_bytes())
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    (base / "SHA256SUMS").write_text(f"{'0' * 64}  weft-9.9.9.tar.gz\n{digest}  {archive.name}\n")
    return archive


def install(*words, tools=None, script=SOURCE / "packaging/install.sh", piped=False):
    path = os.environ["PATH"] if tools is None else f"{tools}:{os.environ['PATH']}"
    command = ["sh", "-s", "--", *words] if piped else ["sh", script, *words]
    return subprocess.run([str(c) for c in command], input=pathlib.Path(script).read_text() if piped else None,
                          env={**os.environ, "PATH": path}, capture_output=True, text=True)


def files_below(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def tool(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return folder


def check_install(folder):
    make_release(folder / "base")
    prefix = folder / "there"
    for base, piped in ((folder / "base", False), (f"file://{folder}/base/", True)):
        done = install("--prefix", prefix, base, piped=piped)
        assert done.returncode == 0, done
        assert "installed: weftd 9.9.9" in done.stdout and f"{prefix}/bin/weftd --model" in done.stdout, done.stdout
        assert "not in PATH" in done.stdout and "--uninstall" in done.stdout, done.stdout
    assert os.access(prefix / "bin/weftd", os.X_OK)
    assert files_below(prefix) == ["bin/weft-gguf", "bin/weftctl", "bin/weftd", "lib/weft/liba.so.1",
                                   "share/weft-install.sh", "share/weft/installed"]
    (prefix / "bin/other").write_text("of someone else")
    done = install("--prefix", prefix, "--uninstall", script=prefix / "share/weft-install.sh")
    assert done.returncode == 0 and files_below(prefix) == ["bin/other"], (done, files_below(prefix))
    done = install("--prefix", prefix, "--uninstall")
    assert done.returncode == 1 and "has no weft" in done.stderr, done


def check_refusals(folder):
    base, prefix = folder / "base", folder / "never"
    archive = base / f"{NAME}.tar.gz"
    right = archive.read_bytes()

    def refused(reason, base=base, **kwargs):
        done = install("--prefix", prefix, base, **kwargs)
        assert done.returncode == 1 and reason in done.stderr, (reason, done)
        assert not prefix.exists(), files_below(prefix)

    archive.write_bytes(right + b"x")
    refused("is not what SHA256SUMS says")
    archive.write_bytes(right)
    refused("cannot be read", base=folder / "nothing")
    refused("musl", tools=tool(folder / "musl", "getconf", "echo musl libc"))
    refused("glibc 2.27", tools=tool(folder / "old", "getconf", "echo glibc 2.27"))
    refused("no programs for sparc", tools=tool(folder / "sparc", "uname", '[ "$1" = -m ] && echo sparc || echo Linux'))
    refused("runs on Linux", tools=tool(folder / "bsd", "uname", "echo FreeBSD"))
    other = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    refused("has no programs for", tools=tool(folder / "other", "uname", f'[ "$1" = -m ] && echo {other} || echo Linux'))
    make_release(folder / "broken", "#!/bin/sh\nexit 1\n")
    refused("does not start", base=folder / "broken")


def image(folder, name):
    root = folder / "root.tar"
    with tarfile.open(root, "w") as tar:
        add(tar, "./etc/passwd", b"root:x:0:0::/:/bin/sh\n")
        own = tarfile.TarInfo("./var/lib/weft")
        own.type, own.mode, own.uid, own.gid = tarfile.DIRTYPE, 0o700, 65532, 65532
        tar.addfile(own)
        link = tarfile.TarInfo("./lib")
        link.type, link.linkname = tarfile.SYMTYPE, "usr/lib"
        tar.addfile(link)
    done = subprocess.run([sys.executable, SOURCE / "packaging/oci.py", "9.9.9", folder / f"base/{NAME}.tar.gz", root, folder / name],
                          env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / name


def check_image(folder):
    first = image(folder, "first.tar")
    assert first.read_bytes() == image(folder, "second.tar").read_bytes()
    with tarfile.open(first) as tar:
        files = {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}

    def blob(entry):
        data = files.pop("blobs/" + entry["digest"].replace(":", "/"))
        assert entry["size"] == len(data) and entry["digest"] == "sha256:" + hashlib.sha256(data).hexdigest(), entry
        return data

    assert json.loads(files.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    entry, = json.loads(files.pop("index.json"))["manifests"]
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == "weft:9.9.9"
    manifest = json.loads(blob(entry))
    config = json.loads(blob(manifest["config"]))
    assert config["config"]["Entrypoint"][0] == "/usr/local/bin/weftd" and config["config"]["User"] != "0"
    layers = [gzip.decompress(blob(one)) for one in manifest["layers"]]
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(data).hexdigest() for data in layers]
    assert not files, files.keys()
    unpacked = folder / "unpacked"
    owners = {}
    for data in layers:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            owners |= {member.name: member.uid for member in tar}
            tar.extractall(unpacked)
    # The folder of the admin socket is that of the image's user, all else is root's.
    assert {name for name, uid in owners.items() if uid} == {"var/lib/weft"}, owners
    assert f"{owners['var/lib/weft']}:65532" == config["config"]["User"]
    assert "XDG_RUNTIME_DIR=/var/lib" in config["config"]["Env"], config
    assert (unpacked / "usr/local/bin/weftd").read_text() == PROGRAM and os.access(unpacked / "usr/local/bin/weftd", os.X_OK)
    assert (unpacked / "etc/passwd").exists() and os.readlink(unpacked / "lib") == "usr/lib"


def check_glibc(folder):
    """A program of the system needs a newer glibc than the first one, and no newer one than the last."""
    (folder / "bin").mkdir()
    (folder / "bin/true").write_bytes(pathlib.Path("/bin/true").read_bytes())
    for version, right in (("2.1", 1), ("2.999", 0)):
        done = subprocess.run([sys.executable, SOURCE / "packaging/check_glibc.py", version, folder / "bin"], capture_output=True,
                              text=True)
        assert done.returncode == right and ("of glibc" in done.stdout) == bool(right), (version, done)


def check_old_math(folder):
    """Functions that stand before glibc's must not be what the loader finds for glibc's: they would call themselves."""
    hidden = (SOURCE / "packaging/setup/old_math.c").read_text()
    use = folder / "use.c"
    use.write_text("#include <math.h>\n#include <stdio.h>\n"
                   'int main(int n, char **v) { (void)v; return printf("%g %g\\n", exp2(n + 2), pow(n + 1, 10)) < 0; }\n')
    for name, text, right in (("hidden", hidden, 0), ("seen", hidden.replace("push(hidden)", "push(default)"), 1)):
        math, program = folder / f"{name}.c", folder / name / "use"
        math.write_text(text)
        program.parent.mkdir()
        subprocess.run(["gcc", "-w", "-O2", "-fPIC", "-fno-builtin", "-rdynamic", use, math, "-lm", "-o", program], check=True)
        done = subprocess.run([sys.executable, SOURCE / "packaging/check_glibc.py", "2.999", program.parent],
                              capture_output=True, text=True)
        assert done.returncode == right and ("exports exp2, which" in done.stdout) == bool(right), (name, done)
    done = subprocess.run([folder / "hidden/use"], capture_output=True, text=True)
    assert done.stdout == "8 1024\n", done


def main():
    with tempfile.TemporaryDirectory() as where:
        folder = pathlib.Path(where)
        check_install(folder)
        check_refusals(folder)
        check_image(folder)
        check_glibc(folder)
        if platform.machine() == "x86_64":
            check_old_math(folder)


main()
