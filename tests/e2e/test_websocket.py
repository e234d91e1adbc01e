"""Responses over a WebSocket: the same events as over HTTP, and the state that a connection keeps."""
import os
import signal
import struct
import tempfile

from websocket import CLOSE, PING, PONG, TEXT, Refused, WebSocket
from weftd import Weftd, beside, main, tiny_model, wait_until

FLAGS = ("--model", tiny_model())


def refused(port, path="/v1/responses", **headers):
    try:
        WebSocket(port, path, **headers)
    except Refused as e:
        return e.args[0]
    raise AssertionError("it was not refused")


def test_a_connection_goes_on_from_its_last_response():
    with Weftd(*FLAGS) as d, WebSocket(d.port, OpenAI_Beta="responses_websockets=2026-02-06") as ws:
        events = ws.ask(input="Say a word.", max_output_tokens=8, store=False, temperature=0)
        assert [e["sequence_number"] for e in events] == list(range(len(events))), events
        first = events[-1]["response"]
        assert events[0]["type"] == "response.created" and first["status"] == "incomplete" and first["store"] is False, first
        deltas = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
        assert deltas == first["output"][0]["content"][0]["text"] != "", events

        # HTTP with the whole history gives the same result.
        more = ws.ask(input="Another.", previous_response_id=first["id"], max_output_tokens=8, store=False, temperature=0)[-1]["response"]
        history = [{"role": "user", "content": "Say a word."}, *first["output"], {"role": "user", "content": "Another."}]
        status, _, whole = d.request("POST", "/v1/responses", {"input": history, "max_output_tokens": 8, "store": False, "temperature": 0})
        assert status == 200 and whole["output"][0]["content"] == more["output"][0]["content"], (whole, more)
        assert whole["usage"]["input_tokens"] == more["usage"]["input_tokens"] > first["usage"]["input_tokens"], (whole, more)

        # Other connections do not find a response that is not stored; a connection keeps its last response only.
        assert d.request("GET", "/v1/responses/" + more["id"])[0] == 404
        lost = ws.ask(input="Again.", previous_response_id=first["id"])
        assert [e["type"] for e in lost] == ["error"] and lost[0]["error"]["code"] == "previous_response_not_found", lost
        again = ws.ask(input="Again.", previous_response_id=more["id"], max_output_tokens=4)[-1]
        assert again["type"] == "response.incomplete", again
        assert d.request("GET", "/v1/responses/" + again["response"]["id"])[0] == 200
        with WebSocket(d.port) as other:
            assert other.ask(input="x", previous_response_id=more["id"])[0]["type"] == "error"


def test_a_prompt_is_computed_before_it_is_asked_about():
    with Weftd(*FLAGS) as d, WebSocket(d.port) as ws:
        events = ws.ask(input="word " * 200, generate=False, store=False)
        warm = events[-1]["response"]
        assert events[-1]["type"] == "response.completed" and warm["output"] == [] and warm["usage"]["output_tokens"] == 0, events
        answer = ws.ask(input=[], previous_response_id=warm["id"], max_output_tokens=4, store=False)[-1]["response"]
        used = answer["usage"]
        assert used["output_tokens"] == 4 and used["input_tokens_details"]["cached_tokens"] > used["input_tokens"] * 0.8, used


def test_wrong_messages_leave_the_connection_usable():
    with Weftd(*FLAGS) as d, WebSocket(d.port) as ws:
        for text, status, code in (
            (b"{", 400, "invalid_json"),
            (b"", 400, None),
            (b'{"type":"session.update"}', 400, "unknown_event_type"),
            (b'{"type":"a\\u0000"}', 400, "unknown_event_type"),
            (b'{"type":"response.create","input":7}', 400, "invalid_value"),
            (b'{"type":"response.create","input":"x","stream_id":"a"}', 400, "unsupported_parameter"),
            (b'{"type":"response.create","input":"x","background":true}', 400, "invalid_value"),
            (b'{"type":"response.create","input":"x","previous_response_id":"resp_0"}', 404, "previous_response_not_found"),
        ):
            ws.send(text)
            event, = ws.events()
            assert (event["type"], event["status"]) == ("error", status) and (code is None or event["error"]["code"] == code), event
            assert "(null)" not in event["error"]["message"], event
        ws.send(b'{"type":"response.processed","response_id":"resp_0"}')
        for told in ({"input": "response.processed"}, {"input": "x", "metadata": {"response.processed": "y"}}):
            assert ws.ask(**told, max_output_tokens=2)[-1]["type"] == "response.incomplete", told


