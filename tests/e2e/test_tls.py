"""HTTPS on tls: addresses: with Python's TLS and with curl, and with hostile clients."""
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time

from weftd import LIMIT_S, Skip, UnixConnection, Weftd, main, make_pair, parallel, program, tiny_model, wait_until

if subprocess.run([program("weftd"), "--check-config", "--model", tiny_model(), "--tls-certificate", "x", "--tls-key", "x"],
                  capture_output=True, text=True).stderr.find("without OpenSSL") >= 0:
    print("1..0 # SKIP weftd was built without OpenSSL")
    raise SystemExit


CA = """[ca]
default_ca=x
[x]
database=index
new_certs_dir=.
rand_serial=yes
default_md=sha256
policy=p
copy_extensions=copy
[p]
commonName=supplied
"""


def expire(folder):
    """Replaces the certificate of make_pair() by one that expired in January 2020."""
    def run(*args):
        subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=folder)

    for name, text in (("ca.cnf", CA), ("index", "")):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    run("req", "-new", "-key", "key.pem", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-out", "r.csr")
    run("ca", "-batch", "-config", "ca.cnf", "-selfsign", "-keyfile", "key.pem", "-in", "r.csr", "-out", "cert.pem", "-notext",
        "-startdate", "20200101000000Z", "-enddate", "20200201000000Z")


class Tls(Weftd):
    """A daemon that speaks HTTPS; connect() trusts its certificate."""

    def __init__(self, *flags, folder=None, **more):
        self.pairs = folder or tempfile.mkdtemp(prefix="weft-tls-")
        self.cert = os.path.join(self.pairs, "cert.pem")
        if not os.path.exists(self.cert):
            make_pair(self.pairs)
        super().__init__("--listen", "tls:127.0.0.1:0", "--tls-certificate", self.cert,
                         "--tls-key", os.path.join(self.pairs, "key.pem"), *flags, **more)

    def __exit__(self, *error):
        super().__exit__(*error)
        shutil.rmtree(self.pairs)

    def context(self, **fields):
        context = ssl.create_default_context(cafile=self.cert)
        # Makes an end that was not told an error, which Debian's Python does not by default.
        context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
        for name, value in fields.items():
            setattr(context, name, value)
        return context

    def connect(self, timeout=LIMIT_S, context=None):
        return http.client.HTTPSConnection("localhost", self.port, timeout=timeout, context=context or self.context())

    def open(self, context=None, name="localhost", session=None):
        sock = socket.create_connection(("127.0.0.1", self.port), LIMIT_S)
        return (context or self.context()).wrap_socket(sock, server_hostname=name, session=session, suppress_ragged_eofs=False)

    def refused(self, context=None, name="localhost"):
        """Returns the reason for which a connection fails."""
        try:
            with self.open(context, name):
                return None
        except ssl.SSLError as error:
            return error


def ask(sock, path="/health", close=False):
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{'Connection: close' if close else 'A: b'}\r\n\r\n".encode())
    got = b""
    while b"\r\n\r\n" not in got or not got.endswith(b"}"):
        piece = sock.recv(65536)
        if not piece:
            break
        got += piece
    return got


def test_answers_are_those_of_plain_http_and_connections_are_kept():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plain.sock")
        with Tls() as w, Weftd("--listen", "unix:" + path) as plain:
            body = {"prompt": "weft", "max_tokens": 64, "seed": 1, "temperature": 1}
            connection = w.connect()
            texts = [w.request("POST", "/v1/completions", body, connection=connection)[2]["choices"][0]["text"] for _ in range(3)]
            sock = connection.sock
            assert connection.sock is sock and sock.version() == "TLSv1.3", sock.version()
            want = plain.request("POST", "/v1/completions", body, connection=UnixConnection(path, LIMIT_S))[2]["choices"][0]["text"]
            assert texts == [want] * 3


def test_eight_streams_at_once_have_the_texts_that_each_has_alone():
    with Tls() as w:
        def text(seed):
            events = w.stream("/v1/completions", {"prompt": "a", "max_tokens": 200, "seed": seed, "temperature": 1, "ignore_eos": True})
            return "".join(e["choices"][0]["text"] for e in events if e["choices"])

        alone = [text(i) for i in range(8)]
        assert parallel([lambda i=i: text(i) for i in range(8)]) == alone
        assert len(set(alone)) == 8


def test_curl_uses_one_connection_and_old_versions_are_refused():
    if not shutil.which("curl"):
        raise Skip("no curl")
    with Tls() as w:
        url = f"https://localhost:{w.port}/health"

        def curl(*flags):
            return subprocess.run(["curl", "-sS", "--cacert", w.cert, *flags], capture_output=True, text=True)

        r = curl("-w", "%{http_version} %{num_connects}\n", "-o", "/dev/null", url, "-o", "/dev/null", url)
        assert r.stdout == "1.1 1\n1.1 0\n", (r.stdout, r.stderr)
        assert curl("--tls-max", "1.2", url).returncode == 0
        assert curl("--tls-max", "1.1", "--ciphers", "DEFAULT@SECLEVEL=0", url).returncode == 35
        assert curl("--tls-max", "1.2", "--ciphers", "AES128-SHA", url).returncode == 35  # no forward secrecy
        assert curl("--http2", "-o", "/dev/null", url).returncode == 0  # offers h2 and http/1.1
        streamed = curl("-N", "-d", '{"prompt":"a","max_tokens":8,"stream":true}', "-H", "Content-Type: application/json",
                        f"https://localhost:{w.port}/v1/completions")
        assert streamed.stdout.rstrip().endswith("data: [DONE]"), streamed


def test_clients_that_speak_http2_alone_are_refused():
    with Tls() as w:
        context = w.context()
        context.set_alpn_protocols(["h2"])
        assert w.refused(context)
        context.set_alpn_protocols(["h2", "http/1.1"])
        with w.open(context) as sock:
            assert sock.selected_alpn_protocol() == "http/1.1"


def test_sessions_are_resumed():
    with Tls() as w:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = w.context(maximum_version=version)
            with w.open(context) as first:
                assert not first.session_reused
                assert b" 200 " in ask(first)
                session = first.session
            with w.open(context, session=session) as second:
                assert second.session_reused, version
                assert b" 200 " in ask(second)


def test_plain_http_gets_a_400_that_says_why():
    with Tls() as w:
        for request in (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"):
            with socket.create_connection(("127.0.0.1", w.port), LIMIT_S) as sock:
                sock.sendall(request)
                answer = b""
                while piece := sock.recv(4096):
                    answer += piece
            assert answer.startswith(b"HTTP/1.1 400 ") and b"https://" in answer and b'"plain_http"' in answer, answer
        assert w.health() == 200


def test_large_bodies_large_answers_and_slow_readers():
    with Tls() as w:
        text = "weft " * 30_000
        question = {"prompt": text, "padding": "x" * 2_000_000}
        status, _, value = w.request("POST", "/tokenize", question)
        assert status == 200 and value["count"] > 30_000, value
        again = w.request("POST", "/detokenize", {"tokens": value["tokens"]})[2]["prompt"]
        assert again == text
        with w.open() as sock:  # read in small pieces
            body = json.dumps(question).encode()
            sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
                         b"Content-Length: %d\r\n\r\n" % len(body) + body)
            got, n = b"", 0
            while piece := sock.recv(4096):
                got += piece
                n += 1
                if n % 20 == 0:
                    time.sleep(0.01)
            assert json.loads(got.split(b"\r\n\r\n", 1)[1])["tokens"] == value["tokens"]


def test_a_client_that_does_not_read_is_cut_off():
    with Tls("--stall-timeout-ms", "1000") as w:
        body = json.dumps({"content": "weft " * 60_000, "with_pieces": True}).encode()  # an answer of 2.9 MB

        def n_connections():
            connection = w.connect()
            page = w.request("GET", "/metrics", connection=connection)[2]
            connection.close()
            return int(re.search(r"^weft_connections\{.*\} (\d+)$", page, re.M).group(1))

        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # buffers smaller than the answer
        sock.connect(("127.0.0.1", w.port))
        sock.settimeout(LIMIT_S)
        with w.context().wrap_socket(sock, server_hostname="localhost", suppress_ragged_eofs=False) as sock:
            sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                         b"Content-Length: %d\r\n\r\n" % len(body) + body)
            wait(lambda: n_connections() == 2)
            wait(lambda: n_connections() == 1)  # only the connection that reads the metrics
            try:
                n = 0
                while piece := sock.recv(65536):
                    n += len(piece)
                raise AssertionError("an end that was told")
            except OSError:
                assert n < 1_000_000, n


