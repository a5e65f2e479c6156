"""A page is right or refused: a missing or damaged row is never skipped, wherever it lies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import TopicDamaged
from oncelog_service.log.read.pages import AS_TMS, Bounds, Page, read_page
from oncelog_service.log.scan import (
    after,
    expired,
    expired_rows,
    find_offset,
    row_at,
    row_before,
    rows_from,
)
from oncelog_service.storage.keys import AFTER_ANY, FIRST_ROW_ID, row_id, split_row_id
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Table
from oncelog_service.storage.rows import Columns, TrimRow, encode_record, message_id_of
from tests.service.house import BEGIN, OTHER, PREFIX, fill, flip, single_rows

ALL = Bounds(10**6, 10**9, 0)


def log_of(count: int, disk: Disk | None = None) -> tuple[Disk, list[bytes]]:
    """A log of requests of three messages each, with another topic's on both sides of it."""
    disk = disk or Disk()
    fill(disk, [Columns([b"other"])] * 3, OTHER)
    fill(disk, [Columns([b"other"])] * 3, PREFIX[:-1] + b"\x00")
    return disk, fill(disk, [Columns([b"a", b"b", b"c"])] * (count // 3))


def offsets(disk: Disk, start: bytes) -> list[bytes]:
    return [each for each, _ in rows_from(MemoryStore(disk), PREFIX, start)]


def test_a_scan_returns_one_topics_rows_from_any_place() -> None:
    disk, ids = log_of(30)
    assert offsets(disk, FIRST_ROW_ID) == ids
    for number, each in enumerate(ids):
        assert offsets(disk, each) == ids[number:]
        assert offsets(disk, after(each)) == ids[number + 1 :]


def test_a_scan_of_an_empty_topic_is_empty() -> None:
    assert offsets(Disk(), FIRST_ROW_ID) == []


@pytest.mark.parametrize("at", [2, 100, -1, -5])
@pytest.mark.parametrize("number", [0, 1, 7, 29])
def test_a_damaged_row_ends_the_scan_with_an_error(number: int, at: int) -> None:
    disk, ids = log_of(30)
    key = PREFIX + ids[number]
    flip(disk, Table.MESSAGE, key, at % len(disk.tables[Table.MESSAGE][key]))
    with pytest.raises(TopicDamaged):
        offsets(disk, FIRST_ROW_ID)


@pytest.mark.parametrize("number", [0, 1, 7, 28])
def test_a_missing_row_ends_the_scan_with_an_error(number: int) -> None:
    disk, ids = log_of(30)
    del disk.tables[Table.MESSAGE][PREFIX + ids[number]]
    with pytest.raises(TopicDamaged, match=f"offset {number} is missing"):
        offsets(disk, FIRST_ROW_ID)


def test_a_row_missing_right_at_the_start_of_a_page_is_noticed() -> None:
    disk, ids = log_of(30)
    del disk.tables[Table.MESSAGE][PREFIX + ids[10]]
    for start in (ids[10], after(ids[10]), after(ids[9])):
        with pytest.raises(TopicDamaged, match="offset 10 is missing"):
            offsets(disk, start)


def test_a_damaged_row_just_before_the_start_is_refused() -> None:
    disk, ids = log_of(30)
    flip(disk, Table.MESSAGE, PREFIX + ids[9])
    with pytest.raises(TopicDamaged):
        offsets(disk, ids[10])


@pytest.mark.parametrize("flags", [1, 2, 4, 8, 15, 16, 32, 64, 128, 255])
def test_flags_that_no_version_wrote_are_damage_wherever_the_scan_begins(flags: int) -> None:
    disk, ids = log_of(6)
    for number in (0, 2, 5):
        broken = Disk()
        broken.tables = {table: dict(rows) for table, rows in disk.tables.items()}
        row = bytearray(broken.tables[Table.MESSAGE][PREFIX + ids[number]])
        row[1] ^= flags
        broken.tables[Table.MESSAGE][PREFIX + ids[number]] = bytes(row)
        for start in (FIRST_ROW_ID, ids[number], after(ids[number])):
            with pytest.raises(TopicDamaged):
                offsets(broken, start)


@pytest.mark.parametrize("row", [b"", b"\x01", b"\x01\x00", b"\xff" * 40, bytes(60)], ids=range(5))
@pytest.mark.parametrize("number", [0, 4, 8])
def test_rubbish_instead_of_a_row_is_damage(number: int, row: bytes) -> None:
    disk, ids = log_of(9)
    disk.tables[Table.MESSAGE][PREFIX + ids[number]] = row
    store = MemoryStore(disk)
    with pytest.raises(TopicDamaged):
        list(rows_from(store, PREFIX, FIRST_ROW_ID))
    with pytest.raises(TopicDamaged):
        row_at(store, PREFIX, ids[number])


def test_two_rows_that_changed_places_are_damage() -> None:
    disk, ids = log_of(9)
    rows = disk.tables[Table.MESSAGE]
    one, other = PREFIX + ids[3], PREFIX + ids[4]
    rows[one], rows[other] = rows[other], rows[one]
    with pytest.raises(TopicDamaged):
        offsets(disk, FIRST_ROW_ID)


def test_an_intact_row_under_another_key_is_damage() -> None:
    disk, ids = log_of(9)
    rows = disk.tables[Table.MESSAGE]
    timestamp, seq_id = split_row_id(ids[-1])
    rows[PREFIX + row_id(timestamp, seq_id + 1)] = rows.pop(PREFIX + ids[-1])
    with pytest.raises(TopicDamaged, match="belongs somewhere else"):
        offsets(disk, FIRST_ROW_ID)


def trim(disk: Disk, ids: list[bytes], count: int) -> None:
    for each in ids[:count]:
        del disk.tables[Table.MESSAGE][PREFIX + each]
    disk.tables[Table.TRIM][PREFIX] = encode_record(TrimRow(count))


def test_a_log_that_retention_cut_begins_where_it_was_cut() -> None:
    disk, ids = log_of(30)
    trim(disk, ids, 10)
    assert offsets(disk, FIRST_ROW_ID) == ids[10:]
    assert offsets(disk, ids[4]) == ids[10:]
    del disk.tables[Table.MESSAGE][PREFIX + ids[10]]
    with pytest.raises(TopicDamaged, match="offset 10 is missing"):
        offsets(disk, FIRST_ROW_ID)


def test_a_record_of_the_cut_that_cannot_be_read_is_damage() -> None:
    disk, ids = log_of(30)
    trim(disk, ids, 10)
    disk.tables[Table.TRIM][PREFIX] = b"{"
    with pytest.raises(TopicDamaged):
        offsets(disk, FIRST_ROW_ID)


def test_the_row_before_a_key_is_the_same_topics_or_none() -> None:
    disk, ids = log_of(9)
    store = MemoryStore(disk)
    assert row_before(store, PREFIX, FIRST_ROW_ID) is None
    assert row_before(store, PREFIX, ids[0]) is None
    for before, behind in zip(ids, [*ids[1:], AFTER_ANY], strict=True):
        found = row_before(store, PREFIX, behind)
        assert found is not None
        assert found[0] == before


# --- by offset


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 10**7)), min_size=1, max_size=25),
    st.integers(0, 30),
    st.integers(0, 140),
)
def test_an_offset_is_found_as_by_looking_through_all_of_the_log(
    requests: list[tuple[int, int]], trimmed: int, offset: int
) -> None:
    disk = Disk()
    ids: list[bytes] = []
    columns = [Columns([b"x"] * count) for count, _ in requests]
    ids = fill(disk, columns, step_ms=requests[0][1])
    trim(disk, ids, min(trimmed, len(ids)))
    left = list(enumerate(ids))[min(trimmed, len(ids)) :]
    naive = next((each for number, each in left if number >= offset), None)
    assert find_offset(MemoryStore(disk), PREFIX, offset) == naive


