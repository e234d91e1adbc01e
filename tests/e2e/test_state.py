"""Stored responses and conversations in the database: they outlive restarts, crashes, upgrades and a full disk."""
import os
import pathlib
import random
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time

from manager import wait_end, wait_until
from upgrading import FLAGS, Daemon, upgrade
from weftd import LIMIT_S, Weftd, dead_mount, main
from websocket import WebSocket

KEYS = "alice:ka\nbob:kb\n"


def flags(folder):
    keys = os.path.join(folder, "keys")
    with open(keys, "w") as f:
        f.write(KEYS)
    os.chmod(keys, 0o600)
    return ("--api-keys", keys, "--state-file", os.path.join(folder, "state.db"), "--kv-memory", "64M")


def call(d, method, path, body=None, key="ka"):
    status, _, answer = d.request(method, path, body, {"Authorization": "Bearer " + key})
    return status, answer


def create(d, text, key="ka", **more):
    status, answer = call(d, "POST", "/v1/responses", {"input": text, "max_output_tokens": 4, "temperature": 0, **more}, key)
    assert status == 200, answer
    return answer


def rows(path, what="id", where=""):
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    found = [row[0] for row in db.execute(f"SELECT {what} FROM responses {where} ORDER BY number")]
    db.close()
    return found


def items(d, path):
    status, answer = call(d, "GET", path + "?order=asc&limit=100")
    assert status == 200, answer
    return [(i["type"], i["content"][0]["text"]) for i in answer["data"]]


def kill(d):
    d.process.send_signal(signal.SIGKILL)
    d.process.wait(LIMIT_S)


def test_responses_outlive_a_restart_and_a_crash():
    with tempfile.TemporaryDirectory() as folder:
        args = flags(folder)
        with Weftd(*args) as d:
            first = create(d, "one")
            second = create(d, "two", previous_response_id=first["id"])
            gone = create(d, "three")
            bobs = create(d, "four", key="kb")
            assert call(d, "DELETE", "/v1/responses/" + gone["id"])[0] == 200
            before = items(d, "/v1/responses/" + second["id"] + "/input_items")
        with Weftd(*args) as d:
            assert call(d, "GET", "/v1/responses/" + second["id"]) == (200, second)
            assert items(d, "/v1/responses/" + second["id"] + "/input_items") == before
            assert call(d, "GET", "/v1/responses/" + gone["id"])[0] == 404
            assert call(d, "GET", "/v1/responses/" + bobs["id"])[0] == 404, "it is another tenant's"
            assert call(d, "GET", "/v1/responses/" + bobs["id"], key="kb") == (200, bobs)
            third = create(d, "five", previous_response_id=second["id"])
            wait_until("the row", lambda: third["id"] in rows(args[3]))
            kill(d)
        with Weftd(*args) as d:
            assert len(items(d, "/v1/responses/" + third["id"] + "/input_items")) == 5
            assert call(d, "DELETE", "/v1/responses/" + second["id"])[0] == 200, "the third still continues it"
            assert len(items(d, "/v1/responses/" + third["id"] + "/input_items")) == 5
        with Weftd(*args) as d:
            assert call(d, "GET", "/v1/responses/" + second["id"])[0] == 404
            assert len(items(d, "/v1/responses/" + third["id"] + "/input_items")) == 5
            for r in first, third:
                assert call(d, "DELETE", "/v1/responses/" + r["id"])[0] == 200
            assert call(d, "DELETE", "/v1/responses/" + bobs["id"], key="kb")[0] == 200
        assert rows(args[3]) == [], "what was deleted has no rows"
        with open(args[3], "rb") as f:
            assert b"five" not in f.read(), "nor is its text in the file"


def test_conversations_outlive_a_restart():
    with tempfile.TemporaryDirectory() as folder:
        args = flags(folder)
        with Weftd(*args) as d:
            status, made = call(d, "POST", "/v1/conversations", {"metadata": {"a": "b"}, "items": [{"role": "user", "content": "hello"}]})
            assert status == 200, made
            path = "/v1/conversations/" + made["id"]
            create(d, "one", conversation=made["id"])
            assert call(d, "POST", path + "/items", {"items": [{"role": "user", "content": "more"}]})[0] == 200
            before = items(d, path + "/items")
            assert len(before) == 4, before
        for _ in range(2):
            with Weftd(*args) as d:
                assert call(d, "GET", path) == (200, made)
                assert items(d, path + "/items") == before
        with Weftd(*args) as d:
            create(d, "two", conversation=made["id"])
            assert call(d, "POST", path, {"metadata": {"c": "d"}})[0] == 200
            item = call(d, "GET", path + "/items?limit=1")[1]["data"][0]["id"]
            assert call(d, "DELETE", f"{path}/items/{item}")[0] == 200
            before = items(d, path + "/items")
            assert len(before) == 5, before
            wait_until("the last change", lambda: '{"c":"d"}' in str(rows(args[3], "echo", "WHERE listed")))
            kill(d)
        with Weftd(*args) as d:
            assert call(d, "GET", path)[1]["metadata"] == {"c": "d"}
            assert items(d, path + "/items") == before
            assert call(d, "DELETE", path)[0] == 200
        assert not [i for i in rows(args[3]) if i.startswith("conv_")], "its responses stay, with what they continue"


