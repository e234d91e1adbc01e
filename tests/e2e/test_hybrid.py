"""Hybrid models (gated delta nets beside attention) through the whole daemon: the texts of another implementation,
and promise 1 with a state that no page holds."""
import json
import random
import time

from weftd import BACKEND, DATA, Skip, Weftd, main, parallel, random_tokens

MODELS = ("qwen35-mtp", "qwen35moe-mtp", "qwen3next")
FLAGS = ("--max-context", "1024", "--kv-pages", "512", "--backend", BACKEND)
N_TOKENS = 40
REQUESTS = [
    {"prompt": random_tokens(1, 5), "temperature": 0},
    {"prompt": random_tokens(2, 33), "temperature": 1, "seed": 11},
    {"prompt": random_tokens(3, 200), "temperature": 0.8, "seed": 12, "top_p": 0.9},
    {"prompt": random_tokens(4, 64), "temperature": 0, "repetition_penalty": 1.3},
    {"prompt": random_tokens(5, 500), "temperature": 1, "seed": 13, "presence_penalty": 0.7},
    {"prompt": random_tokens(6, 1), "temperature": 1.4, "seed": 14, "top_k": 40},
]
_expected = {}


def golden(name):
    path = DATA / "golden" / f"{name}.gguf"
    if not path.exists():
        raise Skip(f"{path} is not there")
    return str(path)


def ask(daemon, request, n=N_TOKENS):
    c = daemon.complete(**request, max_tokens=n, ignore_eos=True, logits_digest=True)
    assert len(c["token_ids"]) == n and len(c["digests"]) == n, c
    return c["token_ids"], c["digests"]


def expected(name):
    if name not in _expected:
        with Weftd(*FLAGS, "--threads", 1, "--max-seqs", 1, model=golden(name)) as d:
            _expected[name] = [ask(d, r) for r in REQUESTS]
    return _expected[name]


def test_greedy_texts_are_those_of_another_implementation():
    for name in MODELS:
        cases = json.load(open(golden(name)[:-5] + ".json"))["cases"]
        with Weftd(*FLAGS, model=golden(name)) as d:
            for c in cases:
                ids, _ = ask(d, {"prompt": c["prompt"], "temperature": 0}, len(c["greedy"]))
                assert ids == [g["id"] for g in c["greedy"]], name


def test_each_turn_of_a_chat_begins_where_the_one_before_ended():
    with Weftd(*FLAGS, model=golden(MODELS[1])) as d:
        messages = [{"role": "user", "content": "Hello, who are you? " * 8}]
        before = 0
        for _ in range(6):
            body = {"messages": messages, "max_tokens": 12, "temperature": 0}
            status, _, answer = d.request("POST", "/v1/chat/completions", body)
            assert status == 200, answer
            usage = answer["usage"]
            # less what a template may put behind the last message, in whole pages
            assert usage["prompt_tokens_details"]["cached_tokens"] >= before - 16 - 31, (usage, before)
            before = usage["prompt_tokens"]
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "And what comes then? " * 4}]
        assert before > 300, before


def test_snapshots_change_no_bit():
    """Prompts that begin alike: the second to come leaves a snapshot where it leaves the first, for all others."""
    common = random_tokens(70, 320)
    requests = [{"prompt": common + random_tokens(80 + i, 60 + 7 * i), "temperature": i % 2, "seed": i} for i in range(4)]
    for name in MODELS[1:]:
        should = []
        for r in requests:  # each on a daemon that has seen nothing
            with Weftd(*FLAGS, model=golden(name)) as d:
                should.append(ask(d, r))
        for flags in ((), ("--host-kv-memory", "1M"), ("--max-batch-rows", 16, "--max-seqs", 4, "--depth", 2)):
            with Weftd(*FLAGS, *flags, model=golden(name)) as d:
                assert [ask(d, r) for r in requests] == should, (name, flags)
                c = d.complete(**requests[3], max_tokens=1)
                cached = c["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert cached >= 320, (name, flags, cached)
                assert parallel([lambda r=r: ask(d, r) for r in requests]) == should, (name, flags)


def test_in_company_in_chunks_and_in_few_slots():
    for name in MODELS:
        for flags in (("--max-batch-rows", 16, "--max-seqs", 8), ("--max-seqs", 2, "--threads", 2, "--depth", 2)):
            with Weftd(*FLAGS, *flags, model=golden(name)) as d:
                for got, should in zip(parallel([lambda r=r: ask(d, r) for r in REQUESTS]), expected(name)):
                    assert got == should, (name, flags)


def test_preempted_and_computed_again():
    requests = [{"prompt": random_tokens(50 + i, 30 + 9 * i), "temperature": i % 2, "seed": i} for i in range(8)]
    name = MODELS[1]
    with Weftd(*FLAGS, model=golden(name)) as d:
        should = [ask(d, r, 250) for r in requests]
    with Weftd(*FLAGS, "--kv-pages", 36, "--host-kv-memory", "64M", model=golden(name)) as d:
        for _ in range(20):
            d.complete([5, 6, 7], max_tokens=1)
        assert parallel([lambda r=r: ask(d, r, 250) for r in requests]) == should
        assert d.stats()["worker"]["preemptions"] > 0, "nothing was preempted: the test is blind"


def test_a_worker_that_dies():
    r = random.Random(5)
    name = MODELS[0]
    with Weftd(*FLAGS, model=golden(name)) as d:
        should = [ask(d, q, 300) for q in REQUESTS]
        kills = 0

        def kill():
            time.sleep(r.random() * 0.1)
            return d.kill_worker()

        for _ in range(12):
            got = parallel([lambda q=q: ask(d, q, 300) for q in REQUESTS] + [kill])
            kills += got.pop()
            assert got == should
        assert kills > 5 and d.stats()["front"]["resumed"] > 0, "the test is blind"


main(globals())
