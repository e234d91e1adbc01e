"""A Hugging Face hub on a local port: one repository's listing, its files behind a redirect to another port, and faults
that a test asks for. Faults are functions of the handler that return True when they have answered."""
import hashlib
import http.server
import json
import re
import threading
import time
import urllib.parse

COMMIT = "c0ffee" + "0" * 34
REPO = "owner/Some-GGUF"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send_body(self, status, body, headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        hub = self.server.hub
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        with hub.lock:
            hub.seen.append((self.server.role, path, dict(self.headers)))
            fault = hub.faults[self.server.role].pop(0) if hub.faults[self.server.role] else None
        try:
            if fault is None or not fault(self, path):
                getattr(self, "answer_" + self.server.role)(hub, path)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def answer_api(self, hub, path):
        if hub.token and self.headers.get("Authorization") != "Bearer " + hub.token:
            return self.send_body(401, b"{}", [("X-Error-Message", "Invalid username or password.")])
        if re.fullmatch(f"/api/models/{REPO}/revision/[^/]+", path):
            siblings = [{"rfilename": n, "size": len(d), "lfs": {"sha256": hub.sum(n, d), "size": len(d), "pointerSize": 134}}
                        if n.endswith((".gguf", ".safetensors", "tokenizer.json")) else {"rfilename": n, "size": len(d), "blobId": "0" * 40}
                        for n, d in hub.files.items()]
            return self.send_body(200, json.dumps({"id": REPO, "sha": COMMIT, "siblings": siblings}).encode())
        name = path.removeprefix(f"/{REPO}/resolve/{COMMIT}/")
        if name not in hub.files:
            return self.send_body(404, b"", [("X-Error-Message", "Repository not found")])
        if not hub.redirects:
            return self.answer_cdn(hub, "/" + name)
        url = f"http://127.0.0.1:{hub.cdn.server_port}/{urllib.parse.quote(name)}?signature=abc"
        self.send_body(302, b"see there", [("Location", url), ("X-Linked-Size", str(len(hub.files[name])))])

    def answer_cdn(self, hub, path):
        data, status, headers = hub.files[path[1:]], 200, [("ETag", '"abc"')]
        m = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if m and hub.ranges:
            status = 206
            headers.append(("Content-Range", f"bytes {m[1]}-{len(data) - 1}/{len(data)}"))
            data = data[int(m[1]):]
        self.send_body(status, data, headers)

    def requested(self):
        """Answers with the head for what is left of the file that is asked for, and returns that."""
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        data = self.server.hub.files[path.removeprefix(f"/{REPO}/resolve/{COMMIT}").lstrip("/")]
        m = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(m[1]) if m else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        return data[start:]


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub, role):
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub, self.role = hub, role
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, *_):
        """A client that hangs up."""


class Hub:
    """`files`: what the repository holds. `faults[role]`: for the next requests to the hub ("api"), to where it redirects ("cdn")."""

    def __init__(self, files, token=None, redirects=True, ranges=True):
        self.files, self.token, self.redirects, self.ranges = files, token, redirects, ranges
        self.wrong_sum = set()
        self.faults = {"api": [], "cdn": []}
        self.seen, self.lock = [], threading.Lock()

    def __enter__(self):
        self.api, self.cdn = Server(self, "api"), Server(self, "cdn")
        self.url = f"http://localhost:{self.api.server_port}"
        return self

    def __exit__(self, *_):
        for server in (self.api, self.cdn):
            server.shutdown()
            server.server_close()

    def sum(self, name, data):
        return "0" * 64 if name in self.wrong_sum else hashlib.sha256(data).hexdigest()

    def asked(self, role):
        return [(path, headers) for r, path, headers in self.seen if r == role]


# ---- faults ----

def status(code, *headers):
    def fault(handler, _):
        handler.send_body(code, b"no", headers)
        return True
    return fault


def cut_after(n_bytes):
    """The connection breaks."""
    def fault(handler, _):
        handler.wfile.write(handler.requested()[:n_bytes])
        handler.wfile.flush()
        handler.close_connection = True
        return True
    return fault


def ends_early(n_bytes):
    """A proxy that takes a cut connection for the end: the body is whole, by its own word."""
    def fault(handler, path):
        data = handler.server.hub.files[path[1:]][:n_bytes]
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(data)
        handler.close_connection = True
        return True
    return fault


def stalls_after(n_bytes, seconds):
    def fault(handler, _):
        handler.wfile.write(handler.requested()[:n_bytes])
        handler.wfile.flush()
        time.sleep(seconds)
        handler.close_connection = True
        return True
    return fault


def slow(chunk, pause):
    def fault(handler, _):
        data = handler.requested()
        for i in range(0, len(data), chunk):
            handler.wfile.write(data[i:i + chunk])
            handler.wfile.flush()
            time.sleep(pause)
        return True
    return fault


def held(n_bytes, event):
    """Sends the rest when @event is set."""
    def fault(handler, _):
        data = handler.requested()
        handler.wfile.write(data[:n_bytes])
        handler.wfile.flush()
        event.wait(180)
        handler.wfile.write(data[n_bytes:])
        return True
    return fault


def no_answer(handler, _):
    handler.close_connection = True
    return True


def flips_a_bit(handler, _):
    data = bytearray(handler.requested())
    data[-1] ^= 1
    handler.wfile.write(data)
    return True


def wrong_range(handler, path):
    """Answers a range with another one."""
    data = handler.server.hub.files[path[1:]]
    handler.send_body(206, data[7:], [("Content-Range", f"bytes 7-{len(data) - 1}/{len(data)}")])
    return True


def unknown_total(handler, path):
    """Answers a range without the size of the whole, as RFC 9110 allows."""
    data = handler.server.hub.files[path[1:]]
    start = int(handler.headers["Range"][6:-1])
    handler.send_body(206, data[start:], [("Content-Range", f"bytes {start}-{len(data) - 1}/*")])
    return True


def larger(handler, path):
    handler.send_body(200, handler.server.hub.files[path[1:]] + b"more")
    return True


def to_file(handler, _):
    handler.send_body(302, b"", [("Location", "file:///etc/passwd")])
    return True


def in_a_circle(handler, _):
    """From now on."""
    handler.server.hub.faults["api"].insert(0, in_a_circle)
    handler.send_body(302, b"", [("Location", handler.path)])
    return True
