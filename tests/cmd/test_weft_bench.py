"""weft-bench serve, agents and identity against a server whose answers and delays are known. Times are only ever bounded from
below: a sleep never ends early."""
import json
import os
import subprocess
import tempfile

from fake_openai import FakeServer
from weftd import LIMIT_S, main, program

FOLDER = tempfile.TemporaryDirectory(prefix="weft-bench-")


class Server(FakeServer):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def run(*args, code=0, env=None):
    p = subprocess.run([program("weft-bench"), *map(str, args)], capture_output=True, timeout=LIMIT_S, text=True,
                       env={**os.environ, "OPENAI_API_KEY": "", **(env or {})})
    assert p.returncode == code, (args, p.returncode, p.stdout, p.stderr)
    return p.stdout, p.stderr


def serve(server, *args, code=0, words=0.5):
    file = os.path.join(FOLDER.name, "result.json")
    if os.path.exists(file):
        os.unlink(file)
    out, _ = run("serve", "--url", server.url, "--words-per-token", words, "--json", file, *args, code=code)
    with open(file) as f:
        return json.load(f), out


def test_counts_tokens_and_bounds_times_from_below():
    with Server() as s:
        s.first_s, s.gap_s = 0.03, 0.01
        d, out = serve(s, "--clients", 4, "--requests", 12, "--prompt-tokens", 20, "--output-tokens", 6)
        assert len(s.requests) == 12 and 1 < s.max_active <= 4
        assert d["requests"] == {"ok": 12, "rejected": 0, "http": 0, "stream": 0, "protocol": 0, "network": 0}
        assert d["output_tokens"] == 72 and d["prompt_tokens"] == 12 * 25 and d["cached_tokens"] == 36
        assert d["ttft_ms"]["n"] == 12 and d["ttft_ms"]["min"] >= 30
        # A client that was late for the first piece finds the next ones there: only the sums are bounded.
        assert d["itl_ms"]["n"] == 60 and d["e2e_ms"]["min"] >= 80
        assert d["ttft_ms"]["mean"] + 5 * d["itl_ms"]["mean"] >= 79.9, d
        assert abs(d["tpot_ms"]["mean"] - d["itl_ms"]["mean"]) < 1e-3 and d["largest_gap_ms"]["mean"] >= d["itl_ms"]["mean"], d
        for key in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "largest_gap_ms"):
            m = d[key]
            assert m["min"] <= m["p50"] <= m["p90"] <= m["p99"] <= m["max"] and m["min"] <= m["mean"] <= m["max"], (key, m)
        assert d["seconds"] >= 0.24 and abs(d["output_tokens_per_s"] - 72 / d["seconds"]) < 1e-6
        assert d["largest_gap_ms"]["max"] == d["itl_ms"]["max"]
        assert "12 ok in" in out and "time to first token" in out
        for r in s.requests:
            assert r["model"] == "fake-model" and r["max_tokens"] == 6 and r["ignore_eos"] is True and r["stream"]
            assert len(s.prompt_words(r)) == 10 and r["temperature"] == 0
        assert len({json.dumps(r["messages"]) for r in s.requests}) == 12


def test_chunks_split_anywhere_change_nothing():
    for line_end in ("\n", "\r\n", "\r"):
        for split in (1, 7):
            with Server() as s:
                s.split, s.line_end = split, line_end
                d, _ = serve(s, "--clients", 2, "--requests", 4, "--prompt-tokens", 8, "--output-tokens", 20)
                assert d["requests"]["ok"] == 4 and d["output_tokens"] == 80 and d["itl_ms"]["n"] == 76, d


def test_energy_of_the_devices_that_several_models_are_on():
    with Server() as s:
        s.joules = 5000
        d, out = serve(s, "--clients", 1, "--requests", 2, "--prompt-tokens", 4, "--output-tokens", 5)
        assert d["energy_joules"] == 600 and d["joules_per_output_token"] == 60, d
        assert "600.0 J, 60.000 J per output token" in out


def test_every_kind_of_error_is_counted_and_the_rest_goes_on():
    with Server() as s:
        s.plan = {1: "429", 2: "503", 3: "500", 4: "cut", 5: "error", 6: "garbage", 7: "json", 8: "endless"}
        d, out = serve(s, "--clients", 3, "--requests", 15, "--output-tokens", 5)
        assert d["requests"] == {"ok": 7, "rejected": 2, "http": 1, "stream": 3, "protocol": 2, "network": 0}, d
        assert d["output_tokens"] == 35 and d["ttft_ms"]["n"] == 7
        assert "as planned" in d["first_error"] and "\n" not in d["first_error"] and "2 rejected" in out
    out, err = run("serve", "--url", "http://127.0.0.1:1", "--model", "m", "--words-per-token", 1, "--clients", 1,
                   "--requests", 2, code=1)
    assert "2 network" in out and "no request succeeded" in err
    _, err = run("serve", "--url", "http://127.0.0.1:1", "--clients", 1, code=1)
    assert err.startswith("weft-bench: ") and err.count("\n") == 1, err


