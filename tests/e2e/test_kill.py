"""The worker is killed at 100 random moments, loading included: every stream goes on with the same tokens, the
same logits, and nothing twice."""
import random
import time

from weftd import BACKEND, Weftd, main, parallel, random_tokens

FLAGS = ("--max-context", "2048", "--kv-pages", "512", "--backend", BACKEND, "--threads", "2")
N_KILLS = 100
N_TOKENS = 120
REQUESTS = [
    {"prompt": random_tokens(20, 300), "temperature": 0},
    {"prompt": random_tokens(21, 40), "temperature": 1, "seed": 3},
    {"prompt": random_tokens(22, 90), "temperature": 0.9, "seed": 4, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    {"prompt": random_tokens(23, 7), "temperature": 1, "seed": 5, "top_p": 0.8, "logprobs": 2},
    {"prompt": random_tokens(24, 50), "temperature": 1, "seed": 6, "guided_regex": "[a-z .]{2000}"},
    {"prompt": random_tokens(25, 50), "temperature": 0.7, "seed": 7,
     "guided_json": {"type": "array", "items": {"enum": ["one", 2, None]}, "minItems": 400}},
]


def run(daemon, request):
    """Streams; the tokens, digests and text that arrived, in order."""
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


def test_streams_survive_a_hundred_kills_with_the_same_bits():
    with Weftd(*FLAGS) as d:
        should = [run(d, r) for r in REQUESTS]
        assert all(len(s["digests"]) == N_TOKENS and s["finish"] == "length" for s in should), should
        start = time.monotonic()
        parallel([lambda r=r: run(d, r) for r in REQUESTS])
        usual_s = time.monotonic() - start
        r = random.Random(42)
        kills = 0
        turn = 0
        while kills < N_KILLS:
            turn += 1
            assert turn < 4 * N_KILLS, "kills do not hit"

            def kill(delays):
                n = 0
                for delay in delays:
                    time.sleep(delay)
                    n += d.kill_worker()
                return n

            # One kill while the requests run, and every other time one more while the next worker loads.
            delays = [r.random() * usual_s] + [r.random() * 0.05] * (turn % 2)
            results = parallel([lambda q=q: run(d, q) for q in REQUESTS] + [lambda: kill(delays)])
            kills += results.pop()
            for i, (got, want) in enumerate(zip(results, should)):
                assert got == want, f"request {i} differs after kill {kills}: {got} instead of {want}"
        end = time.monotonic() + 10
        while d.stats()["worker"]["deaths"] != kills:
            assert time.monotonic() < end, (d.stats(), kills)
            time.sleep(0.01)
        assert d.stats()["front"]["resumed"] > N_KILLS / 4, d.stats()


def test_health_is_503_while_the_worker_is_replaced():
    with Weftd(*FLAGS) as d:
        assert d.health() == 200
        seen = set()
        for _ in range(5):
            d.kill_worker()
            end = time.monotonic() + 30
            while time.monotonic() < end:
                seen.add(d.health())
                if 503 in seen and d.health() == 200:
                    break
        assert seen == {200, 503}, seen


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
        for turn in range(12):
            pooling = ("last", "mean")[turn % 2]
            got, hit = parallel([lambda: embed(pooling), kill])
            kills += hit
            assert got == should[pooling], f"{pooling} differs after kill {kills}"
        assert kills > 0


main(globals())
