#!/usr/bin/env python3
"""The tests that other engines for constrained generation have of their schemas and grammars, read by weft's.

usage: suites.py [--list KIND] BENCH_TEXTS VOCABULARY.gguf SUITE FOLDER

SUITE and FOLDER: llamacpp (a checkout of ggml-org/llama.cpp), llguidance (guidance-ai/llguidance), outlines
(dottxt-ai/outlines-core), xgrammar (mlc-ai/xgrammar; needs the Python packages pytest and pydantic). BENCH_TEXTS is the
program of this name in the build folder. The tests are read, not run: calls with a source and texts that fit it or do not.

KIND: refused, valid_refused, invalid_accepted or compiles; such cases are listed with their places and sources.
"""
import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys

from literals import Code


class Cases:
    """Sources as nodes of docs/reference/grammars.md with texts: {node as JSON: {"where", "bad", "texts": {text: whether it fits}}}."""

    def __init__(self):
        self.nodes, self.unread = {}, 0

    def add(self, node, where, texts, bad=False):
        """@bad: the suite wants the source refused."""
        one = self.nodes.setdefault(json.dumps(node, ensure_ascii=False), {"where": where, "bad": bad, "texts": {}})
        one["texts"].update(texts)


def as_json(v):
    return json.dumps(v, ensure_ascii=False, separators=(",", ":"))


def schema_node(v):
    return {"json_schema": v, "any_format": True}


def lark_node(text):
    """A grammar that is only one schema is that schema."""
    m = re.fullmatch(r"\s*start:\s*%json\s*(\{.*\})\s*", text, re.S)
    try:
        return schema_node(json.loads(m.group(1))) if m else {"lark": text}
    except ValueError:
        return {"lark": text}


def read_llguidance(cases, folder):
    def record(name, args, line):
        where = f"{file.name}:{line}"
        if name in ("lark_ok", "lark_err_test", "json_err_test"):
            node = schema_node(args[0]) if name[0] == "j" else lark_node(args[0])
            return cases.add(node, where, {}, name != "lark_ok")
        if name.startswith("json"):
            pairs = [(args[1], args[2])] if name == "json_schema_check" else [(v, True) for v in args[1]] + [(v, False) for v in args[2]]
            return cases.add(schema_node(args[0]), where, {as_json(v): yes for v, yes in pairs})
        args = args[1:] if name.endswith("_ext") else args
        pairs = [(args[2], args[1])] if name == "lark_str_test" else [(v, True) for v in args[1]] + [(v, False) for v in args[2]]
        return cases.add(lark_node(args[0]), where, {s.removeprefix("FINAL_REJECT:"): yes for s, yes in pairs})

    names = {"lark_ok", "lark_err_test", "json_err_test", "json_schema_check", "json_test_many", "lark_str_test", "lark_str_test_many",
             "lark_str_test_many_quiet", "lark_str_test_many_ext"}
    for file in sorted((folder / "parser/tests").glob("test_*.rs")):
        code = Code(file.read_text(), names, record)
        code.rust()
        cases.unread += code.unread


def read_outlines(cases, folder):
    """The table of test_schema_matches_regex: (schema, expression, fitting, not fitting)."""
    file = folder / "src/json_schema/mod.rs"
    text = file.read_text()
    start = text.index("for (schema, regex, a_match, not_a_match) in [")
    code = Code(text[text.index("[", start):], {}, None)
    code.i = 1
    code.env = dict.fromkeys(re.findall(r"\b[A-Z][A-Z_]+\b", text), "")
    for schema, _, fitting, others in code.items("]", code.value):
        cases.add(schema_node(json.loads(schema)), file.name, {**dict.fromkeys(fitting, True), **dict.fromkeys(others, False)})