def test_goodput_counts_what_meets_both_objectives():
    with Server() as s:
        s.first_s, s.gap_s = 0.02, 0.03
        for ttft, itl, good in ((60000, 60000, 6), (10, 60000, 0), (60000, 2, 0)):
            d, _ = serve(s, "--clients", 2, "--requests", 6, "--output-tokens", 4, "--slo-ttft", ttft, "--slo-itl", itl)
            assert d["good_requests"] == good and abs(d["goodput_requests_per_s"] - good / d["seconds"]) < 1e-6, d
        d, _ = serve(s, "--clients", 2, "--requests", 2, "--output-tokens", 4)
        assert "good_requests" not in d


def test_turns_carry_the_conversation_and_sessions_share_a_prefix():
    with Server() as s:
        serve(s, "--clients", 1, "--requests", 6, "--turns", 3, "--shared-prefix", 40, "--prompt-tokens", 10, "--output-tokens", 4)
        assert len(s.requests) == 6
        assert len({r["messages"][0]["content"] for r in s.requests}) == 1
        assert s.requests[0]["messages"][0]["role"] == "system" and len(s.requests[0]["messages"][0]["content"].split()) == 20
        lengths = [len(r["messages"]) for r in s.requests]
        assert lengths == [2, 4, 6, 2, 4, 6], lengths
        for r in s.requests:
            assert [m["role"] for m in r["messages"]] == (["system"] + ["user", "assistant"] * 3)[: len(r["messages"])]
            if len(r["messages"]) > 2:
                before = next(q for q in s.requests if q["messages"] == r["messages"][:-2])
                assert r["messages"][-2]["content"] == "".join(s.pieces(before))
        s.requests.clear()
        serve(s, "--clients", 1, "--requests", 2, "--turns", 2, "--endpoint", "completions", "--prompt-tokens", 10, "--output-tokens", 4)
        first, second = (r["prompt"] for r in s.requests)
        assert second.startswith(first + "".join(s.pieces(s.requests[0])))


def test_the_load_is_a_function_of_the_seed():
    def bodies(seed):
        with Server() as s:
            serve(s, "--clients", 1, "--requests", 5, "--prompt-tokens", "5-50", "--output-tokens", "exp:6", "--seed", seed)
            return [{k: v for k, v in r.items() if k not in ("started", "auth")} for r in s.requests]

    a = bodies(3)
    assert a == bodies(3) and a != bodies(4)
    assert len({len(FakeServer.prompt_words(r)) for r in a}) > 1 and len({r["max_tokens"] for r in a}) > 1


def test_open_loop_sends_at_the_rate_and_counts_from_the_arrival():
    with Server() as s:
        s.first_s = 0.1
        d, _ = serve(s, "--rate", 50, "--requests", 20, "--output-tokens", 2)
        assert d["requests"]["ok"] == 20 and s.max_active > 1 and d["ttft_ms"]["min"] >= 100
        starts = [r["started"] for r in s.requests]
        assert len(starts) == 20 and d["config"]["loop"] == "open"
    with Server() as s:
        d, _ = serve(s, "--clients", 2, "--duration", 0.3, "--output-tokens", 1)
        assert d["requests"]["ok"] == len(s.requests) > 2 and d["seconds"] >= 0.2


def test_rejected_agents_wait_before_they_ask_again():
    with Server() as s:
        s.plan = {0: "429"}
        d, _ = serve(s, "--clients", 1, "--requests", 2, "--output-tokens", 1)
        assert d["requests"]["rejected"] == 1 and s.requests[1]["started"] - s.requests[0]["started"] >= 1


def test_words_per_token_is_found_out_and_missing_usage_is_said():
    with Server() as s:
        file = os.path.join(FOLDER.name, "r.json")
        run("serve", "--url", s.url + "/v1/", "--clients", 1, "--requests", 1, "--prompt-tokens", 100, "--json", file)
        d = json.load(open(file))
        assert d["config"]["words_per_token"] == 0.5 and d["prompt_tokens"] == 105
        s.usage = False
        s.requests.clear()
        out, err = run("serve", "--url", s.url, "--clients", 1, "--requests", 1, "--output-tokens", 9, "--json", "-")
        d = json.loads(out)
        assert d["output_tokens"] == 9 and d["output_tokens_counted_as_pieces"] and "does not count" in err
        # A link to a pipe, as /dev/stdout is one.
        link = os.path.join(FOLDER.name, "stdout")
        os.symlink("/proc/self/fd/1", link)
        out, _ = run("serve", "--url", s.url, "--clients", 1, "--requests", 1, "--output-tokens", 9, "--json", link)
        assert '"output_tokens": 9' in out and os.path.islink(link), out


