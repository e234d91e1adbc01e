"""The sizes that `weft-gguf info` tells of a model are those that its load takes: models with the widths of published files
(tests/data/headers), and the synthetic ones of tests/data, together of 72 architectures."""
import math
import os
import pathlib
import subprocess
import tempfile

from header_file import FORMATS, read, smaller, write
from weftd import DATA, main

LOAD_SIZES = os.environ["LOAD_SIZES"]
FOLDER = pathlib.Path(os.environ["WEFT_SOURCE"]) / "tests" / "data" / "headers"
N_VOCAB = 512
SMALL = 48 << 20  # bytes of a model of a header, unless one layer has more
LAYERS = {"granite-4.0-h-tiny": 6, "kimi-linear-48b-a3b": 4, "lfm2-8b-a1b": 3}  # of files whose first attention comes late
# The first attention of the first two comes after 1 GB of weights; the MTP block of the others stands behind all of their layers.
LEFT_OUT = {"jamba-v0.1", "nemotron-3-nano-30b-a3b", "glm-4.5-air", "glm-5.3-flash"}
DRAFTERS = ("it is a draft model", "it is a block drafter")  # reasons for which these are not served alone


def loaded(paths):
    """Returns what load_sizes prints for each path: {word: (told, taken)}, or the text of a refusal."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    r = subprocess.run([LOAD_SIZES, *map(str, paths)], capture_output=True, text=True, timeout=100, env=env)
    assert r.returncode == 0, r.stderr
    lines = r.stdout.splitlines()
    assert len(lines) == len(paths), lines
    for line in lines:
        words = line.split()
        if words[0] == "refused":
            yield line
        else:
            yield {words[i]: (int(words[i + 1]), int(words[i + 2])) for i in range(0, len(words), 3)}


def check(name, sizes, decoded=0):
    """Fails unless the load takes what was told. Weights take whole huge pages, of which each block of them ends in one: the
    sixteenth of the memory that an estimate leaves free has room for these. @decoded: bytes of weights that are not packed."""
    assert isinstance(sizes, dict), (name, sizes)
    for word in ("kv", "sum", "context"):
        told, taken = sizes[word]
        assert told == taken > 0, (name, word, told, taken)
    told, packed = sizes["weights"]
    taken = packed + decoded
    assert told <= taken <= told + told // 16 + (2 << 20), (name, told, taken)


def behind_pooling(tensors):
    """Returns the bytes of EmbeddingGemma's matrices behind the pooling (dense_2, dense_3), which are decoded to F32."""
    return sum(4 * math.prod(shape) for name, _, shape in tensors if name.startswith("dense_"))


def n_bytes(tensors):
    return sum(math.prod(shape) // FORMATS[kind][1] * FORMATS[kind][2] for _, kind, shape in tensors)


def cut(file, n_layer):
    """Returns keys and tensors of a header with @n_layer layers, and with as few experts as a token uses; with groups of
    experts eight times as many."""
    _, _, keys, tensors = read(file, n_layer)
    used = max((int(v) for k, _, v in keys if k.endswith(".expert_used_count")), default=0)
    groups = any(k.endswith(".expert_group_count") for k, _, _ in keys)
    return smaller(keys, tensors, N_VOCAB, 8 * used if groups else used)


def small_model(file):
    """Returns keys and tensors of a header with as many layers, 1, 2, 4 or more, as are small."""
    if file.stem in LAYERS:
        return cut(file, LAYERS[file.stem])
    n_layer = 1
    while n_layer < 16 and n_bytes(cut(file, 2 * n_layer)[1]) <= SMALL:
        n_layer *= 2
    return cut(file, n_layer)


def header_models():
    """Returns {architecture: (bytes, name, model)}, the smallest model of each architecture with a header."""
    found = {}
    for file in sorted(FOLDER.glob("*.txt")):
        if read(file)[1] or file.stem in LEFT_OUT:
            continue
        model = small_model(file)
        arch, size = model[0][0][2], n_bytes(model[1])
        if arch not in found or size < found[arch][0]:
            found[arch] = size, file.stem, model
    return found


def test_models_of_published_widths_take_what_is_told():
    """Weights are also those of the file, with padded rows; vectors are not counted."""
    models = header_models()
    assert len(models) >= 35, list(models)
    with tempfile.TemporaryDirectory() as folder:
        for _, name, (keys, tensors) in models.values():
            path = pathlib.Path(folder) / "x.gguf"
            write(path, keys, tensors)
            (sizes,) = loaded([path])
            decoded = behind_pooling(tensors)
            check(name, sizes, decoded)
            size = decoded + n_bytes(t for t in tensors if not t[0].startswith("dense_"))
            assert 0.97 * size <= sizes["weights"][0] <= 1.1 * size, (name, size, sizes)


def test_the_synthetic_models_take_what_is_told():
    """A small model's weights are also those of the file: rows are padded, and a table that is the output, too, is packed a
    second time."""
    paths = [p.with_suffix(".gguf") for p in sorted((DATA / "golden").glob("*.json")) if p.with_suffix(".gguf").exists()]
    n_drafters = 0
    for path, sizes in zip(paths, loaded(paths)):
        if isinstance(sizes, str) and any(reason in sizes for reason in DRAFTERS):
            n_drafters += 1
            continue
        check(path.stem, sizes)
        told, size = sizes["weights"][0], path.stat().st_size
        assert 0.9 * size <= told <= 1.3 * size, (path.stem, size, sizes)
    assert len(paths) - n_drafters >= 80 and n_drafters >= 5, (len(paths), n_drafters)


main(globals())
