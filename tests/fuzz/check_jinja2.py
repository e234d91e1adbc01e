#!/usr/bin/env python3
"""Random templates, rendered by weft and by Jinja2: both give the same text, or both refuse.

usage: check_jinja2.py RENDER [N [SEED]]

RENDER is the program of render.c. Exit status 77 where Python has no jinja2. What weft refuses and Jinja2 renders is counted
and not an error: weft has the part of Jinja that models' templates use. A template that both render differently, or that weft
alone renders, is printed and fails the test.
"""
import copy
import json
import random
import subprocess
import sys

try:
    import jinja2
    import jinja2.sandbox
except ImportError:
    print("python3-jinja2 is not installed")
    sys.exit(77)

VARS = {
    "s": "Hello World", "u": "h\u00e9llo \u00df", "e": "", "pad": "  pad \n", "i": 7, "z": 0, "neg": -3, "f": 2.5, "t": True, "no": False,
    "nil": None, "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "el": [], "d": {"b": 1, "a": [1, 2.5, None, True, "x'y"]},
    "ms": [{"role": "user", "content": "hi", "n": 2}, {"role": "assistant", "content": "yo", "n": 1}, {"role": "user", "content": "x", "n": 3}],
}
NAMES = list(VARS) + ["undefined_name", "ms[0].role", "ms[-1]['content']", "d.a", "d['b']", "l[0]", "l[1:]", "s[::-1]", "s[1:4]", "ls[:-1]"]
LITERALS = ["0", "1", "2", "-1", "1.5", "'a'", "'a b'", "\"\"", "true", "none", "[]", "[1, 'x']", "{'k': 1}", "(1, 2)", "'%s-%d'"]
# Those that give a generator are made a list: its text is an address in Python's memory.
FILTERS = [
    "upper", "lower", "trim", "length", "count", "list", "first", "last", "join", "join(', ')", "sort", "sort(reverse=true)", "reverse | list",
    "tojson", "string", "int", "capitalize", "default('d')", "default('d', true)", "replace('l', 'L')", "indent(2)",
    "indent(2, true)", "min", "max", "items", "dictsort", "batch(2) | list", "wordcount", "map('upper') | list", "select | list",
    "map(attribute='role') | list", "selectattr('role', 'equalto', 'user') | list", "rejectattr('n', 'gt', 1) | list", "groupby('role')", "select('odd') | list",
    "tojson(indent=2)", "format('a', 1)", "truncate(5)", "center(9)", "map('length') | list", "reject('none') | list",
]
TESTS = ["defined", "undefined", "none", "string", "number", "mapping", "iterable", "sequence", "odd", "even", "true", "false", "boolean", "integer",
         "float", "divisibleby(2)", "in([1, 2, 'a'])", "eq(1)"]
METHODS = [".upper()", ".split()", ".split('l')", ".strip()", ".lstrip('H')", ".startswith('H')", ".endswith('d')", ".replace('o', '0')", ".items()",
           ".keys()", ".values()", ".get('a')", ".get('q', 5)", ".lower()", ".find('o')", ".join(ls)", ".rstrip()"]


def expression(r, depth):
    kind = r.randrange(12 if depth > 0 else 3)
    sub = lambda: expression(r, depth - 1)
    if kind < 2:
        return r.choice(NAMES)
    if kind == 2:
        return r.choice(LITERALS)
    if kind < 6:
        return f"({sub()}) | {r.choice(FILTERS)}" if r.randrange(3) else f"{r.choice(NAMES)} | {r.choice(FILTERS)} | {r.choice(FILTERS)}"
    if kind == 6:
        return f"({sub()}) is {r.choice(['', 'not '])}{r.choice(TESTS)}"
    if kind == 7:
        return f"({sub()}) {r.choice(['+', '-', '*', '/', '//', '%', '~', '==', '!=', '<', '<=', '>', '>=', 'in', 'not in', 'and', 'or'])} ({sub()})"
    if kind == 8:
        return f"({sub()}) if ({sub()})" + r.choice(["", f" else ({sub()})"])
    if kind == 9:
        return f"{r.choice(NAMES)}{r.choice(METHODS)}"
    if kind == 10:
        return f"not ({sub()})"
    return f"[{sub()}, {sub()}]"


def template(r, depth):
    kind = r.randrange(9 if depth > 0 else 3)
    minus = lambda: r.choice(["", "", "-"])
    sub = lambda: template(r, depth - 1)
    tag = lambda text: f"{{%{minus()} {text} {minus()}%}}"
    if kind == 0:
        return r.choice(["text", " a\n", "\n  b ", "", "\n"])
    if kind < 4:
        return f"{{{{{minus()} {expression(r, 2)} {minus()}}}}}"
    if kind == 4:
        return tag(f"if {expression(r, 1)}") + sub() + r.choice(["", tag("else") + sub()]) + tag("endif")
    if kind == 5:
        where = r.choice(["", "", " if x is not none"])
        inner = r.choice(["{{ x }}", "{{ loop.index }}{{ loop.last }}", "{{ loop.index0 ~ ':' ~ x }}"])
        return tag(f"for x in {r.choice(NAMES)}{where}") + inner + sub() + r.choice(["", tag("else") + "none"]) + tag("endfor")
    if kind == 6:
        return tag(f"set v = {expression(r, 2)}") + "{{ v }}" + sub()
    if kind == 7:
        return tag("macro m(a, b=1)") + "{{ a }}{{ b }}" + tag("endmacro") + f"{{{{ m({expression(r, 1)}) }}}}"
    return sub() + sub()


def main():
    program, n, seed = sys.argv[1], *map(int, (sys.argv[2:] + ["1500", "1"][len(sys.argv) - 2:]))
    r = random.Random(seed)
    # As transformers sets it up for chat templates, but for a tojson of its own.
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
    sources = [template(r, 3) for _ in range(n)]
    lines = "".join(json.dumps({"source": s, "vars": VARS}) + "\n" for s in sources)
    answers = subprocess.run([program], input=lines, capture_output=True, text=True, check=True).stdout.splitlines()
    same = refused = missing = bad = 0
    for source, answer in zip(sources, map(json.loads, answers)):
        try:
            want = env.from_string(source).render(**copy.deepcopy(VARS)) # the filter `indent` changes a list in place
        except Exception as e: # pylint: disable=broad-except
            want = None
            why = f"{type(e).__name__}: {e}"
        got = answer.get("text")
        if got == want:
            same, refused = same + (got is not None), refused + (got is None)
        elif got is None:
            missing += 1
        elif "generator object" in (want or "") or " at 0x" in (want or ""):
            same += 1 # the address of an object in Python's memory
        else:
            bad += 1
            print(f"template {source!r}\n  weft   {got!r}\n  jinja2 {want!r}" + ("" if want is not None else f" ({why})"))
    print(f"{len(answers)} templates: {same} alike, {refused} refused by both, {missing} refused by weft alone, {bad} different")
    return bad > 0 or len(answers) != n or same < n // 4


sys.exit(main())
