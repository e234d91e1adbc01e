#!/usr/bin/env python3
"""Damaged model files, generated from a seed: weft-gguf and weftd refuse them with one line, or use them; they never
crash, hang or allocate gigabytes.

    tests/e2e/fuzz_gguf.py --seconds 600 [--seed N] [--round N] [--build build-asan] FILE.gguf...

Each round changes metadata, tensors or bytes of one file and runs weft-gguf (verify, info, tokenize, render) and weftd
on the result; weftd must answer a chat and a completion if it serves the file. A file that causes a failure is kept,
and its path printed. test_hostile.py runs a short part."""
import argparse
import json
import os
import pathlib
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
FORMATS = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q", I64: "<q", F64: "<d"}
INTS = [0, 1, 2, 3, 7, 8, 16, 31, 33, 64, 127, 255, 256, 1023, 1025, 4096, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**33, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-45, 1e-5, 1e30, 3.4e38, float("inf"), float("-inf"), float("nan"), 1e6]
TEMPLATES = [
    "{% for i in range(10**9) %}x{% endfor %}", "{% for i in range(1000000000) %}{% endfor %}", "{% set ns = namespace(s='a') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "{{ 'a' * 10**10 }}", "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}", "{% set x = [1] %}{% for i in range(64) %}{% set x = x + x %}{% endfor %}",
    "{{ messages[10**20] }}", "{{ 1 // 0 }}{{ 1 % 0 }}", "{{ (-9223372036854775807 - 1) // -1 }}", "{{ 2**63 * 2 }}", "{{ [1] * 10**9 }}", "{{ messages|tojson(indent=1000000000) }}",
    "{{ 'x'|center(10**9) }}", "{{ '%s' % ('a' * 10) }}{{ '%1000000000d' % 1 }}", "(" * 5000, "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% if 1 %}" * 3000, "{{ " + "-" * 20000 + "1 }}",
    "{{ " + "not " * 20000 + "1 }}", "{{ x" + ".a" * 20000 + " }}", "{{ [" * 3000, "{{ messages[::-1][::0] }}", "{{ 'abc'[-10**18:10**18:10**18] }}", "{% set a = [] %}{% set a = [a, a] %}" * 60 + "{{ a }}",
    "{{ raise_exception('no') }}", "{{ messages.__class__ }}", "{% include '/etc/passwd' %}", "{{ range(10**9)|list|length }}", "{{ 'a'|indent(10**9) }}", "{{ (1,)*99999999 }}", "{{ strftime_now('%Y' * 100000) }}",
    "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}{% endfor %}{% endfor %}{% endfor %}", "{{ 'ab' * 1000000 }}", "", "\x00", "{{", "{% endfor %}", "\xff{{ '\ud800' }}",
    "{% for m in messages %}{{ m.content.split('') }}{% endfor %}", "{{ messages|map(attribute='content')|join('x' * 100000)|upper * 1000 }}", "{% set d = {} %}{% for i in range(100000) %}{% set d = dict(d, **{i|string: d}) %}{% endfor %}",
]


class Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def one(self, fmt):
        v, = struct.unpack_from(fmt, self.data, self.at)
        self.at += struct.calcsize(fmt)
        return v

    def string(self):
        n = self.one("<Q")
        self.at += n
        return bytes(self.data[self.at - n:self.at])

    def value(self, kind):
        if kind == STR:
            return self.string()
        if kind == ARR:
            item, n = self.one("<I"), self.one("<Q")
            return (item, [self.value(item) for _ in range(n)])
        return self.one(FORMATS[kind])


