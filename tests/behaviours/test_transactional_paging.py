"""CONTRACT §7.1 and §4.3: whatever a log holds, paging delivers every visible message exactly once and in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import dropwhile

import pytest

from oncelog import Client
from oncelog.wire.codec import decode, decode_consume_response
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from oncelog.wire.transaction import Transaction
from oncelog_service.service import Service
from tests.behaviours.conftest import Machine
from tests.behaviours.mixed_log import MixedLog, Written
from tests.rest.talk import MEDIA, Topic, avro_poll, hex_id
from tests.support import RunningService

LIMITS = (1, 2, 3, 10, 100, 1_000)


async def retention(service: Service) -> int:
    return await service.retention.once()


def page(topic: Topic, media: str, limit: int, start: str | None, transaction: Transaction | None) -> list[tuple[str, str]]:
    """(id, payload) of one page, exclusively after an id."""
    seen_by = None if transaction is None else transaction.to_bytes()
    if media == JSON:
        text = None if seen_by is None else seen_by.decode("latin-1")
        found = topic.read(startFrom=start, inclusive=False, limit=limit, transaction=text)
        return [(hex_id(message["id"]), message["payload"]) for message in found]
    start_from = None if start is None else bytes.fromhex(start)
    body = avro_poll(media, startFrom=start_from, inclusive=False, limit=limit, transaction=seen_by)
    answer = topic.post("/poll", body, media)
    assert answer.status_code == 200, answer.text
    messages = decode("ConsumeResponse", AVRO, answer.content) if media == AVRO else decode_consume_response(answer.content)[0]
    return [(message["id"].hex(), message["payload"].decode()) for message in messages]


def page_through(topic: Topic, limit: int, media: str, transaction: Transaction | None) -> list[str]:
    seen: list[tuple[str, str]] = []
    while found := page(topic, media, limit, seen[-1][0] if seen else None, transaction):
        assert len(found) <= limit
        seen += found
    assert [message_id for message_id, _ in seen] == sorted({message_id for message_id, _ in seen})
    return [payload for _, payload in seen]


def payloads(messages: Sequence[Written]) -> list[str | None]:
    return [message.payload for message in messages]


class Lives:
    """The same topic as it is written, as it comes back after a crash, with everything decided, and after retention."""

    def __init__(self, machine: Machine, log: MixedLog, steps: int) -> None:
        self.machine = machine
        self.log = log
        self.steps = steps

    def __iter__(self) -> Iterator[Topic]:
        with self.machine.run(foreign_write_pointers=True) as service:
            self.log.attach(service)
            self.log.write(self.steps)
            yield self.log.topic  # from memory, as far as that reaches
            crashed = self.machine.crash()
        with crashed.run(foreign_write_pointers=True) as service:
            self.log.attach(service)
            yield self.log.topic  # all of it from the store
            self.log.finish()
            yield self.log.topic
            service.on_loop(retention)
            yield self.log.topic


@pytest.mark.parametrize(("seed", "steps", "largest_group"), [(1, 20, 40), (2, 14, 12), (3, 14, 12)])
def test_paging_with_any_limit_delivers_every_visible_message_once_and_in_order(
    machine: Machine, seed: int, steps: int, largest_group: int
) -> None:
    log = MixedLog(machine.clock, seed, largest_group)
    for life, topic in enumerate(Lives(machine, log, steps)):
        limits = LIMITS if life < 2 else LIMITS[life::2]
        for transaction in (None, log.client.start_transaction("long")):
            expected = payloads(log.delivered(transaction))
            assert len(expected) > 10, f"seed {seed}: nothing to tell"
            for number, limit in enumerate(limits):
                media = MEDIA[(number + life) % 3]
                seen = page_through(topic, limit, media, transaction)
                assert seen == expected, f"seed {seed}, life {life}, limit {limit}, {media}, {transaction}"
        assert topic.verify()["ok"], f"seed {seed}, life {life}"


@pytest.mark.parametrize("seed", [4])
def test_reading_begins_at_every_id_and_offset_in_both_modes(machine: Machine, seed: int) -> None:
    """Hidden, expired and trimmed messages are places to begin as well, and so is every place inside a stored group."""
    log = MixedLog(machine.clock, seed, 12)
    for life, topic in enumerate(Lives(machine, log, 14)):
        for transaction in (None, log.client.start_transaction("long")):
            where = f"seed {seed}, life {life}, {transaction}"
            by = {} if transaction is None else {"transaction": transaction.to_bytes().decode("latin-1")}
            assert topic.payloads(**by) == payloads(log.delivered(transaction)), where
            for at, message in list(enumerate(log.rows))[life % 3 :: 3]:
                if message.payload is None:
                    continue
                for inclusive in (True, False):
                    behind = log.rows[at + (not inclusive) :]
                    if not inclusive and any(bytes.fromhex(message.id)[10:]):
                        behind = [replace(message, payload=None), *behind]  # an undecided group is one up to its last message
                    expected = payloads(log.delivered(transaction, behind))[:3]
                    assert topic.payloads(inclusive=inclusive, limit=3, startFrom=message.id, **by) == expected, where
                    behind = list(dropwhile(lambda each: each.payload is None, log.rows[at + (not inclusive) :]))
                    expected = payloads(log.delivered(transaction, behind))[:3]
                    assert topic.payloads(inclusive=inclusive, limit=3, startOffset=message.offset, **by) == expected, where


@pytest.mark.parametrize("seed", [5])
def test_reading_begins_at_every_timestamp_in_both_modes(machine: Machine, seed: int) -> None:
    log = MixedLog(machine.clock, seed, 12)
    for life, topic in enumerate(Lives(machine, log, 14)):
        times = {message.at_ms + around for message in log.rows for around in (-1, 0, 1)}
        for transaction in (None, log.client.start_transaction("long")):
            by = {} if transaction is None else {"transaction": transaction.to_bytes().decode("latin-1")}
            for time in sorted(times)[life::3]:
                for inclusive in (True, False):
                    behind = [each for each in log.rows if each.at_ms >= time + (not inclusive)]
                    expected = payloads(log.delivered(transaction, behind))[:4]
                    found = topic.payloads(startFrom=time, inclusive=inclusive, limit=4, **by)
                    assert found == expected, f"seed {seed}, life {life}, {time}, {transaction}"


def test_going_on_at_the_position_of_each_answer_delivers_the_same(machine: Machine) -> None:
    """What the SDK's reader does: the position may lie behind messages that were passed over."""
    log = MixedLog(machine.clock, 6, 12)
    for topic in Lives(machine, log, 14):
        for transaction in (None, log.client.start_transaction("long")):
            assert page_by_position(topic, 3, transaction) == payloads(log.delivered(transaction))


