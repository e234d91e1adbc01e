#!/usr/bin/env python3
"""Rehearses tests/gpu/run on the emulated device, whose kernel matvec fails and takes all later calls of its process
with it: every other check must still be made, and the table must come last and tell all of it.

usage: rehearse.py RUN KERNELS MODELS SYNTH LAYERBENCH (the emulated programs)
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

run, *programs = map(pathlib.Path, sys.argv[1:])
n_failed = 0

# Replacements for CUDA's tools, which need a device: ncu's output for two steps, and a racecheck with a finding.
TOOLS = {
    "ncu": """while [ $# -gt 0 ]; do [ "$1" != --log-file ] || file=$2; shift; done
cat >"$file" <<'END'
==PROF== Connected to process 1
"ID","Kernel Name","Grid Size","gpu__time_duration.sum","dram__bytes_read.sum","sm__inst_executed.sum"
"","","","ns","byte","inst"
"0","rope(rope_args)","(1, 1, 1)","3,000","0","10"
"1","embed(embed_args)","(1, 1, 1)","2,000","8,704","10"
"2","matvec(matmul_args)","(264, 1, 1)","20,000","40,000,000","1,000"
"3","matvec(matmul_args)","(264, 1, 1)","30,000","40,000,000","1,000"
"4","rope(rope_args)","(8, 1, 1)","3,000","0","10"
"5","embed(embed_args)","(8, 1, 1)","2,000","8,704","10"
"6","mat
END""",
    "compute-sanitizer": "echo looked; [ $2 != racecheck ] || exit 9",
}


def check(ok, what):
    global n_failed
    n_failed += not ok
    print("ok -" if ok else "not ok -", what, flush=True)


def state(pid):
    """Returns the state of process @pid as in /proc, "Z" if there is none."""
    stat = pathlib.Path("/proc", str(pid), "stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


with tempfile.TemporaryDirectory() as folder:
    packed, out = pathlib.Path(folder, "packed"), pathlib.Path(folder, "out")
    packed.mkdir()
    (packed / "layers").mkdir()
    for name, program in zip(["kernels", "models", "synth", "layers/layerbench"], programs):
        (packed / name).symlink_to(program.resolve())
    tools = pathlib.Path(folder, "tools")
    tools.mkdir()
    for name, script in TOOLS.items():
        (tools / name).write_text(f"#!/bin/bash\n{script}\n")
        (tools / name).chmod(0o755)
    env = {**os.environ, "OUT": str(out), "WEFT_GPU_WORK": str(pathlib.Path(folder, "work")), "FAKE_CUDA_FAULTY": "matvec"}
    env["FAKE_CUDA_BLIND"] = "1"  # gpu_kernels_emulated and gpu_models_emulated look at accesses
    env["PATH"] = f"{tools}:{env['PATH']}"
    result = subprocess.run(
        [run, "--packed", packed, "--tiny", "--stages", "micro,kernels,sanitize,times,profile", "--seconds", "900", "--shards", "2"],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    lines = result.stdout.splitlines()
    summary = json.loads((out / "summary.json").read_text())
    failed = {row["check"] for row in summary["failed"]}
    print("1..15")
    check(result.returncode == 1, "a failed check is the exit status")
    check(any("== done" in line for line in lines), "the table comes last")
    check({"matrices Q4_K", "the self-test at open passes"} <= failed, "what needs the kernel fails, each by its name")
    check(not any(name.startswith("attention") for name in failed), "attention is checked all the same")
    check(summary["checks"] > 80, f"{summary['checks']} checks are made")
    shards = [line for line in lines if line.startswith("kernels: ")]
    check(len(shards) == 2 and not list(out.glob("kernels-*")), "two programs share the checks, and their results are one")
    found = {name for name in failed if name.startswith("compute-sanitizer")}
    check(found == {"compute-sanitizer racecheck"}, "what a sanitizer finds is a failed check")
    steps = [line.split()[:2] for line in lines if line.startswith("step ")]
    matvec = [line.split()[-5:-1] for line in lines if line.startswith("  matvec ")]
    check(len(steps) == 2 and matvec == [["2", "50.0", "25.00", "1600"]], "each step's kernels are a table")
    check({"decode, 1 x 1024 tokens", "decode, 64 x 1024 tokens"} <= failed, "rows of times fail one by one")
    check("the device is lost: matvec" in result.stdout, "it is said which kernel lost the device")
    # The experiments, on a device that works.
    (packed / "micro").write_text("#!/bin/bash\necho '{\"value\": \"nothing\", \"number\": 1, \"unit\": \"us\"}' >>$GPU_JSON\n")
    (packed / "micro").chmod(0o755)
    works = {name: value for name, value in env.items() if name != "FAKE_CUDA_FAULTY"}
    made = subprocess.run(
        [run.parent / "experiments", "--packed", packed, "--tiny", "--results", folder],
        env=works, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    results = [json.loads(path.read_text()) for path in pathlib.Path(folder).glob("*-experiments.json")]
    rows = results[0]["rows"] if results else []
    steps = {(row["variant"], row["rows"], row["stage"]) for row in rows if row.get("layer") == "step"}
    bits = [row for row in rows if "bits of" in row.get("check", "")]
    check(made.returncode == 0 and len(results) == 1, "the experiments are one file")
    # Eight ways of launching with two numbers of rows, seven choices of kernels with three, three and five with one.
    check(len(steps) == 45 and len(bits) == 45 and all(row["ok"] for row in bits), f"steps of 23 variants have the same bits: {len(steps)}, {len(bits)}")
    stages = {row["stage"] for row in rows}
    check({"micro", "layers, by other kernels", "layers, of long contexts", "masks beside the step", "masks in the step's stream"} <= stages, f"every experiment has a stage: {stages}")
    check(any(row.get("skipped") == "trace" for row in rows), "what is not there is said")
    if made.returncode:
        print("\n".join("# " + line for line in made.stdout.splitlines()[-40:]))
    # Programs that take minutes, so that the script is terminated while the large model is written.
    slow = pathlib.Path(folder, "slow")
    slow.mkdir()
    for name in ["kernels", "models", "synth"]:
        (slow / name).write_text(f"#!/bin/bash\n[ \"$1\" = --help ] || {{ echo $$ >>{slow}/{name}.pid; exec sleep 100; }}\n")
        (slow / name).chmod(0o755)
    killed = subprocess.Popen([run, "--packed", slow, "--stages", "times"], env=env, stdout=subprocess.DEVNULL)
    pids = [slow / "kernels.pid", slow / "kernels.pid", slow / "synth.pid"]
    # Until three programs run (kernels twice) and the script waits for one of them: bash knows it as a job only then.
    while killed.poll() is None and not (
        all(p.exists() and p.read_text().count("\n") >= pids.count(p) for p in pids) and state(killed.pid) == "S"
    ):
        time.sleep(0.05)
    killed.terminate()
    killed.wait()
    deadline = time.monotonic() + 10
    while (left := [n for p in pids for n in p.read_text().split() if state(n) != "Z"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    check(not left, "a terminated run leaves no program")
    if n_failed:
        print("\n".join("# " + line for line in lines[-120:]))
sys.exit(n_failed != 0)