def test_a_damaged_row_met_while_looking_for_an_offset_is_refused() -> None:
    disk, ids = log_of(30)
    flip(disk, Table.MESSAGE, PREFIX + ids[-1])
    with pytest.raises(TopicDamaged):
        find_offset(MemoryStore(disk), PREFIX, 20)


def test_a_read_from_the_offset_of_a_missing_row_is_refused() -> None:
    disk, ids = log_of(30)
    del disk.tables[Table.MESSAGE][PREFIX + ids[12]]
    found = find_offset(MemoryStore(disk), PREFIX, 12)
    assert found is not None
    with pytest.raises(TopicDamaged, match="offset 12 is missing"):
        offsets(disk, found)


# --- pages and time to live


def page(disk: Disk, bounds: Bounds, start: bytes = FIRST_ROW_ID) -> Page:
    return read_page(MemoryStore(disk), PREFIX, start, bounds, AS_TMS, None)


def payloads(found: Page) -> list[bytes]:
    return [each[22:] for each in found.messages]


def test_a_page_ends_at_its_limit_and_says_where() -> None:
    disk, ids = log_of(30)
    found = page(disk, ALL._replace(limit=4))
    assert len(found.messages) == 4
    assert found.last_id == message_id_of(ids[3])
    assert page(disk, ALL, after(message_id_of(ids[-1]))) == Page([], None)


