"""A small client of RFC 6455, which can also violate it."""
import base64
import hashlib
import json
import os
import re
import socket
import struct

from weftd import LIMIT_S

TEXT, CLOSE, PING, PONG = 1, 8, 9, 10


class Refused(Exception):
    """The reply that refused the WebSocket: args are its status and its head."""


class WebSocket:
    def __init__(self, port, path="/v1/responses", timeout=LIMIT_S, connect=None, **headers):
        """@connect: returns a connected socket, if not one to the port of this machine."""
        key = base64.b64encode(os.urandom(16)).decode()
        lines = {"Host": f"127.0.0.1:{port}", "Upgrade": "websocket", "Connection": "keep-alive, Upgrade", "Sec-WebSocket-Version": "13",
                 "Sec-WebSocket-Key": key, **{k.replace("_", "-"): v for k, v in headers.items()}}
        self.socket = connect() if connect else socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.sendall((f"GET {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n").encode())
        self.file = self.socket.makefile("rb")
        self.head = b"".join(iter(self.file.readline, b"\r\n")).decode()
        status = int(self.head.split()[1])
        if status != 101:
            raise Refused(status, self.head)
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        assert re.search(rf"(?i:Sec-WebSocket-Accept): {re.escape(accept)}\r\n", self.head), self.head  # Caddy writes names its own way
        assert "Content-Length" not in self.head and "Transfer-Encoding" not in self.head, self.head

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.file.close()
        self.socket.close()

    def send(self, data, opcode=TEXT, end=True):
        mask, size = os.urandom(4), len(data)
        length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size) if size < 65536 else b"\xff" + struct.pack(">Q", size)
        self.socket.sendall(bytes([opcode | end << 7]) + length + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def frame(self):
        """Returns (opcode, payload) of the next frame, or None at the end."""
        head = self.file.read(2)
        if len(head) < 2:
            return None
        assert head[0] & 0xF0 == 0x80 and not head[1] & 0x80, head
        size = head[1]
        if size > 125:
            size = struct.unpack(">H" if size == 126 else ">Q", self.file.read(2 if size == 126 else 8))[0]
        return head[0] & 15, self.file.read(size)

    def create(self, **body):
        self.send(json.dumps({"type": "response.create", **body}).encode())

    def events(self):
        """Returns the events up to the last one of a response, or an error."""
        while True:
            opcode, data = self.frame()
            if opcode != TEXT:
                continue
            event = json.loads(data)
            yield event
            if event["type"] in ("response.completed", "response.incomplete", "response.failed", "error"):
                return

    def ask(self, **body):
        """Returns the events of the response to @body."""
        self.create(**body)
        return list(self.events())
