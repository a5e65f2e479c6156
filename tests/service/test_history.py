"""The originals of repeated messages are found along the chain of a producer's requests."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import TopicDamaged
from oncelog_dedup import Mark
from oncelog_service.log.append.history import Further, History, Original, requests_of, walk
from oncelog_service.storage.keys import FIRST_ROW_ID, row_id
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Rows, Table
from oncelog_service.storage.rows import Columns, message_id_of
from tests.service.house import BEGIN, PREFIX, fill, flip
from tests.service.written import WrittenLog

Log = dict[str, list[tuple[int, bytes]]]
"""producer → (sequence id, row id), oldest first."""


def chained(requests: list[tuple[str | None, list[int]]], disk: Disk | None = None) -> tuple[Disk, Log, list[bytes]]:
    """A log of such requests, with the chain that publishing makes."""
    disk = disk or Disk()
    newest: dict[str, bytes] = {}
    log: Log = {}
    columns = []
    for number, (producer, sequence_ids) in enumerate(requests):
        ids = [row_id(BEGIN + number, each) for each in range(len(sequence_ids))]
        bodies = [b"%d" % each for each in sequence_ids]
        if producer is None:
            columns.append(Columns(bodies))
        else:
            columns.append(Columns(bodies, producer, sequence_ids, previous=newest.get(producer)))
            newest[producer] = ids[-1]
            log.setdefault(producer, []).extend(zip(sequence_ids, ids, strict=True))
    return disk, log, fill(disk, columns)


TWO = [("a", [0, 1]), ("b", [0, 1, 2]), (None, [9, 9]), ("a", [2, 3, 4]), ("b", [3]), ("a", [7, 9])]


def test_a_producers_requests_come_newest_first_and_nobody_elses() -> None:
    disk, log, _ = chained(TWO)
    requests = list(requests_of(MemoryStore(disk), PREFIX, "a", log["a"][-1][1]))
    assert [[row.sequence_id for row in request] for request in requests] == [[9, 7], [4, 3, 2], [1, 0]]
    assert [each.message_id[:10] for request in requests for each in request] == [at for _, at in reversed(log["a"])]


def test_the_originals_of_a_retry_are_found() -> None:
    disk, log, ids = chained(TWO)
    found = walk(MemoryStore(disk), PREFIX, "a", log["a"][-1][1], [2, 3, 4, 5]).found
    assert found == {
        each: Original(each, message_id_of(at), ids.index(at), b"%d" % each, None) for each, at in log["a"] if each in (2, 3, 4)
    }


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(1, 5), st.integers(1, 3)), min_size=1, max_size=15),
    st.sets(st.integers(0, 60), min_size=1, max_size=10),
)
def test_every_original_is_found_where_it_is(requests: list[tuple[str | None, int, int]], wanted: set[int]) -> None:
    upcoming: dict[str | None, int] = {}
    numbered = []
    for producer, count, step in requests:
        begin = upcoming.get(producer, 0)
        numbered.append((producer, [begin + number * step for number in range(count)]))
        upcoming[producer] = begin + count * step
    disk, log, _ = chained(numbered)
    for producer, entries in log.items():
        found = walk(MemoryStore(disk), PREFIX, producer, entries[-1][1], sorted(wanted)).found
        assert {each: row.message_id[:10] for each, row in found.items()} == {each: at for each, at in entries if each in wanted}


def test_the_newest_request_is_always_looked_through_whole() -> None:
    disk, log, _ = chained([("a", list(range(500))), ("a", list(range(500, 3_000)))])
    found = walk(MemoryStore(disk), PREFIX, "a", log["a"][-1][1], list(range(500, 3_000)), Further(0, 64)).found
    assert len(found) == 2_500


def test_how_far_the_walk_goes_beyond_it_is_bounded() -> None:
    disk, log, _ = chained([("a", [number]) for number in range(100)])
    store, newest = MemoryStore(disk), log["a"][-1][1]
    assert walk(store, PREFIX, "a", newest, [0], Further(10, 100)).found == {}
    assert walk(store, PREFIX, "a", newest, [0], Further(100, 10)).found == {}
    assert set(walk(store, PREFIX, "a", newest, [95], Further(10, 10)).found) == {95}
    assert set(walk(store, PREFIX, "a", newest, [0], Further(100, 100)).found) == {0}


@pytest.mark.parametrize("trimmed", range(1, 13))
def test_what_retention_deleted_is_not_found_and_is_no_error(trimmed: int) -> None:
    disk, log, ids = chained(TWO)
    for each in ids[:trimmed]:
        del disk.tables[Table.MESSAGE][PREFIX + each]
    for producer, entries in log.items():
        found = walk(MemoryStore(disk), PREFIX, producer, entries[-1][1], list(range(10))).found
        assert {each: row.message_id[:10] for each, row in found.items()} == {
            each: at for each, at in entries if at in ids[trimmed:]
        }


@pytest.mark.parametrize("missing", [2, 3, 5, 9, 12])
def test_a_message_missing_on_the_way_is_refused_and_never_answered_from_others(missing: int) -> None:
    """With the first row of a request gone, the walk would go on in the request before it: another producer's."""
    disk, log, ids = chained([("c", [0, 1]), *TWO])
    producer = next(name for name, entries in log.items() if ids[missing] in dict(map(reversed, entries)))
    del disk.tables[Table.MESSAGE][PREFIX + ids[missing]]
    with pytest.raises(TopicDamaged):
        walk(MemoryStore(disk), PREFIX, producer, log[producer][-1][1], list(range(10)))


