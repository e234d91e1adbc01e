"""Pictures in the whole daemon: the greedy texts of another implementation, every dialect, cached files, damaged files,
a killed worker."""
import json
import re
import subprocess
import tempfile
import threading
import time

from pictures import FLAGS, FOLDER, metrics, picture, pictures_total, post, started, uri
from upgrading import Daemon, Installed, upgrade
from weftd import LIMIT_S, Weftd, fewer, main, mtp_model, parallel, program, repeat_until, seen, synth, wait_until

MODELS = ("qwen3vl", "qwen35", "qwen25vl", "gemma3", "gemma4", "gemma4u", "mistral3", "lfm2", "glm4v", "hunyuanvl",
          "internvl", "idefics3")


def check_golden(name):
    cases = json.load(open(FOLDER / f"{name}.json"))["cases"]
    for c in cases:
        limits = [f"--picture-{what}-tokens={c[f'image_{what}_tokens']}" for what in ("min", "max") if c[f"image_{what}_tokens"] > 0]
        tiles = len(c["files"]["resized"]) > len(c["images"])  # resized by weftd
        files = [f"images/{f}" for f in c["images"]] if tiles else [f"{name}/{f}" for f in c["files"]["resized"]]
        with started(name, *limits, *["--picture-fit=pad"] * tiles) as d:
            marker = d.request("GET", "/props")[2]["media_marker"]
            data = [picture(file) for file in files]
            body = {"prompt": {"prompt_string": c["prompt"].replace("<__media__>", marker), "multimodal_data": data},
                    "temperature": 0, "n_predict": len(c["greedy"]), "ignore_eos": True, "return_tokens": True}
            for _ in range(2):  # counters: computed, and found in the cache
                answer = post(d, "/completion", body)
                n = sum(len(k["text"]) if "text" in k else k["image_tokens"] for k in c["chunks"])
                assert answer["tokens_evaluated"] == n, (name, c["name"], answer["tokens_evaluated"], n)
                assert answer["tokens"] == [g["id"] for g in c["greedy"]], (name, c["name"], answer["tokens"])


def test_greedy_texts_are_those_of_another_implementation():
    for name in fewer(MODELS):
        check_golden(name)


def asked(p, text):
    """Returns the same conversation in every dialect: (path, body, function that finds the text in the answer)."""
    some = {"temperature": 0, "model": "m"}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + p}}
    return {
        "chat": ("/v1/chat/completions", {**some, "max_tokens": 12, "messages": [
            {"role": "user", "content": [image, {"type": "text", "text": text}]}]},
            lambda a: a["choices"][0]["message"]),
        "responses": ("/v1/responses", {**some, "max_output_tokens": 12, "input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": "data:image/png;base64," + p}, {"type": "input_text", "text": text}]}]},
            lambda a: a["usage"]),
        "messages": ("/v1/messages", {**some, "max_tokens": 12, "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": p}},
            {"type": "text", "text": text}]}]}, lambda a: a["usage"]),
        "ollama": ("/api/chat", {"model": "m", "stream": False, "options": {"temperature": 0, "num_predict": 12}, "messages": [
            {"role": "user", "content": text, "images": [p]}]}, lambda a: a["message"]),
    }


def test_every_dialect_asks_the_same():
    with started("qwen3vl") as d:
        forms = asked(picture("resize/source-97x61.png"), "what is it?")
        counts = {}
        for name, (path, body, _) in forms.items():
            a = post(d, path, body)
            u = a.get("usage") or {}
            counts[name] = u.get("prompt_tokens") or (u.get("input_tokens", 0) + u.get("cache_read_input_tokens", 0)
                                                      if name == "messages" else u.get("input_tokens")) or a["prompt_eval_count"]
            if name == "chat":
                assert u["prompt_tokens_details"]["image_tokens"] > 0, u
        assert len(set(counts.values())) == 1, counts
        assert pictures_total(d) == [1, len(forms) - 1]
        chat, ollama = (pick(post(d, path, body)) for path, body, pick in (forms["chat"], forms["ollama"]))
        assert (chat["content"] or "") == (ollama["content"] or ""), (chat, ollama)
        model = d.request("GET", "/v1/models")[2]["data"][0]
        assert model["modalities"] == ["text", "image"] and model["images"]["max_tokens"] == 4096, model


