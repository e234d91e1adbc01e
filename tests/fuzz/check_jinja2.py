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
LITERALS = ["0", "1", "2", "-1", "1.5", "'a'", "'a b'", "\"\"", "true", "none", "[]", "[1, 'x']", "{'k': 1}", "(1, 2)", "'%s-%d'", "'a-b (c d)\\nE'", "-2.675", "range(4)"]
# Those that give a generator are made a list: its text is an address in Python's memory.
FILTERS = [
    "upper", "lower", "trim", "length", "count", "list", "first", "last", "join", "join(', ')", "sort", "sort(reverse=true)", "reverse | list",
    "tojson", "string", "int", "capitalize", "default('d')", "default('d', true)", "replace('l', 'L')", "indent(2)",
    "indent(2, true)", "min", "max", "items", "dictsort", "batch(2) | list", "wordcount", "map('upper') | list", "select | list",
    "map(attribute='role') | list", "selectattr('role', 'equalto', 'user') | list", "rejectattr('n', 'gt', 1) | list", "groupby('role')", "select('odd') | list",
    "title", "center", "wordcount", "truncate(7)", "truncate(6, true)", "truncate(5, false, '..', 0)", "urlencode", "e", "escape | upper", "abs",
    "float", "float(1)", "round", "round(1)", "round(1, 'floor')", "round(0, 'ceil')", "round(-1)", "sum", "sum(attribute='n')", "sum(start=3)",
    "unique | list", "unique(true) | list", "unique(attribute='role') | list", "batch(2, 'x') | list", "slice(2) | list", "slice(4, 'x') | list",
    "groupby('role', default='z') | list", "groupby('n') | map(attribute='grouper') | list", "groupby('role') | map(attribute='list') | list",
    "attr('role')", "tojson(indent=40)", "format(s=3, a=1)", "string | title", "string | center(12)", "string | urlencode", "string | wordcount",
    "select('string') | join('|')", "map('int') | sum", "list | last", "reverse | first", "sort(attribute='n') | list", "map('title') | list",
    "sort | unique | list", "rejectattr('role', 'in', ['user']) | list | length",
    "tojson(indent=2)", "format('a', 1)", "truncate(5)", "center(9)", "map('length') | list", "reject('none') | list",
]
TESTS = ["defined", "undefined", "none", "string", "number", "mapping", "iterable", "sequence", "odd", "even", "true", "false", "boolean", "integer",
         "float", "divisibleby(2)", "in([1, 2, 'a'])", "eq(1)", "callable", "lower", "upper", "sameas(none)", "sameas(true)", "filter", "test", "escaped"]
METHODS = [".upper()", ".split()", ".split('l')", ".strip()", ".lstrip('H')", ".startswith('H')", ".endswith('d')", ".replace('o', '0')", ".items()",
           ".title()", ".count('l')", ".count('o', 5)", ".count('')", ".index('l')", ".rfind('l')", ".rindex('o')", ".find('l', 4)", ".rsplit()", ".rsplit('l', 1)",
           ".rsplit(none, 1)", ".split(none, 1)", ".splitlines()", ".splitlines(true)", ".partition(' ')", ".rpartition('l')", ".zfill(15)", ".ljust(15, '.')",
           ".rjust(15)", ".center(14)", ".center(15, '*')", ".isalpha()", ".isalnum()", ".isspace()", ".isupper()", ".islower()", ".istitle()", ".isdigit()",
           ".isnumeric()", ".isdecimal()", ".isascii()", ".swapcase()", ".casefold()", ".capitalize()", ".index(1)", ".count(1)", ".copy()", ".format(1)",
           ".keys()", ".values()", ".get('a')", ".get('q', 5)", ".lower()", ".find('o')", ".join(ls)", ".rstrip()"]


# Formats of the operator % and of str.format(), with values that mostly suit them.
PERCENT = ["%s", "%d", "%5d|", "%-6s|", "%05.1f", "%+d", "% d", "%x", "%#X", "%o", "%e", "%.3g", "%r", "%c", "%%", "%.2s", "%i%%", "%(a)s", "%*d", "%08.3f", "%.3d", "%G"]
BRACES = ["{}", "{0}{1}", "{:>6}|", "{:<6}|", "{:^7}|", "{:*^9}", "{:+d}", "{:,}", "{:_x}", "{:.2f}", "{:10.3e}", "{:.3}", "{:%}", "{!r:>8}", "{a}", "{a!s}",
          "{0:b}", "{:#x}", "{:06d}", "{:=+7}", "{:{}}", "{{}}", "{:g}", "{:c}", "{:n}", "{0[0]}", "{a[b]}", "{0.x}", "{:05}", "{:.0f}", "{:X}", "{:o}"]
FORMATTED = ["1", "7", "-42", "2.5", "1234567.891", "'text'", "s", "u", "neg", "f", "1234567", "t", "nil", "0", "1e20", "0.00001", "l", "d", "65"]


def formatted(r):
    """A use of % or format()."""
    some = lambda: r.choice(FORMATTED)
    if r.randrange(2):
        text = "".join(r.choice(PERCENT) for _ in range(r.randrange(1, 3)))
        return f"'{text}' % " + r.choice([some(), f"({some()},)", f"({some()}, {some()})", f"{{'a': {some()}}}"])
    return f"'{r.choice(BRACES)}'.format({some()}, {some()}" + r.choice(["", ", a=d", f", a={some()}"]) + ")"