def test_options_reach_the_server():
    with Server() as s:
        d, _ = serve(s, "--clients", 1, "--requests", 1, "--api-key", "sk-1", "--no-ignore-eos", "--temperature", 0.5,
                     "--no-stream", "--model", 'a "name"', "--output-tokens", 3)
        r = s.requests[0]
        assert r["auth"] == "Bearer sk-1" and "ignore_eos" not in r and r["temperature"] == 0.5
        assert "stream" not in r and r["model"] == 'a "name"'
        assert d["requests"]["ok"] == 1 and d["ttft_ms"]["n"] == 0 and d["e2e_ms"]["n"] == 1 and d["output_tokens"] == 3


def identity(server, *args, code=0):
    file = os.path.join(FOLDER.name, "identity.json")
    out, err = run("identity", "--url", server.url, "--prompts", 6, "--noise", 3, "--output-tokens", 8, "--json", file,
                   *args, code=code)
    return json.load(open(file)), out


def test_identity_tells_a_steady_server_from_one_that_drifts():
    with Server() as s:
        s.first_s = 0.05
        d, out = identity(s, "--rounds", 2, "--strict")
        assert (d["same"], d["different"], d["failed"], d["share"]) == (12, 0, 0, 1.0) and "100.00 %" in out
        assert 6 < s.max_active <= 9
        greedy = [r for r in s.requests if r["temperature"] == 0 and r["max_tokens"] == 8]
        assert len(greedy) >= 18
        s.drift = True
        d, out = identity(s)
        assert d["different"] >= 5 and d["share"] < 0.2 and "earliest difference at byte" in out
        identity(s, "--strict", code=1)
        s.drift, s.longer = False, True
        d, _ = identity(s)
        assert d["different"] >= 5, d
    with Server() as s:
        s.first_s, s.limit = 0.1, 5
        d, _ = identity(s)
        assert d["failed"] > 0 and d["same"] + d["failed"] == 6
        identity(s, "--strict", code=1)


TRACE = """machine h200
pool pages=100
agents team tenant=1 weight=2000 priority=3 count=2 turns=3 system=100 first=20-40 more=4-8 output=6 pause=20 subs_every=1 subs=1 sub_turns=2
agents lone tenant=7 count=3 turns=1 first=30 output=4
"""


def agents(server, *args, code=0, trace=TRACE):
    path, file = os.path.join(FOLDER.name, "a.trace"), os.path.join(FOLDER.name, "agents.json")
    with open(path, "w") as f:
        f.write(trace)
    out, _ = run("agents", "--url", server.url, "--trace", path, "--words-per-token", 1, "--json", file, *args, code=code)
    with open(file) as f:
        return json.load(f), out


def conversation(body):
    return json.dumps(body.get("messages") or body["prompt"])


def test_agents_of_a_trace_work_in_turns():
    with Server() as s:
        s.first_s, s.gap_s = 0.02, 0.005
        d, out = agents(s, "--keys", "key-", "--endpoint", "chat")
        team, lone = d["tenants"]
        # Two agents of three turns; each sends one sub-agent of two turns before its second and third turn.
        assert (team["tenant"], lone["tenant"], team["weight"]) == (1, 7, 2)
        assert (team["turns"], team["finished"], team["jobs"], team["jobs_all"]) == (14, 14, 2, 2)
        assert (lone["turns"], lone["finished"], lone["jobs"], lone["jobs_all"]) == (3, 3, 3, 3)
        assert d["all"]["finished"] == 17 == len(s.requests) and d["all"]["output_tokens"] == 14 * 6 + 3 * 4
        assert team["cached_tokens"] == 14 * 3 and team["short"] == team["failed"] == team["refused"] == 0
        assert team["ttft_ms"]["n"] == 14 and team["ttft_ms"]["min"] >= 20 and team["itl_ms"]["n"] == 70
        assert team["job_s"]["n"] == 2 and team["job_s"]["min"] >= 7 * 0.045 + 2 * 0.02, "turns of one job do not overlap"
        words = sum(len(s.prompt_words(r)) for r in s.requests)
        assert d["all"]["planned_prompt_tokens"] == words and d["all"]["prompt_tokens"] == 2 * words + 17 * 5
        assert d["tenants"][0]["prompt_tokens"] + d["tenants"][1]["prompt_tokens"] == d["all"]["prompt_tokens"]
        assert "17 of 17 turns finished" in out and out.count("\n") >= 6

        sessions = {}
        for r in s.requests:
            assert r["stream"] and r["ignore_eos"] and r["stream_options"] == {"include_usage": True}
            assert r["auth"] == ("Bearer key-7" if r["max_tokens"] == 4 else "Bearer key-1")
            assert r.get("priority") == (None if r["max_tokens"] == 4 else 3)
            sessions.setdefault(r["session"], []).append(r["messages"])
        assert sorted(len(v) for v in sessions.values()) == [1, 1, 1, 2, 2, 2, 2, 3, 3]
        for turns in sessions.values():
            for earlier, later in zip(turns, turns[1:]):
                assert later[:len(earlier)] == earlier and len(later) == len(earlier) + 2
                assert [m["role"] for m in later[-2:]] == ["assistant", "user"] and len(later[-2]["content"].split()) == 6
        begins = {conversation({"messages": v[0][:1]}) for k, v in sessions.items() if len(v) > 1}
        assert len(begins) == 1, "the group's system prompt"