def read_llamacpp(cases, folder):
    def record(name, args, line):
        where = f"{file.name}:{line}"
        if name == "test":
            if isinstance(args[0], str):
                return
            status, _, schema, grammar = args[0]
            cases.add(schema_node(schema_of(schema)), where, {}, status == "FAILURE")
            if status == "SUCCESS":
                cases.add({"ebnf": grammar}, where, {})
        elif name in ("test_grammar", "test_schema"):
            node = {"ebnf": args[1]} if name == "test_grammar" else schema_node(schema_of(args[1]))
            cases.add(node, where, {**dict.fromkeys(args[2], True), **dict.fromkeys(args[3], False)})
        else:
            cases.add({"ebnf": args[0]}, where, {}, name != "verify_parsing")

    def schema_of(s):
        try:
            return json.loads(s)
        except ValueError:
            return s

    for file in (folder / "tests").glob("test-*.cpp"):
        names = {"test-json-schema-to-grammar": {"test"}, "test-grammar-integration": {"test_grammar", "test_schema", "test_build_grammar_fails"},
                 "test-grammar-parser": {"verify_parsing", "verify_failure"}}.get(file.stem)
        if names:
            code = Code(file.read_text(), names, record, cpp=True)
            code.calls()
            cases.unread += code.unread
    for file in (folder / "grammars").glob("*.gbnf"):
        cases.add({"ebnf": file.read_text()}, file.name, {})


def read_xgrammar(cases, folder):
    from xgrammar_tests import read
    read(cases, folder)


def judge(case, answer):
    """The kind of a case, and of its texts."""
    if answer["error"]:
        return ("agree" if case["bad"] else "refused"), collections.Counter()
    texts = collections.Counter("agree" if want == got else "valid_refused" if want else "invalid_accepted"
                                for want, got in zip(case["texts"].values(), answer["fits"]))
    for kind in ("invalid_accepted", "valid_refused"):
        if texts[kind]:
            return kind, texts
    return ("compiles" if case["bad"] else "agree"), texts


def main():
    readers = {"llamacpp": read_llamacpp, "llguidance": read_llguidance, "outlines": read_outlines, "xgrammar": read_xgrammar}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", default="", metavar="KIND")
    parser.add_argument("program")
    parser.add_argument("vocabulary")
    parser.add_argument("suite", choices=readers)
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    cases = Cases()
    readers[options.suite](cases, options.folder.resolve())
    lines = [json.dumps({"node": json.loads(node), "texts": list(c["texts"])}) for node, c in cases.nodes.items()]
    p = subprocess.run([options.program, options.vocabulary], input="".join(f"{x}\n" for x in lines), stdout=subprocess.PIPE, check=False,
                       encoding="utf-8", errors="replace")
    if p.returncode:
        sys.exit(f"{options.program} failed: {p.returncode}")
    report(options, cases, [json.loads(x) for x in p.stdout.splitlines()])


def report(options, cases, answers):
    table = collections.defaultdict(collections.Counter)
    texts = collections.defaultdict(collections.Counter)
    reasons = collections.Counter()
    for (node, case), answer in zip(cases.nodes.items(), answers, strict=True):
        source = next(iter(json.loads(node)))
        kind, some = judge(case, answer)
        table[source][kind] += 1
        texts[source].update(some)
        if kind == "refused":
            reasons[re.sub(r"line \d+", "line N", re.sub(r"#\S*/", "#/", answer["error"]))[:90]] += 1
        if options.list == kind:
            wrong = [t for (t, want), got in zip(case["texts"].items(), answer["fits"]) if want != got]
            print(f"---- {case['where']} {answer['error']}\n{node}\n  {wrong[:6]}")
    for source in table:
        print(f"{source:12} sources {table[source].total()}: " + ", ".join(f"{k} {n}" for k, n in sorted(table[source].items())) +
              f"; texts {texts[source].total()}: " + ", ".join(f"{k} {n}" for k, n in sorted(texts[source].items())))
    print(f"statements that could not be read: {cases.unread}")
    for what, n in reasons.most_common(30):
        print(f"{n:6}  {what}")


if __name__ == "__main__":
    main()
