"""What became of rows, and what a topic holds back, is said wherever somebody asks or is stopped; an operator can end it."""

from __future__ import annotations

import re

import pytest
import requests

from oncelog.errors import OffsetOutOfRange
from oncelog.wire.requests import PublishRequest
from oncelog.wire.transaction import POINTERS_PER_MS
from tests.behaviours.cli.support import run, value
from tests.patience import PATIENCE, until
from tests.world.house import House

STATES = [None, "committed", "rolled_back", "invalid", "committed", "committed", "in_progress", None]
"""Of the messages of :func:`written`; the two of the group are one row."""
ROWS = (0, 1, 2, 3, 4, 6, 7)


@pytest.fixture
def written(house: House) -> list[int | None]:
    """A topic with a row of each kind; the write pointer of each message."""
    house.make()
    client = house.client
    committed, aborted, invalid, undecided, group = (client.start_transaction(timeout=600).write_pointer for _ in range(5))
    pointers = [None, committed, aborted, invalid, group, group, undecided, None]
    client.publish("t", PublishRequest([b"plain"]))
    for pointer, payload in ((committed, b"committed"), (aborted, b"aborted"), (invalid, b"invalid")):
        client.publish("t", PublishRequest([payload], write_pointer=pointer))
    client.store("t", PublishRequest([b"s1", b"s2"], write_pointer=group))
    client.publish_transactional("t", PublishRequest([], write_pointer=group))
    for pointer, how in ((committed, "commit"), (group, "commit"), (aborted, "abort"), (invalid, "invalidate")):
        house.end(pointer, how)
    client.publish("t", PublishRequest([b"open"], write_pointer=undecided))
    client.publish("t", PublishRequest([b"behind"]))
    until(lambda: len(client.held_on("t")) == 1)
    return pointers


def test_rows_say_their_pointer_and_what_became_of_it_from_memory_and_from_disk(house: House, written: list[int | None]) -> None:
    for _ in house.lives():
        rows = house.client.inspect_rows("t")
        expected = [(at, written[at], STATES[at]) for at in ROWS]
        assert [(each.offset, each.write_pointer, each.state) for each in rows] == expected
        assert [(each.group, each.messages) for each in rows if each.messages != 1] == [(True, 2)]
        polled = [(each.get("writePointer", {}).get("long"), each.get("state", {}).get("string")) for each in house.topic.read()]
        nobody_asked = ["rolled_back" if each == "invalid" else each for each in STATES]
        assert polled == list(zip(written, nobody_asked, strict=True))
    assert [each.payload for each in house.client.inspect_rows("t", 2, 1)] == ["aborted"]
    (group,) = house.client.inspect_groups("t")
    assert (group.write_pointer, group.messages, group.state) == (written[4], 2, "committed")
    assert group.published == rows[4].message_id
    assert [each.payload for each in house.client.inspect_payloads("t", written[4] or 0)] == ["s1", "s2"]
    with pytest.raises(OffsetOutOfRange):
        house.client.inspect_rows("t", 100)


def test_the_debugger_prints_rows_groups_and_payloads(house: House, written: list[int | None]) -> None:
    url = house.service.url
    rows = value(run("inspect", "rows", "t", "--from", "1", "--limit", "2", "--json", url=url))
    assert [(each["write_pointer"], each["state"]) for each in rows] == [(written[at], STATES[at]) for at in (1, 2)]
    (group,) = value(run("inspect", "groups", "t", "--json", url=url))
    assert group["write_pointer"] == written[4]
    assert "s2" in run("inspect", "payloads", "t", str(written[4]), url=url).stdout


# --- what a topic holds back


def publish(house: House, pointer: int | None, *payloads: bytes, producer: str | None = None) -> None:
    ids = None if producer is None else list(range(len(payloads)))
    house.client.publish("t", PublishRequest(list(payloads), producer, sequence_ids=ids, write_pointer=pointer))


@pytest.fixture
def foreign(house: House) -> int:
    """A write pointer of another transaction service, which is in use."""
    house.restart(foreign_write_pointers=True)
    house.make()
    return house.clock.ms * POINTERS_PER_MS + 500


def test_what_a_topic_holds_back_is_seen_wherever_it_stops_somebody(house: House, foreign: int) -> None:
    client, since = house.client, house.clock.ms
    client.open_subscription("t", "s")
    publish(house, None, b"before")
    publish(house, foreign, b"1", b"2", producer="writer")
    house.clock.advance(60_000)
    ours = client.start_transaction(timeout=600).write_pointer
    publish(house, ours, b"3")

    (first, second) = client.held_on("t")
    assert (first.write_pointer, first.first_offset, first.messages, first.producers) == (foreign, 1, 2, ["writer"])
    assert (first.since_ms, first.state) == (since, None)
    assert (second.write_pointer, second.messages, second.state) == (ours, 1, "in_progress")
    assert [(each.topic, each.write_pointer) for each in client.held()] == [("t", foreign), ("t", ours)]
    stats = client.stats("t")
    assert (stats.held_messages, stats.held_write_pointers) == (3, 2)
    (shown,) = client.subscriptions("t")
    assert (shown.stable_offset, shown.held_by, shown.held_since_ms) == (1, foreign, since)
    metrics = requests.get(house.service.url + "/metrics", timeout=PATIENCE).text
    assert re.search(r"^oncelog_held_topics 1\.0$", metrics, re.M)
    assert re.search(r"^oncelog_held_seconds 60\.0$", metrics, re.M)


def test_of_a_producer_it_is_said_when_it_last_published_and_who_gave_its_name(house: House) -> None:
    house.topic.open_producer("mine", "a")
    assert [(each.last_published_ms, each.assigned) for each in house.client.producers("t")] == [(None, False)]
    house.clock.advance(10)
    house.topic.send("mine", 1)
    published = house.clock.now_ms()
    house.clock.advance(10)
    given = house.topic.open_producer(None, "b")["name"]
    for _ in house.lives():
        found = {each.name: (each.last_published_ms, each.assigned) for each in house.client.producers("t")}
        assert found == {"mine": (published, False), given: (None, True)}
