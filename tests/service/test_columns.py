"""Column by column a range says what its rows say one by one; pages of it leave nothing out; damage is never passed over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import count
from typing import NamedTuple

import fastavro
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oncelog.errors import TopicDamaged
from oncelog.wire.columns import MessageColumns, decode_message_columns, encode_message_columns, unpack
from oncelog_service.log.read.columns import Range, end_within, foretold, read_columns
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import FIRST_ROW_ID, pointer_key, split_row_id, timestamp_prefix
from oncelog_service.storage.payload_rows import stored_messages_of
from oncelog_service.storage.port import Table
from oncelog_service.storage.rows import payloads_under
from oncelog_service.storage.runs import GROUP, RUN_BYTES
from tests.service.house import BEGIN, PREFIX, flip
from tests.service.written import POINTER, WrittenLog, bounds
from tests.storage.test_runs import ONCELOG_MESSAGE

EVERYTHING = Range(0, 0, FIRST_ROW_ID, 0, 10**6, 10**9, True)


class Read(NamedTuple):
    message_id: bytes
    offset: int
    producer: str | None
    sequence_id: int | None
    key: bytes | None
    properties: dict[str, str] | None
    payload: bytes


def spread(columns: MessageColumns) -> list[Read]:
    """One by one, after a journey over the wire."""
    columns = decode_message_columns(encode_message_columns(columns))
    ids = [columns.message_ids[at : at + 20] for at in range(0, len(columns.message_ids), 20)]
    offsets = [run.first + step for run in columns.offsets for step in range(run.count)]
    named = [
        (run.producer, None if run.sequence_id is None else run.sequence_id + step)
        for run in columns.producers
        for step in range(run.count)
    ]
    nothing: list[None] = [None] * len(ids)
    keys = nothing if columns.keys is None else unpack(columns.keys)
    properties = nothing if columns.properties is None else [None if each is None else dict(each) for each in columns.properties]
    rows = zip(ids, offsets, named, keys, properties, unpack(columns.values), strict=True)
    return [Read(at, offset, *who, key, about, value or b"") for at, offset, who, key, about, value in rows]  # type: ignore[call-arg]


def one_by_one(log: WrittenLog, now_ms: int = 0) -> Iterator[Read]:
    """Every message that counts, decoded by fastavro from the bytes that a poll answers."""
    for run in log.runs:
        if run.is_rolled_back:
            continue
        messages = run.bodies()
        if run.flags & GROUP:
            messages = [
                data
                for each in log.stored_runs(payloads_under(run))
                for data in stored_messages_of(run.id, run.first + each.first, each, 0, len(each))
            ]
        for data in messages:
            record: dict = fastavro.schemaless_reader(BytesIO(data), ONCELOG_MESSAGE, None)  # type: ignore[assignment,type-arg]
            if record["ttl"] is None or split_row_id(run.id)[0] + record["ttl"] * 1000 > now_ms:
                names = ("id", "offset", "producer", "sequenceId", "key", "properties", "payload")
                yield Read(*(record[name] for name in names))


def end(log: WrittenLog) -> int:
    return log.runs[-1].end if log.runs else 0


def paged(log: WrittenLog, wanted: Range) -> list[Read]:
    """All pages of the range."""
    found: list[Read] = []
    at, store = wanted.first, log.store
    while True:
        page = read_columns(store, log.prefix, wanted._replace(first=at))
        assert page.messages <= wanted.limit
        found += spread(page)
        assert at <= page.next <= wanted.upto
        if page.next == wanted.upto:
            return found
        assert page.next > at
        at = page.next


# --- any log ------------------------------------------------------------------------------------------------------------

small = st.integers(0, 3)
payloads = st.binary(max_size=3) | st.sampled_from([b"x" * 62, b"x" * 63, b"x" * 64, b"x" * 5000, b"x" * 8191, b"x" * 8192])


@st.composite
def columns_of(draw: st.DrawFn, names: Sequence[str | None] = (None, "p", "other")) -> Columns:
    """A request's messages: named or not, with keys, properties and ttls or without."""
    bodies = draw(st.lists(payloads, min_size=1, max_size=7))
    each = st.lists
    size = len(bodies)

    def some(values: st.SearchStrategy) -> object:  # type: ignore[type-arg]
        column = each(st.none() | values, min_size=size, max_size=size)
        alike = values.map(lambda value: [value] * size)
        return draw(st.none() | column | alike)

    producer = draw(st.sampled_from(names))
    ids = None
    if producer is not None:
        begin = draw(st.sampled_from([0, 60, 63, 8189, 2**62]))
        ids = [begin + sum(steps) for steps in _sums(draw(each(st.sampled_from([1, 1, 1, 2, 90]), min_size=size, max_size=size)))]
    return Columns(
        bodies,
        producer,
        ids,
        keys=some(st.binary(max_size=2) | st.just(b"k" * 70)),  # type: ignore[arg-type]
        properties=some(st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2)),  # type: ignore[arg-type]
        ttls=some(st.sampled_from([1, 63, 64, 100_000])),  # type: ignore[arg-type]
    )


