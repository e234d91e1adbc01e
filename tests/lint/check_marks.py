#!/usr/bin/env python3
"""A callback of the front's event loop names itself for the event `loop_busy`.

usage: check_marks.py SOURCE_ROOT

Time of a callback without a mark counts for the one before it. The first statement of each callback in api/ and daemon/
that runs for a timer, an idle handle, an async, a descriptor, a process or work that has ended is loop_lag_mark() or
api_mark_loop(), behind declarations. Sockets of clients have none: their callbacks only queue turns, which have marks. Exit 1: a callback
without one, which is printed with its place.
"""
import pathlib
import re
import sys

# What starts a handle, and which of its arguments is the callback.
STARTS = {"uv_timer_start": 1, "uv_idle_start": 1, "uv_check_start": 1, "uv_prepare_start": 1, "uv_async_init": 2,
          "uv_poll_start": 2}
MARK = re.compile(r"\b(loop_lag_mark|api_mark_loop)\(")
FORK = re.compile(r"\b(if|for|while|switch|return)\b")
# Callbacks that need none, by file.
NONE = {
    ("api/http/loop_lag.c", "loop_lag_on_check"): "ends the iteration and begins the next phase itself",
    ("api/state/state.c", "state_on_ended"): "the jobs of the state have marks of their own",
    ("api/http/conn.c", "conn_on_timer"): "queues a turn, which has a mark; thousands may run in an iteration",
}


def arguments(text, at):
    """The arguments of the call whose bracket opens at @at."""
    parts, depth = [""], 0
    for c in text[at:]:
        depth += (c in "([{") - (c in ")]}")
        if depth == 0:
            break
        if c == "," and depth == 1:
            parts.append("")
        else:
            parts[-1] += c
    return [" ".join(p.split()) for p in parts]


def callbacks(text):
    """Names of the functions that the loop calls."""
    found = set(re.findall(r"\.exit_cb = (\w+)", text))
    found |= set(re.findall(r"struct file_work\)\{[^}]*\.done = (\w+)", text))
    for name, which in STARTS.items():
        for m in re.finditer(rf"\b{name}\(", text):
            found.add(arguments(text, m.end() - 1)[which])
    return found


def is_marked(text, name):
    """Whether @name has its mark before anything that branches; None: @text does not define it."""
    m = re.search(rf"^[\w *]*\b{name}\([^;{{]*\) \{{\n(.*?)^\}}", text, re.M | re.S)
    if not m:
        return None
    body = re.sub(r"/\*.*?\*/", "", m.group(1), flags=re.S)
    mark = MARK.search(body)
    return mark is not None and not FORK.search(body[: mark.start()])


def problems(file, text):
    return sorted(name for name in callbacks(text) if (file, name) not in NONE and is_marked(text, name) is False)


def self_check():
    """Proves that what is wrong is found, and nothing else."""
    start = "void g(void) {\n    uv_timer_start(&x, f, 1, 0);\n}\n"
    assert problems("", "static void f(uv_timer_t *t) {\n    work(t);\n}\n" + start) == ["f"]
    assert problems("", "static void f(uv_timer_t *t) {\n    if (t)\n        api_mark_loop(\"f\");\n}\n" + start) == ["f"]
    assert not problems("", "static void f(uv_timer_t *t) {\n    struct a *x = t->data;\n\n    api_mark_loop(\"f\");\n}\n" + start)
    assert callbacks("uv_async_init(loop(a, b), &w,\n    done)") == {"done"}
    assert callbacks("w = (struct file_work){\n    .run = r, .done = d}") == {"d"}


def main():
    root = pathlib.Path(sys.argv[1])
    n = failed = 0
    self_check()
    for path in sorted(f for folder in ("api", "daemon") for f in (root / folder).rglob("*.c")):
        file, text = str(path.relative_to(root)), path.read_text()
        n += len(callbacks(text))
        for name in problems(file, text):
            print(f"{file}: {name}() has no mark at its beginning")
            failed += 1
    print(f"{n} callbacks, {failed} problems")
    return 1 if failed or n == 0 else 0


sys.exit(main())