def test_a_damaged_message_on_the_way_is_refused() -> None:
    disk, log, _ = chained(TWO)
    flip(disk, Table.MESSAGE, PREFIX + log["a"][3][1])
    with pytest.raises(TopicDamaged):
        walk(MemoryStore(disk), PREFIX, "a", log["a"][-1][1], [0])


# --- transactions and stored groups

mixed = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from(["plain", "direct", "group"]), st.booleans(), st.integers(1, 4)),
    min_size=1,
    max_size=12,
)


def written(history: list[tuple[str | None, str, bool, int]]) -> WrittenLog:
    """What is rolled back uses its sequence ids up or not: the next request begins where the newest living one ended."""
    log = WrittenLog()
    upcoming: dict[str | None, int] = {}
    for pointer, (producer, kind, rolled, count) in enumerate(history, 1):
        rolled = rolled and kind != "plain"
        begin = upcoming.get(producer, 0)
        ids = None if producer is None else list(range(begin, begin + count))
        columns = Columns([b"%d.%d" % (pointer, each) for each in range(count)], producer, ids)
        if kind == "group":
            log.put(pointer, columns)
            log.put(pointer, Columns([b"unnamed"]))
            log.publish_stored(pointer, rolled=rolled)
        else:
            columns.write_pointer = pointer if kind == "direct" else None
            log.publish(columns, rolled=rolled)
        if not rolled:
            upcoming[producer] = begin + count
    return log


@given(mixed, st.sets(st.integers(0, 40), min_size=1, max_size=12))
def test_every_living_original_is_found_in_rows_and_groups_and_never_one_that_was_rolled_back(
    history: list[tuple[str | None, str, bool, int]], wanted: set[int]
) -> None:
    log = written(history)
    for producer, newest in log.newest.items():
        found = walk(log.store, PREFIX, producer, newest, sorted(wanted)).found
        assert found == {
            each.sequence_id: Original(each.sequence_id, each.message_id, each.offset, each.payload, each.pointer)
            for each in log.messages
            if each.producer == producer and each.sequence_id in wanted and (each.pointer or 1) > 0
        }


def test_the_chain_leads_over_requests_that_were_rolled_back_later() -> None:
    """The request behind was published while the one before it was still in its transaction."""
    log = WrittenLog()
    log.publish(Columns([b"0"], "a", [0]))
    marked = log.publish(Columns([b"1"], "a", [1], write_pointer=5), rolled=True)
    log.put(6, Columns([b"2"], "a", [2]))
    log.newest["a"] = marked[-1]
    log.publish_stored(6, rolled=True)
    log.publish(Columns([b"3", b"4"], "a", [3, 4], previous=log.row_ids[-1]))
    requests = requests_of(log.store, PREFIX, "a", log.row_ids[-1])
    assert [[each.sequence_id for each in request] for request in requests] == [[4, 3], [0]]


