#!/usr/bin/env python3
"""What pictures cost that come again: weft, and beside it llama-server in the same run.

usage: pictures.py --build BUILD --model M.gguf --mmproj P.gguf [--llama-server PROGRAM] [--agents N] [--turns N]
                   [--side WxH] [--threads N] [PART...]

PART: again  a second request with the same picture and other text, beside cached text of as many tokens
      agents N agents of N turns, each with one new screenshot, and all earlier ones resent
      known  forty pictures of 1920 x 1080 in a request, of which 39 are known: CPU time of the front (weft only)
      damaged --count damaged files (10,000), and bombs: restarts, memory and CPU time (weft only; --files FOLDER)
"""
import argparse
import base64
import concurrent.futures
import contextlib
import json
import pathlib
import random
import re
import statistics
import struct
import threading
import time
import urllib.error
import urllib.request
import zlib

from servers import Server, commit, cpu_name, tree_of, cpu_s_of


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, seed):
    """A picture of a window with lines of something: flat areas, edges, noise in a corner."""
    rng = random.Random(seed)
    base = bytes(rng.randrange(256) for _ in range(3))
    plain, lines = b"\0" + base * width, {}

    def row(y):
        if y < 8:
            return b"\0" + (rng.randbytes(192) + base * width)[:3 * width]
        if y % 16 not in (4, 5, 6, 9, 10) or y // 16 % 3 == 0:
            return plain
        if y // 16 not in lines:
            line = random.Random(seed * 1000 + y // 16)
            marks = (bytes(255 - b for b in base) if line.random() < 0.7 else base for _ in range(width // 8 + 1))
            lines[y // 16] = b"\0" + b"".join(m * 5 + base * 3 for m in marks)[:3 * width]
        return lines[y // 16]

    rows = [row(y) for y in range(height)]
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(b"".join(rows), 6)) + chunk(b"IEND", b""))


def part_of(data):
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(data).decode()}}


def post(url, body):
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def chat(url, messages, n=1):
    status, answer = post(url, {"messages": messages, "temperature": 0, "max_tokens": n})
    assert status == 200, answer
    return answer


def user(*parts):
    return {"role": "user", "content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]}


def encodings(server):
    """Of llama-server: in its log, from level 4 on."""
    if not server.weft:
        return sum(int(n) for n in re.findall(r"encoding mtmd batch.*n_chunks = (\d+)", server.text()))
    text = urllib.request.urlopen(server.url + "/metrics", timeout=60).read().decode()
    return sum(int(v) for v in re.findall(r"^weft_pictures_computed_total\S* (\d+)", text, re.M))


def again(server, o):
    """Median times to the end of one token."""
    def timed(messages):
        begin = time.perf_counter()
        answer = chat(server.url, messages)
        return (time.perf_counter() - begin) * 1000, answer["usage"]["prompt_tokens"]

    picture = part_of(png(*o.size, 1))
    first, n = timed([user("Look: ", picture, " What is it?")])
    seen = [timed([user("Look: ", picture, f" What is it, number {i}?")]) for i in range(9)]
    words = "! " * ((n - 20) // 2)  # about two tokens each
    short = n - timed([user("Look: ", words, " What is it?")])[1]
    words = "! " * ((n - 20 + short) // 2)
    timed([user("Look: ", words, " What is it?")])
    text = [timed([user("Look: ", words, f" What is it, number {i}?")]) for i in range(9)]
    a, b = (statistics.median(t for t, _ in times) for times in (seen, text))
    print(f"again: first {first:.1f} ms, same picture {a:.1f} ms ({seen[0][1]} tokens), cached text {b:.1f} ms ({text[0][1]} tokens): {a / b:.2f}")


def agents(server, o):
    before, cpu = encodings(server), server.cpu_s()[0]

    def agent(k):
        messages = [{"role": "system", "content": f"You are agent {k}."}]
        for turn in range(o.turns):
            messages.append(user(part_of(png(*o.size, 10000 + k * 100 + turn)), f"Step {turn}."))
            answer = chat(server.url, messages, 8)
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or "."})

    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(o.agents) as pool:
        for done in [pool.submit(agent, k) for k in range(o.agents)]:
            done.result()
    print(f"agents: {o.agents} x {o.turns}, {o.agents * o.turns} pictures, {encodings(server) - before} encodings, "
          f"{time.monotonic() - begin:.1f} s, {server.cpu_s()[0] - cpu:.1f} CPU s")


def not_worker(server):
    """CPU time of all processes but the worker: the front, and the children that decode."""
    worker = max(tree_of(server.process.pid)[1:], key=lambda p: cpu_s_of(p[0]))[0]
    return server.cpu_s()[0] - cpu_s_of(worker)


def known(server, o):
    files = [png(1920, 1080, 500 + i) for i in range(39 + 10)]
    parts = [part_of(f) for f in files]
    chat(server.url, [user(*parts[:39], "first")])
    costs = []
    for i in range(10):
        before = not_worker(server)
        chat(server.url, [user(*parts[:39], parts[39 + i], f"turn {i}")])
        costs.append((not_worker(server) - before) * 1000)
    print(f"known: 40 pictures of {statistics.mean(map(len, files)) / 1024:.0f} KiB, 39 known: {statistics.mean(costs):.0f} ms of CPU "
          f"(mean of {len(costs)}; the clock has ticks of 10 ms)")


class Watch:
    """Samples all processes of @server every 3 ms: the most memory that they have together, and the CPU time of those that
    live shortly, which no other process is charged with."""

    def __init__(self, server):
        self.server, self.cpu, self.most, self.ended = server, {}, 0, threading.Event()

    def sample(self):
        self.most = max(self.most, self.server.memory_mib())
        for pid, _ in tree_of(self.server.process.pid):
            with contextlib.suppress(OSError):
                tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
                self.cpu[pid] = sum(int((t / "schedstat").read_text().split()[0]) for t in tasks) / 1e6

    def run(self):
        while not self.ended.wait(0.003):
            self.sample()

    def __enter__(self):
        self.sample()
        self.before, self.most_before = dict(self.cpu), self.most
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        self.sample()
        self.cpu_ms = sum(v - self.before.get(p, 0) for p, v in self.cpu.items())
        self.mib = self.most - self.most_before


def resized_header(data, width, height):
    """A JPEG or lossy WebP file whose header declares another size."""
    data = bytearray(data)
    if data[:2] == b"\xff\xd8":
        at = next(m.start() for m in re.finditer(rb"\xff[\xc0-\xc2]\x00\x11", data))
        data[at + 5:at + 9] = struct.pack(">HH", height, width)
    else:
        at = data.index(b"\x9d\x01\x2a")
        data[at + 3:at + 7] = struct.pack("<HH", min(width, 16383), min(height, 16383))
    return bytes(data)


def flat_png(width, height, rows, interlaced=False, bits=8, kind=2, between=b"", filler=0):
    """A PNG file of one colour with @rows of its rows. @kind: 0 gray, 2 RGB, 6 RGBA. With 16 @bits a sample each row is
    predicted by Paeth's filter. @between: chunks before the pixels. @filler: bytes of empty blocks among them."""
    z = zlib.compressobj(9)
    passes = [(8, 8), (8, 8), (4, 8), (4, 4), (2, 4), (2, 2), (1, 2)] if interlaced else [(1, 1)]  # as many pixels, about
    first, n = (b"\4" if bits == 16 else b"\0"), {0: 1, 2: 3, 6: 4}[kind] * bits
    body = b"".join(z.compress(first + bytes((n * (width // x) + 7) // 8)) for x, y in passes for _ in range(rows // y))
    body += z.flush(zlib.Z_SYNC_FLUSH) + b"\0\0\0\xff\xff" * (filler // 5) + z.flush()
    head = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + between + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def pack(fields):
    """Numbers of so many bits each, the lowest bit first."""
    value = at = 0
    for number, bits in fields:
        value |= number << at
        at += bits
    return value.to_bytes(at // 8 + 1, "little")


def flat_webp(width, height):
    """A lossless WebP file of one colour: a code of one symbol has no bits."""
    head = [(0x2F, 8), (width - 1, 14), (height - 1, 14), (0, 4)]
    body = pack(head + [(0, 3)] + [(0b0001, 4)] * 5)  # no transforms, caches or groups; five codes
    body += bytes(8 + len(body) % 2)
    return b"RIFF" + struct.pack("<I", len(body) + 12) + b"WEBPVP8L" + struct.pack("<I", len(body)) + body


def flat_gif(width, height):
    """A GIF file of one colour: each code of its LZW data stands for one pixel more than the last."""
    codes, left, n = [(4, 3)], width * height, 0  # 4: clear; 5: end
    bits = lambda: max(3, (n + 5).bit_length())
    while left > 0:
        if n == 4000:
            codes.append((4, 12))
            n = 0
        run = min(n + 1, left)
        codes.append((0 if run == 1 else run + 4, bits()))
        left -= run
        n += 1
    data = pack(codes + [(5, bits())])
    blocks = b"".join(bytes([len(data[i:i + 255])]) + data[i:i + 255] for i in range(0, len(data), 255))
    return (b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6) + b","
            + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\2" + blocks + b"\0;")


def segment(kind, data):
    return bytes([0xFF, kind]) + struct.pack(">H", len(data) + 2) + data


def many_scans(width, height, n):
    """A gray progressive JPEG file of one colour whose @n scans each pass over all coefficients."""
    table = bytes([1] + [0] * 15)  # one code, of one bit: a mean as before, or a run of blocks without coefficients

    def bits(text):
        text += "1" * (-len(text) % 8)
        return int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0")

    def scan(first, last, precision, data):
        return segment(0xDA, bytes([1, 1, 0, first, last, precision])) + data

    blocks = (width // 8) * (height // 8)
    rest = bits("011111111111110" * (blocks // 32766 + 1))  # each is a run of 32,766 blocks
    return (b"\xff\xd8" + segment(0xDB, b"\0" + bytes([1] * 64)) + segment(0xC2, struct.pack(">BHHBBBB", 8, height, width, 1, 1, 17, 0))
            + segment(0xC4, b"\0" + table + b"\0") + segment(0xC4, b"\x10" + table + b"\xe0") + scan(0, 0, 0, bits("0" * blocks))
            + b"".join(scan(1, 63, 0x10 if i % 2 else 1, rest) for i in range(n - 1)) + b"\xff\xd9")


def arithmetic_jpeg(width, height, comment=b"", scans=0):
    """A JPEG file without pixels: the arithmetic decoder takes what is missing for zeros. @scans: a progressive one."""
    rest = (segment(0xDA, b"\3\1\0\2\0\3\0\0\0\0") + b"".join(segment(0xDA, b"\1\1\0\1\x3f" + b"\1\x10"[i % 2:][:1]) for i in range(scans - 1))
            if scans else segment(0xDA, b"\3\1\0\2\0\3\0\0\x3f\0"))
    return (b"\xff\xd8" + segment(0xFE, comment) + segment(0xDB, b"\0" + bytes([1] * 64))
            + segment(0xCA if scans else 0xC9, struct.pack(">BHHB", 8, height, width, 3) + b"\1\x11\0\2\x11\0\3\x11\0") + rest + b"\xff\xd9")


def bombs(good, megapixels):
    """{name: files of a request}: the largest sizes that are allowed and sizes beyond, in headers without pixels and highly
    compressed; the largest that need no bytes of the file; and one that has as many bytes as it needs."""
    rows, side = megapixels << 6, int((megapixels * 2 ** 21 / 3) ** 0.5)
    texts = b"".join(chunk(b"zTXt", b"k%d\0\0" % i + zlib.compress(b"a" * 999000, 9)) for i in range(990))
    jpeg = next(g for g in good if g[:2] == b"\xff\xd8" and re.search(rb"\xff[\xc0-\xc2]\x00\x11", g))
    webp = next(g for g in good if b"VP8 " in g[:40] and b"\x9d\x01\x2a" in g)
    square = lambda counted: int((2 ** 25 / counted) ** 0.5) // 8 * 8  # side of a picture that counts so many bytes a pixel
    wide = lambda counted: (16384, 2 ** 11 // counted // 8 * 8)
    out = {"PNG, 65,536 x 65,536, compressed": flat_png(65536, 65536, 512), f"PNG, 16,384 x {rows}, no pixels": flat_png(16384, rows, 0),
           f"PNG, 16,384 x {rows}, compressed": flat_png(16384, rows, rows), "PNG, 7,680 x 4,320, compressed": flat_png(7680, 4320, 4320),
           f"PNG, 16,384 x {rows}, 16 bits": flat_png(16384, rows, rows, bits=16, kind=6),
           f"PNG, {side // 8 * 8} x {side // 8 * 8}, interlaced": flat_png(side // 8 * 8, side // 8 * 8, side // 8 * 8, True),
           "PNG, 990 texts of 1 MB": flat_png(16, 16, 16, between=texts),
           f"JPEG, 16,384 x {rows}, 16 scans": many_scans(16384, rows, 16), f"JPEG, 16,384 x {rows}, 200 scans": many_scans(16384, rows, 200),
           f"JPEG, 16,384 x {rows}, arithmetic, no pixels": arithmetic_jpeg(16384, rows)}
    for name, data in ("JPEG", jpeg), ("WebP", webp):
        out[f"{name}, 65,535 x 65,535"] = resized_header(data, 65535, 65535)
        out[f"{name}, 16,383 x {rows}"] = resized_header(data, 16383, rows)
    for (w, h), name, make in (
            ((3840, 2160), "PNG, RGBA", lambda w, h: flat_png(w, h, h, kind=6)), ((3840, 2160), "PNG, RGB", lambda w, h: flat_png(w, h, h)),
            (wide(4), "PNG, RGBA", lambda w, h: flat_png(w, h, h, kind=6)),
            (wide(4), "PNG, 1 bit", lambda w, h: flat_png(w, h, h, bits=1, kind=0)),
            ((square(12), square(12)), "PNG, 16 bits, RGBA", lambda w, h: flat_png(w, h, h, bits=16, kind=6)),
            ((square(7), square(7)), "PNG, interlaced", lambda w, h: flat_png(w, h, h, True)),
            ((square(6), square(6)), "JPEG, 16 scans", lambda w, h: many_scans(w, h, 16)),
            ((1024, 1024), "JPEG, 120 scans", lambda w, h: many_scans(w, h, 120)),
            (wide(4), "JPEG, arithmetic", arithmetic_jpeg),
            ((square(10), square(10)), "JPEG, arithmetic, 16 scans", lambda w, h: arithmetic_jpeg(w, h, scans=16)),
            ((3840, 2160), "WebP, lossless", flat_webp), ((3840, 2160), "GIF", flat_gif)):
        out[f"free: {name}, {w:,} x {h:,}"] = make(w, h)
    needs = 7680 * 4320 // 220 - len(out["PNG, 7,680 x 4,320, compressed"]) + 100
    out["PNG, 7,680 x 4,320, with a long text"] = flat_png(7680, 4320, 4320, between=chunk(b"tEXt", b"k\0" + b"a" * needs))
    out["paid: PNG, 7,680 x 4,320, empty blocks"] = flat_png(7680, 4320, 4320, filler=needs)
    return {**{name: [data] for name, data in out.items()},
            "200 of the arithmetic JPEG": [arithmetic_jpeg(*wide(4), bytes([i])) for i in range(200)]}


def damaged(server, o):
    good = [f.read_bytes() for f in sorted(pathlib.Path(o.files or f"{o.build}/tests/data/golden-vision").rglob("*"))
            if f.suffix in (".png", ".jpg", ".jpeg", ".webp", ".gif")]
    good = [g for g in good if 0 < len(g) < 100000]
    rng, counts = random.Random(7), {}
    chat(server.url, [user(part_of(png(64, 64, 1)), "x")])
    time.sleep(0.5)  # the first picture's child has ended
    who, memory = {p for p, n in tree_of(server.process.pid)}, None  # front, worker, decoder
    costs = {p: cpu_s_of(p) for p in who}

    def remain():
        return who <= {p for p, n in tree_of(server.process.pid)}

    for i in range(o.count):
        data = bytearray(rng.choice(good))
        for _ in range(rng.randrange(1, 12)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)):]
        status, _ = post(server.url, {"messages": [user(part_of(bytes(data)), "x")], "max_tokens": 1})
        counts[status] = counts.get(status, 0) + 1
        if i == o.count // 10:
            memory = server.memory_mib()
    costs = [f"{(cpu_s_of(p) - costs[p]) * 1000 / o.count:.2f}" for p in sorted(who)]
    print(f"damaged: {counts}, same processes: {remain()}, memory {memory:.1f} MiB after {o.count // 10:,} files, "
          f"{server.memory_mib():.1f} after {o.count:,}; ms of CPU a file by process, without the decoder's children: {' '.join(costs)}")
    for name, files in bombs(good, o.megapixels).items():
        with Watch(server) as watch:
            status, answer = post(server.url, {"messages": [user(*map(part_of, files), "x")], "max_tokens": 1})
        print(f"bomb: {name}, {sum(map(len, files)) / 1024:.1f} KiB: {status}, {watch.cpu_ms:.0f} ms of CPU, {watch.mib:.1f} MiB more at most"
              + (f" ({answer['error']['message'].split(': ')[-1]})" if status != 200 else ""), flush=True)
    print(f"after the bombs: same processes: {remain()}, {server.memory_mib():.1f} MiB")


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    for name in "build", "model", "mmproj":
        p.add_argument("--" + name, required=True)
    p.add_argument("--llama-server")
    p.add_argument("--files", help="the files that are damaged; default: those of the tests")
    p.add_argument("--side", default="224x128")
    p.add_argument("parts", nargs="*", default=["again", "agents", "known"])
    for name, value in ("agents", 16), ("turns", 20), ("threads", 2), ("port", 24400), ("count", 10000), ("megapixels", 32):
        p.add_argument("--" + name, type=int, default=value)
    o = p.parse_args()
    o.size = tuple(map(int, o.side.split("x")))
    print(f"{cpu_name()}, {o.threads} threads, {commit()}")
    common = ("--model", o.model, "--mmproj", o.mmproj, "--threads", o.threads)
    context = "1024" if "damaged" in o.parts else "4096"  # bombs are decoded and then too long
    commands = [("weft", [f"{o.build}/weftd", "--listen", f"127.0.0.1:{o.port}", "--backend", "cpu", *common, "--max-context", context,
                          "--kv-pages", "4096", "--picture-max-tokens", "64" if "known" in o.parts else "0",
                          "--picture-max-megapixels", o.megapixels])]
    if o.llama_server:
        commands.append(("llama-server", [o.llama_server, *common, "--host", "127.0.0.1", "--port", o.port + 1, "-c", "16384", "-np", "4", "-lv", "4"]))
    for name, command in commands:
        with Server(command, o.port + (name != "weft")) as server:
            server.weft = name == "weft"
            print(f"-- {name}", flush=True)
            for part in o.parts:
                if server.weft or part in ("again", "agents"):
                    globals()[part](server, o)


main()
