"""A reranker of the XLM-RoBERTa family, like bge-reranker-v2-m3: Unigram tokens, <s> query </s></s> document </s>, an
encoder whose first row is the input of a two-layer head. The model is generated here; its scores are compared with a
computation in plain Python, and ids, scores and the vectors of the same encoder with llama.cpp."""
import math
import pathlib
import random
import struct
import tempfile
import time

from weftd import BACKEND, LIMIT_S, Flood, Weftd, keys_in, main, seen

if BACKEND == "cuda":
    raise SystemExit("1..0 # SKIP encoders are not served on devices")

MARK = "\u2581"
TOKENS = ["<s>", "<pad>", "</s>", "<unk>"] + [MARK + w for w in ("the", "red", "fox", "a", "jumps")] + [MARK, "s", "ed", "x", "fo", "jump", MARK + "fo"] + [chr(c) for c in range(97, 115)]
N, N_HEAD, N_FF, N_LAYER, N_CONTEXT, EPS = 64, 2, 96, 2, 64, 1e-5
U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5
MEAN, CLS, RANK = 1, 2, 4  # pooling of E5, BGE M3, a reranker
PACK = {U32: "<I", F32: "<f", BOOL: "<?", I32: "<i"}


def make_tensors():
    rng = random.Random(3)
    shapes = {"token_embd.weight": (len(TOKENS), N), "position_embd.weight": (N_CONTEXT, N), "token_types.weight": (1, N), "token_embd_norm.weight": (N,), "token_embd_norm.bias": (N,),
              "cls.weight": (N, N), "cls.bias": (N,), "cls.output.weight": (1, N), "cls.output.bias": (1,)}
    for i in range(N_LAYER):
        for name, out, width in (("attn_q", N, N), ("attn_k", N, N), ("attn_v", N, N), ("attn_output", N, N), ("ffn_up", N_FF, N), ("ffn_down", N, N_FF)):
            shapes[f"blk.{i}.{name}.weight"], shapes[f"blk.{i}.{name}.bias"] = (out, width), (out,)
        for name in ("attn_output_norm", "layer_output_norm"):
            shapes[f"blk.{i}.{name}.weight"] = shapes[f"blk.{i}.{name}.bias"] = (N,)
    def values(name, shape):
        return [struct.unpack("f", struct.pack("f", rng.gauss(0, 0.2) + ("norm.weight" in name)))[0] for _ in range(math.prod(shape))]

    return {name: (shape, values(name, shape)) for name, shape in shapes.items()}


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def value(kind, v):
    if kind == ARRAY:
        return struct.pack("<IQ", v[0], len(v[1])) + b"".join(value(v[0], x) for x in v[1])
    return string(v) if kind == STRING else struct.pack(PACK[kind], v)


def write(path, tensors, pooling=RANK):
    scores = [0.0] * 4 + [-float(len(TOKENS) - i) / 4 for i in range(4, len(TOKENS))][::-1]
    meta = [("general.architecture", STRING, "bert"), ("general.name", STRING, "small reranker"), ("bert.context_length", U32, N_CONTEXT), ("bert.embedding_length", U32, N),
            ("bert.feed_forward_length", U32, N_FF), ("bert.block_count", U32, N_LAYER), ("bert.attention.head_count", U32, N_HEAD), ("bert.attention.layer_norm_epsilon", F32, EPS),
            ("bert.attention.causal", BOOL, False), ("bert.pooling_type", U32, pooling), ("tokenizer.ggml.model", STRING, "t5"),
            ("tokenizer.ggml.tokens", ARRAY, (STRING, TOKENS)), ("tokenizer.ggml.scores", ARRAY, (F32, scores)),
            ("tokenizer.ggml.token_type", ARRAY, (I32, [3, 3, 3, 2] + [1] * (len(TOKENS) - 4))),
            ("tokenizer.ggml.bos_token_id", U32, 0), ("tokenizer.ggml.eos_token_id", U32, 2), ("tokenizer.ggml.seperator_token_id", U32, 2), ("tokenizer.ggml.unknown_token_id", U32, 3), ("tokenizer.ggml.padding_token_id", U32, 1), ("tokenizer.ggml.token_type_count", U32, 1),
            ("tokenizer.ggml.add_bos_token", BOOL, True), ("tokenizer.ggml.add_eos_token", BOOL, True), ("tokenizer.ggml.add_sep_token", BOOL, True), ("tokenizer.ggml.add_space_prefix", BOOL, True),
            ("tokenizer.ggml.remove_extra_whitespaces", BOOL, True), ("bert.attention.head_count_kv", U32, N_HEAD)]
    if pooling != RANK:
        tensors = {name: t for name, t in tensors.items() if not name.startswith("cls.")}
    head = struct.pack("<IIQQ", 0x46554747, 3, len(tensors), len(meta)) + b"".join(string(k) + struct.pack("<I", t) + value(t, v) for k, t, v in meta)
    data = b""
    for name, (shape, values) in tensors.items():
        head += string(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape[::-1]) + struct.pack("<IQ", 0, len(data))
        data += struct.pack(f"<{len(values)}f", *values) + bytes(-4 * len(values) % 32)
    pathlib.Path(path).write_bytes(head + bytes(-len(head) % 32) + data)


