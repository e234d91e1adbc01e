"""Structured output and forced tool calls of a model with random weights: the output matches the schema at any
temperature, streamed or not, with speculation or without; output that max_tokens truncates is a valid prefix."""
import json
import os
import pathlib
import random
import re
import subprocess

from weftd import BUILD, Weftd, main, parallel, tiny_model

FLAGS = ("--max-context", "8192")


# ---- a small validator

TYPES = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
}


def check(schema, value, root=None):
    """Raises an AssertionError if the value is not valid."""
    root = root or schema
    if "$ref" in schema:
        target = root
        for step in schema["$ref"][2:].split("/"):
            target = target[step]
        check(target, value, root)
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(TYPES[t](value) for t in types), (schema, value)
    if "enum" in schema:
        assert value in schema["enum"], (schema, value)
    if isinstance(value, str):
        assert schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**9), (schema, value)
        assert re.search(schema.get("pattern", ""), value), (schema, value)
    if TYPES["number"](value):
        assert schema.get("minimum", value) <= value <= schema.get("maximum", value), (schema, value)
    if isinstance(value, list):
        assert schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**9), (schema, value)
        for item in value:
            check(schema.get("items", {}), item, root)
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        assert set(schema.get("required", [])) <= set(value), (schema, value)
        for key, item in value.items():
            assert key in properties or schema.get("additionalProperties", True), (schema, key)
            check(properties.get(key, {}), item, root)


def random_schema(r, depth=2):
    kind = r.randrange(7 if depth else 4)
    if kind == 0:
        low = r.randrange(-100, 100)
        return {"type": "integer", "minimum": low, "maximum": low + r.randrange(500)}
    if kind == 1:
        return {"type": "string", "maxLength": r.randrange(1, 9)}
    if kind == 2:
        return {"enum": r.sample(["red", "green", 1, None, True, "blue \"1\""], 3)}
    if kind == 3:
        return r.choice([{"type": "boolean"}, {"type": ["null", "boolean"]}, {"$ref": "#/$defs/code"}])
    if kind == 4:
        return {"type": "array", "items": random_schema(r, depth - 1), "minItems": r.randrange(2), "maxItems": 3}
    return random_object(r, depth - 1)


def random_object(r, depth):
    names = r.sample(["a", "b", "name", "kind_of", "é"], r.randrange(1, 5))
    return {
        "type": "object",
        "properties": {n: random_schema(r, depth) for n in names},
        "required": r.sample(names, r.randrange(len(names) + 1)),
        "additionalProperties": False,
    }


def random_root(r):
    return {**random_object(r, 2), "$defs": {"code": {"type": "string", "pattern": "^[A-F]{2}-[0-9]{1,3}$"}}}


# ---- requests

def chat(d, **fields):
    status, _, value = d.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Go."}], **fields})
    assert status == 200, (status, value)
    prompt = {"prompt_token_ids": value["prompt_token_ids"]} if "prompt_token_ids" in value else {}
    return {**value["choices"][0], **prompt}


def chat_stream(d, **fields):
    """Returns the choice that the chunks of a stream build."""
    message, finish = {"content": "", "calls": []}, None
    for chunk in d.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "Go."}], **fields}):
        choice = chunk["choices"][0]
        finish = choice["finish_reason"] or finish
        message["content"] += choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls", []):
            if "id" in call:
                message["calls"].append([call["function"]["name"], ""])
            message["calls"][call["index"]][1] += call["function"]["arguments"]
    return message, finish


def calls_of(choice):
    return [[c["function"]["name"], c["function"]["arguments"]] for c in choice["message"].get("tool_calls", [])]


def tool(name, schema, **more):
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


# ---- tests

def test_output_fits_the_schema():
    r = random.Random(1)
    with Weftd(*FLAGS) as d:
        for i in range(24):
            schema = random_root(r)
            fields = {"response_format": schema_format(schema), "temperature": i % 2, "seed": i, "max_tokens": 600}
            choice = chat(d, **fields)
            if choice["finish_reason"] == "stop":
                check(schema, json.loads(choice["message"]["content"]))
            message, finish = chat_stream(d, **fields)
            assert (message["content"], finish) == (choice["message"]["content"], choice["finish_reason"])