def test_events_of_a_response_in_the_background_outlive_a_restart():
    with tempfile.TemporaryDirectory() as folder:
        args = flags(folder)

        def events(d, made):
            return d.request("GET", f"/v1/responses/{made['id']}?stream=true", None, {"Authorization": "Bearer ka"})[2]

        with Weftd(*args) as d:
            made = create(d, "one", background=True)
            path = "/v1/responses/" + made["id"]
            wait_until("the end", lambda: call(d, "GET", path)[1]["status"] not in ("queued", "in_progress"))
            before = events(d, made)
            assert "response.output_text.delta" in str(before), before
        with Weftd(*args) as d:
            assert events(d, made) == before


def test_a_kill_ends_a_response_in_the_background_as_failed():
    with tempfile.TemporaryDirectory() as folder:
        args = flags(folder)
        with Weftd(*args) as d:
            short = create(d, "short", background=True)
            path = "/v1/responses/" + short["id"]
            wait_until("the end", lambda: call(d, "GET", path)[1]["status"] not in ("queued", "in_progress"))
            wait_until("its one row", lambda: rows(args[3], "listed") == [1])
            before = call(d, "GET", path)
            made = create(d, "one", background=True, max_output_tokens=8000, ignore_eos=True, metadata={"a": "b"})
            path = "/v1/responses/" + made["id"]
            wait_until("the row", lambda: rows(args[3], "id", "WHERE listed = 2") == [made["id"]])
            assert call(d, "GET", path)[1]["status"] in ("queued", "in_progress"), "it is not over"
            kill(d)
        failed = {**made, "status": "failed", "error": {"code": "server_error", "message": "The server ended before the response did. Send the request again."}}
        for _ in range(2):
            with Weftd(*args) as d:
                assert call(d, "GET", path) == (200, failed)
                assert call(d, "POST", path + "/cancel")[0] == 400
                assert call(d, "GET", "/v1/responses/" + short["id"]) == before
        with Weftd(*args) as d:
            assert call(d, "DELETE", path)[0] == 200
        assert rows(args[3]) == [short["id"]]


def test_an_upgrade_does_not_fail_a_response_in_the_background():
    with tempfile.TemporaryDirectory() as folder:
        args = flags(folder)
        with Daemon(*args, *FLAGS) as d:
            made = create(d, "long", background=True, max_output_tokens=4000, ignore_eos=True)
            wait_until("the row", lambda: rows(args[3], "listed") == [2])
            upgrade(d)
            path = "/v1/responses/" + made["id"]
            found = call(d, "GET", path)
            assert found[0] == 404 or found[1]["status"] == "incomplete", found
            wait_until("its end", lambda: call(d, "GET", path)[0] == 200)
            assert call(d, "GET", path)[1]["status"] == "incomplete"
            assert rows(args[3]) == [made["id"]]


def test_what_is_not_to_be_stored_is_not_written():
    with tempfile.TemporaryDirectory() as folder:
        args = flags(folder)
        with Weftd(*args) as d:
            with WebSocket(d.port, Authorization="Bearer ka") as ws:
                ws.create(input="secret", max_output_tokens=4, store=False)
                secret = list(ws.events())
            stored = create(d, "public")
            wait_until("the row", lambda: stored["id"] in rows(args[3]))
            assert rows(args[3]) == [stored["id"]], secret


def test_an_upgrade_keeps_responses():
    with tempfile.TemporaryDirectory() as folder:
        args = flags(folder)
        with Daemon(*args, *FLAGS) as d:
            made = create(d, "one")
            _, conversation = call(d, "POST", "/v1/conversations", {"items": [{"role": "user", "content": "hello"}]})
            late = {}

            def stay():  # ends in the old daemon, after the new one has read the rows
                late.update(create(d, "long", max_output_tokens=6000, ignore_eos=True))

            thread = threading.Thread(target=stay)
            wait_until("the row", lambda: made["id"] in rows(args[3]))
            thread.start()
            wait_until("the late one runs", lambda: d.stats()["front"]["running"] == 1)
            upgrade(d)
            assert call(d, "GET", "/v1/responses/" + made["id"]) == (200, made)
            path = f"/v1/conversations/{conversation['id']}/items"
            wait_until("the conversation", lambda: call(d, "GET", path)[0] == 200)
            assert len(items(d, path)) == 1
            thread.join(LIMIT_S)
            wait_end(d.process.pid)
            wait_until("the late one", lambda: call(d, "GET", "/v1/responses/" + late["id"])[0] == 200)


