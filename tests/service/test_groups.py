"""A stored group is a log of its own: known again after a restart as it was before it, or refused."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import StoredGroupPublished, TopicDamaged
from oncelog_dedup import Deduplicator, LastEntry, Verdict
from oncelog_service.log.groups.stored import (
    Groups,
    StoredGroup,
    find_stored,
    latest_stored,
    load_group,
    payloads,
    read_group_row,
)
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, FIRST_ROW_ID, pointer_key, row_id
from oncelog_service.storage.memory import MemoryStore
from oncelog_service.storage.port import Table
from oncelog_service.storage.records import GroupRow, encode_record
from oncelog_service.storage.rows import GroupProducer, GroupSummary, message_id_of
from oncelog_service.storage.runs import RUN_BYTES
from tests.service.house import OTHER, PREFIX, flip
from tests.service.written import WrittenLog, bounds

KEY = pointer_key(PREFIX, 100)
histories = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2)), max_size=10
)


def stored(
    history: list[tuple[str | None, int, int, int]], pointer: int = 100, run_bytes: int = RUN_BYTES
) -> tuple[WrittenLog, StoredGroup]:
    """What such requests store, on disk, and the group as the service that stored it knows it."""
    log = WrittenLog(run_bytes=run_bytes)
    live = load_group(log.store, PREFIX, pointer)
    upcoming: dict[str | None, int] = {}
    for producer, count, step, pause in history:
        log.now_ms += pause
        begin = upcoming.get(producer, 7)
        upcoming[producer] = begin + count * step
        ids = None if producer is None else [begin + each * step for each in range(count)]
        payload_ids, first = live.stamps.take(count, log.now_ms)
        live.push(producer, ids, payload_ids, first)
        assert log.put(pointer, Columns([b"x%d" % each for each in range(count)], producer, ids)) == payload_ids
        live.persist(producer, ids, payload_ids, first)
    return log, live


SOME = [("a", 3, 1, 0), ("b", 2, 2, 1), (None, 2, 1, 0), ("a", 2, 1, 1)]


@given(histories, bounds)
def test_a_group_is_known_after_a_restart_as_it_was_before(
    history: list[tuple[str | None, int, int, int]], run_bytes: int
) -> None:
    log, live = stored(history, run_bytes=run_bytes)
    loaded = load_group(log.store, PREFIX, 100)
    assert (loaded.messages, loaded.drained, loaded.row, loaded.key) == (live.messages, True, None, KEY)
    assert loaded.first_payload_id == live.first_payload_id
    assert loaded.dedup.fold.copy() == live.dedup.fold.copy()
    assert loaded.dedup.fold.position == live.dedup.fold.position
    assert set(loaded.producers()) == set(live.producers()) == {each[0] for each in history} - {None}
    assert all(loaded.first_sequence_id(each) == live.first_sequence_id(each) == 7 for each in live.producers())
    for name in live.producers():
        assert loaded.dedup.judge(name, range(100)) == live.dedup.judge(name, range(100)), "a retry is judged as before"
    topic = Deduplicator()
    one, other = loaded.summary(topic), live.summary(topic)
    assert (one.messages, one.last_payload_id, set(one.producers)) == (
        other.messages,
        other.last_payload_id,
        set(other.producers),
    )
    found = list(payloads(log.store, PREFIX, 100))
    assert [each.group_index for each in found] == list(range(sum(each[1] for each in history)))
    assert all(before.payload_id < behind.payload_id for before, behind in pairwise(found))
    last = log.stored(100)[-1].payload_id if log.stored(100) else FIRST_PAYLOAD_ID
    assert loaded.stamps.take(1, log.now_ms) == live.stamps.take(1, log.now_ms)
    assert last < loaded.stamps.take(1, 0)[0][0]


def test_the_summary_says_where_each_producers_newest_message_lies_and_the_one_before_the_group() -> None:
    log, live = stored(SOME)
    topic = Deduplicator()
    topic.push("b", LastEntry(6, message_id_of(row_id(5, 6)), 3))
    ids = [each.payload_id for each in log.stored(100)]
    assert live.summary(topic) == GroupSummary(
        9, ids[8], (GroupProducer("a", 7, 11, ids[8], 8, FIRST_ROW_ID), GroupProducer("b", 7, 9, ids[4], 4, row_id(5, 6)))
    )


def test_what_is_being_written_is_in_flight_and_the_group_not_drained() -> None:
    group = load_group(MemoryStore(), PREFIX, 100)
    assert (group.messages, group.drained, group.first_payload_id) == (0, True, None)
    payload_ids, first = group.stamps.take(2, 1000)
    group.push("a", [1, 2], payload_ids, first)
    assert (group.messages, group.drained, list(group.producers())) == (0, False, ["a"])
    assert group.dedup.judge("a", [1, 2, 3]) == Verdict(0, 2, 1)
    group.persist("a", [1, 2], payload_ids, first)
    assert (group.messages, group.drained, group.first_payload_id) == (2, True, payload_ids[0])
    assert group.dedup.judge("a", [1, 2, 3]) == Verdict(2, 0, 1)


# --- published, expired


def test_nothing_is_added_to_a_published_group_also_after_a_restart() -> None:
    log, live = stored(SOME)
    live.check_open()
    at = log.publish_stored(100, producer="a")
    loaded = load_group(log.store, PREFIX, 100)
    assert loaded.row == GroupRow(at.hex(), "a")
    with pytest.raises(StoredGroupPublished, match="is published already") as refusal:
        loaded.check_open()
    assert (refusal.value.write_pointer, refusal.value.message_id) == (100, message_id_of(at).hex())
    log.disk.tables[Table.GROUP][KEY] = encode_record(GroupRow(None))
    with pytest.raises(StoredGroupPublished, match="expired before it was published"):
        load_group(log.store, PREFIX, 100).check_open()


# --- damage


@pytest.mark.parametrize(("run_bytes", "number"), [(1, 0), (1, 4), (1, 7), (RUN_BYTES, 0), (RUN_BYTES, 1), (RUN_BYTES, 2)])
def test_a_damaged_or_missing_payload_keeps_the_group_closed(run_bytes: int, number: int) -> None:
    log, _ = stored(SOME, run_bytes=run_bytes)
    run = log.stored_runs(100)[number]
    key = KEY + run.id
    for at in range(len(log.disk.tables[Table.PAYLOAD][key])):
        flip(log.disk, Table.PAYLOAD, key, at)
        with pytest.raises(TopicDamaged):
            load_group(log.store, PREFIX, 100)
        flip(log.disk, Table.PAYLOAD, key, at)
    assert load_group(log.store, PREFIX, 100).messages == 9
    del log.disk.tables[Table.PAYLOAD][key]
    with pytest.raises(TopicDamaged, match=f"payload {run.first} stored under write pointer 100 is damaged or missing"):
        load_group(log.store, PREFIX, 100)


@pytest.mark.parametrize("data", [b"", b"{", b'{"version":2,"row_id":null}', b"[]"])
def test_a_groups_record_that_cannot_be_read_is_damage(data: bytes) -> None:
    log, _ = stored(SOME)
    log.disk.tables[Table.GROUP][KEY] = data
    with pytest.raises(TopicDamaged):
        load_group(log.store, PREFIX, 100)
    assert read_group_row(log.store, PREFIX, 101) is None


# --- several groups


def test_a_group_holds_nothing_of_other_pointers_and_other_topics() -> None:
    log, _ = stored(SOME)
    for pointer in (99, 101, 100 * 256, 0, 2**62):
        log.put(pointer, Columns([b"other"]))
    other = WrittenLog(log.disk, OTHER)
    other.put(100, Columns([b"other"]))
    assert load_group(log.store, PREFIX, 100).messages == 9


def test_the_stored_messages_of_a_producer_are_found_newest_first() -> None:
    log, _ = stored(SOME)
    found = find_stored(log.store, KEY, "a", [8, 9, 10, 12])
    assert {each: (payload.sequence_id, payload.group_index) for each, payload in found.items()} == {
        8: (8, 1),
        9: (9, 2),
        10: (10, 7),
    }
    assert [each.group_index for each in latest_stored(log.store, KEY, 4)] == [8, 7, 6, 5]
    del log.disk.tables[Table.PAYLOAD][KEY + log.stored_runs(100)[1].id]
    with pytest.raises(TopicDamaged, match="number 3 is missing"):
        find_stored(log.store, KEY, "a", [8])
    flip(log.disk, Table.PAYLOAD, KEY + log.stored_runs(100)[-1].id)
    with pytest.raises(TopicDamaged, match="checksum"):
        find_stored(log.store, KEY, "a", [8])


async def test_a_group_is_read_once_for_all_who_work_on_it_and_anew_after_it_was_closed() -> None:
    log, _ = stored(SOME)
    groups = Groups(PREFIX, log.store)
    one, other = await asyncio.gather(groups.open(100), groups.open(100))
    assert one is other is await groups.open(100)
    await groups.open(101)
    assert (groups.pointers_of("a"), groups.pointers_of("c")) == ([100], [])
    one.row = GroupRow(FIRST_ROW_ID.hex())
    assert groups.pointers_of("a") == [], "a published group holds no producer back"
    groups.close(100)
    groups.close(100)
    assert await groups.open(100) is not one
