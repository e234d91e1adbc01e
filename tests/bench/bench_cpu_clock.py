#!/usr/bin/env python3
"""Shows whether CPU time of a thread is its own on this machine: reads that clock as fast as it can and prints each step of
more than --ms milliseconds. A thread that only reads a clock has none; where a hypervisor takes a core away and the kernel is
not told, the absence counts as time of whatever thread ran, as in `loop_busy` and `weft_loop_cpu_seconds`.

usage: bench_cpu_clock.py [--seconds S] [--ms MS]
"""
import argparse
import gc
import time

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=30, help="wall time")
parser.add_argument("--ms", type=float, default=5)
options = parser.parse_args()
gc.disable()
end, steps = time.monotonic() + options.seconds, []
first = last = time.thread_time_ns()
while time.monotonic() < end:
    now = time.thread_time_ns()
    if now - last > options.ms * 1e6:
        steps.append((now - last) / 1e6)
    last = now
print(f"{len(steps)} steps in {(last - first) / 1e9:.1f} s of CPU time:", " ".join(f"{s:.1f}" for s in steps), "ms" if steps else "")