def test_a_page_ends_behind_the_message_that_fills_it_and_always_holds_one() -> None:
    disk, ids = log_of(30)
    assert page(disk, ALL._replace(max_bytes=1)).last_id == message_id_of(ids[0])
    size = len(disk.tables[Table.MESSAGE][PREFIX + ids[0]])
    assert page(disk, ALL._replace(max_bytes=2 * size)).last_id == message_id_of(ids[1])
    assert page(disk, ALL._replace(max_bytes=2 * size + 1)).last_id == message_id_of(ids[2])


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_paging_delivers_every_living_message_once_whatever_the_limit(limit: int) -> None:
    disk = Disk()
    ttls = [None, 1, 1, 1, None, 1, None, None, 1, 1] * 5
    fill(disk, [Columns([b"%d" % number], ttls=[ttl]) for number, ttl in enumerate(ttls)])
    bounds = Bounds(limit, 10**9, BEGIN + 10_000)
    seen: list[bytes] = []
    start = FIRST_ROW_ID
    while (found := page(disk, bounds, start)).last_id is not None:
        assert len(found.messages) <= limit
        seen += payloads(found)
        start = after(found.last_id)
    assert [int(each[-2:].strip(b"\x04\x02")) for each in seen] == [number for number, ttl in enumerate(ttls) if ttl is None]


def test_a_message_expires_with_the_first_millisecond_of_its_age() -> None:
    disk = Disk()
    (each,) = fill(disk, [Columns([b"x"], ttls=[2])])
    row = disk.tables[Table.MESSAGE][PREFIX + each]
    assert not expired(each, row, 0, BEGIN + 1_999)
    assert expired(each, row, 0, BEGIN + 2_000)
    assert page(disk, ALL._replace(now_ms=BEGIN + 1_999)).messages
    assert not page(disk, ALL._replace(now_ms=BEGIN + 2_000)).messages


def test_a_messages_own_ttl_only_shortens_the_topics() -> None:
    disk = Disk()
    (each,) = fill(disk, [Columns([b"x"], ttls=[2])])
    row = disk.tables[Table.MESSAGE][PREFIX + each]
    assert expired(each, row, BEGIN + 1, BEGIN + 1_000)
    assert not expired(each, row, BEGIN, BEGIN + 999)


def test_only_the_beginning_of_a_log_is_given_to_retention() -> None:
    disk = Disk()
    ids = fill(disk, [Columns([b"x"], ttls=[ttl]) for ttl in (1, 1, 1, None, 1)])
    store = MemoryStore(disk)
    assert expired_rows(store, PREFIX, 0, BEGIN + 500_000, 100) == single_rows(ids[:3])
    assert expired_rows(store, PREFIX, 0, BEGIN + 500_000, 2) == single_rows(ids[:2])
    assert expired_rows(store, PREFIX, 0, BEGIN + 999, 100) == single_rows([])
    assert expired_rows(store, PREFIX, BEGIN + 499_001, BEGIN + 500_000, 100) == single_rows(ids)


def test_retention_does_not_delete_what_lies_behind_a_hole() -> None:
    disk, ids = log_of(9)
    del disk.tables[Table.MESSAGE][PREFIX + ids[1]]
    with pytest.raises(TopicDamaged):
        expired_rows(MemoryStore(disk), PREFIX, BEGIN + 10_000, BEGIN + 10_000, 100)
