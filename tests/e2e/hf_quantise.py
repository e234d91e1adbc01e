"""Writes the folder of a golden model with quantised matrices as tools publish them, and a GGUF file of the same
numbers. Codes, scales and zero points are random; values are computed from them in float64, and the blocks of the GGUF
file from the values, so that nothing here follows lib/base/repack.c."""
import array
import copy
import math
import pathlib
import random
import struct

import hf_folder

TYPE = {"F32": 0, "F16": 1, "Q4_0": 2, "Q5_0": 6, "Q8_0": 8, "BF16": 30, "MXFP4": 39, "NVFP4": 40}
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # the row of each four bits of a word


def f32(v):
    return struct.unpack("<f", struct.pack("<f", v))[0]


def f16(v):
    return struct.unpack("<e", struct.pack("<e", v))[0]


def bf16_bits(v):
    """Rounds a value of F32 to the nearest bfloat16."""
    u, = struct.unpack("<I", struct.pack("<f", v))
    low, high = u & 0xFFFF, u >> 16
    return high + (low > 0x8000 or (low == 0x8000 and high & 1))


def of_bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def e4m3(x):
    sign, e, m = -1.0 if x & 128 else 1.0, x >> 3 & 15, x & 7
    return sign * (m * 2.0 ** -9 if e == 0 else (8 + m) * 2.0 ** (e - 10))


def packed(codes, bits):
    """Packs codes to words of 32 bits, the first into the lowest bits."""
    per = 32 // bits
    codes = codes + [0] * (-len(codes) % per)
    return [sum(c << bits * i for i, c in enumerate(codes[at:at + per])) for at in range(0, len(codes), per)]


def words(values):
    return struct.pack(f"<{len(values)}I", *values)


def scale_bytes(kind, rows):
    flat = [v for row in rows for v in row]
    if kind == "BF16":
        return struct.pack(f"<{len(flat)}H", *map(bf16_bits, flat))
    return struct.pack(f"<{len(flat)}{'f' if kind == 'F32' else 'e'}", *flat)


def transposed(rows):
    return [list(c) for c in zip(*rows)]


class Matrix:
    """A quantised matrix: tensors of the folder by the ends of their names, values, and rows of the GGUF file."""

    def __init__(self, tensors, values, kind, rows, factor=None):
        self.tensors, self.values, self.kind, self.rows, self.factor = tensors, values, kind, rows, factor


def random_scale(rng, kind):
    v = rng.uniform(0.5, 1) / 128
    return of_bf16(bf16_bits(v)) if kind == "BF16" else f16(v) if kind == "F16" else f32(v)


def integer_rows(values, scale_of, kind):
    """Encodes values of Q4_0, Q5_0 and Q8_0, whose scale for row n and column k is scale_of(n, k)."""
    out = []
    for n, row in enumerate(values):
        data = b""
        for at in range(0, len(row), 32):
            d = scale_of(n, at)
            q = [v / d for v in row[at:at + 32]]
            assert all(v == int(v) for v in q) and f16(d) == d
            q = [int(v) for v in q]
            data += struct.pack("<e", d)
            if kind == "Q8_0":
                data += struct.pack("<32b", *q)
                continue
            q = [v + (8 if kind == "Q4_0" else 16) for v in q]
            if kind == "Q5_0":
                data += struct.pack("<I", sum((v >> 4) << i for i, v in enumerate(q)))
            data += bytes((q[i] & 15) | (q[i + 16] & 15) << 4 for i in range(16))
        out.append(data)
    return out


def float_rows(values, kind):
    if kind == "F16":
        return [struct.pack(f"<{len(r)}e", *r) for r in values]
    return [struct.pack(f"<{len(r)}H", *(bf16_bits(f32(v)) for v in r)) for r in values]


