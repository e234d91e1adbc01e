"""Hybrid models (recurrent layers and attention) in the whole daemon: the texts match another implementation's, and
promise 1 holds with a state that is not in pages."""
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import golden_models
from golden_models import FLAGS, ask, check_greedy, expected, golden, random_tokens
from weftd import BACKEND, BUILD, Weftd, every, main, parallel, recomputed, repeat_until, together, wait_until

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
from session import Session

MODELS = ("qwen35-mtp", "qwen35moe-mtp", "qwen3next", "lfm2moe", "nemotron-h-moe-mtp", "qwen4exp", "deepseek4-mtp",
          "glm5-next-mtp")
# Gated delta net with experts and a block of its own, Mamba-2, compressed keys, pooled keys with a block of their own.
KINDS = every(MODELS, ("qwen35moe-mtp", "nemotron-h-moe-mtp", "deepseek4-mtp", "glm5-next-mtp"))
REQUESTS = [*golden_models.REQUESTS, {"prompt": random_tokens(6, 1), "temperature": 1.4, "seed": 14, "top_k": 40}]


def test_greedy_texts_are_those_of_another_implementation():
    check_greedy(MODELS)


def test_each_turn_of_a_chat_begins_where_the_one_before_ended():
    with Weftd(*FLAGS, model=golden(MODELS[1])) as d:
        messages = [{"role": "user", "content": "Hello, who are you? " * 8}]
        before = 0
        for _ in range(6):
            body = {"messages": messages, "max_tokens": 12, "temperature": 0}
            status, _, answer = d.request("POST", "/v1/chat/completions", body)
            assert status == 200, answer
            usage = answer["usage"]
            # without the tokens that a template may add after the last message, rounded to pages
            assert usage["prompt_tokens_details"]["cached_tokens"] >= before - 16 - 31, (usage, before)
            before = usage["prompt_tokens"]
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "And what comes then? " * 4}]
        assert before > 300, before


def run_session(start, fork):
    """Runs twenty turns and three times three subagents, with a restart of the daemon in the middle. Returns the number
    of computed tokens and the workers' counters of both daemons."""
    daemon, counters = start(), []

    def post(path, body):
        status, _, answer = daemon.request("POST", path, body)
        assert status == 200, answer
        return answer

    def stop():
        cached = session.total()["prompt_tokens"] - session.total()["computed_tokens"] - sum(c["cached_tokens"] for c in counters)
        stats = {}

        def is_idle():
            stats.update(daemon.stats()["worker"])
            return stats["cached_tokens"] >= cached and not stats["running"] and not stats["states_used"]

        wait_until("the worker's figures", is_idle)  # it tells them when it is idle: prewarming may come first
        assert stats["cached_tokens"] == cached, (session.total(), stats)
        shown = subprocess.run([BUILD / "weftctl", "--socket", daemon.admin, "stats"], capture_output=True, text=True, check=True).stdout
        assert f"  states   0 of {stats['states']} slots; {stats['snapshots']} snapshots; " in shown, shown
        assert stats["snapshots_made"] >= stats["snapshots"] - stats["disk_loaded_snapshots"] > 0 == stats["states_used"], stats
        counters.append(stats)
        daemon.__exit__(None, None, None)

    def restart():
        nonlocal daemon
        stop()
        daemon = start()

    session = Session(post, scale=0.3, max_tokens=40)
    try:
        total = session.run(fork=fork, restart=restart)
        stop()
    except BaseException:
        daemon.__exit__(*sys.exc_info())
        raise
    return total, counters


def test_a_session_with_subagents_computes_little_more_than_what_is_new():
    """A session with subagents, which have instructions or forks of the conversation, computes few tokens besides the
    new ones, also across a restart with a disk tier."""
    for fork in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            path = f"{directory}/hybrid.gguf"  # the golden models end at 1024 tokens
            shape = "tiny,context=32768,n_layer=4,n_key=2,n_value=4,n_state=16,n_embd=64"
            subprocess.run([BUILD / "weft-synth", "--arch", "qwen35", "--shape", shape, "--format", "Q8_0",
                            "--vocab", golden(MODELS[0]), "-o", path], check=True, stdout=subprocess.DEVNULL)
            flags = ("--max-context", "32768", "--kv-pages", "2048", "--backend", BACKEND, "--kv-disk", directory, "--kv-disk-size", "64M")
            total, counters = run_session(lambda: Weftd(*flags, model=path), fork)
        assert total["again_of_prompt"] <= 0.03, total
        assert total["requests"] == 20 + 3 * 9 and total["prompt_tokens"] > 5 * total["computed_tokens"], total
        # all but the first request, the first subagent, and requests that came before a prefix existed
        assert sum(c["snapshots_used"] for c in counters) >= total["requests"] - 6, counters
        assert counters[1]["disk_loaded_snapshots"] > 0 == counters[0]["disk_loaded_snapshots"], counters


