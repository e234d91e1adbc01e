"""XGrammar's Python tests, run with objects in place of its library that only write down what is asked of them.

Each `assert` is judged twice, with every question for a text answered by yes and by no: the answer that makes it true is what
the test expects. What is made inside `pytest.raises` is a source to be refused. Tests that need a tokenizer, the library's own
output or a fixture ask nothing and are left out.
"""
import ast
import builtins
import contextlib
import importlib.machinery
import io
import itertools
import json
import pathlib
import sys
import types
import unittest.mock

FILES = ("test_grammar_matcher_*.py", "test_json_schema_converter.py", "test_json_schema_direct_converter.py", "test_regex_converter.py",
         "test_lark.py", "test_grammar_*macro.py", "test_grammar_union_concat.py", "test_structural_tag_converter.py",
         "test_builtin_structural_tag*.py", "test_function_calling_converter.py", "test_grammar_parser.py")
made, asked = [], []  # nodes; (where, node, {text: whether it fits}, whether it is to be refused)


def read(cases, folder):
    global here
    install(folder)
    counts = {"run": 0, "left out": 0}
    for file in sorted({f for pattern in FILES for f in (folder / "tests/python").glob(pattern)}):
        tree = ast.fix_missing_locations(Asserts().visit(ast.parse(file.read_text())))
        module = types.ModuleType(file.stem)
        module.__file__ = str(file)
        sys.modules[file.stem] = module
        try:
            exec(compile(tree, str(file), "exec"), module.__dict__)  # pylint: disable=exec-used
        except Exception as e:  # pylint: disable=broad-except
            print(f"{file.name}: {e!r}", file=sys.stderr)
            cases.unread += 1
            continue
        module.PROFILER_ON = False
        for name, test in list(vars(module).items()):
            if name.startswith("test_") and callable(test):
                here = f"{file.name}::{name}"
                for row in rows_of(test):
                    counts["run" if attempt(test, row) else "left out"] += 1
    print("XGrammar's tests: " + ", ".join(f"{n} {what}" for what, n in counts.items()))
    for where, node, texts, bad in asked:
        cases.add(node, where, texts, bad)


def rows_of(test):
    """The arguments of each run, of nested parametrize marks."""
    for rows in itertools.product(*getattr(test, "rows", [])):
        yield {k: v for row in rows for k, v in row.items()}


def attempt(test, row):
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            test(**row)
        return True
    except (Exception, LeftOut):  # pylint: disable=broad-except
        return False


here = ""


class LeftOut(BaseException):
    pass


class Marks:
    """pytest.mark: all but parametrize mean nothing here."""

    @staticmethod
    def parametrize(names, values, **_):
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
        values = [getattr(v, "values", v) if isinstance(v, Parameters) else v for v in values]
        rows = [dict(zip(names, v if len(names) > 1 or isinstance(v, Row) else [v])) for v in values]

        def mark(test):
            test.rows = [rows] + getattr(test, "rows", [])
            return test
        return mark

    def __getattr__(self, name):
        return lambda *args, **_: args[0] if len(args) == 1 and isinstance(args[0], types.FunctionType) else lambda test: test


class Row(tuple):
    pass


class Parameters:
    def __init__(self, *values, **_):
        self.values = Row(values)


class Raises:
    """What is made last inside is a source to be refused."""
    value = None

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        made.clear()
        return self

    def __exit__(self, kind, *_):
        if made and kind is None:
            asked.append((here, made[-1], {}, True))
        return kind is None or issubclass(kind, Exception)


def fake_pytest():
    def leave_out(*_, **__):
        raise LeftOut
    module = types.ModuleType("pytest")
    module.mark, module.param, module.raises, module.skip = Marks(), Parameters, Raises, leave_out
    module.importorskip = leave_out
    module.fixture = lambda *args, **_: args[0] if args and callable(args[0]) else lambda f: f
    return module


class Asserts(ast.NodeTransformer):
    def visit_Assert(self, node):
        lazy = ast.Lambda(ast.arguments([], [], None, [], [], None, []), node.test)
        return ast.copy_location(ast.Expr(ast.Call(ast.Name("weft_judge", ast.Load()), [lazy], [])), node)


class Grammar:
    """A source as a node."""

    def __init__(self, node):
        self.node = node
        made.append(node)

    @staticmethod
    def from_ebnf(text, root_rule_name="root", **_):
        return Grammar({"ebnf": text} if root_rule_name == "root" else {"ebnf_root": root_rule_name})

    @staticmethod
    def from_json_schema(schema, *, any_whitespace=True, strict_mode=True, any_order=False, indent=None, separators=None,
                         json_format="json", **_):
        if json_format != "json":
            raise LeftOut
        node = {"json_schema": schema_of(schema), "any_format": True, "declared_only": bool(strict_mode)}
        if any_order:
            node["any_order"] = True
        if not any_whitespace and indent is None and separators and tuple(separators) == (",", ":"):
            node["compact"] = True
        return Grammar(node)

    @staticmethod
    def from_regex(text, **_):
        return Grammar({"regex": text})

    @staticmethod
    def from_lark(text, **_):
        return Grammar({"lark": text})

    @staticmethod
    def from_structural_tag(*args, **_):
        from structural_tags import node_of
        v = args[0] if len(args) == 1 else None
        if hasattr(v, "model_dump"):
            v = v.model_dump()
        return Grammar(node_of(json.loads(v) if isinstance(v, str) else v))

    @staticmethod
    def builtin_json_grammar():
        return Grammar({"json_schema": True})

    @staticmethod
    def concat(*parts):
        return Grammar({"sequence": [p.node for p in parts]})

    @staticmethod
    def union(*parts):
        return Grammar({"either": [p.node for p in parts]})

    def __str__(self):
        return json.dumps(self.node)


