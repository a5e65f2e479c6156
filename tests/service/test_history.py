"""The originals of repeated messages are found along the chain of a producer's requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import TopicDamaged
from oncelog_dedup import LastEntry
from oncelog_service.log.append import history
from oncelog_service.log.append.history import Further, History, Original, OriginalRun, read_where_expected, requests_of, walk
from oncelog_service.log.append.receipts import duplicate_runs, repeated_runs
from oncelog_service.storage.checksum import with_checksum
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import FIRST_ROW_ID
from oncelog_service.storage.memory import MemoryStore
from oncelog_service.storage.port import Rows, Table
from oncelog_service.storage.rows import message_id_of
from oncelog_service.storage.runs import RUN_BYTES
from tests.service.house import PREFIX, flip
from tests.service.written import Message, Request, WrittenLog, bounds, requests, written

EACH, SOME = 1, 100
"""Of messages of some bytes: a run of each, and one of about three."""


def chained(*published: tuple[str | None, list[int]], run_bytes: int = RUN_BYTES, together: bool = False) -> WrittenLog:
    """A log of such requests, producer and sequence ids: each for itself, or as plain ones that waited together."""
    log = WrittenLog(run_bytes=run_bytes)
    columns = [Columns([b"%d" % each for each in ids], name, None if name is None else ids) for name, ids in published]
    for waiting in [columns] if together else [[each] for each in columns]:
        log.publish(*waiting)
    return log


def messages_of(log: WrittenLog) -> dict[str, dict[int, Message]]:
    """producer → sequence id → its message that was not rolled back."""
    found: dict[str, dict[int, Message]] = {}
    for each in log.messages:
        if each.producer is not None and each.sequence_id is not None and (each.pointer or 1) > 0:
            found.setdefault(each.producer, {})[each.sequence_id] = each
    return found


def originals(messages: Iterable[Message]) -> dict[int | None, Original]:
    found = (Original(each.sequence_id, each.message_id, each.offset, each.payload, each.pointer) for each in messages)
    return {each.sequence_id: each for each in found}


TWO = [("a", [0, 1]), ("b", [0, 1, 2]), (None, [9, 9]), ("a", [2, 3, 4]), ("b", [3]), ("a", [7, 9])]


def test_the_newest_request_is_always_looked_through_whole() -> None:
    log = chained(("a", list(range(500))), ("a", list(range(500, 3_000))))
    found = walk(log.store, PREFIX, "a", log.newest["a"], list(range(500, 3_000)), Further(0, 64)).found
    assert len(found) == 2_500


def test_how_far_the_walk_goes_beyond_it_is_bounded() -> None:
    log = chained(*(("a", [number]) for number in range(100)))
    for wanted, further, found in ((0, (10, 100), False), (0, (100, 10), False), (95, (10, 10), True), (0, (100, 100), True)):
        assert (wanted in walk(log.store, PREFIX, "a", log.newest["a"], [wanted], Further(*further)).found) == found


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("run_bytes", [EACH, SOME, RUN_BYTES])
def test_what_retention_deleted_is_not_found_and_is_no_error(run_bytes: int, together: bool) -> None:
    log = chained(*TWO, run_bytes=run_bytes, together=together)
    for trimmed, gone in enumerate(log.runs, 1):
        log = chained(*TWO, run_bytes=run_bytes, together=together)
        log.trim(trimmed)
        for producer, messages in messages_of(log).items():
            found = walk(log.store, PREFIX, producer, log.newest[producer], list(range(10))).found
            assert found == originals(each for each in messages.values() if each.row_id > gone.id)


@pytest.mark.parametrize("run_bytes", [EACH, SOME, RUN_BYTES])
def test_where_the_newest_message_was_is_known_for_ever_and_what_it_said_is_not(run_bytes: int) -> None:
    log = chained(*TWO, run_bytes=run_bytes)
    for trimmed in range(1, len(log.runs) + 1):
        log = chained(*TWO, run_bytes=run_bytes)
        left = log.runs[trimmed:]
        log.trim(trimmed)
        for producer, messages in messages_of(log).items():
            newest = max(messages.values(), key=lambda each: each.offset)
            last_entry = LastEntry(newest.sequence_id or 0, newest.message_id, newest.offset)
            stored = originals(each for each in messages.values() if left and each.offset >= left[0].first)
            place = Original(newest.sequence_id, newest.message_id, newest.offset, b"", None, erased=True)
            found = History(log.store, PREFIX).originals(producer, last_entry, [*messages], 0)
            assert found == {newest.sequence_id: place, **stored}


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("run_bytes", [EACH, SOME])
@pytest.mark.parametrize("missing", [0, 2, 3, 5, 9, 12])
def test_a_message_damaged_or_missing_on_the_way_is_refused_and_never_answered_from_others(
    missing: int, run_bytes: int, together: bool
) -> None:
    """With the first row of a request gone, the walk would go on in the request before it: another producer's."""
    log = chained(("c", [0, 1]), *TWO, run_bytes=run_bytes, together=together)
    producer, key = log.messages[missing].producer or "", log.key_of(log.row_ids[missing])
    for damage in (lambda key: flip(log.disk, Table.MESSAGE, key), log.disk.tables[Table.MESSAGE].pop):
        damage(key)
        with pytest.raises(TopicDamaged):
            walk(log.store, PREFIX, producer, log.newest[producer], list(range(10)))


