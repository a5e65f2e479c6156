"""What is dropped without being closed ends all the same, with its threads and connections, and a warning names it."""

from __future__ import annotations

import gc
import re
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


def collected() -> bool:
    """Whether none of these is left, once what is dropped is collected."""
    gc.collect()
    return not threads()


@pytest.fixture
def nothing_stays(topic: str) -> Iterator[None]:
    """After the test there is no more than before."""
    before = {id(each) for each in held()}
    yield
    until(lambda: {id(each) for each in held()} <= before, seconds=3, every=1)


@contextmanager
def named_when_dropped(what: str) -> Iterator[None]:
    """What this does is collected behind it, and named."""
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        warnings.showwarning = lambda message, *_: said.append(str(message))  # who records them has hold of what they name
        yield
        until(lambda: collected() and any(re.search(what, each) for each in said), seconds=3, every=1)


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
    consumer.ack_async(consumer.receive()[0])


@pytest.mark.parametrize(
    ("drop", "named"),
    [
        (send, "producer 'p' of default/.* was not closed"),
        (be_fenced, "producer 'p' of default/.* was not closed"),
        (acknowledge, "consumer of subscription 's' of default/.* was not closed"),
    ],
    ids=["a producer", "one that is fenced", "a consumer"],
)
def test_what_is_dropped_ends_and_is_named(
    house: RunningService, topic: str, nothing_stays: None, drop: Callable[[str, str], None], named: str
) -> None:
    """A thread and two connections each: whoever made a producer a message was out of descriptors after some hundred."""
    with named_when_dropped(named):
        drop(house.url, topic)


@of_threads
def test_a_producer_that_is_dropped_is_gone_without_the_collector(house: RunningService, topic: str, nothing_stays: None) -> None:
    gc.collect()
    gc.disable()
    try:
        send(house.url, topic)
        until(lambda: not threads(), seconds=3)
    finally:
        gc.enable()


def test_what_is_dropped_has_sent_what_it_took_before(client: Client, house: RunningService, topic: str) -> None:
    with named_when_dropped("producer"):
        Producer[bytes](topic, url=house.url, linger=0.5).send_async(b"x")
        gc.collect()
        until(lambda: client.stats(topic).upcoming_offset == 1, seconds=3)
    with named_when_dropped("consumer"):
        acknowledge(house.url, topic)
        gc.collect()
        until(lambda: client.subscription(topic, "s").cursor == 1, seconds=3)


@of_threads
def test_a_consumer_that_is_fenced_lets_its_threads_go(house: RunningService, topic: str, nothing_stays: None) -> None:
    """It waits for nothing any more: two threads and their connections each stayed, as long as somebody had it."""
    with Producer[bytes](topic, url=house.url) as producer:
        producer.send(b"x")
    old = Consumer(topic, "s", url=house.url)
    message = old.receive()[0]
    old.ack_async(message)
    old.flush()
    with Consumer(topic, "s", url=house.url), pytest.raises(errors.ConsumerFenced):
        old.ack(message)
    until(collected, seconds=3, every=1)
    old.close()


def test_what_is_closed_is_not_named(house: RunningService, topic: str, nothing_stays: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Producer[bytes](topic, url=house.url) as producer, Reader(topic, url=house.url, timeout=0) as reader:
            producer.send(b"x")
            assert len(list(reader)) == 1
        with Consumer(topic, "s", url=house.url) as consumer:
            consumer.ack(consumer.receive()[0])
        del producer, reader, consumer
        gc.collect()