def integers(rng, n_rows, n_in, how, bits=4, group=32, zeros=False, order=False, kind="F16", less=1):
    """GPTQ, AWQ and compressed-tensors' pack-quantized."""
    group = n_in if group < 0 else group
    n_groups = (n_in + group - 1) // group
    code = [[rng.randrange(1 << bits) for _ in range(n_in)] for _ in range(n_rows)]
    scale = [[random_scale(rng, kind) for _ in range(n_groups)] for _ in range(n_rows)]
    low = less if how == "gptq" else 0
    zero = [[rng.randrange(low, (1 << bits) + low) if zeros else 1 << bits - 1 for _ in range(n_groups)]
            for _ in range(n_rows)]
    index = [k // group for k in range(n_in)]
    if order:
        rng.shuffle(index)
    values = [[scale[n][index[k]] * (code[n][k] - zero[n][index[k]]) for k in range(n_in)] for n in range(n_rows)]
    per = 32 // bits
    if how == "gptq":
        columns = [packed(row, bits) for row in code]
        tensors = {
            "qweight": ("I32", [n_in // per, n_rows], words([w for line in transposed(columns) for w in line])),
            "scales": (kind, [n_groups, n_rows], scale_bytes(kind, transposed(scale))),
            "qzeros": ("I32", [n_groups, n_rows // per], words(
                [w for line in transposed(zero) for w in packed([z - less for z in line], bits)])),
            "g_idx": ("I32", [n_in], words(index)),
        }
    elif how == "awq":
        def line(of):
            return [w for at in range(0, n_rows, 8) for w in packed([of[at + i] for i in AWQ_ORDER], 4)]
        tensors = {
            "qweight": ("I32", [n_in, n_rows // 8], words([w for c in transposed(code) for w in line(c)])),
            "scales": (kind, [n_groups, n_rows], scale_bytes(kind, transposed(scale))),
            "qzeros": ("I32", [n_groups, n_rows // 8], words([w for z in transposed(zero) for w in line(z)])),
        }
    else:
        tensors = {
            "weight_packed": ("I32", [n_rows, n_in // per], words([w for row in code for w in packed(row, bits)])),
            "weight_scale": (kind, [n_rows, n_groups], scale_bytes(kind, scale)),
            "weight_shape": ("I64", [2], struct.pack("<2q", n_rows, n_in)),
        }
        if zeros:
            lines = transposed([packed(column, bits) for column in transposed(zero)])
            tensors["weight_zero_point"] = ("I32", [n_rows // per, n_groups], words([w for x in lines for w in x]))
        if order:
            tensors["weight_g_idx"] = ("I32", [n_in], words(index))
    if index != sorted(index) or group % 32 or (bits == 8 and zeros):
        return Matrix(tensors, values, "F16", float_rows(values, "F16"))
    to = "Q8_0" if bits == 8 else "Q5_0" if zeros else "Q4_0"
    return Matrix(tensors, values, to, integer_rows(values, lambda n, k: scale[n][k // group], to))


def bytes8(rng, n_rows, n_in, how, kind="F32", block=None, name="weight_scale"):
    """FP8 (how: tensor, channel, block) and compressed-tensors' int-quantized (how: int)."""
    rows, columns = {"tensor": (n_rows, n_in), "channel": (1, n_in), "int": (1, n_in)}.get(how, block)
    shape = [(n_rows + rows - 1) // rows, (n_in + columns - 1) // columns]
    small = how != "int"  # codes of FP8 reach 448
    scale = [[random_scale(rng, kind) * (1 if not small else 1 / 64) for _ in range(shape[1])] for _ in range(shape[0])]
    codes = [[rng.randrange(256) for _ in range(n_in)] for _ in range(n_rows)]
    if small:
        codes = [[c & 0xFE if c & 0x7F == 0x7F else c for c in row] for row in codes]
    number = e4m3 if small else lambda c: c - 256 if c > 127 else c
    values = [[number(codes[n][k]) * scale[n // rows][k // columns] for k in range(n_in)] for n in range(n_rows)]
    tensors = {"weight": ("F8_E4M3" if small else "I8", [n_rows, n_in], b"".join(map(bytes, codes))),
               name: (kind, [] if how == "tensor" else shape, scale_bytes(kind, scale)),
               "input_scale": ("F32", [], struct.pack("<f", 0.5))}
    if small:
        return Matrix(tensors, values, "BF16", float_rows(values, "BF16"))
    return Matrix(tensors, values, "Q8_0", integer_rows(values, lambda n, k: scale[n][0], "Q8_0"))


def fp4(rng, n_rows, n_in, how):
    """MXFP4, and NVFP4 of ModelOpt and of compressed-tensors."""
    group = 32 if how == "mxfp4" else 16
    codes = [[rng.randrange(16) for _ in range(n_in)] for _ in range(n_rows)]
    scale = [[rng.randrange(116, 122) if how == "mxfp4" else rng.randrange(1, 127) for _ in range(n_in // group)]
             for _ in range(n_rows)]
    number = (lambda x: 2.0 ** (x - 127)) if how == "mxfp4" else e4m3
    values = [[FP4[codes[n][k]] * number(scale[n][k // group]) for k in range(n_in)] for n in range(n_rows)]
    data = bytes(row[k] | row[k + 1] << 4 for row in codes for k in range(0, n_in, 2))
    kind, name = ("U8", "weight_packed") if how != "modelopt" else ("U8", "weight")
    tensors = {name: (kind, [n_rows, n_in // 2], data),
               "weight_scale": ("U8" if how == "mxfp4" else "F8_E4M3", [n_rows, n_in // group],
                                b"".join(map(bytes, scale)))}
    rows, factor = [], None
    for n in range(n_rows):
        out = b""
        for at in range(0, n_in, 32 if how == "mxfp4" else 64):
            c = codes[n][at:at + 64]
            if how == "mxfp4":
                out += bytes([scale[n][at // 32]]) + bytes(c[i] | c[i + 16] << 4 for i in range(16))
            else:
                out += bytes(scale[n][at // 16:at // 16 + 4])
                out += bytes(c[16 * s + i] | c[16 * s + 8 + i] << 4 for s in range(4) for i in range(8))
        rows.append(out)
    if how == "modelopt":
        factor = f32(rng.uniform(0.5, 1) / 512)
        tensors["weight_scale_2"] = ("F32", [], struct.pack("<f", factor))
    if how == "compressed":
        whole = f32(rng.uniform(512, 1024))
        factor = f32(1 / whole)
        tensors["weight_global_scale"] = ("F32", [1], struct.pack("<f", whole))
        tensors["input_global_scale"] = ("F32", [1], struct.pack("<f", 2.0))
    if factor:
        values = [[v * factor for v in row] for row in values]
    return Matrix(tensors, values, "MXFP4" if how == "mxfp4" else "NVFP4", rows, factor)


def gptq(**more):
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False, **more}


COMPRESSED = {"quant_method": "compressed-tensors", "format": "mixed-precision"}
# name: how a matrix is made, quantization_config
FORMS = {
    "fp8-tensor": (lambda r, n, k: bytes8(r, n, k, "tensor"), {"quant_method": "fp8"}),
    "fp8-channel": (lambda r, n, k: bytes8(r, n, k, "channel", "BF16"), COMPRESSED),
    "fp8-block": (lambda r, n, k: bytes8(r, n, k, "block", "F32", (32, 48), "weight_scale_inv"),
                  {"quant_method": "fp8", "weight_block_size": [32, 48]}),
    "mxfp4": (lambda r, n, k: fp4(r, n, k, "mxfp4"), COMPRESSED),
    "nvfp4-modelopt": (lambda r, n, k: fp4(r, n, k, "modelopt"), {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "nvfp4-compressed": (lambda r, n, k: fp4(r, n, k, "compressed"), COMPRESSED),
    "awq": (lambda r, n, k: integers(r, n, k, "awq", zeros=True, less=0),
            {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}),
    "awq-groups-of-64": (lambda r, n, k: integers(r, n, k, "awq", zeros=True, less=0, group=64),
                         {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}),
    "gptq-sym": (lambda r, n, k: integers(r, n, k, "gptq"), gptq(sym=True)),
    "gptq-asym": (lambda r, n, k: integers(r, n, k, "gptq", zeros=True), gptq()),
    "gptq-v2": (lambda r, n, k: integers(r, n, k, "gptq", zeros=True, less=0, group=-1),
                gptq(checkpoint_format="gptq_v2", group_size=-1)),
    "gptq-act-order": (lambda r, n, k: integers(r, n, k, "gptq", zeros=True, order=True), gptq(desc_act=True)),
    "gptq-act-order-in-order": (lambda r, n, k: integers(r, n, k, "gptq"), gptq(desc_act=True, sym=True)),
    "gptq-8": (lambda r, n, k: integers(r, n, k, "gptq", bits=8), gptq(bits=8, sym=True)),
    "gptq-8-asym": (lambda r, n, k: integers(r, n, k, "gptq", bits=8, zeros=True), gptq(bits=8)),
    "packed": (lambda r, n, k: integers(r, n, k, "packed", kind="BF16"), COMPRESSED),
    "packed-asym": (lambda r, n, k: integers(r, n, k, "packed", zeros=True), COMPRESSED),
    "packed-groups-of-16": (lambda r, n, k: integers(r, n, k, "packed", group=16), COMPRESSED),
    "packed-act-order": (lambda r, n, k: integers(r, n, k, "packed", order=True), COMPRESSED),
    "packed-8": (lambda r, n, k: integers(r, n, k, "packed", bits=8, group=-1), COMPRESSED),
    "int8": (lambda r, n, k: bytes8(r, n, k, "int", "BF16"), COMPRESSED),
}


def decoded(kind, row):
    """Decodes a row of the GGUF file by the formulas of ggml, in float64."""
    if kind in ("F16", "BF16"):
        return [f16(v) if kind == "F16" else of_bf16(v) for v in
                struct.unpack(f"<{len(row) // 2}{'e' if kind == 'F16' else 'H'}", row)]
    out = []
    size = {"Q4_0": 18, "Q5_0": 22, "Q8_0": 34, "MXFP4": 17, "NVFP4": 36}[kind]
    for at in range(0, len(row), size):
        b = row[at:at + size]
        if kind == "NVFP4":
            for s in range(4):
                q = b[4 + 8 * s:12 + 8 * s]
                out += [e4m3(b[s]) * FP4[v] for v in [*(x & 15 for x in q), *(x >> 4 for x in q)]]
            continue
        if kind == "MXFP4":
            out += [2.0 ** (b[0] - 127) * FP4[v] for v in [*(x & 15 for x in b[1:]), *(x >> 4 for x in b[1:])]]
            continue
        d = struct.unpack("<e", b[:2])[0]
        if kind == "Q8_0":
            out += [d * v for v in struct.unpack("<32b", b[2:])]
            continue
        q = b[-16:]
        v = [*(x & 15 for x in q), *(x >> 4 for x in q)]
        if kind == "Q5_0":
            high, = struct.unpack("<I", b[2:6])
            v = [x + 16 * (high >> i & 1) - 8 for i, x in enumerate(v)]
        out += [d * (x - 8) for x in v]
    return out


def write_gguf(path, g, tensors, flags=()):
    """Writes the keys of @g, keys that are true, and the tensors, which are (type name, dimensions, bytes)."""
    n_keys = struct.unpack_from("<Q", g.data, 16)[0]
    head = g.data[:8] + struct.pack("<QQ", len(tensors), n_keys + len(flags)) + g.data[24:g.keys_end]
    head += b"".join(struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I?", 7, True) for key in flags)
    data = b""
    for name, (kind, dims, content) in tensors.items():
        head += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(dims))
        head += struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", TYPE[kind], len(data))
        data += content + b"\0" * (-len(content) % 32)
    pathlib.Path(path).write_bytes(head + b"\0" * (-len(head) % 32) + data)


FLOATS = ("ffn_gate_inp.", "ffn_gate_inp_shexp.", "shortconv.conv.", "conv1d.", "ssm_norm.", "rope_f", "norm.")


def cut(tensor):
    """Returns the upper halves of values in F32, which are values in BF16."""
    kind, dims, data = tensor
    out = bytearray(len(data) // 2)
    out[0::2], out[1::2] = data[2::4], data[3::4]
    return "BF16", dims, bytes(out)


def widened(tensor):
    kind, dims, data = tensor
    out = bytearray(2 * len(data))
    out[2::4], out[3::4] = data[0::2], data[1::2]
    return "F32", dims, bytes(out)


def by_columns(tensor, e):
    """Returns the columns of matrix @e of a stack in BF16, as bytes each."""
    _, (n_in, n_rows, n), data = tensor
    each = data[e * 2 * n_in * n_rows:(e + 1) * 2 * n_in * n_rows]
    rows = [each[i:i + 2 * n_in] for i in range(0, len(each), 2 * n_in)]
    return [[row[2 * k:2 * k + 2] for row in rows] for k in range(n_in)]


def turned_experts(g):
    """Returns the experts of gpt-oss in BF16 as transformers has them: by columns, of which gate and up take turns."""
    out = {}
    for name in [name for name in g.tensors if name.endswith("gate_exps.weight")]:
        gate, up, down = (g.tensors[name.replace("gate", kind)] for kind in ("gate", "up", "down"))
        n_in, n_rows, n = gate[1]
        base = f"model.layers.{name.split('.')[1]}.mlp.experts."
        both = [b"".join(in_turns(*columns)) for e in range(n) for columns in zip(by_columns(gate, e), by_columns(up, e))]
        out[base + "gate_up_proj"] = ("BF16", [n, n_in, 2 * n_rows], b"".join(both))
        out[base + "down_proj"] = ("BF16", [n, n_rows, n_in], b"".join(b"".join(c) for e in range(n) for c in by_columns(down, e)))
        biases = [g.tensors[name.replace("gate", kind).replace("weight", "bias")][2] for kind in ("gate", "up", "down")]
        values = in_turns(*([b[i:i + 4] for i in range(0, len(b), 4)] for b in biases[:2]))
        out[base + "gate_up_proj_bias"] = ("F32", [n, 2 * n_rows], b"".join(values))
        out[base + "down_proj_bias"] = ("F32", [n, n_in], biases[2])
    return out


def write_bf16(gguf, folder, file):
    """Writes the folder and the GGUF file of the F32 model @gguf with its values cut to BF16. The file has vectors, routers
    and convolutions in F32, the folder all that BF16 can hold in BF16. Files of Qwen 3.5 have their value heads in the
    folder's order, and say so."""
    g = hf_folder.Gguf(gguf)
    arch = g.keys["general.architecture"]
    for name, tensor in g.tensors.items():
        assert tensor[0] == "F32", name
        matrix = len(tensor[1]) > 1 and name.endswith("weight") and not any(part in name for part in FLOATS)
        if not name.endswith("ssm_a") and not name.startswith("rope_f"):
            g.tensors[name] = cut(tensor) if matrix else widened(cut(tensor))
    published = hf_folder.tensors_of(g)
    if arch == "gpt-oss":
        published.update(turned_experts(g))
    for name, (kind, dims, data) in published.items():
        if kind == "F32" and not any(data[0::4]) and not any(data[1::4]):
            published[name] = cut((kind, dims, data))
    hf_folder.write_folder(gguf, folder, 2, published)
    if not arch.startswith("qwen35"):
        write_gguf(file, g, g.tensors)
        return
    ordered = {name: hf_folder.grouped(g, arch, name, t) if name.startswith("blk.") else t for name, t in g.tensors.items()}
    write_gguf(file, g, ordered, [arch + ".ssm.grouped_heads"])


LINEAR = ("proj.weight", ".w1.weight", ".w2.weight", ".w3.weight", "proj_qkvz.weight", "proj_ba.weight", "proj_qkv.weight",
          "proj_z.weight", "proj_b.weight", "proj_a.weight", "linear.weight")


def is_linear(name):
    return name.endswith(LINEAR) and not name.endswith("router.proj.weight")


def can_have(form, shape):
    """Returns true if tools write matrices of @shape in this form; others stay as they are, as names in "ignore" do."""
    words = form.startswith(("awq", "gptq", "packed")) and shape[-2] % 8
    return shape[-1] % (64 if form.startswith("nvfp4") else 32) == 0 and not words


def stacked(matrices, scale):
    """Returns the tensors of a stack by the ends of their names, for matrices of FP8."""
    out = {}
    for end, to in (("weight", ""), (scale, "_" + scale.replace("weight_", ""))):
        kind, shape, _ = matrices[0].tensors[end]
        out[to] = (kind, [len(matrices), *shape], b"".join(m.tensors[end][2] for m in matrices))
    return out


def numbered(g):
    """Returns @g with the number of each value in its place. Vectors keep their values, which some layouts change."""
    out, at = copy.copy(g), 0
    out.tensors = dict(g.tensors)
    for name, (kind, dims, data) in g.tensors.items():
        n = math.prod(dims)
        if len(dims) > 1 and name.endswith("weight"):
            out.tensors[name] = (kind, dims, array.array("I", range(at, at + n)).tobytes())
            at += n
    return out, at


def in_order_of(g, name, tensor):
    """Returns a tensor as the GGUF file has it: that of Qwen 3.5 has its value heads in the folder's order, and says so."""
    arch = g.keys["general.architecture"]
    return hf_folder.grouped(g, arch, name, tensor) if arch.startswith("qwen35") and name.startswith("blk.") else tensor


def write_pair(form, gguf, folder, file, seed=1):
    """Writes the folder, and the GGUF file @file of the same numbers, of the golden model @gguf. Returns the number of the
    quantised matrices."""
    make, config = FORMS[form]
    rng = random.Random(f"{form} {seed}")
    g = hf_folder.Gguf(gguf)
    numbers, n_values = numbered(g)
    places, tensors = hf_folder.tensors_of(numbers), hf_folder.tensors_of(g)
    made = []  # matrices, each with the numbers of its values
    for name, (_, shape, _) in [*tensors.items()]:
        fused = len(shape) == 3 and form.startswith("fp8")
        if not (is_linear(name) or (fused and name.endswith(("experts.gate_up_proj", "experts.down_proj")))) or not can_have(form, shape):
            continue
        if len(shape) > 2 and not fused:
            continue
        matrices = [make(rng, *shape[-2:]) for _ in range(shape[0] if fused else 1)]
        ids, n = array.array("I", places[name][2]), math.prod(shape[-2:])
        made += [(m, ids[i * n:(i + 1) * n]) for i, m in enumerate(matrices)]
        tensors.pop(name)
        ends = matrices[0].tensors if not fused else stacked(matrices, next(e for e in matrices[0].tensors if "weight_scale" in e))
        for end in ends:
            to = name + end if fused else name[:-len("weight")] + end
            tensors[to] = ends[end]
    for m, _ in made:
        check_values(m)
    hf_folder.write_folder(gguf, folder, 2, tensors, {"quantization_config": config})
    qwen = g.keys["general.architecture"].startswith("qwen35")
    write_gguf(file, g, same_numbers(g, numbers, n_values, made),
               [g.keys["general.architecture"] + ".ssm.grouped_heads"] if qwen else [])
    return len(made)


def in_turns(a, b):
    return [row for pair in zip(a, b) for row in pair]


def fused_blocks(matrices):
    """Returns blocks and scales of matrices of MXFP4, [experts][rows][blocks], as gpt-oss has them."""
    _, (n_rows, half), _ = matrices[0]["weight_packed"]
    data = [b"".join(m[end][2] for m in matrices) for end in ("weight_packed", "weight_scale")]
    shape = [len(matrices), n_rows, half // 16]
    return ("U8", [*shape, 16], data[0]), ("U8", shape, data[1])


def woven(a, b):
    """Returns tensors with the rows of @a and @b in turns."""
    out = {}
    for end in ("weight_packed", "weight_scale"):
        kind, (n_rows, n), data = a[end]
        rows = [[t[end][2][i:i + n] for i in range(0, n_rows * n, n)] for t in (a, b)]
        out[end] = (kind, [2 * n_rows, n], b"".join(in_turns(*rows)))
    return out


def write_gpt_oss(gguf, folder, file):
    """Writes the folder of a golden model of gpt-oss with experts of random MXFP4, and a GGUF file of the same numbers."""
    g, rng = hf_folder.Gguf(gguf), random.Random(1)
    tensors, own = hf_folder.tensors_of(g), dict(g.tensors)
    for name, (_, (n_in, n_rows, n), _) in [(k, v) for k, v in g.tensors.items() if k.endswith("gate_exps.weight")]:
        of = {kind: [fp4(rng, *size, "mxfp4") for _ in range(n)] for kind, size in
              (("gate", (n_rows, n_in)), ("up", (n_rows, n_in)), ("down", (n_in, n_rows)))}
        for kind, matrices in of.items():
            to = name.replace("gate", kind)
            own[to] = ("MXFP4", g.tensors[to][1], b"".join(row for m in matrices for row in m.rows))
        base = f"model.layers.{name.split('.')[1]}.mlp.experts."
        both = [woven(a.tensors, b.tensors) for a, b in zip(of["gate"], of["up"])]
        for part, matrices in (("gate_up", both), ("down", [m.tensors for m in of["down"]])):
            tensors[f"{base}{part}_proj_blocks"], tensors[f"{base}{part}_proj_scales"] = fused_blocks(matrices)
        gate, up, down = (g.tensors[name.replace("gate", kind).replace("weight", "bias")] for kind in ("gate", "up", "down"))
        values = in_turns(*([t[2][i:i + 4] for i in range(0, len(t[2]), 4)] for t in (gate, up)))
        tensors[base + "gate_up_proj_bias"] = ("F32", [n, 2 * n_rows], b"".join(values))
        tensors[base + "down_proj_bias"] = ("F32", [n, n_in], down[2])
    hf_folder.write_folder(gguf, folder, 2, tensors, {"quantization_config": {"quant_method": "mxfp4"}})
    write_gguf(file, g, own)


def check_values(m):
    """Checks the rows of the GGUF file against the values, which are those of float64 unless the format rounds."""
    for values, row in zip(m.values, m.rows):
        if m.kind == "BF16":
            values = [of_bf16(bf16_bits(f32(v))) for v in values]
        if m.kind == "F16":
            values = [f16(v) for v in values]
        assert [v * (m.factor or 1) for v in decoded(m.kind, row)] == values


def copied_rows(made, of, shape, ids):
    """Returns the kind and the rows of a matrix that is made of single values, which are rounded to 16 bits."""
    kind, rows = None, []
    for at in range(0, len(ids), shape[0]):
        row = []
        for i in ids[at:at + shape[0]]:
            m, k = made[of[i] >> 24][0], of[i] & 0xFFFFFF
            n_in = len(m.values[0])
            kind = "BF16" if m.kind in ("BF16", "MXFP4") else "F16"
            row.append(f32(m.values[k // n_in][k % n_in]))
        rows.append(row)
    return kind, float_rows(rows, kind)


def same_numbers(g, numbers, n_values, made):
    """Returns the tensors of the GGUF file in which the matrices @made stand: whole rows, or single values where a layout
    takes rows apart."""
    assert len(made) < 255 and all(len(ids) < 1 << 24 for _, ids in made)
    of = array.array("I", [0xFFFFFFFF]) * n_values  # matrix and place in it of each value
    for i, (_, ids) in enumerate(made):
        for k, number in enumerate(ids):
            of[number] = i << 24 | k
    out = {}
    for name, tensor in g.tensors.items():
        tensor = in_order_of(g, name, tensor)
        if numbers.tensors[name] is g.tensors[name]:
            out[name] = tensor
            continue
        dims, n = tensor[1], tensor[1][0]
        ids = array.array("I", in_order_of(g, name, numbers.tensors[name])[2])
        if of[ids[0]] == 0xFFFFFFFF:
            out[name] = tensor
            continue
        if name.endswith(("attn_k_b.weight", "attn_v_b.weight")):
            kind, rows = copied_rows(made, of, dims, ids)
            out[name] = (kind, dims, b"".join(rows))
            continue
        rows, factors = [], []
        for at in range(0, len(ids), n):
            first = of[ids[at]]
            m = made[first >> 24][0]
            assert (first & 0xFFFFFF) % n == 0 and [*range(first, first + n)] == [of[i] for i in ids[at:at + n]], name
            rows.append(m.rows[(first & 0xFFFFFF) // n])
            if not factors or m is not last:
                factors.append(m.factor)
            last = m
        out[name] = (last.kind, dims, b"".join(rows))
        if last.factor:
            out[name[:-len("weight")] + "scale"] = ("F32", (len(factors),), struct.pack(f"<{len(factors)}f", *factors))
    return out
