#!/usr/bin/env python3
"""Writes the transcripts beside it from the project's own history and documents: what an agent was given and what it
wrote. tests/bench/bench_spec computes them again, with and without speculation.

  code-edit      a file and a change in words; the output is the file as the commit left it. The old file is also the
                 `prediction`, as clients send it.
  tool-loop      the same files, read through a tool; the outputs are JSON calls that replace lines by others.
  document       a document and a question; the answer is in its own words and quotes.
  prose          the beginning of a document; the output is how it goes on.

usage: make.py   (in a checkout with its history)
"""
import difflib
import json
import pathlib
import subprocess

HERE = pathlib.Path(__file__).parent
TOP = HERE.parents[2]

# Commits that changed a file of 60 to 160 lines in a few places.
EDITS = [
    ("49352dc", "engine/cuda/api.c"),
    ("81c2bf6", "base/log.c"),
    ("0ede9e9", "scheduler/spec.h"),
    ("5df962d", "tests/system/machine.py"),
    ("26b9b30", "tests/bench/bench_cpu_kernels.c"),
    ("725fed1", "api/request.h"),
    ("60c8f8b", "api/toolcall/formats.c"),
    ("97ef693", "text/template/tstr.h"),
]

QUESTIONS = [
    ("docs/scheduler.md", "Why is a plan a pure function, and what decides how many rows a prefill gets?",
     "The plan is a pure function because it sees numbers only: never a page, a token or a clock. So it can be tried with "
     "random input and held to its promises, and the pages that a step takes are counted by the plan; applying it cannot fail.\n\n"
     "A prefill gets what is left of the step's *time*. The step is to end within `itl_target_ms` while anything decodes and "
     "within `max_step_ms` always. How long it takes is predicted by a linear model of rows, sequences, context read and "
     "attention arithmetic, fitted to the relative error of the steps taken. The highest standing has half of the time, and "
     "whatever the others leave; the others share the other half, the shortest first, so a short prompt passes a long one.\n"),
    ("docs/scheduler.md", "What happens when a request needs a page and none is free?",
     "Cached pages that nobody holds count as available, so first of all they are used up. After that, who lacks a page takes it "
     "from the lowest running request, which gives back everything and is computed again later, with the same tokens. Nobody "
     "takes pages from a higher one: a request in that position waits and keeps what it has. The preempted request keeps its "
     "standing, so it is the first to be admitted again, and the client only sees a pause.\n"),
    ("docs/service.md", "How do I install weft as a service and where do its logs go?",
     "Build it first, then install it with Meson; the unit files come with it. Enable the socket and the service with "
     "`systemctl enable --now weftd.socket weftd.service`. The configuration is read from `/etc/weft/weft.conf`.\n\n"
     "Logs go to stderr, one line per event, and under systemd that is the journal: read them with `journalctl -u weftd`. "
     "Each line names the event first and then its values as `key=value`, so they can be searched and counted.\n"),
    ("docs/cpu-kernels.md", "Why do all instruction sets give the same bits?",
     "Because a value is computed in an order that depends only on the tensor's shape. Lanes hold output rows, and each lane sums "
     "its own row over K sequentially. Integer products inside a block are exact, so it does not matter in which order an "
     "instruction set adds them; across blocks there is one explicit fused multiply-add per block, in the order of the blocks. "
     "The compiler may not contract other operations (`-ffp-contract=off`), and exp, log and sine are our own. So plain C, "
     "AVX2 and AVX-512 agree by `memcmp`, at any number of rows and threads.\n"),
]

PROSE = ["README.md", "docs/architecture.md", "docs/cpu-kernels.md", "docs/service.md", "docs/chat-templates.md", "docs/grammar.md"]
PROSE_COMMIT = "144112c"


def git(*args):
    return subprocess.run(["git", "-C", TOP, *args], check=True, capture_output=True, text=True).stdout


def edits():
    for commit, path in EDITS:
        yield path, git("show", f"{commit}^:{path}"), git("show", f"{commit}:{path}"), git("log", "-1", "--format=%B", commit).strip()


def code_edit():
    for path, old, new, message in edits():
        prompt = (
            "You change source files. Answer with the whole new file and nothing else.\n\n"
            f"File {path}:\n```\n{old}```\n\nChange: {message}\n\nNew file {path}:\n```\n"
        )
        yield {"prompt": prompt, "output": new + "```\n", "prediction": old}


def call(name, **arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>\n"


def tool_loop():
    """One request per file: everything up to the edits is prompt, the edits and a last read are output."""
    for path, old, new, message in edits():
        a, b = old.splitlines(keepends=True), new.splitlines(keepends=True)
        prompt = (
            "Tools: read_file(path), replace(path, old, new), run(command). One JSON object per call.\n\n"
            f"User: In {path}: {message}\n\nAssistant:\n" + call("read_file", path=path) + f"Result:\n{old}\nAssistant:\n"
        )
        output = ""
        for tag, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
            if tag == "equal":
                continue
            i, k = max(0, i - 2), max(0, k - 2)  # with two lines before, to be unambiguous
            output += call("replace", path=path, old="".join(a[i:j]), new="".join(b[k:m])) + "Result: replaced\nAssistant:\n"
        output += call("run", command=f"ninja -C build && git diff --stat {path}")
        yield {"prompt": prompt, "output": output}


def document():
    for path, question, answer in QUESTIONS:
        text = git("show", f"{PROSE_COMMIT}:{path}")[:6000]
        yield {"prompt": f"{text}\n\nQuestion: {question}\nAnswer:\n", "output": answer}


def prose():
    for path in PROSE:
        text = git("show", f"{PROSE_COMMIT}:{path}")
        # Paragraphs only: neither tables nor listings nor headings.
        parts = [p for p in text.split("\n\n") if len(p) > 200 and not p.lstrip().startswith(("|", "`", "#", "-", " ", "1."))]
        half = max(1, len(parts) // 4)
        yield {"prompt": "\n\n".join(parts[:half]) + "\n\n", "output": "\n\n".join(parts[half : half + 4]) + "\n"}


def main():
    for make in (code_edit, tool_loop, document, prose):
        path = HERE / (make.__name__.replace("_", "-") + ".json")
        path.write_text(json.dumps({"requests": list(make())}, indent=1, ensure_ascii=False) + "\n")
        print(path.name, path.stat().st_size)


main()
