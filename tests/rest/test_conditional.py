"""Conditional publish over HTTP: each expectation, what a mismatch says, and that a repeat is no mismatch."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from tests.patience import PATIENCE
from tests.rest.talk import Topic, assert_problem, avro_publish, receipts
from tests.support import RunningService

NEVER = "\x00" * 20
"""The last message id of a topic that has none."""


@pytest.fixture
def topic(running: RunningService) -> Topic:
    return Topic(running.url, **{"check.expected.offsets": "true"})


def stored(answer: requests.Response) -> list[int]:
    """The offsets of a publish that must succeed."""
    assert answer.status_code == 200, answer.text
    return [each["offset"] for each in receipts(answer)]


def mismatch(answer: requests.Response) -> tuple[Any, ...]:
    """Condition, expected, actual, key of a refusal; None where it says nothing."""
    problem = assert_problem(answer, 412, "offset_mismatch")
    assert problem["topic"] == "default/t"
    return tuple(problem.get(name) for name in ("condition", "expected", "actual", "key"))


def test_a_publish_gets_the_offset_that_it_expects_or_is_not_stored(topic: Topic) -> None:
    assert stored(topic.publish("a", "b", expectedOffset=0)) == [0, 1]
    assert mismatch(topic.publish("c", "d", expectedOffset=1)) == ("offset", 1, 2, None)
    assert mismatch(topic.publish("c", "d", expectedOffset=3)) == ("offset", 3, 2, None)
    assert stored(topic.publish("c", expectedOffset=2)) == [2]
    assert topic.payloads() == ["a", "b", "c"]


def test_a_publish_stands_behind_the_message_that_it_expects_or_is_not_stored(topic: Topic) -> None:
    assert stored(topic.publish("a", expectedLastMessageId=NEVER)) == [0]
    last = topic.read()[-1]["id"]
    as_hex = last.encode("latin-1").hex()
    assert mismatch(topic.publish("b", expectedLastMessageId=NEVER)) == ("last_message_id", None, as_hex, None)
    assert stored(topic.publish("b", expectedLastMessageId=as_hex)) == [1]
    now = topic.read()[-1]["id"].encode("latin-1").hex()
    assert mismatch(topic.publish("c", expectedLastMessageId=last)) == ("last_message_id", as_hex, now, None)
    assert topic.payloads() == ["a", "b"]


def test_the_keys_of_a_publish_are_where_it_expects_them_or_it_is_not_stored(topic: Topic) -> None:
    assert stored(topic.publish("a", keys=["k"], expectedKeyOffsets={"k": None, "l": None})) == [0]
    assert mismatch(topic.publish("b", expectedKeyOffsets={"k": None})) == ("key_offset", None, 0, "k")
    assert mismatch(topic.publish("b", expectedKeyOffsets={"k": 0, "l": 0})) == ("key_offset", 0, None, "l")
    assert stored(topic.publish("b", keys=["\xff"], expectedKeyOffsets={"k": 0})) == [1]
    assert stored(topic.publish("c", expectedKeyOffsets={"\xff": {"long": 1}})) == [2]
    assert topic.payloads() == ["a", "b", "c"]


def test_the_first_expectation_that_does_not_hold_is_told(topic: Topic) -> None:
    topic.publish("a", keys=["k"])
    wrong: dict[str, Any] = {"expectedOffset": 0, "expectedLastMessageId": NEVER, "expectedKeyOffsets": {"k": None}}
    assert mismatch(topic.publish("b", **wrong))[0] == "offset"
    wrong["expectedOffset"] = 1
    assert mismatch(topic.publish("b", **wrong))[0] == "last_message_id"
    wrong["expectedLastMessageId"] = topic.read()[-1]["id"]
    assert mismatch(topic.publish("b", **wrong))[0] == "key_offset"
    assert stored(topic.publish("b", **{**wrong, "expectedKeyOffsets": {"k": 0}})) == [1]


@pytest.mark.parametrize("media", [ONCELOG_AVRO, JSON])
def test_expectations_mean_the_same_in_both_media_types(topic: Topic, media: str) -> None:
    expectations = {"expectedOffset": 0, "expectedLastMessageId": bytes(20), "expectedKeyOffsets": {"\xff": None}}
    body = avro_publish(b"a", media=media, **expectations)
    assert topic.post("/publish", body, media).status_code == 200
    assert mismatch(topic.post("/publish", body, media)) == ("offset", 0, 1, None)


def test_a_repeat_of_what_was_stored_is_a_duplicate_and_no_mismatch(topic: Topic) -> None:
    fields: dict[str, Any] = {"producer": "p", "expectedKeyOffsets": {"k": None}, "keys": ["k", None]}
    first = topic.publish("a", "b", sequenceIds=[0, 1], expectedOffset=0, expectedLastMessageId=NEVER, **fields)
    again = topic.publish("a", "b", sequenceIds=[0, 1], expectedOffset=0, expectedLastMessageId=NEVER, **fields)
    assert [each["status"] for each in receipts(again)] == ["duplicate"] * 2
    assert stored(again) == stored(first) == [0, 1]
    half = topic.publish("b", "c", producer="p", sequenceIds=[1, 2], expectedOffset=1)
    assert [(each["status"], each["offset"]) for each in receipts(half)] == [("duplicate", 1), ("stored", 2)]
    assert topic.payloads() == ["a", "b", "c"]


def test_tms_bodies_carry_no_expectation(topic: Topic) -> None:
    assert topic.post("/publish", avro_publish(b"a"), AVRO).status_code == 200


def test_a_key_whose_newest_message_is_undecided_is_named_with_its_transaction(topic: Topic) -> None:
    pointer = topic.session.post(topic.base + "/v1/transactions", timeout=PATIENCE).json()["writePointer"]
    topic.publish_under(pointer, "a", keys=["k"])
    problem = assert_problem(topic.publish("b", expectedKeyOffsets={"k": 0}), 409, "key_in_transaction")
    assert (problem["key"], problem["write_pointer"]) == ("k", pointer)
    topic.session.post(f"{topic.base}/v1/transactions/{pointer}/commit", timeout=PATIENCE)
    assert stored(topic.publish("b", expectedKeyOffsets={"k": 0})) == [1]


def test_a_topic_checks_expectations_when_it_or_the_service_says_so(topic: Topic) -> None:
    assert topic.request("PUT", "/properties", json={}).status_code == 200
    for fields in ({"expectedOffset": 0}, {"expectedLastMessageId": NEVER}, {"expectedKeyOffsets": {}}):
        assert_problem(topic.publish("a", **fields), 409, "expectations_not_checked")
    assert topic.payloads() == []
    topic.publish("a", keys=["k"])
    assert topic.request("PUT", "/properties", json={"check.expected.offsets": "true"}).status_code == 200
    assert mismatch(topic.publish("b", expectedKeyOffsets={"k": None})) == ("key_offset", None, 0, "k")
    assert topic.request("GET", "").json()["properties"]["check.expected.offsets"] == "true"
