"""Header files of published models (tests/data/headers): reads them, and writes GGUF files from them, with holes in place
of weights or with random ones, whole or with fewer layers, experts and tokens."""
import math
import os
import random
import struct

# name: number in the file, values of a block, bytes of a block
FORMATS = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144),
           "Q6_K": (14, 256, 210), "MXFP4": (39, 32, 17)}
VALUES = {"u32": (4, lambda v: struct.pack("<I", int(v))), "f32": (6, lambda v: struct.pack("<f", float(v))),
          "bool": (7, lambda v: bytes([v == "true"])), "str": (8, lambda v: string(v)),
          "i32s": (9, lambda v: numbers(v, 5, int, "i")), "f32s": (9, lambda v: numbers(v, 6, float, "f"))}
FILLED = 1 << 20  # bytes of random weights that are repeated


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def numbers(text, number, parse, code):
    values = [parse(n) for n in text.split(",")]
    return struct.pack("<IQ", number, len(values)) + struct.pack(f"<{len(values)}{code}", *values)


def layers_of(name, n_layer):
    """Returns the names of a tensor in the layers that have it: blk.*.NAME all, blk.[0,2].NAME these."""
    if "[" not in name:
        return [name.replace("*", str(i)) for i in range(n_layer)] if "*" in name else [name]
    head, tail = name.split("[")
    listed, tail = tail.split("]")
    return [head + i + tail for i in listed.split(",") if int(i) < n_layer]


def read(path, n_layer=None):
    """Returns the source, the reason of a refusal or None, the keys and the tensors of a header; with @n_layer only of the
    first layers."""
    source, refused, keys, tensors = None, None, [], []
    for line in path.read_text().splitlines():
        word, rest = line.split(" ", 1)
        if word == "source":
            source = rest
        elif word == "checked":
            assert rest.startswith("https://"), path
        elif word == "refused":
            refused = rest
        elif word == "tensor":
            name, kind, *shape = rest.split()
            tensors.append((name, kind, [int(n) for n in shape]))
        else:
            keys.append((word, *rest.split(" ", 1)))
    whole = int(next(value for key, _, value in keys if key.endswith(".block_count")))
    n = n_layer or whole
    keys = [(k, kind, str(n) if k.endswith(".block_count") else
             ",".join(v.split(",")[:n]) if v.count(",") + 1 == whole else v) for k, kind, v in keys]
    return source, refused, keys, [(one, *rest) for name, *rest in tensors for one in layers_of(name, n)]


def smaller(keys, tensors, n_vocab, n_expert=0):
    """Returns keys and tensors with a vocabulary of @n_vocab tokens, without names, and with @n_expert experts."""
    arch = keys[0][2]
    keys = [(k, kind, str(n_expert) if n_expert and k.endswith(".expert_count") else v) for k, kind, v in keys]
    keys = [k for k in keys if k[0] != f"{arch}.vocab_size"]
    keys += [("tokenizer.ggml.model", "str", "no_vocab"), (f"{arch}.vocab_size", "u32", str(n_vocab))]

    def cut(name, shape):
        if name in ("token_embd.weight", "output.weight"):
            return [shape[0], n_vocab]
        if name == "output.bias":
            return [n_vocab]
        if n_expert and any(part in name for part in ("_exps.", "ffn_gate_inp.", "exp_probs_b.")):
            return [*shape[:-1], n_expert]
        return shape
    return keys, [(name, kind, cut(name, shape)) for name, kind, shape in tensors]


def half(value):
    return struct.pack("<e", value)


def random_block(kind, n_in, dice):
    """Returns a block of weights whose deviation is some 1 / sqrt(n_in)."""
    unit = 1 / math.sqrt(n_in)
    if kind == "F32":
        return struct.pack("<f", dice.gauss(0, unit))
    if kind == "F16":
        return half(dice.gauss(0, unit))
    if kind == "Q4_0":
        return half(unit / 4.6) + dice.randbytes(16)
    if kind == "Q8_0":
        return half(unit / 73) + dice.randbytes(32)
    if kind == "Q4_K":
        return half(unit / 200) + half(7.5 * unit / 200) + dice.randbytes(140)
    if kind == "Q6_K":
        return dice.randbytes(208) + half(unit / 1300)
    return bytes([127 + round(math.log2(unit / 3))]) + dice.randbytes(16)


def weights(name, kind, shape, dice):
    """Returns bytes that the tensor repeats: norms of one, negative decays, and random numbers elsewhere."""
    _, values, size = FORMATS[kind]
    n = math.prod(shape) // values
    if "norm" in name and not name.endswith(".bias"):
        return struct.pack("<f", 1) * n
    if name.endswith(".ssm_a"):
        return struct.pack("<f", -1) * n
    return b"".join(random_block(kind, shape[0], dice) for _ in range(min(n, FILLED // size)))


def write(path, keys, tensors, filled=False):
    """Writes a file whose tensors are holes, which take no room on the disk, but for divisors of frequencies; with @filled
    random weights."""
    head, at, places = struct.pack("<IIQQ", 0x46554747, 3, len(tensors), len(keys)), 0, []
    for key, kind, value in keys:
        number, pack = VALUES[kind]
        head += string(key) + struct.pack("<I", number) + pack(value)
    for name, kind, shape in tensors:
        number, block, size = FORMATS[kind]
        n_bytes = math.prod(shape) // block * size
        head += string(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape)
        head += struct.pack("<IQ", number, at)
        places.append((at, n_bytes))
        at += -(-n_bytes // 32) * 32
    head += bytes(-len(head) % 32)
    path.write_bytes(head)
    os.truncate(path, len(head) + at)
    dice = random.Random(1)
    with open(path, "r+b") as file:
        for (name, kind, shape), (begin, n) in zip(tensors, places):
            if not filled and not name.startswith("rope_"):
                continue
            part = struct.pack("<f", 1) if name.startswith("rope_") else weights(name, kind, shape, dice)
            file.seek(len(head) + begin)
            file.write((part * -(-n // len(part)))[:n])
