"""Random small files tokenizer.json against Hugging Face's library: normalizers, pre-tokenizers, decoders and added tokens in any order and with any flags.

check_hf_forms.py HF_IDS [--files N] [--seed N] [--texts N] [--kind NAME]: HF_IDS is the program of hf_ids.c. A file is refused, with a message that names what is not
computed, or has the library's ids and texts. Prints how many files were refused for which reason, and those that differ."""
import argparse
import collections
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "clients"), str(HERE.parent / "e2e")]

from check_hf import MARK, is_old  # noqa: E402
from clients import Skip, install  # noqa: E402
from hf_texts import characters, mixed  # noqa: E402

BEHAVIORS = ["Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"]
EXPRESSIONS = [r"\s+", r"\d", r"[a-z]+", r"\p{L}+|\p{N}", r"[A-Z]|(?=[0-9])", r" ?\p{L}+|\s+(?!\S)|\s+", r"(?<=\s)\S", r"\w+|[^\w\s]+", MARK + r"?\p{L}+", r"'s|'t|e", r"^.|.$", r"x*", r"(?:an|n)(?= )", r"\d{1,3}(?=(?:\d{3})*\b)", r"(?!an(?=n|\s+\S))\p{L}|(?=.*\))\("]
STRINGS = ["", " ", "e", "an", ".", MARK, "  ", "(", "é", "\n"]
TOKENS = ["<a>", "<ab", "word", " an", "é", "É", "<T>", "ﬁ", "\n\n", "the", MARK + "x", "<|x|>", "Word", "12", "  "]


def some(rng, makers, most):
    return [rng.choice(makers)(rng) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, most]))]


def listed(name, items):
    """@items as one, or as a Sequence."""
    if not items:
        return None
    return items[0] if len(items) == 1 else {"type": "Sequence", name: items}


def plain(type_name):
    return lambda rng: {"type": type_name}


def flag(rng):
    return rng.random() < 0.5


def pattern(rng):
    return {"Regex": rng.choice(EXPRESSIONS)} if flag(rng) else {"String": rng.choice(STRINGS)}


def replace(rng):
    return {"type": "Replace", "pattern": pattern(rng) if rng.random() < 0.3 else {"String": rng.choice(STRINGS)}, "content": rng.choice(["", " ", MARK, "x", "ab"])}


def space_mark(rng):
    return {"type": "Replace", "pattern": {"String": " "}, "content": MARK}


def metaspace(rng):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": rng.choice(["first", "always", "never"]), "split": flag(rng)}