def score(w, ids):
    """Returns the model's score for the tokens of a pair."""
    def row(name, i):
        return w[name][1][i * N:(i + 1) * N]

    def norm(x, name):
        mean = sum(x) / N
        deviation = math.sqrt(sum((v - mean) ** 2 for v in x) / N + EPS)
        return [(v - mean) / deviation * a + b for v, a, b in zip(x, w[name + ".weight"][1], w[name + ".bias"][1])]

    def matrix(x, name):
        values, width = w[name + ".weight"][1], len(x)
        return [sum(a * b for a, b in zip(values[i * width:(i + 1) * width], x)) + bias for i, bias in enumerate(w[name + ".bias"][1])]

    def gelu(v):
        return 0.5 * v * (1 + math.erf(v / math.sqrt(2)))

    def mix(q, keys, values):
        size = N // N_HEAD
        out = []
        for h in range(0, N, size):
            e = [math.exp(sum(a * b for a, b in zip(q[h:h + size], k[h:h + size])) / math.sqrt(size)) for k in keys]
            out += [sum(p * v[h + c] for p, v in zip(e, values)) / sum(e) for c in range(size)]
        return out

    def add(x, y):
        return [a + b for a, b in zip(x, y)]

    rows = [norm(add(add(row("token_embd.weight", t), row("position_embd.weight", i)), row("token_types.weight", 0)), "token_embd_norm") for i, t in enumerate(ids)]
    for i in range(N_LAYER):
        q, k, v = ([matrix(x, f"blk.{i}.attn_{p}") for x in rows] for p in "qkv")
        rows = [norm(add(x, matrix(mix(q[r], k, v), f"blk.{i}.attn_output")), f"blk.{i}.attn_output_norm") for r, x in enumerate(rows)]
        rows = [norm(add(x, matrix([gelu(u) for u in matrix(x, f"blk.{i}.ffn_up")], f"blk.{i}.ffn_down")), f"blk.{i}.layer_output_norm") for x in rows]
    return matrix([math.tanh(u) for u in matrix(rows[0], "cls")], "cls.output")[0]


def test_scores_are_those_of_the_model():
    tensors = make_tensors()
    query, documents = "the red fox", ["a fox jumps", "the red  foxes", "\u4e2d\u6587 a", "jumped"]
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/reranker.gguf"
        write(path, tensors)
        with Weftd("--threads", "1", model=path) as d:
            def ids(text):
                status, _, body = d.request("POST", "/tokenize", {"content": text, "add_special": False})
                assert status == 200, body
                return body["tokens"]

            assert ids("  the   red fox ") == [4, 5, 6] and ids("the \u4e2d\u6587")[-1] == 3
            pairs = [[0, *ids(query), 2, 2, *ids(t), 2] for t in documents]
            should = [score(tensors, p) for p in pairs]
            assert max(should) - min(should) > 0.1, "they are alike: the test is blind"
            status, _, body = d.request("POST", "/v1/rerank", {"query": query, "documents": documents, "raw_scores": True})
            assert status == 200, body
            got = {r["index"]: r["relevance_score"] for r in body["results"]}
            assert body["usage"]["prompt_tokens"] == sum(map(len, pairs)), (body["usage"], pairs)
            worst = max(abs(got[i] - s) for i, s in enumerate(should))
            assert worst < (1e-3 if BACKEND == "reference" else 0.1), (worst, got, should)
            status, _, body = d.request("POST", "/v1/score", {"text_1": query, "text_2": documents})
            assert status == 200, body
            for i, row in enumerate(body["data"]):
                assert abs(row["score"] - 1 / (1 + math.exp(-got[i]))) < 1e-5, (row, got)


