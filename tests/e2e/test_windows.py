"""Models with sliding-window attention (gpt-oss, Gemma 2, 3 and 4) in the whole daemon: the texts match another
implementation's, and promise 1 holds in company, in chunks, after preemption and with prefixes that others computed."""
from golden_models import FLAGS, REQUESTS, ask, check_greedy, expected, golden
from weftd import Weftd, main, parallel, random_tokens, together, wait_until

EXACT = ("gpt-oss-f32", "gpt-oss.f16", "gemma2", "gemma3", "gemma4", "gemma4-moe", "gemma4-ple")
MODELS = ("gpt-oss.mxfp4", "gemma4-ple", "gemma2")


def test_greedy_texts_are_those_of_another_implementation():
    check_greedy(EXACT)


def test_in_company_in_chunks_and_in_few_slots():
    for name in MODELS:
        for flags in (("--max-batch-rows", 16, "--max-seqs", 8), ("--max-seqs", 2, "--threads", 2, "--depth", 2)):
            with Weftd(*FLAGS, *flags, model=golden(name)) as d:
                for got, should in zip(parallel([lambda r=r: ask(d, r) for r in REQUESTS]), expected(name)):
                    assert got == should, (name, flags)


def test_prefixes_that_others_computed():
    for name in MODELS:
        common = random_tokens(70, 320)
        requests = [{"prompt": common + random_tokens(80 + i, 60 + 7 * i), "temperature": i % 2, "seed": i} for i in range(3)]
        should = []
        for r in requests:  # each on a fresh daemon that keeps the keys of all positions
            with Weftd(*FLAGS, "--host-kv-memory", "16M", model=golden(name)) as d:
                should.append(ask(d, r))
                assert d.stats()["worker"]["window_pages"] == 0, name
        with Weftd(*FLAGS, model=golden(name)) as d:
            assert [ask(d, r) for r in requests] == should, name
            c = d.complete(**requests[2], max_tokens=1)
            assert c["usage"]["prompt_tokens_details"]["cached_tokens"] >= 320, name
            stats = d.stats()["worker"]
            assert stats["window_pages"] > stats["window_pages_used"], stats


def test_preempted_and_computed_again():
    requests = [{"prompt": random_tokens(50 + i, 30 + 9 * i), "temperature": i % 2, "seed": i} for i in range(8)]
    for name in MODELS[:2]:
        with Weftd(*FLAGS, model=golden(name)) as d:
            should = [ask(d, r, 250) for r in requests]
        with Weftd(*FLAGS, "--kv-pages", 36, model=golden(name)) as d:
            for _ in range(20):
                d.complete([5, 6, 7], max_tokens=1)
            assert together(d, [lambda r=r: ask(d, r, 250) for r in requests]) == should, name
            wait_until("a preemption", lambda: d.stats()["worker"]["preemptions"] > 0)


main(globals())
