"""Reads calls with literal arguments out of the tests of others, in Rust and C++: values, loops over lists,
matches of names, helpers of the same file. What it cannot read it leaves out and counts."""
import itertools
import json
import re


class Unreadable(Exception):
    pass


TOKEN = re.compile(r'''
      (?P<skip>\s+ | //[^\n]* | /\*.*?\*/)
    | (?P<raw>b?r(?P<hashes>\#*)".*?"(?P=hashes) | R"(?P<mark>[^(]*)\(.*?\)(?P=mark)")
    | (?P<string>b?"(?:[^"\\]|\\.)*")
    | (?P<char>'(?:\\(?:u\{[0-9a-fA-F]+\}|x[0-9a-fA-F]{2}|.)|[^'\\])')
    | (?P<lifetime>'[a-z_]+)
    | (?P<number>0x[0-9a-fA-F_]+ | [0-9][0-9_]*(?:\.[0-9][0-9_]*)?(?:[eE][+-]?[0-9]+)?)(?:[iuf](?:8|16|32|64|128|size))?
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<mark_>::|=>|->|\.\.=|\.\.|&&|\|\||==|!=|<=|>=|.)
''', re.S | re.X)
CLOSING = {"(": ")", "[": "]", "{": "}"}
SHORTS = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\", '"': '"', "'": "'", "b": "\b", "f": "\f"}


def unescape(s):
    def one(m):
        c = m.group(0)[1:]
        if c[0] in "xu" and len(c) > 1:
            return chr(int(c[1:].strip("{}"), 16))
        return "" if c[0] == "\n" else SHORTS.get(c, c)
    return re.sub(r"\\(?:x[0-9a-fA-F]{1,2}|u\{[0-9a-fA-F]+\}|u[0-9a-fA-F]{4}|\n\s*|.)", one, s, flags=re.S)


def tokens_of(text):
    """(kind, value, line) of each: strings have their values."""
    out, line, at = [], 1, 0
    while at < len(text):
        m = TOKEN.match(text, at)
        kind, s = m.lastgroup, m.group(0)
        if m.group("raw"):
            kind, value = "string", s[s.index('"') + 1:s.rindex('"')]
            if s[0] == "R":
                value = value[len(m.group("mark")) + 1:len(value) - len(m.group("mark")) - 1]
        elif kind == "string":
            value = unescape(s[s.index('"') + 1:-1])
        elif kind == "char":
            kind, value = "string", unescape(s[1:-1])
        elif m.group("number"):
            n = m.group("number").replace("_", "")
            kind, value = "number", int(n, 0) if re.fullmatch("0x.*|[0-9]+", n) else float(n)
        else:
            value = s
        if kind != "skip":
            out.append((kind, value, line))
        line += s.count("\n")
        at = m.end()
    return out