# --- transactions and stored groups


def test_the_chain_leads_over_requests_that_were_rolled_back_later() -> None:
    """The request behind was published while the one before it was still in its transaction."""
    log = WrittenLog()
    log.publish(Columns([b"0"], "a", [0]))
    marked = log.publish(Columns([b"1"], "a", [1], write_pointer=5), rolled=True)
    log.put(6, Columns([b"2"], "a", [2]))
    log.newest["a"] = marked[-1]
    log.newest["a"] = log.publish_stored(6, rolled=True)
    for producer in ("b", "a"):
        log.put(7, Columns([producer.encode()], producer, [2]))
    log.publish(Columns([b"3", b"4"], "a", [3, 4], previous=log.publish_stored(7)))
    requests = requests_of(log.store, PREFIX, "a", log.row_ids[-1])
    assert [[(each.sequence_id, each.payload) for each in request] for request in requests] == [
        [(4, b"4"), (3, b"3")],
        [(2, b"a")],
        [(0, b"0")],
    ]


def test_a_group_that_does_not_hold_the_producer_it_should_is_damage() -> None:
    log = WrittenLog()
    log.put(5, Columns([b"0"], "b", [0]))
    at = log.publish_stored(5)
    with pytest.raises(TopicDamaged, match="should hold messages of producer 'a'"):
        list(requests_of(log.store, PREFIX, "a", at))
    flip(log.disk, Table.PAYLOAD, min(log.disk.tables[Table.PAYLOAD]))
    with pytest.raises(TopicDamaged):
        walk(log.store, PREFIX, "b", at, [0])


class TrimmedMeanwhile(MemoryStore):
    """Retention deletes every row of the log before the first payload is read."""

    def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        if table is Table.PAYLOAD:
            self.disk.tables[Table.MESSAGE].clear()
        return super().scan(table, start, stop, reverse=reverse)


@pytest.mark.parametrize("number", range(3))
def test_a_group_that_lacks_a_payload_is_refused_unless_it_was_deleted_meanwhile(number: int) -> None:
    log = WrittenLog(run_bytes=EACH)
    log.put(5, Columns([b"0", b"1", b"2"], "a", [0, 1, 2]))
    log.publish_stored(5)
    payloads = log.disk.tables[Table.PAYLOAD]
    del payloads[sorted(payloads)[number]]
    with pytest.raises(TopicDamaged, match=f"number {number} is missing"):
        walk(log.store, PREFIX, "a", log.newest["a"], [0])
    walk(TrimmedMeanwhile(log.disk), PREFIX, "a", log.newest["a"], [0])


# --- what a topic looks up for a request that comes again


