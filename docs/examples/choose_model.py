#!/usr/bin/env python3
"""Answers a question with a fast or a smart model, whichever a decision of the fast one names (POST /v1/decisions).

usage: choose_model.py [--url URL] [--fast NAME] [--smart NAME] [--above P] [--max-tokens N] [TEXT]

The fast model says how probable it is that the text needs several steps of reasoning; it writes nothing for that. Above P
(0.5), or where it gives no probability, the smart model answers. TEXT is read from stdin where it is missing. The model
that answered is named on stderr. WEFT_API_KEY is sent where it is set.
"""
import argparse
import json
import os
import sys
import urllib.error
import urllib.request

QUESTION = {"name": "hard", "type": "predicate",
            "instructions": "Does this task need several steps of reasoning, a plan or long code, so that a small model would fail?"}


def post(url, path, body):
    """The answer of @path as a value. urllib.error.HTTPError: it was refused."""
    headers = {"Content-Type": "application/json"}
    if os.environ.get("WEFT_API_KEY"):
        headers["Authorization"] = "Bearer " + os.environ["WEFT_API_KEY"]
    request = urllib.request.Request(url.rstrip("/") + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def choose(decision, fast, smart, above):
    """The name of the model for a text with this answer of /v1/decisions."""
    probability = decision["answers"][0].get("probability")  # missing: the model knows no label (type "refusal")
    return smart if probability is None or probability > above else fast


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="http://127.0.0.1:8080")
    p.add_argument("--fast", default="fast")
    p.add_argument("--smart", default="smart")
    p.add_argument("--above", type=float, default=0.5)
    p.add_argument("--max-tokens", type=int, default=1024)
    p.add_argument("text", nargs="?")
    args = p.parse_args()
    text = sys.stdin.read() if args.text is None else args.text
    try:
        decision = post(args.url, "/v1/decisions", {"model": args.fast, "input": text, "questions": [QUESTION]})
        model = choose(decision, args.fast, args.smart, args.above)
        print(model, file=sys.stderr)
        chat = post(args.url, "/v1/chat/completions", {"model": model, "max_tokens": args.max_tokens,
                                                       "messages": [{"role": "user", "content": text}]})
    except urllib.error.HTTPError as e:
        sys.exit(f"{e.url}: {e.code}: {e.read().decode(errors='replace')}")
    except OSError as e:
        sys.exit(f"{args.url}: {e}")
    print(chat["choices"][0]["message"]["content"] or "")


if __name__ == "__main__":
    main()
