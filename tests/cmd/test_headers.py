"""Headers of published model files (tests/data/headers): each is accepted, or refused with the right reason; and with
another name of the architecture, the own one is found and tried."""
import os
import pathlib
import struct
import subprocess
import tempfile

from weftd import main, program

FOLDER = pathlib.Path(os.environ["WEFT_SOURCE"]) / "tests" / "data" / "headers"
FORMATS = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210)}
VALUES = {"u32": (4, lambda v: struct.pack("<I", int(v))), "f32": (6, lambda v: struct.pack("<f", float(v))),
          "bool": (7, lambda v: bytes([v == "true"])), "str": (8, lambda v: string(v))}


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def read(path):
    """Returns the source, the reason of a refusal or None, the keys and the tensors of a header."""
    source, refused, keys, tensors = None, None, [], []
    for line in path.read_text().splitlines():
        word, rest = line.split(" ", 1)
        if word == "source":
            source = rest
        elif word == "refused":
            refused = rest
        elif word == "tensor":
            name, kind, *shape = rest.split()
            tensors.append((name, kind, [int(n) for n in shape]))
        else:
            keys.append((word, *rest.split(" ", 1)))
    n_layer = int(next(value for key, _, value in keys if key.endswith(".block_count")))
    layers = [(name.replace("*", str(i)), *rest) for i in range(n_layer) for name, *rest in tensors if "*" in name]
    return source, refused, keys, [t for t in tensors if "*" not in t[0]] + layers


def write(path, keys, tensors):
    """Writes a file whose tensors are holes, which take no room on the disk, but for divisors of frequencies."""
    head, at, ones = struct.pack("<IIQQ", 0x46554747, 3, len(tensors), len(keys)), 0, []
    for key, kind, value in keys:
        number, pack = VALUES[kind]
        head += string(key) + struct.pack("<I", number) + pack(value)
    for name, kind, shape in tensors:
        number, block, size = FORMATS[kind]
        values = 1
        for n in shape:
            values *= n
        head += string(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape)
        head += struct.pack("<IQ", number, at)
        if name.startswith("rope_"):
            ones.append((at, values))
        at += -(-values // block * size // 32) * 32
    head += bytes(-len(head) % 32)
    path.write_bytes(head)
    os.truncate(path, len(head) + at)
    with open(path, "r+b") as file:
        for begin, n in ones:
            file.seek(len(head) + begin)
            file.write(struct.pack("<f", 1) * n)


def info(*args):
    r = subprocess.run([program("weft-gguf"), "info", *map(str, args)], capture_output=True, text=True, timeout=60)
    return r.returncode, r.stdout, r.stderr


def each_header():
    files = sorted(FOLDER.glob("*.txt"))
    assert len(files) >= 10, files
    for file in files:
        source, refused, keys, tensors = read(file)
        assert source.startswith("https://"), file
        yield file.stem, refused, keys, tensors


def test_each_is_accepted_or_refused_with_its_reason():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x.gguf"
        for name, refused, keys, tensors in each_header():
            write(path, keys, tensors)
            code, out, err = info("--ops", "reference", path)
            if refused:
                assert code == 1 and refused in err, (name, code, err)
            else:
                assert code == 0 and out, (name, err)


def test_another_name_is_traced_back_and_tried():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x.gguf"
        for name, refused, keys, tensors in each_header():
            if refused:
                continue
            arch = keys[0][2]
            renamed = [(key.replace(arch + ".", "unheard."), kind, value) for key, kind, value in keys[1:]]
            write(path, keys, tensors)
            own = info("--ops", "reference", path)[1]
            write(path, [("general.architecture", "str", "unheard"), *renamed], tensors)
            found = info("--nearest", path)[1]
            assert f"\n{arch}\n  has all tensors of the file" in found, (name, found)
            code, out, err = info("--ops", "reference", "--override-kv", f"general.architecture=str:{arch}", path)
            assert code == 0 and out == own, (name, err)


main(globals())
