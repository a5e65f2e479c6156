"""A scan is right or refused: a missing or damaged row or payload is never passed over, wherever it lies; groups count as their
messages, and any offset is found."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import TopicDamaged
from oncelog_service.log.read.pages import AS_TMS, Bounds, read_page
from oncelog_service.log.scan import (
    Expired,
    after,
    expired_rows,
    find_offset,
    following,
    last_payloads,
    offset_behind,
    row_at,
    run_before,
    runs_from,
    stored_in,
    stored_payloads,
)
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import AFTER_ANY, FIRST_ROW_ID, pointer_key, row_id, split_row_id
from oncelog_service.storage.memory import MemoryStore
from oncelog_service.storage.payload_rows import encode_payloads
from oncelog_service.storage.port import Rows, Table
from oncelog_service.storage.rows import encode_messages
from oncelog_service.storage.runs import RUN_BYTES, Bodies, Laying, StoredRun
from tests.service.house import BEGIN, OTHER, PREFIX, fill, flip, told_of
from tests.service.written import Message, Request, WrittenLog, bounds, requests, written


def beside_others(history: Sequence[Request], run_bytes: int) -> WrittenLog:
    """The log of these requests, in the key space between two other ones."""
    log = written(history, run_bytes)
    fill(log.disk, [Columns([b"other"])] * 3, OTHER)
    fill(log.disk, [Columns([b"other"])] * 3, PREFIX[:-1] + b"\x00")
    return log


PLAIN: list[Request] = [("plain", 3, False, 1, None), ("waits", 1, False, 1, "a")] * 4

ONE: Request = ("plain", 1, False, 1, None)


def one_group(count: int = 7, rolled: bool = False, run_bytes: int = RUN_BYTES) -> WrittenLog:
    """Two plain messages, a group that two requests stored (others' payloads on both sides of it), one plain message."""
    log = WrittenLog(run_bytes=run_bytes)
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


def group_run(log: WrittenLog) -> StoredRun:
    return next(run for run in log.runs if run.id == log.row_ids[2])


def payload_keys(log: WrittenLog, pointer: int = 100) -> list[bytes]:
    base = pointer_key(PREFIX, pointer)
    return sorted(each for each in log.disk.tables[Table.PAYLOAD] if each.startswith(base))


def scanned(log: WrittenLog, start: bytes = FIRST_ROW_ID) -> list[bytes]:
    """How the keys of the rows end."""
    return [run.id for run in runs_from(log.store, PREFIX, start)]


def lay(log: WrittenLog, table: Table, base: bytes, ids: Sequence[bytes], bodies: Bodies, first: int) -> None:
    """Put one intact row there that no log has written."""
    laying = Laying(table, base, first)
    laying.add(ids, bodies)
    ((end, row),) = laying.rows()
    log.disk.tables[table][base + end] = row


def lay_messages(log: WrittenLog, ids: Sequence[bytes], first: int) -> None:
    lay(log, Table.MESSAGE, PREFIX, ids, encode_messages(Columns([b"forged"] * len(ids)), ids, first), first)


def refused(log: WrittenLog, *starts: bytes, match: str | None = None) -> None:
    for start in starts or (FIRST_ROW_ID,):
        with pytest.raises(TopicDamaged, match=match):
            scanned(log, start)


# --- rows


@given(requests, bounds)
def test_a_scan_returns_every_run_of_its_topic_with_offsets_dense_over_groups_from_any_place(
    history: list[Request], run_bytes: int
) -> None:
    log = beside_others(history, run_bytes)
    ids = [run.id for run in log.runs]
    assert scanned(log) == ids
    assert [each for run in runs_from(log.store, PREFIX, FIRST_ROW_ID) for each in run.ids()] == log.row_ids
    for each in log.row_ids:
        assert scanned(log, each) == [at for at in ids if at >= each]
        assert scanned(log, following(each)) == scanned(log, after(each)) == [at for at in ids if at > each]
        before = run_before(log.store, PREFIX, each)
        assert (None if before is None else before.id) == max((at for at in ids if at < each), default=None)
    if ids:
        assert log.runs[-1].end == len(log.messages)


@given(requests, bounds)
def test_every_message_is_found_under_its_id_wherever_in_a_run_it_lies(history: list[Request], run_bytes: int) -> None:
    log = beside_others(history, run_bytes)
    groups = {run.id for run in log.runs if not run.count or log.stored_runs(abs(run.write_pointer or 0))}
    for each in log.messages:
        if each.row_id not in groups:
            row = row_at(log.store, PREFIX, each.row_id)
            assert row is not None
            said = (row.offset, row.payload, row.producer, row.sequence_id, row.ttl, row.write_pointer)
            assert Message(row.message_id, *said) == each
    assert row_at(log.store, PREFIX, b"\xff" * 10) is row_at(log.store, PREFIX, row_id(BEGIN, 0)) is None


@given(requests, bounds, st.data())
def test_a_missing_row_with_messages_is_noticed_wherever_the_scan_begins(
    history: list[Request], run_bytes: int, data: st.DataObject
) -> None:
    log = beside_others([ONE, *history, ONE], run_bytes)
    gone = data.draw(st.sampled_from([run for run in log.runs[:-1] if run.count]))
    del rows_of(log)[PREFIX + gone.id]
    refused(log, FIRST_ROW_ID, gone.first_id, gone.id, following(gone.id), match="is missing")
    with pytest.raises(TopicDamaged, match="is missing"):
        expired_rows(log.store, PREFIX, 2**62, 0, 100)


RUBBISH = (b"", b"\x01\x00", b"\xff" * 40, bytes(60))


@pytest.mark.parametrize("run_bytes", [100, RUN_BYTES])
def test_a_damaged_row_is_refused_wherever_the_scan_begins_and_whatever_is_damaged(run_bytes: int) -> None:
    for log, number in ((written(PLAIN, run_bytes), 0), (written(PLAIN, run_bytes), -1), (one_group(run_bytes=run_bytes), -2)):
        run = log.runs[number]
        places = [*range(30), *range(30, len(run.data), 7), len(run.data) - 1]
        flipped = [run.data[:at] + bytes([run.data[at] ^ 16]) + run.data[at + 1 :] for at in places]
        flags = [run.data[:1] + bytes([run.data[1] ^ each]) + run.data[2:] for each in (1, 2, 4, 8, 15, 255)]
        for damaged in (*RUBBISH, *flags, *flipped):
            rows_of(log)[PREFIX + run.id] = damaged
            refused(log, FIRST_ROW_ID, run.first_id, run.id, after(run.id))
            for each in (run.first_id, run.id):
                with pytest.raises(TopicDamaged):
                    row_at(log.store, PREFIX, each)


class Watched(MemoryStore):
    """Counts its scans that are open."""

    scans = 0

    def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        self.scans += 1
        try:
            yield from super().scan(table, start, stop, reverse=reverse)
        finally:
            self.scans -= 1


@pytest.mark.parametrize("number", range(3))
def test_no_scan_is_left_open_where_a_row_is_damaged(number: int) -> None:
    """It would hold up the closing of the store for as long as somebody keeps the error."""
    log = one_group()
    damaged = log.runs[number].id
    flip(log.disk, Table.MESSAGE, PREFIX + damaged)
    store = Watched(log.disk)
    for start in (FIRST_ROW_ID, damaged, after(damaged)):
        with pytest.raises(TopicDamaged) as kept, closing(runs_from(store, PREFIX, start)) as runs:
            list(runs)
        assert (type(kept.value), store.scans) == (TopicDamaged, 0)


def test_intact_rows_that_are_not_in_their_places_are_damage() -> None:
    log = written(PLAIN)
    rows, one, other = rows_of(log), PREFIX + log.runs[1].id, PREFIX + log.runs[2].id
    rows[one], rows[other] = rows[other], rows[one]
    refused(log, match="checksum")
    for step in (-1, 1):
        log = written(PLAIN)
        rows, last = rows_of(log), log.runs[-1].id
        timestamp, seq_id = split_row_id(last)
        rows[PREFIX + row_id(timestamp, seq_id + step)] = rows.pop(PREFIX + last)
        refused(log, match="checksum")


@pytest.mark.parametrize("step", [-1, 1])
def test_a_row_whose_offset_does_not_follow_is_damage(step: int) -> None:
    log = written(PLAIN)
    run = log.runs[1]
    lay_messages(log, run.ids(), run.first + step)
    refused(log, FIRST_ROW_ID, run.first_id, run.id, after(run.id), match="is missing")


def test_rows_that_overlap_are_damage_although_their_offsets_follow() -> None:
    log = WrittenLog()
    for step_ms in (1, 0, 1):
        log.publish(Columns([b"a", b"b", b"c"]), step_ms=step_ms)
    run = log.runs[1]
    timestamp, seq_id = split_row_id(run.first_id)
    for overlapping in (1, 2):
        ids = [row_id(timestamp, seq_id + each) for each in range(-overlapping, 3)]
        lay_messages(log, ids, run.first)
        refused(log, FIRST_ROW_ID, log.runs[0].id, run.first_id, run.id, match="reaches over")


def test_a_log_that_retention_cut_begins_where_it_was_cut() -> None:
    log = written(PLAIN)
    ids = [run.id for run in log.runs]
    log.trim(2)
    assert scanned(log) == scanned(log, ids[0]) == ids[2:]
    del rows_of(log)[PREFIX + ids[2]]
    refused(log, match="offset 8 is missing")
    log.disk.tables[Table.TRIM][PREFIX] = b"{"
    refused(log)


# --- payloads


@pytest.mark.parametrize("run_bytes", [1, 20, RUN_BYTES])
@pytest.mark.parametrize("rolled", [False, True])
def test_a_group_is_read_from_any_payload_id(rolled: bool, run_bytes: int) -> None:
    log = one_group(rolled=rolled, run_bytes=run_bytes)
    everything = [(each.message_id[10:], each.offset) for each in log.messages[2:-1]]
    row = row_at(log.store, PREFIX, log.row_ids[2])
    assert row is not None
    assert list(stored_payloads(log.store, PREFIX, row)) == log.stored(100)
    between = [row_id(split_row_id(each)[0], split_row_id(each)[1] + 1) for each, _ in everything]
    for start in (b"", bytes(10), row_id(0, 1), b"\xff" * 10, *between, *(each for each, _ in everything)):
        for within in (start, after(start)):
            found = [
                (run.id_at(index), row.offset + run.first + index)
                for run in stored_in(log.store, PREFIX, group_run(log), within)
                for index in range(run.index_from(within), len(run))
            ]
            assert found == [each for each in everything if each[0] >= within]


def payloads_refused(log: WrittenLog, *places: bytes, match: str | None = None) -> None:
    for within in places or (b"",):
        with pytest.raises(TopicDamaged, match=match):
            list(stored_in(log.store, PREFIX, group_run(log), within))


@pytest.mark.parametrize(("run_bytes", "number"), [(1, 0), (1, 3), (1, -1), (RUN_BYTES, 0), (RUN_BYTES, -1)])
def test_a_damaged_or_missing_payload_is_refused_at_and_right_behind_its_place(run_bytes: int, number: int) -> None:
    whole = one_group(run_bytes=run_bytes).stored_runs(100)[number]
    key = pointer_key(PREFIX, 100) + whole.id
    log = one_group(run_bytes=run_bytes)
    for at in range(0, len(whole.data), 3):
        flip(log.disk, Table.PAYLOAD, key, at)
        payloads_refused(log, b"", whole.first_id, whole.id, after(whole.id))
        if number == -1:
            with pytest.raises(TopicDamaged):
                last_payloads(log.store, PREFIX, 100)
            with pytest.raises(TopicDamaged):
                find_offset(log.store, PREFIX, 5)
        flip(log.disk, Table.PAYLOAD, key, at)
    del log.disk.tables[Table.PAYLOAD][key]
    payloads_refused(log, b"", whole.first_id, whole.id, after(whole.id))


def test_payloads_that_are_too_few_too_many_or_not_in_their_places_are_refused() -> None:
    log = one_group()
    log.put(100, Columns([b"late"]))
    payloads_refused(log, match="7 payloads were stored under write pointer 100, 8 are there")
    log = one_group(run_bytes=1)
    base, keys, rows = pointer_key(PREFIX, 100), payload_keys(log), log.disk.tables[Table.PAYLOAD]
    rows[keys[2]], rows[keys[3]] = rows[keys[3]], rows[keys[2]]
    payloads_refused(log)
    log = one_group(run_bytes=1)
    rows = log.disk.tables[Table.PAYLOAD]
    lay(log, Table.PAYLOAD, base, [keys[3][-10:]], encode_payloads(Columns([b"3"])), 4)
    payloads_refused(log)
    lay(log, Table.PAYLOAD, base, [each[-10:] for each in keys[2:4]], encode_payloads(Columns([b"2", b"3"])), 3)
    payloads_refused(log)
    for key in keys[3:]:
        del rows[key]
    with pytest.raises(TopicDamaged, match="payload 5 of the group"):
        find_offset(log.store, PREFIX, 7)
    for key in keys[:3]:
        del rows[key]
    match = "7 payloads were stored under write pointer 100, 0 are there"
    payloads_refused(log, b"", b"\x00" * 10, b"\x00\x00\x01", b"\xff" * 10, match=match)


def test_payloads_that_reach_over_the_ones_before_are_refused_also_where_a_page_begins_with_them() -> None:
    log = one_group()
    base, (one, other) = pointer_key(PREFIX, 100), log.stored_runs(100)
    timestamp, seq_id = split_row_id(one.id)
    del log.disk.tables[Table.PAYLOAD][base + other.id]
    ids = [row_id(timestamp, seq_id + each) for each in range(3)]
    lay(log, Table.PAYLOAD, base, ids, encode_payloads(Columns([b"4", b"5", b"6"])), one.end)
    payloads_refused(log, b"", one.id, after(one.id), ids[1], match="the payload 4 stored under write pointer 100")


def test_the_last_payloads_of_a_pointer_are_its_own_or_none() -> None:
    log = one_group()
    last = last_payloads(log.store, PREFIX, 100)
    assert last is not None
    assert last.data == log.disk.tables[Table.PAYLOAD][payload_keys(log)[-1]]
    assert last_payloads(log.store, PREFIX, 98) is last_payloads(log.store, PREFIX, 102) is None


# --- by offset


@given(requests, bounds, st.integers(0, 12), st.integers(0, 45))
def test_an_offset_is_found_as_by_looking_through_all_of_the_log(
    history: list[Request], run_bytes: int, trimmed: int, offset: int
) -> None:
    log = beside_others(history, run_bytes)
    left = [each for run in log.runs[trimmed:] for each in run.ids()]
    log.trim(trimmed)
    earliest = len([each for each in log.messages if each.row_id not in left])
    naive = [each for each in log.messages if each.row_id in left and each.offset >= offset]
    found = find_offset(log.store, PREFIX, offset)
    assert [each for each in log.messages if each.row_id in left and found is not None and each.message_id >= found] == naive
    assert find_offset(log.store, PREFIX, len(log.messages)) is None
    if naive and offset >= earliest:
        first = naive[0]
        begins = not any(each.row_id == first.row_id and each.offset < first.offset for each in log.messages)
        assert found == (first.row_id if begins else first.message_id)


@given(requests, bounds)
def test_the_offset_behind_an_id_is_known_wherever_in_a_run_or_a_group_it_lies(history: list[Request], run_bytes: int) -> None:
    log = beside_others(history, run_bytes)
    assert offset_behind(log.store, PREFIX, row_id(BEGIN, 0) + bytes(10)) == (0, False)
    ids = [each.message_id for each in log.messages]
    for each in ids:
        for at in (each, each[:19] + b"\xff"):
            assert offset_behind(log.store, PREFIX, at) == (sum(each <= at for each in ids), at in ids)


@pytest.mark.parametrize("run_bytes", [1, 20, RUN_BYTES])
def test_an_id_in_a_hole_is_not_said_to_be_that_of_no_message(run_bytes: int) -> None:
    for number in range(len(one_group(run_bytes=run_bytes).runs) - 1):
        log = one_group(run_bytes=run_bytes)
        gone = log.runs[number]
        del rows_of(log)[PREFIX + gone.id]
        for each in gone.ids():
            with pytest.raises(TopicDamaged, match="is missing"):
                offset_behind(log.store, PREFIX, each + bytes(10))
    for number in range(len(payload_keys(one_group(run_bytes=run_bytes)))):
        log = one_group(run_bytes=run_bytes)
        lost = log.stored_runs(100)[number]
        del log.disk.tables[Table.PAYLOAD][pointer_key(PREFIX, 100) + lost.id]
        for each in lost.ids():
            with pytest.raises(TopicDamaged):
                offset_behind(log.store, PREFIX, log.row_ids[2] + each)


def test_a_damaged_row_met_while_looking_for_an_offset_is_refused() -> None:
    log = written(PLAIN)
    flip(log.disk, Table.MESSAGE, PREFIX + log.runs[-1].id)
    for read in (lambda: find_offset(log.store, PREFIX, 8), lambda: run_before(log.store, PREFIX, AFTER_ANY)):
        with pytest.raises(TopicDamaged):
            read()


# --- what has expired


def test_a_message_expires_with_the_first_millisecond_of_its_age_and_its_own_ttl_only_shortens_the_topics() -> None:
    log = WrittenLog()
    log.publish(Columns([b"x"], ttls=[2]), step_ms=0)
    for live_from, age_ms, gone in ((0, 1_999, False), (0, 2_000, True), (BEGIN, 999, False), (BEGIN + 1, 1_000, True)):
        assert bool(expired_rows(log.store, PREFIX, live_from, BEGIN + age_ms, 1)) == gone
    for age_ms, count in ((1_999, 1), (2_000, 0)):
        bounds = Bounds(10**6, 10**9, BEGIN + age_ms)
        assert read_page(log.store, PREFIX, FIRST_ROW_ID, bounds, AS_TMS, None).delivered == count


def test_only_the_beginning_of_a_log_is_given_to_retention() -> None:
    log = WrittenLog()
    fill(log.disk, [Columns([b"x"], ttls=[ttl]) for ttl in (1, 1, 1, None, 1)])
    store, later = MemoryStore(log.disk), BEGIN + 500_000
    for live_from, now_ms, limit, count in ((0, later, 100, 3), (0, later, 2, 2), (0, BEGIN + 999, 100, 0), (later, later, 9, 5)):
        assert expired_rows(store, PREFIX, live_from, now_ms, limit) == told_of(log.runs[:count])


@pytest.mark.parametrize("ttls", [[1, 3, 2], [3, 1, 2], [1, None, 1], [None, 1, 1], [1, 1, None]])
def test_a_run_is_given_to_retention_with_the_last_of_its_messages(ttls: list[int | None]) -> None:
    log = WrittenLog()
    log.publish(Columns([b"x"] * len(ttls), ttls=ttls), step_ms=0)
    last = max(2**40 if each is None else each for each in ttls) * 1_000
    (run,) = log.runs
    assert expired_rows(log.store, PREFIX, 0, BEGIN + last - 1, 9) == []
    assert expired_rows(log.store, PREFIX, 0, BEGIN + last, 9) == ([] if None in ttls else told_of([run]))
    assert expired_rows(log.store, PREFIX, BEGIN + 1, 0, 9) == told_of([run])


@pytest.mark.parametrize("rolled", [False, True])
def test_a_group_is_given_to_retention_as_a_whole_and_lives_as_long_as_the_topic_allows(rolled: bool) -> None:
    log = one_group(rolled=rolled)
    live_from = split_row_id(log.row_ids[2])[0] + 1
    _, second, third, _ = log.row_ids
    last = [message.message_id for message in log.messages if message.row_id == third][-1]
    plain = told_of(log.runs[:1])
    assert (plain[0].row_id, plain[0].end) == (second, 2)
    upto_bytes = plain[0].upto_bytes + sum(run.size for run in log.stored_runs(100))
    assert expired_rows(log.store, PREFIX, live_from, live_from, 100) == [*plain, Expired(third, 9, last, upto_bytes)]
    assert expired_rows(log.store, PREFIX, live_from - 1, live_from, 100) == plain
    log = WrittenLog()
    log.put(100, Columns([b"x"], ttls=[1]))
    log.publish_stored(100, rolled=rolled)
    assert expired_rows(log.store, PREFIX, 0, log.now_ms + 10**6, 100) == []
