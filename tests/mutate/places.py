"""Finds the places of a C file that a mutant may change, with libclang (python3-clang)."""
import collections
import re

from clang import cindex
from clang.cindex import CursorKind as K

# begin, end: offsets of what is replaced; new: with what; old: how it is read while the mutant is off.
Place = collections.namedtuple("Place", "kind begin end old new")
OPERATORS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-", "-": "+", "*": "+",
             "/": "*", "%": "/", "&": "|", "|": "&", "<<": ">>", ">>": "<<", "+=": "-=", "-=": "+=", "|=": "&=", "&=": "|=", "*=": "+="}
BOUNDS = ("<", "<=", ">", ">=")
CONSTANTS = (K.CXX_UNARY_EXPR, K.STATIC_ASSERT, K.ENUM_DECL, K.STRUCT_DECL)
# Calls whose loss is no mistake of what is computed: logs, and releases of memory, which the leak check judges.
NOT_DROPPED = re.compile(r"log_|wlog|free$|.*_free$|.*_freep?$|.*deinit$|loop_lag_mark|api_mark_loop|va_end|__")

SYMMETRIC = re.compile(r"(str|mem)n?(case)?cmp|calloc|arena_alloc_array")


class Places:
    def __init__(self, path, args):
        self.unit = cindex.Index.create().parse(path, args, options=cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD)
        self.path, self.text, self.found = path, open(path, "rb").read(), []
        own = [c for c in self.unit.cursor.get_children() if c.location.file and c.location.file.name == path]
        macros = [c for c in own if c.kind == K.MACRO_INSTANTIATION]
        self.macros = [(c.extent.start.offset, c.extent.end.offset) for c in macros]
        self.booleans = {c.extent.start.offset: c.spelling for c in macros if c.spelling in ("true", "false")}
        for c in own:
            if c.kind == K.FUNCTION_DECL and c.is_definition():
                for child in c.get_children():
                    if child.kind == K.COMPOUND_STMT:
                        self.walk(child, c)

    def source(self, begin, end):
        return self.text[begin:end].decode()

    def add(self, kind, begin, end, new, form="({} ? ({}) : ({}))"):
        old = self.source(begin, end)
        if new != old:
            self.found.append(Place(kind, begin, end, form, new))

    def walk(self, c, parent):
        begin, end = c.extent.start.offset, c.extent.end.offset
        if c.kind in CONSTANTS or (c.kind == K.VAR_DECL and c.storage_class.name == "STATIC"):
            return
        if c.kind == K.CALL_EXPR and NOT_DROPPED.match(c.spelling or "") and "log" in c.spelling:
            return
        inside = [m for m in self.macros if m[0] <= begin < m[1]]
        if any(end <= m[1] for m in inside):
            boolean = self.booleans.get(begin)
            if boolean and end - begin == len(boolean):
                self.add("constant", begin, end, "false" if boolean == "true" else "true")
            return
        if not inside or all(m[0] == begin for m in inside):
            self.here(c, parent, begin, end)
        children = list(c.get_children())
        for i, child in enumerate(children):
            if c.kind == K.CASE_STMT and i == 0:
                continue
            if c.kind == K.VAR_DECL and child.kind == K.INTEGER_LITERAL and c.type.kind.name.endswith("ARRAY"):
                continue
            self.walk(child, c)

    def here(self, c, parent, begin, end):
        children = list(c.get_children())
        at = [(x.extent.start.offset, x.extent.end.offset) for x in children]
        statement = parent.kind in (K.COMPOUND_STMT, K.IF_STMT, K.FOR_STMT, K.WHILE_STMT, K.CASE_STMT, K.DEFAULT_STMT) and \
            self.text[end:end + 1] == b";"
        if c.kind in (K.BINARY_OPERATOR, K.COMPOUND_ASSIGNMENT_OPERATOR) and len(at) == 2:
            op = re.sub(r"/\*.*?\*/|[\s()]", "", self.source(at[0][1], at[1][0]), flags=re.S)
            if op in OPERATORS:
                left, right = self.source(begin, at[0][1]), self.source(at[1][0], end)
                if left.count("(") == left.count(")") and right.count("(") == right.count(")"):
                    self.add("bound" if op in BOUNDS else "operator", begin, end, f"{left} {OPERATORS[op]} {right}")
        elif c.kind == K.UNARY_OPERATOR:
            text = self.source(begin, end)
            if text.startswith(("++", "--")) or (text.endswith(("++", "--")) and text[0] not in "*!~&+-"):
                self.add("operator", begin, end, text.replace("++", "\0").replace("--", "++").replace("\0", "--"))
            elif text.startswith("!"):
                self.add("condition", begin, end, text[1:])
        elif c.kind == K.INTEGER_LITERAL:
            m = re.fullmatch(r"(\d+)([uUlL]*)", self.source(begin, end))
            if m:
                n = int(m[1])
                self.add("constant", begin, end, str(1 - n if n < 2 else n + 1) + m[2])
        elif c.kind in (K.BREAK_STMT, K.CONTINUE_STMT):
            if self.text[end:end + 1] == b";":
                self.add("jump", begin, end + 1, "", "{{ if (!{0}) {2} }}")
        elif c.kind == K.CALL_EXPR:
            if statement and not NOT_DROPPED.match(c.spelling or ""):
                self.add("call", begin, end, "(void)0", "({} ? {} : (void)({}))")
            args = [] if SYMMETRIC.match(c.spelling or "") else list(c.get_arguments())
            for a, b in zip(args, args[1:]):
                x, y = ((z.extent.start.offset, z.extent.end.offset) for z in (a, b))
                if x[1] <= y[0] and a.type.get_canonical().spelling == b.type.get_canonical().spelling:
                    new = (self.source(begin, x[0]) + self.source(*y) + self.source(x[1], y[0]) + self.source(*x) + self.source(y[1], end))
                    if a.type.get_canonical().spelling != "void":
                        self.add("arguments", begin, end, new)
        if c.kind == K.IF_STMT and children[0].kind not in (K.BINARY_OPERATOR, K.UNARY_OPERATOR): # else its operator is replaced
            self.add("condition", at[0][0], at[0][1], f"!({self.source(*at[0])})")


def places(path, args):
    return sorted(set(Places(path, args).found))