def test_many_requests_of_one_picture_decode_it_once():
    files = ["resize/source-97x61.png", "resize/bicubic-96x64.png", "resize/bicubic-224x128.png"]
    with started("qwen3vl") as d:
        def ask(i):
            parts = [{"type": "image_url", "image_url": {"url": uri(f)}} for f in files]
            return post(d, "/v1/chat/completions", {"temperature": 0, "max_tokens": 8, "messages": [
                {"role": "user", "content": [*parts, {"type": "text", "text": f"agent {i}"}]}]})
        ask(0)
        answers = parallel([lambda i=i: ask(i) for i in range(8)])
        decoded, known = pictures_total(d)
        assert decoded == len(files) and known == 8 * len(files), (decoded, known)
        computed = re.search(r"^weft_pictures_computed_total\S* (\d+)", metrics(d), re.M).group(1)
        assert int(computed) == len(files), computed  # also if their last rows are not in full pages
        for a in answers:
            assert a["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32, a["usage"]


def test_a_worker_that_dies_asks_again():
    body = {"temperature": 0, "max_tokens": 400, "ignore_eos": True, "messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": uri("resize/bicubic-224x128.png")}}, {"type": "text", "text": "go on"}]}]}
    with started("qwen35") as d:
        want = post(d, "/v1/chat/completions", body)["choices"][0]["message"]
        got = ""
        for i, event in enumerate(d.stream("/v1/chat/completions", body)):
            if i == 2:
                assert d.kill_worker()
            got += "".join(c["delta"].get("content") or "" for c in event["choices"])
        assert got == want["content"], (got, want)
        assert d.stats()["worker"]["deaths"] == 1


def drafting(model, mmproj, source, *flags):
    """Asks with one and two pictures, without speculation and with it. Returns the accepted drafts behind pictures."""
    files = ["resize/bicubic-96x64.png", "resize/bicubic-224x128.png"]

    def ask(d, n, sampling):
        marker = d.request("GET", "/props")[2]["media_marker"]
        parts = "".join(f"{marker} picture {i} of {n}. " for i in range(n))
        return post(d, "/completion", {
            "prompt": {"prompt_string": parts + "one two one two one", "multimodal_data": [picture(f) for f in files[:n]]},
            "n_predict": 60, "ignore_eos": True, "return_tokens": True, **sampling})["tokens"]

    ways = [(n, sampling) for n in (1, 2) for sampling in ({"temperature": 0}, {"temperature": 0.9, "seed": 5})]
    with Weftd(*FLAGS, *flags, "--mmproj", mmproj, "--speculation", "off", model=model) as d:
        should = [ask(d, *way) for way in ways]
        assert not d.stats()["worker"]["drafts"][source]["drafted"]
    with Weftd(*FLAGS, *flags, "--mmproj", mmproj, "--draft-sources", source, model=model) as d:
        def turn():  # in sequence, and concurrently
            assert [ask(d, *way) for way in ways] == should, (model, source)
            assert parallel([lambda way=way: ask(d, *way) for way in ways]) == should, (model, source)

        # On a busy machine drafts may seem to cost more than they save.
        repeat_until(f"an accepted draft of {source}", lambda: d.stats()["worker"]["drafts"][source]["accepted"], turn)