def _sums(steps: list[int]) -> Iterator[list[int]]:
    return (steps[: at + 1] for at in range(len(steps)))


happenings = st.lists(
    st.tuples(st.just("publish"), columns_of(), st.sampled_from(["plain", "waits", "committed", "rolled"]))
    | st.tuples(st.sampled_from(["group", "rolled_group", "branch"]), st.lists(columns_of(), max_size=3), small),
    max_size=6,
)


def written(happened: list, run_bytes: int = RUN_BYTES) -> WrittenLog:  # type: ignore[type-arg]
    log = WrittenLog(run_bytes=run_bytes)
    numbers = count(1)
    waiting: list[Columns] = []

    def write() -> None:
        if waiting:
            log.publish(*waiting)
            waiting.clear()

    for kind, what, how in happened:
        pointer = POINTER + next(numbers)
        if how != "waits":
            write()
        if kind == "publish":
            what = Columns(what.payloads, what.producer, what.sequence_ids, what.keys, what.properties, what.ttls)
            if how in ("plain", "waits"):
                waiting.append(what)
            else:
                what.write_pointer = pointer
                log.publish(what, rolled=how == "rolled")
            continue
        if kind == "branch":
            pointer = -pointer
        for columns in what:
            log.put(pointer, columns)
        if what or kind != "branch":
            log.publish_stored(pointer, rolled=kind == "rolled_group", step_ms=how)
    write()
    return log


@given(
    happenings,
    bounds,
    st.integers(1, 20),
    st.sampled_from([1, 100, 300, 10_000, 10**9]),
    st.sampled_from([0, BEGIN + 63_000]),
    st.data(),
)
def test_columns_say_what_the_rows_say_one_by_one(
    happened: list,  # type: ignore[type-arg]
    run_bytes: int,
    limit: int,
    max_bytes: int,
    now_ms: int,
    data: st.DataObject,
) -> None:
    log = written(happened, run_bytes)
    upto = data.draw(st.integers(0, end(log)), "upto")
    first = data.draw(st.integers(0, upto), "first")
    expected = [each for each in one_by_one(log, now_ms) if first <= each.offset < upto]
    wanted = EVERYTHING._replace(first=first, upto=upto, now_ms=now_ms)
    assert spread(read_columns(log.store, log.prefix, wanted)) == expected
    assert paged(log, wanted._replace(limit=limit, max_bytes=max_bytes)) == expected
    without = [each._replace(properties=None) for each in expected]
    assert spread(read_columns(log.store, log.prefix, wanted._replace(properties=False))) == without


@given(happenings, bounds, st.data())
def test_a_damaged_or_missing_row_is_never_passed_over(
    happened: list,  # type: ignore[type-arg]
    run_bytes: int,
    data: st.DataObject,
) -> None:
    log = written(happened, run_bytes)
    # The row of an empty group takes no offset: nobody misses it.
    keys = [(Table.MESSAGE, PREFIX + run.id) for run in log.runs if run.count]
    read = {message.offset for message in one_by_one(log)}
    assume(read)
    payload_keys = [
        (Table.PAYLOAD, pointer_key(PREFIX, pointer) + each.id)
        for pointer in {pointer for pointer in log.pointers if pointer is not None and pointer > 0}
        for each in log.stored_runs(pointer)
    ]
    table, key = data.draw(st.sampled_from(keys + payload_keys))
    upto = end(log)
    if data.draw(st.booleans()):
        flip(log.disk, table, key, data.draw(st.integers(-len(log.disk.tables[table][key]), -1)))
    else:
        del log.disk.tables[table][key]
    with pytest.raises(TopicDamaged):
        read_columns(log.store, log.prefix, EVERYTHING._replace(upto=upto))


