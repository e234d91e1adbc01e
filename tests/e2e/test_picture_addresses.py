"""Pictures from addresses in the whole daemon: in a network namespace whose loopback device also has a public address,
a host with a certificate serves files, redirects, and delays answers."""
import http.server
import os
import pathlib
import re
import ssl
import subprocess
import sys
import tempfile
import threading

from pictures import FOLDER, metrics, pictures_total, started, uri
from weftd import LIMIT_S, Skip, main, wait_until

PUBLIC = "8.8.4.4"
FILE = (FOLDER / "resize/source-97x61.png").read_bytes()


class Host(http.server.BaseHTTPRequestHandler):
    seen = []
    answered = threading.Event()  # others have been while slow.png is waited for

    def do_GET(self):
        self.seen.append(self.path)
        if self.path == "/slow.png":
            self.answered.wait(LIMIT_S)
        moved = self.path == "/moved.png"
        self.send_response(302 if moved else 200)
        if moved:
            self.send_header("Location", "/a.png")
        self.send_header("Content-Length", str(len(FILE)))
        self.end_headers()
        self.wfile.write(FILE)

    def log_message(self, *args):
        pass


def serve(folder):
    """Starts the host. Returns its port."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{folder}/key", "-out", f"{folder}/cert",
                    "-days", "2", "-subj", "/CN=pictures", "-addext", f"subjectAltName=IP:{PUBLIC},DNS:localhost"], check=True,
                   capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{folder}/cert", f"{folder}/key")
    server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Host)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def ask(d, url, text="what is it?"):
    body = {"temperature": 0, "max_tokens": 8, "messages": [{"role": "user", "content": [
        {"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]}]}
    status, _, answer = d.request("POST", "/v1/chat/completions", body)
    return status, answer


def refused(d, url, why):
    status, answer = ask(d, url)
    message = answer["error"]["message"]
    assert status == 400 and message.startswith("messages[0].content[1].image_url: ") and why in message, (url, status, message)


def check_fetching(port):
    hosts = f"{PUBLIC}:{port},localhost:{port}"
    with started("qwen3vl", "--picture-hosts", hosts) as d:
        good = f"https://{PUBLIC}:{port}"
        status, own = ask(d, uri("resize/source-97x61.png"))
        assert status == 200, own
        status, answer = ask(d, f"{good}/a.png")
        assert status == 200, answer
        assert answer["choices"][0]["message"] == own["choices"][0]["message"], (answer, own)
        assert pictures_total(d) == [1, 1]
        Host.seen.clear()
        refused(d, f"https://localhost:{port}/a.png", "an address that is not public")
        refused(d, f"https://127.0.0.1:{port}/a.png", "are not fetched from this host")
        refused(d, f"https://other@{PUBLIC}:{port}/a.png", "user's name")
        refused(d, f"http://{PUBLIC}:{port}/a.png", "only addresses with https://")
        refused(d, "file:///etc/passwd", "opens none")
        assert not Host.seen, Host.seen
        refused(d, f"{good}/moved.png", "none is followed")
        assert Host.seen == ["/moved.png"], Host.seen
        assert re.search(r'weft_pictures_refused_total\{reason="address"\} [1-9]', metrics(d))
        check_others_go_on(d, good)


def check_others_go_on(d, good):
    """More requests than threads wait for the host; text is answered meanwhile."""
    threads = [threading.Thread(target=ask, args=(d, f"{good}/slow.png", f"agent {i}")) for i in range(24)]
    for t in threads:
        t.start()
    wait_until("a fetch", lambda: "/slow.png" in Host.seen)
    for n in range(4):
        status, _, answer = d.request("POST", "/v1/chat/completions", {
            "max_tokens": 1, "messages": [{"role": "user", "content": "word " * 3000 if n % 2 else "x"}]})
        assert status in (200, 400), answer  # the long one is read on the pool and exceeds the context
    assert any(t.is_alive() for t in threads), "they were answered behind the pictures"
    Host.answered.set()
    for t in threads:
        t.join(LIMIT_S)


def test_pictures_are_fetched_from_public_addresses_of_allowed_hosts():
    """Restarts itself in a network namespace."""
    inside = subprocess.run(["unshare", "-rn", sys.executable, __file__, "inside"], capture_output=True, text=True,
                            env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parent)})
    if "unshare" in inside.stderr and "fail" in inside.stderr:
        raise Skip(f"no network of its own: {inside.stderr.strip()}")
    assert inside.returncode == 0, inside.stdout + inside.stderr


def inside():
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "addr", "add", f"{PUBLIC}/32", "dev", "lo"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        port = serve(folder)
        os.environ["SSL_CERT_FILE"] = f"{folder}/cert"
        check_fetching(port)


if sys.argv[1:] == ["inside"]:
    inside()
else:
    main(globals())
