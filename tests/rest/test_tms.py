"""The examples of the TMS page: its addresses, its status codes, its schemas byte for byte, and what they mean in JSON."""

from __future__ import annotations

from dataclasses import replace

from oncelog import Client
from oncelog.wire.avro_parts import encode_bytes, encode_long
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from oncelog.wire.transaction import Transaction
from tests.rest.talk import TIMEOUT, Topic, assert_problem
from tests.world.clock import ManualClock
from tests.world.service import RunningService, running_service

NOW = 1_000_000
"""The time of the clock here, ms; the first write pointer is a million times that."""


def published(pointer: int, first: int, last: int) -> bytes:
    """A PublishResponse of rows in the millisecond NOW."""
    at = encode_long(NOW)
    return b"\x00" + encode_long(pointer) + at + encode_long(first) + at + encode_long(last)


def message(row: int, payload: bytes, payload_id: bytes = bytes(10)) -> bytes:
    return encode_bytes(NOW.to_bytes(8, "big") + row.to_bytes(2, "big") + payload_id) + encode_bytes(payload)


def in_group(row: int, place: int, payload: bytes) -> bytes:
    return message(row, payload, NOW.to_bytes(8, "big") + place.to_bytes(2, "big"))


def poll(topic: Topic, transaction: Transaction | None = None) -> bytes:
    seen_by = b"\x02" if transaction is None else b"\x00" + encode_bytes(transaction.to_bytes())
    answer = topic.post("/poll", b"\x04" + b"\x01" + b"\x02" + seen_by, AVRO)
    assert (answer.status_code, answer.headers["content-type"]) == (200, AVRO), answer.text
    return answer.content


def array(*items: bytes) -> bytes:
    return (encode_long(len(items)) if items else b"") + b"".join(items) + b"\x00"


def test_a_topic_lives_as_the_tms_page_says(running: RunningService) -> None:
    topic = Topic(running.url, "life", create=False)
    assert_problem(topic.request("GET", ""), 404, "topic_not_found")
    assert topic.request("PUT", "", json={"ttl": "86400"}).status_code == 200
    assert_problem(topic.request("PUT", "", json={"ttl": "86400"}), 409, "topic_exists")
    assert_problem(topic.request("PUT", "", json={"ttl": "never"}), 400, "invalid_request")
    assert topic.request("GET", "").json() == {"name": "life", "properties": {"ttl": "86400", "generation": "1"}}
    assert topic.request("PUT", "/properties", json={"ttl": "3600"}).status_code == 200
    assert topic.request("GET", "").json()["properties"]["ttl"] == "3600"
    assert topic.request("PUT", "/properties", json={}).status_code == 200, "replaces all"
    assert topic.request("GET", "").json()["properties"] == {"ttl": "604800", "generation": "1"}
    assert_problem(topic.request("PUT", "/properties", json={"ttl": "x"}), 400, "invalid_request")
    assert topic.request("DELETE", "").status_code == 200
    assert_problem(topic.request("DELETE", ""), 404, "topic_not_found")
    assert_problem(topic.request("PUT", "/properties", json={}), 404, "topic_not_found")
    assert_problem(topic.request("GET", ""), 404, "topic_not_found")
    assert topic.request("PUT", "").status_code == 200, "created without a body"
    assert topic.request("GET", "").json()["properties"] == {"ttl": "604800", "generation": "2"}


def test_topics_are_listed_by_namespace(running: RunningService) -> None:
    for name, namespace in [("b", "one"), ("a.b-c_D", "one"), ("x" * 249, "one"), ("b", "two")]:
        Topic(running.url, name, namespace)
    session = Topic(running.url, create=False).session
    of = f"{running.url}/v1/namespaces/%s/topics"
    assert session.get(of % "one", timeout=TIMEOUT).json() == ["a.b-c_D", "b", "x" * 249]
    assert session.get(of % "two", timeout=TIMEOUT).json() == ["b"]
    assert session.get(of % "three", timeout=TIMEOUT).json() == []
    assert session.get(f"{running.url}/v1/namespaces", timeout=TIMEOUT).json() == ["one", "two"]
    Topic(running.url, "b", "two").request("DELETE", "")
    assert session.get(of % "two", timeout=TIMEOUT).json() == []


