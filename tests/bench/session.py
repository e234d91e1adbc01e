#!/usr/bin/env python3
"""How much of an agent's session a server computes again: twenty tool turns, and before three of them three subagents that
share instructions of their own, or fork from what the agent has, and return.

usage: session.py URL [--turns N] [--scale X] [--fork] [--max-tokens N] [--key KEY] [--restart COMMAND]

Any server with /v1/chat/completions, /apply-template and /tokenize (weftd, llama-server). Tokens that are new are those
behind the longest beginning that a prompt has in common with an earlier prompt and its answer; tokens that are computed are
those that the usage does not count as cached. --restart: run in the middle of the session, behind the subagents of that turn;
the session goes on when the server answers /health again.
"""
import argparse
import concurrent.futures
import json
import random
import subprocess
import time
import urllib.request

WORDS = ("the file test run error line table value index page token read write open state call list find build main "
         "return check length buffer string path name type field copy").split()


class Session:
    def __init__(self, post, seed=1, scale=1.0, max_tokens=60):
        """@post(path, body): the answer as an object. @scale: of all lengths."""
        self.post, self.scale, self.max_tokens = post, scale, max_tokens
        self.rng = random.Random(seed)
        self.seen = []  # token lists: prompts with their answers
        self.rows = []  # (prompt, cached, new) of each request

    def text(self, low, high):
        return " ".join(self.rng.choices(WORDS, k=int(self.rng.randint(low, high) * self.scale)))

    def tokens_of(self, text):
        return self.post("/tokenize", {"content": text, "add_special": False, "parse_special": True})["tokens"]

    def n_known(self, tokens):
        best = 0
        for seen in self.seen:
            n = 0
            for a, b in zip(tokens, seen):
                if a != b:
                    break
                n += 1
            best = max(best, n)
        return best

    def ask_all(self, chats):
        """One turn of each of @chats at the same time; their answers are appended."""
        prompts = [self.post("/apply-template", {"messages": m})["prompt"] for m in chats]
        new = []
        for prompt in prompts:  # of those that come together one computes what they share
            tokens = self.tokens_of(prompt)
            new.append(len(tokens) - self.n_known(tokens))
            self.seen.append(tokens)
        bodies = [{"messages": m, "max_tokens": self.max_tokens, "temperature": 0, "return_token_ids": True} for m in chats]
        with concurrent.futures.ThreadPoolExecutor(len(chats)) as pool:
            answers = list(pool.map(lambda b: self.post("/v1/chat/completions", b), bodies))
        for messages, prompt, n, a in zip(chats, prompts, new, answers):
            choice = a["choices"][0]
            content = choice["message"].get("content") or ""
            cached = (a["usage"].get("prompt_tokens_details") or {}).get("cached_tokens")
            if cached is None:
                cached = a["timings"]["cache_n"]
            self.rows.append((a["usage"]["prompt_tokens"], cached, n))
            if "token_ids" in choice:  # the text of random weights is not made of the same tokens
                self.seen.append(a["prompt_token_ids"] + choice["token_ids"])
            else:
                self.seen.append(self.tokens_of(prompt + content))
            messages.append({"role": "assistant", "content": content})

    def tool_result(self):
        return {"role": "user", "content": "<tool_response>\n" + self.text(20, 300) + "\n</tool_response>"}

    def subagents(self, parent, fork):
        system = {"role": "system", "content": "You search. " + self.text(500, 500)}
        begin = parent if fork else [system]
        chats = [begin + [{"role": "user", "content": f"Task {i}: " + self.text(20, 100)}] for i in range(3)]
        for turn in range(3):
            self.ask_all(chats)
            for m in chats:
                m.append(self.tool_result())
        return chats

    def run(self, n_turns=20, fork=False, restart=None):
        """@restart(): called once, in the middle."""
        messages = [{"role": "system", "content": "You are an agent. " + self.text(1500, 1500)},
                    {"role": "user", "content": self.text(50, 150)}]
        for turn in range(1, n_turns + 1):
            if restart and turn == n_turns // 2 + 1:
                restart()
            self.ask_all([messages])
            if turn % 5 == 0 and turn < n_turns:
                self.subagents(messages, fork)
            messages.append(self.tool_result())
        return self.total()

    def total(self):
        prompt, cached, new = (sum(r[i] for r in self.rows) for i in range(3))
        again = prompt - cached - new
        return {"requests": len(self.rows), "prompt_tokens": prompt, "new_tokens": new, "computed_tokens": prompt - cached,
                "again_of_prompt": again / prompt, "again_of_new": again / new}


def poster(url, key=None):
    def post(path, body):
        head = {"Content-Type": "application/json", **({"Authorization": "Bearer " + key} if key else {})}
        request = urllib.request.Request(url + path, json.dumps(body).encode(), head)
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)
    return post


def restarter(url, command):
    def restart():
        subprocess.run(command, shell=True, check=True)
        while True:
            try:
                urllib.request.urlopen(url + "/health", timeout=10).close()
                return
            except OSError:
                time.sleep(0.1)
    return restart


def main():
    p = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    p.add_argument("url")
    p.add_argument("--turns", type=int, default=20)
    p.add_argument("--scale", type=float, default=1)
    p.add_argument("--max-tokens", type=int, default=60)
    p.add_argument("--fork", action="store_true")
    p.add_argument("--key")
    p.add_argument("--restart")
    a = p.parse_args()
    url = a.url.rstrip("/")
    s = Session(poster(url, a.key), scale=a.scale, max_tokens=a.max_tokens)
    print(json.dumps(s.run(a.turns, a.fork, a.restart and restarter(url, a.restart))))


if __name__ == "__main__":
    main()
