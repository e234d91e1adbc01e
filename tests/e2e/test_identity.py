"""Promise 1 in the whole daemon: a request gives the same tokens, and the same logits bit for bit, in any company and
with any options of the daemon."""
import os
import random
import re

from weftd import (
    ANY_TIME, BACKEND, Skip, Weftd, assisted_model, block_of, main, mtp_model, parallel, random_tokens, recomputed,
    repeat_until, synth, tiny_model, together, until_accepted, wait_until,
)

BASE = ("--max-context", "2048", "--kv-pages", "1024", "--backend", BACKEND)

# The requests: prompts from one token to many pages, greedy and sampled, with logits processors.
REQUESTS = [
    {"prompt": random_tokens(1, 5), "temperature": 0},
    {"prompt": random_tokens(2, 33), "temperature": 1, "seed": 11},
    {"prompt": random_tokens(3, 200), "temperature": 0.8, "seed": 12, "top_p": 0.9},
    {"prompt": random_tokens(4, 64), "temperature": 0, "repetition_penalty": 1.3},
    {"prompt": random_tokens(5, 700), "temperature": 1, "seed": 13, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    {"prompt": random_tokens(6, 1), "temperature": 1.4, "seed": 14, "top_k": 40, "min_p": 0.01},
    {"prompt": random_tokens(7, 96), "temperature": 1, "seed": 15, "logit_bias": {"17": 4.0, "18": -100}},
    {"prompt": random_tokens(8, 320), "temperature": 0},
]
N_TOKENS = 40
_expected = []


def expected():
    """Returns the result of each request, computed in sequence on a fresh daemon with one thread."""
    if not _expected:
        with Weftd(*BASE, "--threads", 1) as d:
            _expected.extend(ask(d, r) for r in REQUESTS)
    return _expected


def ask(daemon, request, **more):
    c = daemon.complete(**request, max_tokens=N_TOKENS, ignore_eos=True, logits_digest=True, **more)
    assert len(c["token_ids"]) == N_TOKENS and len(c["digests"]) == N_TOKENS, c
    return c


def check(daemon, request, should, what):
    c = ask(daemon, request)
    for i in range(N_TOKENS):
        assert c["digests"][i] == should["digests"][i], f"{what}: logits of token {i} differ"
        assert c["token_ids"][i] == should["token_ids"][i], f"{what}: token {i} differs"
    return c


def check_all(what, *flags, together=False):
    """Sends all requests to a separate daemon, in sequence or at once. Returns its stats."""
    with Weftd(*BASE, *flags) as d:
        jobs = [lambda r=r, e=e: check(d, r, e, what) for r, e in zip(REQUESTS, expected())]
        if together:
            parallel(jobs)
        else:
            for job in jobs:
                job()
        return d.stats()


def test_different_requests_give_different_logits():
    assert len({tuple(e["digests"]) for e in expected()}) == len(REQUESTS), "the other tests are blind"


def test_second_time_on_cached_pages():
    with Weftd(*BASE) as d:
        for r, e in zip(REQUESTS, expected()):
            check(d, r, e, "cold")
            c = check(d, r, e, "prefix hit")
            cached = c["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached == (len(r["prompt"]) - 1) // 32 * 32, (cached, len(r["prompt"]))


def test_in_batches_of_sixteen_with_random_neighbours():
    with Weftd(*BASE) as d:
        for turn in range(3):
            r = random.Random(turn)
            jobs = [lambda q=q, e=e: check(d, q, e, "in a batch") for q, e in zip(REQUESTS, expected())]
            for i in range(16 - len(REQUESTS)):
                prompt = random_tokens(100 + 16 * turn + i, r.randrange(1, 400))
                n = r.randrange(1, 80)
                jobs.append(lambda p=prompt, n=n: d.complete(p, max_tokens=n, temperature=1, seed=n))
            r.shuffle(jobs)
            parallel(jobs)


def test_chunked_differently():
    for rows in (16, 48, 512):
        check_all(f"max-batch-rows {rows}", "--max-batch-rows", rows, "--max-seqs", 16, together=True)


def test_preempted_and_computed_again():
    """Requests that are estimated short are all admitted; they turn out long, and pages run out."""
    requests = [{"prompt": random_tokens(50 + i, 30 + 9 * i), "temperature": i % 2, "seed": i} for i in range(8)]
    ask_long = lambda d, r: d.complete(**r, max_tokens=250, ignore_eos=True, logits_digest=True)
    with Weftd(*BASE) as d:
        should = [ask_long(d, r) for r in requests]
    with Weftd(*BASE, "--max-context", 1024, "--kv-pages", 36) as d:
        for _ in range(20):
            d.complete([5, 6, 7], max_tokens=1)
        got = together(d, [lambda r=r: ask_long(d, r) for r in requests])
        for a, b in zip(got, should):
            assert a["digests"] == b["digests"] and a["token_ids"] == b["token_ids"]
        wait_until("a preemption", lambda: d.stats()["worker"]["preemptions"] > 0)


def test_brought_back_from_host_memory():
    small = ("--max-context", 1024, "--kv-pages", 34, "--host-kv-memory", "64M")
    with Weftd(*BASE, *small) as d:
        def turn():
            for r, e in zip(REQUESTS, expected()):
                check(d, r, e, "host memory")

        def came():
            return d.stats()["worker"]["host_loaded_tokens"] + (recomputed(d) if BACKEND == "cuda" else 0)

        # On a busy machine computing so small a model again may look faster for a while.
        repeat_until("tokens that come back", lambda: came() > 1000, turn)


def test_with_one_two_and_three_threads():
    for n in (1, 2, 3):
        check_all(f"{n} threads", "--threads", n)


def test_with_every_page_size():
    for n in (16, 64):
        check_all(f"page size {n}", "--page-tokens", n, together=True)


def test_on_every_instruction_set():
    flags = open("/proc/cpuinfo").read()
    have = ["generic"]
    have += ["avx2"] * ("avx2" in flags and "fma" in flags)
    have += ["avx512"] * ("avx512_vnni" in flags)
    have += ["avx512bf16"] * ("avx512_bf16" in flags and have[-1] == "avx512")
    have += ["amx"] * ("amx_int8" in flags and have[-1] == "avx512bf16")
    for isa in have:
        check_all(isa, "--isa", isa)
    if "amx" not in have:
        print("# no AMX on this machine")
    if len(have) < 3:
        raise Skip(f"this machine only has {', '.join(have)}")


def test_at_both_depths():
    for depth in (1, 2):
        check_all(f"depth {depth}", "--depth", depth, together=True)


def test_with_a_draft_model():
    """Uses a draft model that is always right, as it is the same model, and one that never is."""
    shape = ["--arch", "qwen3", "--shape", "tiny,n_layer=1", "--format", "Q4_K_M", "--seed", "2"]
    for what, path in (("itself", tiny_model()), ("another", synth("tiny-draft", *shape))):
        stats = check_all(f"draft model {what}", "--draft-model", path, together=True)
        assert stats["worker"]["preemptions"] == 0


def test_with_the_models_own_block():
    """Uses the block of the model alone, in company, and with few pages, where requests preempt each other."""
    for loud in (0.02, 0.5):
        model = mtp_model(loud)
        with Weftd(*BASE, "--speculation", "off", model=model) as d:
            should = [ask(d, r) for r in REQUESTS]
            assert not d.stats()["worker"]["drafts"]["mtp"]["drafted"]
        few = ("--max-context", "1024", "--kv-pages", "100", "--page-tokens", "16")
        for sources, flags in (("suffix,mtp", ()), ("mtp", ()), ("suffix,mtp", few)):
            with Weftd(*BASE, *ANY_TIME, "--draft-sources", sources, *flags, model=model) as d:
                for turn in range(3):
                    parallel([lambda r=r, e=e: check(d, r, e, f"own block {loud} {sources} {flags}") for r, e in zip(REQUESTS, should)])
                if sources == "mtp" and loud < 0.1:
                    until_accepted(d, "mtp", lambda: check(d, REQUESTS[0], should[0], "drafts"))
        with Weftd(*BASE, "--draft-sources", "suffix", model=model) as d:
            check(d, REQUESTS[0], should[0], "not asked for")
            assert not d.stats()["worker"]["drafts"]["mtp"]["drafted"]
    alone = block_of(model, 4)
    with Weftd(*BASE, *ANY_TIME, "--draft-sources", "mtp", "--draft-model", alone, model=model) as d:
        def turn():
            for request, expected in zip(REQUESTS[:4], should):
                check(d, request, expected, "a block in a file of its own")

        repeat_until("a draft of the block", lambda: d.stats()["worker"]["drafts"]["mtp"]["drafted"], turn)
    os.unlink(alone)


def test_an_assistant_changes_no_token():
    if BACKEND == "cuda":
        raise Skip("cuda does not compute it")
    for loud in (0.02, 0.5):
        model, assistant = assisted_model(loud)
        with Weftd(*BASE, "--speculation", "off", "--draft-model", assistant, model=model) as d:
            should = [ask(d, r) for r in REQUESTS]
            assert not d.stats()["worker"]["drafts"]["mtp"]["drafted"]
        few = ("--max-context", "1024", "--kv-pages", "100", "--page-tokens", "16")
        for sources, flags in (("suffix,mtp", ()), ("mtp", few)):
            with Weftd(*BASE, *ANY_TIME, "--draft-sources", sources, *flags, "--draft-model", assistant, model=model) as d:
                for turn in range(3):
                    parallel([lambda r=r, e=e: check(d, r, e, f"assistant {loud} {sources} {flags}") for r, e in zip(REQUESTS, should)])
                if sources == "mtp" and loud < 0.1:
                    until_accepted(d, "mtp", lambda: check(d, REQUESTS[0], should[0], "drafts"))
    try:
        Weftd(*BASE, "--draft-sources", "mtp", "--draft-model", assistant).__enter__()
    except AssertionError as e:
        assert "the assistant belongs to a gemma4 model, and this one is qwen3" in str(e), e
    else:
        raise AssertionError("it was taken")


def test_a_draft_model_with_other_tokens_is_refused():
    path = synth("tiny-other-tokens", "--shape", "tiny", "--format", "Q8_0", "--n-vocab", "300")
    try:
        Weftd(*BASE, "--draft-model", path).__enter__()
    except AssertionError as e:
        assert re.search(r"draft-model: [^\n]*: its vocabulary differs from the model's: token \d+ is \"[^\n]*\", not \"", str(e)), e
    else:
        raise AssertionError("it was taken")


main(globals())
