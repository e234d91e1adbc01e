"""The readers of public traces: small files of each form, and what is damaged."""
import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import replay_trace

WEKA = {"id": "a", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": [
    {"t": 0.0, "type": "n", "in": 100, "out": 5, "hash_ids": [1, 2], "api_time": 2.0},
    {"t": 3.0, "type": "subagent", "agent_id": "x", "requests": [
        {"t": 0.0, "type": "n", "in": 64, "out": 2, "hash_ids": [1], "think_time": 0.0},
        {"t": 6.0, "type": "s", "in": 128, "out": 2, "hash_ids": [1, 9], "think_time": 3.0}]},
    {"t": 9.0, "type": "s", "in": 200, "out": 7, "hash_ids": [1, 2, 3, 4]}]}
MOONCAKE = [{"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
            {"timestamp": 2000, "session_id": "s", "input_length": 512, "output_length": 5, "hash_ids": [0]},
            {"delay": 500, "session_id": "s", "input_length": 700, "output_length": 6, "hash_ids": [0, 7]}]


def lines(rows):
    return "\n".join(json.dumps(r) for r in rows)


def test_forms():
    [(start, session)] = replay_trace.read(json.dumps(WEKA), "f")
    assert start == 0 and [t["in"] for t in session] == [100, 200] and session[1]["pause"] == 7.0, session
    [(at, child)] = session[1]["after"]
    assert at == 1.0  # after the answer, which came at 2.0
    assert [t["pause"] for t in child] == [0.0, 3.0] and child[1]["blocks"] == ["f/1", "f/9"] and not session[0]["after"]
    (first, alone), (second, pair) = replay_trace.read(lines(MOONCAKE), "g")
    assert (first, second) == (1.0, 2.0) and len(alone) == 1 and [t["pause"] for t in pair] == [0, 0.5] and pair[1]["size"] == 512


def test_equal_blocks_are_equal_tokens():
    args = type("Args", (), {"url": "http://h:1", "vocab": "10-99", "max_requests": 9, "tokens": 0.5})
    r = replay_trace.Replay(args)
    [(_, session)] = replay_trace.read(json.dumps(WEKA), "f")
    a, b = (r.prompt(t) for t in session)
    assert len(a) == 50 and len(b) == 100 and a == b[:50] and all(10 <= t < 99 for t in b) and a[:32] != a[32:]


def test_subagents_run_beside_the_pause():
    args = type("Args", (), {"url": "http://h:1", "vocab": "10-99", "max_requests": 9, "tokens": 1, "times": 1, "max_pause": 1.5})
    now, asked = [0.0], []
    clock = type("Clock", (), {"monotonic": lambda: now[0], "sleep": lambda s: now.__setitem__(0, now[0] + s)})
    thread = type("Thread", (), {"__init__": lambda self, target, args: setattr(self, "go", lambda: target(*args)), "start": lambda self: self.go(),
                                 "join": lambda self: None})
    r, real = replay_trace.Replay(args), (replay_trace.time, replay_trace.threading)
    r.ask = lambda t, name: asked.append((name, now[0]))
    replay_trace.time, replay_trace.threading = clock, type("Threading", (), {"Thread": thread})
    try:
        [(_, session)] = replay_trace.read(json.dumps(WEKA), "f")
        r.run(session, "s")
    finally:
        replay_trace.time, replay_trace.threading = real
    # The child begins 1 s after the answer and pauses 1.5 s instead of 3; the parent's 7 s are cut to 1.5, which are over then.
    assert asked == [("s", 0.0), ("s.1.0", 1.0), ("s.1.0", 2.5), ("s", 2.5)], asked


def test_goodput_and_energy():
    row = {"time_to_first_token": 100, "inter_token_latency": None}
    good = replay_trace.is_good
    assert good(row, 100, None) and good(row, None, 1) and not good(row, 99, None) and not good({**row, "inter_token_latency": 2}, 100, 1)
    used = replay_trace.used
    assert used({"a": (5, 10), "b": (1, None)}, {"a": (2, 10), "b": (4, None)}) == 10  # a began again at 10
    assert used({}, {"a": (1, None)}) is None and used({"a": (1, None)}, {"a": (1, None)}) == 0


def test_damaged_files_are_refused_with_a_reason():
    rng, refused = random.Random(1), 0
    for text in (json.dumps(WEKA), lines(MOONCAKE)):
        for _ in range(3000):
            data = list(text)
            for _ in range(rng.randrange(1, 4)):
                i = rng.randrange(len(data))
                data[i:i + rng.randrange(3)] = rng.choice(["", "-", "9" * 30, "[", "}", "null", '"', "1e999", "true", "\n"])
            try:
                replay_trace.read("".join(data), "f")
            except ValueError:
                refused += 1
    assert 2000 < refused < 6000, refused


for name, function in list(globals().items()):
    if name.startswith("test_"):
        function()
print("ok")