def test_a_cut_is_the_beginning():
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 30}, "b": {"type": "integer"}},
              "required": ["a", "b"], "additionalProperties": False}
    with Weftd(*FLAGS) as d:
        for t in (0, 1):
            whole = chat(d, response_format=schema_format(schema), temperature=t, seed=5, max_tokens=600)
            text = whole["message"]["content"]
            check(schema, json.loads(text))
            for n in (1, 2, 5, 9):
                cut = chat(d, response_format=schema_format(schema), temperature=t, seed=5, max_tokens=n, complete_output=False)
                assert cut["finish_reason"] == "length" and text.startswith(cut["message"]["content"]), (text, cut)
            cut = chat(d, tools=[tool("f", schema)], tool_choice="required", temperature=t, seed=5, max_tokens=14, complete_output=False)
            assert cut["finish_reason"] == "length", cut


def test_a_text_that_length_ends_is_whole():
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "integer"}, "minItems": 2}},
              "required": ["a", "b"], "additionalProperties": False}
    form, forced = {"response_format": schema_format(schema)}, {"tools": [tool("f", schema)], "tool_choice": "required"}
    n_length = 0
    with Weftd(*FLAGS) as d:
        def refusal(fields):
            status, _, value = d.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Go"}], "max_tokens": 3, **fields})
            assert status == 400 and value["error"]["code"] == "max_tokens_too_small" and value["error"]["param"] == "max_tokens", value
            return int(re.search(r"takes (\d+) tokens", value["error"]["message"])[1])

        def one(job):
            kind, least, i = job
            fields = {**(form if kind == 0 else forced), "temperature": i % 2, "seed": i, "max_tokens": least + i}
            if i % 3 == 0:
                fields["thinking_budget"] = i
            got = chat(d, **fields)
            if kind == 0:
                check(schema, json.loads(got["message"]["content"]))
            else:
                assert got["message"]["tool_calls"], got
                for call in got["message"]["tool_calls"]:
                    check(schema, json.loads(call["function"]["arguments"]))
            return got["finish_reason"] == "length"

        jobs = [(kind, refusal(fields), i) for kind, fields in enumerate((form, forced)) for i in range(24)]
        n_length = sum(parallel([lambda job=job: one(job) for job in jobs]))
    assert n_length >= 5, n_length


def test_regex_and_choice_and_grammar():
    kinds = [
        ({"structured_outputs": {"regex": "[a-f]{3,9}-[0-9]{2}"}}, re.compile(r"[a-f]{3,9}-[0-9]{2}").fullmatch),
        ({"guided_choice": ["yes", "no", "maybe not"]}, ["yes", "no", "maybe not"].__contains__),
        ({"guided_grammar": 'root ::= item (", " item){1,3}\nitem ::= [a-z]{1,4}'},
         re.compile(r"[a-z]{1,4}(, [a-z]{1,4}){1,3}").fullmatch),
        ({"response_format": {"type": "json_object"}, "guided_whitespace_pattern": None},
         lambda text: isinstance(json.loads(text), dict)),
    ]
    with Weftd(*FLAGS) as d:
        for fields, fits in kinds:
            for seed in range(4):
                choice = d.complete("So:", temperature=seed % 2, seed=seed, max_tokens=400, **fields)
                if choice["finish_reason"] == "stop":
                    assert fits(choice["text"]), (fields, choice)
                else:
                    assert "response_format" in fields, choice


def test_tool_calls_are_what_was_asked():
    r = random.Random(2)
    with Weftd(*FLAGS) as d:
        for i in range(16):
            schemas = {"first": random_root(r), "second": random_root(r), "none": {"type": "object", "properties": {}}}
            names = list(schemas)
            wanted = names[i % 3]
            fields = {"tools": [tool(n, s, strict=True) for n, s in schemas.items()], "temperature": i % 2, "seed": i,
                      "max_tokens": 1500, "parallel_tool_calls": i % 4 == 3}
            if i % 3 == 0:
                fields["tool_choice"] = "required"
            else:
                fields["tool_choice"] = {"type": "function", "function": {"name": wanted}}
            choice = chat(d, **fields)
            calls = calls_of(choice)
            whole = choice["finish_reason"] == "tool_calls"
            assert calls and not (whole and choice["message"]["content"]), choice
            for name, arguments in calls if whole else calls[:-1]:
                assert i % 3 == 0 or name == wanted, choice
                check(schemas[name], json.loads(arguments))
            assert fields["parallel_tool_calls"] or len(calls) == 1, choice
            message, finish = chat_stream(d, **fields)
            assert (message["calls"], finish) == (calls, choice["finish_reason"])