class CountingStore(MemoryStore):
    """Counts the rows that are read from it."""

    rows_read = 0

    def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        with closing(super().scan(table, start, stop, reverse=reverse)) as rows:
            for row in rows:
                self.rows_read += 1
                yield row


@given(requests, bounds, st.sets(st.integers(0, 40), min_size=1, max_size=12))
def test_what_is_found_is_true_and_what_was_rolled_back_never_found(
    history: list[Request], run_bytes: int, wanted: set[int]
) -> None:
    """A walk to the end finds every living original, in rows and groups; a look-up all of those of the newest request."""
    log = written(history, run_bytes)
    for producer, messages in messages_of(log).items():
        newest, living = messages[max(messages)], originals(messages.values())
        found = walk(log.store, PREFIX, producer, log.newest[producer], sorted(wanted)).found
        assert found == {number: each for number, each in living.items() if number in wanted}
        last_entry = LastEntry(max(messages), newest.message_id, newest.offset)
        looked_up = History(log.store, PREFIX)
        for _ in range(2):  # what it remembers of the first time changes nothing
            found = looked_up.originals(producer, last_entry, sorted(wanted), 0)
            assert found.items() <= living.items()
            request = [number for number, each in messages.items() if newest.pointer and each.pointer == newest.pointer]
            request = request or [max(messages)]
            assert looked_up.originals(producer, last_entry, sorted(request), 0) == {each: living[each] for each in request}


@pytest.mark.parametrize("run_bytes", [EACH, RUN_BYTES])
@pytest.mark.parametrize("producers", [1, 2])
def test_repeating_everything_reads_little_more_than_what_is_repeated(producers: int, run_bytes: int) -> None:
    count, size = 100, 10
    log = chained(
        *((name, list(range(at * size, at * size + size))) for at in range(count) for name in "ab"[:producers]),
        run_bytes=run_bytes,
    )
    store = CountingStore(log.disk)
    looked_up = History(store, PREFIX)
    newest = messages_of(log)["a"][count * size - 1]
    last_entry, found = LastEntry(count * size - 1, newest.message_id, newest.offset), 0
    for at in range(count):
        found += len(looked_up.originals("a", last_entry, range(at * size, at * size + size), 0))
    assert producers > 1 or found == count * size, "however old they are"
    assert store.rows_read <= (count * 2 * size + 1_000 if run_bytes == EACH else 5 * count + 1_000)


def test_messages_from_before_a_producer_was_forgotten_are_no_originals() -> None:
    """The number is the same, and what stands there is another message."""
    log = WrittenLog()
    log.publish(Columns([b"0", b"1", b"2", b"3"], "a", [0, 1, 2, 3]))
    log.publish(Columns([b"new", b"newer"], "a", [5, 6], previous=FIRST_ROW_ID))
    newest = LastEntry(6, message_id_of(log.row_ids[-1]), 5)
    assert History(log.store, PREFIX).originals("a", newest, [1, 2, 3], 0).keys() == {1, 2}, "they would be found"
    assert History(log.store, PREFIX).originals("a", newest, [1, 2, 3], 4) == {}


# --- a request that comes again as it was is compared with its rows as they lie

NAMED = [b"%d" % each * (1 + each * 30 % 97) for each in range(12)]
"""Payloads of several lengths, and lengths of lengths."""


