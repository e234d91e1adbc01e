"""The worker is killed at 25 random moments (8 with few cases, 100 in the suite "night"), also while it loads: every
stream continues with the same tokens and logits, and without repetition."""
import pathlib
import random
import tempfile
import time

from weftd import (
    ANY_TIME, BACKEND, Skip, Weftd, assisted_model, every, fewer, libraries_of, main, mtp_model, parallel, random_tokens,
    repeat_until, synth, until_accepted, wait_until,
)

FLAGS = ("--max-context", "2048", "--kv-pages", "512", "--backend", BACKEND, "--threads", "2")
N_KILLS = every(100, 25)
N_TOKENS = 120
REQUESTS = [
    {"prompt": random_tokens(20, 300), "temperature": 0},
    {"prompt": random_tokens(21, 40), "temperature": 1, "seed": 3},
    {"prompt": random_tokens(22, 90), "temperature": 0.9, "seed": 4, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    {"prompt": random_tokens(23, 7), "temperature": 1, "seed": 5, "top_p": 0.8, "logprobs": 2},
    {"prompt": random_tokens(24, 50), "temperature": 1, "seed": 6, "guided_regex": "[a-z .]{2000}", "complete_output": False},
    {"prompt": random_tokens(25, 50), "temperature": 0.7, "seed": 7,
     "guided_json": {"type": "array", "items": {"enum": ["one", 2, None]}, "minItems": 400}, "complete_output": False},
]


def run(daemon, request):
    """Runs streams. Returns the tokens, digests and text that arrived, in order."""
    got = {"token_ids": [], "digests": [], "text": "", "finish": None}
    body = {**request, "max_tokens": N_TOKENS, "ignore_eos": True, "return_token_ids": True, "logits_digest": True}
    for chunk in daemon.stream("/v1/completions", body):
        assert "error" not in chunk, chunk
        for choice in chunk["choices"]:
            got["token_ids"] += choice.get("token_ids") or []
            got["digests"] += choice.get("digests") or []
            got["text"] += choice["text"]
            got["finish"] = choice["finish_reason"] or got["finish"]
    return got


def run_all(daemon, requests):
    should = [run(daemon, r) for r in requests]
    assert all(len(s["digests"]) == N_TOKENS and s["finish"] == "length" for s in should), should
    return should


def survive(d, requests, should, n_kills, seed):
    """Kills the worker @n_kills times while the requests run, and more often if too few kills fall between tokens; each
    request must give the expected result."""
    start = time.monotonic()
    parallel([lambda r=r: run(d, r) for r in requests])
    usual_s = time.monotonic() - start
    r = random.Random(seed)
    kills = 0
    turn = 0
    while kills < n_kills or d.stats()["front"]["resumed"] <= n_kills / 4:
        turn += 1
        assert turn < 40 * n_kills, d.stats()

        def kill(delays):
            n = 0
            for delay in delays:
                time.sleep(delay)
                n += d.kill_worker()
            return n

        # One kill while the requests run; every second time another one while the next worker loads.
        delays = [r.random() * usual_s] + [r.random() * 0.05] * (turn % 2)
        results = parallel([lambda q=q: run(d, q) for q in requests] + [lambda: kill(delays)])
        kills += results.pop()
        for i, (got, want) in enumerate(zip(results, should)):
            assert got == want, f"request {i} differs after kill {kills}: {got} instead of {want}"
    wait_until(f"{kills} deaths", lambda: d.stats()["worker"]["deaths"] == kills)


def test_streams_survive_kills_with_the_same_bits():
    with Weftd(*FLAGS) as d:
        survive(d, REQUESTS, run_all(d, REQUESTS), N_KILLS, 42)


def accept(d, source, requests, should):
    """Repeats the requests until a draft of @source is accepted."""
    def turn():
        assert run_all(d, requests) == should

    until_accepted(d, source, turn)


def test_streams_survive_with_a_draft_model():
    """A small draft model with the same vocabulary: mostly wrong, but right where few tokens are possible."""
    deep = synth("tiny-deep", "--arch", "qwen3", "--shape", "tiny,n_layer=32,n_ff=128,context=8192", "--format", "Q4_K_M")
    small = synth("tiny-draft", "--arch", "qwen3", "--shape", "tiny,n_layer=1", "--format", "Q4_K_M", "--seed", "2")
    requests = REQUESTS[1:4] + [
        {"prompt": random_tokens(26, 60), "temperature": 0, "logit_bias": {"17": 100}},
        {"prompt": random_tokens(27, 30), "temperature": 2, "seed": 8, "logit_bias": {"17": 60, "18": 60, "19": 60}},
    ]
    with Weftd(*FLAGS, "--speculation", "off", model=deep) as d:
        should = run_all(d, requests)
    with Weftd(*FLAGS, *ANY_TIME, "--draft-model", small, "--draft-sources", "model", model=deep) as d:
        accept(d, "model", requests[3:], should[3:])
        survive(d, requests, should, fewer(6), 43)


def test_streams_survive_with_the_models_own_block():
    """The scheduler tries drafts at intervals, whether or not they pay, unless a try would take too long."""
    if BACKEND == "cuda":
        raise Skip("cuda does not compute the block")
    survive_drafting(mtp_model(0.02))


def test_streams_survive_with_an_assistant():
    if BACKEND == "cuda":
        raise Skip("cuda does not compute it")
    model, assistant = assisted_model(0.02)
    survive_drafting(model, "--draft-model", assistant)


def survive_drafting(model, *flags):
    requests = REQUESTS[:4]
    with Weftd(*FLAGS, "--speculation", "off", model=model) as d:
        should = run_all(d, requests)
    with Weftd(*FLAGS, *ANY_TIME, *flags, "--draft-sources", "mtp", model=model) as d:
        accept(d, "mtp", requests, should)
        survive(d, requests, should, fewer(6), 45)


def test_streams_survive_with_pages_in_host_memory():
    with Weftd(*FLAGS) as d:
        should = run_all(d, REQUESTS)
    with Weftd(*FLAGS, "--max-context", "512", "--kv-pages", "24", "--host-kv-memory", "64M") as d:
        repeat_until("prefixes that are saved", lambda: d.stats()["worker"]["host_offloaded_tokens"] > 500,
                     lambda: parallel([lambda r=r: run(d, r) for r in REQUESTS]))
        survive(d, REQUESTS, should, fewer(6), 44)


def test_health_is_503_while_the_worker_is_replaced():
    with tempfile.TemporaryDirectory() as folder, Weftd(*FLAGS, env=libraries_of(folder)) as d:
        assert d.health() == 200
        library = pathlib.Path(folder, "libc.so.6")
        library.touch()  # no worker can load it
        d.kill_worker()
        d.wait_health(503)
        library.unlink()
        d.wait_health(200)


def test_request_that_arrives_while_no_worker_serves_is_answered():
    with Weftd(*FLAGS) as d:
        should = run(d, REQUESTS[1])
        for _ in range(5):
            d.kill_worker()
            assert run(d, REQUESTS[1]) == should


def test_embeddings_survive_kills_with_the_same_bits():
    body = {"input": [random_tokens(100 + i, 20 + i % 90) for i in range(150)], "encoding_format": "base64"}
    with Weftd(*FLAGS) as d:

        def embed(pooling):
            status, _, value = d.request("POST", "/v1/embeddings", {**body, "pooling": pooling})
            assert status == 200, (status, value)
            return value

        should = {p: embed(p) for p in ("last", "mean")}
        assert should["last"] != should["mean"]
        start = time.monotonic()
        embed("mean")
        usual_s = time.monotonic() - start
        r = random.Random(7)

        def kill():
            time.sleep(r.random() * usual_s)
            return d.kill_worker()

        kills = 0
        turn = 0
        while turn < 12 or not kills:
            turn += 1
            assert turn < 100, "no kill"
            pooling = ("last", "mean")[turn % 2]
            got, hit = parallel([lambda: embed(pooling), kill])
            kills += hit
            assert got == should[pooling], f"{pooling} differs after kill {kills}"


def test_streams_survive_with_pages_on_the_disk():
    """A page that a worker was writing when it was killed is either complete for the next worker or absent."""
    with tempfile.TemporaryDirectory() as folder, Weftd(*FLAGS, "--kv-disk", folder, "--kv-disk-size", "64M") as d:
        survive(d, REQUESTS, run_all(d, REQUESTS), fewer(12), 45)
        assert " kv_disk " not in d.log, d.log


main(globals())
