#!/usr/bin/env python3
"""Comments begin with a verb or a noun, end where a sentence may, and name only files that exist.

usage: check_comments.py SOURCE_ROOT [--list [FOLDER]]

Opening words. A comment that begins with a pronoun, a relative word or "of" ("What", "Whether", "of a page", ...) makes
the reader search for its subject. At most GOAL percent of the comments of each folder may.

Ends. A comment that begins with a capital letter and ends, without a full stop, with a word that needs another one ("A
tenant this far behind the furthest one has") was cut in mid-sentence.

File names. A comment that names a source file (pager.c, kvpager/pager.c, docs/manual/models.md) is checked against the
files of the tree: a rename leaves no stale name behind. FOREIGN lists files of other projects and examples.

Exit status: 1 when a folder has more or a stale name is found; 2 when the self-check fails.
"""
import argparse
import pathlib
import re
import subprocess
import sys

GOAL = 1.5  # percent of the comments of a folder that may begin badly
OPENERS = (
    "What Whether Those These This That It Its Of As Where How Who Whose Which All None They Their Likewise Same Else Also "
    "Both Neither Nothing Nobody Something Somebody"
).split()
BAD_OPENING = re.compile(r"(?:%s|The same|In the same)\b" % "|".join(OPENERS), re.I)
CUT = set(
    "a an the of to in at by from with without than as is are was has have had be been and or but nor if that which whose when "
    "where while because so not its their can must will would should between into onto until unless".split()
)
COMMENT = re.compile(r"/\*(.*?)\*/", re.S)
# A quoted string or a character constant is skipped, so that "/*" inside it opens no comment.
TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/', re.S)
FILE_NAME = re.compile(r"(?<![\w<./*{}-])((?:[\w.-]+/)*[A-Za-z_][\w-]*\.(?:c|h|cu|cuh|py|md))(?![\w*]|\.\w)")
SOURCES = (".c", ".h", ".cu", ".cuh")
# Files of other projects and of data sets.
FOREIGN = {"docs/gguf.md", "ggml-common.h", "data/README.md"}


def comments_of(text):
    """Yields (line, text) of each comment of C source; the text is on one line, without stars."""
    for m in TOKEN.finditer(text):
        if not m.group().startswith("/*"):
            continue
        inner = re.sub(r"\s*\n\s*\*?\s*", " ", m.group()[2:-2]).strip(" *!<")
        if inner:
            yield text.count("\n", 0, m.start()) + 1, inner


def begins_badly(comment):
    return BAD_OPENING.match(comment) is not None


def is_cut(comment):
    """Returns whether `comment` ends in mid-sentence."""
    words = comment.split()
    return len(words) > 2 and words[0].istitle() and words[-1].lower() in CUT


def stale_names(comment, known):
    """Returns the file names in `comment` that are neither in `known` nor foreign. `known` has paths and their tails."""
    return [n for n in FILE_NAME.findall(comment) if n not in known and n not in FOREIGN and n.lstrip("./") not in known]


def tails(paths):
    """Returns each path and each of its endings: a/b/c.h is also named b/c.h and c.h."""
    known = set()
    for path in paths:
        parts = path.split("/")
        known.update("/".join(parts[i:]) for i in range(len(parts)))
    return known


def self_check():
    """Checks the rules on small examples; the lint is worth nothing if they cannot fail."""
    source = '/* What it is. */ char *s = "/* Whether */"; /*\n * Returns x,\n * see gone.c. */ /* It */ char q = \'"\'; /* of y */'
    found = list(comments_of(source))
    assert [c for _, c in found] == ["What it is.", "Returns x, see gone.c.", "It", "of y"], found
    assert [begins_badly(c) for _, c in found] == [True, False, True, True]
    assert not begins_badly("Iterates.") and not begins_badly("Offsets of rows.") and begins_badly("The same for rows.")
    assert is_cut("A tenant this far behind the furthest one has") and not is_cut("the tenant that it has") and not is_cut("Ends in it.")
    known = tails(["kvpager/pager.c", "docs/manual/models.md"])
    assert stale_names("see pager.c, kvpager/pager.c and manual/models.md", known) == []
    assert stale_names("see pool.c and engine/pager.c, <sys/sdt.h>", known) == ["pool.c", "engine/pager.c"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--list", nargs="?", const="", metavar="FOLDER", help="print each comment that begins badly")
    args = parser.parse_args()
    try:
        self_check()
    except AssertionError as e:
        print("self-check failed:", e)
        return 2
    ls = subprocess.run(["git", "-C", str(args.root), "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True)
    if ls.returncode == 0:
        paths = ls.stdout.split("\n")
    else:  # a source archive has no repository
        paths = [str(p.relative_to(args.root)) for p in args.root.rglob("*") if p.is_file() and "build" not in p.parts[0]]
    paths = [p for p in paths if p and (args.root / p).is_file()]
    known = tails(paths)

    total, bad, failed = {}, {}, False
    for path in sorted(p for p in paths if p.endswith(SOURCES)):
        folder = path.split("/")[0]
        for line, comment in comments_of((args.root / path).read_text(errors="replace")):
            for name in stale_names(comment, known):
                print(f"{path}:{line}: names {name}, which does not exist")
                failed = True
            if is_cut(comment):
                print(f"{path}:{line}: the comment ends in mid-sentence: {comment[-60:]}")
                failed = True
            if folder == "tests":
                continue
            total[folder] = total.get(folder, 0) + 1
            if begins_badly(comment):
                bad[folder] = bad.get(folder, 0) + 1
                if args.list is not None and path.startswith(args.list):
                    print(f"{path}:{line}: {comment[:110]}")

    for folder in sorted(total):
        share = 100 * bad.get(folder, 0) / total[folder]
        over = share > GOAL
        failed = failed or over
        print(f"{folder:10} {bad.get(folder, 0):5} of {total[folder]:5}  {share:5.1f} %, at most {GOAL}{'  EXCEEDED' if over else ''}")
    print(f"all        {sum(bad.values()):5} of {sum(total.values()):5}  "
          f"{100 * sum(bad.values()) / max(1, sum(total.values())):5.1f} %, goal {GOAL}")
    return 1 if failed else 0


sys.exit(main())
