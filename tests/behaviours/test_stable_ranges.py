"""A stable range of offsets: up to where it reaches, whom a question makes wait, and what its columns hold.

That a range holds the same messages whenever it is read is checked by tests/simulation; the columns themselves by
tests/service/test_columns.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from oncelog import Client
from oncelog.errors import InvalidRequest, OffsetOutOfRange, StaleMessageId
from oncelog.wire.columns import unpack
from oncelog.wire.models import TopicAsked, TopicOffsets
from tests.rest.talk import TIMEOUT, Topic
from tests.world.house import House
from tests.world.service import RunningService

PLENTY = TIMEOUT / 2


def asked(house: House, wait: float = 0, **about: int) -> TopicOffsets:
    return house.client.offsets({"t": TopicAsked(**about)}, wait=wait)["t"]


def payloads(house: House, first: int, upto: int) -> list[bytes | None]:
    """Page by page."""
    found: list[bytes | None] = []
    while first < upto:
        page = house.client.read_columns("t", first, upto)
        found += unpack(page.values)
        first = page.next
    return found


def _atomic(client: Client, *_: object) -> None:
    with client.atomic() as commit:
        commit.send("other", b"a")


@pytest.mark.parametrize(
    "wake",
    [
        lambda client, topic, pointer, published: client.commit_transaction(pointer),
        lambda client, topic, pointer, published: client.abort_transaction(pointer),
        lambda client, topic, pointer, published: topic.roll_back(published),
        lambda client, topic, pointer, published: Topic(client.url, "other").publish("b"),
        _atomic,
    ],
    ids=["commit", "abort", "roll back", "another topic", "atomic commit"],
)
def test_whatever_is_stable_wakes_a_question_that_waits(house: House, wake: Callable[..., object]) -> None:
    topic, client, pointer = house.topic, house.client, house.start()
    house.make("other")
    published = topic.publish_under(pointer, "a")
    answers: list[dict[str, TopicOffsets]] = []
    question = {"t": TopicAsked(after=0), "other": TopicAsked(after=0)}
    waiting = threading.Thread(target=lambda: answers.append(client.offsets(question, wait=PLENTY)))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    wake(client, topic, pointer, published)
    waiting.join(PLENTY - 1)
    assert sorted(each.stable for each in answers[0].values())[-1] == 1


def test_a_wait_ends_in_time_and_is_none_where_no_offset_is_named(running: RunningService) -> None:
    Topic(running.url)
    with Client(running.url) as client:
        began = time.monotonic()
        assert client.offsets({"t": TopicAsked(after=0)}, wait=0.2)["t"].stable == 0
        assert time.monotonic() - began > 0.19
        client.offsets({"t": TopicAsked()}, wait=PLENTY)
        assert client.offsets({}, wait=PLENTY) == {}
        assert time.monotonic() - began < PLENTY


def test_a_time_belongs_to_the_first_message_published_then_or_later(house: House) -> None:
    topic, begin = house.topic, house.clock.ms
    for _ in range(3):
        topic.publish("a", "b")
        house.clock.advance(10)
    offsets = [asked(house, timestamp=begin + at).at_timestamp for at in (-5, 0, 1, 10, 11, 20, 21)]
    assert offsets == [0, 0, 2, 2, 4, 4, 6]
    assert asked(house, timestamp=2**63).at_timestamp == 6
    topic.publish_under(house.start("long"), "c")
    house.clock.advance(10)
    topic.publish("d")
    assert asked(house, timestamp=house.clock.ms).at_timestamp == asked(house).stable == 6


def test_a_size_ends_behind_what_fits_also_inside_of_an_atomic_commit(house: House) -> None:
    house.topic.publish(*["x" * 1000] * 10)
    with house.client.atomic() as commit:
        for _ in range(10):
            commit.send("t", b"x" * 1000)
    for after, max_bytes, within in ((2, 1, 3), (2, 3_500, 5), (2, 10**9, 20), (20, 1, 20), (10, 3_500, 13), (14, 3_500, 17)):
        assert asked(house, after=after, max_bytes=max_bytes).within == within
    assert asked(house, after=2).within is asked(house, max_bytes=1).within is None


def test_a_topic_created_anew_is_not_mistaken_for_the_one_before(house: House) -> None:
    house.topic.publish("a")
    assert house.client.read_columns("t", 0, 1, generation=1).messages == 1
    house.again()
    assert asked(house) == TopicOffsets(generation=2, earliest=0, stable=0)
    house.topic.publish("b")
    with pytest.raises(StaleMessageId):
        house.client.read_columns("t", 0, 1, generation=1)
    assert house.client.read_columns("t", 0, 1, generation=2).messages == 1


def test_what_retention_deleted_is_refused_and_what_expired_is_left_out(house: House) -> None:
    topic, client = house.make(ttl="10"), house.client
    topic.publish("a", "b")
    house.clock.advance(9_999)
    assert asked(house).earliest == 0
    house.clock.advance(1)
    topic.publish("c", "d", properties=[{"k": "v"}, None])
    assert asked(house, timestamp=0) == TopicOffsets(generation=1, earliest=2, stable=4, at_timestamp=2)
    assert payloads(house, 2, 4) == [b"c", b"d"]
    house.retain()
    with pytest.raises(OffsetOutOfRange) as refused:
        client.read_columns("t", 0, 3)
    assert refused.value.earliest == 2
    assert client.read_columns("t", 2, 4).properties is None, "they come when they are asked for"
    assert client.read_columns("t", 2, 4, properties=True).properties == [{"k": "v"}, None]
    assert client.read_columns("t", 3, 4, properties=True).properties is None
    for first, upto, error in ((-1, 1, InvalidRequest), (3, 2, InvalidRequest), (2, 5, OffsetOutOfRange)):
        with pytest.raises(error):
            client.read_columns("t", first, upto)