def expression(r, depth):
    kind = r.randrange(15 if depth > 0 else 3)
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
        return f"({sub()}) {r.choice(['+', '-', '*', '**', '/', '//', '%', '~', '==', '!=', '<', '<=', '>', '>=', 'in', 'not in', 'and', 'or'])} ({sub()})"
    if kind == 8:
        return f"({sub()}) if ({sub()})" + r.choice(["", f" else ({sub()})"])
    if kind == 9:
        return f"{r.choice(NAMES)}{r.choice(METHODS)}"
    if kind == 10:
        return f"not ({sub()})"
    if kind == 11:
        return formatted(r)
    if kind == 12: # unknown names count where they are reached
        return r.choice([f"({sub()} | nosuch) if {r.choice(NAMES)} else {sub()}", f"({sub()} is nosuch) if no else {sub()}", f"{r.choice(NAMES)} if {sub()} else (1 | nosuch)",
                         "false and (1 is nosuch)", "true or (1 | nosuch)", "'abc'.replace('a', 'x' | nosuch if no else 'y')"])
    if kind == 13:
        return r.choice(["-", "+", ""]) + r.choice(["i", "f", "2", "neg"]) + r.choice([" ** 2", " ** -1", " ** 2 ** 3", " * 2 ** 3", " ** 0.5", " // 2 ** 1"])
    return f"[{sub()}, {sub()}]"


def template(r, depth):
    kind = r.randrange(17 if depth > 0 else 3)
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
    if kind == 8:
        params, args = r.choice([("", ""), ("(x)", "a"), ("(x, y=2)", "a"), ("(x, y)", "a, b"), ("", "a")])
        return (tag("macro c(a, b=1)") + f"[{{{{ caller({args}) }}}}{{{{ b }}}}]" + tag("endmacro") + tag(f"call{params} c({expression(r, 1)})") + "{{ x }}{{ y }}" + sub() +
                tag("endcall"))
    if kind == 9:
        return tag("macro v(a)") + "{{ a }}{{ varargs }}{{ kwargs }}" + tag("endmacro") + f"{{{{ v({expression(r, 1)}, 2, k=3) }}}}"
    if kind == 10:
        return tag(f"with a = {expression(r, 1)}, b = a") + "{{ a }}{{ b }}" + sub() + tag("endwith") + "{{ a }}"
    if kind == 11:
        return r.choice(["  ", "\n", ""]) + tag("raw") + "\n {{ x }} {% if %}{# #} \n  " + tag("endraw") + "\n"
    if kind == 12:
        return (tag("for x in [1, [2, [3, 4]], [5]] recursive") + "{{ loop.depth }}{{ loop.index }}" + tag("if x is sequence") + "<{{ loop(x) }}>" + tag("else") + "{{ x }}" +
                tag("endif") + tag("endfor"))
    if kind == 13:
        target, items = r.choice([("a, (b, c)", "[(1, (2, 3)), (4, 'xy')]"), ("(a, b), c", "[((1, 2), 3)]"), ("a, b", "d.items()"), ("(a, b)", "[[1, 2]]"), ("a, (b,)", "[(1, [2])]")])
        stop = r.choice(["", tag("if loop.index == 2") + tag("break") + tag("endif")])
        return tag(f"for {target} in {items}") + "{{ a }}{{ b }}{{ c }}{{ loop.cycle('p', 'q') }}{{ loop.changed(a) }}" + stop + tag("endfor")
    if kind == 14: # loops that settle
        over, test = r.choice(["l", "ls", "range(5)", "ms", "s"]), r.choice(["if not ns.f", "if ns.f", "if x and not ns.f"])
        other = r.choice(["", tag("elif loop.index > 1") + "e", tag("else") + tag("set ns.n = ns.n + 1")])
        return (tag("set ns = namespace(f=false, n=0)") + tag(f"for x in {over}") + tag(test) + r.choice(["", "{{ x }}"]) + tag("if loop.index == 2") + tag("set ns.f = true") +
                tag("endif") + other + tag("endif") + tag("endfor") + "{{ ns.f }}{{ ns.n }}")
    if kind == 15:
        begin = r.choice(["block one", "block one scoped", "autoescape false", "filter upper", "filter indent(3)", "set w"])
        return tag(begin) + sub() + "{{ s }}\n" + tag("end" + begin.split()[0])
    return sub() + sub()


def main():
    program, n, seed = sys.argv[1], *map(int, (sys.argv[2:] + ["1500", "1"][len(sys.argv) - 2:]))
    r = random.Random(seed)
    # As transformers sets it up for chat templates, but for a tojson of its own.
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
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
        elif "generator object" in (want or "").lower() or " at 0x" in (want or "").lower():
            same += 1 # the address of an object in Python's memory
        else:
            bad += 1
            print(f"template {source!r}\n  weft   {got!r}\n  jinja2 {want!r}" + ("" if want is not None else f" ({why})"))
    print(f"{len(answers)} templates: {same} alike, {refused} refused by both, {missing} refused by weft alone, {bad} different")
    return bad > 0 or len(answers) != n or same < n // 4


sys.exit(main())
