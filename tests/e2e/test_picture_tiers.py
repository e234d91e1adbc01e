"""Prompts with pictures beyond the device's pages: on disk across a restart, in the next turn, and in every function
that reads prompts as tokens."""
import json
import tempfile
import time

from pictures import counted, picture, pictures_total, post, settled, started, uri
from weftd import main, recomputed, wait_until

PICTURES = ("resize/bicubic-224x128.png", "resize/source-97x61.png")


def conversation(text, *files):
    parts = [{"type": "image_url", "image_url": {"url": uri(f)}} for f in files or PICTURES]
    return [{"role": "user", "content": [{"type": "text", "text": "word " * 60}, *parts, {"type": "text", "text": text}]}]


def chat(d, messages, **more):
    return post(d, "/v1/chat/completions", {"temperature": 0, "max_tokens": 12, "messages": messages, **more})


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def found(d, answer):
    """Returns how many tokens of the prompt were cached: loaded ones, and those that were computed again because that
    looked faster or reading took too long."""
    return cached(answer) + recomputed(d)


def check_restart(name, *flags):
    tail = "word " * 80  # behind the pictures
    with tempfile.TemporaryDirectory() as folder:
        disk = ("--kv-disk", f"{folder}/kv", "--kv-disk-size", "64M", "--host-kv-memory", "32M", *flags)
        with started(name, *disk) as d:
            first = chat(d, conversation(tail + "a"))
            wait_until("pages are written", lambda: d.stats()["worker"]["disk_saved_tokens"] >= first["usage"]["prompt_tokens"] // 32 * 32 - 64)
            whole = first["usage"]["prompt_tokens"]
            known = cached(chat(d, conversation(tail + "a")))
        with started(name, *disk) as d:
            again = chat(d, conversation(tail + "a"))
            assert again["choices"][0]["message"] == first["choices"][0]["message"], (name, again, first)
            wait_until(f"{name}: {known} of {whole} tokens were there, as far as {again['usage']}",
                       lambda: found(d, again) >= max(known - 64, whole - 119))
            other = chat(d, conversation(tail + "a", PICTURES[1], PICTURES[0]))  # the same pictures, exchanged
            assert cached(other) < 300 < whole - 120, (name, other["usage"])
            settled(d, 2)  # both by this request; the one before computed none


def test_a_restart_finds_prefixes_behind_pictures():
    check_restart("qwen3vl")
    check_restart("gemma3")  # tokens of one picture attend to each other
    check_restart("qwen35")  # a model with recurrent states


def test_a_restart_without_the_projector_finds_none():
    with tempfile.TemporaryDirectory() as folder:
        disk = ("--kv-disk", f"{folder}/kv", "--kv-disk-size", "64M", "--host-kv-memory", "32M")
        with started("qwen3vl", *disk) as d:
            chat(d, conversation("word " * 80))
            wait_until("pages are written", lambda: d.stats()["worker"]["disk_saved_tokens"] >= 96)
        with started("qwen3vl", *disk, "--mmproj", "none") as d:
            assert chat(d, [{"role": "user", "content": "word " * 60}])["choices"]
            assert counted(d, "disk_bad_pages_total") == 0


def test_nothing_is_decoded_or_encoded_where_the_pages_are():
    with started("qwen3vl", "--picture-cache", "0") as d:
        first = chat(d, conversation("word " * 80 + "a"))
        settled(d, 2)
        for end in "bcd":
            answer = chat(d, conversation("word " * 80 + end))
            assert cached(answer) > first["usage"]["prompt_tokens"] - 120, answer["usage"]
        settled(d, 2)
        assert pictures_total(d)[0] == 2


def test_every_reader_of_prompts_counts_the_same():
    """Routes that render or count a prompt and generate nothing agree."""
    with started("qwen3vl") as d:
        messages = conversation("what is it?")
        n = chat(d, messages)["usage"]["prompt_tokens"]
        rendered = post(d, "/v1/chat/completions/render", {"messages": messages})
        ids = (rendered[0] if isinstance(rendered, list) else rendered)
        assert len(ids.get("token_ids") or ids["prompt_token_ids"]) == n, rendered
        tokens = post(d, "/tokenize", {"messages": messages})
        assert tokens.get("count", len(tokens["tokens"])) == n, tokens
        blocks = [{"type": "text", "text": "word " * 60}, *({"type": "image", "source": {"type": "base64", "media_type": "image/png",
                  "data": picture(f)}, "cache_control": {"type": "ephemeral"}} for f in PICTURES), {"type": "text", "text": "what is it?"}]
        a = post(d, "/v1/messages/count_tokens", {"model": "m", "messages": [{"role": "user", "content": blocks}]})
        assert a["input_tokens"] == n, (a, n)
        said = post(d, "/v1/messages", {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": blocks}]})["usage"]
        assert sum(said.get(k) or 0 for k in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")) == n, (said, n)


def input_items(text):
    return [{"role": "user", "content": [{"type": "input_image", "image_url": uri(PICTURES[1])}, {"type": "input_text", "text": text}]}]


def test_responses_keep_pictures():
    """Stored answers, conversations, compaction, screenshots of a computer call and of a function."""
    some = {"model": "m", "temperature": 0, "max_output_tokens": 8}
    with started("qwen3vl") as d:
        first = post(d, "/v1/responses", {**some, "input": input_items("one")})
        whole = first["usage"]["input_tokens"]
        next_one = post(d, "/v1/responses", {**some, "previous_response_id": first["id"], "input": "two"})
        assert next_one["usage"]["input_tokens"] > whole, (first["usage"], next_one["usage"])
        listed = d.request("GET", f"/v1/responses/{first['id']}/input_items")[2]["data"]
        assert "input_image" in json.dumps(listed), listed
        c = post(d, "/v1/conversations", {"items": [{"type": "message", **input_items("one")[0]}]})
        talked = post(d, "/v1/responses", {**some, "conversation": c["id"], "input": "two"})
        assert talked["usage"]["input_tokens"] > whole, talked["usage"]
        packed = post(d, "/v1/responses/compact", {"model": "m", "input": input_items("one")})
        assert packed["usage"]["input_tokens"] > whole, packed["usage"]
        counted_ = post(d, "/v1/responses/input_tokens", {"model": "m", "input": input_items("one")})
        assert counted_["input_tokens"] == whole, counted_
        for item, output in (
                ({"type": "computer_call", "call_id": "c", "id": "cu_1", "action": {"type": "screenshot"}, "pending_safety_checks": [],
                  "status": "completed"},
                 {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": uri(PICTURES[1])}}),
                ({"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
                 {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": uri(PICTURES[1])}]})):
            with_it = post(d, "/v1/responses", {**some, "input": [{"role": "user", "content": "look"}, item, output]})
            assert with_it["usage"]["input_tokens"] > 30, (item, with_it["usage"])
        assert pictures_total(d)[0] == 1, pictures_total(d)


def test_the_next_turn_computes_no_picture_again():
    """The next turn may be prewarmed, which needs no pixels."""
    with started("qwen3vl", "--picture-cache", "0") as d:
        messages = conversation("word " * 40)
        a = chat(d, messages, max_tokens=64)
        time.sleep(0.5)
        more = messages + [a["choices"][0]["message"], {"role": "user", "content": "go on"}]
        assert chat(d, more)["choices"]
        settled(d, 2)


main(globals())
