#!/usr/bin/env python3
"""Holds the source tree to docs/design/architecture.md: who may include whom, and where libraries may appear.

usage: check_layers.py SOURCE_ROOT
Folders are named as includes name them: those of lib/ without it. A folder's public headers are listed here; every other header is private to its folder.
"""
import pathlib
import re
import sys

ALL = "*"
PUBLIC = {
    "base": ALL,
    "proto": ALL,
    "text": {"tokenizer.h", "template.h", "hf_tokenizer.h", "categories.h", "repeats.h", "stops.h"},
    "checkpoint": {"checkpoint.h"},
    "grammar": {"grammar.h", "constraint.h"},
    "kvpager": {"kvpager.h", "media.h", "tier.h", "tier_parts.h"},
    "vision": {"decoder.h", "fit.h", "picture.h", "projector.h", "resize.h"},
    "engine": {"engine.h", "nearest.h", "vision/encoder.h"},
    "scheduler": {"scheduler.h"},
    # http/ is a server of its own, of which daemon/ has an instance.
    "api": {"api.h", "http/server.h", "http/conn.h", "http/dialect.h", "http/respond.h", "http/json.h", "http/json_build.h", "http/tls.h"},
    "daemon": set(),
    "cmd": set(),
}
MAY_USE = {
    "base": set(),
    "proto": {"base"},
    "text": {"base"},
    "checkpoint": {"base", "text"},
    "grammar": {"base", "text"},
    "kvpager": {"base"},
    "vision": {"base"},
    "engine": {"base", "vision"},
    "scheduler": {"base", "proto", "text", "grammar", "kvpager", "engine", "vision"},
    "api": {"base", "proto", "text", "grammar", "vision"},
    "daemon": {"base", "proto", "text", "checkpoint", "grammar", "kvpager", "vision", "engine", "scheduler", "api"},
    "cmd": {"base", "proto", "engine", "text", "checkpoint", "vision"},
}
# Rooms of a folder: which other rooms' headers each may include, as a room or as one of its headers.
# "" stands for the files of the folder itself. Public headers may be included everywhere, and a
# room's own headers in the room. A folder that has a row here has no other rooms, and no circle:
# check_order() demands that a room is listed below all that it uses.
ROOMS = {
    "grammar": {
        "expr": set(),
        "vocab": set(),
        "automaton": {"expr", "vocab"},
        "front": {"expr", "automaton/lang.h", "vocab/vocab.h"},
        "machine": {"expr", "vocab", "automaton"},
        "mask": {"expr", "vocab", "automaton", "machine"},
        "match": {"expr", "vocab", "automaton", "machine", "mask"},
        "": {"expr", "vocab", "automaton", "front", "machine", "mask", "match"},
        "constraint": {"vocab", "match"},
    },
    # The rooms between generation and service are dialects.
    "api": {
        "http": set(),
        "state": set(),
        "limits": {"http", "state"},
        "toolcall": {"http"},
        "generation": {"http", "state/state.h", "limits", "toolcall"},
        "openai": {"http", "limits", "toolcall", "generation"},
        "responses": {"http", "state", "limits", "toolcall", "generation", "openai"},
        "anthropic": {"http", "limits", "toolcall", "generation", "openai"},
        "ollama": {"http", "limits", "toolcall", "generation", "openai"},
        "llamacpp": {"http", "limits", "toolcall", "generation", "openai"},
        "lmstudio": {"http", "limits", "toolcall", "generation", "openai", "ollama"},
        "service": {"http", "limits", "toolcall", "generation"},
        "": {"http", "state", "limits", "toolcall", "generation", "openai", "responses", "anthropic", "ollama",
             "llamacpp", "lmstudio", "service"},
    },
    "daemon": {
        "config": set(),
        "worker": {"config"},
        "workers": {"config", "worker"},
        "models": {"config", "worker", "workers"},
        "upgrade": {"config", "worker", "workers", "models"},
        "front": {"config", "worker", "workers", "models", "upgrade"},
    },
}
# Folders without rows: rooms are then all their subfolders, and so many pairs of rooms at most may
# include each other. A number is only ever lowered; at 0 the folder gets rows.
MOST_PAIRS = {"engine": 0, "scheduler": 0, "text": 0, "cmd": 0, "kvpager": 0, "vision": 0}
# What few files of a folder may call, and how many at most: the number is only ever lowered.
MOST_CALLERS = {"scheduler": (r"\bkv_\w+\(", 9)}
# A library's header may be included only below these paths.
LIBRARIES = {
    r"uv\.h": ("api/", "daemon/"),
    r"llhttp\.h": ("api/",),
    r"ini\.h": ("daemon/",),
    r"systemd/.*": ("daemon/",),
    r"cuda.*\.h": ("engine/cuda/",),
    r"yyjson\.h": ("base/json_value.h", "text/", "grammar/", "api/", "cmd/", "daemon/"),
    r"utf8proc\.h": ("text/",),
    r"pcre2\.h": ("api/anthropic/tool_search.c", "tests/"),
    r"xxhash\.h": ("kvpager/", "api/"),
    r"curl/.*": ("cmd/", "api/http/curl_calls.h"),
    r"n?curses.*\.h": ("cmd/",),
    r"openssl/sha\.h": ("base/sha256.h",),
    r"openssl/(?!sha\.h).*": ("api/http/tls.c",),
    r"z(lib|std)\.h": ("api/http/unpack.c", "tests/"),
    r"png\.h": ("vision/png.c",),
    r"jpeglib\.h": ("vision/jpeg.c",),
    r"webp/.*": ("vision/webp.c",),
    r"sqlite3\.h": ("api/state/db.c",),
    r"gif_lib\.h": ("vision/gif.c",),
}
MAX_LINES = 1500
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.M)


