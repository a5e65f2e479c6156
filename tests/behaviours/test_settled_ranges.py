"""A settled range of offsets holds the same messages whenever it is read: whatever is published, decided or restarted later."""

from __future__ import annotations

from random import Random

import pytest

from oncelog import Client
from oncelog.errors import InvalidRequest, OffsetOutOfRange, StaleMessageId
from oncelog.wire.columns import MessageColumns, unpack
from oncelog.wire.models import TopicAsked
from tests.behaviours.conftest import Machine
from tests.behaviours.mixed_log import MixedLog
from tests.patience import until
from tests.rest.talk import TIMEOUT, Topic, assert_problem
from tests.support import RunningService

LIVES = 10**9


def settled(client: Client) -> int:
    return client.offsets({"t": TopicAsked()})["t"].settled


def read(client: Client, first: int, upto: int, limit: int | None = None) -> list[tuple[bytes, int, bytes | None]]:
    """Id, offset and payload of each message, page by page."""
    found: list[tuple[bytes, int, bytes | None]] = []
    while True:
        page = client.read_columns("t", first, upto, limit=limit)
        found += spread(page)
        first = page.next
        if first == upto:
            return found


def spread(page: MessageColumns) -> list[tuple[bytes, int, bytes | None]]:
    ids = [page.message_ids[at : at + 20] for at in range(0, len(page.message_ids), 20)]
    offsets = [run.first + step for run in page.offsets for step in range(run.count)]
    return list(zip(ids, offsets, unpack(page.values), strict=True))


@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_settled_once_is_read_again_the_same(machine: Machine, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.behaviours.mixed_log.TTL", LIVES)
    monkeypatch.setattr("tests.behaviours.mixed_log.SHORT_TTL", LIVES)
    monkeypatch.setattr(MixedLog, "_foreign", lambda _: None)  # undecided for as long as a transaction may live
    log, random = MixedLog(machine.clock, seed, 30), Random(seed)
    before: list[tuple[bytes, int, bytes | None]] = []
    for _ in range(3):
        with machine.run() as service:
            log.attach(service)
            with Client(service.url) as client:
                for _ in range(5):
                    log._steps(8)
                    upto = settled(client)
                    found = read(client, 0, upto, limit=random.randint(1, 40))
                    assert [each for each in found if each[1] < (before[-1][1] + 1 if before else 0)] == before
                    before = found
    with machine.run() as service:
        log.attach(service)
        log.finish()
        with Client(service.url) as client:
            whole = log.topic.stats()["upcomingOffset"]
            until(lambda: settled(client) == whole)
            found = read(client, 0, whole)
            assert found[: len(before)] == before
            counting = [each for each in log.rows if each.payload is not None and not each.rolled_back]
            counting = [each for each in counting if each.pointer not in log._hidden]
            assert [payload for _, _, payload in found] == [(each.payload or "").encode() for each in counting]


def test_a_transaction_that_commits_late_never_appears_below_a_settled_end(running: RunningService) -> None:
    topic = Topic(running.url)
    with Client(running.url) as client:
        topic.publish("a")
        early, late = client.start_transaction(), client.start_transaction()
        topic.publish_under(late.write_pointer, "late")
        topic.publish_under(early.write_pointer, "early")
        client.commit_transaction(early.write_pointer)
        topic.publish("b")
        assert settled(client) == 1
        assert [payload for _, _, payload in read(client, 0, 1)] == [b"a"]
        with pytest.raises(OffsetOutOfRange) as refused:
            client.read_columns("t", 1, 2)
        assert (refused.value.settled, refused.value.earliest, refused.value.upcoming) == (1, 0, 4)
        client.commit_transaction(late.write_pointer)
        assert client.offsets({"t": TopicAsked(after=1)}, wait=TIMEOUT)["t"].settled == 4
        assert [payload for _, _, payload in read(client, 1, 4)] == [b"late", b"early", b"b"]


def test_a_topic_created_anew_is_not_mistaken_for_the_one_before(running: RunningService) -> None:
    topic = Topic(running.url)
    with Client(running.url) as client:
        topic.publish("a")
        assert client.read_columns("t", 0, 1, generation=1).messages == 1
        client.delete_topic("t")
        client.create_topic("t")
        topic.publish("b")
        with pytest.raises(StaleMessageId):
            client.read_columns("t", 0, 1, generation=1)
        assert [payload for _, _, payload in spread(client.read_columns("t", 0, 1, generation=2))] == [b"b"]


def test_what_retention_deleted_is_refused_and_what_expired_is_left_out(machine: Machine) -> None:
    with machine.run(retention_seconds=0.05) as service, Client(service.url) as client:
        topic = Topic(service.url, ttl="10")
        topic.publish("a", "b")
        machine.clock.advance(10_001)
        topic.publish("c")
        assert client.offsets({"t": TopicAsked()})["t"].earliest == 2
        assert [offset for _, offset, _ in read(client, 2, 3)] == [2]
        until(lambda: topic.stats()["earliestOffset"] > 0)
        with pytest.raises(OffsetOutOfRange) as refused:
            client.read_columns("t", 0, 3)
        assert refused.value.earliest == 2


def test_what_is_wrong_with_a_range_is_refused(running: RunningService) -> None:
    topic = Topic(running.url)
    topic.publish("a")
    with Client(running.url) as client:
        for first, upto in ((-1, 1), (1, 0)):
            with pytest.raises(InvalidRequest):
                client.read_columns("t", first, upto)
        with pytest.raises(OffsetOutOfRange):
            client.read_columns("t", 0, 2)
    for query in (
        "",
        "first=0",
        "first=0&upto=x",
        "first=0&upto=1&limit=0",
        "first=0&upto=1&maxBytes=0",
        "first=0&upto=1&properties=yes",
    ):
        assert_problem(topic.request("GET", f"/columns?{query}"), 400, "invalid_request")


def test_properties_come_when_they_are_asked_for(running: RunningService) -> None:
    topic = Topic(running.url)
    topic.publish("a", "b", properties=[{"k": "v"}, None])
    with Client(running.url) as client:
        assert client.read_columns("t", 0, 2).properties is None
        assert client.read_columns("t", 0, 2, properties=True).properties == [{"k": "v"}, None]
        assert client.read_columns("t", 1, 2, properties=True).properties is None
