"""What is folded from disk is exactly what was known; a topic of which only half can be known is not opened."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import TopicDamaged
from oncelog.wire.requests import DUPLICATE, STORED, PublishRequest
from oncelog_dedup import LastEntry, Position, SequenceMap, Snapshot
from oncelog_service.log.keep.recovery import last_timestamp, recover
from oncelog_service.log.limits import Limits
from oncelog_service.log.open_topic import Recovered
from oncelog_service.storage import pieces
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import SNAPSHOT_SLOTS, row_id
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Table
from oncelog_service.storage.rows import chain_of, encode_messages, message_id_of
from oncelog_service.storage.runs import Laying
from tests.service.house import BEGIN, PREFIX, crashed, fill, flip, numbered, oldest, opened
from tests.world.clock import ManualClock

SLOTS = [PREFIX + slot for slot in SNAPSHOT_SLOTS]
FEW = Limits(snapshot_messages=10)


def recovered(disk: Disk) -> Recovered:
    return recover(MemoryStore(disk), PREFIX)


def last_entries(found: Recovered) -> SequenceMap:
    return found.fold.copy()


def known(found: Recovered) -> tuple[SequenceMap, Position]:
    return last_entries(found), found.fold.position


async def written(messages: int = 47, trimmed: int = 0) -> Disk:
    """A topic that two producers and some unnamed ones have published to, left without a clean stop."""
    disk = Disk()
    async with opened(disk, ManualClock(BEGIN), FEW, clean=False) as house:
        for number in range(messages):
            request = PublishRequest([b"x"]) if number % 5 == 4 else numbered([b"x"], "ab"[number % 2], number)
            await house.log.publish(request)
        await house.writer.synced()  # the newest snapshot too
        if trimmed:
            await house.log.removal.delete(oldest(disk, trimmed))
        return crashed(disk)


def slots(disk: Disk) -> list[int]:
    """The upcoming offset of the snapshot in each slot."""
    return [Snapshot.from_bytes(disk.tables[Table.SNAPSHOT][key]).position.upcoming_offset for key in SLOTS]


@pytest.mark.parametrize("damaged", ["none", "newest", "both", "gone"])
async def test_snapshots_and_replay_give_what_the_whole_log_gives_and_damaged_ones_cost_a_longer_replay(damaged: str) -> None:
    disk = await written()
    at = slots(disk)
    newest, older = max(at), min(at)
    assert 0 < older < newest < 47
    if damaged == "gone":
        disk.tables[Table.SNAPSHOT].clear()
    for key, offset in zip(SLOTS, at, strict=True):
        if damaged == "both" or (damaged == "newest" and offset == newest):
            flip(disk, Table.SNAPSHOT, key)
    found = recovered(disk)
    assert {name: last_entry.sequence_id for name, last_entry in found.fold.items()} == {"a": 46, "b": 45}
    assert (found.fold.position.upcoming_offset, found.replayed) == (
        47,
        47 - {"none": newest, "newest": older, "both": 0, "gone": 0}[damaged],
    )
    whole = crashed(disk)
    whole.tables[Table.SNAPSHOT].clear()
    assert known(recovered(whole)) == known(found)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 5)), min_size=1, max_size=20))
def test_a_run_of_many_requests_gives_what_its_messages_give_one_by_one(sent: list[tuple[str | None, int]]) -> None:
    """Without deduplication sequence ids need not rise; of equal ones the first message is the producer's newest."""
    disk, expected = Disk(), SequenceMap()
    laying = Laying(Table.MESSAGE, PREFIX, 0)
    for at, (name, number) in enumerate(sent):
        columns, ids = Columns([b"x"], name, None if name is None else [number]), [row_id(BEGIN, at)]
        laying.add(ids, encode_messages(columns, ids, at), chain_of(columns))
        if name is not None:
            expected.raise_to(name, LastEntry(number, message_id_of(ids[0]), at))
    ((last, data),) = laying.rows()
    disk.tables[Table.MESSAGE][PREFIX + last] = data
    assert last_entries(recovered(disk)) == expected


@pytest.mark.parametrize("count", [3, 20])
def test_a_message_that_says_the_offset_of_another_place_keeps_the_topic_closed(count: int) -> None:
    disk, ids = Disk(), [row_id(BEGIN, at) for at in range(count)]
    laying = Laying(Table.MESSAGE, PREFIX, 0)
    laying.add(ids[:2], encode_messages(Columns([b"x"] * 2), ids[:2], 0))
    laying.add(ids[2:], encode_messages(Columns([b"x"] * (count - 2)), ids[2:], 3))
    ((last, data),) = laying.rows()
    disk.tables[Table.MESSAGE][PREFIX + last] = data
    with pytest.raises(TopicDamaged, match="offset 2"):
        recovered(disk)


async def test_the_damaged_slot_is_the_next_one_to_be_written() -> None:
    disk = await written()
    before = slots(disk)
    damaged = before.index(max(before))
    flip(disk, Table.SNAPSHOT, SLOTS[damaged])
    async with opened(disk):
        pass
    assert slots(disk)[damaged] == 47
    assert slots(disk)[1 - damaged] == min(before)