def room_of(parts):
    """The room of the file folder/room/.../name; "" for a file of the folder itself."""
    return parts[1] if len(parts) > 2 else ""


def check_room(path, folder, target):
    """Whether the file @path may include @target, which is in the same folder."""
    rooms = ROOMS.get(folder)
    if rooms is None:
        return None
    mine, theirs = room_of(path.split("/")), room_of(target)
    if mine not in rooms:
        return f"{folder}/{mine}/ has no row in ROOMS"
    if mine == theirs or "/".join(target[1:]) in PUBLIC[folder]:
        return None
    if theirs in rooms[mine] or "/".join(target[1:]) in rooms[mine]:
        return None
    return f"{folder}/{mine} may not use {'/'.join(target)}"


def check_order():
    """The rows of ROOMS that use a room listed below them."""
    for folder, rooms in ROOMS.items():
        above = set()
        for room, uses in rooms.items():
            for used in uses:
                if used.split("/")[0] not in above:
                    yield f"{folder}/{room}: {used} is not listed above it"
            above.add(room)


def mutual_pairs(includes):
    """The pairs of rooms that include each other, of @includes: for each file, the files that it includes."""
    uses = set()
    for file, targets in includes.items():
        uses |= {(str(pathlib.PurePath(file).parent), str(pathlib.PurePath(t).parent)) for t in targets}
    return sorted((a, b) for a, b in uses if a < b and (b, a) in uses)


def check_pairs(folder, includes):
    """What is wrong with the rooms of @folder, which has no rows."""
    pairs, most = mutual_pairs(includes), MOST_PAIRS[folder]
    if len(pairs) > most:
        yield f"{folder}: {len(pairs)} pairs of rooms include each other, at most {most}: {pairs}"


def callers(pattern, files):
    """The C sources among @files, from path to text, that call what @pattern matches, comments aside."""
    code = {path: re.sub(r"/\*.*?\*/", "", text, flags=re.S) for path, text in files.items() if path.endswith(".c")}
    return sorted(path for path, text in code.items() if re.search(pattern, text))


def check_callers(folder, files):
    pattern, most = MOST_CALLERS[folder]
    found = callers(pattern, files)
    if len(found) > most:
        yield f"{folder}: {len(found)} files call {pattern}, at most {most}: {found}"


def self_check():
    assert mutual_pairs({"e/a.c": ["e/r/b.h"], "e/r/b.c": ["e/a.h"], "e/s/c.c": ["e/a.h", "e/s/c.h"]}) == [("e", "e/r")]
    assert mutual_pairs({"e/a.c": ["e/r/b.h"], "e/r/b.c": ["f/a.h"]}) == []
    texts = {"s/a.c": "kv_new(p);", "s/b.c": "/* kv_new() */ kv_page x;", "s/c.h": "kv_free(p);"}
    assert callers(r"\bkv_\w+\(", texts) == ["s/a.c"]


def check_own(path, folder, target):
    parts = target.split("/")
    if len(parts) < 2 or parts[0] not in PUBLIC:
        return f'"{target}": headers are included by full path'
    if parts[0] == folder:
        return check_room(path, folder, parts)
    if parts[0] not in MAY_USE[folder]:
        return f"{folder}/ may not use {parts[0]}/ ({target})"
    public = PUBLIC[parts[0]]
    if public is not ALL and "/".join(parts[1:]) not in public:
        return f"{target} is private to {parts[0]}/"
    return None


def check_library(path, target):
    for pattern, places in LIBRARIES.items():
        if re.fullmatch(pattern, target) and not path.startswith(places):
            return f"<{target}> belongs in {', '.join(places)}"
    return None


def main():
    root = pathlib.Path(sys.argv[1])
    n = problems = 0
    self_check()
    for problem in check_order():
        problems += 1
        print(problem)
    for folder in MAY_USE:
        includes, texts = {}, {}
        home = root if (root / folder).exists() else root / "lib"
        for file in sorted((home / folder).rglob("*")):
            if file.suffix not in {".c", ".h", ".cu", ".cuh"}:
                continue
            n += 1
            path = str(file.relative_to(home))
            text = texts[path] = file.read_text()
            found = []
            includes[path] = [own for own, _ in INCLUDE.findall(text) if own.startswith(folder + "/")]
            for own, library in INCLUDE.findall(text):
                found.append(check_own(path, folder, own) if own else check_library(path, library))
            # Most of engine/cpu and some of engine/ops is compiled for instructions that this machine may not have.
            if path.startswith(("engine/cpu/", "engine/ops/")) and file.name != "isa.c" and "(constructor" in text:
                found.append("nothing may run before the instruction set is chosen (isa.c)")
            lines = text.count("\n")
            if lines > MAX_LINES:
                found.append(f"{lines} lines, at most {MAX_LINES}")
            for problem in filter(None, found):
                problems += 1
                print(f"{path}: {problem}")
        counted = [*check_pairs(folder, includes)] if folder in MOST_PAIRS else []
        counted += check_callers(folder, texts) if folder in MOST_CALLERS else []
        for problem in counted:
            problems += 1
            print(problem)
    print(f"{n} files, {problems} problems")
    return 1 if problems or n == 0 else 0


sys.exit(main())