def test_publish_and_poll_in_the_tms_form_byte_for_byte() -> None:
    with running_service(clock=ManualClock(NOW)) as service:
        topic = Topic(service.url)
        published = topic.post("/publish", b"\x02" + array(b"\x02a", b"\x04\x00b"), AVRO)
        assert (published.status_code, published.content) == (200, b""), "without a write pointer there is nothing to roll back"
        messages = [message(0, b"a"), message(1, b"\x00b")]
        assert poll(topic) == array(*messages)
        ids = [NOW.to_bytes(8, "big") + bytes([0, row]) + bytes(10) for row in (0, 1)]
        for behind, expected in zip(ids, (array(messages[1]), array()), strict=True):
            assert topic.post("/poll", b"\x00" + encode_bytes(behind) + b"\x00" + b"\x00\x02" + b"\x02", AVRO).content == expected


def test_a_transaction_in_the_tms_form_byte_for_byte() -> None:
    with running_service(clock=ManualClock(NOW)) as service:
        topic, client = Topic(service.url), Client(service.url)
        transaction = client.start_transaction()
        pointer = encode_long(transaction.write_pointer)
        first = topic.post("/publish", b"\x00" + pointer + array(b"\x02a", b"\x04bc"), AVRO)
        assert (first.status_code, first.headers["content-type"]) == (200, AVRO)
        assert first.content == published(transaction.write_pointer, 0, 1)
        for payloads in (array(b"\x02x"), array(b"\x02y", b"\x00")):
            stored = topic.post("/store", b"\x00" + pointer + payloads, AVRO)
            assert (stored.status_code, stored.content) == (200, b"")
        group = topic.post("/publish", b"\x00" + pointer + array(), AVRO)
        assert group.content == published(transaction.write_pointer, 2, 2), "the one row that makes them appear"
        one = message(0, b"a") + message(1, b"bc")
        many = in_group(2, 0, b"x") + in_group(2, 1, b"y") + in_group(2, 2, b"")
        assert poll(topic) == poll(topic, transaction) == encode_long(5) + one + many + b"\x00"
        assert poll(topic, client.start_transaction()) == array()
        rolled_back = topic.post("/rollback", first.content, AVRO)
        assert rolled_back.status_code == 200, rolled_back.text
        assert poll(topic, transaction) == encode_long(3) + many + b"\x00"
        client.commit_transaction(transaction.write_pointer)
        assert poll(topic, client.start_transaction()) == encode_long(3) + many + b"\x00"
        assert poll(topic) == encode_long(5) + one + many + b"\x00"


def test_a_transaction_of_a_hundred_thousand_pointers_is_taken(running: RunningService) -> None:
    topic, started = Topic(running.url), Client(running.url).start_transaction()
    topic.publish("plain")
    assert b"plain" in poll(topic, replace(started, invalids=range(1, 100_000)))


def test_what_is_published_in_one_form_is_read_in_every_other(running: RunningService) -> None:
    topic = Topic(running.url)
    payload = bytes(range(256))
    topic.post("/publish", b"\x02\x02" + encode_bytes(payload) + b"\x00", AVRO)
    topic.publish(payload.decode("latin-1"), keys=["k\xff"], properties=[{"a": "\u20ac"}], ttls=[50])
    in_json = topic.read()
    assert [message["payload"] for message in in_json] == [payload.decode("latin-1")] * 2
    assert in_json[0]["key"] is None
    assert (in_json[1]["key"], in_json[1]["properties"], in_json[1]["ttl"]) == (
        {"bytes": "k\xff"},
        {"map": {"a": "\u20ac"}},
        {"long": 50},
    )
    assert topic.post("/poll", b"\x04\x01\x02\x02", AVRO).content.count(payload) == 2
    full = topic.post("/poll", b"\x04\x00\x01\x02\x00\x02\x00\x00", ONCELOG_AVRO)
    assert full.headers["content-type"] == ONCELOG_AVRO
    assert full.content.count(payload) == 2


def test_the_media_type_may_carry_parameters_and_head_answers_as_get(running: RunningService) -> None:
    topic = Topic(running.url)
    assert topic.post("/publish", b'{"messages":["a"]}', JSON + "; charset=utf-8").status_code == 200
    assert topic.post("/poll", b"{}", "Application/JSON").json()[0]["payload"] == "a"
    of_head, of_get = (topic.request(method, "/stats") for method in ("HEAD", "GET"))
    assert (of_head.status_code, of_head.headers["content-length"]) == (200, of_get.headers["content-length"])