# llama-server of llama.cpp 0.7.0 on the files that write() makes (--reranking, --embedding; -ub 64): ids of
# /tokenize with special tokens, scores of /v1/rerank, and of /v1/embeddings the first and the last four values with the
# pooling of BGE M3 (CLS) and of E5 (MEAN). Its GELU comes from a table of halves, hence the tolerance.
TEXTS = ("the red fox", "a fox jumps", "the red  foxes", "\u4e2d\u6587 a", "jumped")
IDS = ([0, 4, 5, 6, 2], [0, 7, 6, 8, 2], [0, 4, 5, 6, 20, 10, 2], [0, 9, 3, 7, 2], [0, 9, 14, 11, 2])
SCORES = (-0.157381, 0.770431, 0.854709, 0.297755)
VECTORS = {
    CLS: (
        (0.039729, 0.060654, -0.014739, -0.076045, 0.243780, 0.008116, -0.122476, -0.109627),
        (-0.014140, 0.038101, -0.047558, -0.126491, 0.136455, 0.022562, -0.169325, -0.041273),
        (0.004910, 0.057056, -0.032228, -0.075329, 0.254505, 0.015648, -0.123447, -0.119991),
        (-0.025353, 0.085903, -0.000826, -0.083097, 0.116193, 0.009872, -0.127890, -0.010808),
        (0.009548, 0.126638, 0.009527, -0.072729, 0.148975, 0.013873, -0.142535, -0.049026),
    ),
    MEAN: (
        (0.009553, 0.064415, -0.023220, -0.049667, 0.271057, 0.016221, -0.092813, -0.123438),
        (-0.029174, 0.056634, -0.048306, -0.107618, 0.163233, 0.017257, -0.128572, -0.024837),
        (-0.027561, 0.060873, -0.034229, -0.053376, 0.280075, 0.014465, -0.080397, -0.120026),
        (-0.021072, 0.090962, -0.008675, -0.082975, 0.145051, 0.017805, -0.113946, -0.050936),
        (-0.022628, 0.125700, -0.019106, -0.069432, 0.152826, 0.019866, -0.097617, -0.017103),
    ),
}


def test_ids_vectors_and_scores_are_those_of_llama_cpp():
    tensors = make_tensors()
    for pooling in (RANK, CLS, MEAN):
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/encoder.gguf"
            write(path, tensors, pooling)
            with Weftd("--threads", "1", model=path) as d:
                for text, ids in zip(TEXTS, IDS):
                    status, _, body = d.request("POST", "/tokenize", {"content": text, "add_special": True})
                    assert status == 200 and body["tokens"] == ids, (text, body)
                if pooling == RANK:
                    status, _, body = d.request("POST", "/v1/rerank", {"query": TEXTS[0], "documents": TEXTS[1:], "raw_scores": True})
                    assert status == 200, body
                    got, should = [r["relevance_score"] for r in sorted(body["results"], key=lambda r: r["index"])], SCORES
                else:
                    status, _, body = d.request("POST", "/v1/embeddings", {"input": TEXTS})
                    assert status == 200, body
                    got = [v for row in body["data"] for v in row["embedding"][:4] + row["embedding"][-4:]]
                    should = [v for row in VECTORS[pooling] for v in row]
                worst = max(abs(a - b) for a, b in zip(got, should, strict=True))
                assert worst < (5e-3 if pooling == RANK else 1e-3), (pooling, worst, got)


def test_scores_of_one_tenant_keep_no_other_waiting():
    """Alice requests thousands of scores at once, and cancels half of them; Bob's few are not queued behind hers and
    keep their values."""
    many, long = ["a"] * 1000, ["the red fox jumps " * 10] * 500
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/reranker.gguf"
        write(path, make_tensors())
        with Weftd("--threads", "1", "--api-keys", keys_in(folder), model=path) as d:

            def ranks():
                status, _, body = d.request("POST", "/v1/rerank", {"query": "the fox", "documents": ["a fox", "jumps"]}, {"Authorization": "Bearer kb"})
                assert status == 200, body
                return body["results"]

            alone = ranks()
            with Flood(d, ("/v1/rerank", {"query": "fox", "documents": many}), ("/v1/score", {"text_1": "fox", "text_2": long})) as flood:
                waits = flood.measure(ranks, alone)
            seen(waits[len(waits) // 2] < max(flood.took) / 3, waits, flood.took)
            until = time.monotonic() + LIMIT_S
            while d.stats()["front"]["running"] + d.stats()["front"]["queued"] > 0:
                assert time.monotonic() < until, d.stats()["front"]
                time.sleep(0.05)


main(globals())
