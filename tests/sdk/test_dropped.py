"""What is dropped without being closed ends all the same, with its threads and connections, and a warning names it."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from oncelog import Client, Consumer, Producer, Reader, errors
from oncelog.http.connections import Connection
from tests.patience import until
from tests.world.awaits import of_threads
from tests.world.service import RunningService

pytestmark = pytest.mark.usefixtures("twin")


def held() -> list[object]:
    """Threads and connections of the SDK."""
    gc.collect()
    return [*threads(), *(each for each in gc.get_objects() if type(each) is Connection)]


def threads() -> list[threading.Thread]:
    """Those that send, acknowledge and ask."""
    names = ("oncelog-producer", "oncelog-consumer", "oncelog-reader")
    return [each for each in threading.enumerate() if each.name.startswith(names)]


class Before:
    """What there is as a test begins, which others have left."""

    def __init__(self) -> None:
        self.held = held()

    def is_all(self) -> bool:
        """Whether there is nothing more, once what is dropped is collected."""
        return all(any(each is known for known in self.held) for each in held())


@pytest.fixture
def before(topic: str) -> Iterator[Before]:
    """After the test there is no more than before."""
    yield (before := Before())
    until(before.is_all, seconds=3, every=1)


@contextmanager
def named_when_dropped(what: str, before: Before) -> Iterator[None]:
    """What this does is collected behind it, and named."""
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        warnings.showwarning = lambda message, *_: said.append(str(message))  # who records them has hold of what they name
        yield
        until(lambda: before.is_all() and f"{what} was not closed" in said, seconds=3, every=1)


def send(url: str, topic: str) -> None:
    Producer[bytes](topic, name="p", url=url).send(b"x")


def be_fenced(url: str, topic: str) -> None:
    old = Producer[bytes](topic, name="p", url=url)
    old.send_async(b"x").result()
    send(url, topic)
    with pytest.raises(errors.ProducerFenced):
        old.send(b"y")


def acknowledge(url: str, topic: str) -> None:
    consumer = Consumer(topic, "s", url=url, ack_interval=0.1)
    with Producer[bytes](topic, url=url) as producer:
        producer.send(b"x")
    consumer.ack_async(consumer.read()[0])


@pytest.mark.parametrize(
    ("drop", "named"),
    [
        (send, "producer 'p'"),
        (be_fenced, "producer 'p'"),
        (acknowledge, "consumer of subscription 's'"),
    ],
    ids=["a producer", "one that is fenced", "a consumer"],
)
def test_what_is_dropped_ends_and_is_named(
    house: RunningService, topic: str, before: Before, drop: Callable[[str, str], None], named: str
) -> None:
    """A thread and two connections each: whoever made a producer a message was out of descriptors after some hundred."""
    with named_when_dropped(f"{named} of default/{topic}", before):
        drop(house.url, topic)


@of_threads
def test_a_producer_that_is_dropped_is_gone_without_the_collector(house: RunningService, topic: str, before: Before) -> None:
    gc.collect()
    known = set(threads())
    gc.disable()
    try:
        send(house.url, topic)
        until(lambda: set(threads()) <= known, seconds=3)
    finally:
        gc.enable()


def test_what_is_dropped_has_sent_what_it_took_before(client: Client, house: RunningService, topic: str, before: Before) -> None:
    with named_when_dropped(f"producer 'p' of default/{topic}", before):
        Producer[bytes](topic, name="p", url=house.url, linger=0.5).send_async(b"x")
        gc.collect()
        until(lambda: client.stats(topic).upcoming_offset == 1, seconds=3)
    with named_when_dropped(f"consumer of subscription 's' of default/{topic}", before):
        acknowledge(house.url, topic)
        gc.collect()
        until(lambda: client.subscription(topic, "s").cursor == 1, seconds=3)


@of_threads
def test_a_consumer_that_is_fenced_lets_its_threads_go(house: RunningService, topic: str, before: Before) -> None:
    """It waits for nothing any more: two threads and their connections each stayed, as long as somebody had it."""
    with Producer[bytes](topic, url=house.url) as producer:
        producer.send(b"x")
    old = Consumer(topic, "s", url=house.url)
    message = old.read()[0]
    old.ack_async(message)
    old.flush()
    with Consumer(topic, "s", url=house.url), pytest.raises(errors.ConsumerFenced):
        old.ack(message)
    until(lambda: not any(each not in before.held for each in threads()), seconds=3)
    old.close()


def test_what_is_closed_is_not_named(house: RunningService, topic: str, before: Before) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Producer[bytes](topic, url=house.url) as producer, Reader(topic, url=house.url, timeout=0) as reader:
            producer.send(b"x")
            assert len(list(reader)) == 1
        with Consumer(topic, "s", url=house.url) as consumer:
            consumer.ack(consumer.read()[0])
        del producer, reader, consumer
        gc.collect()