def test_snapshots_change_no_bit():
    """Prompts with a common beginning: the second request leaves a snapshot where they diverge, for all later ones."""
    common = random_tokens(70, 320)
    requests = [{"prompt": common + random_tokens(80 + i, 60 + 7 * i), "temperature": i % 2, "seed": i} for i in range(4)]
    for name in KINDS:
        should = []
        for r in requests:  # each on a fresh daemon
            with Weftd(*FLAGS, model=golden(name)) as d:
                should.append(ask(d, r))
        for flags in ((), ("--host-kv-memory", "1M"), ("--max-batch-rows", 16, "--max-seqs", 4, "--depth", 2)):
            with Weftd(*FLAGS, *flags, model=golden(name)) as d:
                assert [ask(d, r) for r in requests] == should, (name, flags)
                c = d.complete(**requests[3], max_tokens=1)
                cached = c["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert cached >= 320, (name, flags, cached)
                assert parallel([lambda r=r: ask(d, r) for r in requests]) == should, (name, flags)


def test_drafts_change_no_bit():
    """A rejected draft restores the state from before it; the accepted tokens are computed again."""
    phrase = random_tokens(90, 24)
    requests = [{"prompt": random_tokens(91 + i, 9) + phrase * 6, "temperature": i % 3 * 0.4, "seed": i} for i in range(6)]
    before = {"drafted": 0, "accepted": 0}  # by the daemons before
    directory = tempfile.TemporaryDirectory()
    for name in KINDS:
        wrong = f"{directory.name}/{name}.gguf"  # a draft model that is often wrong
        subprocess.run([BUILD / "weft-synth", "--shape", "tiny", "--format", "Q8_0", "--vocab", golden(name), "-o", wrong],
                       check=True, stdout=subprocess.DEVNULL)
        with Weftd(*FLAGS, "--speculation", "off", model=golden(name)) as d:
            should = [ask(d, r, 300) for r in requests]
        for flags in ((), ("--max-seqs", 3, "--page-tokens", 16), ("--draft-model", wrong)):
            with Weftd(*FLAGS, *flags, model=golden(name)) as d:
                def turn():
                    assert parallel([lambda r=r: ask(d, r, 300) for r in requests]) == should, (name, flags)

                assert [ask(d, r, 300) for r in requests] == should, (name, flags)
                turn()
                drafts = lambda: [before[k] + d.stats()["worker"][k] for k in before]
                if "--draft-model" in flags:
                    repeat_until("drafts", lambda: (n := drafts())[0] > n[1] > 0, turn)
                before = dict(zip(before, drafts()))
    directory.cleanup()


def test_in_company_in_chunks_and_in_few_slots():
    for name in KINDS:
        for flags in (("--max-batch-rows", 16, "--max-seqs", 8), ("--max-seqs", 2, "--threads", 2, "--depth", 2)):
            with Weftd(*FLAGS, *flags, model=golden(name)) as d:
                for got, should in zip(parallel([lambda r=r: ask(d, r) for r in REQUESTS]), expected(name, REQUESTS)):
                    assert got == should, (name, flags)


def test_preempted_and_computed_again():
    requests = [{"prompt": random_tokens(50 + i, 30 + 9 * i), "temperature": i % 2, "seed": i} for i in range(8)]
    for name in (MODELS[1], "deepseek4-mtp"):
        with Weftd(*FLAGS, model=golden(name)) as d:
            should = [ask(d, r, 250) for r in requests]
        with Weftd(*FLAGS, "--kv-pages", 36, "--host-kv-memory", "64M", model=golden(name)) as d:
            for _ in range(20):
                d.complete([5, 6, 7], max_tokens=1)
            assert together(d, [lambda r=r: ask(d, r, 250) for r in requests]) == should, name
            wait_until("a preemption", lambda: d.stats()["worker"]["preemptions"] > 0)


def test_what_the_device_gives_up_comes_back_from_host_memory():
    requests = [{"prompt": random_tokens(60 + i, 800), "temperature": i % 2, "seed": i} for i in range(4)]
    for name in KINDS:
        with Weftd(*FLAGS, model=golden(name)) as d:
            should = [ask(d, r) for r in requests]
        with Weftd("--max-context", "1024", "--kv-pages", 40, "--host-kv-memory", "64M", "--backend", BACKEND, model=golden(name)) as d:
            def turn():  # the device has room for one
                assert [ask(d, r) for r in requests] == should, name

            # Tokens that come back, or are computed since that is faster. A prefix is saved when there is time, so not each
            # that the next request drives out is there.
            repeat_until(f"{name}: tokens in host memory", lambda: recomputed(d) + d.stats()["worker"]["host_loaded_tokens"] >= 2 * 600, turn)


def test_a_worker_that_dies():
    r = random.Random(5)
    name = MODELS[0]
    with Weftd(*FLAGS, model=golden(name)) as d:
        should = [ask(d, q, 300) for q in REQUESTS]
        kills = 0

        def kill():
            time.sleep(r.random() * 0.1)
            return d.kill_worker()

        def turn():
            nonlocal kills
            got = parallel([lambda q=q: ask(d, q, 300) for q in REQUESTS] + [kill])
            kills += got.pop()
            assert got == should

        repeat_until("kills", lambda: kills > 5 and d.stats()["front"]["resumed"] > 0, turn)


main(globals())
