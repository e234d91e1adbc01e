"""The prefix of a chat's next turn is computed ahead: the next turn finds it, and tokens do not change."""
import re

from weftd import DATA, Weftd, main, wait_until

ANSWER = "There are three of them: " + ", ".join(f"the {i}th is in drawer number {7 * i % 31}" for i in range(1, 40)) + "."
TEMPLATE = DATA / "templates" / "deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja"


def metric(d, name):
    text = d.request("GET", "/metrics")[2]
    found = re.search(rf"^{name}(?:{{.*}})? ([0-9.e+]+)$", text, re.M)
    return float(found.group(1)) if found else 0


def wait_for(d, name, least):
    """The worker's figures come ten times a second."""
    wait_until(f"{least} of {name}", lambda: metric(d, name) >= least)
    return metric(d, name)


def prompt_of(d, messages, **params):
    status, _, prompt = d.request("POST", "/v1/chat/completions/render", {"messages": messages, **params})
    assert status == 200, prompt
    return prompt["token_ids"]


def wait_ahead(d, messages, **params):
    """Waits until the prompt of the next turn, @messages, is computed ahead but for 64 tokens. It has the pages that begin the
    prompt of the first message."""
    first, prompt = prompt_of(d, messages[:1], **params), prompt_of(d, messages, **params)
    common = next((i for i, (a, b) in enumerate(zip(first, prompt)) if a != b), len(first))
    wait_for(d, "weft_prewarm_tokens_total", len(prompt) - 64 - common // 16 * 16)


def chat(d, messages, **params):
    status, _, value = d.request("POST", "/v1/chat/completions", {"messages": messages, "temperature": 0, **params})
    assert status == 200, value
    return value["choices"][0], value["usage"]


def two_turns(d, ahead, stop=None):
    """Runs a turn whose reasoning the template omits from the next prompt, and the next turn. Returns the
    second turn's number of prompt tokens, of cached tokens, and its output tokens. The answer ends before @stop."""
    messages = [{"role": "user", "content": "How many are there?"}]
    answer = ANSWER.split(stop)[0] if stop else ANSWER
    choice, usage = chat(d, messages, thinking_budget=40, structured_outputs={"choice": [ANSWER]}, **({"stop": stop} if stop else {}))
    assert choice["finish_reason"] == "stop" and choice["message"]["content"] == answer, choice
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 40, usage
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And now?"}]
    if ahead:
        wait_ahead(d, messages)
    second, usage = chat(d, messages, max_tokens=24, return_token_ids=True)
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], second["token_ids"]


def test_a_turn_finds_what_was_computed_ahead():
    got = {}
    for setting in ("on", "off"):
        with Weftd("--prewarm", setting, "--chat-template", TEMPLATE, "--page-tokens", "16") as d:
            got[setting] = two_turns(d, setting == "on")
            found = wait_for(d, "weft_prewarm_hit_tokens_total", 1) if setting == "on" else 0
            computed = metric(d, "weft_prewarm_tokens_total")
            assert 500 < found <= computed if setting == "on" else computed == 0, (setting, found, computed)
    prompt, cached, text = got["on"]
    assert cached >= prompt - 64, got["on"][:2]
    assert got["off"][1] < 64, got["off"][:2]
    assert text == got["off"][2]


def test_an_answer_that_a_stop_string_ended_is_a_turn_too():
    with Weftd("--chat-template", TEMPLATE, "--page-tokens", "16") as d:
        prompt, cached, _ = two_turns(d, True, stop=", the 32th")
        assert cached >= prompt - 64, (prompt, cached)


def test_tools_before_the_last_question_are_computed_ahead():
    """Mistral's template moves the tools behind the new question: without prewarming only the tokens before them are
    cached."""
    tools = [{"type": "function", "function": {"name": f"f{i}", "description": "does things with words " * 8, "parameters": {"type": "object", "properties": {}}}}
             for i in range(8)]
    messages = [{"role": "user", "content": "How many are there?"}]
    with Weftd("--chat-template", DATA / "templates" / "Mistral-Small-3.2-24B-Instruct-2506.jinja", "--page-tokens", "16") as d:
        choice, _ = chat(d, messages, tools=tools, temperature=1, seed=7, min_tokens=3, stop_token_ids=list(range(30, 150)))
        assert choice["finish_reason"] == "stop", choice
        messages += [{"role": "assistant", "content": choice["message"]["content"]}, {"role": "user", "content": "And now?"}]
        wait_ahead(d, messages, tools=tools)
        _, usage = chat(d, messages, tools=tools, max_tokens=4)
        assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 64, usage


main(globals())