def test_the_end_of_a_connection_is_told():
    with Tls() as w, w.open() as sock:
        answer = ask(sock, close=True)
        assert b" 200 " in answer
        assert sock.recv(10) == b""  # close_notify; without it recv raises an error
        with w.open() as other:
            assert b" 200 " in ask(other)
            other.unwrap().close()  # waits for the answer of its connection


def test_a_client_that_leaves_ends_its_generation():
    with Tls() as w:
        for polite in (True, False):
            sock = w.open()
            body = b'{"prompt":"a","max_tokens":100000,"stream":true,"ignore_eos":true}'
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                         % len(body) + body)
            assert b" 200 " in sock.recv(65536)
            if polite:
                try:
                    sock.unwrap()
                except (ssl.SSLError, OSError):
                    pass
            sock.close()
            wait(lambda: not w.admin_request("GET", "/requests")[1]["requests"])


def test_a_name_that_is_not_the_certificates_is_the_clients_to_refuse():
    with Tls() as w:
        assert "Hostname mismatch" in str(w.refused(name="elsewhere.example"))
        with w.open(w.context(check_hostname=False), name="elsewhere.example") as sock:
            assert b" 200 " in ask(sock)


def test_a_renewed_certificate_is_taken_and_a_bad_one_is_not():
    folder = tempfile.mkdtemp(prefix="weft-tls-")
    make_pair(folder)
    expire(folder)
    with Tls(folder=folder) as w:
        assert "expired" in str(w.refused())
        assert "days_left=-" in w.log, w.log
        with w.open(ssl._create_unverified_context()) as old:
            assert b" 200 " in ask(old)
            make_pair(folder)
            w.process.send_signal(signal.SIGHUP)
            wait(lambda: w.refused() is None)
            assert b" 200 " in ask(old)  # continues with the previous certificate
        trusted = w.context()
        with open(w.cert, "w") as file:
            file.write("no certificate\n")
        w.process.send_signal(signal.SIGHUP)
        wait(lambda: "reload_refused" in w.log)
        assert "tls-certificate" in w.log.split("reload_refused")[1]
        with w.open(trusted) as sock:
            assert b" 200 " in ask(sock)


