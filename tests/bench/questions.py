#!/usr/bin/env python3
"""How good are the answers that a server gives with the sampling parameters it uses by itself?

usage: questions.py [--seeds N] [--jobs N] [--json FILE] NAME=URL [NAME=URL ...]

Asks each server the 200 questions of questions.tsv once for each seed, without any sampling parameter, and prints the
share of right answers: those that the question's expression (in any case) matches. URL is the base of an
OpenAI-compatible API. A question that a server does not answer in three tries (it died, and something starts it again)
counts as wrong. `NAME=URL?temperature=0.8&top_k=40` adds parameters to each request, for comparison.
"""
import argparse
import concurrent.futures
import http.client
import json
import math
import pathlib
import re
import time
import urllib.parse
import urllib.request

QUESTIONS = pathlib.Path(__file__).with_name("questions.tsv")
MAX_TOKENS = 40
NO_ANSWER = "(no answer)"


def number(text):
    return float(text) if "." in text else int(text)


def ask(url, params, question, seed):
    """The text of the answer."""
    body = {
        "messages": [{"role": "user", "content": question + " Answer in one short sentence."}],
        "max_tokens": MAX_TOKENS,
        "seed": seed,
        **params,
    }
    request = urllib.request.Request(
        url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    for left in (2, 1, 0):
        try:
            with urllib.request.urlopen(request, timeout=600) as response:
                return json.load(response)["choices"][0]["message"]["content"] or ""
        except (OSError, http.client.HTTPException):
            if left:
                time.sleep(5)
    return NO_ANSWER


def interval(k, n):
    """Wilson's interval of 95 % for @k of @n."""
    z, p = 1.96, k / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--json")
    parser.add_argument("servers", nargs="+", metavar="NAME=URL")
    args = parser.parse_args()
    questions = [line.split("\t") for line in QUESTIONS.read_text().splitlines()]
    results = []
    for server in args.servers:
        name, _, url = server.partition("=")
        url, _, query = url.partition("?")
        params = {k: number(v) for k, v in urllib.parse.parse_qsl(query)}
        cases = [(q, expression, seed) for seed in range(1, args.seeds + 1) for q, expression in questions]
        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            answers = list(pool.map(lambda case: ask(url, params, case[0], case[2]), cases))
        right = [bool(re.search(expression, answer, re.I)) for (_, expression, _), answer in zip(cases, answers)]
        low, high = interval(sum(right), len(right))
        print(f"{name:24} {sum(right):4} of {len(right):4} right, {100 * sum(right) / len(right):5.1f} % "
              f"({100 * low:.1f} to {100 * high:.1f}), {time.monotonic() - start:.0f} s, "
              f"{answers.count(NO_ANSWER)} without an answer", flush=True)
        results.append({"name": name, "params": params, "right": sum(right), "n": len(right),
                        "answers": [[q, a, ok] for (q, _, _), a, ok in zip(cases, answers, right)]})
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1))


main()
