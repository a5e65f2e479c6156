"""CONTRACT §6.1: what is known of keys is a fold over the log; retention and lost snapshots change nothing in it.

What crashes, roll-backs and failing writes do to it, and each condition judged beside a plain list: tests/simulation.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from oncelog.errors import TopicDamaged
from oncelog.wire.requests import PublishRequest
from oncelog.wire.transaction import TransactionType
from oncelog_service.log.keep.recovery import recover
from oncelog_service.log.key_index import KeyIndex
from oncelog_service.log.limits import Limits
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.log.verify import Findings, verify_log
from oncelog_service.storage.keys import SNAPSHOT_SLOTS
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Table
from tests.patience import PATIENCE
from tests.service.house import PREFIX, House, crashed, flip, oldest, opened

FEW = Limits(snapshot_messages=7, snapshot_seconds=1_000.0)


def keyed(*keys: str | None, **expectations: int | dict[str, int | None]) -> PublishRequest:
    """A request whose messages have these keys."""
    names = [None if key is None else key.encode() for key in keys]
    return PublishRequest([b"x"] * len(keys), keys=names, **expectations)  # type: ignore[arg-type]


def keys_of(log: TopicLog) -> KeyIndex:
    assert log.topic.keys is not None
    return log.topic.keys


def recovered_keys(disk: Disk) -> KeyIndex:
    keys = recover(MemoryStore(disk), PREFIX, True).keys
    assert keys is not None
    return keys


def found_by_verify(house: House) -> Findings:
    *_, last = verify_log(house.store, house.log)
    return last


async def publish_some(house: House, count: int) -> None:
    for number in range(count):
        await house.log.publish(keyed("ab"[number % 2], None))


async def test_where_nobody_asks_nothing_is_kept_of_keys() -> None:
    disk = Disk()
    async with opened(disk, limits=FEW) as house:
        await publish_some(house, 20)
        assert house.log.topic.keys is None
        pointer = await house.start(TransactionType.LONG)
        await house.log.store(PublishRequest([b"x"], keys=[b"k"], write_pointer=pointer))
        assert (await house.log.topic.groups.open(pointer)).keys == {}
    assert disk.tables[Table.SNAPSHOT]
    assert not disk.tables[Table.KEY_SNAPSHOT]


async def test_an_index_that_is_new_is_in_both_slots_before_anything_is_deleted() -> None:
    """The producers' two snapshots were there long before it."""
    disk = Disk()
    async with opened(disk, limits=FEW) as house:
        await publish_some(house, 10)
        await house.log.snapshots.take()
    async with opened(disk, limits=FEW, keyed=True, clean=False) as house:
        assert house.log.snapshots.covered_by_both == 0
        assert await asyncio.wait_for(house.log.removal.delete(oldest(disk, 5)), PATIENCE) == 5
        assert len(disk.tables[Table.KEY_SNAPSHOT]) == 2
        live = keys_of(house.log).copy()
    for slot in SNAPSHOT_SLOTS:
        damaged = crashed(disk)
        flip(damaged, Table.KEY_SNAPSHOT, PREFIX + slot)
        assert recovered_keys(damaged).copy() == live


async def test_keys_whose_messages_are_deleted_are_known_or_the_topic_is_refused() -> None:
    disk = Disk()
    async with opened(disk, limits=FEW, keyed=True, clean=False) as house:
        await house.log.publish(keyed("gone"))
        await publish_some(house, 10)
        await house.log.removal.delete(oldest(disk, 15))
        assert keys_of(house.log).newest("gone") == 0
        assert not found_by_verify(house).problems
    assert recovered_keys(disk).newest("gone") == 0
    for slot in SNAPSHOT_SLOTS:
        flip(disk, Table.KEY_SNAPSHOT, PREFIX + slot)
    with pytest.raises(TopicDamaged, match="newest offsets of keys are not known"):
        recovered_keys(disk)
    assert recover(MemoryStore(disk), PREFIX).keys is None, "with the check off it is not looked at"


@pytest.mark.parametrize("trimmed", [0, 2, 3])
async def test_switched_off_and_on_again_it_claims_nothing_about_what_it_missed(trimmed: int) -> None:
    disk = Disk()
    async with opened(disk, limits=FEW, keyed=True) as house:
        await house.log.publish(keyed("a", "b"))
    async with opened(disk, limits=FEW) as house:
        await house.log.publish(keyed("a", "c"))
        await house.log.publish(keyed("c", "d"))
        last = house.log.position.last_message_id
        await house.log.removal.delete(oldest(disk, trimmed))
        # Once something is deleted they would miss the message with the key a at offset 2.
        assert bool(disk.tables[Table.KEY_SNAPSHOT]) == (not trimmed)
    known = {0: {"a": 2, "b": 1, "c": 4, "d": 5}, 2: {"c": 4, "d": 5}, 3: {}}[trimmed]
    async with opened(disk, limits=FEW, keyed=True) as house:
        assert {key: last_entry.offset for key, last_entry in keys_of(house.log).copy().items()} == known
        assert keys_of(house.log).state()[:2] == (6, last)
        assert not found_by_verify(house).problems
        await house.log.publish(keyed("a", expected_offset=6, expected_key_offsets={key: known.get(key) for key in "abcd"}))
    assert {key: last_entry.offset for key, last_entry in recovered_keys(disk).copy().items()} == {**known, "a": 6}


async def test_switched_on_it_holds_nothing_back_of_a_transaction_that_was_settled_long_ago() -> None:
    """Nobody settles it again, so no snapshot of the keys would ever pass it, nor retention."""
    disk = Disk()
    async with opened(disk) as house:
        pointer = await house.start()
        await house.log.publish(replace(keyed("a"), write_pointer=pointer))
        await house.transactions.commit(pointer)
        await house.log.settle(pointer, True)
        await house.log.snapshots.take()
        await house.log.snapshots.take()
    async with opened(disk, keyed=True) as house:
        assert not keys_of(house.log).fold.unsettled
        assert keys_of(house.log).snapshot().position.upcoming_offset == 1
        assert not found_by_verify(house).problems


async def test_verify_notices_a_key_that_the_index_has_wrong() -> None:
    async with opened(Disk(), keyed=True) as house:
        await publish_some(house, 4)
        assert not found_by_verify(house).problems
        index = keys_of(house.log).fold
        last_entries = dict(index.copy().items())
        index._head.last_entries.raise_to("a", last_entries["b"])
        (problem,) = found_by_verify(house).problems
        assert problem.startswith("key 'a': the log says")