def page_by_position(topic: Topic, limit: int, transaction: Transaction | None) -> list[str]:
    seen: list[str] = []
    start = None
    while True:
        by = None if transaction is None else transaction.to_bytes()
        body = avro_poll(ONCELOG_AVRO, startFrom=start, inclusive=False, limit=limit, transaction=by)
        messages, position = decode_consume_response(topic.post("/poll", body, ONCELOG_AVRO).content)
        if not messages:
            return seen
        seen += [message["payload"].decode() for message in messages]
        assert position is not None
        start = position


# --- small logs, each with one thing in it ------------------------------------------------------------------------------


def test_empty_groups_do_not_eat_the_limit(running: RunningService) -> None:
    topic, client = Topic(running.url), Client(running.url)
    topic.publish("first")
    for _ in range(20):
        pointer = client.start_transaction().write_pointer
        topic.publish_under(pointer)
        client.commit_transaction(pointer)
    topic.publish("last")
    for transaction in (None, client.start_transaction()):
        assert page_through(topic, 1, JSON, transaction) == ["first", "last"]
        assert page_through(topic, 2, AVRO, transaction) == ["first", "last"]
    assert topic.stats()["upcomingOffset"] == 2


def test_a_log_of_empty_groups_alone_is_empty(running: RunningService) -> None:
    topic, client = Topic(running.url), Client(running.url)
    for _ in range(3):
        topic.publish_under(client.start_transaction().write_pointer)
    assert topic.payloads() == topic.seen(client.start_transaction()) == []
    assert topic.payloads(startOffset=0) == []
    assert topic.verify()["ok"]


def test_a_group_of_many_and_the_messages_around_it_are_all_delivered_at_every_limit(running: RunningService) -> None:
    """CDAP delivered 204 of these 260 at a limit of 100, 24 at 10, and stood still at 1."""
    topic, client = Topic(running.url), Client(running.url)
    pointer = client.start_transaction().write_pointer
    every = [f"before{number}" for number in range(5)]
    topic.publish(*every)
    for at in range(0, 250, 50):
        topic.store_under(pointer, *[f"m{number}" for number in range(at, at + 50)])
    topic.publish_under(pointer)
    client.commit_transaction(pointer)
    every += [f"m{number}" for number in range(250)] + ["behind"]
    topic.publish("behind")
    for limit in (1, 10, 100):
        for transaction in (None, client.start_transaction()):
            assert page_through(topic, limit, AVRO, transaction) == every
    assert [message["offset"] for message in topic.read()] == list(range(256))


def test_an_exclusive_poll_after_the_message_before_a_group_begins_with_its_first(running: RunningService) -> None:
    topic, client = Topic(running.url), Client(running.url)
    topic.publish("before")
    pointer = client.start_transaction().write_pointer
    topic.store_under(pointer, "a", "b")
    topic.publish_under(pointer)
    start = topic.read(limit=1)[0]["id"]
    assert topic.payloads(startFrom=start, inclusive=False) == ["a", "b"]