def schema_of(v):
    if isinstance(v, type):
        return v.model_json_schema()
    return json.loads(v) if isinstance(v, str) else v


class Asked:
    """The answer to a question: what `answers` says."""
    answer, last = True, None

    def __init__(self, node, text):
        self.node, self.text = node, text

    def __bool__(self):
        Asked.last = self
        return Asked.answer

    def __eq__(self, other):
        return bool(self) == bool(other)

    def __and__(self, other):
        return bool(self) and other

    __hash__ = None


def node_of_source(grammar):
    if isinstance(grammar, str):
        return {"ebnf": grammar}
    if isinstance(grammar, Grammar):
        return grammar.node
    raise TypeError("a grammar that was not written down")


def accepts(grammar, text, **options):
    if not options.get("require_termination", True):
        raise NotImplementedError
    return Asked(node_of_source(grammar), text)


class Matcher:
    """Reads one text, whole or in parts, and is asked whether it is at its end."""

    def __init__(self, grammar, *_, **__):
        self.grammar, self.text = grammar, ""

    def accept_string(self, text, **_):
        read_parts.append((self, self.text))
        self.text += text if isinstance(text, str) else text.decode()
        return Asked(None, "")

    def is_terminated(self):
        if self.grammar is None:
            raise LeftOut
        return Asked(node_of_source(self.grammar), self.text)


read_parts = []  # (matcher, its text before)


class Compiler:
    def __init__(self, *_, **__):
        pass

    def compile_grammar(self, grammar, **_):
        return Grammar(node_of_source(grammar))

    compile_json_schema = staticmethod(Grammar.from_json_schema)
    compile_regex = staticmethod(Grammar.from_regex)
    compile_lark = staticmethod(Grammar.from_lark)
    compile_structural_tag = staticmethod(Grammar.from_structural_tag)
    compile_builtin_json_grammar = staticmethod(Grammar.builtin_json_grammar)


def judge(test):
    """In place of an assert. A part that is to be refused ends what can be asked of its matcher."""
    truth, one = {}, None
    for answer in (False, True):
        for matcher, text in reversed(read_parts):
            matcher.text = text
        Asked.answer, Asked.last = answer, None
        read_parts.clear()
        try:
            truth[answer] = bool(test())
        except (NotImplementedError, LeftOut):
            truth[answer] = False
        one = Asked.last
    if one is not None and one.node is not None and isinstance(one.text, str) and truth[True] != truth[False]:
        asked.append((here, one.node, {one.text: truth[True]}, False))
    if truth[False] and not truth[True]:
        for matcher, _ in read_parts:
            matcher.grammar = None
    read_parts.clear()


class Anything(unittest.mock.MagicMock):
    """In place of libraries; its objects are never a text that is asked for."""


def install(folder):
    builtins.weft_judge = judge
    sys.path[:0] = [str(folder / "python"), str(folder / "tests/python")]
    sys.modules["pytest"] = fake_pytest()
    for name in ("torch", "transformers", "tvm_ffi", "tvm_ffi.libinfo", "xgrammar.load_binding", "conftest", "huggingface_hub", "triton",
                 "xgrammar.contrib", "xgrammar.contrib.hf", "xgrammar.matcher", "xgrammar.kernels", "numpy"):
        module = Anything(name=name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__path__ = []
        sys.modules[name] = module
    sys.modules["conftest"]._hf_token_available = lambda *_: False
    base = types.ModuleType("xgrammar.base")
    base.XGRObject, base._core = type("XGRObject", (), {}), Anything()
    sys.modules["xgrammar.base"] = base
    import xgrammar
    import xgrammar.testing
    xgrammar.Grammar, xgrammar.GrammarMatcher, xgrammar.GrammarCompiler = Grammar, Matcher, Compiler
    xgrammar.TokenizerInfo = Anything()
    xgrammar.testing._is_grammar_accept_string = accepts
    xgrammar.testing._regex_to_ebnf = lambda regex, *_, **__: Grammar.from_regex(regex)
    xgrammar.testing._json_schema_to_ebnf = lambda schema, **options: Grammar.from_json_schema(schema, **options)
    xgrammar.testing._get_matcher_from_grammar = Matcher