def test_kills_while_writing_lose_nothing_that_was_there():
    with tempfile.TemporaryDirectory() as folder:
        args = flags(folder)
        seen, rng = [], random.Random(63)
        for _ in range(5):
            with Weftd(*args) as d:
                for made in seen:
                    assert call(d, "GET", "/v1/responses/" + made["id"]) == (200, made)
                fresh = [create(d, f"text {len(seen)} {i}", **({"previous_response_id": seen[-1]["id"]} if seen else {})) for i in range(8)]
                if not seen:  # the first kill comes after a write, the others at any time
                    wait_until("a row", lambda: rows(args[3]))
                time.sleep(rng.random() * 0.15)
                kill(d)
            there = set(rows(args[3]))
            seen += [made for made in fresh if made["id"] in there]
            db = sqlite3.connect(args[3])
            assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            db.close()
        assert seen


def test_torn_files_are_survived():
    with tempfile.TemporaryDirectory() as folder:
        args, rng = flags(folder), random.Random(64)
        path = args[3]
        with Weftd(*args) as d:
            made = [create(d, f"text {i}") for i in range(4)]
            wait_until("rows", lambda: len(rows(path)) == 4)
            kill(d)
        files = {name: open(name, "rb").read() for name in (path, path + "-wal")}
        assert files[path + "-wal"], "the journal has the rows"
        for trial in range(8):
            for name, data in files.items():
                with open(name, "wb") as f:
                    f.write(data)
            for extra in "-shm", ".damaged", ".damaged-wal":
                if os.path.exists(path + extra):
                    os.remove(path + extra)
            name = path if trial % 2 else path + "-wal"
            with open(name, "r+b") as f:
                if trial % 4 < 2:
                    f.truncate(rng.randrange(len(files[name])))
                else:
                    for _ in range(3):
                        f.seek(rng.randrange(len(files[name])))
                        f.write(bytes([rng.randrange(256)]))
            with Weftd(*args) as d:
                for one in made:
                    status, answer = call(d, "GET", "/v1/responses/" + one["id"])
                    assert status == 404 or answer == one, answer
                fresh = create(d, "again")
            with Weftd(*args) as d:
                assert call(d, "GET", "/v1/responses/" + fresh["id"]) == (200, fresh), trial


def test_a_lock_held_elsewhere_delays_only_the_rows():
    with tempfile.TemporaryDirectory() as folder:
        args = flags(folder)
        with Weftd(*args) as d:
            create(d, "one")
            other = sqlite3.connect(args[3], isolation_level=None)
            other.execute("BEGIN EXCLUSIVE")
            before = rows(args[3])
            made = create(d, "two")
            assert call(d, "GET", "/v1/responses/" + made["id"]) == (200, made)
            wait_until("the event", lambda: "state_file" in d.log)
            late = create(d, "three", previous_response_id=made["id"])
            assert rows(args[3]) == before, "the lock is held"
            other.close()
            wait_until("the rows", lambda: {made["id"], late["id"]} <= set(rows(args[3])))


def usage(d):
    """Returns how many requests of the tenant are counted."""
    status, answer = call(d, "GET", "/v1/usage")
    assert status == 200, answer
    return sum(u["requests"] for u in answer["data"])


def test_an_end_beside_a_reload_that_hangs_loses_nothing():
    with tempfile.TemporaryDirectory() as folder:
        args = flags(folder)
        with Weftd(*args, "--drain-timeout-ms", "1000", env=dead_mount(args[1])) as d:
            away = pathlib.Path(args[1] + ".away")
            away.touch()
            d.process.send_signal(signal.SIGHUP)
            wait_until("the reload", lambda: "action=reload by=signal" in d.log)
            made = create(d, "one")
            n = usage(d)
            assert n > 0
            d.process.send_signal(signal.SIGTERM)
            assert d.process.wait(LIMIT_S) == 0, d.log
            assert "stopped at_limit=yes" in d.log and "usage_lost" not in d.log, d.log
            away.unlink()
        with Weftd(*args) as d:
            assert call(d, "GET", "/v1/responses/" + made["id"]) == (200, made)
            assert usage(d) == n


def test_a_full_disk_is_told_and_loses_only_what_has_no_room():
    with tempfile.TemporaryDirectory() as folder:
        args = flags(folder)
        with Weftd(*args) as d:
            made = create(d, "one")
        size = os.path.getsize(args[3])
        with Weftd(*args) as d:
            subprocess.run(["prlimit", "--pid", str(d.process.pid), f"--fsize={size}"], check=True, timeout=LIMIT_S)
            _, late = call(d, "POST", "/v1/conversations", {"items": [{"role": "user", "content": "x" * 500000}]})
            wait_until("the event", lambda: "state_file" in d.log)
            assert call(d, "GET", "/v1/conversations/" + late["id"]) == (200, late)
            d.process.send_signal(signal.SIGTERM)
            assert d.process.wait(LIMIT_S) == 75
            assert "responses_lost" in d.log and "responses=2" in d.log, d.log
        with Weftd(*args) as d:
            assert call(d, "GET", "/v1/responses/" + made["id"]) == (200, made)
            assert call(d, "GET", "/v1/conversations/" + late["id"])[0] == 404


if __name__ == "__main__":
    main(globals())
