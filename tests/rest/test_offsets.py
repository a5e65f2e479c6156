"""Up to where topics are settled: what is asked and answered, whom it makes wait, and what is refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from oncelog import Client
from oncelog.errors import InvalidRequest, TopicNotFound
from oncelog.wire.models import TopicAsked, TopicOffsets
from tests.rest.talk import TIMEOUT, Topic, assert_problem
from tests.support import ManualClock, RunningService, running_service

PLENTY = TIMEOUT / 2


@pytest.fixture
def topic(running: RunningService) -> Topic:
    return Topic(running.url)


@pytest.fixture
def client(running: RunningService) -> Iterator[Client]:
    with Client(running.url) as client:
        yield client


def asked(client: Client, wait: float = 0, **about: Any) -> TopicOffsets:
    return client.offsets({"t": TopicAsked(**about)}, wait=wait)["t"]


class Waiting:
    """A question that waits, on a thread."""

    def __init__(self, client: Client, topics: dict[str, TopicAsked]) -> None:
        self._began = time.monotonic()
        self.answer: dict[str, TopicOffsets] = {}
        self._thread = threading.Thread(target=self._ask, args=(client, topics))
        self._thread.start()

    def _ask(self, client: Client, topics: dict[str, TopicAsked]) -> None:
        self.answer = client.offsets(topics, wait=PLENTY)

    @property
    def waits(self) -> bool:
        self._thread.join(0.3)
        return self._thread.is_alive()

    def answered(self) -> dict[str, TopicOffsets]:
        """Long before its time was over."""
        self._thread.join(PLENTY - 1)
        assert not self._thread.is_alive()
        return self.answer


def test_an_empty_topic_begins_and_is_settled_at_0(client: Client, topic: Topic) -> None:
    assert asked(client) == TopicOffsets(generation=1, earliest=0, settled=0)


def test_what_is_published_is_settled(client: Client, topic: Topic) -> None:
    topic.publish("a", "b")
    assert asked(client).settled == 2


def test_a_transaction_in_progress_ends_what_is_settled(client: Client, topic: Topic) -> None:
    topic.publish("a")
    begun = client.start_transaction()
    topic.publish_under(begun.write_pointer, "b", "c")
    topic.publish("d")
    assert asked(client).settled == 1
    client.commit_transaction(begun.write_pointer)
    assert asked(client, wait=PLENTY, after=1).settled == 4


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_the_end_of_a_transaction_wakes_whoever_waits(client: Client, topic: Topic, end: str) -> None:
    begun = client.start_transaction()
    topic.publish_under(begun.write_pointer, "a")
    waiting = Waiting(client, {"t": TopicAsked(after=0)})
    assert waiting.waits
    getattr(client, end)(begun.write_pointer)
    assert waiting.answered()["t"].settled == 1


def test_a_roll_back_settles_what_it_marked(client: Client, topic: Topic) -> None:
    begun = client.start_transaction()
    published = topic.publish_under(begun.write_pointer, "a")
    waiting = Waiting(client, {"t": TopicAsked(after=0)})
    assert waiting.waits
    assert topic.roll_back(published).status_code == 200
    assert waiting.answered()["t"].settled == 1


def test_one_question_waits_for_several_topics(client: Client, topic: Topic, running: RunningService) -> None:
    other = Topic(running.url, "other")
    topic.publish("a")
    waiting = Waiting(client, {"t": TopicAsked(after=1), "other": TopicAsked(after=0)})
    assert waiting.waits
    other.publish("b")
    assert {name: each.settled for name, each in waiting.answered().items()} == {"t": 1, "other": 1}


def test_an_atomic_commit_wakes_whoever_waits(client: Client, topic: Topic) -> None:
    waiting = Waiting(client, {"t": TopicAsked(after=0)})
    assert waiting.waits
    with client.atomic() as commit:
        commit.send("t", b"a")
    assert waiting.answered()["t"].settled == 1


def test_the_answer_comes_when_the_wait_is_over(client: Client, topic: Topic) -> None:
    began = time.monotonic()
    assert asked(client, wait=0.3, after=0).settled == 0
    assert time.monotonic() - began >= 0.3


def test_whoever_names_no_offset_does_not_wait(client: Client, topic: Topic) -> None:
    began = time.monotonic()
    asked(client, wait=PLENTY)
    assert client.offsets({}, wait=PLENTY) == {}
    assert time.monotonic() - began < PLENTY


def test_a_time_belongs_to_the_first_message_published_then_or_later() -> None:
    clock = ManualClock()
    with running_service(clock=clock) as running, Client(running.url) as client:
        topic = Topic(running.url)
        begin = clock.ms
        for _ in range(3):
            topic.publish("a", "b")
            clock.advance(10)
        offsets = [asked(client, timestamp=begin + at).at_timestamp for at in (-5, 0, 1, 10, 11, 20, 21)]
        assert offsets == [0, 0, 2, 2, 4, 4, 6]
        assert asked(client, timestamp=2**63).at_timestamp == 6
        under = client.start_transaction("long").write_pointer
        topic.publish_under(under, "c")
        clock.advance(10)
        topic.publish("d")
        assert asked(client, timestamp=clock.ms).at_timestamp == asked(client).settled == 6


def test_the_log_begins_where_messages_have_not_expired() -> None:
    clock = ManualClock()
    with running_service(clock=clock) as running, Client(running.url) as client:
        topic = Topic(running.url, ttl="10")
        topic.publish("a", "b")
        clock.advance(5_000)
        topic.publish("c")
        assert asked(client).earliest == 0
        clock.advance(5_000)
        assert asked(client, timestamp=0) == TopicOffsets(generation=1, earliest=2, settled=3, at_timestamp=2)
        clock.advance(5_000)
        assert asked(client).earliest == 3


def test_a_size_ends_behind_what_fits(client: Client, topic: Topic) -> None:
    topic.publish(*["x" * 1000] * 10)
    assert asked(client, after=2, max_bytes=1).within == 3
    assert asked(client, after=2, max_bytes=3_500).within == 5
    assert asked(client, after=2, max_bytes=10**9).within == 10
    assert asked(client, after=10, max_bytes=1).within == 10
    assert asked(client, after=2).within is asked(client, max_bytes=1).within is None


def test_a_size_ends_inside_of_an_atomic_commit(client: Client, topic: Topic) -> None:
    with client.atomic() as commit:
        for _ in range(10):
            commit.send("t", b"x" * 1000)
    assert asked(client, after=0, max_bytes=3_500).within == 3
    assert asked(client, after=4, max_bytes=3_500).within == 7


def test_a_topic_created_anew_is_of_another_generation(client: Client, topic: Topic) -> None:
    topic.publish("a")
    client.delete_topic("t")
    client.create_topic("t")
    assert asked(client) == TopicOffsets(generation=2, earliest=0, settled=0)


def test_what_is_wrong_with_a_question_is_refused(client: Client, running: RunningService, topic: Topic) -> None:
    with pytest.raises(TopicNotFound):
        client.offsets({"nowhere": TopicAsked()})
    with pytest.raises(InvalidRequest):
        asked(client, wait=-1)
    url = f"{running.url}/v1/namespaces/default/offsets"
    for body in ({}, {"topics": {"t": {"after": -1}}}, {"topics": {"t": {"maxBytes": 0}}}, {"topics": {"t": {"before": 1}}}):
        assert_problem(topic.session.post(url, json=body, timeout=TIMEOUT), 400, "invalid_request")
    many = {"topics": {f"t{number}": {} for number in range(1_001)}}
    assert_problem(topic.session.post(url, json=many, timeout=TIMEOUT), 400, "invalid_request")
