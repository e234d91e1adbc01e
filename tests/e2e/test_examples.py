"""Runs the examples of the documents as users run them."""
import pathlib
import subprocess
import sys
import tempfile

from weftd import BACKEND, LIMIT_S, Weftd, main, synth

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "examples"
sys.path.insert(0, str(EXAMPLES))
import choose_model  # noqa: E402


def served(folder):
    for i, name in enumerate(("fast", "smart")):
        model = synth(f"tiny-of-many-{i}", "--arch", "qwen3", "--shape", "tiny,context=131072", "--format", "Q4_K_M", "--seed", str(40 + i))
        pathlib.Path(folder, name + ".gguf").write_bytes(pathlib.Path(model).read_bytes())
    return Weftd("--models-dir", folder, "--kv-memory", "16M", "--models-memory", "120M", "--threads", "1", "--max-context", "2048",
                 "--backend", BACKEND, model="")


def run(daemon, *args, text="Prove it."):
    p = subprocess.run([sys.executable, str(EXAMPLES / "choose_model.py"), "--url", daemon.url(), "--max-tokens", "4", *args],
                       input=text, capture_output=True, text=True, timeout=LIMIT_S)
    return p.returncode, p.stderr.strip()


def answered(daemon, name):
    return f'"{name}"' in "".join(line for line in daemon.log.splitlines() if "/v1/chat/completions" in line)


def test_a_decision_chooses_the_model_that_answers():
    with tempfile.TemporaryDirectory() as folder, served(folder) as d:
        status, _, value = d.request("POST", "/v1/decisions", {"model": "fast", "input": "Prove it.", "questions": [choose_model.QUESTION]})
        assert status == 200, value
        p = value["answers"][0].get("probability", 1)  # random weights give any value, but the same one at each call
        assert run(d, "--above", str(p - 0.001)) == (0, "smart") and answered(d, "smart") and not answered(d, "fast")
        assert run(d, "--above", "1", "Prove it.") == (0, "fast" if "probability" in value["answers"][0] else "smart")
        assert answered(d, "fast") == ("probability" in value["answers"][0])
        code, said = run(d, "--fast", "absent")
        assert code == 1 and "404" in said, said


def test_without_a_probability_the_smart_model_answers():
    choose = lambda answer: choose_model.choose({"answers": [answer]}, "fast", "smart", 0.5)
    assert choose({"type": "refusal"}) == choose({"type": "predicate", "probability": 0.51}) == "smart"
    assert choose({"type": "predicate", "probability": 0.5}) == "fast"


main(globals())
