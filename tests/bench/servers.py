"""What the comparisons have in common: servers that are started, watched and stopped, cores, and what this machine is."""
import argparse
import contextlib
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

TICKS = os.sysconf("SC_CLK_TCK")


def parser(doc, weftd_required=True):
    """Options of a comparison of weftd with llama-server; @doc describes it."""
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--weftd", required=weftd_required)
    p.add_argument("--peer", help="llama-server, measured after weftd with the same load")
    p.add_argument("--model", required=True)
    p.add_argument("--threads", type=int, default=2)
    return p


# -- cores and their time ----------------------------------------------------------------------------------


def split_cores():
    """(the servers' cores, the load generator's): it is one thread and gets the last core that this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("--split-cores needs two cores")
    return cores[:-1], cores[-1:]


def on_cores(cores):
    """For Popen's preexec_fn: the process, and all that it starts, runs on @cores. None: everywhere."""
    return cores and (lambda: os.sched_setaffinity(0, cores))


def tree_of(pid):
    """[(pid, name)] of a process and all below it, whichever of its threads has started them."""
    try:
        name = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
        children = [c for task in pathlib.Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()]
    except OSError:
        return []
    return [(pid, name)] + [x for c in children for x in tree_of(int(c))]


def cpu_s_of(pid):
    """CPU time of one process with all its threads, in seconds; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            times = stat.read().rsplit(")", 1)[1].split()
        return (int(times[11]) + int(times[12])) / TICKS
    except OSError:
        return 0


def busy_s(cores=None):
    """CPU time that @cores (None: all) have spent on anything, in seconds, with what a hypervisor took."""
    total = 0
    with open("/proc/stat") as stat:
        for line in stat:
            name, *ticks = line.split()
            if name == "cpu" if cores is None else name in [f"cpu{c}" for c in cores]:
                user, nice, system, _, _, irq, softirq, steal = map(int, ticks[:8])
                total += user + nice + system + irq + softirq + steal
    return total / TICKS


# -- servers -----------------------------------------------------------------------------------------------


class Server:
    """A server on 127.0.0.1:@port from @command, until the end of its `with`. What it says is in a file (text())."""

    def __init__(self, command, port, cores=None):
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.TemporaryFile("a+")
        self.process = subprocess.Popen([str(c) for c in command], stdout=self.log, stderr=self.log, preexec_fn=on_cores(cores))
        end = time.monotonic() + 400
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                sys.exit(f"{command[0]} does not serve:\n" + self.text()[-2000:])
            time.sleep(0.1)

    def healthy(self):
        try:
            return urllib.request.urlopen(self.url + "/health", timeout=5).status == 200
        except OSError:
            return False

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def cpu_s(self):
        """(of all its processes, of the one that was started: of weftd's the front)"""
        pid = self.process.pid
        return sum(cpu_s_of(p) for p, _ in tree_of(pid)), cpu_s_of(pid)

    def memory_mib(self):
        total = 0
        for pid, _ in tree_of(self.process.pid):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as status:
                total += sum(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        return total / 1024

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self.log.close()


# -- what was measured where -------------------------------------------------------------------------------


def cpu_name():
    with open("/proc/cpuinfo") as info:
        for line in info:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def commit():
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=os.path.dirname(__file__))
    return done.stdout.strip()
