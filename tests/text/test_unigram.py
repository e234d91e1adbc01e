"""Unigram vocabularies against SentencePiece (Debian's python3-sentencepiece): small models are trained here, each with a map of normalisation of its
own, and random and real texts must get the same ids."""
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

try:
    import sentencepiece
except ImportError:
    print("1..0 # SKIP python3-sentencepiece is not installed")
    sys.exit(0)

HELPER, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
U8, F32, BOOL, STRING, ARRAY, I32 = 0, 6, 7, 8, 9, 5
EXTRA = ("caf\u00e9 \u2460 \ufb01sh \uff28\uff25\uff2c\uff2c\uff2f \u30ab\u3099 \uac00\ub098\ub2e4 \u4e2d\u6587\u5206\u8bcd \u0417\u0434\u0440\u0430\u0432\u0441\u0442\u0432\u0443\u0439 "
         "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u00bd \u2122 \u212b e\u0301 \u200b \u00ad \U0001f600 \u3000 \u00a0")


def fields(data):
    """(number, value) of a protobuf message; values of length-delimited fields as bytes."""
    i = 0

    def varint():
        nonlocal i
        value = shift = 0
        while True:
            byte = data[i]
            i += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while i < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            n = varint() if key & 7 == 2 else {1: 8, 5: 4}[key & 7]
            yield key >> 3, data[i:i + n]
            i += n


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf(path, values):
    """A file with (key, type, value) and no tensors; arrays are (type, list)."""
    out = struct.pack("<IIQQ", 0x46554747, 3, 0, len(values))
    pack = {U8: lambda v: struct.pack("<B", v), F32: lambda v: struct.pack("<f", v), BOOL: lambda v: struct.pack("<?", v), I32: lambda v: struct.pack("<i", v), STRING: string}
    for key, kind, value in values:
        out += string(key) + struct.pack("<I", kind)
        if kind == ARRAY:
            kind, value = value
            out += struct.pack("<IQ", kind, len(value)) + b"".join(map(pack[kind], value))
        else:
            out += pack[kind](value)
    pathlib.Path(path).write_bytes(out)


def train(folder, **options):
    model = folder + "/m"
    sentencepiece.SentencePieceTrainer.train(input=folder + "/text", model_prefix=model, model_type="unigram", minloglevel=2, num_threads=1, **options)
    sp = sentencepiece.SentencePieceProcessor(model_file=model + ".model")
    spec = [v for n, v in fields(pathlib.Path(model + ".model").read_bytes()) if n == 3][0]
    spec = dict(fields(spec))
    ids = range(sp.get_piece_size())
    kinds = [2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 5 if sp.is_unused(i) else 1 for i in ids]
    gguf(model + ".gguf", [
        ("general.architecture", STRING, "bert"), ("tokenizer.ggml.model", STRING, "t5"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, [sp.id_to_piece(i) for i in ids])),
        ("tokenizer.ggml.scores", ARRAY, (F32, [sp.get_score(i) for i in ids])),
        ("tokenizer.ggml.token_type", ARRAY, (I32, kinds)),
        ("tokenizer.ggml.add_space_prefix", BOOL, bool(spec.get(3, 1))),
        ("tokenizer.ggml.remove_extra_whitespaces", BOOL, bool(spec.get(4, 1))),
        ("tokenizer.ggml.precompiled_charsmap", ARRAY, (U8, list(spec.get(2, b"")))),
    ])
    return sp, model + ".gguf"


def texts(rng, real):
    letters = sorted(set(EXTRA)) + list("aeinorst  \t\n.,#") * 3
    for _ in range(1500):
        yield "".join(rng.choice(letters) for _ in range(rng.randrange(1, 30)))
    for _ in range(800):
        at = rng.randrange(len(real))
        yield real[at:at + rng.randrange(1, 300)]
    yield real[:20000]


def check(i, name, **options):
    rng = random.Random(i)
    with tempfile.TemporaryDirectory() as folder:
        real = "\n".join(p.read_text() for p in sorted((ROOT / "docs").rglob("*.md"))[:8])
        pathlib.Path(folder, "text").write_text(real + ("\n" + EXTRA) * 30)
        sp, path = train(folder, **options)
        asked = [t for t in texts(rng, real) if "\0" not in t]
        pathlib.Path(folder, "asked").write_bytes(b"".join(t.encode() + b"\0" for t in asked))
        said = subprocess.run([HELPER, path, folder + "/asked"], capture_output=True, text=True, check=True).stdout.splitlines()
        assert len(said) == len(asked), (len(said), len(asked))
        wrong = [(t, w, g) for t, w, g in ((t, sp.encode(t), [int(n) for n in s.split()]) for t, s in zip(asked, said)) if w != g]
        for text, want, got in wrong[:3]:
            print(f"# {text!r}\n#   {want}\n#   {got}")
        print(f"{'not ' if wrong else ''}ok {i} - {name}: {len(asked)} texts", flush=True)
        return not wrong


MODELS = (
    ("nmt_nfkc", dict(vocab_size=900, normalization_rule_name="nmt_nfkc")),
    ("lower case", dict(vocab_size=600, normalization_rule_name="nmt_nfkc_cf", character_coverage=0.98)),
    ("no map, spaces as they are", dict(vocab_size=700, normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False)),
)
print(f"1..{len(MODELS)}")
sys.exit(0 if all([check(i, name, **options) for i, (name, options) in enumerate(MODELS, 1)]) else 1)