class Model:
    """A GGUF file in parts, which can be written again, also as a damaged file."""

    def __init__(self, path):
        c = Cursor(pathlib.Path(path).read_bytes())
        magic, self.version, n_tensors, n_kv = c.one("<4s"), c.one("<I"), c.one("<Q"), c.one("<Q")
        assert magic == b"GGUF", path
        self.kv = []
        for _ in range(n_kv):
            key, kind = c.string(), c.one("<I")
            self.kv.append([key, kind, c.value(kind)])
        self.tensors = []
        for _ in range(n_tensors):
            name, n_dims = c.string(), c.one("<I")
            self.tensors.append([name, [c.one("<Q") for _ in range(n_dims)], c.one("<I"), c.one("<Q")])
        self.alignment = next((v for k, _, v in self.kv if k == b"general.alignment"), 32)
        self.data = c.data[-(-c.at // self.alignment) * self.alignment:]
        self.counts = None  # numbers of tensors and keys that differ from the file's
        self.lies = {}  # wrong lengths: (part, index) to length

    def copy(self):
        m = object.__new__(Model)
        m.__dict__ = {**self.__dict__, "kv": [list(k) for k in self.kv], "tensors": [[t[0], list(t[1]), t[2], t[3]] for t in self.tensors], "lies": {}}
        return m

    def pack(self):
        out = bytearray()

        def put_int(fmt, v):
            bits = 8 * struct.calcsize(fmt)
            out.extend((int(v) % (1 << bits)).to_bytes(bits // 8, "little"))

        def put_string(s, lie=None):
            put_int("<Q", len(s) if lie is None else lie)
            out.extend(s)

        def put_value(kind, v, lie=None):
            if kind == STR:
                put_string(v if isinstance(v, bytes) else str(v).encode("utf-8", "surrogatepass"), lie)
            elif kind == ARR:
                item, values = v if isinstance(v, tuple) else (U8, [1, 2])
                put_int("<I", item)
                put_int("<Q", len(values) if lie is None else lie)
                for x in values:
                    put_value(item, x)
            elif kind in (F32, F64):
                out.extend(struct.pack(FORMATS[kind], v if isinstance(v, float) else 1.0))
            else:
                put_int(FORMATS.get(kind, "<I").replace("?", "B"), v if isinstance(v, (int, bool)) else 7)

        n_tensors, n_kv = self.counts or (len(self.tensors), len(self.kv))
        out.extend(b"GGUF")
        put_int("<I", self.version)
        put_int("<Q", n_tensors)
        put_int("<Q", n_kv)
        for i, (key, kind, v) in enumerate(self.kv):
            put_string(key, self.lies.get(("key", i)))
            put_int("<I", kind)
            put_value(kind, v, self.lies.get(("kv", i)))
        for i, (name, dims, kind, offset) in enumerate(self.tensors):
            put_string(name, self.lies.get(("name", i)))
            put_int("<I", self.lies.get(("dims", i), len(dims)))
            for d in dims:
                put_int("<Q", d)
            put_int("<I", kind)
            put_int("<Q", offset)
        self.n_header = len(out)
        out.extend(bytes(-len(out) % self.alignment))
        out.extend(self.data)
        return out


def change_value(r, kind, v):
    if isinstance(v, tuple) != (kind == ARR) or isinstance(v, bytes) != (kind == STR):
        return v  # a mutation has changed its type already
    if kind == STR:
        return r.choice([b"", b"\xff\xfe", b"x" * 70000, b"a\x00b", b"llama", b"qwen3", b"gemma3", b"gpt2", b"bert", b"default", v + b"x", v[:-1], "\udc80".encode("utf-8", "surrogatepass")])
    if kind in (F32, F64):
        return r.choice(FLOATS)
    if kind == ARR:
        item, values = v
        values = list(values)
        for _ in range(r.choice([1, 1, 5, 300])):
            n = len(values)
            how = r.randrange(6)
            if how == 0 and n:
                values[r.randrange(n)] = change_value(r, item, values[0]) if item != ARR else (U8, [1])
            elif how == 1 and n:
                del values[r.randrange(n)]
            elif how == 2 and n:
                values.insert(r.randrange(n), values[r.randrange(n)])
            elif how == 3 and n:
                values[r.randrange(n)] = values[r.randrange(n)]
            elif how == 4:
                values = values[:r.randrange(n + 1)] if r.random() < 0.1 else values
            elif n and item == STR:
                values[r.randrange(n)] = r.choice([b"", b" ", b"a b", b"a  b", b"\xc4\xa0 t", b"<0x00>", b"<0x0", b"<0xZZ>", b"y" * 5000, b"\xe2\x96\x81", bytes([r.randrange(256)])])
        return (item if r.random() < 0.95 else r.randrange(14), values)
    if kind == BOOL or not isinstance(v, int):
        return not v
    return r.choice(INTS + [v + 1, v - 1, v * 2, v // 2])


def mutate(r, model):
    m = model.copy()
    for _ in range(r.choice([1, 1, 1, 2, 4])):
        how = r.randrange(18)
        kv, t = r.choice(m.kv) if m.kv else None, r.choice(m.tensors) if m.tensors else None
        if how < 6 and kv:
            kv[2] = change_value(r, kv[1], kv[2])
        elif how == 6 and kv:
            kv[1] = r.randrange(15) if r.random() < 0.9 else r.choice(INTS)
        elif how == 7 and kv:
            m.kv.remove(kv) if r.random() < 0.7 else m.kv.append(list(kv))
        elif how == 8 and t:
            t[1] = r.choice([[], [0], [1], [r.choice(INTS)], t[1][::-1], t[1] + [1], t[1] + [r.choice(INTS)], [d * 2 for d in t[1]], [2**32, 2**32], [2**31] * 4, [1] * 5, [max(d // 2, 1) for d in t[1]]])
        elif how == 9 and t:
            t[2] = r.choice(list(range(45)) + INTS)
        elif how == 10 and t:
            t[3] = r.choice([0, 1, t[3] + 32, t[3] - 32, t[3] + 1, *INTS, len(m.data), len(m.data) - 32])
        elif how == 11 and t:
            t[0] = r.choice([b"", b"x" * 65, b"x" * 5000, t[0] + b"\x00", b"blk.99.attn_q.weight", b"output.weight", b"rope_freqs.weight", b"blk.0.attn_q.bias", t[0].replace(b"0", b"1"), b"blk.0.ffn_gate_exps.weight"])
        elif how == 12 and t:
            m.tensors.remove(t) if r.random() < 0.5 else r.shuffle(m.tensors)
        elif how == 13:
            m.counts = (r.choice([len(m.tensors), *INTS]), r.choice([len(m.kv), *INTS]))
        elif how == 14:
            part, n = r.choice([("key", len(m.kv)), ("kv", len(m.kv)), ("name", len(m.tensors)), ("dims", len(m.tensors))])
            if n:
                m.lies[(part, r.randrange(n))] = r.choice(INTS)
        elif how == 15:
            data = bytearray(m.data)
            for _ in range(r.choice([1, 30, 1000])):
                at = r.randrange(len(data) or 1)
                data[at:at + 2] = r.choice([b"\x00\x7c", b"\x00\x7e", b"\xff\xff", b"\x00\xfc", b"\xff\x7b", b"\x00\x00"])[:len(data) - at]
            m.data = bytes(data)
        elif how == 16:
            m.kv = [k for k in m.kv if k[0] != b"tokenizer.chat_template"] + [[b"tokenizer.chat_template", STR, r.choice(TEMPLATES)]]
        else:
            m.version = r.choice([0, 1, 2, 3, 4, 2**24, 2**31])
    out = m.pack()
    if r.random() < 0.15:
        for _ in range(r.choice([1, 3, 20])):
            out[r.randrange(m.n_header)] = r.randrange(256)
    if r.random() < 0.05:
        del out[r.randrange(len(out)):]
    if r.random() < 0.03:
        out += bytes(r.randrange(1, 100000))
    return bytes(out)


# ---- arguments of the programs

MOST_KIB = 512 << 10  # limit of a string that a template builds, with some room
RATE_KIB = 512 << 10  # limit of what info reads beyond the model in order to measure the memory rate
SANITIZER = ("AddressSanitizer", "runtime error:", "LeakSanitizer")
CONVERSATION = json.dumps({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi \U0001f600 there"}], "add_generation_prompt": True,
                           "bos_token": "<s>", "eos_token": "</s>", "now": "2026-01-01T00:00:00"})


class Broken(Exception):
    pass


def check_process(what, code, err, ok=(0, 1, 2, 64, 65, 66, 75, 78)):
    for word in SANITIZER:
        if word in err and "does not work under ptrace" not in err:  # the worker's sandbox
            raise Broken(f"{what}: {err[err.find(word) - 200:][:3000]}")
    if code not in ok:
        raise Broken(f"{what} ended with {code}: {err[-2000:]}")


class Runner:
    """Runs the programs on a file. @drafter_of: the model for which weftd gets the files as drafters; None: the files
    are the models."""

    def __init__(self, build, limit_s, drafter_of=None):
        self.build, self.limit_s, self.drafter_of = pathlib.Path(build).resolve(), limit_s, drafter_of
        self.counts, self.most_kib = {}, 0

    def program(self, path, *args, stdin=""):
        p = subprocess.Popen([str(self.build / "weft-gguf"), *args], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            p.stdin.write(stdin.encode())
            p.stdin.close()
        except BrokenPipeError:
            pass  # the program refused the file
        timer = threading.Timer(self.limit_s, p.kill)
        timer.start()
        err = p.stderr.read().decode("utf-8", "replace")
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        timer.cancel()
        if p.returncode == -9:
            raise Broken(f"weft-gguf {args[0]}: not done after {self.limit_s} s")
        self.most_kib = max(self.most_kib, usage.ru_maxrss)
        if usage.ru_maxrss > MOST_KIB + (RATE_KIB if args[0] == "info" else 0):
            raise Broken(f"weft-gguf {args[0]}: took {usage.ru_maxrss >> 10} MiB")
        check_process("weft-gguf " + args[0], p.returncode, err)
        lines = [line for line in err.splitlines() if line]
        if p.returncode and len(lines) != 1:
            raise Broken(f"weft-gguf {args[0]}: {len(lines)} lines: {err[:600]!r}")
        self.counts[args[0], p.returncode] = self.counts.get((args[0], p.returncode), 0) + 1
        return p.returncode

    def ask(self, address, path, body):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(self.limit_s)
            s.connect(address)
            data = json.dumps(body).encode()
            s.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (path, len(data)) + data)
            answer = b""
            while piece := s.recv(65536):
                answer += piece
        status = int(answer.split(b" ", 2)[1])
        if status in (500, 503) and b"engine" not in answer and b"template" not in answer:
            raise Broken(f"{path}: {answer[:600]}")
        if b"engine_fault" in answer:
            raise Broken(f"{path}: the worker died of it: {answer[:600]}")
        return status

    def daemon(self, path, folder):
        address, log_path = os.path.join(folder, "http"), os.path.join(folder, "log")
        files = ["--model", self.drafter_of, "--draft-model", path] if self.drafter_of else ["--model", path]
        with open(log_path, "w") as log:
            p = subprocess.Popen([str(self.build / "weftd"), *files, "--listen", "unix:" + address, "--backend", "cpu", "--threads", "1", "--max-context", "256",
                                  "--kv-pages", "64", "--load-timeout-ms", str(1000 * self.limit_s), "--drain-timeout-ms", "1000"], stderr=log)
        end = time.monotonic() + 4 * self.limit_s
        log = lambda: pathlib.Path(log_path).read_text(errors="replace")
        try:
            while p.poll() is None and "\nready " not in "\n" + log():
                if time.monotonic() > end:
                    raise Broken("weftd neither serves nor refuses: " + log())
                time.sleep(0.01)
            if p.poll() is None:
                answers = [self.ask(address, b"/v1/completions", {"prompt": "one two", "max_tokens": 3, "logprobs": 2}),
                           self.ask(address, b"/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}),
                           self.ask(address, b"/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "response_format": {"type": "json_object"},
                                                                      "tools": [{"type": "function", "function": {"name": "f"}}]})]
                self.counts["served", *answers] = self.counts.get(("served", *answers), 0) + 1
                p.terminate()
            p.wait(self.limit_s)
        except (OSError, subprocess.TimeoutExpired, IndexError) as error:
            raise Broken(f"weftd: {error!r}: {log()[-2500:]}") from None
        finally:
            if p.poll() is None:
                p.kill()
                p.wait()
            if os.path.exists(address):
                os.unlink(address)
        text = log()
        check_process("weftd", p.returncode, text, ok=(0, 75, 78))
        if " worker_died " in text and " status=0 signal=0" not in text and "reason=" not in text:
            raise Broken("the worker died: " + text)
        if p.returncode and "weftd: " not in text:
            raise Broken("refused without a word: " + text)
        self.counts["weftd", p.returncode] = self.counts.get(("weftd", p.returncode), 0) + 1

    def round(self, models, seed, number, folder, with_daemon=True):
        r = random.Random(f"{seed}.{number}")
        data = mutate(r, r.choice(models))
        path = os.path.join(folder, "model.gguf")
        pathlib.Path(path).write_bytes(data)
        try:
            self.program(path, "verify", path)
            if r.random() < 0.3:
                self.program(path, "info", path)
            if self.program(path, "tokenize", path, "--special", stdin="Hello w\u00f6rld <s> \U0001f600\n\n  12345 <|im_end|>") == 0 or r.random() < 0.1:
                self.program(path, "render", path, "-", stdin=CONVERSATION)
            if with_daemon:
                self.daemon(path, folder)
        except Broken as error:
            keep = os.path.join(tempfile.gettempdir(), f"fuzz-gguf-{seed}-{number}.gguf")
            pathlib.Path(keep).write_bytes(data)
            raise Broken(f"seed {seed} round {number} ({keep}): {error}") from None


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seed", type=int, default=None)
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--round", type=int)
    p.add_argument("--build", default=os.environ.get("WEFT_BUILD", "build"))
    p.add_argument("--limit", type=float, default=60, help="seconds that one program may take")
    p.add_argument("--no-daemon", action="store_true")
    p.add_argument("--drafter-of", metavar="MODEL", help="the files are drafters of this model")
    p.add_argument("files", nargs="+")
    a = p.parse_args()
    seed = a.seed if a.seed is not None else random.SystemRandom().randrange(1 << 32)
    models = [Model(f) for f in a.files]
    print("seed", seed, "of", len(models), "files", flush=True)
    runner, n, n_broken = Runner(a.build, a.limit, a.drafter_of), 0, 0
    end = time.monotonic() + a.seconds
    with tempfile.TemporaryDirectory(prefix="fuzz-gguf-") as folder:
        numbers = iter([a.round]) if a.round is not None else iter(range(10**9))
        for number in numbers:
            if time.monotonic() > end:
                break
            n += 1
            try:
                runner.round(models, seed, number, folder, not a.no_daemon)
            except Broken as error:
                n_broken += 1
                print(f"BROKEN: {error}", flush=True)
    print(n, "rounds, at most", runner.most_kib >> 10, "MiB", {" ".join(map(str, k)): v for k, v in sorted(runner.counts.items(), key=str)})
    sys.exit(1 if n_broken else 0)


if __name__ == "__main__":
    main()
