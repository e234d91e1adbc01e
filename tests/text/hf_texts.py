"""Texts for comparing tokenizers: code, languages, random characters, runs, normal forms, emoji, white space, and special tokens in the middle of them.
The same seed gives the same texts."""
import pathlib
import random
import sys
import unicodedata

ROOT = pathlib.Path(__file__).parent.parent.parent
SENTENCES = [
    "The quick brown fox doesn't jump; it'll've walked 12345 miles (3.14%) — I'M SURE, WE'RE not.", "L'été, où l'on naît à Noël: cœur, garçon, «déjà».",
    "Größe, Straße, Übermut: die Füße tun weh.", "El niño comió piñas; ¿qué más? ¡Olé!", "O coração não é só emoção.", "Zażółć gęślą jaźń, Łódź.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.", "Árvíztűrő tükörfúrógép.", "İstanbul'da ılık bir gün, ağaç ŞIĞ.", "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Їжак і ґанок, під'їзд.", "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΟΔΥΣΣΕΥΣ", "נִקּוּד: שלום עולם, מה שלומך?", "السَّلامُ عليكم ورحمة الله ١٢٣٤", "این یک متن فارسی است‌که نیم‌فاصله دارد.",
    "नमस्ते दुनिया, क्षत्रिय १२३ हिन्दी", "বাংলা ভাষা সুন্দর।", "தமிழ் மொழி க்ஷ", "తెలుగు భాష", "ภาษาไทยไม่มีช่องว่าง ๑๒๓ น้ำ", "ພາສາລາວ", "မြန်မာဘာသာ", "ភាសាខ្មែរ", "བོད་སྐད།", "ქართული ენა ᲥᲐᲠᲗᲣᲚᲘ",
    "Հայերեն լեզու և", "አማርኛ ቋንቋ", "今天天气很好，我们去公园吧！２０２４年１２月", "東京は日本の首都です。カタカナ、ひらがな、ﾊﾝｶｸ。が", "한국어는 재미있어요. 각 힣", "ᄒᆞᆫ글 옛한글", "Tiếng Việt có dấu: Nguyễn, ườ.",
    "Ünïcödé ﬁ ﬂ ½ ² Ⅷ ⅳ ㎏ ™ Å ℌ ①②③ ｆｕｌｌ", "𝐌𝐚𝐭𝐡 𝔘𝔫𝔦 𝒳 𝟘𝟙𝟚", "𐐀𐐨 𒀀𒀁 𓀀 𠀀𠮷 👩‍👩‍👧‍👦🏳️‍🌈🇩🇪👍🏽❤️‍🔥", "Ça va? e\u0301a\u0300 q\u0323\u0307 q\u0307\u0323 \u1e9b\u0323 \u212b \u2126", "don’t “quote” ‘s ʼs 'ſ 'S 'LL 'D 'tis",
    "\u202eabc\u202c \u200bzero\u200dwidth\ufeff \u00ad soft", "a\u00a0b\u2003c\u2028d\u2029e\u3000f\u0085g\u180eh\u1680i",
]
EMOJI = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "👍🏽", "❤️‍🔥", "😀", "🧑🏿‍🚀", "1️⃣", "☺️", "🫠"]
SPACES = [" ", " ", " ", "\n", "\n", "\t", "\r\n", "\r", "\u00a0", "\u3000", "\u2003", "\u2028", "\v", "\f", "\u0085"]
RUNS = [" ", "a", "A", "=", "-", "\n", "\t", "0", "é", "中", "😀", "\u0301", "ー", "'", "\u200d", "▁", "\u00a0", "ا", "क", "#", "<", "/"]

# Marks and compatible characters that came after Unicode 9.0, the version by which Hugging Face's library normalises: it leaves them as they are.
NEWER = [(0x32FF, 0x32FF), (0xA7F2, 0xA7F4), (0xAB69, 0xAB69), (0x10781, 0x107BA), (0x1F16C, 0x1F16C), (0x1FBF0, 0x1FBF9), (0x7FD, 0x7FD), (0x898, 0x8D3), (0x9FE, 0x9FE), (0xC3C, 0xC3C), (0xD3B, 0xD3C), (0xEBA, 0xEBA), (0x1715, 0x1715), (0x1ABF, 0x1ACE), (0x1DF6, 0x1DFA), (0xA82C, 0xA82C), (0x10D24, 0x10D27),
             (0x10EAB, 0x10EAC), (0x10F46, 0x10F85), (0x11070, 0x11070), (0x1133B, 0x1133B), (0x1145E, 0x1145E), (0x11839, 0x1183A), (0x1193D, 0x11943), (0x119E0, 0x119E0), (0x11A34, 0x11A99), (0x11D42, 0x11D97),
             (0x16FF0, 0x16FF1), (0x1E130, 0x1E136), (0x1E2AE, 0x1E2EF)]