def side_by_side(pointer: int | None = None, run_bytes: int = RUN_BYTES, rolled: bool = False) -> WrittenLog:
    """A producer's messages 5 to 16 at offsets 1 to 12: of several requests, in one millisecond and in others, in rows of their
    own and together, with and without keys, ttls and a write pointer."""
    log = WrittenLog(run_bytes=run_bytes)
    log.publish(Columns([b"before"], "b", [5]))
    kinds: list[dict[str, Any]] = [{}, {"write_pointer": pointer}, {"keys": [b"k", None, b""]}, {"ttls": [10**6] * 3}]
    columns = [Columns(NAMED[at : at + 3], "a", range(at + 5, at + 8), **kinds[at // 3]) for at in range(0, 12, 3)]
    for number, waiting in enumerate((columns[:1], columns[1:2], columns[2:])):
        log.publish(*waiting, rolled=rolled and number == 1, step_ms=number % 2)
    log.publish(Columns([b"behind"], "b", [6]))
    return log


def found_in(log: WrittenLog, first: int, upto: int) -> Mapping[int, Original]:
    return read_where_expected(log.store, PREFIX, "a", range(first, upto), range(first - 4, upto - 4))


@pytest.mark.parametrize("run_bytes", [EACH, SOME, RUN_BYTES])
@pytest.mark.parametrize("pointer", [None, 7])
def test_messages_side_by_side_are_one_run_whatever_requests_they_came_with(pointer: int | None, run_bytes: int) -> None:
    log = side_by_side(pointer, run_bytes)
    living = originals(messages_of(log)["a"].values())
    for first in range(5, 17):
        for upto in range(first + 1, 18):
            found = found_in(log, first, upto)
            assert isinstance(found, OriginalRun)
            assert found == {each: living[each] for each in range(first, upto)}
            assert found.has_payloads(NAMED[first - 5 : upto - 5])
            ids = range(first, upto)
            assert sum(run.count for run in repeated_runs(found)) == len(ids)
            assert len(repeated_runs(found)) <= 3, "one for each millisecond"
            one_by_one = duplicate_runs(ids, {each: found[each] for each in ids})
            assert repeated_runs(found) == one_by_one


def test_a_run_with_another_payload_anywhere_is_none_of_the_request() -> None:
    found = found_in(side_by_side(), 5, 17)
    assert isinstance(found, OriginalRun)
    for at, payload in enumerate(NAMED):
        for other in (b"", payload + b"x", payload[:-1], payload[:-1] + b"x", payload[1:] + b"x"):
            assert not found.has_payloads([*NAMED[:at], other, *NAMED[at + 1 :]])
    assert not found.has_payloads(NAMED[:-1])


@pytest.mark.parametrize("run_bytes", [EACH, SOME, RUN_BYTES])
@pytest.mark.parametrize("at", [1, 5, 12])
def test_what_is_no_run_is_looked_at_message_by_message(at: int, run_bytes: int) -> None:
    log = side_by_side(7, run_bytes)
    living = originals(messages_of(log)["a"].values())
    assert 17 not in found_in(log, 5, 18), "another producer's message lies there"
    assert found_in(log, 4, 17) == living, "and there"
    assert not found_in(log, 105, 117), "of other numbers"
    messages = log.disk.tables[Table.MESSAGE]
    key = log.key_of(log.row_ids[at])
    whole = messages[key]
    flip(log.disk, Table.MESSAGE, key)
    with pytest.raises(TopicDamaged, match="checksum"):
        found_in(log, 5, 17)
    messages[key] = messages[PREFIX + log.row_ids[0]]
    with pytest.raises(TopicDamaged, match="checksum"):
        found_in(log, 5, 17)
    messages[key] = with_checksum(b"\x02" + whole[1:-4], key)
    with pytest.raises(TopicDamaged, match="version"):
        found_in(log, 5, 17)
    del messages[key]
    if at < 12:
        with pytest.raises(TopicDamaged, match="missing"):
            found_in(log, 5, 17)


def test_of_what_was_rolled_back_between_them_nothing_is_an_original() -> None:
    assert found_in(side_by_side(7, rolled=True), 5, 17).keys() == {*range(5, 17)} - {8, 9, 10}


@pytest.mark.parametrize("step", [1, 2], ids=["side by side", "with gaps"])
def test_small_messages_under_the_numbers_of_large_ones_do_not_fill_the_memory(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_BESIDES", 20_000)
    log, ids = WrittenLog(), range(0, 200 * step, step)
    for sequence_id in ids:
        log.publish(Columns([bytes(1_000)], "a", [sequence_id]))
    newest = LastEntry(ids[-1], message_id_of(log.row_ids[-1]), 199)
    assert len(History(log.store, PREFIX).originals("a", newest, ids, 0, 200 * 1_000)) == 200
    assert 0 < len(History(log.store, PREFIX).originals("a", newest, ids, 0, 200)) < 60
