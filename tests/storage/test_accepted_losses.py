"""What a salvaged store lacks is named, and once that is accepted it is a store like any other: each kind of loss for itself."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import pytest

from oncelog import Client, Consumer, Producer, Reader
from oncelog.errors import TopicDamaged
from oncelog.wire.requests import PublishRequest
from oncelog_service.cli.stores.salvage import Salvaged, _accept, _look_for_losses
from oncelog_service.log.keep import losses
from oncelog_service.log.keep.losses import Hole, fill
from oncelog_service.service import Service
from oncelog_service.storage.copying import SALVAGED, copy_row_of, set_copy_row
from oncelog_service.storage.keys import row_id
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Table
from oncelog_service.storage.records import CopyRow, TrimRow, encode_record
from tests.service.house import PREFIX
from tests.world.clock import ManualClock
from tests.world.service import running_service

MESSAGES = 20
"""Two of a request, and so of a row."""
GROUP = range(MESSAGES, MESSAGES + 3)
END = MESSAGES + 4
"""Behind a group that was stored apart, and an atomic commit."""


@pytest.fixture(scope="module")
def whole() -> Disk:
    disk = Disk()
    with running_service(open_store=lambda: MemoryStore(disk)) as service, Client(service.url) as client:
        client.create_topic("a", {"ttl": 3_600})
        with Producer("a", name="loader", client=client) as producer:
            for number in range(0, MESSAGES, 2):
                producer.send_batch([b"%d" % number, b"%d" % (number + 1)])
        time.sleep(0.01)  # ids have room for fillers between moments
        with client.transaction(buffer_bytes=0) as tx:
            for number in GROUP:
                tx.send("a", b"%d" % number)
        with client.atomic(id="atomic") as batch:
            batch.send("a", b"%d" % (END - 1))
        with Consumer("a", "reader", client=client) as consumer:
            consumer.ack(consumer.read(5, timeout=60)[-1])
    return disk


class Loss(NamedTuple):
    damage: Callable[[Disk], None]
    named: str | None
    gone: frozenset[int] = frozenset()
    """Offsets that are not there any more."""


def without(table: Table, *at: int) -> Callable[[Disk], None]:
    """Rows, by their place in the order of keys; all, where none is named."""

    def damage(disk: Disk) -> None:
        rows = disk.tables[table]
        keys = sorted(rows)
        assert keys
        for key in [keys[each] for each in at] if at else keys:
            del rows[key]

    return damage


def both(*damages: Callable[[Disk], None]) -> Callable[[Disk], None]:
    def damage(disk: Disk) -> None:
        for each in damages:
            each(disk)

    return damage


LOSSES = {
    "nothing": Loss(lambda _: None, None),
    "the store's name": Loss(without(Table.STORE_ID), "the store's name"),
    "a topic's row": Loss(without(Table.TOPIC), "default/a: its properties"),
    "the first messages": Loss(without(Table.MESSAGE, 0), "default/a: offsets 0 to 1", frozenset({0, 1})),
    "messages in the middle": Loss(without(Table.MESSAGE, 2, 3, 5), "default/a: offsets 4 to 7", frozenset({4, 5, 6, 7, 10, 11})),
    "the last message, which a snapshot knows": Loss(
        without(Table.MESSAGE, -1), f"default/a: offsets {END - 1} to {END - 1}", frozenset({END - 1})
    ),
    "the newest messages of a producer, which a snapshot knows": Loss(
        without(Table.MESSAGE, 9), "default/a: offsets 18 to 19", frozenset({18, 19})
    ),
    "a payload of a group": Loss(without(Table.PAYLOAD, 1), f"default/a: offsets {GROUP[0]} to {GROUP[-1]}", frozenset(GROUP)),
    "a snapshot of the producers": Loss(without(Table.SNAPSHOT), None),
    "the transactions": Loss(both(without(Table.TRANSACTION_SNAPSHOT), without(Table.TRANSACTION_EDIT, 0)), "transactions: "),
    "a record of the journal": Loss(without(Table.JOURNAL, 0), "atomic commits: "),
    "what the journal knows of itself": Loss(without(Table.JOURNAL_META), "atomic commits: "),
}


def accepted(disk: Disk) -> list[str]:
    """What is lost; then that is accepted."""
    store, found = MemoryStore(disk), Salvaged()
    set_copy_row(store, CopyRow(of="0" * 32, source=SALVAGED + "memory://", finished=False))
    _look_for_losses(store, found)
    _accept(store)
    mark = copy_row_of(store)
    assert mark is not None
    assert mark.finished
    again = Salvaged()
    _look_for_losses(store, again)
    assert [each for each in again.losses if "the store's name" not in each] == [], "nothing is lost a second time"
    return found.losses


def check_serves(disk: Disk, gone: frozenset[int], clock: ManualClock | None = None) -> None:
    """Everything works on it, and what was not lost is there."""
    with running_service(open_store=lambda: MemoryStore(disk), clock=clock) as service, Client(service.url) as client:
        *_, verified = client.verify("a")
        assert verified.ok, verified.problems
        with Reader("a", client=client, timeout=0) as reader:
            assert [(each.offset, each.payload) for each in reader] == [
                (offset, b"%d" % offset) for offset in range(END) if offset not in gone
            ]
        with Producer("a", name="loader", client=client) as producer:
            assert producer.last_sequence_id == MESSAGES - 1
            assert producer.send(b"next").offset == END
        again = PublishRequest([b"%d" % each for each in range(MESSAGES)], "loader", sequence_ids=list(range(MESSAGES)))
        assert {each.status for each in client.publish("a", again)} == {"duplicate"}, "also what is not there any more"
        with client.transaction() as tx:
            tx.send("a", b"in a transaction")
        with client.atomic() as batch:
            batch.send("a", b"atomic")
        with Consumer("a", "reader", client=client) as consumer:
            received = consumer.read(100, timeout=60)
            assert received[0].offset == min(offset for offset in range(5, END + 1) if offset not in gone)
        *_, verified = client.verify("a")
        assert verified.ok, verified.problems


@pytest.mark.parametrize("what", LOSSES)
def test_what_is_lost_is_named_and_the_rest_is_served_once_that_is_accepted(whole: Disk, what: str) -> None:
    loss, disk = LOSSES[what], Disk()
    disk.tables.update(copy.deepcopy(whole.tables))
    loss.damage(disk)
    named = accepted(disk)
    if loss.named is None:
        assert named == []
    else:
        assert [each for each in named if each.startswith(loss.named)], named
    check_serves(disk, loss.gone)


def test_a_hole_is_filled_in_several_writes(whole: Disk) -> None:
    loss, disk = LOSSES["messages in the middle"], Disk()
    disk.tables.update(copy.deepcopy(whole.tables))
    loss.damage(disk)
    with mock.patch.object(losses, "_AT_ONCE", 3):
        accepted(disk)
    check_serves(disk, loss.gone)


def test_what_stands_for_a_group_leaves_its_own_id_to_a_filler_but_no_more() -> None:
    store, after, group = MemoryStore(Disk()), row_id(1, 0), row_id(1, 1)
    fill(store, Hole(PREFIX, 1, 2, after, group, group))
    assert [key for key, _ in store.scan(Table.MESSAGE, b"", b"\xff" * 64)] == [PREFIX + group]
    with pytest.raises(TopicDamaged, match="more of them than ids"):
        fill(store, Hole(PREFIX, 1, 3, after, group, group))


def test_messages_that_were_deleted_and_come_again_are_deleted_again(whole: Disk) -> None:
    disk, clock = Disk(), ManualClock()
    disk.tables.update(copy.deepcopy(whole.tables))
    before = dict(disk.tables[Table.MESSAGE])

    async def retention(inside: Service) -> int:
        return await inside.opening.retention().once()

    newest = max(int.from_bytes(key[-10:-2], "big") for key in before)
    clock.ms = newest + 3_600_001
    with running_service(open_store=lambda: MemoryStore(disk), clock=clock) as service, Client(service.url) as client:
        client.stats("a")
        service.on_loop(retention)
    left = dict(disk.tables[Table.MESSAGE])
    assert len(left) < len(before)
    disk.tables[Table.MESSAGE].update(before)
    assert accepted(disk) == []
    assert dict(disk.tables[Table.MESSAGE]) == left


def test_what_is_lost_behind_what_retention_has_deleted_is_filled_behind_it(whole: Disk) -> None:
    """A filler with an id that retention has passed would itself count as deleted, and its offset as missing."""
    disk = Disk()
    disk.tables.update(copy.deepcopy(whole.tables))
    rows = disk.tables[Table.MESSAGE]
    (key,) = {each[:-10] for each in rows}
    first, *others = sorted(rows)
    trim = TrimRow(2, (first[-10:] + bytes(10)).hex())
    disk.tables[Table.TRIM][key] = encode_record(trim)
    for each in (first, *others[:3]):
        del rows[each]
    assert accepted(disk) == ["default/a: offsets 2 to 7"]
    check_serves(disk, frozenset(range(8)))