def wait(condition):
    wait_until("it did not come about", condition)


def test_unfinished_handshakes_take_no_place_for_long():
    others = ("--body-timeout-ms", "3600000", "--idle-timeout-ms", "3600000")
    with Tls("--max-connections", "8", "--header-timeout-ms", "1500", *others) as w:
        silent = [socket.create_connection(("127.0.0.1", w.port), LIMIT_S) for _ in range(8)]
        for s in silent[:4]:
            s.sendall(b"\x16\x03\x01\x02\x00\x01\x00")  # the beginning of a ClientHello
        assert w.health() == 200  # replaces one of them
        for s in silent:
            try:
                assert s.recv(10) == b""
            except ConnectionResetError:
                pass
            s.close()
        wait(lambda: w.stats_or_none() is not None)
        assert w.health() == 200


def hello():
    """Returns the bytes of a ClientHello."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def test_bytes_that_are_no_tls_or_broken_tls_hurt_no_one():
    good = hello()
    r = random.Random(7)
    with Tls() as w, w.open() as other:
        for i in range(400):
            data = bytearray(good)
            kind = i % 5
            if kind == 0:
                for _ in range(r.randrange(1, 6)):
                    data[r.randrange(len(data))] = r.randrange(256)
            elif kind == 1:
                data = data[:r.randrange(len(data))]
            elif kind == 2:
                data = bytearray(r.randbytes(r.randrange(1, 3000)))
            elif kind == 3:  # a complete handshake, then random bytes instead of records
                with w.open() as sock:
                    raw = socket.socket(fileno=os.dup(sock.fileno()))
                    raw.sendall(r.choice([b"\x17\x03\x03", b"\x16\x03\x03", b"\x14\x03\x03"]) + r.randbytes(r.randrange(2, 400)))
                    raw.close()
                continue
            else:
                data += r.randbytes(r.randrange(1, 200))
            with socket.create_connection(("127.0.0.1", w.port), LIMIT_S) as sock:
                sock.sendall(data)
                if i % 2:
                    sock.settimeout(0.005)
                    try:
                        sock.recv(4096)
                    except OSError:
                        pass
        assert b" 200 " in ask(other)
        assert w.process.poll() is None


def test_a_client_that_leaves_behind_its_first_message_gets_no_handshake():
    with Tls() as w:
        w.process.send_signal(signal.SIGSTOP)  # the end has arrived when the front reads
        with socket.create_connection(("127.0.0.1", w.port), LIMIT_S) as sock:
            sock.sendall(hello())
            sock.shutdown(socket.SHUT_WR)
            w.process.send_signal(signal.SIGCONT)
            assert sock.recv(10) == b""
        assert w.health() == 200


def test_a_request_with_the_last_message_of_a_handshake_is_answered():
    """The client has said everything, and shuts its side down: the end may arrive with the request."""
    with Tls() as w:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = w.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
        with socket.create_connection(("127.0.0.1", w.port), LIMIT_S) as sock:
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    sock.sendall(outgoing.read())
                    incoming.write(sock.recv(1 << 16))
            client.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            w.process.send_signal(signal.SIGSTOP)
            sock.sendall(outgoing.read())
            sock.shutdown(socket.SHUT_WR)
            w.process.send_signal(signal.SIGCONT)
            while data := sock.recv(1 << 16):
                incoming.write(data)
            assert client.read(1 << 16).startswith(b"HTTP/1.1 200")


def test_sockets_of_the_service_manager_are_told_by_their_name():
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as tls, socket.create_server(("127.0.0.1", 0)) as plain:
        cert, key = make_pair(folder)
        fds = (tls.fileno(), plain.fileno())
        log = open(os.path.join(folder, "log"), "w+")
        process = subprocess.Popen(
            ["bash", "-c", f'exec 103<&{fds[0]} 104<&{fds[1]} 3<&103 4<&104; export LISTEN_PID=$$; exec "$0" "$@"', program("weftd"),
             "--model", tiny_model(), "--backend", "cpu", "--kv-memory", "64M", "--tls-certificate", cert, "--tls-key", key],
            pass_fds=fds, env={**os.environ, "LISTEN_FDS": "2", "LISTEN_FDNAMES": "tls:http"}, stderr=log)
        try:
            context = ssl.create_default_context(cafile=cert)
            for connection in (http.client.HTTPSConnection("localhost", tls.getsockname()[1], timeout=LIMIT_S, context=context),
                               http.client.HTTPConnection("localhost", plain.getsockname()[1], timeout=LIMIT_S)):
                connection.request("GET", "/health")
                assert connection.getresponse().status == 200
                connection.close()
        finally:
            process.terminate()
            process.wait(LIMIT_S)
            log.close()


def test_what_cannot_be_used_is_refused_at_the_start():
    folder = tempfile.mkdtemp(prefix="weft-tls-")
    other = tempfile.mkdtemp(prefix="weft-tls-")
    try:
        cert, key = make_pair(folder)
        _, key_of_other = make_pair(other)

        def start(*flags):
            r = subprocess.run([program("weftd"), "--model", tiny_model(), "--backend", "cpu", *flags], capture_output=True, text=True,
                               timeout=LIMIT_S)
            assert r.returncode == 78, r
            return r.stderr

        listen = ("--listen", "tls:127.0.0.1:0")
        assert "key values mismatch" in start("--check-config", *listen, "--tls-certificate", cert, "--tls-key", key_of_other)
        assert "tls-certificate: must be set" in start(*listen)
        assert "tls-key: must be set together" in start(*listen, "--tls-certificate", cert)
        assert "key values mismatch" in start(*listen, "--tls-certificate", cert, "--tls-key", key_of_other)
        assert "no tls: address" in start("--listen", "127.0.0.1:0", "--tls-certificate", cert, "--tls-key", key)
        assert "api-keys" in start("--listen", "tls:0.0.0.0:0", "--tls-certificate", cert, "--tls-key", key)
        os.chmod(key, 0o644)
        assert "chmod 640" in start(*listen, "--tls-certificate", cert, "--tls-key", key)
        os.chmod(key, 0o640)
        os.unlink(cert)
        assert "tls-certificate: " + cert in start(*listen, "--tls-certificate", cert, "--tls-key", key)
        cert, key = make_pair(folder, secret="weft")
        assert "tls-key: " + key in start(*listen, "--tls-certificate", cert, "--tls-key", key)
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(other)


main(globals())
