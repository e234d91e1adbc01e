"""The file by which failures are ordered (torture.h), and what each call may fail with."""
import errno
import mmap
import pathlib
import re
import struct
import subprocess
import tempfile

HERE = pathlib.Path(__file__).parent
DEPTH, N_SITES, SHORT = 12, 32768, 1000
SITE = struct.Struct(f"<QIIII{DEPTH}Q")
HEAD = 72
FIELDS = {"target": (0, "<Q"), "call": (8, "<I"), "roles": (12, "<I"), "left": (16, "<I"), "lasts": (20, "<I"), "file_kind": (24, "<I"),
          "error": (28, "<I"), "hits": (32, "<I"), "notes": (36, "<I"), "realtime_s": (40, "<q"), "monotonic_s": (48, "<q"),
          "live_front": (56, "<q"), "live_worker": (64, "<q")}
CALLS = ["", *re.findall(r"CALL_(\w+)", (HERE / "torture.h").read_text())[1:]]
ROLES = ("front", "worker")
FILE, SOCKET, OTHER = 1, 2, 3  # kinds of descriptors

MEMORY = ("malloc", "calloc", "realloc", "aligned_alloc", "memalign", "posix_memalign", "mmap", "mmap64", "mprotect", "madvise", "memfd_create", "prctl")
READS = ("read", "readv", "recv", "recvmsg", "pread", "pread64", "fread", "fgets", "sendfile64")
WRITES = ("write", "writev", "send", "sendmsg", "pwrite", "pwrite64", "fwrite", "fclose", "fsync", "fdatasync", "ftruncate", "ftruncate64", "fallocate64")
OPENS = ("open", "open64", "openat64", "fopen", "fopen64", "opendir", "socket", "socketpair", "pipe2", "eventfd", "epoll_create1", "dup", "accept4", "accept")
NAMES = ("stat64", "lstat64", "fstatat64", "access", "mkdir", "rename", "renameat", "unlink", "readlink", "getcwd", "fstat64", "fchmod", "lseek64")
# libuv aborts where a call on a descriptor of its own fails in a way that Linux does not have: these fail as the kernel may.
OTHERS = {"epoll_wait": ["EINTR"], "epoll_pwait": ["EINTR"], "poll": ["EINTR", "ENOMEM"], "nanosleep": ["EINTR"], "fork": ["EAGAIN"], "execvp": ["ENOMEM"],
          "pthread_create": ["EAGAIN"], "posix_spawn": ["EAGAIN"], "waitpid": ["EINTR"], "connect": ["ECONNREFUSED", "EINTR"],
          "bind": ["EADDRINUSE"], "listen": ["EADDRINUSE"], "kill": ["ESRCH"], "close": ["EINTR"], "flock": ["EINTR", "ENOLCK"], "epoll_ctl": ["ENOMEM"],
          "getsockname": ["ENOBUFS"], "getpeername": ["ENOTCONN"], "getsockopt": ["ENOBUFS"], "setsockopt": ["ENOBUFS"], "shutdown": ["ENOTCONN"],
          "ioctl": ["ENOTTY"], "sched_getaffinity": ["EPERM"], "setpriority": ["EACCES"], "getrlimit64": ["EPERM"], "setrlimit64": ["EPERM"],
          "dup2": ["EINTR"], "dup3": ["EINTR"]}
NEVER = {"syscall", "getrandom", "sigaction", "fcntl", "fcntl64", "ioctl", "dup2", "dup3"}  # cannot fail as weft and libuv use them


def errors_of(call, kind):
    """What a call on such a descriptor may fail with."""
    if call in NEVER:
        return []
    if call in MEMORY:
        return ["ENOMEM"]
    if call in OTHERS:
        return OTHERS[call]
    if call in OPENS:
        return ["ECONNABORTED", "EMFILE"] if call.startswith("accept") else ["EMFILE"]
    if call in NAMES:
        return ["EIO"]
    if kind == OTHER:  # pipes and event descriptors; a write to these that does not wait cannot be interrupted
        return ["EINTR"] if call in READS else []
    if call in READS:
        return ["ECONNRESET", "EINTR"] if kind == SOCKET else ["EIO"]
    assert call in WRITES, call
    return ["ECONNRESET" if call.startswith("re") else "EPIPE", "EINTR"] if kind == SOCKET else ["ENOSPC", "EIO"]


class State:
    def __init__(self, program):
        self.program = program
        self.file = tempfile.NamedTemporaryFile(prefix="weft-torture-")
        self.file.truncate(HEAD + SITE.size * N_SITES)
        self.data = mmap.mmap(self.file.fileno(), 0)
        self.path = self.file.name

    def __getattr__(self, name):
        at, kind = FIELDS[name]
        return struct.unpack_from(kind, self.data, at)[0]

    def set(self, **fields):
        for name, value in fields.items():
            at, kind = FIELDS[name]
            struct.pack_into(kind, self.data, at, value)

    def note(self):
        """Forgets the sites and notes new ones."""
        self.data[HEAD:] = bytes(len(self.data) - HEAD)
        self.set(call=0, notes=1)

    def sites(self):
        """Those that were reached since note(): a list of Site."""
        self.set(notes=0)
        return [Site(*row[:5], row[5:]) for row in SITE.iter_unpack(self.data[HEAD:]) if row[0]]

    def arm(self, call, error, target=0, roles=3, left=1, lasts=0, file_kind=0):
        self.set(call=0)
        self.set(target=target, roles=roles, left=left, lasts=lasts, file_kind=file_kind, hits=0,
                 error=SHORT if error == "SHORT" else getattr(errno, error))
        self.set(call=CALLS.index(call))

    def disarm(self):
        """How many calls failed."""
        self.set(call=0)
        return self.hits


class Site:
    def __init__(self, key, call, role, kind, n, stack):
        self.key, self.call, self.role, self.kind, self.n, self.stack = key, CALLS[call], role, kind, n, [a for a in stack if a]

    def __str__(self):
        return f"{ROLES[self.role]} {self.call}"

    def errors(self):
        if self.call == "epoll_ctl" and self.role == 0:
            return []  # libuv aborts the front where the kernel has no memory for a watch
        return errors_of(self.call, self.kind)

    def own(self):
        """Addresses in the program itself, each before the return address."""
        return [hex((a & ((1 << 40) - 1)) - 1) for a in self.stack if a >> 40 == 0]

    def where(self, program):
        """Functions of the program that led to it, the innermost first."""
        explain(program, [self])
        return " < ".join(part for a in self.own() for part in names[a])[:600] or "a library"


names = {}  # address in the program: "function file:line", inlined functions first


def explain(program, sites):
    """Looks up all addresses that are not known yet at once: the program's debug information is large."""
    unknown = sorted({a for s in sites for a in s.own()} - set(names))
    if not unknown:
        return
    text = subprocess.run(["addr2line", "-a", "-s", "-f", "-i", "-e", program], input="\n".join(unknown), capture_output=True, text=True).stdout
    for block, address in zip(re.split(r"^0x[0-9a-f]+\n", text, flags=re.M)[1:], unknown):
        lines = block.splitlines()
        names[address] = [f"{f} {line.split(' ')[0]}" for f, line in zip(lines[::2], lines[1::2]) if f not in CALLS]
