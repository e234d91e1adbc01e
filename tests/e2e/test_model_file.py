"""A model's file that changes while the daemon runs, and a worker that can no longer load it."""
import json
import os
import shutil
import tempfile
import time

from golden_models import golden
from weftd import BACKEND, Weftd, libraries_of, main, synth, tiny_model, wait_until

FLAGS = ("--max-context", "2048", "--kv-pages", "256", "--threads", "2")
ASK = {"max_tokens": 24, "ignore_eos": True, "temperature": 0}


def other_model():
    return synth("tiny-qwen3-q4_k_m-seed2", "--arch", "qwen3", "--shape", "tiny", "--format", "Q4_K_M", "--seed", "2")


def overwrite(path):
    with open(other_model(), "rb") as source, open(path, "r+b") as out:
        out.write(source.read())
        out.truncate()


def zero(path):
    size = os.path.getsize(path)
    with open(path, "r+b") as out:
        out.write(b"\0" * size)


def cut_off(path):
    os.truncate(path, 0)


def check_spoiled(spoil, *flags):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        shutil.copy(tiny_model(), path)
        with Weftd(*FLAGS, *flags, model=path) as d:
            before = d.complete("tell me more", **ASK)["token_ids"]
            spoil(path)
            assert d.complete("tell me more", **ASK)["token_ids"] == before, "the same request, other tokens"
            assert d.request("POST", "/tokenize", {"prompt": "words never seen", "return_token_strs": True})[0] == 200
            assert d.request("GET", "/props")[0] == 200
            wait_until("the change", lambda: " model_changed " in d.log)
            starts = d.stats()["worker"]["starts"]
            d.kill_worker()
            status, headers, value = d.request("POST", "/v1/completions", {"prompt": "hi", **ASK})
            assert status == 503 and value["error"]["code"] == "model_unavailable", (status, value)
            assert "was changed" in value["error"]["message"] and int(headers["Retry-After"]) > 0, (value, headers)
            status, _, health = d.request("GET", "/health")
            assert status == 503 and health["state"] == "failed" and "was changed" in health["reason"], health
            assert d.admin_request("GET", "/health")[1]["health"] == "failed"
            assert d.stats()["worker"]["starts"] == starts, "no worker is started on another file"


def test_an_overwritten_model_is_served_from_memory_and_then_not_at_all():
    check_spoiled(overwrite)


def test_a_zeroed_model_too():
    check_spoiled(zero)


def test_a_model_that_is_cut_off_too():
    check_spoiled(cut_off)


def test_so_is_one_that_the_reference_computes():
    if BACKEND != "cpu":
        return
    check_spoiled(overwrite, "--backend", "reference")


def test_a_model_that_is_replaced_by_rename_is_served_on():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        shutil.copy(tiny_model(), path)
        with Weftd(*FLAGS, model=path) as d:
            before = d.complete("tell me more", **ASK)["token_ids"]
            shutil.copy(other_model(), path + ".new")
            os.rename(path + ".new", path)
            d.kill_worker()
            assert d.complete("tell me more", **ASK)["token_ids"] == before
            assert " model_changed " not in d.log


def test_a_table_of_ngrams_is_not_read_from_another_file():
    """The table stays in the file, so a model with one is not served from kept weights."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        shutil.copy(golden("qwen4exp"), path)
        with Weftd("--max-context", "1024", "--kv-pages", "256", model=path) as d:
            before = d.complete([5, 6, 7], **ASK)["token_ids"]
            shutil.copy(path, path + ".new")
            os.rename(path + ".new", path)
            assert d.complete([5, 6, 7], **ASK)["token_ids"] == before
        with Weftd("--max-context", "1024", "--kv-pages", "256", model=path) as d:
            assert d.complete([5, 6, 7], **ASK)["token_ids"] == before
            zero(path)
            status, _, value = d.request("POST", "/v1/completions", {"prompt": [5, 6, 7], **ASK})
            assert status == 503 and "was changed" in value["error"]["message"], (status, value)


def text(token):
    return len(token).to_bytes(8, "little") + token


def test_a_folder_with_a_model_whose_texts_repeat_is_served():
    """As Google's own QAT files of Gemma 4. One of two equal tokens is never made by encoding; merges that lost their text are skipped."""
    with tempfile.TemporaryDirectory() as folder:
        with open(tiny_model(), "rb") as source:
            data = source.read()
        assert data.count(text("Ġwith".encode())) == 1
        with open(os.path.join(folder, "model.gguf"), "wb") as out:
            out.write(data.replace(text("Ġwith".encode()), text("Ġthat".encode())))
        with Weftd(*FLAGS, model=folder) as d:
            ids = d.request("POST", "/tokenize", {"content": "that with that"})[2]["tokens"]
            assert len(ids) > 3 and d.request("POST", "/detokenize", {"tokens": ids})[2]["content"] == "that with that", ids
            schema = {"type": "object", "properties": {"a": {"enum": ["that", "with"]}}, "required": ["a"], "additionalProperties": False}
            body = {"messages": [{"role": "user", "content": "that"}], "max_tokens": 40, "temperature": 1, "seed": 1,
                    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
            status, _, value = d.request("POST", "/v1/chat/completions", body)
            assert status == 200 and json.loads(value["choices"][0]["message"]["content"])["a"] in ("that", "with"), value
            assert " vocabulary " in d.log and "repeated_texts=1 " in d.log, d.log


def test_requests_do_not_wait_for_a_worker_that_never_loads():
    """No worker finds a library that it can load; later each does. So no worker can serve before it is killed."""
    with tempfile.TemporaryDirectory() as folder, Weftd(*FLAGS, env=libraries_of(folder)) as d:
        library = os.path.join(folder, "libc.so.6")
        open(library, "w").close()
        d.kill_worker()
        status, headers, value = d.request("POST", "/v1/completions", {"prompt": "hi", **ASK})
        assert status == 503 and value["error"]["code"] == "model_unavailable", (status, value)
        assert int(headers["Retry-After"]) > 0, headers
        assert d.request("GET", "/health")[2]["state"] == "failed"
        n = d.stats()["worker"]["starts"]
        time.sleep(1)
        assert d.stats()["worker"]["starts"] - n <= 1, "the pauses grow"
        os.unlink(library)
        d.wait_health(200)
        assert len(d.complete("hi", **ASK)["token_ids"]) == 24


main(globals())
