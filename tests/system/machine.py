"""Boots a systemd of its own around an installed weft: systemd-nspawn with /usr of this machine, an /etc of its own
and nothing but a loopback network. Nothing of it reaches the machine it runs on.

For another release of the system WEFT_SYSTEM_USR names its /usr and WEFT_SYSTEM_DEST what `meson install --destdir` made there.
"""
import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

BUILD = pathlib.Path(os.environ["WEFT_BUILD"]).resolve()
USR = os.environ.get("WEFT_SYSTEM_USR", "/usr")
DEST = os.environ.get("WEFT_SYSTEM_DEST")
BOOT_S = 90
CLONE_NEWNET = 0x40000000
CONF = "/usr/local/etc/weft/weft.conf"
MEMBER, STRANGER = 1001, 1002


def skip(why):
    print(f"1..0 # SKIP {why}", flush=True)
    sys.exit(0)


def prepare_root(root):
    """What a system needs outside /usr."""
    for folder in ("usr", "etc/weft", "var/log/journal", "run", "tmp", "proc", "sys", "dev", "srv/models", "root", "local-etc"):
        (root / folder).mkdir(parents=True)
    for folder in ("bin", "sbin", "lib", "lib64"):
        (root / folder).symlink_to("usr/" + folder)
    files = {
        "passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n"
        f"member:x:{MEMBER}:{MEMBER}::/tmp:/bin/sh\nstranger:x:{STRANGER}:{STRANGER}::/tmp:/bin/sh\n",
        "group": f"root:x:0:\nnogroup:x:65534:\nmember:x:{MEMBER}:\nstranger:x:{STRANGER}:\n",
        "shadow": "root:*:19000::::::\n",
        "gshadow": "",
        "nsswitch.conf": "passwd: files systemd\ngroup: files systemd\nshadow: files\n",
        "os-release": "ID=weft-test\n",
        "machine-id": "0123456789abcdef0123456789abcdef\n",  # no first boot: no presets
        "hostname": "weft-test\n",
    }
    for name, text in files.items():
        (root / "etc" / name).write_text(text)
    (root / "etc/systemd/system").mkdir(parents=True)


def install(dest):
    subprocess.run(
        ["meson", "install", "-C", str(BUILD), "--no-rebuild", "--quiet", "--destdir", str(dest)],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def move_lib(dest):
    """What Debian 12 installs below /lib goes to /usr/lib."""
    if (dest / "lib").exists():
        shutil.copytree(dest / "lib", dest / "usr/lib", dirs_exist_ok=True)


class Machine:
    def __init__(self, model):
        if os.geteuid() != 0:
            skip("only root may boot a machine")
        for tool in ("systemd-nspawn", "nsenter", "setpriv", "systemctl", "meson"):
            if not shutil.which(tool):
                skip(f"{tool} is not installed")
        if not os.path.islink("/lib"):
            skip("/usr is not merged")
        self.folder = tempfile.TemporaryDirectory(prefix="weft-system-")
        base = pathlib.Path(self.folder.name)
        base.chmod(0o755)
        self.root, self.dest = base / "root", base / "dest"
        prepare_root(self.root)
        if DEST:
            shutil.copytree(DEST, self.dest, symlinks=True)
        else:
            self.dest.mkdir()
            install(self.dest)
        move_lib(self.dest)
        shutil.copytree(self.dest / "usr/local/etc", self.root / "local-etc", dirs_exist_ok=True)
        shutil.copy(model, self.root / "srv/models/tiny.gguf")
        self.boot(base / "console")

    def boot(self, console):
        command = ["systemd-nspawn", "-D", str(self.root), "--register=no", "--keep-unit", "--private-network", "--link-journal=no"]
        command += [f"--overlay-ro={USR}:{self.dest}/usr:/usr", f"--bind={self.root}/local-etc:/usr/local/etc", "-b"]
        with open(console, "w") as out:
            # Where the machine underneath still has the old hierarchy, it does not tell a container that a group is empty.
            unified = {**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
            self.nspawn = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=unified)
        end = time.monotonic() + BOOT_S
        self.leader = None
        while time.monotonic() < end:
            if self.nspawn.poll() is not None:
                said = console.read_text(errors="replace").strip().splitlines()
                skip("systemd-nspawn: " + (said[-1] if said else "no output"))
            children = pathlib.Path(f"/proc/{self.nspawn.pid}/task/{self.nspawn.pid}/children").read_text().split()
            self.leader = children[0] if children else None
            if self.leader and self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded"):
                break
            time.sleep(0.2)
        else:
            tail = "".join(console.read_text(errors="replace").splitlines(True)[-5:])
            self.stop()
            raise AssertionError("the machine did not come up: " + tail)
        self.join_network()

    def join_network(self):
        """Connections of this process go to the machine from now on."""
        with open(f"/proc/{self.leader}/ns/net") as ns:
            if ctypes.CDLL(None, use_errno=True).setns(ns.fileno(), CLONE_NEWNET) < 0:
                raise OSError(ctypes.get_errno(), "setns")

    def run(self, *command, user=None, check=True, timeout=120):
        """A command inside."""
        if user:
            command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", *command]
        r = subprocess.run(["nsenter", "-t", self.leader, "-a", *command], capture_output=True, text=True, timeout=timeout)
        if check and r.returncode:
            raise AssertionError((command, r.returncode, r.stdout, r.stderr))
        return r

    def kill(self, signal, pid):
        assert int(pid) > 0, "the process is not running"
        self.run("sh", "-c", f"kill -{signal} {pid}")  # the program may be missing, the shell knows how

    def processes(self, name):
        """Names of the processes that begin with it."""
        comms = self.run("sh", "-c", "cat /proc/[0-9]*/comm", check=False).stdout.split("\n")
        return [c for c in comms if c.startswith(name)]

    def show(self, prop, unit="weftd.service"):
        return self.run("systemctl", "show", "-P", prop, unit).stdout.strip()

    def read(self, path):
        return (self.root / path.lstrip("/")).read_text()

    def write_conf(self, text):
        (self.root / "local-etc/weft/weft.conf").write_text(text)

    def stop(self):
        if self.nspawn.poll() is None:
            self.nspawn.terminate()  # the machine powers off
            try:
                self.nspawn.wait(30)
            except subprocess.TimeoutExpired:
                self.nspawn.kill()
                self.nspawn.wait()
        self.folder.cleanup()
