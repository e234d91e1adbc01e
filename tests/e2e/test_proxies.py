"""nginx and Caddy before weftd, with the blocks of docs/manual/network.md as they stand there: only addresses, ports and the
certificate are those of the test."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile

from websocket import WebSocket
from weftd import LIMIT_S, Skip, Weftd, free_port, main, make_pair, wait_until

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "manual" / "network.md"
HOST = "llm.example.com"


def block(language):
    """The one block of the page in @language."""
    found = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.S)
    assert len(found) == 1, (language, len(found))
    return found[0]


def replaced(text, *pairs):
    """Each pattern must be there, so that the page cannot change unnoticed."""
    for pattern, new in pairs:
        text, n = re.subn(pattern, new, text)
        assert n >= 1, pattern
    return text


class Proxy:
    """A proxy before the daemon at @daemon_port, by its name."""

    def __init__(self, name, daemon_port):
        self.program = shutil.which(name) or shutil.which("/usr/sbin/" + name)
        if not self.program:
            raise Skip("no " + name)
        self.folder = tempfile.TemporaryDirectory(prefix="weft-proxy-")
        self.cert, self.key = make_pair(self.folder.name, names="DNS:" + HOST)
        self.port, self.daemon = free_port(), f"127.0.0.1:{daemon_port}"
        self.context = ssl.create_default_context(cafile=self.cert)
        self.process = subprocess.Popen(getattr(self, name)(), env={**os.environ, "HOME": self.folder.name, "XDG_DATA_HOME": self.folder.name,
                                                                    "XDG_CONFIG_HOME": self.folder.name}, stderr=self.file("log"), stdout=subprocess.DEVNULL)

    def file(self, name):
        return open(os.path.join(self.folder.name, name), "w")

    def write(self, text):
        with self.file("config") as file:
            file.write(text)
        return file.name

    def nginx(self):
        text = replaced(block("nginx"), (r"127\.0\.0\.1:8080", self.daemon), (r"listen 443 ssl", f"listen 127.0.0.1:{self.port} ssl"),
                        (r"listen \[::\]:443 ssl;", ""), (r"ssl_certificate +\S+;", f"ssl_certificate {self.cert};"),
                        (r"ssl_certificate_key +\S+;", f"ssl_certificate_key {self.key};"))
        temporary = "".join(f"{kind}_temp_path {self.folder.name}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        config = self.write("daemon off; pid %s/pid; error_log stderr; events {} http { access_log off; %s\n%s}" % (self.folder.name, temporary, text))
        return [self.program, "-e", "stderr", "-p", self.folder.name, "-c", config]

    def caddy(self):
        text = replaced(block("caddy"), (r"127\.0\.0\.1:8080", self.daemon),
                        (re.escape(HOST) + r" \{", f"{HOST}:{self.port} {{\n\tbind 127.0.0.1\n\ttls {self.cert} {self.key}"))
        config = self.write("{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + text)
        return [self.program, "run", "--adapter", "caddyfile", "--config", config]

    def __enter__(self):
        wait_until("the proxy does not answer", self.answers)
        return self

    def __exit__(self, kind, error, trace):
        self.process.terminate()
        self.process.wait(LIMIT_S)
        if kind:
            print("# " + open(os.path.join(self.folder.name, "log")).read().replace("\n", "\n# "))
        self.folder.cleanup()

    def answers(self):
        assert self.process.poll() is None, open(os.path.join(self.folder.name, "log")).read()
        try:
            return self.ask("GET", "/health")[0] == 200
        except OSError:
            return False

    def connect(self):
        return self.context.wrap_socket(socket.create_connection(("127.0.0.1", self.port), LIMIT_S), server_hostname=HOST)

    def begin(self, method, path, body=None, **headers):
        """(connection, response), as soon as the head is there. The page of this server asks."""
        connection = http.client.HTTPSConnection(HOST, context=self.context)
        connection.sock = self.connect()
        connection.request(method, path, body, {"Content-Type": "application/json", "Accept": "text/html, */*", "Origin": "https://" + HOST, **headers})
        return connection, connection.getresponse()

    def ask(self, method, path, body=None, **headers):
        """(status, text)"""
        connection, response = self.begin(method, path, body, **headers)
        with contextlib.closing(connection):
            return response.status, response.read().decode()


def running(d):
    return d.admin_request("GET", "/requests")[1]["requests"]


def check(name):
    with Weftd("--allowed-hosts", HOST, "--keepalive-ms", "100") as d, Proxy(name, d.port) as proxy:
        for one in (page_and_metrics, large_bodies, stream, lines, websocket):
            one(d, proxy)


def page_and_metrics(d, proxy):
    status, text = proxy.ask("GET", "/")
    assert status == 200 and "<title>" in text, (status, text[:200])
    assert d.request("GET", "/metrics")[0] == 200
    assert proxy.ask("GET", "/metrics")[0] == 404, "the names of tenants are for no stranger"
    status, models = proxy.ask("GET", "/v1/models")
    assert status == 200 and models, status
    status, text = proxy.ask("GET", "/v1/models", Host="other.example")
    assert status == 421 or not text, "weftd or the proxy refuses other names, to which a stranger's page may belong"


def large_bodies(d, proxy):
    """What is too long is refused by weftd, which says why, and only above max-body by the proxy or weftd."""
    status, text = proxy.ask("POST", "/v1/completions", json.dumps({"prompt": "weft " * 400000}))
    assert status == 400 and json.loads(text)["error"]["code"] == "context_length_exceeded", (status, text[:300])
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):  # answered before all of it was read
        assert proxy.ask("POST", "/v1/completions", "x" * (33 << 20))[0] == 413


def lines(d, proxy):
    """The lines of Ollama's streams come one after the other, too."""
    body = {"model": "x", "prompt": "weft", "raw": True, "options": {"num_predict": 60000}}
    connection, response = proxy.begin("POST", "/api/generate", json.dumps(body))
    assert not json.loads(response.readline())["done"]
    assert len(running(d)) == 1, running(d)
    response.close()
    connection.close()
    wait_until("the end of a request whose client left", lambda: not running(d))


def stream(d, proxy):
    """What the daemon has sent arrives while the rest does not exist yet, up to the comment of a silent stream; and a client
    that leaves ends its request."""
    body = {"prompt": "weft", "max_tokens": 60000, "stream": True, "ignore_eos": True}
    connection, response = proxy.begin("POST", "/v1/completions", json.dumps(body))
    assert response.status == 200 and response.readline().startswith(b"data: "), response.status
    pid = d.worker_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        while line := response.readline():
            if line.startswith(b":"):
                break
        assert line, "the stream ended"
    finally:
        os.kill(pid, signal.SIGCONT)
    response.close()
    connection.close()
    wait_until("the end of a request whose client left", lambda: not running(d))
    wait_until("a line with 499", lambda: "status=499" in d.log)


def websocket(d, proxy):
    with WebSocket(proxy.port, connect=proxy.connect, Host=HOST) as w:
        events = w.ask(input="weft", max_output_tokens=4)
        assert events[-1]["type"] in ("response.completed", "response.incomplete"), events[-1]


def test_nginx():
    check("nginx")


def test_caddy():
    check("caddy")


if __name__ == "__main__":
    main(globals())
