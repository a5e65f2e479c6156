"""CONTRACT §6: a conditional publish is stored only if what it expects holds, and every refusal is final."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from oncelog_service.storage.port import Table
from tests.rest.talk import TIMEOUT, Topic, assert_problem, hex_id, receipts
from tests.world.house import House, told

NO_MESSAGE = "\0" * 20
SOME = "\1" * 20
CHECKED = {"check.expected.offsets": "true"}
EACH: list[dict[str, Any]] = [
    {"expectedOffset": 0},
    {"expectedLastMessageId": NO_MESSAGE},
    {"expectedKeyOffsets": {"k": None}},
]
"""What holds on an empty topic."""
ALL: dict[str, Any] = EACH[0] | EACH[1] | EACH[2]


@pytest.fixture
def topic(house: House) -> Topic:
    """One that checks expectations."""
    return house.make(**CHECKED)


def put(topic: Topic, key: str, payload: str = "x", **fields: Any) -> int:
    """Publish one message with a key, which must be stored; its offset."""
    (receipt,) = receipts(topic.publish(payload, keys=[key], **fields))
    assert receipt["status"] == "stored"
    offset: int = receipt["offset"]
    return offset


def newest(topic: Topic, **offsets: int | None) -> None:
    """These are the offsets of the newest messages with these keys."""
    for key, offset in offsets.items():
        refused(topic.publish("no", expectedKeyOffsets={key: 99}), "key_offset", 99, offset, key)


def refused(answer: requests.Response, condition: str, expected: Any, actual: Any, key: str | None = None) -> None:
    """It was refused for good, by this condition."""
    problem = assert_problem(answer, 412, "offset_mismatch", definite=True)
    found = [problem.get(name) for name in ("condition", "expected", "actual", "key", "topic")]
    assert found == [condition, expected, actual, key, "default/t"]


# --- each condition; how they are judged is in tests/service/test_conditions.py


def test_what_is_expected_is_that_of_the_first_message_and_a_refusal_burns_nothing(topic: Topic) -> None:
    refused(topic.publish("no", expectedLastMessageId=SOME), "last_message_id", hex_id(SOME), None)
    refused(topic.publish("no", keys=["k"], expectedOffset=9, producer="p", sequenceIds=[5]), "offset", 9, 0)
    assert topic.request("GET", "/producers/p").status_code == 404
    assert [each["offset"] for each in receipts(topic.publish("a", "b", keys=["k", "k"], **ALL))] == [0, 1]
    last = topic.read()[-1]["id"]
    refused(topic.publish("no", **ALL), "offset", 0, 2)
    refused(topic.publish("no", **{**ALL, "expectedOffset": 2}), "last_message_id", None, hex_id(last))
    ahead = {"expectedOffset": 2, "expectedLastMessageId": last}
    refused(topic.publish("no", **ahead, expectedKeyOffsets={"k": None}), "key_offset", None, 1, "k")
    refused(topic.publish("no", expectedKeyOffsets={"new": {"long": 0}}), "key_offset", 0, None, "new")
    assert topic.publish("c", **ahead, expectedKeyOffsets={"k": 1, "new": None}).status_code == 200, "it has neither key itself"
    assert told(topic.send("p", 0)) == "s"
    assert topic.payloads() == ["a", "b", "c", "m0"]


def test_a_key_is_bytes_and_any_key_will_do(topic: Topic) -> None:
    for key in ("", "\0", "\xff\x80", "k" * 10_000):
        offset = put(topic, key, expectedKeyOffsets={key: None})
        refused(topic.publish("no", keys=[key], expectedKeyOffsets={key: None}), "key_offset", None, offset, key[:249])
        put(topic, key, expectedKeyOffsets={key: offset})


# --- switched on and off


def test_where_expectations_are_not_checked_a_publish_that_carries_one_is_refused(house: House) -> None:
    house.restart(check_expected_offsets=True)
    assert house.topic.publish("a", expectedOffset=0).status_code == 200, "the setting holds where a topic does not say"
    off = house.make("off", **{"check.expected.offsets": "false"})
    for fields in (*EACH, {"expectedKeyOffsets": {}}):
        assert_problem(off.publish("no", **fields), 409, "expectations_not_checked")
    assert off.payloads() == []
    off.request("PUT", "/properties", json={})
    assert off.publish("a", **ALL).status_code == 200


@pytest.mark.parametrize("how", ["as it runs", "over a restart"])
def test_switched_on_later_it_knows_the_history_of_the_topic(house: House, how: str) -> None:
    topic = house.topic
    topic.publish("a", "b", keys=["k", "l"])
    for end in ("commit", "abort"):
        pointer = house.start()
        topic.store_under(pointer, "c", "d", keys=["k", "m"])
        topic.publish_under(pointer)
        house.end(pointer, end)
    if how == "as it runs":
        topic.request("PUT", "/properties", json=CHECKED)
    else:
        house.restart(check_expected_offsets=True)
    newest(topic, k=2, l=1, m=3)
    assert topic.publish("yes", expectedOffset=6, expectedKeyOffsets={"k": 2, "l": 1, "m": 3, "n": None}).status_code == 200


def test_switching_while_others_publish_loses_and_doubles_nothing(house: House) -> None:
    topic, stop = house.topic, threading.Event()

    def produce(number: int) -> int:
        mine, at = house.aside(), 0
        while not stop.is_set() or not at:
            answer = mine.publish(f"{number}:{at}", producer=f"p{number}", sequenceIds=[at], keys=[f"k{number}"])
            at += answer.status_code == 200
            assert answer.status_code == 200 or answer.json()["definite"], answer.text
        return at

    with ThreadPoolExecutor(4) as pool:
        producing = [pool.submit(produce, number) for number in range(4)]
        for switch in range(10):
            assert topic.request("PUT", "/properties", json=CHECKED if switch % 2 else {}).status_code == 200
        stop.set()
        counts = [each.result(TIMEOUT) for each in producing]
    found = topic.payloads()
    for number, count in enumerate(counts):
        assert [each for each in found if each.startswith(f"{number}:")] == [f"{number}:{at}" for at in range(count)]
    expected = {f"k{number}": found.index(f"{number}:{count - 1}") for number, count in enumerate(counts)}
    assert topic.publish("last", expectedOffset=len(found), expectedKeyOffsets=expected).status_code == 200


# --- what outlives what


def test_a_topic_created_anew_knows_nothing_of_the_keys_before(house: House, topic: Topic) -> None:
    put(topic, "k")
    house.service.on_loop(lambda service: service.opening.topics.logs.opened["default", "t"].snapshots.take())  # type: ignore[attr-defined]
    house.again(**CHECKED)
    put(topic, "k", **ALL)
    house.retain()
    assert house.rows(Table.KEY_SNAPSHOT) == (0,), "the older generation's are gone"


# --- named producers


def test_what_is_left_of_a_partly_stored_publish_must_follow_on_the_rest_of_it(topic: Topic) -> None:
    def publish(*keys: str, **expectations: Any) -> requests.Response:
        ids = list(range(len(keys)))
        return topic.publish(*map(str, ids), producer="p", sequenceIds=ids, keys=list(keys), **expectations)

    publish("k", "l", expectedOffset=0)
    assert told(receipts(publish("k", "l", "m", **{**ALL, "expectedKeyOffsets": {"k": None, "m": None}}))) == "dds"
    put(topic, "l")
    third, last = (hex_id(topic.read()[at]["id"]) for at in (2, 3))
    refused(publish("k", "l", "m", "n", expectedOffset=0), "offset", 3, 4)
    refused(publish("k", "l", "m", "n", expectedLastMessageId=NO_MESSAGE), "last_message_id", third, last)
    refused(publish("k", "l", "m", "n", expectedKeyOffsets={"l": None}), "key_offset", 1, 3, "l")
    assert told(receipts(publish("k", "l", "m", "n", expectedKeyOffsets={"k": None, "m": 7, "n": None}))) == "ddds"
    assert topic.payloads() == ["0", "1", "2", "x", "3"]


# --- transactions


def test_a_key_in_somebody_elses_undecided_transaction_is_no_mismatch_but_not_yet_known(house: House, topic: Topic) -> None:
    put(topic, "k")
    other = house.start()
    begun = house.client.start_transaction("long")
    pointer = begun.write_pointer
    topic.publish_under(pointer, "a", keys=["k"])

    def is_held(**fields: Any) -> None:
        for expected in (0, 1, None):
            answer = topic.publish("no", keys=["k"], expectedKeyOffsets={"k": expected}, **fields)
            problem = assert_problem(answer, 409, "key_in_transaction", definite=True)
            assert (problem["key"], problem["write_pointer"]) == ("k", pointer)

    is_held(transactionWritePointer=other)
    house.crash()
    is_held()
    assert put(topic, "k", transactionWritePointer=pointer, expectedKeyOffsets={"k": 1}) == 2, "its own"
    later = house.client.checkpoint_transaction(pointer).write_pointer
    assert put(topic, "k", transactionWritePointer=later, expectedKeyOffsets={"k": 2}) == 3, "from before its checkpoint"
    refused(topic.publish("no", transactionWritePointer=later, expectedKeyOffsets={"k": 2}), "key_offset", 2, 3, "k")
    house.end(pointer, "commit")
    assert put(topic, "k", expectedKeyOffsets={"k": 3}) == 4, "as soon as it is decided"
    topic.publish_under(other, "a", keys=["k"])
    assert put(topic, "k") == 6
    assert put(topic, "k", expectedKeyOffsets={"k": 6}) == 7, "a newer plain message is nobody's"