class Code:
    """Runs over the tokens of a file. @record(name, args, line) takes the calls that are looked for."""

    def __init__(self, text, names, record, cpp=False):
        self.t = tokens_of(text) + [("end", "", 0)] * 4
        self.names, self.record, self.cpp = names, record, cpp
        self.i, self.unread, self.functions, self.env, self.depth = 0, 0, {}, {}, 0

    def at(self, value, ahead=0):
        kind, v, _ = self.t[self.i + ahead]
        return v == value and kind not in ("string", "number")

    def take(self, value):
        if not self.at(value):
            raise Unreadable(f"{value} expected")
        self.i += 1

    def skip(self, *stops):
        """To the first of @stops outside brackets, or to the bracket that closes."""
        while self.t[self.i][0] != "end":
            v = self.t[self.i][1] if self.t[self.i][0] not in ("string", "number") else None
            if v in stops or v in (")", "]", "}"):
                return
            self.i = self.after(self.i) if v in CLOSING else self.i + 1

    def after(self, i):
        depth = 0
        while self.t[i][0] != "end":
            kind, v, _ = self.t[i]
            if kind not in ("string", "number"):
                depth += (v in CLOSING) - (v in CLOSING.values())
            i += 1
            if depth == 0:
                return i
        return i

    def items(self, close, one):
        out = []
        while not self.at(close):
            out.append(one())
            if not self.at(close):
                self.take(",")
        self.i += 1
        return out

    # ---- expressions

    LEVELS = (("..", "..="), ("||",), ("&&",), ("==", "!=", "<", ">", "<=", ">="), ("+", "-"), ("*", "/", "%"))

    def value(self, level=0):
        if level == len(self.LEVELS):
            return self.unary()
        left = self.value(level + 1)
        while self.t[self.i][0] == "mark_" and self.t[self.i][1] in self.LEVELS[level]:
            op = self.t[self.i][1]
            self.i += 1
            left = self.apply(op, left, self.value(level + 1))
        return left

    @staticmethod
    def apply(op, a, b):
        try:
            return {"..": lambda: list(range(a, b)), "..=": lambda: list(range(a, b + 1)), "||": lambda: a or b,
                    "&&": lambda: a and b, "==": lambda: a == b, "!=": lambda: a != b, "<": lambda: a < b,
                    ">": lambda: a > b, "<=": lambda: a <= b, ">=": lambda: a >= b, "+": lambda: a + b,
                    "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a // b, "%": lambda: a % b}[op]()
        except (TypeError, ZeroDivisionError) as e:
            raise Unreadable(str(e)) from e

    def unary(self):
        if self.t[self.i][0] == "mark_" and self.t[self.i][1] in ("&", "&&", "*", "-", "!"):
            op = self.t[self.i][1]
            self.i += 1
            if self.at("mut"):
                self.i += 1
            v = self.unary()
            return -v if op == "-" else not v if op == "!" else v
        v = self.primary()
        while self.at(".") or self.at("as") or self.at("["):
            self.i += 1
            if self.at("as", -1):
                self.i += 1
            elif self.at("[", -1):
                index = self.value()
                self.take("]")
                v = v[index]
            else:
                v = self.method(v)
        return v

    def method(self, v):
        name = self.t[self.i][1]
        self.i += 1
        if not self.at("("):
            raise Unreadable(f".{name}")
        self.i += 1
        args = self.items(")", self.value)
        if name in ("to_string", "clone", "iter", "into_iter", "as_str", "unwrap", "to_vec", "as_bytes", "as_ref", "to_owned"):
            return json.dumps(v, ensure_ascii=False, separators=(",", ":")) if name == "to_string" and not isinstance(v, str) else v
        known = {"repeat": lambda: v * args[0], "len": lambda: len(v), "abs": lambda: abs(v), "trim": v and (lambda: v.strip()),
                 "replace": lambda: v.replace(*args), "rev": lambda: v[::-1]}
        if name not in known:
            raise Unreadable(f".{name}()")
        return known[name]()

    def primary(self):
        kind, v, line = self.t[self.i]
        self.i += 1
        if kind == "string" or kind == "number":
            while self.cpp and kind == "string" and self.t[self.i][0] == "string":
                v += self.t[self.i][1]
                self.i += 1
            return v
        if kind == "mark_" and v in ("(", "[", "{"):
            return self.bracket(v)
        if kind != "name":
            raise Unreadable(v)
        if v in ("true", "false"):
            return v == "true"
        if v in ("match", "if"):
            return self.match() if v == "match" else self.condition()
        while self.at("::"):
            v = self.t[self.i + 1][1]
            self.i += 2
        if self.at("!") and self.t[self.i + 1][1] in CLOSING:
            self.i += 2
            return self.macro(v, CLOSING[self.t[self.i - 1][1]])
        if self.at("("):
            self.i += 1
            return self.call(v, self.items(")", self.value), line)
        if v in self.env:
            return self.env[v]
        if v[0].isupper() and (self.cpp or not (v.isupper() and "_" in v)):  # a variant of an enum
            return v
        raise Unreadable(v)

    def bracket(self, v):
        if v == "{" and not self.cpp:
            return self.block()
        first = [] if self.at(CLOSING[v]) else [self.value()]
        if first and self.at(";"):
            self.i += 1
            out = first * self.value()
            self.take("]")
            return out
        if first and self.at(CLOSING[v]) and v == "(":
            self.i += 1
            return first[0]
        if first and not self.at(CLOSING[v]):
            self.take(",")
        return first + self.items(CLOSING[v], self.value)

    def macro(self, name, close):
        if name == "json":
            out = self.json_value()
            self.take(close)
            return out
        args = self.items(close, self.value)
        if name == "vec":
            return args
        if name == "concat":
            return "".join(map(str, args))
        if name == "format":
            return self.format(args)
        if name in ("assert", "println", "assert_eq", "eprintln"):
            return None
        raise Unreadable(name + "!")

    def format(self, args):
        rest = iter(args[1:])

        def one(m):
            if m.group(0) in ("{{", "}}"):
                return m.group(0)[0]
            name = m.group(1)
            if name and not name.isdigit() and name not in self.env:
                raise Unreadable(name)
            v = args[1 + int(name)] if name.isdigit() else self.env[name] if name else next(rest)
            return v if isinstance(v, str) else json.dumps(v, ensure_ascii=False, separators=(",", ":"))
        return re.sub(r"\{\{|\}\}|\{(\w*)\}", one, args[0])

    def json_value(self):
        if self.at("null"):
            self.i += 1
            return None
        if self.at("["):
            self.i += 1
            return self.items("]", self.json_value)
        if self.at("{"):
            self.i += 1
            return dict(self.items("}", self.json_member))
        return self.value()

    def json_member(self):
        key = self.unary()
        self.take(":")
        return key, self.json_value()

    def call(self, name, args, line):
        if name in self.names:
            self.record(name, args, line)
            return None
        if name in ("from", "Some", "Ok", "String", "string"):
            return args[0]
        if name in self.functions and self.depth < 8:
            return self.run(name, args)
        raise Unreadable(name + "()")

    # ---- statements (Rust)

    def match(self):
        v = self.value()
        self.take("{")
        end, out, found = self.after(self.i - 1), None, False
        while not self.at("}"):
            pattern = []
            while not self.at("=>"):
                pattern.append(self.t[self.i][1])
                self.i += 1
            self.i += 1
            names = [p for p, behind in zip(pattern, pattern[1:] + [""]) if p[0].isalnum() and behind != "::"]
            if not found and (names == (v if isinstance(v, list) else [v]) or pattern == ["_"]):
                out, found = self.value(), True
            elif self.at("{"):
                self.i = self.after(self.i)
            else:
                self.skip(",")
            if self.at(","):
                self.i += 1
        self.i = end
        return out

    def condition(self):
        yes, out = self.value(), None
        start = self.i
        self.i = self.after(start)
        if yes:
            end = self.i
            self.i = start + 1
            out = self.block()
            self.i = end
        if self.at("else"):
            self.i += 1
            if self.at("if"):
                raise Unreadable("else if")
            end = self.after(self.i)
            self.i += 1
            out = out if yes else self.block()
            self.i = end
        return out

    def block(self):
        """Behind `{`, to behind `}`."""
        end, outer, out = self.after(self.i - 1), dict(self.env), None
        while self.i < end - 1:
            start = self.i
            try:
                out = self.statement()
            except (Unreadable, TypeError, ValueError, KeyError, IndexError, StopIteration, AttributeError):
                self.unread += any(n[1] in self.names for n in self.t[start:self.statement_end(start)])
                self.i = self.statement_end(start)
                out = None
        self.i = end
        self.env = outer
        return out

    def statement_end(self, i):
        """Behind the `;` or the block that ends the statement at @i."""
        block = self.t[i][1] in ("for", "if", "match", "while")
        self.i = i
        self.skip(";", *("{" if block else ""))
        if self.at("{"):
            return self.after(self.i)
        return self.i + 1

    def statement(self):
        if self.at("let"):
            self.i += 2 if self.at("mut", 1) else 1
            name = self.t[self.i][1]
            self.env.pop(name, None)
            self.skip("=", ";")
            self.take("=")
            v = self.value()
            self.take(";")
            self.env[name] = v
            return None
        if self.at("for"):
            return self.loop()
        v = self.value()
        if self.at(";"):
            self.i += 1
            return None
        return v

    def loop(self):
        start = self.i
        self.skip("in")
        names = [v for kind, v, _ in self.t[start + 1:self.i] if kind == "name"]
        self.i += 1
        values = self.value()
        body = self.i
        if not self.at("{"):
            raise Unreadable("for")
        for v in values:
            row = v if len(names) > 1 else [v]
            self.env.update(zip(names, row))
            self.i = body + 1
            self.block()
        self.i = self.after(body)

    def run(self, name, args):
        names, body = self.functions[name]
        here, outer = self.i, self.env
        self.env, self.i = {**self.statics, **dict(zip(names, args))}, body + 1
        self.depth += 1
        out = self.block()
        self.depth -= 1
        self.i, self.env = here, outer
        return out

    # ---- a file of Rust

    def parameters(self):
        """[(name, values or None)] behind `(`."""
        out = []
        end = self.after(self.i)
        self.i += 1
        while self.i < end - 1:
            values = None
            while self.at("#"):
                attribute, self.i = self.i + 2, self.after(self.i + 1)
                behind = self.i
                if self.t[attribute][1] == "values":
                    self.i = attribute + 2
                    values = self.items(")", self.value)
                self.i = behind
            out.append((self.t[self.i + self.at("mut")][1], values))
            self.skip(",")
            self.i += self.at(",")
        self.i = end
        return out

    def rust(self):
        self.statics, tests, rows = {}, [], []
        while self.t[self.i][0] != "end":
            if self.at("#") and self.at("[", 1):
                start, end = self.i, self.after(self.i + 1)
                if self.at("case", 2):
                    self.i = start + 3
                    self.skip("(", "]")
                    self.i += 1
                    try:
                        rows.append(self.items(")", self.value))
                    except Unreadable:
                        self.unread += 1
                self.i = end
                continue
            if self.at("static") or self.at("const"):
                self.static()
                continue
            if not self.at("fn"):
                self.i += 1
                continue
            name = self.t[self.i + 1][1]
            self.i += 2
            self.skip("(")
            parameters = self.parameters()
            self.skip("{")
            self.functions[name] = ([p for p, _ in parameters], self.i)
            if not parameters or any(v for _, v in parameters) or rows:
                tests.append((name, parameters, rows))
            rows = []
            self.i = self.after(self.i)
        for name, parameters, rows in tests:
            for row in rows or [[]]:
                cells = iter(row)
                for args in itertools.product(*(v if v is not None else [next(cells, None)] for _, v in parameters)):
                    self.run(name, args)

    def static(self):
        names = [v for kind, v, _ in self.t[self.i:self.i + 4] if kind == "name" and v.isupper()]
        self.skip("=", ";", "{")
        try:
            self.take("=")
            self.env[names[0]] = self.statics[names[0]] = self.value()
        except (Unreadable, IndexError, TypeError):
            self.i += 1

    # ---- a file of C++

    def calls(self):
        while self.t[self.i][0] != "end":
            kind, v, line = self.t[self.i]
            start = self.i
            try:
                if kind == "name" and v in self.names and self.at("(", 1) and self.t[start - 1][1] not in ("void", "bool"):
                    self.i += 2
                    self.record(v, self.items(")", self.value), line)
                    continue
                if kind == "name" and self.at("=", 1):
                    self.i += 2
                    self.env[v] = self.value()
                    continue
            except (Unreadable, TypeError):
                self.unread += v in self.names
            self.i = start + 1
