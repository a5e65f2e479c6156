"""Subscriptions over HTTP: what is asked and answered, byte for byte, and what is refused with which code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from oncelog.wire.codec import decode_consume_response
from oncelog.wire.media import JSON, ONCELOG_AVRO
from tests.rest.talk import Topic, assert_problem, hex_id
from tests.support import RunningService


@pytest.fixture
def topic(running: RunningService) -> Topic:
    """With three messages."""
    topic = Topic(running.url)
    topic.publish("a", "b", "c")
    return topic


def post(topic: Topic, path: str = "", **body: Any) -> requests.Response:
    return topic.request("POST", "/subscriptions" + path, json=body)


def answered(response: requests.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


@pytest.fixture
def opened(topic: Topic) -> Iterator[Topic]:
    """With the subscription s, whose consumer has epoch 1."""
    answered(post(topic, name="s", nonce="n"))
    yield topic
    assert topic.verify()["ok"]


def test_an_open_says_where_the_subscription_stands(topic: Topic) -> None:
    stands = {"name": "s", "generation": 1, "epoch": 1, "cursor": 1, "lag": 2, "lost": 0}
    stands |= {"upcomingOffset": 3, "settledOffset": 3, "heldBy": None, "heldSinceMs": None}
    assert answered(post(topic, name="s", nonce="n", start={"offset": 1})) == stands
    assert answered(topic.request("GET", "/subscriptions/s")) == stands


def test_an_open_that_is_repeated_is_the_same_open(topic: Topic) -> None:
    assert [answered(post(topic, name="s", nonce=nonce))["epoch"] for nonce in ("n", "n", "m", "m", "n")] == [1, 1, 2, 2, 1]
    assert_problem(post(topic, "/s/receive", epoch=1), 403, "consumer_fenced")
    assert [each["payload"] for each in answered(post(topic, "/s/receive", epoch=2))] == ["a", "b", "c"]


@pytest.mark.parametrize("accept", [None, "*/*", JSON, ONCELOG_AVRO, f"text/html, {ONCELOG_AVRO};q=1"])
def test_messages_are_answered_as_a_poll_answers_them(opened: Topic, accept: str | None) -> None:
    answer = opened.request("POST", "/subscriptions/s/receive", json={"epoch": 1}, headers={"accept": accept} if accept else {})
    assert answer.status_code == 200
    if accept is not None and ONCELOG_AVRO in accept:
        assert answer.headers["content-type"] == ONCELOG_AVRO
        records, position = decode_consume_response(answer.content)
        assert [record["payload"] for record in records] == [b"a", b"b", b"c"]
        assert position == records[-1]["id"]
    else:
        assert answer.headers["content-type"] == JSON
        assert [each["payload"] for each in answer.json()] == opened.payloads() == ["a", "b", "c"]


def test_receiving_pages_behind_the_last_message_or_from_the_cursor(opened: Topic) -> None:
    first = answered(post(opened, "/s/receive", epoch=1, limit=2))
    assert [each["payload"] for each in first] == ["a", "b"]
    behind = answered(post(opened, "/s/receive", epoch=1, generation=1, after=hex_id(first[-1]["id"])))
    assert [each["payload"] for each in behind] == ["c"]
    assert answered(post(opened, "/s/ack", epoch=1, messageId=hex_id(first[0]["id"]))) == {"cursor": 1}
    assert answered(post(opened, "/s/ack", epoch=1, generation=1, offset=0)) == {"cursor": 1}
    assert [each["payload"] for each in answered(post(opened, "/s/receive", epoch=1))] == ["b", "c"]


def test_a_seek_that_is_repeated_is_the_same_seek(opened: Topic) -> None:
    body: dict[str, Any] = {"to": {"at": "latest"}, "nonce": "x", "epoch": 1}
    assert [answered(post(opened, "/s/seek", **body))["epoch"] for _ in range(2)] == [2, 2]
    assert answered(post(opened, "/s/seek", to={"offset": 1}, nonce="y"))["epoch"] == 3
    assert_problem(post(opened, "/s/seek", **body), 403, "consumer_fenced")
    assert answered(opened.request("GET", "/subscriptions/s"))["cursor"] == 1


def test_a_list_is_sorted_and_paged(topic: Topic) -> None:
    for name in ("c", "a", "b"):
        answered(post(topic, name=name, nonce="n"))
    listed = lambda query: [each["name"] for each in answered(topic.request("GET", "/subscriptions" + query))]  # noqa: E731
    assert listed("") == ["a", "b", "c"]
    assert listed("?limit=2") == ["a", "b"]
    assert listed("?after=b") == ["c"]
    for query in ("?limit=0", "?limit=2001", "?limit=x"):
        assert_problem(topic.request("GET", "/subscriptions" + query), 400, "invalid_request")


def test_a_deleted_subscription_is_not_found(opened: Topic) -> None:
    assert answered(opened.request("DELETE", "/subscriptions/s")) is None
    for method in ("GET", "DELETE"):
        assert_problem(opened.request(method, "/subscriptions/s"), 404, "subscription_not_found")
    assert_problem(post(opened, "/s/receive", epoch=1), 403, "consumer_fenced")
    assert_problem(post(opened, "/t/receive", epoch=1), 404, "subscription_not_found")


def test_a_refusal_says_what_one_needs_to_go_on(opened: Topic) -> None:
    answered(post(opened, name="s", nonce="m"))
    fenced = assert_problem(post(opened, "/s/ack", epoch=1, generation=1, offset=0), 403, "consumer_fenced")
    assert (fenced["subscription"], fenced["epoch"], fenced["current_epoch"]) == ("s", 1, 2)
    beyond = assert_problem(post(opened, "/s/ack", epoch=2, generation=1, offset=3), 400, "offset_out_of_range")
    assert (beyond["upcoming"], beyond["settled"], beyond["earliest"]) == (3, 3, 0)
    for body in ({"generation": 2, "offset": 0}, {"generation": 2, "messageId": "00" * 20}):
        assert assert_problem(post(opened, "/s/ack", epoch=2, **body), 400, "stale_message_id")["generation"] == 1
    assert_problem(post(opened, "/s/ack", epoch=2, messageId="7f" * 20), 400, "invalid_message_id")
    assert_problem(post(opened, "/s/ack", epoch=2, messageId="ff" * 20), 400, "invalid_message_id")


PLACES: list[Any] = [
    {},
    {"at": "somewhere"},
    {"at": "latest", "offset": 0},
    {"offset": -1},
    {"offset": True},
    {"offset": "1"},
    {"offset": 1.5},
    {"offset": 1, "inclusive": True},
    {"messageId": "xyz"},
    {"messageId": "00"},
    {"timestamp": -1},
    {"timestamp": 2**63},
    {"surprise": 1},
    [],
    None,
    1,
]


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_is_none_is_refused(opened: Topic, place: Any) -> None:
    assert_problem(post(opened, name="new", nonce="n", start=place), 400, "invalid_request")
    assert_problem(post(opened, "/s/seek", to=place, nonce="n2"), 400, "invalid_request")
    assert [each["name"] for each in answered(opened.request("GET", "/subscriptions"))] == ["s"]
    assert answered(opened.request("GET", "/subscriptions/s"))["epoch"] == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("", {"name": "s"}),
        ("", {"nonce": "n"}),
        ("", {"name": "a b", "nonce": "n"}),
        ("", {"name": "..", "nonce": "n"}),
        ("", {"name": "", "nonce": "n"}),
        ("", {"name": "x" * 250, "nonce": "n"}),
        ("", {"name": "s", "nonce": ""}),
        ("", {"name": "s", "nonce": "n" * 101}),
        ("", {"name": 5, "nonce": "n"}),
        ("/s/receive", {}),
        ("/s/receive", {"epoch": 0}),
        ("/s/receive", {"epoch": 2}),
        ("/s/receive", {"epoch": 2**70}),
        ("/s/receive", {"epoch": 1, "limit": 0}),
        ("/s/receive", {"epoch": 1, "wait": -1}),
        ("/s/receive", {"epoch": 1, "after": "abc"}),
        ("/s/receive", {"epoch": 1, "from": 0}),
        ("/s/ack", {"epoch": 1}),
        ("/s/ack", {"epoch": 1, "offset": 0}),
        ("/s/ack", {"epoch": 1, "generation": 1, "offset": -1}),
        ("/s/ack", {"epoch": 1, "generation": 1, "offset": 0, "messageId": "00" * 20}),
        ("/s/seek", {"to": {"offset": 0}}),
        ("/s/seek", {"to": {"offset": 0}, "nonce": "n3", "epoch": "1"}),
    ],
)
def test_what_cannot_be_understood_is_refused_and_moves_nothing(opened: Topic, path: str, body: dict[str, Any]) -> None:
    assert_problem(post(opened, path, **body), 400, "invalid_request")
    shown = answered(opened.request("GET", "/subscriptions/s"))
    assert (shown["cursor"], shown["epoch"]) == (0, 1)
