"""Subscriptions over HTTP: how each call is written and answered, and what is refused with which code."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from oncelog.wire.codec import decode_polled
from oncelog.wire.media import JSON, ONCELOG_AVRO
from tests.rest.talk import Topic, assert_problem, done, hex_id
from tests.world.service import RunningService


@pytest.fixture
def topic(running: RunningService) -> Topic:
    """With three messages."""
    topic = Topic(running.url)
    topic.publish("a", "b", "c")
    return topic


def post(topic: Topic, path: str = "", **body: Any) -> requests.Response:
    return topic.request("POST", "/subscriptions" + path, json=body)


def answered(response: requests.Response) -> Any:
    return done(response).json()


def received(topic: Topic, **body: Any) -> list[str]:
    return [each["payload"] for each in answered(post(topic, "/s/receive", **body))]


def test_the_calls_of_a_subscription(topic: Topic) -> None:
    shown = {"name": "s", "generation": 1, "epoch": 1, "cursor": 1, "lag": 2, "lost": 0}
    shown |= {"upcomingOffset": 3, "stableOffset": 3, "heldBy": None, "heldSinceMs": None}
    for _ in range(2):
        opened = answered(post(topic, name="s", nonce="n", start={"offset": 1}))
        times = {"oldestMs": opened["oldestMs"], "heardMs": opened["heardMs"]}
        assert opened == shown | times
        assert None not in times.values()
    assert answered(topic.request("GET", "/subscriptions/s")) == shown | times
    assert answered(post(topic, name="s", nonce="m"))["epoch"] == 2
    fenced = assert_problem(post(topic, "/s/receive", epoch=1), 403, "consumer_fenced")
    assert (fenced["subscription"], fenced["epoch"], fenced["current_epoch"]) == ("s", 1, 2)
    to_latest = {"to": {"at": "latest"}, "nonce": "x", "epoch": 2}
    assert [answered(post(topic, "/s/seek", **to_latest))["epoch"] for _ in range(2)] == [3, 3]
    assert answered(post(topic, "/s/seek", to={"offset": 0}, nonce="y"))["epoch"] == 4
    first = answered(post(topic, "/s/receive", epoch=4, limit=2))
    assert [each["payload"] for each in first] == ["a", "b"]
    assert received(topic, epoch=4, generation=1, after=hex_id(first[-1]["id"])) == ["c"]
    assert answered(post(topic, "/s/ack", epoch=4, messageId=hex_id(first[0]["id"]))) == {"cursor": 1}
    assert answered(post(topic, "/s/ack", epoch=4, generation=1, offset=0)) == {"cursor": 1}
    assert received(topic, epoch=4) == ["b", "c"]
    beyond = assert_problem(post(topic, "/s/ack", epoch=4, generation=1, offset=3), 400, "offset_out_of_range")
    assert (beyond["upcoming"], beyond["stable"], beyond["earliest"]) == (3, 3, 0)
    stale = assert_problem(post(topic, "/s/ack", epoch=4, generation=2, offset=0), 400, "stale_message_id")
    assert stale["generation"] == 1
    assert_problem(post(topic, "/s/ack", epoch=4, messageId="7f" * 20), 400, "invalid_message_id")
    for epoch in (0, 5, 2**70):
        assert_problem(post(topic, "/s/receive", epoch=epoch), 400, "invalid_request")
    for name in ("c", "a", "b"):
        answered(post(topic, name=name, nonce="n"))
    for query, names in (("", "abcs"), ("?limit=2", "ab"), ("?after=b", "cs")):
        assert [each["name"] for each in answered(topic.request("GET", "/subscriptions" + query))] == list(names)
    assert answered(topic.request("DELETE", "/subscriptions/s")) is None
    for method in ("GET", "DELETE"):
        assert_problem(topic.request(method, "/subscriptions/s"), 404, "subscription_not_found")
    assert_problem(post(topic, "/s/receive", epoch=4), 403, "consumer_fenced")
    assert_problem(post(topic, "/t/receive", epoch=1), 404, "subscription_not_found")


def test_what_was_asked_before_a_subscription_was_deleted_and_comes_late_changes_none_that_was_made_since(topic: Topic) -> None:
    """A proxy, or the network, may hand the same request over once more whenever it likes."""
    first = {"name": "s", "nonce": "first"}
    moved = {"to": {"at": "latest"}, "nonce": "moved"}
    answered(post(topic, **first))
    answered(post(topic, "/s/seek", **moved))
    answered(topic.request("DELETE", "/subscriptions/s"))
    assert "was deleted" in assert_problem(post(topic, **first), 403, "consumer_fenced")["detail"]
    assert_problem(post(topic, "/s/seek", **moved), 404, "subscription_not_found")
    epoch = answered(post(topic, name="s", nonce="second"))["epoch"]
    assert answered(post(topic, **first))["epoch"] < epoch
    assert answered(post(topic, "/s/seek", **moved))["cursor"] == 0
    assert received(topic, epoch=epoch) == ["a", "b", "c"]


@pytest.mark.parametrize("accept", [None, "*/*", JSON, ONCELOG_AVRO, f"text/html, {ONCELOG_AVRO};q=1"])
def test_messages_are_answered_as_a_poll_answers_them(topic: Topic, accept: str | None) -> None:
    answered(post(topic, name="s", nonce="n"))
    answer = topic.request("POST", "/subscriptions/s/receive", json={"epoch": 1}, headers={"accept": accept} if accept else {})
    assert answer.status_code == 200
    if accept is not None and ONCELOG_AVRO in accept:
        assert answer.headers["content-type"] == ONCELOG_AVRO
        records, position, *_ = decode_polled(answer.content)
        assert [record["payload"] for record in records] == [b"a", b"b", b"c"]
        assert position == records[-1]["id"]
    else:
        assert answer.headers["content-type"] == JSON
        assert answer.json() == topic.read()