def code():
    """Texts of files of this repository."""
    names = [p for end in ("c", "h", "py", "md", "js", "css", "jinja", "build", "json") for p in sorted(ROOT.glob(f"[!b]*/**/*.{end}")) if "node_modules" not in p.parts]
    return [p.read_text(errors="replace") for p in names[:400]]


def characters(rng, n):
    """Random assigned characters of a few ranges."""
    ranges = [(0x20, 0x7F), (0x80, 0x250), (0x250, 0x600), (0x600, 0x1100), (0x1100, 0x2000), (0x2000, 0x2C00), (0x2C00, 0xA000), (0xA000, 0xD800), (0xE000, 0x10000), (0x10000, 0x20000), (0x20000, 0x32000), (0, 0x20)]
    chosen, out = rng.sample(ranges, rng.randint(1, 4)), []
    while len(out) < n:
        c = rng.randrange(*rng.choice(chosen))
        if unicodedata.category(chr(c)) not in ("Cn", "Cs") and not any(a <= c <= b for a, b in NEWER):
            out.append(chr(c))
    return "".join(out)


def slices(rng, texts, most):
    text = rng.choice(texts)
    at = rng.randrange(max(1, len(text) - 1))
    return text[at:at + rng.randint(1, most)]


def mixed(rng, tokens):
    """Words, marks, spaces, numbers and @tokens in any order."""
    parts = []
    for _ in range(rng.randint(1, 30)):
        kind = rng.randrange(8)
        if kind == 0 and tokens:
            parts.append(rng.choice(tokens))
        elif kind == 1:
            parts.append(rng.choice(SPACES) * rng.randint(1, 6))
        elif kind == 2:
            parts.append(str(rng.randrange(10 ** rng.randint(1, 12))))
        elif kind == 3:
            parts.append(rng.choice(EMOJI))
        elif kind == 4:
            parts.append(rng.choice(["'s", "'LL", "!!", "...", "::", "({[", "//", "/*\n", "#!", " 's", "\u0301", "_", "\u200d", "<", "|", ">"]))
        else:
            parts.append(slices(rng, SENTENCES, 12))
    return "".join(parts)


def cut_tokens(rng, tokens):
    """Tokens that touch, and parts of tokens."""
    parts = [rng.choice(tokens) for _ in range(rng.randint(1, 5))]
    at = rng.randrange(len(parts))
    parts[at] = parts[at][rng.randrange(len(parts[at])):]
    return rng.choice(["", " ", "x", "\n"]).join(parts)


def texts(n, seed=1, tokens=()):
    """@n different texts; @tokens: special tokens that some of them contain."""
    rng, files, out = random.Random(seed), code(), dict.fromkeys(["", " ", "\n", *SENTENCES])
    for c in RUNS:
        for length in (2, 3, 17, 64, 1000, rng.randint(2000, 20000)):
            out[c * length] = None
    while len(out) < n:
        kind = rng.randrange(10)
        if kind < 2:
            text = slices(rng, files, 3000)
        elif kind == 2:
            text = " ".join(slices(rng, SENTENCES, 60) for _ in range(rng.randint(1, 6)))
        elif kind == 3:
            text = characters(rng, rng.randint(1, 300))
        elif kind == 4:
            text = unicodedata.normalize(rng.choice(["NFD", "NFC", "NFKD", "NFKC"]), " ".join(rng.sample(SENTENCES, 3)))
        elif kind == 5:
            text = "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 40))) + rng.choice(["", "x", "1", "é"])
        elif kind == 6 and tokens:
            text = cut_tokens(rng, tokens)
        elif kind == 7:
            text = "".join(rng.choice(EMOJI) + rng.choice(["", " ", "a"]) for _ in range(rng.randint(1, 20)))
        else:
            text = mixed(rng, tokens)
        out[text] = None
    return [t for t in out if not any(0xD800 <= ord(c) < 0xE000 for c in t)]


if __name__ == "__main__":
    import json
    json.dump(texts(int(sys.argv[1]), tokens=sys.argv[2:]), sys.stdout)
