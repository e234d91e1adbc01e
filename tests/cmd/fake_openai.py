"""An OpenAI-compatible server without a model, with known answers and known delays, for tests of clients.

Its tokenizer makes two tokens of every word and adds 5 to every prompt. The answer to a prompt of temperature 0 is a
function of the prompt, unless .drift is set: then it also depends on whether other requests run.
"""
import asyncio
import hashlib
import json
import random
import threading
import time


class FakeServer:
    def __init__(self):
        self.first_s = 0  # until the first piece
        self.gap_s = 0  # between pieces
        self.split = 0  # > 0: the body is sent in chunks of 1 to this many bytes
        self.line_end = "\n"
        self.usage = True
        self.drift = False  # answers under load differ
        self.longer = False  # or go on where they ended
        self.plan = {}  # number of the request (from 0): "429", "503", "500", "cut", "error", "garbage", "json", "endless"
        self.joules = None  # what GET /metrics says of the energy of each of two devices, once for each of two models
        self.limit = None  # more requests at once than this: 429
        self.requests = []  # bodies, with "started", "auth" and "session"
        self.n_active = self.max_active = 0
        ready = threading.Event()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.run, args=(ready,), daemon=True)
        self.thread.start()
        ready.wait()

    def run(self, ready):
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self.serve, "127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % server.sockets[0].getsockname()[1]
        ready.set()
        self.loop.run_forever()

    def stop(self):
        def end():
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.call_soon(self.loop.stop)

        self.loop.call_soon_threadsafe(end)
        self.thread.join()

    async def serve(self, reader, writer):
        try:
            while await self.serve_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def serve_one(self, reader, writer):
        line = await reader.readline()
        if not line:
            return False
        method, path, _ = line.decode().split()
        headers = {}
        while (line := (await reader.readline()).decode().strip()):
            key, value = line.split(":", 1)
            headers[key.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if path == "/v1/models":
            self.reply(writer, 200, {"object": "list", "data": [{"id": "fake-model"}, {"id": "other"}]})
        elif path == "/metrics" and self.joules is not None:
            self.joules += 300
            self.reply(writer, 200, "".join(f'weft_device_energy_joules_total{{model="{m}",device="{n}"}} {self.joules + n}\n'
                                            for m in "ab" for n in range(2)).encode())
        elif path in ("/v1/chat/completions", "/v1/completions") and method == "POST":
            self.n_active += 1
            self.max_active = max(self.max_active, self.n_active)
            try:
                return await self.complete(writer, json.loads(body), headers, "chat" in path)
            finally:
                self.n_active -= 1
        else:
            self.reply(writer, 404, {"error": {"message": "no such path"}})
        await writer.drain()
        return True

    @staticmethod
    def reply(writer, status, value, extra=""):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{extra}Content-Length: {len(data)}\r\n\r\n".encode() + data)

    @staticmethod
    def prompt_words(body):
        if isinstance(body.get("prompt"), list):
            return body["prompt"]
        text = body["prompt"] if "prompt" in body else " ".join(m["content"] for m in body["messages"])
        return text.split()

    def pieces(self, body):
        prompt = json.dumps(body.get("messages") or body["prompt"])
        salt = "+" if self.drift and self.n_active > 1 else str(body["seed"]) if body["temperature"] else ""
        r = random.Random(hashlib.sha256((prompt + salt).encode()).digest())
        n = body["max_tokens"] + (1 if self.longer and self.n_active > 1 else 0)
        return [r.choice(['é"', "\\n\n", "tok", "\U0001f600", "}{"]) + str(r.randrange(10)) for _ in range(n)]

    async def complete(self, writer, body, headers, chat):
        fate = self.plan.get(len(self.requests))
        self.requests.append({**body, "started": time.monotonic(), "auth": headers.get("authorization"), "session": headers.get("x-session-id")})
        if self.limit is not None and self.n_active > self.limit:
            fate = "429"
        if fate in ("429", "503", "500"):
            self.reply(writer, int(fate), {"error": {"message": f"as planned\n{fate}"}}, "Retry-After: 1\r\n" if fate != "500" else "")
            await writer.drain()
            return True
        pieces = self.pieces(body)
        usage = {"prompt_tokens": 2 * len(self.prompt_words(body)) + 5, "completion_tokens": len(pieces), "prompt_tokens_details": {"cached_tokens": 3}}
        if not self.usage:
            usage = None
        if not body.get("stream") or fate == "json":
            await asyncio.sleep(self.first_s + self.gap_s * (len(pieces) - 1))
            message = {"message": {"role": "assistant", "content": "".join(pieces)}} if chat else {"text": "".join(pieces)}
            value = {"choices": [{"index": 0, "finish_reason": "length", **message}], "usage": usage}
            self.reply(writer, 200, b"not json" if fate == "garbage" else value)
            await writer.drain()
            return True
        return await self.stream(writer, chat, pieces, usage, fate)

    async def stream(self, writer, chat, pieces, usage, fate):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n")
        r = random.Random(len(self.requests))

        async def send(text):
            data = text.replace("\n", self.line_end).encode()
            while data:
                n = r.randrange(1, self.split + 1) if self.split else len(data)
                writer.write(b"%x\r\n%s\r\n" % (n if n < len(data) else len(data), data[:n]))
                data = data[n:]
                await writer.drain()
                if self.split:
                    await asyncio.sleep(0)

        def chunk(text, finish=None):
            delta = {"delta": {"content": text} if text else {}} if chat else {"text": text}
            return "data: " + json.dumps({"choices": [{"index": 0, "finish_reason": finish, **delta}]}, ensure_ascii=False) + "\n\n"

        if chat:
            await send('data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n')
        await send(": a comment\n\n")
        for i, piece in enumerate(pieces):
            await asyncio.sleep(self.gap_s if i else self.first_s)
            if fate == "cut" and i == 2:
                return False
            if fate == "error" and i == 2:
                await send('data: {"error":{"message":"as planned","code":500}}\n\n')
                break
            if fate == "garbage" and i == 2:
                await send("data: {not json\n\n")
            await send("event: x\nid: 7\n" + chunk(piece))
        else:
            if fate != "endless":
                await send(chunk("", "length"))
        if usage:
            await send("data:" + json.dumps({"choices": [], "usage": usage}) + "\n\n")
        await send("data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True
