"""Whatever a client can get wrong is a 4xx problem that is definite, and stores nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from oncelog.errors import NotFound
from oncelog.wire.avro_parts import encode_long
from oncelog.wire.codec import encode, encode_commit_request
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from oncelog.wire.requests import CommitRequest, Part, PublishRequest
from oncelog_service.rest.routes import Route
from oncelog_service.rest.table import ROUTES
from tests.rest.talk import ANY, MEDIA, TIMEOUT, Topic, assert_problem, avro_poll, avro_publish
from tests.support import RunningService

WITH_A_BODY = [route for route in ROUTES if route.request]
OF_MESSAGES = ("/publish", "/poll")
TAKING_MESSAGES = ("/publish", "/store", "/rollback", "/poll")


@pytest.fixture(autouse=True)
def nothing_is_stored(topic: Topic) -> Iterator[None]:
    before = topic.stats()["upcomingOffset"]
    yield
    assert topic.stats()["upcomingOffset"] == before


def address(route: Route, **parts: str) -> str:
    return route.path.format(**{**ANY, "topic": "refusals", **parts})


def named(route: Route) -> str:
    return f"{route.method} {route.path}"


def send(topic: Topic, method: str, path: str, body: bytes = b"", media: str | None = JSON) -> Any:
    headers = {} if media is None else {"content-type": media}
    return topic.session.request(method, topic.base + path, data=body, headers=headers, timeout=TIMEOUT)


# --- addresses and methods ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/namespaces/default/topics/refusals/stores", "/v1/namespaces/", "/v2/namespaces", "/%00"]
)
def test_an_unknown_address_is_not_found(topic: Topic, path: str) -> None:
    assert_problem(send(topic, "GET", path), 404, "not_found")


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES} | {"/openapi.json", "/docs"}))
def test_a_method_that_an_address_does_not_take_is_refused(topic: Topic, path: str) -> None:
    taken = {route.method for route in ROUTES if route.path == path}
    full = path.format(**{**ANY, "topic": "refusals"})
    for method in {"PUT", "POST", "DELETE", "PATCH", "OPTIONS"} - taken:
        assert_problem(send(topic, method, full), 405, "method_not_allowed")


@pytest.mark.parametrize("route", [route for route in ROUTES if "{topic}" in route.path], ids=named)
@pytest.mark.parametrize("name", ["a%20b", "caf%C3%A9", "a:b", ".", "..", "x" * 250, "%ff", "a%00", "a%0A", "%E2%80%AE"])
def test_a_bad_topic_name_is_refused_on_every_address(topic: Topic, route: Route, name: str) -> None:
    path = address(route, topic="NAME").replace("NAME", name.replace(".", "%2E"))
    assert_problem(send(topic, route.method, path, b"{}" if route.method in ("PUT", "POST") else b""), 400, "invalid_request")


@pytest.mark.parametrize("route", [route for route in ROUTES if "{namespace}" in route.path], ids=named)
@pytest.mark.parametrize("namespace", ["a-b", "a.b", "x" * 250, "%C3%A9", "a%0A"])
def test_a_bad_namespace_is_refused_on_every_address(topic: Topic, route: Route, namespace: str) -> None:
    path = address(route, namespace=namespace)
    assert_problem(send(topic, route.method, path, b"{}" if route.method in ("PUT", "POST") else b""), 400, "invalid_request")


@pytest.mark.parametrize(
    "route", [r for r in ROUTES if "{topic}" in r.path and (r.method, r.path[-7:]) != ("PUT", "{topic}")], ids=named
)
def test_a_topic_that_does_not_exist_is_not_found_on_every_address(topic: Topic, route: Route) -> None:
    by_end = dict.fromkeys(("publish", "{chunk}"), b'{"messages":["a"]}') | {"producers": b'{"nonce":"n"}'}
    by_end |= {"subscriptions": b'{"name":"s","nonce":"n"}', "seek": b'{"to":{"offset":0},"nonce":"n"}'}
    by_end |= dict.fromkeys(("receive", "ack"), b'{"epoch":1}') | {"{writePointer}": b'{"committed":true}'}
    body = by_end.get(route.path.rsplit("/", 1)[-1], b"{}")
    path = address(route, topic="missing") + ("?sequenceId=1" if route.path.endswith("/why") else "")
    assert_problem(send(topic, route.method, path, body if route.request else b""), 404, "topic_not_found")


# --- bodies -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", WITH_A_BODY, ids=named)
@pytest.mark.parametrize(
    "media", ["text/plain", "application/xml", "application/avro", "avro/json", "multipart/form-data", "\xff"]
)
def test_a_media_type_that_is_not_read_is_refused(topic: Topic, route: Route, media: str) -> None:
    assert_problem(send(topic, route.method, address(route), b"{}", media), 415, "unsupported_media_type")


@pytest.mark.parametrize("path", TAKING_MESSAGES)
def test_messages_need_a_media_type(topic: Topic, path: str) -> None:
    assert_problem(topic.request("POST", path, data=b"{}"), 415, "unsupported_media_type")


@pytest.mark.parametrize("route", WITH_A_BODY, ids=named)
@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"nul",
        b'{"a":1}{}',
        b"[" * 90_000,
        b'{"a":' * 15_000,
        b'{"producer": ' + b"[" * 400 + b"]" * 400 + b"}",
        b'{"nonce": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"\xff": 1}',
        b"\xff\xfe\xfd",
        b'"\\ud800"',
        b'{"messages": ["\xed\xa0\x80"]}',
        b'{"\\ud800": "\\udfff"}',
        b'{"ttl": NaN}',
        b'{"limit": Infinity}',
        b'{"limit": -Infinity}',
        b'{"limit": 1e999}',
        b'{"limit": ' + b"9" * 50_000 + b"}",
        b"[]",
        b"1",
        b"null",
        b'"text"',
        b'{"unknown": null}',
    ],
    ids=lambda body: repr(body[:20]),
)
def test_json_that_is_not_what_is_asked_for_is_refused(topic: Topic, route: Route, body: bytes) -> None:
    assert_problem(send(topic, route.method, address(route, topic="refusals"), body), 400, "invalid_request")


PUBLISH = avro_publish(b"payload", b"another", media=AVRO)
PUBLISH_FULL = avro_publish(
    b"payload", media=ONCELOG_AVRO, producer="p", sequenceIds=[5], keys=[b"k"], properties=[{"a": "b"}], ttls=[9]
)
COMMIT_FULL = encode_commit_request(
    CommitRequest("g", [Part("default", "refusals", PublishRequest([b"payload"], keys=[b"k"]))], ["b"], "p", 5, "i", "c")
)
POLL = avro_poll(AVRO, startFrom=bytes(20), limit=5)
POLL_FULL = avro_poll(ONCELOG_AVRO, startFrom=bytes(20), limit=5, wait=0)


@pytest.mark.parametrize(
    ("path", "media", "body"),
    [
        ("/publish", AVRO, PUBLISH),
        ("/publish", ONCELOG_AVRO, PUBLISH_FULL),
        ("/poll", AVRO, POLL),
        ("/poll", ONCELOG_AVRO, POLL_FULL),
    ],
    ids=["publish", "publish in full", "poll", "poll in full"],
)
def test_avro_cut_short_anywhere_is_refused(topic: Topic, path: str, media: str, body: bytes) -> None:
    for end in range(len(body)):
        assert_problem(topic.post(path, body[:end], media), 400, "invalid_request")


def test_a_commit_that_is_not_one_to_the_last_byte_is_refused(topic: Topic) -> None:
    for body in [COMMIT_FULL[:end] for end in range(len(COMMIT_FULL))] + [COMMIT_FULL + b"\x00", COMMIT_FULL + b"{}"]:
        assert_problem(send(topic, "POST", "/v1/journal/a/commit", body, ONCELOG_AVRO), 400, "invalid_request")


@pytest.mark.parametrize("media", [AVRO, ONCELOG_AVRO])
@pytest.mark.parametrize("path", OF_MESSAGES)
@pytest.mark.parametrize("behind", [b"\x00", b"\xff" * 100, b"{}"])
def test_bytes_behind_the_avro_record_are_refused(topic: Topic, path: str, media: str, behind: bytes) -> None:
    body = avro_publish(b"x", media=media) if path == "/publish" else avro_poll(media)
    problem = assert_problem(topic.post(path, body + behind, media), 400, "invalid_request")
    assert f"{len(behind)} bytes follow" in problem["detail"]


NO_POINTER = encode_long(1)
ABSURD = [2**62, 2**63 - 1, -(2**62), -(2**63), 2**31, -1]


@pytest.mark.parametrize("count", ABSURD)
def test_an_absurd_array_count_is_refused_at_once(topic: Topic, count: int) -> None:
    block = encode_long(count) + (encode_long(8) if count < 0 else b"")
    assert_problem(topic.post("/publish", NO_POINTER + block, AVRO), 400, "invalid_request")
    assert_problem(topic.post("/publish", NO_POINTER + block + encode_long(1) + b"a", AVRO), 400, "invalid_request")
    columns = b"\x00\x00\x00" + b"\x00" + b"\x02" + block + b"\x00" * 20  # keys: nulls of one byte each, of which 20 are there
    assert_problem(topic.post("/publish", columns, ONCELOG_AVRO), 400, "invalid_request")
    for before in (b"\x02\x02g" + bytes(4), b"\x02\x02g" + bytes(5)):  # branches, and parts, of which one byte is there
        assert_problem(
            send(topic, "POST", "/v1/journal/a/commit", before + block + b"\x02", ONCELOG_AVRO), 400, "invalid_request"
        )


@pytest.mark.parametrize("length", [2**62, 2**63 - 1, -1, -(2**63)])
def test_an_absurd_length_is_refused_at_once(topic: Topic, length: int) -> None:
    assert_problem(
        topic.post("/publish", NO_POINTER + encode_long(1) + encode_long(length) + b"abc\x00", AVRO), 400, "invalid_request"
    )
    assert_problem(topic.post("/poll", b"\x00" + encode_long(length) + bytes(30), AVRO), 400, "invalid_request")


@pytest.mark.parametrize("branch", [3, 17, 2**40])
def test_a_union_branch_that_does_not_exist_is_refused(topic: Topic, branch: int) -> None:
    assert_problem(topic.post("/publish", encode_long(branch) + b"\x02\x02a\x00", AVRO), 400, "invalid_request")
    assert_problem(topic.post("/poll", encode_long(branch) + b"\x01\x02\x02", AVRO), 400, "invalid_request")


def test_a_number_that_never_ends_is_refused(topic: Topic) -> None:
    assert_problem(topic.post("/publish", NO_POINTER + b"\xff" * 50_000, AVRO), 400, "invalid_request")


def test_text_that_is_not_utf8_is_refused(topic: Topic) -> None:
    good = avro_publish(b"x", media=ONCELOG_AVRO, producer="abcdef", sequenceIds=[0])
    assert_problem(topic.post("/publish", good.replace(b"abcdef", b"abc\xff\xfe\xfd"), ONCELOG_AVRO), 400, "invalid_request")


# --- publish ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sequence_id", [-1, 2**63, True, False, 1.0, "5", None, [1], {"long": "1"}, 10**30, {"int": 5}])
def test_a_sequence_id_that_is_none_is_refused(topic: Topic, sequence_id: Any) -> None:
    assert_problem(topic.publish("a", producer="p", sequenceIds=[sequence_id]), 400, "invalid_request")


@pytest.mark.parametrize("sequence_ids", [[1, 1], [2, 1], [0, 2, 1], [5, 5, 6]])
def test_sequence_ids_that_do_not_rise_are_refused(topic: Topic, sequence_ids: list[int]) -> None:
    problem = assert_problem(
        topic.publish(*"abc"[: len(sequence_ids)], producer="p", sequenceIds=sequence_ids), 400, "invalid_request"
    )
    assert "strictly increase" in problem["detail"]


@pytest.mark.parametrize(
    "columns",
    [
        {"sequenceIds": [0]},
        {"sequenceIds": [0, 1, 2]},
        {"sequenceIds": []},
        {"sequenceIds": [0, 1], "keys": ["k"]},
        {"sequenceIds": [0, 1], "keys": []},
        {"sequenceIds": [0, 1], "properties": [None, None, None]},
        {"sequenceIds": [0, 1], "ttls": [None]},
    ],
    ids=str,
)
def test_columns_of_another_length_than_messages_are_refused(topic: Topic, columns: dict[str, Any]) -> None:
    assert_problem(topic.publish("a", "b", producer="p", **columns), 400, "invalid_request")


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": None},
        {"messages": "abc"},
        {"messages": [1]},
        {"messages": ["\u0100"]},
        {"messages": [{"bytes": "a"}]},
        {"producer": "p"},
        {"sequenceIds": [1]},
        {"epoch": 1},
        {"producer": "", "sequenceIds": [1]},
        {"producer": "a b", "sequenceIds": [1]},
        {"producer": "caf\u00e9", "sequenceIds": [1]},
        {"producer": "x" * 250, "sequenceIds": [1]},
        {"producer": "p\n", "sequenceIds": [1]},
        {"producer": "p", "sequenceIds": [1], "epoch": 7},
        {"producer": "p", "sequenceIds": [1], "epoch": 0},
        {"producer": "p", "sequenceIds": [1], "epoch": -1},
        {"ttls": [0]},
        {"ttls": [-5]},
        {"ttls": ["9"]},
        {"properties": [{"a": 1}]},
        {"properties": ["a"]},
        {"properties": [{"a": "\ud800"}]},
        {"properties": [{"\ud800": "a"}]},
        {"keys": [5]},
    ],
    ids=ascii,
)
def test_a_publish_that_contradicts_itself_is_refused(topic: Topic, fields: dict[str, Any]) -> None:
    assert_problem(topic.request("POST", "/publish", json={"messages": ["a"], **fields}), 400, "invalid_request")


@pytest.mark.parametrize(
    "fields",
    [
        {"expectedOffset": 0},
        {"expectedLastMessageId": "x" * 20},
        {"expectedKeyOffsets": {"k": None}},
        {"expectedKeyOffsets": {}},
    ],
    ids=str,
)
def test_an_expectation_is_refused_where_nobody_checks_it_and_never_silently_accepted(
    topic: Topic, fields: dict[str, Any]
) -> None:
    before = topic.read()
    assert_problem(topic.publish("a", **fields), 409, "expectations_not_checked")
    record = {name: value.encode() if isinstance(value, str) else value for name, value in fields.items()}
    answer = topic.post("/publish", avro_publish(b"a", media=ONCELOG_AVRO, **record), ONCELOG_AVRO)
    assert_problem(answer, 409, "expectations_not_checked")
    assert topic.read() == before


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"expectedOffset": -1}, "invalid_request"),
        ({"expectedLastMessageId": "x" * 19}, "invalid_message_id"),
        ({"expectedLastMessageId": ""}, "invalid_message_id"),
        ({"expectedKeyOffsets": {"k": {"long": -1}}}, "invalid_request"),
        ({"expectedKeyOffsets": {"\u0100": None}}, "invalid_request"),
        ({"expectedKeyOffsets": {f"k{number}": None for number in range(101)}}, "request_too_large"),
    ],
    ids=["offset", "short id", "no id", "key's offset", "no key", "many keys"],
)
def test_what_can_be_no_expectation_is_refused(topic: Topic, fields: dict[str, Any], code: str) -> None:
    assert_problem(topic.publish("a", **fields), 413 if code == "request_too_large" else 400, code)


def test_expectations_go_with_the_publish_and_not_with_store(topic: Topic) -> None:
    assert_problem(topic.store(5, "a", expectedOffset=0), 400, "invalid_request")


def test_more_messages_than_a_request_may_hold_are_refused(topic: Topic) -> None:
    problem = assert_problem(topic.publish(*["a"] * 101), 413, "request_too_large")
    assert problem["limit"] == 100


# --- poll ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 10, 19, 21, 39, 41, 1000])
@pytest.mark.parametrize("media", MEDIA)
def test_a_message_id_of_another_size_is_refused(topic: Topic, size: int, media: str) -> None:
    body = json.dumps({"startFrom": "\x01" * size}).encode() if media == JSON else avro_poll(media, startFrom=b"\x01" * size)
    assert_problem(topic.post("/poll", body, media), 400, "invalid_message_id")


def test_a_text_form_that_is_not_hex_is_refused(topic: Topic) -> None:
    assert_problem(topic.poll(startFrom="g" * 40), 400, "invalid_message_id")
    assert_problem(topic.poll(startFrom="\xe9" * 40), 400, "invalid_message_id")


@pytest.mark.parametrize("limit", [0, -1, -(2**31)])
@pytest.mark.parametrize("media", MEDIA)
def test_a_limit_that_asks_for_nothing_is_refused(topic: Topic, limit: int, media: str) -> None:
    body = json.dumps({"limit": limit}).encode() if media == JSON else avro_poll(media, limit=limit)
    assert_problem(topic.post("/poll", body, media), 400, "invalid_request")


@pytest.mark.parametrize(
    "fields",
    [
        {"limit": True},
        {"limit": 1.0},
        {"limit": "5"},
        {"limit": 2**31},
        {"inclusive": 1},
        {"inclusive": "true"},
        {"inclusive": None},
        {"wait": -1},
        {"wait": 0.5},
        {"startFrom": -1},
        {"startFrom": 2**63 - 1},
        {"startFrom": 2**63},
        {"startFrom": True},
        {"startFrom": 1.5},
        {"startFrom": []},
        {"startOffset": -1},
        {"startOffset": True},
        {"startFrom": 5, "startOffset": 5},
    ],
    ids=str,
)
def test_a_poll_that_makes_no_sense_is_refused(topic: Topic, fields: dict[str, Any]) -> None:
    assert_problem(topic.poll(**fields), 400, "invalid_request")


@pytest.mark.parametrize("offset", [1, 5, 2**63 - 1])
def test_an_offset_beyond_the_end_is_refused_and_the_end_named(topic: Topic, offset: int) -> None:
    problem = assert_problem(topic.poll(startOffset=offset), 400, "offset_out_of_range")
    assert problem["upcoming"] == 0


# --- transactions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pointer", [0, -1, -(2**63)])
@pytest.mark.parametrize("media", MEDIA)
@pytest.mark.parametrize("path", ["/publish", "/store", "/rollback"])
def test_a_write_pointer_that_is_not_positive_is_refused(topic: Topic, path: str, media: str, pointer: int) -> None:
    """Negated, it turned visible elsewhere."""
    name, record = ("PublishResponse", ROLLBACK) if path == "/rollback" else ("PublishRequest", {"messages": [b"a"]})
    body = encode(name, media, {**record, "transactionWritePointer": pointer})
    assert_problem(topic.post(path, body, media), 400, "invalid_request")


@pytest.mark.parametrize("pointer", [True, 1.0, "5", [5], {"int": 5}, 2**63, "\x01"])
@pytest.mark.parametrize("path", ["/publish", "/store"])
def test_a_write_pointer_that_is_no_number_is_refused(topic: Topic, path: str, pointer: Any) -> None:
    body = {"transactionWritePointer": pointer, "messages": ["a"]}
    assert_problem(topic.request("POST", path, json=body), 400, "invalid_request")


@pytest.mark.parametrize("media", MEDIA)
def test_a_store_needs_a_write_pointer_and_messages(topic: Topic, media: str) -> None:
    for pointer, messages in ((None, [b"a"]), (time.time_ns(), []), (None, [])):
        body = encode("PublishRequest", media, {"transactionWritePointer": pointer, "messages": messages})
        assert_problem(topic.post("/store", body, media), 400, "invalid_request")


@pytest.mark.parametrize("media", MEDIA)
def test_write_pointers_that_nobody_handed_out_are_refused(topic: Topic, media: str) -> None:
    for path in ("/publish", "/store"):
        for pointer in (1, 5, time.time_ns() // 2, time.time_ns(), 2 * time.time_ns(), 2**63 - 1):
            body = encode("PublishRequest", media, {"transactionWritePointer": pointer, "messages": [b"a"]})
            problem = assert_problem(topic.post(path, body, media), 409, "unknown_write_pointer")
            assert problem["write_pointer"] == pointer


@pytest.mark.parametrize("transaction", ["", "\x00", "\x0a", "\x0a\x00", "abc", "\x00" * 90])
@pytest.mark.parametrize("media", MEDIA)
def test_bytes_that_are_no_transaction_are_refused(topic: Topic, media: str, transaction: str) -> None:
    fields = {"transaction": transaction.encode("latin-1")}
    body = json.dumps({"transaction": transaction}).encode() if media == JSON else avro_poll(media, **fields)
    assert_problem(topic.post("/poll", body, media), 400, "invalid_transaction")


ROLLBACK = {
    "transactionWritePointer": 1_790_000_000_000_000_000,
    "startTimestamp": 1_790_000_000_000,
    "startSequenceId": 0,
    "endTimestamp": 1_790_000_000_000,
    "endSequenceId": 1,
    "receipts": [],
}


@pytest.mark.parametrize(
    "fields",
    [
        {"transactionWritePointer": None},
        {"startTimestamp": -1},
        {"startTimestamp": 1_790_000_000_001},
        {"endTimestamp": -(2**63)},
        {"startSequenceId": -1},
        {"startSequenceId": 2},
        {"startSequenceId": 65_536, "endSequenceId": 65_537},
        {"endSequenceId": 2**31 - 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("media", MEDIA)
def test_a_rollback_of_what_cannot_be_a_range_is_refused(topic: Topic, media: str, fields: dict[str, Any]) -> None:
    body = encode("PublishResponse", media, {**ROLLBACK, **fields})
    assert_problem(topic.post("/rollback", body, media), 400, "invalid_request")


@pytest.mark.parametrize("media", MEDIA)
def test_a_rollback_of_what_was_never_published_is_refused(topic: Topic, media: str) -> None:
    assert_problem(topic.post("/rollback", encode("PublishResponse", media, ROLLBACK), media), 409, "rollback_refused")


@pytest.mark.parametrize("media", [AVRO, ONCELOG_AVRO])
def test_a_rollback_cut_short_or_with_bytes_behind_it_is_refused(topic: Topic, media: str) -> None:
    body = encode("PublishResponse", media, ROLLBACK)
    for end in range(len(body)):
        assert_problem(topic.post("/rollback", body[:end], media), 400, "invalid_request")
    assert_problem(topic.post("/rollback", body + b"\x00", media), 400, "invalid_request")


# --- topics, namespaces, producers --------------------------------------------------------------------------------------

BAD_PROPERTIES = [
    {"ttl": 5.0},
    {"ttl": 1e9},
    {"ttl": 0},
    {"ttl": -1},
    {"ttl": 10**400},
    {"ttl": True},
    {"ttl": [5]},
    {"ttl": None},
    {"ttl": "0"},
    {"ttl": "-1"},
    {"ttl": "1.5"},
    {"ttl": "abc"},
    {"ttl": ""},
    {"ttl": "\u0661"},
    {"ttl": "9" * 20},
    {"deduplication": "yes"},
    {"deduplication": 1},
    {"deduplication": None},
    {"transactional": "yes"},
    {"transactional": True},
    {"transactional": None},
    {"transactional": ""},
    {"check.expected.offsets": "maybe"},
    {"generation": "7"},
    {"generation": 7},
    {"generation": True},
    {"tttl": "5"},
    {"": "x"},
]


@pytest.mark.parametrize("properties", BAD_PROPERTIES, ids=str)
def test_bad_properties_are_refused_and_change_nothing(topic: Topic, properties: dict[str, Any]) -> None:
    before = topic.request("GET", "").json()
    assert_problem(topic.request("PUT", "/properties", json=properties), 400, "invalid_request")
    assert topic.request("GET", "").json() == before
    other = Topic(topic.base, "never", create=False)
    assert_problem(other.request("PUT", "", json=properties), 400, "invalid_request")
    assert_problem(other.request("GET", ""), 404, "topic_not_found")


def test_properties_are_taken_as_json_has_them_and_answered_as_text(topic: Topic) -> None:
    given = {"ttl": 3600, "deduplication": False, "check.expected.offsets": True, "generation": 1}
    assert topic.request("PUT", "/properties", json=given).status_code == 200
    answered = {"ttl": "3600", "deduplication": "false", "check.expected.offsets": "true", "generation": "1"}
    assert topic.request("GET", "").json()["properties"] == answered
    assert topic.request("PUT", "/properties", json=answered).status_code == 200, "what was answered may be sent back"
    other = Topic(topic.base, "numbered", create=False)
    assert other.request("PUT", "", json={"ttl": 86400}).status_code == 200
    assert other.request("GET", "").json()["properties"]["ttl"] == "86400"


def test_a_generation_cannot_be_chosen(topic: Topic) -> None:
    assert_problem(topic.request("PUT", "", json={"generation": "1"}), 400, "invalid_request")
    assert topic.request("PUT", "/properties", json={"generation": "1"}).status_code == 200, "the present one may be sent back"


@pytest.mark.parametrize("policies", [{"deduplication": "true"}, {"deduplication": 1}, {"ttl": None}, []], ids=str)
def test_bad_policies_are_refused_and_change_nothing(topic: Topic, policies: Any) -> None:
    path = topic.base + "/v1/namespaces/quiet/policies"
    assert_problem(topic.session.put(path, json=policies, timeout=TIMEOUT), 400, "invalid_request")
    assert topic.session.get(path, timeout=TIMEOUT).json() == {"deduplication": None}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "p"},
        {"nonce": ""},
        {"nonce": "x" * 101},
        {"nonce": 5},
        {"nonce": None},
        {"nonce": "n", "name": ""},
        {"nonce": "n", "name": "a b"},
        {"nonce": "n", "name": "x" * 250},
        {"nonce": "n", "name": 5},
        {"nonce": "n", "name": "\ud800"},
        {"nonce": "\ud800", "name": "p"},
        {"nonce": "n", "gaps": "maybe"},
        {"nonce": "n", "gaps": None},
        {"nonce": "n", "epoch": 5},
        {"nonce": "n", "\ud800": 5},
    ],
    ids=ascii,
)
def test_a_producer_is_not_opened_by_a_bad_request(topic: Topic, body: dict[str, Any]) -> None:
    assert_problem(topic.request("POST", "/producers", json=body), 400, "invalid_request")
    assert topic.request("GET", "/producers").json() == []


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=-1", "limit=2001", "limit=x", "limit=", "limit=1.5", "limit=%D9%A1", "limit=" + "9" * 30]
)
def test_a_bad_limit_of_producers_is_refused(topic: Topic, query: str) -> None:
    assert_problem(topic.request("GET", "/producers?" + query), 400, "invalid_request")


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?sequenceId=",
        "?sequenceId=-1",
        "?sequenceId=x",
        "?sequenceId=9223372036854775808",
        "?sequenceId=1e3",
        "?sequenceid=1",
    ],
)
def test_why_needs_a_sequence_id(topic: Topic, query: str) -> None:
    assert_problem(topic.request("GET", "/producers/p/why" + query), 400, "invalid_request")


def test_a_query_that_cannot_be_read_is_refused(topic: Topic) -> None:
    assert_problem(topic.request("GET", "/producers?" + "&".join(f"a{n}=1" for n in range(30))), 400, "invalid_request")


@pytest.mark.parametrize("name", ["p", "a%20b", "%ff", "x" * 300, "%F0%9F%98%80"])
def test_a_producer_that_nobody_knows_is_not_found(topic: Topic, name: str) -> None:
    assert_problem(topic.request("GET", f"/producers/{name}"), 404, "producer_not_found")
    assert_problem(topic.request("DELETE", f"/producers/{name}"), 404, "producer_not_found")


def test_every_error_of_an_address_is_one_that_it_documents() -> None:
    for route in ROUTES:
        assert all(error.status is not None for error in route.errors), named(route)
        if "{topic}" in route.path and route.method != "PUT":
            assert any(issubclass(error, NotFound) for error in route.errors), named(route)


def test_the_service_is_well_after_all_of_this(shared: RunningService, topic: Topic) -> None:
    assert topic.session.get(shared.url + "/healthz", timeout=TIMEOUT).status_code == 200