def test_frames():
    with Weftd(*FLAGS, "--max-body", "64k") as d:
        with WebSocket(d.port) as ws:  # pings between fragments and during an answer
            ws.send(b"one", PING)
            assert ws.frame() == (PONG, b"one")
            body = b'{"type":"response.create","input":"x","max_output_tokens":300,"ignore_eos":true}'
            ws.send(body[:9], TEXT, end=False)
            ws.send(b"two", PING)
            ws.send(body[9:], 0)
            frames = [ws.frame()]
            while frames[-1][0] == TEXT and b"output_text.delta" not in frames[-1][1] or frames[-1][0] == PONG:
                frames.append(ws.frame())
            assert frames[0] == (PONG, b"two"), frames
            ws.send(b"three", PING)
            ws.create(input="behind it", max_output_tokens=2)  # waits for the previous answer
            ws.send(b"four", PING)
            rest, last = [], b""
            while b'"type":"response.incomplete"' not in last:
                rest.append(ws.frame())
                last = rest[-1][1]
            assert (PONG, b"three") in rest, "no pong during an answer"
            assert list(ws.events())[-1]["response"]["usage"]["output_tokens"] == 2
            ws.send(struct.pack(">H", 1000) + b"bye", CLOSE)
            end = ws.frame()
            while end and end[0] != CLOSE:
                end = ws.frame()
            assert end == (CLOSE, struct.pack(">H", 1000)) and ws.frame() is None, end
        for data, opcode, code in ((b"\xff", TEXT, 1007), (b"x", 2, 1003), (b"x", 3, 1002), (b"x" * 65537, TEXT, 1009)):
            with WebSocket(d.port) as ws:
                ws.send(data, opcode)
                frames = [ws.frame(), ws.frame()]
                assert frames[0][0] == TEXT and b'"type":"error"' in frames[0][1], frames
                assert frames[1] == (CLOSE, struct.pack(">H", code)) and ws.frame() is None, frames
        assert d.health() == 200


def test_who_may_open_one():
    with tempfile.TemporaryDirectory() as folder:
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.write("alice:ka\n")
        os.chmod(keys, 0o600)
        with Weftd(*FLAGS, "--api-keys", keys) as d:
            assert refused(d.port) == 401
            assert refused(d.port, Authorization="Bearer ka", Origin="http://elsewhere.example") == 403
            assert refused(d.port, Authorization="Bearer ka", Sec_WebSocket_Version="8") == 426
            assert refused(d.port, Authorization="Bearer ka", Sec_WebSocket_Key="short") == 400
            assert refused(d.port, "/v1/chat/completions", Authorization="Bearer ka") == 426
            with WebSocket(d.port, Authorization="Bearer ka") as ws:
                assert ws.ask(input="x", max_output_tokens=2)[-1]["type"] == "response.incomplete"
                with open(keys, "w") as file:
                    file.write("bob:kb\n")
                d.process.send_signal(signal.SIGHUP)
                last = []
                wait_until("a key that was taken away is served",
                           lambda: last.append(ws.ask(input="x", max_output_tokens=2)[-1]) or last[-1]["type"] == "error")
                assert last[-1]["status"] == 401, last
    with Weftd(*FLAGS, "--stored-responses", "0") as d:
        assert refused(d.port) == 426


def test_a_client_that_leaves_ends_its_answer():
    with Weftd(*FLAGS) as d:
        with WebSocket(d.port) as ws:
            ws.create(input="x", max_output_tokens=100000, ignore_eos=True)
            for _ in range(6):
                ws.frame()
            ws.send(b"", CLOSE)
        wait_until("its end", lambda: "status=499" in d.log)


@beside
def test_silence_and_the_end_of_the_daemon():
    with Weftd(*FLAGS, "--idle-timeout-ms", "2000") as d:
        with WebSocket(d.port) as ws:
            for _ in range(3):  # the connection stays open as long as pings are answered
                assert ws.frame() == (PING, b"")
                ws.send(b"", PONG)
            assert ws.ask(input="x", max_output_tokens=2)[-1]["type"] == "response.incomplete"
            frames = []
            while (frame := ws.frame()) is not None:
                frames.append(frame)
            assert frames == [(PING, b"")], frames
    with Weftd(*FLAGS) as d:
        with WebSocket(d.port) as ws:
            assert ws.ask(input="x", max_output_tokens=2)[-1]["type"] == "response.incomplete"
            d.process.terminate()
            frames = []
            while (frame := ws.frame()) is not None:
                frames.append(frame)
            assert frames[-1] == (CLOSE, struct.pack(">H", 1001)), frames


if __name__ == "__main__":
    main(globals())