def test_a_group_that_does_not_hold_the_producer_it_should_is_damage() -> None:
    log = WrittenLog()
    log.put(5, Columns([b"0"], "b", [0]))
    at = log.publish_stored(5)
    with pytest.raises(TopicDamaged, match="should hold messages of producer 'a'"):
        list(requests_of(log.store, PREFIX, "a", at))


def test_a_damaged_payload_of_a_group_on_the_way_is_refused() -> None:
    log = WrittenLog()
    log.put(5, Columns([b"0", b"1"], "a", [0, 1]))
    at = log.publish_stored(5)
    flip(log.disk, Table.PAYLOAD, min(log.disk.tables[Table.PAYLOAD]))
    with pytest.raises(TopicDamaged):
        walk(log.store, PREFIX, "a", at, [0])


# --- what a topic looks up for a request that comes again


class CountingStore(MemoryStore):
    """Counts the rows that are read from it."""

    rows_read = 0

    def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        with closing(super().scan(table, start, stop, reverse=reverse)) as rows:
            for row in rows:
                self.rows_read += 1
                yield row


@given(mixed, st.sets(st.integers(0, 40), min_size=1, max_size=12))
def test_what_is_found_is_true_and_all_of_the_newest_request_is_found(
    history: list[tuple[str | None, str, bool, int]], wanted: set[int]
) -> None:
    log = written(history)
    for producer in log.newest:
        living = {
            each.sequence_id: Original(each.sequence_id, each.message_id, each.offset, each.payload, each.pointer)
            for each in log.messages
            if each.producer == producer and each.sequence_id is not None and (each.pointer or 1) > 0
        }
        newest = living[max(living)]
        mark = Mark(max(living), newest.message_id, newest.offset)
        looked_up = History(log.store, PREFIX)
        for _ in range(2):  # what it remembers of the first time changes nothing
            found = looked_up.originals(producer, mark, sorted(wanted), 0)
            assert found.items() <= living.items()
            request = [each for each in living if newest.write_pointer and living[each].write_pointer == newest.write_pointer]
            request = request or [max(living)]
            assert looked_up.originals(producer, mark, sorted(request), 0) == {each: living[each] for each in request}


@pytest.mark.parametrize("producers", [1, 2])
def test_repeating_everything_reads_little_more_than_what_is_repeated(producers: int) -> None:
    count, size = 300, 10
    names = "ab"[:producers]
    disk, log, _ = chained([(name, list(range(at * size, at * size + size))) for at in range(count) for name in names])
    store = CountingStore(disk)
    looked_up = History(store, PREFIX)
    last_id, last = log["a"][-1]
    mark = Mark(last_id, message_id_of(last), (count * producers - producers + 1) * size - 1)
    found = 0
    for at in range(count):
        found += len(looked_up.originals("a", mark, range(at * size, at * size + size), 0))
    assert producers > 1 or found == count * size, "however old they are"
    assert store.rows_read <= count * 2 * size + 1_000


def test_messages_from_before_a_producer_was_forgotten_are_no_originals() -> None:
    """The number is the same, and what stands there is another message."""
    log = WrittenLog()
    log.publish(Columns([b"0", b"1", b"2", b"3"], "a", [0, 1, 2, 3]))
    log.publish(Columns([b"new", b"newer"], "a", [5, 6], previous=FIRST_ROW_ID))
    newest = Mark(6, message_id_of(log.row_ids[-1]), 5)
    assert History(log.store, PREFIX).originals("a", newest, [1, 2, 3], 0).keys() == {1, 2}, "they would be found"
    assert History(log.store, PREFIX).originals("a", newest, [1, 2, 3], 4) == {}
