"""Asks weftd through OpenAI's, Anthropic's and Ollama's libraries for Python. usage: checks.py URL NAME

NAME is one of the functions below; the model is called tiny. Prints the library's version.
"""
import importlib.metadata
import json
import sys

URL = sys.argv[1]
HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"],
          "additionalProperties": False}


def raised(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def openai_chat():
    import openai
    client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    ask = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "seed": 1}
    whole = client.chat.completions.create(**ask)
    assert whole.usage.completion_tokens == 12 and whole.choices[0].finish_reason == "length", whole
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content and chunks[-1].usage == whole.usage, (text, whole)
    held = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=60, response_format={
        "type": "json_schema", "json_schema": {"name": "one", "strict": True, "schema": SCHEMA}})
    assert 0 <= json.loads(held.choices[0].message.content)["a"] <= 9, held
    parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    called = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=200, tool_choice="required", tools=[
        {"type": "function", "function": {"name": "look", "description": "Looks", "parameters": parameters}}])
    assert called.choices[0].message.tool_calls[0].function.name == "look", called
    error = raised(openai.NotFoundError, lambda: client.chat.completions.create(model="other", messages=HELLO))
    assert error.code == "model_not_found", error
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert len(client.embeddings.create(model="tiny", input=["a", "b"]).data) == 2


def openai_responses():
    import openai
    client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    whole = client.responses.create(model="tiny", input="Hello", max_output_tokens=12, temperature=0)
    assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens", whole
    events = list(client.responses.create(model="tiny", input="Hello", max_output_tokens=12, temperature=0, stream=True))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == whole.output_text and events[-1].type == "response.incomplete", (text, whole)
    later = client.responses.create(model="tiny", input="More", previous_response_id=whole.id, max_output_tokens=4)
    assert later.usage.input_tokens > whole.usage.input_tokens, later


def anthropic_messages():
    import anthropic
    client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
    # The library's calls no longer have a temperature; both answers take the likeliest tokens.
    ask = {"model": "tiny", "max_tokens": 12, "messages": HELLO, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**ask)
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 12, whole
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == last.content[0].text == whole.content[0].text, (text, last, whole)
    counted = client.messages.count_tokens(model="tiny", messages=HELLO)
    usage = whole.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0), (counted, usage)
    raised(anthropic.NotFoundError, lambda: client.messages.create(**{**ask, "model": "other"}))


def ollama_chat():
    import ollama
    client = ollama.Client(host=URL)
    options = {"num_predict": 12, "seed": 1, "temperature": 0.8}
    assert [m.model for m in client.list().models] == ["tiny"], client.list()
    assert "completion" in client.show("tiny").capabilities
    whole = client.chat(model="tiny", messages=HELLO, options=options)
    assert whole.done_reason == "length" and whole.eval_count == 12, whole
    parts = list(client.chat(model="tiny", messages=HELLO, options=options, stream=True))
    assert "".join(p.message.content for p in parts) == whole.message.content, whole
    held = client.chat(model="tiny", messages=HELLO, format=SCHEMA, options={**options, "num_predict": 60})
    assert 0 <= json.loads(held.message.content)["a"] <= 9, held
    assert len(client.embed(model="tiny", input=["a", "b"]).embeddings) == 2
    assert raised(ollama.ResponseError, lambda: client.chat(model="other", messages=HELLO)).status_code == 404


if __name__ == "__main__":
    name = sys.argv[2]
    library = name.split("_")[0]
    globals()[name]()
    print("#", library, importlib.metadata.version(library))