def test_what_is_not_enforced_is_said():
    """A keyword that no grammar holds is left out alone; header, log and weftctl say so, in every API."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"\bx"}, "n": {"type": "integer"}},
              "required": ["a", "n"], "additionalProperties": False}
    function = {"name": "get", "parameters": schema}
    chat_body = {"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function", "function": function}]}
    forced = {**chat_body, "tool_choice": "required", "max_tokens": 400, "seed": 1}
    bodies = {
        "/v1/chat/completions": forced,
        "/v1/messages": {**chat_body, "tools": [{"name": "get", "input_schema": schema}], "max_tokens": 400, "model": "x",
                         "tool_choice": {"type": "any"}},
        "/v1/responses": {"input": "hi", "tools": [{"type": "function", **function, "strict": False}]},
        "/api/chat": {**chat_body, "stream": False, "options": {"num_predict": 20}},
    }
    with Weftd(*FLAGS) as d:
        model = d.request("GET", "/v1/models")[2]["data"][0]["id"]
        for path, body in bodies.items():
            for stream in (False, True):
                connection = d.connect()
                connection.request("POST", path, json.dumps({**body, "model": model, "stream": stream}), {"Content-Type": "application/json"})
                response = connection.getresponse()
                text = response.read()
                assert response.status == 200, text
                assert response.getheader("X-Weft-Loosened") == "get#/properties/a/pattern", (path, stream)
                name = response.getheader("X-Request-Id") or response.getheader("request-id")
                story = d.admin_request("GET", f"/requests/{name}/why")[1]
                assert story["not_enforced"] == "get#/properties/a/pattern", story
                shown = subprocess.run([BUILD / "weftctl", "--socket", d.admin, "why", name], capture_output=True, text=True).stdout
                assert "get#/properties/a/pattern" in shown, shown
                assert f"schema_loosened id={name} " in d.log
        call = calls_of(chat(d, **{k: v for k, v in forced.items() if k != "messages"}))[0]
        arguments = json.loads(call[1])
        assert set(arguments) == {"a", "n"} and isinstance(arguments["n"], int), call
        function["strict"] = True
        status, _, error = d.request("POST", "/v1/chat/completions", forced)
        assert status == 400 and "#/properties/a/pattern" in error["error"]["message"], error


def test_a_call_that_the_model_begins_is_whole():
    """With tool_choice auto: the bias makes the model begin calls; only the grammar keeps them valid."""
    r = random.Random(3)
    n_calls = 0
    with Weftd(*FLAGS) as d:
        _, _, value = d.request("POST", "/tokenize", {"prompt": "<tool_call>", "add_special_tokens": False})
        assert value["count"] == 1, value
        bias = {str(value["tokens"][0]): 100}
        for i in range(8):
            schemas = {"first": random_root(r), "second": random_root(r)}
            fields = {"tools": [tool(n, s) for n, s in schemas.items()], "temperature": 1, "seed": i, "max_tokens": 500,
                      "logit_bias": bias, "parallel_tool_calls": i % 2 == 0}
            choice = chat(d, **fields)
            calls = calls_of(choice)
            whole = choice["finish_reason"] == "tool_calls"
            for name, arguments in calls if whole else calls[:-1]:
                check(schemas[name], json.loads(arguments))
                n_calls += 1
            if i % 2:
                assert whole and len(calls) == 1 and not choice["message"]["content"], choice
            message, finish = chat_stream(d, **fields)
            assert (message["calls"], finish) == (calls, choice["finish_reason"])
    assert n_calls >= 8, n_calls


def test_a_prediction_is_only_a_hint():
    with Weftd(*FLAGS) as d:
        plain = d.complete("Once upon", temperature=0, max_tokens=200)
        for text in (plain["text"], "something else " * 50):
            hinted = d.complete("Once upon", temperature=0, max_tokens=200, prediction={"type": "content", "content": text})
            details = hinted["usage"]["completion_tokens_details"]
            assert hinted["text"] == plain["text"], (hinted, plain)
            assert details["accepted_prediction_tokens"] >= 0 and details["rejected_prediction_tokens"] >= 0


THINKING = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor -%}"
    "{{ '<|im_start|>assistant\\n<think>\\n' }}{% if false %}<tool_call> </think>{% endif %}{# "
)


def thinking_model():
    """Returns the tiny model with a chat template that opens reasoning, written over its own template, which is
    longer."""
    data = pathlib.Path(tiny_model()).read_bytes()
    at = data.index(b"tokenizer.chat_template") + len(b"tokenizer.chat_template") + 4
    length = int.from_bytes(data[at : at + 8], "little")
    text = (THINKING.ljust(length - 2) + "#}").encode()
    assert len(text) == length
    path = BUILD / "tests" / "models" / f"tiny-thinking-{os.getpid()}.gguf"
    path.write_bytes(data[: at + 8] + text + data[at + 8 + length :])
    return path


def test_thinking_ends_at_its_budget():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
    path = thinking_model()
    try:
        for speculation in ("auto", "off"):
            with Weftd(*FLAGS, "--speculation", speculation, model=str(path)) as d:
                n = 25 + d.request("POST", "/tokenize", {"prompt": "</think>\n\n", "add_special_tokens": False})[2]["count"]
                for t in (0, 1):
                    fields = {"temperature": t, "seed": 4, "max_tokens": 90, "return_token_ids": True, "min_tokens": 90}
                    free = chat(d, **fields)
                    assert not free["message"]["content"], free
                    cut = chat(d, thinking_budget=25, **fields)
                    assert cut["token_ids"][:25] == free["token_ids"][:25], (free, cut)
                    assert free["message"]["reasoning_content"].startswith(cut["message"]["reasoning_content"]), (free, cut)
                    assert cut["message"]["content"], cut
                    assert parallel([lambda: chat(d, thinking_budget=25, **fields)] * 4) == [cut] * 4
                    if t == 0:  # the model's output follows these tokens
                        on = d.complete(cut["prompt_token_ids"] + cut["token_ids"][:n], temperature=0, max_tokens=90 - n, min_tokens=90 - n)
                        assert on["token_ids"] == cut["token_ids"][n:], (on, cut)
                    whole = chat(d, thinking_budget=7, response_format=schema_format(schema), temperature=t, seed=4, max_tokens=400)
                    check(schema, json.loads(whole["message"]["content"]))
                    assert whole["finish_reason"] == "stop" and whole["message"]["reasoning_content"], whole
    finally:
        path.unlink()


def test_speculation_changes_nothing():
    schema = {"type": "array", "items": {"enum": ["alpha beta", "alpha gamma", "alpha beta gamma"]}, "minItems": 30, "maxItems": 40}
    texts = []
    for speculation in ("auto", "off"):
        with Weftd(*FLAGS, "--speculation", speculation) as d:
            texts.append([])
            for t in (0, 0.7):
                one = chat(d, response_format=schema_format(schema), temperature=t, seed=9, max_tokens=900)
                call = chat(d, tools=[tool("f", {"type": "object", "properties": {"list": schema}, "required": ["list"]})],
                            tool_choice="required", parallel_tool_calls=False, temperature=t, seed=9, max_tokens=900)
                check(schema, json.loads(one["message"]["content"]))
                check(schema, json.loads(calls_of(call)[0][1])["list"])
                texts[-1] += [one["message"]["content"], calls_of(call)]
    assert texts[0] == texts[1]


def test_a_killed_worker_changes_nothing():
    """The new worker parses the existing output and continues, so text under a grammar and calls do not change."""
    schema = {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 60, "maxItems": 70}
    with Weftd(*FLAGS) as d:
        fields = {"response_format": schema_format(schema), "temperature": 1, "seed": 6, "max_tokens": 1500}
        forced = {"tools": [tool("f", {"type": "object", "properties": {"list": schema}, "required": ["list"]})],
                  "tool_choice": "required", "parallel_tool_calls": False, "temperature": 1, "seed": 6, "max_tokens": 1500}
        whole, call = chat(d, **fields), chat(d, **forced)
        check(schema, json.loads(whole["message"]["content"]))
        for body in (fields, forced):
            text, n_chunks, killed = "", 0, 0
            for chunk in d.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "Go."}], **body}):
                delta = chunk["choices"][0]["delta"]
                text += delta.get("content") or "".join(c["function"]["arguments"] for c in delta.get("tool_calls", []))
                n_chunks += 1
                if n_chunks in (12, 60):
                    killed += d.kill_worker()
            want = whole["message"]["content"] if body is fields else calls_of(call)[0][1]
            assert killed and text == want, (killed, text, want)


def test_what_cannot_be_held_is_named():
    with Weftd(*FLAGS) as d:
        for fields, param in (
            ({"response_format": schema_format({"not": {}})}, "response_format.json_schema.schema"),
            ({"tools": [tool("f", {"not": {}}, strict=True)]}, "tools[0].function.parameters"),
            ({"guided_regex": "("}, "guided_regex"),
        ):
            body = {"messages": [{"role": "user", "content": "Go."}], **fields}
            status, _, value = d.request("POST", "/v1/chat/completions", body)
            assert status == 400 and value["error"]["param"] == param, value


if __name__ == "__main__":
    main(globals())
