"""Makes the small tokenizers of this folder, and the golden ids of Hugging Face's library for them: make.py PACKAGES, the folder in which npm installed
package.json. The merges are those of a text of this repository."""
import collections
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from check_hf import MARK, METASPACE, REGEXES, byte_level, is_old, sequence, split  # noqa: E402
from hf_texts import SENTENCES, texts  # noqa: E402

TEXT = (HERE.parent.parent.parent / "docs" / "design" / "conventions.md").read_text()
BYTES = [b if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174 else None for b in range(256)]


def byte_chars():
    """GPT-2's printable character of each byte."""
    free = iter(range(256, 512))
    return [chr(b if b is not None else next(free)) for b in BYTES]


def merges_of(words, n):
    """The first @n merges of byte pair encoding."""
    words, merges = [(list(w), k) for w, k in collections.Counter(words).items()], []
    for _ in range(n):
        pairs = collections.Counter()
        for word, k in words:
            for pair in zip(word, word[1:]):
                pairs[pair] += k
        best = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(best)
        for word, _ in words:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == best:
                    word[i:i + 2] = ["".join(best)]
                i += 1
    return merges


def added(first, **tokens):
    return [{"id": first + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **flags} for i, (name, flags) in enumerate(tokens.items())]


def bpe(chars, pairs, **values):
    vocab = list(dict.fromkeys([*chars, *("".join(m) for m in pairs)]))
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": {t: i for i, t in enumerate(vocab)}, **values}


def bytes_bpe():
    chars = byte_chars()
    words = ["".join(chars[b] for b in (" " + w).encode()) for w in TEXT.split()]
    merges = merges_of(words, 300)
    model = bpe(chars, merges, merges=[" ".join(m) for m in merges])
    n = len(model["vocab"])
    return {
        "added_tokens": added(n, **{"<|end|>": {}, "<|left|>": {"lstrip": True}, "<|right|>": {"rstrip": True}, "word": {"single_word": True}, "<tool>": {"special": False}, "<tool>x": {"special": False}}),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": sequence("pre_tokenizer", split(REGEXES["qwen35"]), byte_level()),
        "post_processor": byte_level(),
        "decoder": byte_level(),
        "model": model,
    }


def chars_bpe():
    words = [MARK + w for w in TEXT.split()]
    merges = merges_of(words, 250)
    chars = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{b:02X}>" for b in range(256)), *sorted(set("".join(words)) | set("\n"))]
    model = bpe(chars, merges, merges=[list(m) for m in merges], unk_token="<unk>", byte_fallback=True, fuse_unk=True, ignore_merges=False)
    return {
        "added_tokens": added(0, **{"<pad>": {}, "<eos>": {}, "<bos>": {}, "<unk>": {}}) + added(len(model["vocab"]), **{"<mark>": {"special": False}, "\n\n": {"special": False}}),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": MARK},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": model,
    }


def pieces():
    words = collections.Counter(TEXT.lower().split())
    vocab = list(dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(w for w, _ in words.most_common(250)), *sorted(set(TEXT.lower())), *("##" + c for c in sorted(set(TEXT.lower())))]))
    return {
        "added_tokens": added(0, **{t: {} for t in vocab[:4]}),
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {t: i for i, t in enumerate(vocab)}},
    }


def unigram():
    words = [MARK + w for w in TEXT.split()]
    tokens = list(dict.fromkeys(["<s>", "</s>", "<unk>", *("".join(m) for m in merges_of(words, 250)), *sorted(set("".join(words)))]))
    return {
        "added_tokens": added(0, **{t: {} for t in tokens[:3]}),
        "normalizer": {"type": "NFKC"},
        "pre_tokenizer": sequence("pre_tokenizer", {"type": "WhitespaceSplit"}, METASPACE),
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for i, t in enumerate(tokens[:2])}},
        "decoder": METASPACE,
        "model": {"type": "Unigram", "unk_id": 2, "byte_fallback": False, "vocab": [[t, 0 if i < 3 else -(i % 97) / 4 - 1] for i, t in enumerate(tokens)]},
    }


def main():
    golden = {}
    for name, tokenizer in {"bytes": bytes_bpe(), "chars": chars_bpe(), "pieces": pieces(), "unigram": unigram()}.items():
        path = HERE / f"{name}.json"
        path.write_text(json.dumps({"version": "1.0", "truncation": None, "padding": None, **tokenizer}, separators=(",", ":")) + "\n")
        names = [t["content"] for t in tokenizer["added_tokens"]]
        some = [t for t in texts(900, 7, names) if t not in SENTENCES and len(t) <= 60 and is_old(t)][:80] + SENTENCES[:20]
        (HERE / "texts.tmp").write_text(json.dumps(some))
        done = subprocess.run(["node", "ids.cjs", str(path.resolve()), str((HERE / "texts.tmp").resolve()), "--around"], cwd=sys.argv[1], check=True, capture_output=True, text=True)
        (HERE / "texts.tmp").unlink()
        golden[name] = [[t, [int(i) for i in ids.split()]] for t, ids in zip(some, done.stdout.split("\n"))]
    (HERE / "golden.json").write_text(json.dumps(golden, separators=(",", ":")).replace('],["', '],\n["') + "\n")


if __name__ == "__main__":
    main()
