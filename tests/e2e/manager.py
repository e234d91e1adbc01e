"""A service manager for tests: what systemd does for weftd, its store of descriptors included."""
import array
import fcntl
import os
import signal
import socket
import subprocess
import threading
import time

from weftd import BACKEND, Weftd, program


def wait_until(what, condition, limit_s=30):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


class Manager:
    """The part of a service manager: listening socket, notifications, and the store of descriptors."""

    def __init__(self, folder, model, *flags):
        self.model, self.flags = model, flags
        self.http = socket.create_server(("127.0.0.1", 0))
        self.path = os.path.join(folder, "notify.sock")
        self.log_path = os.path.join(folder, "log")
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(self.path)
        self.store, self.said, self.process = {}, [], None
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            text, control, _, _ = self.notify.recvmsg(4096, socket.CMSG_SPACE(16))
            fds = array.array("i")
            for _, _, data in control:
                fds.frombytes(data)
            fields = dict(line.split("=", 1) for line in text.decode().splitlines())
            if "FDSTORE" in fields:
                self.store[fields["FDNAME"]] = fds[0]
            if "FDSTOREREMOVE" in fields:
                os.close(self.store.pop(fields["FDNAME"]))
            self.said.append(fields)

    def start(self):
        names = ["http", *self.store]
        fds = [self.http.fileno(), *self.store.values()]
        ready = sum("READY" in s for s in self.said)

        def child():  # between fork and exec
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in fds]
            for i, fd in enumerate(high):
                os.dup2(fd, 3 + i)

        env = {**os.environ, "LISTEN_FDS": str(len(fds)), "LISTEN_FDNAMES": ":".join(names), "NOTIFY_SOCKET": self.path}
        command = ["sh", "-c", 'export LISTEN_PID=$$; exec "$0" "$@"', program("weftd"), "--model", self.model, "--backend", BACKEND]
        with open(self.log_path, "a") as log:
            self.process = subprocess.Popen([*command, *self.flags], env=env, preexec_fn=child, close_fds=False, stderr=log)
        wait_until("READY", lambda: sum("READY" in s for s in self.said) > ready, 60)

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(40)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if kind:
            print("# " + self.log.replace("\n", "\n# "))

    log = Weftd.log
    connect = lambda self, timeout=60: Weftd.connect(self, timeout)
    request, complete = Weftd.request, Weftd.complete

    @property
    def port(self):
        return self.http.getsockname()[1]