NORMALIZERS = [*(plain(t) for t in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")), replace, replace, space_mark,
               lambda rng: {"type": "Prepend", "prepend": rng.choice([MARK, "x", " "])}, lambda rng: {"type": "Strip", "strip_left": flag(rng), "strip_right": flag(rng)}]
PRE_TOKENIZERS = [
    lambda rng: {"type": "Split", "pattern": pattern(rng), "behavior": rng.choice(BEHAVIORS), "invert": flag(rng)},
    lambda rng: {"type": "Split", "pattern": pattern(rng), "behavior": rng.choice(BEHAVIORS), "invert": flag(rng)},
    lambda rng: {"type": "Punctuation", "behavior": rng.choice(BEHAVIORS)},
    lambda rng: {"type": "Digits", "individual_digits": flag(rng)},
    plain("Whitespace"), plain("WhitespaceSplit"), metaspace,
    lambda rng: {"type": "CharDelimiterSplit", "delimiter": rng.choice("e .")},
]
DECODERS = [plain("Fuse"), plain("ByteFallback"), metaspace, lambda rng: {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
            lambda rng: {"type": "Strip", "content": " ", "start": rng.choice([0, 1, 1, 2]), "stop": rng.choice([0, 0, 1])}, replace]


def byte_level(rng):
    return {"type": "ByteLevel", "add_prefix_space": rng.random() < 0.3, "trim_offsets": True, "use_regex": flag(rng)}


def ids_of(model):
    """The ids of the texts of @model, by the text."""
    return {text: i for i, (text, _) in enumerate(model["vocab"])} if model["type"] == "Unigram" else model["vocab"]


def added(rng, tokenizer):
    """Added tokens, some of them searched in normalized text."""
    known = ids_of(tokenizer["model"])
    tokens, first = [], len(known)
    for text in rng.sample(TOKENS, rng.choice([0, 0, 1, 2, 4])):
        flags = {name: rng.random() < 0.35 for name in ("single_word", "lstrip", "rstrip", "special")}
        flags["single_word"] &= text not in known and not text.isspace()
        tokens.append({"id": known.get(text, first), "content": text, "normalized": flag(rng), **flags})
        first += text not in known
    return tokens


def bytes_file(rng, model):
    pre = [*some(rng, PRE_TOKENIZERS, 3), byte_level(rng)]
    return {"normalizer": listed("normalizers", some(rng, NORMALIZERS, 4)), "pre_tokenizer": listed("pretokenizers", pre), "decoder": {"type": "ByteLevel"}, "model": model}


def chars_file(rng, model):
    model.update(byte_fallback=flag(rng), fuse_unk=flag(rng), ignore_merges=flag(rng))
    normalizers = some(rng, NORMALIZERS, 4) + [space_mark(rng)] * flag(rng)
    usual = [{"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    decoders = rng.choice([usual[:3], usual, some(rng, DECODERS, 4)])
    return {"normalizer": listed("normalizers", normalizers), "pre_tokenizer": listed("pretokenizers", some(rng, PRE_TOKENIZERS, 3)), "decoder": listed("decoders", decoders), "model": model}


def unigram_file(rng, model):
    pre = rng.choice([[metaspace(rng)], [{"type": "WhitespaceSplit"}, metaspace(rng)], some(rng, PRE_TOKENIZERS[5:7], 3)])
    return {"normalizer": listed("normalizers", some(rng, NORMALIZERS, 4)), "pre_tokenizer": listed("pretokenizers", pre), "decoder": metaspace(rng), "model": model}


def pieces_file(rng, model):
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": rng.choice([None, True, False]), "lowercase": flag(rng)}
    around = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    return {"normalizer": normalizer, "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": around, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False}, "model": model}


KINDS = {"bytes": bytes_file, "chars": chars_file, "unigram": unigram_file, "pieces": pieces_file}


def make(rng, only):
    """A random tokenizer of one of the kinds @only, or of any."""
    name = rng.choice(only or ["bytes", "chars", "chars", "unigram", "pieces"])
    model = json.loads((HERE / "hf" / f"{name}.json").read_text())["model"]
    tokenizer = KINDS[name](rng, model)
    tokenizer["added_tokens"] = added(rng, tokenizer)
    return {"version": "1.0", "truncation": None, "padding": None, "post_processor": None, **tokenizer}


def texts_for(rng, n, tokens):
    out = {"": None, " ": None, "  a  b ": None, "an an (1.5)": None}
    while len(out) < n:
        text = mixed(rng, tokens) if rng.random() < 0.8 else characters(rng, rng.randint(1, 40))
        if len(text) <= 200 and is_old(text):
            out[text] = None
    return list(out)


def theirs(packages, cases):
    """What the library makes of each case. It ends with an abort at some files, which have an error then."""
    out = []
    while len(out) < len(cases):
        done = subprocess.run(["node", packages / "forms.cjs"], input=json.dumps(cases[len(out):]), capture_output=True, text=True)
        out += [json.loads(line) for line in done.stdout.split("\n")[:-1]]
        if done.returncode > 0:
            raise AssertionError(done.stderr[-2000:])
        if done.returncode < 0:
            out.append({"error": "aborted"})
    return out


def ours(program, path, texts):
    """What weft makes of the file at @path: ids and decoded texts, or its refusal."""
    out = []
    for mode in ([], ["--decode"]):
        done = subprocess.run([str(program), str(path), str(texts), *mode], capture_output=True, text=True)
        if done.returncode == 1 and "tokenizer.json" in done.stderr:
            return done.stderr.split("tokenizer.json: ")[-1].strip(), None
        if done.returncode:
            raise AssertionError(f"{program} ended with {done.returncode}: {done.stderr}")
        out.append([line.strip() for line in done.stdout.split("\n")[:-1]])
    return None, out


def compares_texts(tokenizer, text, ids):
    """Whether decoding @ids must give the library's text. weft drops a space that was added behind a special token, too, and writes marks and bytes as what
    they stand for where a file has no such decoder."""
    kinds = json.dumps(tokenizer["decoder"])
    whole = tokenizer["decoder"] and ("ByteLevel" in kinds or ("Metaspace" in kinds and tokenizer["model"]["type"] == "Unigram") or ("Replace" in kinds and "ByteFallback" in kinds))
    special = [t["content"] for t in tokenizer["added_tokens"]] + ["<unk>"]
    return whole and not any(t in text for t in special) and ids.split(" ")[0] not in ("2", "3")


def differences(tokenizer, texts, own, other):
    """Texts whose ids or decoded texts are not the library's: what differs, the text, ours, theirs."""
    out = []
    for text, ids, decoded, other_ids, other_decoded in zip(texts, *own, other["ids"], other["decoded"]):
        if ids != other_ids:
            out.append(("ids", text, ids, other_ids))
        elif decoded != other_decoded and compares_texts(tokenizer, text, ids):
            out.append(("decoded", text, decoded, other_decoded))
    return out


def shown(tokenizer):
    return json.dumps({k: v for k, v in tokenizer.items() if k in ("normalizer", "pre_tokenizer", "decoder", "added_tokens") and v}, ensure_ascii=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--texts", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=10)
    parser.add_argument("--kind", action="append", choices=KINDS)
    options = parser.parse_args()
    try:
        packages = install("hf-tokenizers", source=HERE / "hf")
    except Skip as why:
        print(f"1..0 # SKIP {why}")
        return 0
    rng = random.Random(options.seed)
    made = [make(rng, options.kind) for _ in range(options.files)]
    cases = [{"tokenizer": json.dumps(t), "texts": texts_for(rng, options.texts, [a["content"] for a in t["added_tokens"]])} for t in made]
    refused, differing, equal, unusable = collections.Counter(), [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        path, texts = pathlib.Path(folder) / "tokenizer.json", pathlib.Path(folder) / "texts.json"
        for tokenizer, case, other in zip(made, cases, theirs(packages, cases)):
            path.write_text(case["tokenizer"])
            texts.write_text(json.dumps(case["texts"]))
            why, own = ours(options.program, path, texts)
            if why:
                refused[re.sub(r"[0-9]+", "N", why)[:100]] += 1
            elif "error" in other:
                unusable += 1
            else:
                found = differences(tokenizer, case["texts"], own, other)
                equal += not found
                differing += [(tokenizer, found)] if found else []
    print(f"1..1\n{'not ok' if differing else 'ok'} 1 - {options.files} files: {equal} with equal ids and texts, {len(differing)} with others, {sum(refused.values())} refused, {unusable} that the library does not read")
    for why, n in refused.most_common():
        print(f"# {n} refused: {why}")
    for tokenizer, found in differing[:options.show]:
        what, text, own, other = min(found, key=lambda f: len(f[1]))
        print(f"# file {shown(tokenizer)}\n#   {len(found)} texts; {what} of {text!a}\n#     ours   {own}\n#     theirs {other}")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
