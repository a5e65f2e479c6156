"""A scan is right or refused: a missing or damaged row or payload is never passed over, wherever it lies; groups count as their
messages, and any offset is found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import TopicDamaged
from oncelog_service.log.read.pages import AS_TMS, Bounds, read_page
from oncelog_service.log.scan import (
    Expired,
    after,
    end_of,
    expired,
    expired_rows,
    find_offset,
    following,
    last_payload,
    row_at,
    row_before,
    rows_from,
    stored_in,
    stored_under,
)
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import AFTER_ANY, FIRST_ROW_ID, pointer_key, row_id, split_row_id
from oncelog_service.storage.memory import MemoryStore
from oncelog_service.storage.payload_rows import encode_payload_rows
from oncelog_service.storage.port import Table
from oncelog_service.storage.records import TrimRow, encode_record
from tests.service.house import BEGIN, OTHER, PREFIX, fill, flip, single_rows
from tests.service.written import Request, WrittenLog, requests, written


def beside_others(history: Sequence[Request]) -> WrittenLog:
    """The log of these requests, in the key space between two other ones."""
    log = written(history)
    fill(log.disk, [Columns([b"other"])] * 3, OTHER)
    fill(log.disk, [Columns([b"other"])] * 3, PREFIX[:-1] + b"\x00")
    return log


PLAIN: list[Request] = [("plain", 3, False, 1, None)] * 4

ONE: Request = ("plain", 1, False, 1, None)


def one_group(count: int = 7, rolled: bool = False) -> WrittenLog:
    """Two plain messages, a group that two requests stored (others' payloads on both sides of it), one plain message."""
    log = WrittenLog()
    log.publish(Columns([b"a", b"b"]))
    for pointer in (99, 101):
        log.put(pointer, Columns([b"other"]))
    log.put(100, Columns([b"%d" % each for each in range(count - 3)]))
    log.put(100, Columns([b"%d" % each for each in range(count - 3, count)]), now_ms=log.now_ms + 5)
    log.publish_stored(100, rolled=rolled)
    log.publish(Columns([b"z"]))
    return log


def rows_of(log: WrittenLog) -> dict[bytes, bytes]:
    return log.disk.tables[Table.MESSAGE]


def group_row(log: WrittenLog) -> bytes:
    return rows_of(log)[PREFIX + log.row_ids[2]]


def payload_keys(log: WrittenLog, pointer: int = 100) -> list[bytes]:
    base = pointer_key(PREFIX, pointer)
    return sorted(each for each in log.disk.tables[Table.PAYLOAD] if each.startswith(base))


def scanned(log: WrittenLog, start: bytes = FIRST_ROW_ID) -> list[bytes]:
    return [each for each, _ in rows_from(log.store, PREFIX, start)]


def refused(log: WrittenLog, *starts: bytes, match: str | None = None) -> None:
    for start in starts or (FIRST_ROW_ID,):
        with pytest.raises(TopicDamaged, match=match):
            scanned(log, start)


# --- rows


@given(requests)
def test_a_scan_returns_every_row_of_its_topic_with_offsets_dense_over_groups_from_any_place(history: list[Request]) -> None:
    log = beside_others(history)
    assert scanned(log) == log.row_ids
    for number, each in enumerate(log.row_ids):
        assert scanned(log, each) == log.row_ids[number:]
        assert scanned(log, following(each)) == scanned(log, after(each)) == log.row_ids[number + 1 :]
        before = row_before(log.store, PREFIX, each)
        assert (None if before is None else before[0]) == ([None, *log.row_ids][number])
    if log.row_ids:
        assert end_of(rows_of(log)[PREFIX + log.row_ids[-1]]) == len(log.messages)


@given(requests, st.data())
def test_a_missing_row_with_messages_is_noticed_wherever_the_scan_begins(history: list[Request], data: st.DataObject) -> None:
    log = beside_others([ONE, *history, ONE])
    gone = data.draw(st.sampled_from(sorted({each.row_id for each in log.messages} - {log.row_ids[-1]})))
    del rows_of(log)[PREFIX + gone]
    refused(log, FIRST_ROW_ID, gone, following(gone), match="is missing")
    with pytest.raises(TopicDamaged, match="is missing"):
        expired_rows(log.store, PREFIX, 2**62, 0, 100)


DAMAGES = {
    **{f"flags ^ {flags}": lambda row, flags=flags: row[:1] + bytes([row[1] ^ flags]) + row[2:] for flags in (1, 4, 15, 32, 255)},
    **{f"rubbish {at}": lambda _, row=row: row for at, row in enumerate((b"", b"\x01\x00", b"\xff" * 40, bytes(60)))},
    **{f"byte {at}": lambda row, at=at: row[:at] + bytes([row[at] ^ 16]) + row[at + 1 :] for at in (2, 6, 16, -5, -1)},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_row_is_refused_wherever_the_scan_begins(damage: str) -> None:
    for log, number in ((written(PLAIN), 0), (written(PLAIN), 7), (written(PLAIN), 11), (one_group(), 2)):
        key = PREFIX + log.row_ids[number]
        rows_of(log)[key] = DAMAGES[damage](rows_of(log)[key])
        refused(log, FIRST_ROW_ID, log.row_ids[number], after(log.row_ids[number]))
        with pytest.raises(TopicDamaged):
            row_at(log.store, PREFIX, log.row_ids[number])


def test_intact_rows_that_are_not_in_their_places_are_damage() -> None:
    log = written(PLAIN)
    rows, one, other = rows_of(log), PREFIX + log.row_ids[3], PREFIX + log.row_ids[4]
    rows[one], rows[other] = rows[other], rows[one]
    refused(log)
    log = written(PLAIN)
    rows, (timestamp, seq_id) = rows_of(log), split_row_id(log.row_ids[-1])
    rows[PREFIX + row_id(timestamp, seq_id + 1)] = rows.pop(PREFIX + log.row_ids[-1])
    refused(log, match="belongs somewhere else")


def trim(log: WrittenLog, count: int) -> None:
    """Retention has deleted so many rows."""
    left = log.row_ids[count:]
    for each in log.row_ids[:count]:
        del rows_of(log)[PREFIX + each]
    earliest = sum(each.row_id not in left for each in log.messages)
    log.disk.tables[Table.TRIM][PREFIX] = encode_record(TrimRow(earliest))


def test_a_log_that_retention_cut_begins_where_it_was_cut() -> None:
    log = written(PLAIN)
    trim(log, 4)
    assert scanned(log) == scanned(log, log.row_ids[2]) == log.row_ids[4:]
    del rows_of(log)[PREFIX + log.row_ids[4]]
    refused(log, match="offset 4 is missing")
    log.disk.tables[Table.TRIM][PREFIX] = b"{"
    refused(log)


# --- payloads


@pytest.mark.parametrize("rolled", [False, True])
def test_a_group_is_read_from_any_payload_id(rolled: bool) -> None:
    log = one_group(rolled=rolled)
    everything = [(each.message_id[10:], each.offset) for each in log.messages[2:-1]]
    row = row_at(log.store, PREFIX, log.row_ids[2])
    assert row is not None
    assert list(stored_under(log.store, PREFIX, row)) == list(stored_in(log.store, PREFIX, group_row(log)))
    between = [row_id(split_row_id(each)[0], split_row_id(each)[1] + 1) for each, _ in everything]
    for start in (b"", bytes(10), row_id(0, 1), b"\xff" * 10, *between, *(each for each, _ in everything)):
        for within in (start, after(start)):
            found = [(each.payload_id, each.offset) for each in stored_in(log.store, PREFIX, group_row(log), within)]
            assert found == [each for each in everything if each[0] >= within]


def payloads_refused(log: WrittenLog, *places: bytes, match: str | None = None) -> None:
    for within in places or (b"",):
        with pytest.raises(TopicDamaged, match=match):
            list(stored_in(log.store, PREFIX, group_row(log), within))


@pytest.mark.parametrize("number", [0, 3, 6])
def test_a_damaged_or_missing_payload_is_refused_at_and_right_behind_its_place(number: int) -> None:
    key = payload_keys(one_group())[number]
    for at in (None, *range(len(one_group().disk.tables[Table.PAYLOAD][key]))):
        log = one_group()
        if at is None:
            del log.disk.tables[Table.PAYLOAD][key]
        else:
            flip(log.disk, Table.PAYLOAD, key, at)
        payloads_refused(log, b"", key[-10:], after(key[-10:]))
        if number == 6 and at is not None:
            with pytest.raises(TopicDamaged):
                last_payload(log.store, PREFIX, 100)
            with pytest.raises(TopicDamaged):
                find_offset(log.store, PREFIX, 5)


def test_payloads_that_are_too_few_too_many_or_not_in_their_places_are_refused() -> None:
    log = one_group()
    log.put(100, Columns([b"late"]))
    payloads_refused(log, match="7 payloads were stored under write pointer 100, 8 are there")
    log = one_group()
    keys, rows = payload_keys(log), log.disk.tables[Table.PAYLOAD]
    rows[keys[2]], rows[keys[3]] = rows[keys[3]], rows[keys[2]]
    payloads_refused(log)
    (rows[keys[3]],) = encode_payload_rows(Columns([b"3"]), [keys[3][-10:]], 4)
    payloads_refused(log)
    for key in keys[3:]:
        del rows[key]
    with pytest.raises(TopicDamaged, match="payload 5 of the group"):
        find_offset(log.store, PREFIX, 7)
    for key in keys[:3]:
        del rows[key]
    match = "7 payloads were stored under write pointer 100, 0 are there"
    payloads_refused(log, b"", b"\x00" * 10, b"\x00\x00\x01", b"\xff" * 10, match=match)


def test_the_last_payload_of_a_pointer_is_its_own_or_none() -> None:
    log = one_group()
    assert last_payload(log.store, PREFIX, 100) == log.disk.tables[Table.PAYLOAD][payload_keys(log)[-1]]
    assert last_payload(log.store, PREFIX, 98) is last_payload(log.store, PREFIX, 102) is None


# --- by offset


@given(requests, st.integers(0, 12), st.integers(0, 45))
def test_an_offset_is_found_as_by_looking_through_all_of_the_log(history: list[Request], trimmed: int, offset: int) -> None:
    log = beside_others(history)
    left = log.row_ids[trimmed:]
    trim(log, trimmed)
    earliest = len([each for each in log.messages if each.row_id not in left])
    naive = [each for each in log.messages if each.row_id in left and each.offset >= offset]
    found = find_offset(log.store, PREFIX, offset)
    assert [each for each in log.messages if each.row_id in left and found is not None and each.message_id >= found] == naive
    if naive and offset >= earliest:
        first = naive[0]
        begins = not any(each.row_id == first.row_id and each.offset < first.offset for each in log.messages)
        assert found == (first.row_id if begins else first.message_id)


def test_a_damaged_row_met_while_looking_for_an_offset_is_refused() -> None:
    log = written(PLAIN)
    flip(log.disk, Table.MESSAGE, PREFIX + log.row_ids[-1])
    with pytest.raises(TopicDamaged):
        find_offset(log.store, PREFIX, 8)
    assert row_before(log.store, PREFIX, AFTER_ANY) is not None


# --- what has expired


def test_a_message_expires_with_the_first_millisecond_of_its_age_and_its_own_ttl_only_shortens_the_topics() -> None:
    log = WrittenLog()
    (at,) = log.publish(Columns([b"x"], ttls=[2]), step_ms=0)
    row = rows_of(log)[PREFIX + at]
    for live_from, age_ms, gone in ((0, 1_999, False), (0, 2_000, True), (BEGIN, 999, False), (BEGIN + 1, 1_000, True)):
        assert expired(at, row, live_from, BEGIN + age_ms) == gone
    for age_ms, count in ((1_999, 1), (2_000, 0)):
        bounds = Bounds(10**6, 10**9, BEGIN + age_ms)
        assert len(read_page(log.store, PREFIX, FIRST_ROW_ID, bounds, AS_TMS, None).messages) == count


def test_only_the_beginning_of_a_log_is_given_to_retention() -> None:
    log = WrittenLog()
    ids = fill(log.disk, [Columns([b"x"], ttls=[ttl]) for ttl in (1, 1, 1, None, 1)])
    store, later = MemoryStore(log.disk), BEGIN + 500_000
    for live_from, now_ms, limit, count in ((0, later, 100, 3), (0, later, 2, 2), (0, BEGIN + 999, 100, 0), (later, later, 9, 5)):
        assert expired_rows(store, PREFIX, live_from, now_ms, limit) == single_rows(ids[:count])


@pytest.mark.parametrize("rolled", [False, True])
def test_a_group_is_given_to_retention_as_a_whole_and_lives_as_long_as_the_topic_allows(rolled: bool) -> None:
    log = one_group(rolled=rolled)
    live_from = split_row_id(log.row_ids[2])[0] + 1
    first, second, third, _ = log.row_ids
    last = [message.message_id for message in log.messages if message.row_id == third][-1]
    plain = [Expired(first, 1, first + bytes(10)), Expired(second, 2, second + bytes(10))]
    assert expired_rows(log.store, PREFIX, live_from, live_from, 100) == [*plain, Expired(third, 9, last)]
    assert expired_rows(log.store, PREFIX, live_from - 1, live_from, 100) == plain
    log = WrittenLog()
    log.put(100, Columns([b"x"], ttls=[1]))
    log.publish_stored(100, rolled=rolled)
    assert expired_rows(log.store, PREFIX, 0, log.now_ms + 10**6, 100) == []
