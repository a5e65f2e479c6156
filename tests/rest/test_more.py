"""A page that a bound of the service ended says so, in whatever media type; one that ended otherwise does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from oncelog import Client
from oncelog.wire.isolation import MORE
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from tests.rest.talk import MEDIA, Topic, avro_poll, done
from tests.world.service import RunningService, running_service

BOUNDS = {"default_poll_messages": 4, "max_poll_messages": 6, "max_poll_bytes": 2_000}
SMALL, LARGE = 10, 3
"""Messages of the two topics; of the large ones the second fills a page."""


@pytest.fixture(scope="module")
def bounded() -> Iterator[RunningService]:
    with running_service(**BOUNDS) as service:
        Topic(service.url, "small").publish(*"0123456789")
        Topic(service.url, "large").publish(*["x" * 1_500] * LARGE)
        yield service


def polled(topic: Topic, media: str, limit: int | None, query: str = "") -> requests.Response:
    if media == JSON:
        return done(topic.request("POST", f"/poll{query}", json={} if limit is None else {"limit": limit}))
    return done(topic.post(f"/poll{query}", avro_poll(media, limit=limit), media))


@pytest.mark.parametrize("media", MEDIA)
@pytest.mark.parametrize(
    ("name", "limit", "says"),
    [
        ("small", None, True),
        ("small", 3, False),
        ("small", 6, False),
        ("small", 8, True),
        ("large", 3, True),
        ("large", 2, False),
        ("large", 1, False),
    ],
    ids=["no limit", "the limit", "the most, and the limit", "a limit above the most", "bytes", "bytes and the limit", "one"],
)
def test_what_a_bound_ended_says_that_there_is_more(
    bounded: RunningService, media: str, name: str, limit: int | None, says: bool
) -> None:
    assert polled(Topic(bounded.url, name), media, limit).headers.get(MORE) == ("true" if says else None)


@pytest.mark.parametrize("count", [3, 4])
def test_what_ended_with_the_log_does_not_say_it(bounded: RunningService, count: int) -> None:
    topic = Topic(bounded.url, "small")
    assert MORE not in topic.poll(startOffset=SMALL - count).headers
    assert MORE not in topic.poll(startOffset=SMALL).headers


def test_what_ended_before_something_undecided_does_not_say_it_and_neither_does_what_lies_behind(bounded: RunningService) -> None:
    topic = Topic(bounded.url, "undecided")
    topic.publish(*"0123")
    with Client(bounded.url) as client:
        pointer = client.start_transaction(timeout=3_600).write_pointer
        topic.publish_under(pointer, "4")
        for media in (AVRO, ONCELOG_AVRO):
            assert MORE not in polled(topic, media, None, "?isolation=committed").headers, "the stable part ends there"
        assert polled(topic, JSON, None).headers[MORE] == "true"
        reader = client.start_transaction(timeout=3_600)
        transaction = reader.to_bytes().decode("latin-1")
        assert MORE not in done(topic.poll(transaction=transaction, limit=5)).headers


def test_within_a_stored_group_too(bounded: RunningService) -> None:
    topic = Topic(bounded.url, "group")
    with Client(bounded.url) as client:
        pointer = client.start_transaction(timeout=3_600).write_pointer
        topic.store_under(pointer, *"01234")
        topic.publish_under(pointer)
    assert topic.poll().headers[MORE] == "true"
    assert MORE not in topic.poll(startOffset=1).headers, "the last of the group is the last of the log"


def test_what_a_consumer_is_given_says_it_too(bounded: RunningService) -> None:
    topic = Topic(bounded.url, "small")
    epoch = topic.good("POST", "/subscriptions", json={"name": "s", "nonce": "n"})["epoch"]
    assert topic.request("POST", "/subscriptions/s/receive", json={"epoch": epoch, "limit": 8}).headers[MORE] == "true"
    assert MORE not in topic.request("POST", "/subscriptions/s/receive", json={"epoch": epoch, "limit": 6}).headers
