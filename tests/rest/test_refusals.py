"""Whatever a client can get wrong is a 4xx problem that is definite and changes nothing: call → status and code.

What a codec refuses is told in tests/sdk/test_hostile_bytes.py, what an atomic commit may not be in tests/atomic/test_checks.py;
here each hostile body is sent to one address, each address gets one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from oncelog.wire.codec import encode
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from oncelog_service.rest.routes import Route
from oncelog_service.rest.table import ROUTES
from tests.rest.talk import ANY, TIMEOUT, Topic, assert_problem, avro_poll
from tests.world.service import RunningService

BAD_NAMES = ["a%20b", "caf%C3%A9", "x" * 250, "%ff", "a%00", "a%0A", "%E2%80%AE"]
BAD_POINTERS = ["0", "-1", "x", "5.0", "%D9%A5", "9223372036854775808", "9" * 30, "%20"]
BAD: Mapping[str, Sequence[str]] = {
    "namespace": [*BAD_NAMES, "a-b", "a.b"],
    "topic": [*BAD_NAMES, "a:b", "%2E", "%2E%2E"],
    "transaction": BAD_NAMES,
    "group": BAD_NAMES,
    "producer": BAD_NAMES,
    "subscription": [*BAD_NAMES, "a:b"],
    "token": ["x" * 250],
    "chunk": ["-1", "x", "1.0", "%20", "2147483648", "9" * 20, "%D9%A3"],
    "writePointer": BAD_POINTERS,
    "participant": ["", "x", "a%20b:t", "here:a%09b", "here:%ff"],
}
"""What no part of an address may be."""

NUMBERS = ["-1", "x", "", "1.5", "%D9%A1", "9" * 30]
LIMITS = [*(f"limit={each}" for each in NUMBERS), "limit=0", "limit=2001"]
T = "/v1/namespaces/default/topics/refusals"
ROLLBACK = {
    "transactionWritePointer": 1_790_000_000_000_000_000,
    "startTimestamp": 1_790_000_000_000,
    "startSequenceId": 0,
    "endTimestamp": 1_790_000_000_000,
    "endSequenceId": 1,
    "receipts": [],
}
NO_STARTS: list[Any] = [
    {}, {"at": "somewhere"}, {"at": "latest", "offset": 0}, {"offset": -1}, {"offset": True}, {"offset": "1"},
    {"offset": 1, "inclusive": True}, {"messageId": "xyz"}, {"messageId": "00"}, {"timestamp": -1}, {"timestamp": 2**63},
    {"surprise": 1}, [], None, 1,
]  # fmt: skip
BAD_MESSAGES: list[dict[str, Any]] = [
    {"messages": []}, {"sequenceIds": [0]}, {"producer": "p"}, {"producer": "p", "sequenceIds": [-1]}, {"ttls": [0]},
    {"keys": []}, {"expectedOffset": -1}, {"messages": [1]},
]  # fmt: skip
BAD_PROPERTIES: list[Any] = [
    *({"ttl": ttl} for ttl in (5.0, 1e9, 0, -1, 10**400, True, [5], None, "0", "-1", "1.5", "abc", "", "\u0661", "9" * 20)),
    *({name: value} for name in ("deduplication", "transactional", "generation") for value in ("yes", 7, None)),
    {"check.expected.offsets": "maybe"}, {"tttl": "5"}, {"": "x"}, [], "text",
]  # fmt: skip

REFUSED: Mapping[str, Sequence[Any]] = {
    f"POST {T}/publish": [
        *({"messages": ["a"], **fields} for fields in BAD_MESSAGES),
        *({"messages": ["a"], "producer": name, "sequenceIds": [1]} for name in ("", "a b", "caf\u00e9", "x" * 250, "p\n")),
        *({"messages": ["a"], "producer": "p", "sequenceIds": [1], "epoch": epoch} for epoch in (7, 0, -1)),
        *({"messages": ["a", "b", "c"], "producer": "p", "sequenceIds": ids} for ids in ([0, 1, 1], [2, 1, 3], [0, 1], [])),
        *({"messages": ["a"], "transactionWritePointer": each} for each in (0, -1, -(2**63), True, "5", [5], {"int": 5}, 2**63)),
        {"messages": ["a"], "epoch": 1}, {"messages": ["a"], "expectedKeyOffsets": {"k": {"long": -1}}},
        *({"messages": ["a", "b"], "transactionWritePointer": 5, "sequenceIds": ids} for ids in ([0, 2], [1, 0], [-1, 0])),
        {"messages": ["a"], "sequenceIds": 0}, {"messages": ["a"], "expectedKeyOffsets": {"\u0100": None}},
        {"messages": ["a"], "properties": [{"a": "\ud800"}]},
    ],
    f"POST {T}/store": [
        {"messages": ["a"]}, {"messages": []}, {"transactionWritePointer": 2**60, "messages": []},
        {"transactionWritePointer": 0, "messages": ["a"]},
        {"transactionWritePointer": 5, "messages": ["a"], "expectedOffset": 0},
        {"transactionWritePointer": 5, "messages": ["a", "b"], "sequenceIds": [0, 2]},
    ],
    f"POST {T}/rollback": [{**ROLLBACK, **fields} for fields in ({"transactionWritePointer": None}, {"startSequenceId": 2})],
    f"POST {T}/poll": [
        *({"limit": limit} for limit in (0, -1, -(2**31), True, 1.0, "5", 2**31)),
        *({"inclusive": value} for value in (1, "true", None)), {"wait": -1}, {"wait": 0.5},
        *({"startFrom": start} for start in (-1, 2**63, True, 1.5, [])),
        {"startOffset": -1}, {"startOffset": True}, {"startFrom": 5, "startOffset": 5},
    ],
    "PUT /v1/namespaces/default/topics/never": [*BAD_PROPERTIES, {"generation": "1"}],
    f"PUT {T}/properties": [{"ttl": "0"}, {"deduplication": "yes"}, []],
    "PUT /v1/namespaces/quiet/policies": [{"deduplication": "true"}, {"deduplication": 1}, {"ttl": None}, []],
    f"POST {T}/producers": [
        {}, {"name": "p"}, *({"nonce": nonce, "name": "p"} for nonce in ("", "x" * 101, 5, None, "\ud800")),
        *({"nonce": "n", "name": name} for name in ("", "a b", "x" * 250, 5, "\ud800")),
        {"nonce": "n", "gaps": "maybe"}, {"nonce": "n", "epoch": 5}, {"nonce": "n", "\ud800": 5},
    ],
    "POST /v1/namespaces/default/offsets": [
        {}, {"topics": {"refusals": {"after": -1}}}, {"topics": {"refusals": {"maxBytes": 0}}},
        {"topics": {"refusals": {"before": 1}}}, {"topics": {"refusals": {}}, "wait": -1},
        {"topics": {f"t{number}": {} for number in range(1_001)}},
    ],
    f"POST {T}/subscriptions": [
        *({"name": name, "nonce": "n"} for name in ("a b", "..", "", "x" * 250, 5)), {"name": "s"}, {"nonce": "n"},
        {"name": "s", "nonce": ""}, {"name": "s", "nonce": "n" * 101},
        *({"name": "new", "nonce": "n", "start": start} for start in NO_STARTS),
    ],
    "POST /v1/cluster/hand-over": [
        {"namespace": "default", "topic": "t"}, {"namespace": "default", "topic": "t", "instance": "i", "to": "j"},
        *({"namespace": "default", "topic": "t", "instance": each} for each in ("", "x" * 101, 5, None)),
        *({"namespace": "default", "topic": each, "instance": "i"} for each in ("..", "", "x" * 250, "a:b")),
        {"namespace": "a.b", "topic": "t", "instance": "i"},
    ],
    f"POST {T}/subscriptions/s/receive": [
        {}, {"epoch": 1, "limit": 0}, {"epoch": 1, "wait": -1}, {"epoch": 1, "after": "abc"}, {"epoch": 1, "from": 0},
    ],
    f"POST {T}/subscriptions/s/ack": [
        {"epoch": 1}, {"epoch": 1, "offset": 0}, {"epoch": 1, "generation": 1, "offset": -1},
        {"epoch": 1, "generation": 1, "offset": 0, "messageId": "00" * 20},
    ],
    f"POST {T}/subscriptions/s/seek": [
        {"to": {"offset": 0}}, {"to": {"offset": 0}, "nonce": "n", "epoch": "1"},
        {"to": {"at": "somewhere"}, "nonce": "n"},
    ],
    "POST /v1/transactions": [
        {"type": "medium"}, {"type": None}, {"type": 1}, {"timeout": 5}, {"type": "long", "timeoutMs": 5},
        *({"timeoutMs": each} for each in (0, -1, 1.5, True, "5", 3_600_001, 10**30)),
    ],
    "POST /v1/transactions/5/can-commit": [
        *({"changes": each} for each in ("k", None, [1], [None], ["\u0100"], ["\ud800"])),
        *({"resource": each} for each in ("", "x" * 250, 5)),
    ],
    "POST /v1/transactions/5/commit": [{"changes": ["\u0100"]}, {"resource": "db"}, []],
    "POST /v1/transactions/5/abort": [{"unlessCommitted": True}],
    "POST /v1/transactions/prune": [
        {}, {"writePointers": [5], "beforeMs": 5}, {"writePointers": None, "beforeMs": None},
        *({"writePointers": each} for each in ([0], [-5], [2**63], ["5"], 5)),
        *({"beforeMs": each} for each in (-1, 1.5, "2026-01-31")),
    ],
    "POST /v1/transactions/states": [{}, *({"writePointers": each} for each in (None, [0], [True], [10**30]))],
    "POST /v1/transactions/5/participants": [
        {}, *({"participant": f"here{end}"} for end in ("", ":", ":a b", ":t\n", ":caf\u00e9", ":" + "x" * 601)),
        {"participant": ":default/t/1"}, {"participant": 5},
    ],
    "POST /v1/atomic": [
        {}, {"group": None}, {"group": 5}, {"group": "g", "id": 5},
        *({"group": "g", "timeoutMs": each} for each in (0, 10**15, True, 1.5)),
        {"group": "g", "of": "a b"}, {"group": "g", "unknown": 1},
    ],
    "POST /v1/atomic/a/commit": [
        {"group": 5}, {"group": "g", "producer": "p"}, {"group": "g", "producer": "p", "sequenceId": True},
        *({"group": "g", "branches": each} for each in (["b", "b"], "b")),
        *({"group": "g", "parts": each} for each in ({}, [{"namespace": "default", "topic": "refusals"}])),
        {"group": "g", "parts": [{"namespace": "default", "topic": "refusals", "request": {"messages": [1]}}]},
    ],
    "POST /v1/atomic/a/commit?gaps=sometimes": [{"group": "g", "parts": []}],
    f"PUT {T}/stage/a/0": [{"messages": ["a"], "transactionWritePointer": 5}],
}  # fmt: skip
"""Address → bodies in JSON that it does not take: 400 invalid_request."""

QUERIES: Mapping[str, Sequence[str]] = {
    f"{T}/producers": [*LIMITS, "&".join(f"a{number}=1" for number in range(30))],
    f"{T}/subscriptions": LIMITS,
    f"{T}/held": LIMITS,
    f"{T}/groups": LIMITS,
    f"{T}/rows": [*LIMITS, "first=-1", "first=x"],
    f"{T}/payloads": ["", "under=x"],
    f"{T}/columns": ["", "first=0", "first=x&upto=0", "first=0&upto=0&properties=yes", "first=0&upto=0&limit=x"],
    f"{T}/producers/p/why": ["", "sequenceid=1", "sequenceId=9223372036854775808", *(f"sequenceId={each}" for each in NUMBERS)],
    "/v1/held": LIMITS,
    "/v1/atomic": [*LIMITS, "after=a%20b", "after=", "group=", "group=a%20b"],
    "/v1/transactions": [*LIMITS, "state=committed", "state=", "after=-1", "after=x", "after=" + "9" * 19],
    "/v1/transactions/unacknowledged": ["", "storeId=", "storeId=here&wait=-1", "storeId=here&wait=x"],
}
"""Address → queries that it does not take: 400 invalid_request."""

HOSTILE = [
    b"{", b"nul", b'{"a":1}{}', b"[" * 90_000, b'{"a":' * 15_000, b'{"nonce": ' + b"[" * 900 + b"]" * 900 + b"}", b'{"\xff": 1}',
    b"\xff\xfe\xfd", b'"\\ud800"', b'{"messages": ["\xed\xa0\x80"]}', b'{"\\ud800": "\\udfff"}', b'{"ttl": NaN}',
    b'{"limit": 1e999}', b'{"limit": ' + b"9" * 50_000 + b"}", b"[]", b"1", b"null", b'"text"', b'{"unknown": null}',
]  # fmt: skip

NOT_THERE: Mapping[tuple[int, str], Sequence[tuple[str, str, Any]]] = {
    (404, "not_found"): [("GET", path, None) for path in ("/", "/v1", f"{T}/stores", "/v1/namespaces/", "/v2", "/%00")],
    (404, "topic_not_found"): [
        ("POST", "/v1/namespaces/default/offsets", {"topics": {"missing": {}}}),
        ("POST", "/v1/atomic/a/commit", {"group": "g", "parts": [
            {"namespace": "default", "topic": "missing", "request": {"messages": ["a"]}}]}),
    ],
    (404, "producer_not_found"): [(method, f"{T}/producers/p", None) for method in ("GET", "DELETE")],
    (404, "subscription_not_found"): [(method, f"{T}/subscriptions/s", None) for method in ("GET", "DELETE")],
    (404, "group_producer_not_found"): [(method, "/v1/atomic/groups/g/producers/p", None) for method in ("GET", "DELETE")],
    (404, "transaction_not_found"): [
        ("GET", "/v1/transactions/12345", None), ("GET", "/v1/atomic/never", None), ("POST", "/v1/atomic/never/commit", {}),
        *(("POST", f"/v1/transactions/12345/{how}", {}) for how in ("can-commit", "commit", "abort", "invalidate", "checkpoint")),
        ("POST", "/v1/atomic/never/abort", {}), ("PUT", f"{T}/stage/never/0", {"messages": ["a"]}),
    ],
    (400, "offset_out_of_range"): [("POST", f"{T}/poll", {"startOffset": offset}) for offset in (1, 5, 2**63 - 1)],
    (400, "invalid_message_id"): [
        *(("POST", f"{T}/poll", {"startFrom": start}) for start in ("\x01" * 19, "g" * 40, "\xe9" * 40)),
        *(("POST", f"{T}/publish", {"messages": ["a"], "expectedLastMessageId": text}) for text in ("x" * 19, "")),
    ],
    (400, "invalid_transaction"): [("POST", f"{T}/poll", {"transaction": text}) for text in ("", "\x00", "abc", "\x00" * 90)],
    (409, "expectations_not_checked"): [
        ("POST", f"{T}/publish", {"messages": ["a"], **fields})
        for fields in ({"expectedOffset": 0}, {"expectedLastMessageId": "x" * 20}, {"expectedKeyOffsets": {}})
    ],
    (409, "unknown_write_pointer"): [
        ("POST", T + path, {"messages": ["a"], "transactionWritePointer": pointer})
        for path in ("/publish", "/store") for pointer in (1, time.time_ns() // 2, 2 * time.time_ns(), 2**63 - 1)
    ],
    (409, "rollback_refused"): [("POST", f"{T}/rollback", ROLLBACK)],
}  # fmt: skip
"""What is understood and cannot be: (status, code) → calls."""

TOO_MUCH = [
    ("POST", f"{T}/publish", {"messages": ["a"] * 101}, 100),
    ("POST", f"{T}/publish", {"messages": ["a"], "expectedKeyOffsets": {f"k{number}": None for number in range(101)}}, 100),
    ("PUT", f"{T}/stage/a/0", {"messages": ["a"] * 101}, 100),
    ("POST", "/v1/transactions/5/commit", {"changes": [""] * 20_001}, 20_000),
    ("POST", "/v1/transactions/states", {"writePointers": [5] * 10_001}, 10_000),
    ("POST", "/v1/transactions/prune", {"writePointers": [5] * 10_001}, 10_000),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _nothing_changes(shared: RunningService, topic: Topic) -> Iterator[None]:
    paths = (T, f"{T}/stats", f"{T}/producers", f"{T}/subscriptions", "/v1/transactions", "/v1/atomic", "/v1/namespaces")
    before = [topic.session.get(topic.base + path, timeout=TIMEOUT).json() for path in paths]
    yield
    assert [topic.session.get(topic.base + path, timeout=TIMEOUT).json() for path in paths] == before
    assert topic.session.get(shared.url + "/healthz", timeout=TIMEOUT).status_code == 200


def send(topic: Topic, method: str, path: str, body: bytes = b"", media: str | None = JSON) -> Any:
    headers = {} if media is None else {"content-type": media}
    return topic.session.request(method, topic.base + path, data=body, headers=headers, timeout=TIMEOUT)


def as_json(value: Any) -> bytes:
    return b"" if value is None else json.dumps(value).encode()


def refused(answer: Any, status: int = 400, code: str = "invalid_request") -> dict[str, Any]:
    return assert_problem(answer, status, code)


def named(route: Route) -> str:
    return f"{route.method} {route.path}"


def good_body(route: Route) -> bytes:
    """Good enough to be read; of those that the tests of addresses get as far as."""
    by_end = dict.fromkeys(("publish", "{chunk}"), b'{"messages":["a"]}') | {"producers": b'{"nonce":"n"}'}
    by_end |= {"subscriptions": b'{"name":"s","nonce":"n"}', "seek": b'{"to":{"offset":0},"nonce":"n"}'}
    by_end |= dict.fromkeys(("receive", "ack"), b'{"epoch":1}') | {"participants": b'{"participant":"here:default/t/1"}'}
    by_end |= {"{writePointer}": b'{"committed":true}'}
    return by_end.get(route.path.rsplit("/", 1)[-1], b"{}") if route.request else b""


@pytest.mark.parametrize("address", REFUSED)
def test_a_body_that_makes_no_sense_is_refused(topic: Topic, address: str) -> None:
    method, _, path = address.partition(" ")
    for body in REFUSED[address]:
        refused(send(topic, method, path, as_json(body)))


@pytest.mark.parametrize("path", QUERIES)
def test_a_query_that_makes_no_sense_is_refused(topic: Topic, path: str) -> None:
    for query in QUERIES[path]:
        refused(send(topic, "GET", f"{path}?{query}"))


@pytest.mark.parametrize("part", BAD)
def test_a_name_that_is_none_is_refused_on_every_address(topic: Topic, part: str) -> None:
    routes = [route for route in ROUTES if f"{{{part}}}" in route.path]
    for number in range(max(len(routes), len(BAD[part]))):  # each address, and each name
        route, name = routes[number % len(routes)], BAD[part][number % len(BAD[part])]
        before, behind = (each.format(**{**ANY, "topic": "refusals"}) for each in route.path.split(f"{{{part}}}"))
        refused(send(topic, route.method, before + name + behind, good_body(route)))


@pytest.mark.parametrize("path", ["publish", "producers"])
def test_json_that_is_not_what_is_asked_for_is_refused(topic: Topic, path: str) -> None:
    """By the codec, and by pydantic."""
    for body in HOSTILE:
        refused(topic.post(f"/{path}", body))


def test_every_address_reads_its_body_so(topic: Topic) -> None:
    for route in ROUTES:
        path = route.path.format(**{**ANY, "topic": "refusals"})
        if route.request:
            refused(send(topic, route.method, path, b'{"a":1}{}'))
            for media in ("text/plain", "application/avro", "\xff", *({AVRO} - route.request.keys())):
                refused(send(topic, route.method, path, b"{}", media), 415, "unsupported_media_type")
            if ONCELOG_AVRO in route.request:
                refused(send(topic, route.method, path, b"{}", None), 415, "unsupported_media_type")


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES} | {"/openapi.json", "/docs"}))
def test_a_method_that_an_address_does_not_take_is_refused(topic: Topic, path: str) -> None:
    taken = {route.method for route in ROUTES if route.path == path}
    for method in {"PUT", "POST", "DELETE", "PATCH", "OPTIONS"} - taken:
        answer = send(topic, method, path.format(**{**ANY, "topic": "refusals"}))
        refused(answer, 405, "method_not_allowed")
        assert set(answer.headers["allow"].split(", ")) == (taken or {"GET"})


def test_a_topic_that_does_not_exist_is_not_found_on_every_address(topic: Topic) -> None:
    for route in ROUTES:
        if "{topic}" in route.path and named(route) != "PUT /v1/namespaces/{namespace}/topics/{topic}":
            path = route.path.format(**{**ANY, "topic": "missing"}) + "?sequenceId=1&first=0&upto=0&under=1"
            refused(send(topic, route.method, path, good_body(route)), 404, "topic_not_found")


@pytest.mark.parametrize(("status", "code"), NOT_THERE)
def test_what_is_understood_and_cannot_be_says_why(topic: Topic, status: int, code: str) -> None:
    for method, path, body in NOT_THERE[status, code]:
        refused(send(topic, method, path, as_json(body)), status, code)


def test_more_than_a_request_may_hold_is_refused_and_the_limit_named(topic: Topic) -> None:
    for method, path, body, limit in TOO_MUCH:
        problem = refused(send(topic, method, path, as_json(body)), 413, "request_too_large")
        assert problem["limit"] == limit


def test_a_refusal_carries_what_one_needs_to_go_on(topic: Topic) -> None:
    for answer, name, value in (
        (topic.poll(startOffset=5), "upcoming", 0),
        (topic.publish("a", transactionWritePointer=7), "write_pointer", 7),
        (send(topic, "GET", "/v1/transactions/12345"), "write_pointer", 12345),
        (send(topic, "POST", "/v1/atomic/never/abort"), "transaction", "never"),
    ):
        assert answer.json()[name] == value


@pytest.mark.parametrize("media", [AVRO, ONCELOG_AVRO])
def test_a_media_type_changes_nothing_about_what_is_refused(topic: Topic, media: str) -> None:
    for path, body, code in (
        ("/publish", encode("PublishRequest", media, {"transactionWritePointer": 0, "messages": [b"a"]}), "invalid_request"),
        ("/store", encode("PublishRequest", media, {"transactionWritePointer": None, "messages": [b"a"]}), "invalid_request"),
        ("/rollback", encode("PublishResponse", media, {**ROLLBACK, "startSequenceId": 2}), "invalid_request"),
        ("/poll", avro_poll(media, limit=0), "invalid_request"),
        ("/poll", avro_poll(media, startFrom=b"\x01" * 21), "invalid_message_id"),
        ("/poll", avro_poll(media, transaction=b"abc"), "invalid_transaction"),
    ):
        refused(topic.post(path, body, media), code=code)


def test_of_very_many_wrong_values_none_is_named(topic: Topic) -> None:
    """pydantic would make a dict of each of them, in one go."""
    for wrong, said in ((1_000, "changes.0: Input should be a valid string"), (1_001, "1001 of its values are wrong")):
        problem = refused(send(topic, "POST", "/v1/transactions/5/commit", as_json({"changes": [1] * wrong})))
        assert said in problem["detail"]
        assert len(problem["detail"]) < 500
