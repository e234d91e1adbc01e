"""Structured output and forced tool calls of a model with random weights: what it writes fits what was asked, at any
temperature, streamed or not, with speculation or without; what max_tokens cuts off is the beginning of it."""
import json
import random
import re

from weftd import Weftd, main

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
    """Raises an AssertionError where value is not valid."""
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
    return value["choices"][0]


def chat_stream(d, **fields):
    """The choice that the chunks of a stream make."""
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
                cut = chat(d, response_format=schema_format(schema), temperature=t, seed=5, max_tokens=n)
                assert cut["finish_reason"] == "length" and text.startswith(cut["message"]["content"]), (text, cut)
            cut = chat(d, tools=[tool("f", schema)], tool_choice="required", temperature=t, seed=5, max_tokens=14)
            assert cut["finish_reason"] == "length", cut


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
