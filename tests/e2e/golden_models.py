"""The golden models of the test data in the daemon: files, requests with digests, greedy texts."""
import json

import weftd
from weftd import BACKEND, DATA, Weftd

FLAGS = ("--max-context", "1024", "--kv-pages", "512", "--backend", BACKEND)
N_VOCAB = 384  # valid in the smallest vocabulary


def random_tokens(seed, n):
    return weftd.random_tokens(seed, n, N_VOCAB)


REQUESTS = [
    {"prompt": random_tokens(1, 5), "temperature": 0},
    {"prompt": random_tokens(2, 33), "temperature": 1, "seed": 11},
    {"prompt": random_tokens(3, 200), "temperature": 0.8, "seed": 12, "top_p": 0.9},
    {"prompt": random_tokens(4, 64), "temperature": 0, "repetition_penalty": 1.3},
    {"prompt": random_tokens(5, 500), "temperature": 1, "seed": 13, "presence_penalty": 0.7},
]
N_TOKENS = 40
_expected = {}


def golden(name):
    path = DATA / "golden" / f"{name}.gguf"
    assert path.exists(), f"{path} is not there"
    return str(path)


def ask(daemon, request, n=N_TOKENS):
    c = daemon.complete(**request, max_tokens=n, ignore_eos=True, logits_digest=True)
    assert len(c["token_ids"]) == n and len(c["digests"]) == n, c
    return c["token_ids"], c["digests"]


def expected(name, requests=REQUESTS):
    """Returns the results of the requests, computed in sequence on one thread, in separate slots and without drafts;
    cached."""
    if name not in _expected:
        with Weftd(*FLAGS, "--threads", 1, "--max-seqs", 1, "--speculation", "off", model=golden(name)) as d:
            _expected[name] = [ask(d, r) for r in requests]
    return _expected[name]


def check_greedy(names):
    """Checks the greedy texts of the models against those that another implementation produced."""
    for name in names:
        cases = json.load(open(golden(name)[:-5] + ".json"))["cases"]
        with Weftd(*FLAGS, model=golden(name)) as d:
            for c in cases:
                ids, _ = ask(d, {"prompt": c["prompt"], "temperature": 0}, len(c["greedy"]))
                assert ids == [g["id"] for g in c["greedy"]], name
