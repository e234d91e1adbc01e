"""Names that clients choose, or get, are names of their tenant: another tenant that uses them finds nothing, and changes nothing.

Two tenants, alice and bob. What bob gets for a name of alice is what he gets for one that no request has ever used. The tables
behind the names are listed in tests/lint/tables.txt.
"""
import json
import pathlib
import re
import tempfile

from weftd import Weftd, main, random_tokens
from websocket import WebSocket

KEYS = {"alice": "ka", "bob": "kb"}
UNUSED = "nameofnorequestwhatever0"
# Routes whose path has a name, with the kind of name; None: it is the operator's or the service's, not a client's.
PATHS = {
    "/v1/models/*": None,
    "/api/v0/models/*": None,
    "/web/*": None,
    "/v1/conversations/*": "conversation",
    "/v1/conversations/*/items": "conversation",
    "/v1/responses/*": "response",
    "/v1/responses/*/cancel": "response",
    "/v1/responses/*/input_items": "response",
    "/v1/requests/*/why": "request",
}


class Tenants:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        keys = pathlib.Path(self.folder.name, "keys")
        keys.write_text("".join(f"{name}:{key}\n" for name, key in KEYS.items()))
        self.d = Weftd("--api-keys", str(keys))

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.d.__exit__(*why)
        self.folder.cleanup()

    def ask(self, tenant, method, path, body=None, headers=None):
        status, _, value = self.d.request(method, path, body, {"Authorization": "Bearer " + KEYS[tenant], **(headers or {})})
        return status, value

    def post(self, tenant, path, body, headers=None):
        status, value = self.ask(tenant, "POST", path, body, headers)
        assert status == 200, (path, status, value)
        return value


def routes():
    """Returns (method, path) of the routes whose path has a name, from the tables in the sources."""
    sources = pathlib.Path(__file__).parents[2] / "api"
    found = set()
    for file in sources.rglob("*.c"):
        found |= {(m[2], m[1]) for m in re.finditer(r'\{"(/[^"]*\*[^"]*)", HTTP_(\w+)', file.read_text())}
    assert len(found) > 10, found
    return sorted(found)


def masked(answer, name):
    """Returns the answer without the name that was asked for and without ids of its own."""
    text = json.dumps(answer).replace(name, "NAME")
    return re.sub(r'"(id|request_id)": "[^"]*"', r'"\1": ""', text)


def objects_of(t):
    """Returns alice's names by kind. One response is under way until it is cancelled."""
    conversation = t.post("alice", "/v1/conversations", {"items": [{"role": "user", "content": "hello"}]})["id"]
    first = t.post("alice", "/v1/responses", {"input": "hello", "max_output_tokens": 4, "conversation": conversation})
    live = t.post("alice", "/v1/responses", {"input": "hello", "max_output_tokens": 3000, "background": True, "ignore_eos": True})
    status, items = t.ask("alice", "GET", f"/v1/conversations/{conversation}/items")
    assert status == 200 and len(items["data"]) >= 2, items
    requests = [str(r["generation"]) for r in t.ask("alice", "GET", "/v1/requests")[1]["requests"]]
    return {"request": requests, "conversation": [conversation], "response": [first["id"], live["id"]], "item": [i["id"] for i in items["data"]]}


def state_of(t, names):
    """Returns what alice sees of her objects, but for the progress of what is under way."""
    got = {}
    for kind in ("conversation", "response"):
        for name in names[kind]:
            status, value = t.ask("alice", "GET", f"/v1/{kind}s/{name}")
            assert status == 200, (name, value)
            value.pop("output", None), value.pop("usage", None)
            assert value.get("status") not in ("cancelled", "failed"), value
            got[name] = {k: v for k, v in value.items() if k not in ("status", "completed_at", "incomplete_details")}
    got["items"] = t.ask("alice", "GET", f"/v1/conversations/{names['conversation'][0]}/items")
    return got


