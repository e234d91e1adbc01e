"""Speculation on recorded text is never a loss, and the gain that it should be: bench_spec in virtual time, where
nothing is computed and each run gives the same figures. Arguments: bench_spec, weft-synth, the transcripts' folder."""
import json
import os
import statistics
import subprocess
import sys
import tempfile

VOCAB = os.path.join(os.environ["WEFT_DATA"], "vocab", "ggml-vocab-llama-spm.gguf")
MACHINES = {
    # Two cores: up to 8 rows cost little, each further one as much as the one before.
    "processor": ["--virtual", "1:18.5,2:19,4:20.5,8:23.7,16:47,24:71,32:95,40:119,64:190,512:1500", "--keys", "1.5",
                  "--seconds", "4"],
    # Rows are cheap, and two steps are under way.
    "device": ["--virtual", "1:4,16:4.6,32:5,64:6,128:9,512:30", "--keys", "0.02", "--host", "0.15", "--seconds", "0.6"],
}
LEAST = 0.99  # everywhere: the ratio of auto to off; the cost model learns from few steps here
NO_GAIN, MEAN = 1.02, 0.995  # the mean ratio of the mixes in which drafts gain less than NO_GAIN
# Beside them the model's own block, whose pass takes a 25th of the model's and whose keys a 150th: acceptance of its
# drafts, and the least at 1 stream.
BLOCK = 0.04
HEADS = {"0": 0.98, "0.3": 1.05, "0.6": 1.5, "0.9": 3}
GAINS = {  # at 1 stream, and at 32
    ("processor", "code-edit"): (2, 1), ("processor", "tool-loop"): (1.5, LEAST),
    ("device", "code-edit"): (3, 1.5), ("device", "tool-loop"): (1.5, 1.2),
}


no_gain = []


def measure(bench, model, transcript, machine):
    out = subprocess.run([bench, "--model", model, "--transcript", transcript, "--streams", "1,2,4,8,16,32",
                          "--json", "-", *machine], check=True, capture_output=True, text=True).stdout
    return {row["streams"]: row for row in json.loads(out[out.index("{"):])["results"]}


def check(what, rows, one, least, many):
    """Prints the rows, and returns how many have an interval (95 %) that is below what it should be. Ten pairs of runs
    leave 0.01 of doubt: one mix alone cannot tell a loss of 1 %, so all of them together have a limit of their own."""
    failed = 0
    for streams, row in rows.items():
        limit = one if streams == 1 else many if streams == 32 else least
        bad = 2 * row["ratio"] - row["lower_95"] < limit
        failed += bad
        if row["ratio"] < NO_GAIN:
            no_gain.append(row["ratio"])
        print(f"{what}, {streams} streams: {row['ratio']:.4f} (lower {row['lower_95']:.4f})"
              + (f", less than {limit}" if bad else ""))
    return failed


def main(bench, synth, folder):
    failed = 0
    with tempfile.TemporaryDirectory() as where:
        model = os.path.join(where, "model.gguf")
        subprocess.run([synth, "--shape", "tiny,n_layer=1,context=8192", "--format", "Q4_0", "--vocab", VOCAB,
                        "-o", model], check=True, stdout=subprocess.DEVNULL)
        for name, machine in MACHINES.items():
            for text in ("prose", "code-edit", "tool-loop"):
                rows = measure(bench, model, os.path.join(folder, text + ".json"), machine)
                one, many = GAINS.get((name, text), (LEAST, LEAST))
                failed += check(f"{name}, {text}", rows, one, LEAST, many)
            for acceptance, one in HEADS.items():
                block = [*machine, "--block", str(BLOCK), "--acceptance", acceptance]
                rows = measure(bench, model, os.path.join(folder, "prose.json"), block)
                failed += check(f"{name}, prose, a block right {acceptance} of the time", rows, one, LEAST, LEAST)
    mean = statistics.geometric_mean(no_gain)
    print(f"mean of the {len(no_gain)} mixes without a gain: {mean:.4f}" + (f", less than {MEAN}" if mean < MEAN else ""))
    return 1 if failed or mean < MEAN else 0


sys.exit(main(*sys.argv[1:]))
