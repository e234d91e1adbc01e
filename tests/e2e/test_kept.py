"""Packed weights outlive their worker: the next worker, a swapped-in model and the next daemon reuse them; different
weights are packed again."""
import fcntl
import os
import resource
import shutil
import signal
import tempfile
import threading

import golden_models
from manager import Manager, wait_until
from weftd import DATA, LIMIT_S, Weftd, fewer, main, open_files, random_tokens, synth, tiny_model

FLAGS = ("--max-context", "1024", "--kv-pages", "256", "--threads", "2")
ASK = {"max_tokens": 24, "ignore_eos": True, "temperature": 0}
PROMPT = random_tokens(1, 30)
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def other_model():
    return synth("tiny-qwen3-q4_k_m-seed2", "--arch", "qwen3", "--shape", "tiny", "--format", "Q4_K_M", "--seed", "2")


def answer(d, **more):
    return d.complete(PROMPT, **ASK, **more)["token_ids"]


def weights(d):
    return [line.split(" weights=")[1].split()[0] for line in d.log.splitlines() if " worker_ready " in line]


def weight_files(d):
    """Returns the inodes of the files in memory that the front holds."""
    return {inode for _, target, inode in open_files(d.process.pid) if "weft-weights" in target}


def replace_worker(d, n):
    """Kills the worker; start number @n of this daemon replaces it."""
    d.kill_worker()
    wait_until(f"{n} starts", lambda: len(weights(d)) == n)


def test_a_worker_that_dies_is_replaced_by_one_that_packs_nothing():
    with Weftd(*FLAGS) as d:
        before = answer(d)
        files = weight_files(d)
        assert len(files) == 1
        for n in range(2, 5):
            replace_worker(d, n)
            assert answer(d) == before
        assert weights(d) == ["packed", "kept", "kept", "kept"], weights(d)
        assert d.stats()["worker"]["weights"] == "kept"
        assert weight_files(d) == files


def test_every_architecture_computes_the_same_from_kept_weights():
    names = sorted(p.stem for p in (DATA / "golden").glob("*.gguf"))
    assert names, DATA
    of = {}  # one model of each family
    for name in names:
        if "rerank" not in name and "bert" not in name and "embed" not in name:
            of.setdefault(name.split("-")[0].rstrip("0123456789."), name)
    for name in fewer([*of.values()]):
        with Weftd(*golden_models.FLAGS, "--threads", 2, model=golden_models.golden(name)) as d:
            before = golden_models.ask(d, golden_models.REQUESTS[2], 12)
            replace_worker(d, 2)
            assert golden_models.ask(d, golden_models.REQUESTS[2], 12) == before, name
            assert weights(d) == ["packed", "kept"], (name, weights(d))


def test_a_draft_model_is_kept_too():
    with Weftd(*FLAGS, "--draft-model", other_model()) as d:
        before = answer(d)
        assert len(weight_files(d)) == 2
        replace_worker(d, 2)
        assert answer(d) == before and len(weight_files(d)) == 2 and weights(d) == ["packed", "kept"]


def test_streams_go_on_while_workers_die():
    with Weftd(*FLAGS) as d:
        should = d.complete(PROMPT, max_tokens=400, ignore_eos=True, temperature=0)["token_ids"]
        got, done = [], threading.Event()

        def read():
            for event in d.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "temperature": 0, "return_token_ids": True}):
                for choice in event["choices"]:
                    got.extend(choice["token_ids"])
            done.set()

        thread = threading.Thread(target=read)
        thread.start()
        wait_until("tokens", lambda: got)
        replace_worker(d, 2)
        thread.join(LIMIT_S)
        assert done.is_set() and got == should and weights(d)[1] == "kept"


def test_unloading_frees_them():
    with tempfile.TemporaryDirectory() as folder:
        for name, path in {"a": tiny_model(), "b": other_model()}.items():
            shutil.copy(path, os.path.join(folder, name + ".gguf"))
        with Weftd(*FLAGS, "--models-dir", folder, model="") as d:
            assert not weight_files(d)
            d.complete(PROMPT, model="a", **ASK)
            d.complete(PROMPT, model="b", **ASK)
            assert len(weight_files(d)) == 2
            assert d.admin_request("POST", "/models/a/unload")[0] < 300
            wait_until("the memory is free", lambda: len(weight_files(d)) == 1)
            d.complete(PROMPT, model="a", **ASK)
            assert weights(d) == ["packed"] * 3


def test_a_swap_to_the_same_file_packs_nothing_and_to_another_drops_the_first():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m.gguf")
        shutil.copy(tiny_model(), path)
        with Weftd(*FLAGS, "--models-memory", "1G", model=path) as d:
            before, first = answer(d), weight_files(d)
            assert d.admin_request("POST", "/models/m/swap")[0] < 300
            wait_until("the swap", lambda: len(weights(d)) == 2)
            assert answer(d) == before and weights(d)[1] == "kept" and weight_files(d) == first
            assert d.admin_request("POST", "/models/m/swap?file=")[0] == 400
            assert d.admin_request("POST", f"/models/m/swap?file={other_model()}")[0] < 300
            wait_until("the swap", lambda: len(weights(d)) == 3)
            wait_until("only those of the new file", lambda: len(weight_files(d)) == 1 and weight_files(d) != first)
            assert answer(d) != before and weights(d)[2] == "packed"


