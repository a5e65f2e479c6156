"""What is folded from disk is exactly what was known; a topic of which only half can be known is not opened."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress

import pytest

from oncelog.errors import ProducerInTransaction, SequenceReused, StoredGroupPublished, TopicDamaged
from oncelog.wire.requests import DUPLICATE, STORED, PublishRequest, Rollback
from oncelog.wire.transaction import TransactionType
from oncelog_dedup import START, Fold, Mark, Position, SequenceMap, Snapshot
from oncelog_service.log.keep.recovery import Recovered, last_timestamp, recover
from oncelog_service.log.limits import Limits
from oncelog_service.storage.keys import SNAPSHOT_SLOTS
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Table
from oncelog_service.storage.rows import Columns, encode_rows, message_id_of
from tests.service.house import BEGIN, PREFIX, House, crashed, fill, flip, numbered, opened, single_rows
from tests.support import ManualClock

SLOTS = [PREFIX + slot for slot in SNAPSHOT_SLOTS]
FEW = Limits(snapshot_messages=10)


def recovered(disk: Disk) -> Recovered:
    return recover(MemoryStore(disk), PREFIX)


def marks(found: Recovered) -> SequenceMap:
    return found.fold.copy()


def known(found: Recovered) -> tuple[SequenceMap, Position]:
    return marks(found), found.fold.position


def written(messages: int = 47, trimmed: int = 0) -> Disk:
    """A topic that two producers and some unnamed ones have published to, left without a clean stop."""

    async def scenario() -> Disk:
        disk = Disk()
        async with opened(disk, ManualClock(BEGIN), FEW, clean=False) as house:
            ids = []
            for number in range(messages):
                request = PublishRequest([b"x"]) if number % 5 == 4 else numbered([b"x"], "ab"[number % 2], number)
                await house.log.publish(request)
                ids.append(house.log.position.last_message_id or b"")
            await house.writer.synced()  # the newest snapshot too
            if trimmed:
                await house.log.trim(single_rows(each[:10] for each in ids[:trimmed]))
            return crashed(disk)

    return asyncio.run(scenario())


def slots(disk: Disk) -> list[int]:
    """The upcoming offset of the snapshot in each slot."""
    return [Snapshot.from_bytes(disk.tables[Table.SNAPSHOT][key]).position.upcoming_offset for key in SLOTS]


def test_a_topic_that_was_never_written_to_is_empty() -> None:
    found = recovered(Disk())
    assert (marks(found), found.fold.position, found.replayed, found.snapshots) == (SequenceMap(), START, 0, [None, None])


def test_snapshot_and_replay_give_what_the_whole_log_gives() -> None:
    disk = written()
    with_snapshots = recovered(disk)
    disk.tables[Table.SNAPSHOT].clear()
    whole = recovered(disk)
    assert known(with_snapshots) == known(whole)
    assert 0 < with_snapshots.replayed < whole.replayed == 47
    assert {name: mark.sequence_id for name, mark in whole.fold.items()} == {"a": 46, "b": 45}


def test_the_newest_of_two_snapshots_is_used() -> None:
    disk = written()
    assert recovered(disk).replayed == 47 - max(slots(disk))
    assert min(slots(disk)) < max(slots(disk))


def test_a_damaged_newest_snapshot_costs_a_longer_replay_and_nothing_else() -> None:
    disk = written()
    whole, older = recovered(disk), min(slots(disk))
    flip(disk, Table.SNAPSHOT, SLOTS[slots(disk).index(max(slots(disk)))])
    found = recovered(disk)
    assert known(found) == known(whole)
    assert found.replayed == 47 - older
    assert sorted(each is None for each in found.snapshots) == [False, True]


def test_two_damaged_snapshots_cost_the_fold_of_the_whole_log() -> None:
    disk = written()
    whole = recovered(disk)
    for key in SLOTS:
        flip(disk, Table.SNAPSHOT, key)
    found = recovered(disk)
    assert (*known(found), found.replayed) == (*known(whole), 47)


def test_the_damaged_slot_is_the_next_one_to_be_written() -> None:
    disk = written()
    damaged = slots(disk).index(max(slots(disk)))
    kept = min(slots(disk))
    flip(disk, Table.SNAPSHOT, SLOTS[damaged])

    async def scenario() -> None:
        async with opened(disk):
            pass

    asyncio.run(scenario())
    assert slots(disk)[damaged] == 47
    assert slots(disk)[1 - damaged] == kept


def test_a_trimmed_log_is_known_from_either_snapshot() -> None:
    disk = written(trimmed=30)
    whole = recovered(written())
    assert min(slots(disk)) >= 30
    for key in (None, *SLOTS):
        one = crashed(disk)
        if key is not None:
            flip(one, Table.SNAPSHOT, key)
        found = recovered(one)
        assert (*known(found), found.earliest_offset) == (*known(whole), 30)


def test_a_trimmed_log_without_a_valid_snapshot_is_not_opened() -> None:
    disk = written(trimmed=30)
    for key in SLOTS:
        flip(disk, Table.SNAPSHOT, key)
    with pytest.raises(TopicDamaged, match="no valid snapshot"):
        recovered(disk)


def test_a_log_trimmed_to_its_end_keeps_every_sequence_id() -> None:
    disk = written(trimmed=47)
    assert not disk.tables[Table.MESSAGE]

    async def scenario() -> None:
        async with opened(disk) as house:
            receipts = (await house.log.publish(numbered([b"x"] * 3, "a", 45))).receipts
            assert [(each.status, each.count, each.offset) for each in receipts] == [(DUPLICATE, 2, None), (STORED, 1, 47)]

    asyncio.run(scenario())


@pytest.mark.parametrize("at", [0, 1, 2, 20, -1])
@pytest.mark.parametrize("number", [0, 1, 30, 46])
def test_a_row_that_cannot_be_read_keeps_the_topic_closed(number: int, at: int) -> None:
    disk = written()
    key = sorted(disk.tables[Table.MESSAGE])[number]
    disk.tables[Table.SNAPSHOT].clear()
    flip(disk, Table.MESSAGE, key, at)
    with pytest.raises(TopicDamaged):
        recovered(disk)


@pytest.mark.parametrize("row", [b"", b"\x01\xff", b"\xff" * 90, bytes(90)], ids=range(4))
@pytest.mark.parametrize("number", [0, 46])
def test_rubbish_instead_of_a_row_keeps_the_topic_closed(number: int, row: bytes) -> None:
    disk = written()
    disk.tables[Table.MESSAGE][sorted(disk.tables[Table.MESSAGE])[number]] = row
    disk.tables[Table.SNAPSHOT].clear()
    with pytest.raises(TopicDamaged):
        recovered(disk)


def test_a_damaged_last_row_is_noticed_also_when_the_snapshot_covers_it() -> None:
    disk = written(40)
    assert max(slots(disk)) == 40
    flip(disk, Table.MESSAGE, max(disk.tables[Table.MESSAGE]))
    with pytest.raises(TopicDamaged):
        recovered(disk)


@pytest.mark.parametrize("number", [0, 1, 30, 45])
def test_a_missing_message_keeps_the_topic_closed(number: int) -> None:
    disk = written()
    disk.tables[Table.SNAPSHOT].clear()
    del disk.tables[Table.MESSAGE][sorted(disk.tables[Table.MESSAGE])[number]]
    with pytest.raises(TopicDamaged):
        recovered(disk)


def test_a_log_that_ends_before_its_snapshot_is_not_opened() -> None:
    disk = written(40)
    del disk.tables[Table.MESSAGE][max(disk.tables[Table.MESSAGE])]
    with pytest.raises(TopicDamaged, match="the log ends before offset 39"):
        recovered(disk)


@pytest.mark.parametrize("table", [Table.PRODUCER, Table.TRIM])
def test_a_small_record_that_cannot_be_read_keeps_the_topic_closed(table: Table) -> None:
    disk = written()
    disk.tables[table][PREFIX + (b"a" if table is Table.PRODUCER else b"")] = b'{"version":1,'
    with pytest.raises(TopicDamaged):
        recovered(disk)


def test_a_forgotten_producer_stays_forgotten_and_the_new_ids_count() -> None:
    async def scenario() -> None:
        disk = Disk()
        async with opened(disk, clean=False) as house:
            await house.log.publish(numbered([b"x"] * 9, "p", 0))
            await house.log.producers.forget("p")
            await house.log.publish(numbered([b"y"] * 2, "p", 0))
            live = house.log.dedup.fold.copy()
        assert marks(recovered(disk)) == live
        assert live.get("p") == recovered(disk).fold.get("p")
        assert live.get("p").sequence_id == 1  # type: ignore[union-attr]

    asyncio.run(scenario())


def test_forgetting_holds_also_for_ids_that_did_not_rise_while_deduplication_was_off() -> None:
    """Live and after a restart the same: otherwise a message that is new now would be "a duplicate" then."""

    async def scenario() -> None:
        disk = Disk()
        async with opened(disk, deduplication=False, clean=False) as house:
            await house.log.publish(numbered([b"x"], "p", 100))
            await house.log.publish(numbered([b"x"], "p", 5))
            await house.log.producers.forget("p")
            assert house.log.dedup.last_persisted("p") is None
        assert recovered(disk).fold.get("p") is None

    asyncio.run(scenario())


# --- transactions


async def play(house: House, clock: ManualClock, rng: random.Random) -> None:
    """Some steps of several transactions over one topic, plain messages between them."""
    begun: list[int] = []
    upcoming: Counter[str] = Counter()
    for _ in range(rng.randint(5, 40)):
        clock.advance(rng.randint(0, 2))
        step = rng.choice(["start", "plain", "direct", "store", "group", "commit", "abort", "roll back"])
        if step == "start" or not begun:
            begun.append((await house.transactions.start(TransactionType.LONG)).write_pointer)
            continue
        pointer = rng.choice(begun)
        name = rng.choice("abc")
        request = numbered([b"x"] * rng.randint(1, 3), name, upcoming[name])
        request.write_pointer = None if step == "plain" else pointer
        with suppress(StoredGroupPublished, SequenceReused, ProducerInTransaction):
            if step in ("plain", "direct"):
                answer = await house.log.publish(request)
                upcoming[name] += len(request.payloads)
                if step == "direct" and rng.random() < 0.3:
                    start, end = (
                        (answer.start_timestamp, answer.start_sequence_id),
                        (answer.end_timestamp, answer.end_sequence_id),
                    )
                    await house.log.roll_back(Rollback(pointer, start, end))
                    upcoming[name] -= len(request.payloads)
            elif step == "store":
                await house.log.store(request)
                upcoming[name] += rng.choice((0, len(request.payloads)))
            elif step == "group":
                await house.log.publish(PublishRequest([], write_pointer=pointer))
        if step in ("commit", "abort"):
            begun.remove(pointer)
            await (house.transactions.commit if step == "commit" else house.transactions.abort)(pointer)
            if rng.random() < 0.7:  # else a crash comes before the topic is told
                await house.log.settle(pointer, step == "commit")


def unsettled(fold: Fold) -> dict[int, list[tuple[int, int, bytes, bytes]]]:
    return {pointer: [each[:4] for each in runs] for pointer, runs in fold.unsettled.items()}


@pytest.mark.parametrize("seed", range(60))
def test_a_crash_among_transactions_leaves_what_was_known_and_the_restart_settles_what_has_ended(seed: int) -> None:
    async def scenario() -> None:
        disk, clock, rng = Disk(), ManualClock(BEGIN), random.Random(seed)
        async with opened(disk, clock, FEW, clean=False) as house:
            await play(house, clock, rng)
            live = house.log.dedup.fold
            found = recovered(crashed(disk)).fold
            assert (found.copy(), found.position) == (live.copy(), live.position), seed
            whole = crashed(disk)
            whole.tables[Table.SNAPSHOT].clear()
            assert (recovered(whole).fold.copy(), recovered(whole).fold.position) == (live.copy(), live.position), seed
            live_unsettled = unsettled(live)
            assert {each: runs for each, runs in unsettled(found).items() if each in live_unsettled} == live_unsettled, seed
            await house.log.settle_ended()
            settled = house.log.dedup.fold.copy(), unsettled(house.log.dedup.fold)
            rows = crashed(disk).tables[Table.MESSAGE]
        async with opened(whole, clock, FEW) as house:
            await house.log.settle_ended()
            assert (house.log.dedup.fold.copy(), unsettled(house.log.dedup.fold)) == settled, seed
            assert whole.tables[Table.MESSAGE] == rows, seed

    asyncio.run(scenario())


def test_the_last_timestamp_is_known_of_a_log_that_cannot_be_opened() -> None:
    disk = written()
    store = MemoryStore(disk)
    assert last_timestamp(store, PREFIX) == BEGIN
    disk.tables[Table.MESSAGE].clear()
    assert last_timestamp(MemoryStore(disk), PREFIX) == BEGIN, "the snapshots know it too"
    assert last_timestamp(MemoryStore(Disk()), PREFIX) == 0


def test_a_hundred_thousand_producers_survive_a_restart() -> None:
    count = 100_000
    disk = Disk()
    names = [f"producer-{number:06}" for number in range(count)]
    ids = fill(disk, [Columns([b"x"], name, [number % 7]) for number, name in enumerate(names)])
    expected = SequenceMap({name: Mark(at % 7, message_id_of(ids[at]), at) for at, name in enumerate(names)})

    async def scenario() -> None:
        async with opened(disk) as house:  # folds the whole log; the clean stop leaves a snapshot
            assert house.log.replayed == count
            assert house.log.dedup.fold.copy() == expected
        async with opened(disk, clean=False) as house:
            assert house.log.replayed == 0
            assert house.log.dedup.fold.copy() == expected
            for at in (0, 50_000, count - 1):
                receipts = (await house.log.publish(numbered([b"x", b"new"], names[at], at % 7))).receipts
                assert [(each.status, each.offset == at) for each in receipts] == [(DUPLICATE, True), (STORED, False)]

    asyncio.run(scenario())
    assert recovered(disk).replayed == 3


def test_a_row_written_by_hand_is_one_the_fold_understands() -> None:
    disk = Disk()
    (each,) = fill(disk, [Columns([b"x"], "p", [0])])
    (row,) = encode_rows(Columns([b"x"], "p", [0]), [each], 0)
    assert disk.tables[Table.MESSAGE] == {PREFIX + each: row}
    assert marks(recovered(disk)) == SequenceMap({"p": Mark(0, message_id_of(each), 0)})
