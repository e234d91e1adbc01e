"""Folders of safetensors where a daemon usually has a GGUF file: their prefixes on disk, as drafters, swapped, and while
a daemon hands over to the next one."""
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import hf_folder
from manager import wait_end, wait_until
from upgrading import LONG, Daemon, Stream, upgrade
from weftd import ANY_TIME, LIMIT_S, Weftd, fewer, main, program, random_tokens, recomputed, repeat_until, synth, until_accepted

FLAGS = ("--max-context", "4096", "--kv-pages", "256", "--threads", "2")
PROMPT = random_tokens(70, 1000)
CACHED = 999 // 32 * 32
SHORT = random_tokens(1, 30)


def file_of(seed):
    return synth(f"tiny-bf16-seed{seed}", "--arch", "qwen3", "--shape", "tiny", "--format", "BF16", "--seed", str(seed))


def folder_of(where, name, seed=2):
    """Writes the folder of a model whose weights are those of @seed."""
    return hf_folder.write_folder(file_of(seed), os.path.join(where, name), 2)


def ask(d, prompt, **more):
    c = d.complete(prompt, **{"max_tokens": 20, "ignore_eos": True, "logits_digest": True, "temperature": 1, "seed": 3, **more})
    return (c["token_ids"], c["digests"]), c["usage"]["prompt_tokens_details"]["cached_tokens"]


def greedy(d):
    return ask(d, SHORT, max_tokens=24, temperature=0)[0]


def starts(d):
    """Returns for each worker whether its weights were packed or kept."""
    return [line.split(" weights=")[1].split()[0] for line in d.log.splitlines() if " worker_ready " in line]


def test_prefixes_on_disk_are_those_of_the_folders_weights():
    """The second folder has the place, the names and the sizes of the first, and other numbers."""
    with tempfile.TemporaryDirectory() as where, tempfile.TemporaryDirectory() as disk:
        folder, flags = folder_of(where, "m"), ("--kv-disk", disk, "--kv-disk-size", "64M")
        with Weftd(*FLAGS, *flags, model=folder) as d:
            should, n = ask(d, PROMPT)
            assert n == 0
            wait_until("they are written", lambda: d.stats()["worker"]["disk_saved_tokens"] >= CACHED)
        with Weftd(*FLAGS, *flags, model=folder) as d:
            before = recomputed(d)
            got, n = ask(d, PROMPT)
            assert got == should
            wait_until("tokens of the disk", lambda: n + recomputed(d) - before >= CACHED)
        shutil.rmtree(folder)
        assert folder_of(where, "m", 5) == folder
        with Weftd(*FLAGS, model=folder) as d:
            other = ask(d, PROMPT)[0]
        with Weftd(*FLAGS, *flags, model=folder) as d:
            assert ask(d, PROMPT) == (other, 0) and other != should


def test_a_folder_drafts_for_a_file_and_for_a_folder():
    model = file_of(2)
    with tempfile.TemporaryDirectory() as where:
        folder, drafter = folder_of(where, "m"), folder_of(where, "drafter")
        with Weftd(*FLAGS, "--speculation", "off", model=model) as d:
            should = greedy(d)
        for own, other in fewer(((folder, drafter), (model, drafter), (folder, model))):
            with Weftd(*FLAGS, *ANY_TIME, "--draft-sources", "model", "--draft-model", other, model=own) as d:
                def turn():
                    assert greedy(d) == should, (own, other)
                until_accepted(d, "model", turn)
                d.kill_worker()
                wait_until("a new worker", lambda: len(starts(d)) == 2)
                assert greedy(d) == should and starts(d) == ["packed", "kept"], starts(d)
        done = subprocess.run([program("weft-gguf"), "info", "--draft-model", drafter, folder], capture_output=True, text=True)
        assert done.returncode == 0 and "draft" in done.stdout, done


def test_a_folder_with_other_tokens_drafts_for_nobody():
    other = synth("tiny-other-tokens-f32", "--shape", "tiny", "--format", "F32", "--n-vocab", "300")
    with tempfile.TemporaryDirectory() as where:
        drafter = hf_folder.write_folder(other, os.path.join(where, "drafter"), 1)
        try:
            Weftd(*FLAGS, "--draft-model", drafter, model=folder_of(where, "m")).__enter__()
        except AssertionError as e:
            assert f"draft-model: {drafter}: its vocabulary differs from the model's" in str(e), e
        else:
            raise AssertionError("it was taken")


def test_a_preset_names_a_folder_and_its_drafter():
    with tempfile.TemporaryDirectory() as where, tempfile.TemporaryDirectory() as presets:
        folder, drafter = folder_of(where, "m"), folder_of(where, "drafter")
        pathlib.Path(presets, "fast.conf").write_text(f"model = {folder}\ndraft-model = {drafter}\ndraft-sources = model\n")
        pathlib.Path(presets, "plain.conf").write_text(f"model = {folder}\nspeculation = off\n")
        with Weftd(*FLAGS, *ANY_TIME, "--models", presets, model="") as d:
            should = ask(d, SHORT, temperature=0, model="plain")[0]

            def turn():
                assert ask(d, SHORT, temperature=0, model="fast")[0] == should

            def drafts():
                models = {m["id"]: m for m in d.admin_request("GET", "/models")[1]["models"]}
                return (models["fast"].get("worker") or {}).get("drafts", {}).get("model", {}).get("drafted", 0)
            repeat_until("drafts of the drafter", drafts, turn)


def test_a_swap_sees_that_a_folder_was_replaced():
    with tempfile.TemporaryDirectory() as where:
        folder, new = folder_of(where, "m"), folder_of(where, "new", 5)
        with Weftd(*FLAGS, "--models-memory", "1G", model=folder) as d:
            def swap(n):
                status, value = d.admin_request("POST", "/models/m/swap")
                assert status < 300, value
                wait_until("the swap", lambda: len(starts(d)) == n)
            before = greedy(d)
            swap(2)
            assert greedy(d) == before
            os.rename(folder, os.path.join(where, "old"))
            os.rename(new, folder)
            swap(3)
            assert greedy(d) != before and starts(d) == ["packed", "kept", "packed"], starts(d)


def test_a_running_request_moves_to_the_next_daemon():
    with tempfile.TemporaryDirectory() as where:
        folder = folder_of(where, "m")
        with Daemon(*FLAGS, "--draft-model", folder_of(where, "drafter"), model=folder) as d:
            should = d.complete(**LONG)["token_ids"]
            stream = Stream(d)
            pid = upgrade(d)
            stream.join(LIMIT_S)
            assert not stream.is_alive() and not stream.error and stream.tokens == should, stream.error
            assert d.process.wait(LIMIT_S) == 0 and d.complete(**LONG)["token_ids"] == should
            assert starts(d) == ["packed", "kept"], starts(d)
            os.kill(pid, signal.SIGTERM)
            assert wait_end(pid) == 0


main(globals())