async def test_a_trimmed_log_is_known_from_either_snapshot_and_not_opened_without_one() -> None:
    disk = await written(trimmed=30)
    whole = recovered(await written())
    assert min(slots(disk)) >= 30
    for key in (None, *SLOTS):
        one = crashed(disk)
        if key is not None:
            flip(one, Table.SNAPSHOT, key)
        found = recovered(one)
        assert (*known(found), found.earliest_offset) == (*known(whole), 30)
    for key in SLOTS:
        flip(disk, Table.SNAPSHOT, key)
    with pytest.raises(TopicDamaged, match="no valid snapshot"):
        recovered(disk)
    emptied = await written(trimmed=47)
    assert not oldest(emptied)
    async with opened(emptied) as house:
        receipts = (await house.log.publish(numbered([b"x"] * 3, "a", 45))).receipts
        expected = [(DUPLICATE, 1, None), (DUPLICATE, 1, 46), (STORED, 1, 47)]
        assert [(each.status, each.count, each.offset) for each in receipts] == expected


@pytest.mark.parametrize("row", [None, b"", b"\x01\xff", b"\xff" * 90, bytes(90), 0, 1, 2, 20, -1], ids=str)
@pytest.mark.parametrize(("number", "covered"), [(0, False), (30, False), (-1, True)])
async def test_a_row_that_is_damaged_or_gone_keeps_the_topic_closed(number: int, covered: bool, row: bytes | int | None) -> None:
    """``row``: what stands there instead, or which byte is damaged. The last one is looked at though a snapshot covers it."""
    disk = await written(40)
    key = sorted(disk.tables[Table.MESSAGE])[number]
    if not covered:
        disk.tables[Table.SNAPSHOT].clear()
    if row is None:
        del disk.tables[Table.MESSAGE][key]
    elif isinstance(row, int):
        flip(disk, Table.MESSAGE, key, row)
    else:
        disk.tables[Table.MESSAGE][key] = row
    with pytest.raises(TopicDamaged, match="the log ends before offset 39" if row is None and covered else None):
        recovered(disk)


@pytest.mark.parametrize(("table", "name"), [(Table.PRODUCER, b"a"), (Table.TRIM, b""), (Table.SUBSCRIPTION, b"s")])
async def test_a_small_record_that_cannot_be_read_keeps_the_topic_closed(table: Table, name: bytes) -> None:
    disk = await written(1)
    disk.tables[table][PREFIX + name] = b'{"version":1,'
    with pytest.raises(TopicDamaged):
        recovered(disk)


@pytest.mark.parametrize("deduplication", [True, False])
async def test_a_forgotten_producer_stays_forgotten_over_a_restart_and_the_new_ids_count(deduplication: bool) -> None:
    """Also lower ids that lie behind a higher one, from when deduplication was off: else what is new now would be a duplicate."""
    disk = Disk()
    async with opened(disk, deduplication=deduplication, clean=False) as house:
        for first in (100, 5)[: 1 if deduplication else 2]:
            await house.log.publish(numbered([b"x"] * 9, "p", first))
        await house.log.producers.forget("p")
        assert house.log.dedup.last_persisted("p") is recovered(crashed(disk)).fold.get("p") is None
        await house.log.publish(numbered([b"y"] * 2, "p", 0))
        live = house.log.dedup.fold.copy()
    assert last_entries(recovered(disk)) == live
    assert live.get("p").sequence_id == 1  # type: ignore[union-attr]


async def test_the_last_timestamp_is_known_of_a_log_that_cannot_be_opened() -> None:
    disk = await written()
    assert last_timestamp(MemoryStore(disk), PREFIX) == BEGIN
    disk.tables[Table.MESSAGE].clear()
    assert last_timestamp(MemoryStore(disk), PREFIX) == BEGIN, "the snapshots know it too"
    assert last_timestamp(MemoryStore(Disk()), PREFIX) == 0


@pytest.mark.parametrize("count", [600, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_a_snapshot_in_pieces_survives_a_restart(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 2_000)
    disk = Disk()
    names = [f"producer-{number:06}" for number in range(count)]
    ids = fill(disk, [Columns([b"x"], name, [number % 7]) for number, name in enumerate(names)])
    expected = SequenceMap({name: LastEntry(at % 7, message_id_of(ids[at]), at) for at, name in enumerate(names)})
    async with opened(disk) as house:  # folds the whole log; the clean stop leaves a snapshot
        assert house.log.replayed == count
        assert house.log.dedup.fold.copy() == expected
    assert len(disk.tables[Table.SNAPSHOT]) > 5
    assert max(map(len, disk.tables[Table.SNAPSHOT].values())) <= 2_020
    async with opened(disk, clean=False) as house:
        assert house.log.replayed == 0
        assert house.log.dedup.fold.copy() == expected
        for at in (0, count // 2, count - 1):
            receipts = (await house.log.publish(numbered([b"x", b"new"], names[at], at % 7))).receipts
            assert [(each.status, each.offset == at) for each in receipts] == [(DUPLICATE, True), (STORED, False)]
    assert recovered(disk).replayed == 3