def test_without_room_for_files_they_are_the_workers_own():
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 20, 16 << 20))
    with Weftd(*FLAGS, popen={"preexec_fn": limit}) as d:
        before = answer(d)
        replace_worker(d, 2)
        assert answer(d) == before and weights(d) == ["own", "own"] and not weight_files(d)


def test_the_reference_keeps_nothing():
    with Weftd(*FLAGS, "--backend", "reference") as d:
        assert weights(d) == ["own"] and not weight_files(d)


def test_the_next_daemon_packs_nothing():
    with tempfile.TemporaryDirectory() as folder, Manager(folder, tiny_model(), *FLAGS) as m:
        m.start()
        before = answer(m)
        wait_until("they are stored", lambda: m.store)
        for how in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
            m.stop(how)
            assert len(m.store) == 1
            m.start()
            assert answer(m) == before
        assert weights(m) == ["packed", "kept", "kept", "kept"], weights(m)
        assert not any("WATCHDOG" in said for said in m.said), "a manager without a watchdog is pinged"


def test_a_file_that_was_changed_between_daemons_is_packed_anew():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m.gguf")
        shutil.copy(tiny_model(), path)
        with Manager(folder, path, *FLAGS) as m:
            m.start()
            before, first = answer(m), list(m.store)
            m.stop()
            shutil.copy(other_model(), path)
            m.start()
            assert answer(m) != before and weights(m) == ["packed", "packed"]
            wait_until("the first ones are forgotten", lambda: len(m.store) == 1 and list(m.store) != first)


def copy_of(fd, change=lambda data: data, seals=SEALS):
    new = os.memfd_create("copy", os.MFD_ALLOW_SEALING)
    data = bytearray(os.pread(fd, os.fstat(fd).st_size, 0))
    os.write(new, bytes(change(data)))
    fcntl.fcntl(new, fcntl.F_ADD_SEALS, seals)
    return new


def flip(at):
    def change(data):
        data[at] ^= 1
        return data
    return change


def test_a_wrong_header_a_cut_off_file_and_an_open_one_are_forgotten():
    spoilers = {
        "magic": lambda fd: copy_of(fd, flip(0)),
        "sources": lambda fd: copy_of(fd, flip(8)),
        "key": lambda fd: copy_of(fd, flip(28)),
        "cut": lambda fd: copy_of(fd, lambda data: data[:len(data) // 2]),
        "empty": lambda fd: copy_of(fd, lambda data: b""),
        "open": lambda fd: copy_of(fd, seals=0),
        "pipe": lambda fd: os.pipe()[0],
    }
    with tempfile.TemporaryDirectory() as folder, Manager(folder, tiny_model(), *FLAGS) as m:
        m.start()
        before = answer(m)
        for name, spoil in spoilers.items():
            m.stop()
            (_, fd), = m.store.items()
            m.store = {"weights-bad": spoil(fd)}
            n = len(weights(m))
            m.start()
            assert answer(m) == before, name
            assert weights(m)[n:] == ["packed"], (name, weights(m))
            wait_until(name + " is forgotten", lambda: len(m.store) == 1 and "weights-bad" not in m.store)
        m.stop()
        m.store = {"weights-good": copy_of(*m.store.values())}
        m.start()
        assert answer(m) == before and weights(m)[-1] == "kept" and list(m.store) == ["weights-good"]


def test_a_worker_starts_whatever_descriptors_are_free():
    """Descriptors of the store have the lowest numbers; those of a worker start at 3."""
    with tempfile.TemporaryDirectory() as folder, Manager(folder, tiny_model(), *FLAGS) as m:
        m.start()
        before, name = answer(m), os.path.basename(m.model).removesuffix(".gguf")
        m.stop()
        m.store.update({f"weights-{i}": os.memfd_create("empty") for i in range(8)})
        m.start()
        wait_until("the others are closed", lambda: len(m.store) == 1)
        for n in (3, 4):
            assert m.admin_request("POST", f"/models/{name}/swap")[0] < 300
            wait_until(f"{n} starts", lambda: len(weights(m)) == n)
            assert answer(m) == before
        assert weights(m) == ["packed", "kept", "kept", "kept"] and " worker_died " not in m.log


def test_weights_that_kill_their_worker_are_not_used_twice():
    with tempfile.TemporaryDirectory() as folder, Manager(folder, tiny_model(), *FLAGS) as m:
        m.start()
        before = answer(m)
        m.stop()
        n_used = 28 + 32 + 4 + 8  # of the header, which engine and file must agree on

        m.store = {"weights-odd": copy_of(*m.store.values(), change=flip(n_used))}
        m.start()
        assert answer(m) == before and weights(m) == ["packed", "packed"] and " worker_died " in m.log
        assert "weights-odd" not in m.store


main(globals())
