"""Logs with stored groups: offsets stay dense over them, no payload is passed over, and any offset is found inside them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import TopicDamaged
from oncelog_service.log.scan import (
    Expired,
    after,
    end_of,
    expired_rows,
    find_offset,
    following,
    last_payload,
    row_at,
    rows_from,
    stored_in,
    stored_under,
)
from oncelog_service.storage.keys import FIRST_ROW_ID, pointer_key, row_id, split_row_id
from oncelog_service.storage.port import Table
from oncelog_service.storage.rows import Columns, TrimRow, encode_payload_rows, encode_record
from tests.service.house import PREFIX, flip
from tests.service.written import WrittenLog

requests = st.lists(
    st.tuples(st.sampled_from(["plain", "direct", "group"]), st.integers(0, 5), st.booleans(), st.integers(1, 10**6)),
    min_size=1,
    max_size=8,
)


def written(history: list[tuple[str, int, bool, int]]) -> WrittenLog:
    """Some requests of the history: so many messages, rolled back or not, so many ms after the one before."""
    log = WrittenLog()
    for pointer, (kind, count, rolled, step_ms) in enumerate(history, 1):
        columns = Columns([b"%d.%d" % (pointer, each) for each in range(count)])
        if kind == "group":
            for begin in range(0, count, 2):
                log.put(pointer, Columns(columns.payloads[begin : begin + 2]), now_ms=log.now_ms + begin // 4)
            log.publish_stored(pointer, rolled=rolled, step_ms=step_ms)
        elif count:
            columns.write_pointer = pointer if kind == "direct" else None
            log.publish(columns, rolled=rolled and kind == "direct", step_ms=step_ms)
    return log


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


def group_row(log: WrittenLog) -> bytes:
    return log.disk.tables[Table.MESSAGE][PREFIX + log.row_ids[2]]


def payload_keys(log: WrittenLog, pointer: int = 100) -> list[bytes]:
    base = pointer_key(PREFIX, pointer)
    return sorted(each for each in log.disk.tables[Table.PAYLOAD] if each.startswith(base))


# --- rows


@given(requests)
def test_a_scan_returns_every_row_with_offsets_dense_over_groups_from_any_place(
    history: list[tuple[str, int, bool, int]],
) -> None:
    log = written(history)
    store = log.store
    assert [each for each, _ in rows_from(store, PREFIX, FIRST_ROW_ID)] == log.row_ids
    for number, each in enumerate(log.row_ids):
        assert [found for found, _ in rows_from(store, PREFIX, each)] == log.row_ids[number:]
        assert [found for found, _ in rows_from(store, PREFIX, following(each))] == log.row_ids[number + 1 :]
    if log.row_ids:
        assert end_of(log.disk.tables[Table.MESSAGE][PREFIX + log.row_ids[-1]]) == len(log.messages)


@given(requests, st.data())
def test_a_missing_row_that_held_messages_is_noticed_among_groups(
    history: list[tuple[str, int, bool, int]], data: st.DataObject
) -> None:
    log = written([*history, ("plain", 1, False, 1)])
    with_messages = sorted({each.row_id for each in log.messages} - {log.row_ids[-1]})
    if not with_messages:
        return
    gone = data.draw(st.sampled_from(with_messages))
    del log.disk.tables[Table.MESSAGE][PREFIX + gone]
    for start in (FIRST_ROW_ID, gone, following(gone)):
        with pytest.raises(TopicDamaged, match="is missing"):
            list(rows_from(log.store, PREFIX, start))


def test_a_damaged_group_row_is_refused_wherever_the_scan_begins() -> None:
    for at in range(len(group_row(one_group()))):
        log = one_group()
        flip(log.disk, Table.MESSAGE, PREFIX + log.row_ids[2], at)
        for start in (FIRST_ROW_ID, log.row_ids[2], log.row_ids[3]):
            with pytest.raises(TopicDamaged):
                list(rows_from(log.store, PREFIX, start))


# --- payloads


@pytest.mark.parametrize("rolled", [False, True])
def test_a_group_is_read_from_any_payload_id(rolled: bool) -> None:
    log = one_group(rolled=rolled)
    everything = [(each.message_id[10:], each.offset) for each in log.messages[2:-1]]
    assert [(each.payload_id, each.offset) for each in stored_in(log.store, PREFIX, group_row(log))] == everything
    between = [row_id(split_row_id(each)[0], split_row_id(each)[1] + 1) for each, _ in everything]
    for start in (bytes(10), row_id(0, 1), b"\xff" * 10, *between, *(each for each, _ in everything)):
        for within in (start, after(start)):
            found = [(each.payload_id, each.offset) for each in stored_in(log.store, PREFIX, group_row(log), within)]
            assert found == [each for each in everything if each[0] >= within]


def test_a_decoded_row_leads_to_the_same_payloads() -> None:
    for rolled in (False, True):
        log = one_group(rolled=rolled)
        row = row_at(log.store, PREFIX, log.row_ids[2])
        assert row is not None
        assert list(stored_under(log.store, PREFIX, row)) == list(stored_in(log.store, PREFIX, group_row(log)))


@pytest.mark.parametrize("number", range(7))
def test_a_missing_payload_is_refused_at_and_right_behind_its_place(number: int) -> None:
    log = one_group()
    gone = payload_keys(log)[number]
    del log.disk.tables[Table.PAYLOAD][gone]
    for within in (b"", gone[-10:], after(gone[-10:])):
        with pytest.raises(TopicDamaged):
            list(stored_in(log.store, PREFIX, group_row(log), within))


@pytest.mark.parametrize("number", range(7))
def test_a_damaged_payload_is_refused_at_and_right_behind_its_place(number: int) -> None:
    size = len(one_group().disk.tables[Table.PAYLOAD][payload_keys(one_group())[number]])
    for at in range(size):
        log = one_group()
        key = payload_keys(log)[number]
        flip(log.disk, Table.PAYLOAD, key, at)
        for within in (b"", key[-10:], after(key[-10:])):
            with pytest.raises(TopicDamaged):
                list(stored_in(log.store, PREFIX, group_row(log), within))


@pytest.mark.parametrize("within", [b"", b"\x00" * 10, b"\x00\x00\x01", b"\xff" * 10])
def test_a_group_without_any_of_its_payloads_is_refused(within: bytes) -> None:
    log = one_group()
    for key in payload_keys(log):
        del log.disk.tables[Table.PAYLOAD][key]
    with pytest.raises(TopicDamaged, match="7 payloads were stored under write pointer 100, 0 are there"):
        list(stored_in(log.store, PREFIX, group_row(log), within))


def test_more_payloads_than_the_row_says_are_refused() -> None:
    log = one_group()
    log.put(100, Columns([b"late"]))
    with pytest.raises(TopicDamaged, match="7 payloads were stored under write pointer 100, 8 are there"):
        list(stored_in(log.store, PREFIX, group_row(log)))


def test_payloads_that_changed_places_are_refused() -> None:
    log = one_group()
    one, other = payload_keys(log)[2:4]
    rows = log.disk.tables[Table.PAYLOAD]
    rows[one], rows[other] = rows[other], rows[one]
    with pytest.raises(TopicDamaged):
        list(stored_in(log.store, PREFIX, group_row(log)))


def test_a_payload_with_another_place_in_it_is_refused() -> None:
    log = one_group()
    key = payload_keys(log)[3]
    (log.disk.tables[Table.PAYLOAD][key],) = encode_payload_rows(Columns([b"3"]), [key[-10:]], 4)
    with pytest.raises(TopicDamaged, match="the payload 3 stored under write pointer 100 is damaged or missing"):
        list(stored_in(log.store, PREFIX, group_row(log)))


def test_the_last_payload_of_a_pointer_is_its_own_or_none() -> None:
    log = one_group()
    assert last_payload(log.store, PREFIX, 100) == log.disk.tables[Table.PAYLOAD][payload_keys(log)[-1]]
    assert last_payload(log.store, PREFIX, 98) is None
    assert last_payload(log.store, PREFIX, 102) is None
    flip(log.disk, Table.PAYLOAD, payload_keys(log)[-1])
    with pytest.raises(TopicDamaged):
        last_payload(log.store, PREFIX, 100)


# --- by offset


@given(requests, st.integers(0, 12), st.integers(0, 70))
def test_an_offset_is_found_inside_groups_as_by_looking_through_all_of_the_log(
    history: list[tuple[str, int, bool, int]], trimmed: int, offset: int
) -> None:
    log = written(history)
    left = log.row_ids[trimmed:]
    earliest = sum(each.row_id not in left for each in log.messages)
    for each in log.row_ids[:trimmed]:
        del log.disk.tables[Table.MESSAGE][PREFIX + each]
    log.disk.tables[Table.TRIM][PREFIX] = encode_record(TrimRow(earliest))
    naive = [each for each in log.messages if each.row_id in left and each.offset >= offset]
    found = find_offset(log.store, PREFIX, offset)
    assert [each for each in log.messages if each.row_id in left and found is not None and each.message_id >= found] == naive
    if naive and offset >= earliest:
        first = naive[0]
        begins = not any(each.row_id == first.row_id and each.offset < first.offset for each in log.messages)
        assert found == (first.row_id if begins else first.message_id)


def test_a_damaged_payload_met_while_looking_for_an_offset_is_refused() -> None:
    log = one_group()
    flip(log.disk, Table.PAYLOAD, payload_keys(log)[-1])
    with pytest.raises(TopicDamaged):
        find_offset(log.store, PREFIX, 5)


def test_an_offset_whose_payload_is_gone_is_refused() -> None:
    log = one_group()
    for key in payload_keys(log)[3:]:
        del log.disk.tables[Table.PAYLOAD][key]
    with pytest.raises(TopicDamaged, match="payload 5 of the group"):
        find_offset(log.store, PREFIX, 7)


# --- what has expired


def test_a_group_is_given_to_retention_as_a_whole_with_its_pointer() -> None:
    for rolled in (False, True):
        log = one_group(rolled=rolled)
        live_from = split_row_id(log.row_ids[2])[0] + 1
        first, second, third, _ = log.row_ids
        last = [message.message_id for message in log.messages if message.row_id == third][-1]
        assert expired_rows(log.store, PREFIX, live_from, live_from, 100) == [
            Expired(first, 1, first + bytes(10)),
            Expired(second, 2, second + bytes(10)),
            Expired(third, 9, last),
        ]
        assert expired_rows(log.store, PREFIX, live_from - 1, live_from, 100)[-1] == Expired(second, 2, second + bytes(10))


def test_a_group_whose_messages_have_all_expired_by_their_own_ttl_lives_as_long_as_the_topic_allows() -> None:
    log = WrittenLog()
    log.put(100, Columns([b"x"], ttls=[1]))
    log.publish_stored(100)
    assert expired_rows(log.store, PREFIX, 0, log.now_ms + 10**6, 100) == []
