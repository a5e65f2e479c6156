"""CONTRACT §7.2 and §9: expiry is a one-way street, and a reader that it overtook is told."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import create_engine

from oncelog import Client, Consumer, Reader
from oncelog.errors import MessagesExpired, OffsetOutOfRange, StaleMessageId
from oncelog.sql.checkpoint import Checkpoint
from oncelog.wire.models import TopicAsked
from oncelog_service.log.judgements import Judgement, judged, judged_at
from oncelog_service.service import Service
from tests.behaviours.conftest import Machine
from tests.patience import until
from tests.rest.talk import Topic, assert_problem
from tests.support import RunningService

HOUR = 3_600_000
YEAR = str(365 * 24 * 3_600)


# --- a one-way street ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True], ids=["the topic's ttl", "its own ttl"])
@pytest.mark.parametrize("crash", [True, False], ids=["crash", "clean stop"])
def test_what_was_passed_over_as_expired_is_never_delivered_again(machine: Machine, crash: bool, own: bool) -> None:
    """Whatever is done to the clock and to the ttl: over a restart with the clock set back an hour, and the ttl raised."""
    fields = {"ttls": [60]} if own else {}
    with machine.run() as service:
        topic = Topic(service.url, ttl=YEAR if own else "60")
        topic.publish("old", **fields)
        machine.clock.advance(61_000)
        assert topic.payloads() == []
        after = machine.crash() if crash else machine
    after.clock.advance(-HOUR)
    with after.run() as service:
        topic = Topic(service.url, create=False)
        assert topic.payloads() == []
        assert topic.request("PUT", "/properties", json={"ttl": YEAR}).status_code == 200
        assert topic.payloads() == []
        topic.publish("new")
        assert topic.payloads() == ["new"], "what is published now is judged now, however far ahead the clock was"
        again = after.crash()
    with again.run() as service:
        assert Topic(service.url, create=False).payloads() == ["new"]


def test_what_had_expired_when_a_later_message_came_stays_so_although_nobody_looked(machine: Machine) -> None:
    """That message says which time it was, whatever the clock says now."""
    with machine.run() as service:
        topic = Topic(service.url, ttl="60")
        topic.publish("old")
        machine.clock.advance(61_000)
        topic.publish("new")
        after = machine.crash()
    after.clock.advance(-HOUR)
    with after.run() as service:
        assert Topic(service.url, create=False).payloads() == ["new"]


def test_a_topic_nobody_has_open_forgets_no_expiry_when_its_ttl_is_raised(machine: Machine) -> None:
    with machine.run() as service:
        topic = Topic(service.url, ttl="60")
        topic.publish("old")
        machine.clock.advance(61_000)
        assert topic.payloads() == []
        after = machine.crash()
    after.clock.advance(-HOUR)
    with after.run() as service:
        topic = Topic(service.url, create=False)
        assert topic.request("PUT", "/properties", json={"ttl": YEAR}).status_code == 200
        assert topic.payloads() == []


def test_a_clock_that_was_far_ahead_shortens_the_life_of_nothing_that_comes_after(machine: Machine) -> None:
    with machine.run() as service:
        topic = Topic(service.url, ttl="60")
        topic.publish("old")
        machine.clock.advance(25 * HOUR)
        assert topic.payloads() == []
    machine.clock.advance(-25 * HOUR)
    with machine.run() as service:
        topic = Topic(service.url, create=False)
        topic.publish("new", "short", ttls=[None, 1])
        assert topic.payloads() == ["new", "short"]
        machine.clock.advance(1_001)
        assert topic.payloads() == ["new"]
        machine.clock.advance(60_000)
        assert topic.payloads() == []
        machine.clock.advance(-50_000)
        assert topic.payloads() == []


def test_judgements_are_those_that_still_say_something() -> None:
    one = judged((), 100, b"b")
    assert judged(one, 100, b"b") == one
    assert judged(one, 50, b"b") == one, "these rows were judged later already"
    two = judged(one, 50, b"d")
    assert two == (Judgement(100, b"b"), Judgement(50, b"d"))
    assert judged(two, 70, b"e") == (Judgement(100, b"b"), Judgement(70, b"e"))
    assert judged(two, 100, b"e") == (Judgement(100, b"e"),)
    assert [judged_at(two, row, 10) for row in (b"a", b"b", b"c", b"d")] == [100, 50, 50, 10]
    assert judged_at(two, b"a", 200) == 200


# --- a reader is told ---------------------------------------------------------------------------------------------------


async def retention(service: Service) -> int:
    return await service.retention.once()


def expire(service: RunningService, machine: Machine, deleted: bool) -> None:
    machine.clock.advance(61_000)
    if deleted:
        service.on_loop(retention)


@pytest.fixture(params=[True, False], ids=["deleted", "still on disk"])
def deleted(request: pytest.FixtureRequest) -> bool:
    chosen: bool = request.param
    return chosen


def publish(topic: Topic, *offsets: int) -> None:
    assert topic.publish(*(str(each) for each in offsets)).status_code == 200


def test_a_reader_that_retention_overtook_is_told_what_is_gone(machine: Machine, deleted: bool) -> None:
    with machine.run() as service, Client(service.url) as client:
        topic = Topic(service.url, ttl="60")
        publish(topic, *range(10))
        reader = Reader("t", client=client, page_size=5)
        assert [each.offset for each in reader.read(5)] == [0, 1, 2, 3, 4]
        skipping = Reader("t", client=client, start=reader.position or 0, on_expired="skip")
        expire(service, machine, deleted)
        publish(topic, 10, 11)
        for _ in range(2):  # told until it says where to go on
            with pytest.raises(MessagesExpired) as told:
                reader.read(timeout=0)
            assert (told.value.first, told.value.earliest, told.value.upcoming) == (5, 10, 12)
        reader.seek("earliest")
        assert [each.offset for each in reader.read(timeout=0)] == [10, 11]
        assert [each.offset for each in skipping.read(timeout=0)] == [10, 11]
        skipping.seek(4, generation=1)
        assert [each.offset for each in skipping.read(timeout=0)] == [10, 11]
        assert skipping.lost >= 6


def test_nobody_is_told_who_has_read_all_that_expired(machine: Machine, deleted: bool) -> None:
    with machine.run() as service, Client(service.url) as client:
        topic = Topic(service.url, ttl="60")
        publish(topic, *range(10))
        reader, latest = Reader("t", client=client), Reader("t", client=client, start="latest")
        assert len(reader.read()) == 10
        position = reader.position
        expire(service, machine, deleted)
        assert reader.read(timeout=0) == latest.read(timeout=0) == []
        publish(topic, 10)
        for each in (reader, latest, Reader("t", client=client, start=position or 0), Reader("t", client=client, start=10)):
            assert [message.offset for message in each.read(timeout=0)] == [10]
    with machine.run() as service:  # nor after a restart, when all that is known is on disk
        assert [each.offset for each in Reader("t", url=service.url, start=position or 0).read(timeout=0)] == [10]


def test_a_reader_from_the_oldest_is_told_only_of_what_it_has_missed_since(machine: Machine, deleted: bool) -> None:
    with machine.run() as service, Client(service.url) as client:
        topic = Topic(service.url, ttl="60")
        early = Reader("t", client=client)
        assert early.read(timeout=0) == []
        publish(topic, 0, 1, 2)
        expire(service, machine, deleted)
        publish(topic, 3)
        with pytest.raises(MessagesExpired) as told:
            early.read(timeout=0)
        assert (told.value.first, told.value.earliest) == (0, 3)
        assert [each.offset for each in Reader("t", client=client).read(timeout=0)] == [3]


def test_what_a_messages_own_ttl_ended_is_no_loss(machine: Machine) -> None:
    with machine.run() as service, Client(service.url) as client:
        topic = Topic(service.url)
        topic.publish("0", "1", "2", "3", ttls=[None, None, 1, 1])
        reader = Reader("t", client=client, page_size=2)
        assert len(reader.read()) == 2
        machine.clock.advance(1_001)
        assert reader.read(timeout=0) == []
        topic.publish("4")
        assert [each.offset for each in reader.read(timeout=0)] == [4]


def test_what_was_rolled_back_is_no_loss_in_a_transaction(machine: Machine) -> None:
    with machine.run() as service, Client(service.url) as client:
        topic = Topic(service.url, ttl="60")
        topic.publish("0")
        with client.transaction() as tx:
            reader = Reader("t", client=client, transaction=tx)
            assert len(reader.read(timeout=0)) == 1
            position = reader.position
        undone = client.transaction()
        undone.start()
        undone.send("t", b"never")
        undone.checkpoint()
        undone.abort()
        assert topic.stats()["upcomingOffset"] == 2
        machine.clock.advance(61_000)
        topic.publish("2")
        with client.transaction() as tx:
            reader = Reader("t", client=client, start=position or 0, transaction=tx)
            assert [each.offset for each in reader.read(timeout=0)] == [2]


def test_a_checkpoint_that_retention_overtook_is_told(machine: Machine, deleted: bool) -> None:
    engine = create_engine("sqlite://")
    checkpoint = Checkpoint("c", "t")
    with machine.run() as service, Client(service.url) as client:
        topic = Topic(service.url, ttl="60")
        publish(topic, *range(10))
        with engine.begin() as connection:
            checkpoint.load(connection)
            checkpoint.save(connection, Reader("t", client=client).read(3)[-1])
        expire(service, machine, deleted)
        publish(topic, 10)
        with engine.begin() as connection:
            position = checkpoint.load(connection)
        assert position is not None
        with pytest.raises(MessagesExpired) as told:
            Reader("t", client=client, start=position).read(timeout=0)
        assert (told.value.first, told.value.earliest) == (None if deleted else 3, 10)


def test_messages_fetched_ahead_are_not_delivered_after_they_expired(running: RunningService) -> None:
    topic = Topic(running.url, ttl="1")
    publish(topic, 0, 1, 2)
    with Client(running.url) as client, Consumer("t", "s", client=client) as consumer:
        reader, iterated = Reader("t", client=client), iter(Reader("t", client=client))
        assert reader.read(1)[0].offset == consumer.receive(1)[0].offset == next(iterated).offset == 0
        time.sleep(1.1)
        for deliver in (lambda: reader.read(timeout=0), lambda: next(iterated)):
            with pytest.raises(MessagesExpired) as told:
                deliver()
            assert (told.value.first, told.value.earliest) == (1, 3)
        assert consumer.receive(timeout=0) == []


# --- a topic made anew --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["latest", 2, "earliest"])
def test_a_reader_is_told_that_its_topic_was_made_anew(running: RunningService, start: str | int) -> None:
    topic = Topic(running.url)
    publish(topic, 0, 1)
    with Client(running.url) as client:
        reader = Reader("t", client=client, start=start)  # type: ignore[arg-type]
        assert len(reader.read(timeout=0)) == (2 if start == "earliest" else 0)
        assert reader.generation == 1
        assert topic.request("DELETE", "").status_code == topic.request("PUT", "", json={}).status_code == 200
        publish(topic, *range(5))
        with pytest.raises(StaleMessageId) as told:
            reader.read(timeout=0)
        assert told.value.generation == 2
        reader.seek("earliest")
        assert [each.offset for each in reader.read(timeout=0)] == [0, 1, 2, 3, 4]
        with pytest.raises(StaleMessageId):
            Reader("t", client=client, start=2, generation=1).read(timeout=0)
    assert assert_problem(topic.poll(startOffset=2, generation=1), 400, "stale_message_id")["generation"] == 2
    assert topic.payloads(startOffset=2, generation=2) == ["2", "3", "4"]


def test_a_reader_of_columns_is_told_what_is_gone(machine: Machine, deleted: bool) -> None:
    with machine.run() as service, Client(service.url) as client:
        topic = Topic(service.url, ttl="60")
        publish(topic, *range(10))
        assert client.read_columns("t", 4, 10, refuse_expired=True).next == 10
        expire(service, machine, deleted)
        publish(topic, 10, 11)
        assert client.offsets({"t": TopicAsked(after=4)})["t"].earliest == 10
        if deleted:
            with pytest.raises(OffsetOutOfRange) as gone:
                client.read_columns("t", 4, 12)
            assert gone.value.earliest == 10
        else:
            with pytest.raises(MessagesExpired) as told:
                client.read_columns("t", 4, 12, refuse_expired=True)
            assert (told.value.first, told.value.earliest, told.value.upcoming) == (4, 10, 12)
            assert client.read_columns("t", 4, 12).offsets[0].first == 10
        assert client.read_columns("t", 10, 12, refuse_expired=True).next == 12


def test_what_was_rolled_back_or_ended_by_its_own_ttl_is_no_loss_in_columns(machine: Machine) -> None:
    with machine.run() as service, Client(service.url) as client:
        topic = Topic(service.url, ttl="60")
        undone = client.transaction()
        undone.start()
        undone.send("t", b"never")
        undone.checkpoint()
        undone.abort()
        topic.publish("1", ttls=[1])
        until(lambda: client.offsets({"t": TopicAsked()})["t"].settled == 2)
        machine.clock.advance(1_001)
        assert client.read_columns("t", 0, 2, refuse_expired=True).offsets == []
        machine.clock.advance(60_000)
        assert client.read_columns("t", 0, 1, refuse_expired=True).offsets == []