def test_speculation_behind_pictures_changes_no_token():
    """A block of the model, and a draft model that is the same model without a vision encoder."""
    mmproj = synth("mmproj-256", "--projector", "qwen3vl_merger", "--shape", "tiny,n_out=256", "--format", "F32")
    drafting(mtp_model(0.02, 3072), mmproj, "mtp")
    model, mmproj = (str(FOLDER / f"{name}.gguf") for name in ("qwen3vl", "mmproj-qwen3vl"))
    drafting(model, mmproj, "model", "--draft-model", model)


def test_requests_with_pictures_move_in_an_upgrade():
    """The next daemon requests the pixels from the old one, which has the file."""
    body = {"temperature": 0, "max_tokens": 1900, "ignore_eos": True, "messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": uri("resize/bicubic-224x128.png")}}, {"type": "text", "text": "go on"}]}]}
    with tempfile.TemporaryDirectory() as folder:
        installed = Installed(folder)
        with Daemon(*FLAGS, path=installed.path, model=str(FOLDER / "qwen3vl.gguf")) as d:
            want = post(d, "/v1/chat/completions", body)["choices"][0]["message"]
            answers = []
            # More than run together: the next daemon may take as long to be ready as one of them takes.
            threads = [threading.Thread(target=lambda: answers.append(post(d, "/v1/chat/completions", body))) for _ in range(6)]
            for thread in threads:
                thread.start()
            wait_until("one runs", lambda: d.stats()["worker"]["running"] > 0)
            upgrade(d)
            for thread in threads:
                thread.join(LIMIT_S)
            assert [a["choices"][0]["message"] for a in answers] == [want] * len(threads), answers
            assert re.search(r"requests_moved n=[1-9]", d.log), d.log


def test_the_recorder_tells_of_pictures_and_plans_are_made_again():
    """weftctl why names the wait for a picture; weft-sim replay repeats all plans of requests with pictures."""
    files = ["resize/bicubic-96x64.png", "resize/bicubic-224x128.png"]

    def ask(i):
        assert d.request("POST", "/v1/chat/completions", {"max_tokens": 20, "ignore_eos": True, "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": uri(files[i % 2])}}, {"type": "text", "text": f"{i} and what else?"}]}]},
            {"x-request-id": f"look-{i}"})[0] == 200

    def run(name, *args):
        p = subprocess.run([program(name), *args], capture_output=True, text=True, timeout=LIMIT_S)
        assert p.returncode == 0, p.stdout + p.stderr
        return p.stdout

    with started("qwen35") as d, tempfile.TemporaryDirectory() as folder:
        ask(0)
        parallel([lambda i=i: ask(i) for i in range(1, 7)])
        stories = [run("weftctl", "--socket", d.admin, "why", f"look-{i}") for i in range(7)]
        assert "picture" in stories[0] and all("ended" in s for s in stories), stories
        run("weftctl", "--socket", d.admin, "dump", f"{folder}/flight")
        assert "plans" in run("weft-sim", "replay", f"{folder}/flight")


def test_damaged_files_are_refused_and_harm_nobody():
    with started("qwen3vl") as d:
        expected = json.load(open(FOLDER / "decode" / "expected.json"))
        for name, row in expected.items():
            begin = time.monotonic()
            status, _, answer = d.request("POST", "/v1/chat/completions", {"max_tokens": 1, "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": uri(f"decode/{name}")}}]}]})
            took = time.monotonic() - begin
            if row.get("error"):
                assert status == 400 and "messages[0].content[0].image_url" in json.dumps(answer), (name, status, answer)
                seen(took < 5, name, took)
            else:
                assert status == 200, (name, status, answer)
        assert d.health() == 200


def test_without_a_projector_the_model_says_so():
    with started("qwen3vl", "--mmproj", "none") as d:
        _, body, _ = asked(picture("resize/source-97x61.png"), "x")["chat"]
        status, _, answer = d.request("POST", "/v1/chat/completions", body)
        assert status == 400 and "reads only text" in json.dumps(answer), answer
        assert "modalities" not in d.request("GET", "/v1/models")[2]["data"][0]


main(globals())