@given(st.lists(columns_of(), min_size=1, max_size=5), bounds, st.data())
def test_what_fits_into_a_size_is_at_least_one_message_and_never_more(
    requests: list[Columns], run_bytes: int, data: st.DataObject
) -> None:
    log = written([("publish", each, "waits") for each in requests], run_bytes)
    sizes = [len(body) for run in log.runs for body in run.bodies()]
    first = data.draw(st.integers(0, len(sizes) - 1))
    upto = data.draw(st.integers(first + 1, len(sizes)))
    room = data.draw(st.integers(1, 3 * max(sizes)))
    found = end_within(log.store, log.prefix, first, upto, room)
    assert first < found <= upto
    assert found == first + 1 or sum(sizes[first:found]) <= room
    assert found == upto or sum(sizes[first : found + 1]) > room


def test_a_group_that_was_stored_before_the_one_at_which_it_begins_is_measured_whole() -> None:
    log = WrittenLog()
    for pointer in (1, 2):
        log.put(pointer, Columns([bytes(100)] * 3), now_ms=log.now_ms + pointer)
    log.publish_stored(2)
    log.publish_stored(1)
    assert end_within(log.store, log.prefix, 1, 6, 350) == 4


# --- large ones ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [False, True])
def test_runs_go_on_over_rows_requests_and_growing_numbers(keyed: bool) -> None:
    log = WrittenLog()
    for begin in range(0, 2_700, 900):
        keys = [b"%d" % number for number in range(900)] if keyed else None
        log.publish(Columns([b"v%d" % number for number in range(900)], "p", range(begin, begin + 900), keys=keys))
    columns = read_columns(log.store, log.prefix, EVERYTHING._replace(upto=2_700))
    assert columns.offsets == [(0, 2_700)]
    assert columns.producers == [("p", 0, 2_700)]
    assert spread(columns) == list(one_by_one(log))


def test_a_large_group_is_paged_from_any_place() -> None:
    log = WrittenLog(run_bytes=2_000)
    log.publish(Columns([b"before"]))
    for begin in range(0, 1_000, 500):
        log.put(-POINTER, Columns([b"%d" % number for number in range(begin, begin + 500)], "p", range(begin, begin + 500)))
    log.publish_stored(-POINTER)
    log.publish(Columns([b"behind"]))
    everything = list(one_by_one(log))
    assert [each.offset for each in everything] == list(range(1_002))
    assert paged(log, EVERYTHING._replace(upto=1_002, limit=300)) == everything
    assert paged(log, EVERYTHING._replace(first=234, upto=845, max_bytes=9_000)) == everything[234:845]


def test_what_is_older_than_the_first_living_row_is_left_out() -> None:
    log = WrittenLog()
    for number in range(5):
        log.publish(Columns([b"%d" % number] * 2))
    wanted = EVERYTHING._replace(upto=10, begin=timestamp_prefix(BEGIN + 3))
    found = read_columns(log.store, log.prefix, wanted)
    assert (found.next, found.offsets) == (10, [(4, 6)])
    nothing = wanted._replace(begin=timestamp_prefix(BEGIN + 100))
    assert read_columns(log.store, log.prefix, nothing).messages == 0
    del log.disk.tables[Table.MESSAGE][log.prefix + log.runs[-1].id]
    with pytest.raises(TopicDamaged):
        read_columns(log.store, log.prefix, nothing)


def test_payloads_at_one_place_whose_lengths_take_more_or_fewer_bytes_are_cut_right() -> None:
    log = WrittenLog()
    log.publish(Columns([b"a" * 10, b"b" * 100, b"c" * 10_000]))
    columns = read_columns(log.store, log.prefix, EVERYTHING._replace(upto=3))
    assert [each.payload for each in spread(columns)] == [b"a" * 10, b"b" * 100, b"c" * 10_000]


def test_a_text_that_goes_on_as_foretold_is_one_run() -> None:
    nothing = b"\x00\x00\x00"
    texts = [b"\x02\x02p\x02" + bytes([2 * number]) + nothing for number in (1, 2, 4)] + [b"\x00\x00" + nothing] * 2
    assert list(foretold(texts)) == [("p", 1, [nothing] * 2), ("p", 4, [nothing]), (None, None, [nothing] * 2)]