def test_agents_ask_every_server_the_same():
    def bodies(*args, **kind):
        with Server() as s:
            for k, v in kind.items():
                setattr(s, k, v)
            agents(s, *args)
            return sorted(conversation(r) + str(r["max_tokens"]) for r in s.requests)

    fast, slow = bodies(), bodies(first_s=0.03, gap_s=0.01)
    assert fast == slow != bodies("--seed", 2)
    plain = bodies("--endpoint", "completions")
    assert len(plain) == 17 and plain == bodies("--endpoint", "completions", first_s=0.01)
    with Server() as s:
        agents(s, "--echo", "--without", 7, "--set", "team.count=1,team.subs_every=0")
        assert len(s.requests) == 3
        assert s.requests[2]["messages"][-2]["content"] == "".join(s.pieces(s.requests[1]))
    with Server() as s:
        agents(s, "--no-sessions", "--tokens", "0.5")
        assert {r["session"] for r in s.requests} == {None}
        assert {r["max_tokens"] for r in s.requests} == {3, 2}


def test_agents_come_back_after_a_refusal():
    with Server() as s:
        s.plan = {0: "429", 4: "503"}
        d, out = agents(s, "--set", "team.subs_every=0")
        assert d["all"]["refused"] == 2 and d["all"]["refused_without_retry_after"] == 0
        assert d["all"]["finished"] == d["all"]["turns"] == 9 and len(s.requests) == 11
        assert d["all"]["ttft_ms"]["max"] >= 1000 and d["all"]["ttft_ms"]["n"] == 9, "a refused turn is still due when it was"
        assert d["all"]["refusal_ms"]["n"] == 2 and "refused 2 times, 0 without Retry-After" in out
    with Server() as s:
        s.plan = {0: "429", 1: "500", 2: "cut"}
        d, out = agents(s, "--retries", 0, "--set", "team.count=0", code=1)
        assert d["all"]["failed"] == 3 and d["all"]["jobs"] == 0 and d["all"]["refused"] == 1
        assert "3 turns failed" in out and d["first_error"]
    with Server() as s:
        s.gap_s = 0.2  # an answer takes 0.6 s
        d, out = agents(s, "--without", 1, "--set", "until=400", code=1)
        assert d["all"]["turns"] == 3 == d["all"]["ttft_ms"]["n"] and d["all"]["finished"] == 0, "who waits at the end counts"
        d, out = agents(s, "--without", 1, "--set", "until=400", "--times", 200)
        assert d["all"]["finished"] == 3 and d["all"]["unanswered"] == 0


def test_bad_arguments_exit_64_with_one_line():
    url = ("--url", "http://127.0.0.1:1")
    for args in (
        ("nonsense",), ("serve",), ("serve", *url), ("serve", *url, "--clients", "0"), ("serve", *url, "--clients", "x"),
        ("serve", *url, "--clients", "1", "--rate", "1"), ("serve", *url, "--clients", "1", "extra"),
        ("serve", *url, "--clients", "1", "--prompt-tokens", "9-3"), ("serve", *url, "--clients", "1", "--output-tokens", "exp"),
        ("serve", *url, "--clients", "1", "--endpoint", "x"), ("serve", *url, "--clients", "1", "--nonsense"),
        ("serve", *url, "--clients", "1", "--no-stream", "--slo-ttft", "3"), ("serve", *url, "--clients"),
        ("serve", *url, "--clients", "1", "--stream=3"), ("identity",), ("identity", *url, "--prompts", "0"),
        ("agents", *url), ("agents", *url, "--trace", __file__, "--times", "0"), ("agents", "--trace", __file__),
    ):
        out, err = run(*args, code=64)
        assert not out and err.startswith("weft-bench: ") and err.count("\n") == 1, (args, err)
    assert run("serve", "--url", "ftp://x", "--clients", 1, code=1)[1].count("\n") == 1
    assert run(code=64)[1].startswith("usage: ")
    assert run("agents", *url, "--trace", __file__, code=1)[1].count("\n") == 1, "no trace"
    for command in ("serve", "agents", "identity"):
        assert run(command, "--help")[0].startswith("usage: weft-bench " + command)


main(globals())
