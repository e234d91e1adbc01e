"""A service manager for tests: it starts weftd, and keeps its descriptors, as systemd does."""
import array
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import threading
import time

from weftd import BACKEND, LIMIT_S, Weftd, program, wait_until


def adopt():
    """Makes this process the parent of orphaned descendants, as a service manager is."""
    assert ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER


def wait_end(pid, limit_s=LIMIT_S):
    """The exit code of a child, adopted ones included; minus the number of the signal that ended it."""
    end = time.monotonic() + limit_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        assert time.monotonic() < end, f"process {pid} does not end"
        time.sleep(0.01)


class Manager:
    """The functions of a service manager: listening socket, notifications of the main process, descriptor store."""

    def __init__(self, folder, model, *flags):
        self.model, self.flags, self.program = model, flags, program("weftd")
        self.http = socket.create_server(("127.0.0.1", 0))
        self.path = os.path.join(folder, "notify.sock")
        self.admin = os.path.join(folder, "admin.sock")
        self.log_path = os.path.join(folder, "log")
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(self.path)
        self.notify.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.store, self.said, self.process = {}, [], None
        self.pid = None  # of the main process; None until the daemon is started
        self.foreign = []  # notifications of other processes, which systemd refuses
        adopt()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            text, control, _, _ = self.notify.recvmsg(4096, socket.CMSG_SPACE(16) + socket.CMSG_SPACE(12))
            fds, sender = array.array("i"), None
            for _, kind, data in control:
                if kind == socket.SCM_CREDENTIALS:
                    sender = struct.unpack("3i", data)[0]
                else:
                    fds.frombytes(data)
            fields = dict(line.split("=", 1) for line in text.decode().splitlines())
            if self.pid and sender != self.pid:
                self.foreign.append((sender, fields))
                for fd in fds:
                    os.close(fd)
                continue
            if "MAINPID" in fields:
                self.pid = int(fields["MAINPID"])
            if fields.get("FDNAME") in self.store and "FDSTORE" in fields:  # a second descriptor of the same file
                os.close(fds[0])
                continue
            if "FDSTORE" in fields:
                self.store[fields["FDNAME"]] = fds[0]
            if "FDSTOREREMOVE" in fields:
                fd = self.store.pop(fields["FDNAME"], None)
                if fd is not None:
                    os.close(fd)
            self.said.append(fields)

    def start(self, limit_s=LIMIT_S):
        names = ["http", *self.store]
        fds = [self.http.fileno(), *self.store.values()]
        ready = sum("READY" in s for s in self.said)

        def child():  # runs between fork and exec
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in fds]
            for i, fd in enumerate(high):
                os.dup2(fd, 3 + i)

        env = {**os.environ, "LISTEN_FDS": str(len(fds)), "LISTEN_FDNAMES": ":".join(names), "NOTIFY_SOCKET": self.path}
        command = ["sh", "-c", 'export LISTEN_PID=$$; exec "$0" "$@"', self.program, "--model", self.model, "--backend", BACKEND, "--admin-socket", self.admin]
        self.pid = None
        with open(self.log_path, "a") as log:
            self.process = subprocess.Popen([*command, *map(str, self.flags)], env=env, preexec_fn=child, close_fds=False, stderr=log)
        self.pid = self.process.pid
        wait_until("READY", lambda: sum("READY" in s for s in self.said) > ready, limit_s)

    def stop(self, how=signal.SIGTERM, limit_s=LIMIT_S):
        os.kill(self.pid, how)
        self.wait(self.pid, limit_s)

    def wait(self, pid, limit_s=LIMIT_S):
        if pid != self.process.pid:
            return wait_end(pid, limit_s)
        return self.process.wait(limit_s)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.pid and self.pid != self.process.pid:
            try:
                os.kill(self.pid, signal.SIGKILL)
                wait_end(self.pid)
            except ProcessLookupError:
                pass
        if kind:
            print("# " + self.log.replace("\n", "\n# "))

    log = Weftd.log
    connect = lambda self, timeout=LIMIT_S: Weftd.connect(self, timeout)
    request, complete, admin_request = Weftd.request, Weftd.complete, Weftd.admin_request

    @property
    def port(self):
        return self.http.getsockname()[1]
