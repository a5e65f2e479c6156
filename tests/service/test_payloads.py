"""A living group is never beheaded: its payloads go when the row that published it has gone, and not before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import TopicDamaged
from oncelog.wire.transaction import POINTERS_PER_MS
from oncelog_service.log.groups.payloads import Outdated, generations_with_payloads, outdated_groups, payload_keys
from oncelog_service.log.read.pages import AS_TMS, Bounds, read_page
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import FIRST_ROW_ID, generation_key, pointer_key, topic_key
from oncelog_service.storage.port import Table
from oncelog_service.storage.records import GroupRow, encode_record
from tests.service.house import BEGIN, OTHER, PREFIX, flip
from tests.service.written import WrittenLog

ALL = Bounds(10**6, 10**9, 0)
P = BEGIN * POINTERS_PER_MS
LATER = BEGIN + 10**6
"""A time from which on everything here has expired."""


def stored(log: WrittenLog, pointer: int, *times: int) -> None:
    """One payload at each of these times after the beginning, ms."""
    for at in times:
        log.put(pointer, Columns([b"x%d" % at]), now_ms=BEGIN + at)


def outdated(log: WrittenLog, live_from: int = LATER, oldest_pointer: int = 0) -> list[Outdated]:
    return outdated_groups(log.store, PREFIX, live_from, oldest_pointer)


def delete(log: WrittenLog, group: Outdated, limit: int) -> list[list[tuple[Table, bytes]]]:
    """Slice after slice, as retention does."""
    slices = []
    while keys := payload_keys(log.store, group, limit):
        assert len(keys) <= limit
        slices.append(keys)
        for table, key in keys:
            del log.disk.tables[table][key]
    return slices


# --- where there is anything


def test_what_has_payloads_or_groups_is_found_and_nothing_else() -> None:
    log = WrittenLog()
    assert generations_with_payloads(log.store) == set()
    prefixes = [
        generation_key(topic_key(*name), number)
        for name in (("a", "b"), ("a", "b-c"), ("ab", "c"))
        for number in (1, 2, 2**31 - 1)
    ]
    for place, prefix in enumerate(prefixes):
        table = (Table.PAYLOAD, Table.GROUP, Table.CHUNK)[place % 3]
        for pointer in (-(2**62), -1, 1, 2**62):
            log.disk.tables[table][pointer_key(prefix, pointer) + b"\xff" * (10 if table is Table.PAYLOAD else 0)] = b""
    assert generations_with_payloads(log.store) == {prefix for place, prefix in enumerate(prefixes) if place % 3 != 2}


# --- what goes


def test_the_note_of_a_group_is_kept_as_long_as_its_pointer_could_be_used() -> None:
    log = WrittenLog()
    at = log.publish_stored(P)  # empty: nothing in it that could hold it
    assert outdated(log, LATER, P + 1) == []
    del log.disk.tables[Table.MESSAGE][PREFIX + at]
    for oldest, kept in ((P - 1, True), (P, True), (P + 1, False)):
        (group,) = outdated(log, LATER, oldest)
        assert group == Outdated(P, pointer_key(PREFIX, P), unpublished=False, keep_row=kept)
        assert payload_keys(log.store, group, 100) == ([] if kept else [(Table.GROUP, group.key)])


def test_only_this_topics_groups_are_found_each_once_and_in_order() -> None:
    log = WrittenLog()
    for pointer in (P + 256, P, P + 1, P - 1):
        stored(log, pointer, 0, 1, 2)
        log.disk.tables[Table.GROUP][pointer_key(PREFIX, pointer)] = encode_record(GroupRow(None))
    stored(WrittenLog(log.disk, OTHER), P + 2, 0)
    stored(WrittenLog(log.disk, PREFIX[:-1] + b"\x00"), P + 3, 0)
    assert [each.pointer for each in outdated(log)] == [P - 1, P, P + 1, P + 256]


def test_damage_is_refused_and_no_reason_to_delete() -> None:
    log = WrittenLog()
    stored(log, P, 0, 1)
    flip(log.disk, Table.PAYLOAD, max(log.disk.tables[Table.PAYLOAD]))
    with pytest.raises(TopicDamaged):
        outdated(log)
    log.disk.tables[Table.GROUP][pointer_key(PREFIX, P)] = b"{"
    with pytest.raises(TopicDamaged):
        outdated(log)


# --- any history

moments = st.sampled_from([0, 0, 100]) | st.sampled_from([0, 100, 200]) | st.integers(0, 700)
groups = st.lists(
    st.tuples(
        st.tuples(moments, st.integers(0, 2)),  # when its transaction began, and which one in that millisecond
        st.lists(st.integers(0, 300), max_size=4),  # when each payload came after that
        st.sampled_from(["stored", "published", "trimmed", "expired", "rolled back"]),
    ),
    min_size=2,
    max_size=8,
    unique_by=lambda each: each[0],
)


@given(groups, moments, moments, st.integers(1, 3))
def test_in_any_history_only_what_nobody_can_see_any_more_goes(
    history: list[tuple[tuple[int, int], list[int], str]], live_from: int, oldest: int, limit: int
) -> None:
    log = WrittenLog()
    gone: list[int] = []
    for (began, number), times, state in sorted(history):
        pointer = (BEGIN + began) * POINTERS_PER_MS + number
        stored(log, pointer, *(began + each for each in sorted(times)))
        if state in ("published", "rolled back"):
            log.publish_stored(pointer, rolled=state == "rolled back")
        elif state == "trimmed":
            log.disk.tables[Table.GROUP][pointer_key(PREFIX, pointer)] = encode_record(GroupRow(FIRST_ROW_ID.hex()))
        elif state == "expired":
            log.disk.tables[Table.GROUP][pointer_key(PREFIX, pointer)] = encode_record(GroupRow(None))
        old = began < live_from and (state != "stored" or (times and began + max(times) < live_from))
        if old and state in ("stored", "trimmed", "expired"):
            gone.append(pointer)
    before = read_page(log.store, PREFIX, FIRST_ROW_ID, ALL, AS_TMS, None)
    oldest_pointer = (BEGIN + oldest) * POINTERS_PER_MS
    found = outdated(log, BEGIN + live_from, oldest_pointer)
    assert [each.pointer for each in found] == gone
    for group in found:
        assert group.unpublished == (group.key not in log.disk.tables[Table.GROUP])
        deleted = [each for part in delete(log, group, limit) for each in part]
        assert all(key.startswith(group.key) for _, key in deleted)
        assert [table for table, _ in deleted] == sorted((table for table, _ in deleted), key=(Table.PAYLOAD, Table.GROUP).index)
        assert not log.stored(group.pointer)
        if group.pointer >= oldest_pointer:
            assert group.unpublished == (group.key not in log.disk.tables[Table.GROUP])
        else:
            assert group.key not in log.disk.tables[Table.GROUP]
    assert read_page(log.store, PREFIX, FIRST_ROW_ID, ALL, AS_TMS, None) == before
