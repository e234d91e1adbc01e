#!/usr/bin/env python3
"""What prewarmed turns save on published conversations of agents: the prompt tokens that a turn computes while its client waits,
with and without prewarming, if the worker is idle between turns.

usage: prewarm_turns.py TRACE.json --model FILE.gguf --template FILE [--template FILE ...] [--runs N] [--reasoning N]

TRACE.json is a list of {"traj": [message, ...]} in OpenAI's form, as tau-bench publishes its historical trajectories
(github.com/sierra-research/tau-bench, MIT). Nothing is generated: a daemon renders the prompts, and the tokens that are cached
behind a turn are those of the conversation with the recorded answer at its end, as the template prints it. With --reasoning N
each answer begins with N words of reasoning, which the client does not return. The vocabulary is that of FILE.gguf.
"""
import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import weftd  # noqa: E402

PAGE = 32


def schema_of(value):
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string"}
    if isinstance(value, dict):
        return {"type": "object", "properties": {k: schema_of(v) for k, v in value.items()}, "required": list(value)}
    if isinstance(value, list):
        return {"type": "array", "items": schema_of(value[0]) if value else {}}
    return {"type": kinds[type(value)]} if type(value) in kinds else {}


def tools_of(runs):
    """The functions that the runs call, with the arguments of their longest call."""
    longest = {}
    for run in runs:
        for message in run["traj"]:
            for call in message.get("tool_calls") or []:
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                if len(arguments) >= len(longest.get(name, {})):
                    longest[name] = arguments
    return [{"type": "function", "function": {"name": n, "description": n.replace("_", " "), "parameters": schema_of(a)}} for n, a in sorted(longest.items())]


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def pages(n):
    return n // PAGE * PAGE


class Renderer:
    def __init__(self, d, tools):
        self.d, self.tools = d, tools

    def __call__(self, messages, **more):
        status, _, value = self.d.request("POST", "/v1/chat/completions/render", {"messages": messages, "tools": self.tools, **more})
        assert status == 200, value
        return value["token_ids"]


def turn(render, messages, answer, reasoning):
    """(tokens that are cached behind the turn, tokens that prewarming adds to them) for the next turn."""
    said = {**answer, "reasoning_content": "so " * reasoning} if reasoning else answer
    written = render(messages + [said], add_generation_prompt=False)
    calls = answer.get("tool_calls")
    guesses = []
    for word in ("alpha", "7 omega"):  # with nothing in common, as in api/generation/prewarm.c
        nexts = {"role": "tool", "tool_call_id": calls[0]["id"], "content": word} if calls else {"role": "user", "content": word}
        guesses.append(render(messages + [answer, nexts]))
    certain = guesses[0][: common(*guesses)]
    worth = pages(len(certain)) > pages(common(written, certain))
    return written, certain if worth else []


def measure(render, runs, reasoning):
    """(turns, prompt tokens, computed without, computed with, turns that gain) of all turns behind the first of each run."""
    n = total = without = ahead = gained = 0
    for run in runs:
        messages, written, certain = [], None, []
        for message in run["traj"]:
            message = {k: v for k, v in message.items() if k != "name" and v is not None}
            if message["role"] == "assistant":
                prompt = render(messages)
                if written is not None:
                    cached = pages(min(common(written, prompt), len(prompt) - 1))
                    more = max(cached, pages(min(common(certain, prompt), len(prompt) - 1)))
                    n, total, gained = n + 1, total + len(prompt), gained + (more > cached)
                    without, ahead = without + len(prompt) - cached, ahead + len(prompt) - more
                written, certain = turn(render, messages, message, reasoning)
            messages.append(message)
    return n, total, without, ahead, gained


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--template", action="append", type=pathlib.Path, required=True)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--reasoning", type=int, default=0)
    a = parser.parse_args()
    runs = json.loads(a.trace.read_text())[: a.runs]
    for template in a.template:
        with weftd.Weftd("--chat-template", template, model=a.model) as d:
            n, total, without, ahead, gained = measure(Renderer(d, tools_of(runs)), runs, a.reasoning)
        print(f"{template.stem}, reasoning {a.reasoning}: {n} turns with {total} prompt tokens; computed while a client waits {without}, "
              f"with prewarming {ahead} ({100 * (1 - ahead / without):.0f} % less); {gained} turns gain", flush=True)


main()