def test_every_route_with_a_name_knows_its_tenant():
    with Tenants() as t:
        names = objects_of(t)
        before = state_of(t, names)
        asked = 0
        for method, path in routes():
            assert path in PATHS, f"{path}: whose names are these? See PATHS"
            for name in names.get(PATHS[path], []):
                body = {"items": [{"role": "user", "content": "x"}], "metadata": {"a": "b"}} if method == "POST" else None
                answers = [t.ask("bob", method, path.replace("*", n), body) for n in (name, UNUSED)]
                assert answers[0][0] == 404, (method, path, answers)
                assert masked(answers[0], name) == masked(answers[1], UNUSED), (method, path, answers)
                asked += 1
        assert asked >= 12, asked
        assert state_of(t, names) == before
        for name in names["response"]:
            t.ask("alice", "POST", f"/v1/responses/{name}/cancel")


def members_of(names):
    """Returns bodies with a name of each kind in each member that takes it."""
    for name in names["response"]:
        yield name, {"input": "x", "previous_response_id": name}
    for name in names["conversation"]:
        yield name, {"input": "x", "conversation": name}
        yield name, {"input": "x", "conversation": {"id": name}}
    for name in names["item"]:
        yield name, {"input": [{"type": "item_reference", "id": name}, {"role": "user", "content": "x"}]}


def test_every_member_with_a_name_knows_its_tenant():
    with Tenants() as t:
        names = objects_of(t)
        before = state_of(t, names)
        for name, body in members_of(names):
            other = json.loads(json.dumps(body).replace(name, UNUSED))
            for path in ("/v1/responses", "/responses", "/v1/responses/compact", "/v1/responses/input_tokens"):
                answers = [t.ask("bob", "POST", path, {**b, "max_output_tokens": 1}) for b in (body, other)]
                assert answers[0][0] in (400, 404), (path, body, answers)
                assert masked(answers[0], name) == masked(answers[1], UNUSED), (path, body, answers)
            with WebSocket(t.d.listening_port(), Authorization="Bearer kb") as ws:
                answers = [ws.ask(**b, max_output_tokens=1)[-1] for b in (body, other)]
                assert answers[0]["type"] == "error", answers
                assert masked(answers[0], name) == masked(answers[1], UNUSED), (body, answers)
        assert state_of(t, names) == before
        t.ask("alice", "POST", f"/v1/responses/{names['response'][1]}/cancel")


def test_request_ids_name_requests_of_their_tenant():
    with Tenants() as t:
        def seen_by(tenant):
            status, value = t.ask(tenant, "GET", "/v1/requests?order=slowest")
            assert status == 200 and not value["operator"], value
            return [(r["id"], r["output_tokens"], t.ask(tenant, "GET", f"/v1/requests/{r['generation']}/why")) for r in value["requests"]]

        headers = {"X-Request-Id": "job-1"}
        t.post("alice", "/v1/completions", {"prompt": "x", "max_tokens": 1, "ignore_eos": True}, headers)
        before = seen_by("alice")
        assert [r[:2] for r in before] == [("job-1", 1)], before
        assert seen_by("bob") == []
        t.post("bob", "/v1/completions", {"prompt": random_tokens(1, 200), "max_tokens": 9, "ignore_eos": True}, headers)
        assert seen_by("alice") == before
        assert [r[:2] for r in seen_by("bob")] == [("job-1", 9)]
        status, value = t.d.admin_request("GET", "/requests/job-1/why")
        assert status != 200, "the operator is not told of one of two"


def test_names_of_sessions_and_caches_are_those_of_the_tenant():
    named = {
        "session": ({}, {"X-Session-Id": "s"}),
        "cache key": ({"prompt_cache_key": "k"}, {}),
        "salt": ({"cache_salt": "salt"}, {}),
        "user": ({"user": "u", "safety_identifier": "u"}, {}),
        "all": ({"prompt_cache_key": "k", "cache_salt": "salt", "user": "u"}, {"X-Session-Id": "s"}),
    }
    with Tenants() as t:
        for seed, (what, (members, headers)) in enumerate(named.items()):
            body = {"prompt": random_tokens(seed + 1, 300), "max_tokens": 1, **members}

            def cached(tenant):
                usage = t.post(tenant, "/v1/completions", body, headers)["usage"]
                return usage["prompt_tokens_details"]["cached_tokens"]

            assert cached("alice") == 0, what
            assert cached("bob") == 0, (what, "another tenant's pages")
            assert cached("alice") > 0 and cached("bob") > 0, (what, "its own pages")


main(globals())
