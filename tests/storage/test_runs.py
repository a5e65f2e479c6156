"""Rows that are laid together are read, changed and deleted as rows of their own (storage/runs.py), on every store."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from itertools import count, pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncelog_service.storage.keys import AFTER_ANY, ROW_ID_SIZE, generation_key, pointer_key, row_id, topic_key
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.storage.runs import RUN_BYTES, RunStore, laid_together, rows_of, run_of
from oncelog_service.storage.seals import raw
from tests.storage.stores import Place, place_of

LOG = generation_key(topic_key("default", "t"), 1)
IDS = st.integers(0, 30).map(lambda number: row_id(1_000 + number // 8, 65_530 + number % 8 if number % 8 < 6 else number % 8))
ROWS = st.one_of(st.binary(max_size=3), st.sampled_from([b"OLRN", b"OLRN" + bytes(20), bytes(RUN_BYTES), bytes(RUN_BYTES // 3)]))


def ids_from(first: bytes, number: int) -> list[bytes]:
    at = int.from_bytes(first, "big")
    return [(at + each).to_bytes(ROW_ID_SIZE, "big") for each in range(number)]


@given(ids=st.lists(IDS, unique=True, min_size=1, max_size=30), rows=st.lists(ROWS, min_size=30, max_size=30))
def test_what_is_laid_together_comes_apart_as_it_was(ids: list[bytes], rows: list[bytes]) -> None:
    under, runs = laid_together(LOG, ids, rows[: len(ids)])
    apart = [list(rows_of(LOG + at, run)) for at, run in zip(under, runs, strict=True)]
    assert [row for each in apart for row in each] == [(LOG + at, row) for at, row in zip(ids, rows, strict=False)]
    for at, of_run in zip(under, apart, strict=True):
        assert of_run[-1][0] == LOG + at, "it lies under the key of its last row"
        assert len(of_run) == 1 or sum(len(row) for _, row in of_run) <= RUN_BYTES
        for (before, _), (key, _) in pairwise(of_run):
            assert int.from_bytes(key, "big") == int.from_bytes(before, "big") + 1
            assert key[:-2] == before[:-2], "of one millisecond"


@settings(max_examples=200)
@given(data=st.data())
def test_a_run_gives_what_lies_in_a_range(data: st.DataObject) -> None:
    ids = ids_from(row_id(1_000, data.draw(st.integers(0, 300))), data.draw(st.integers(2, 20)))
    rows = [(LOG + at, data.draw(ROWS.filter(lambda row: len(row) < 100))) for at in ids]
    ((under,), (value,)) = laid_together(LOG, ids, [row for _, row in rows])
    run = run_of(LOG + under, value)
    assert run is not None
    assert len(run) == len(rows)
    bounds = st.one_of(st.sampled_from([b"", LOG, LOG + AFTER_ANY]), st.sampled_from(rows).map(lambda row: row[0]))
    start, stop = (data.draw(bounds) + data.draw(st.sampled_from([b"", b"\x00"])) for _ in range(2))
    expected = [row for row in rows if start <= row[0] < stop]
    assert list(run.between(start, stop)) == expected
    assert list(run.between(start, stop, reverse=True)) == expected[::-1]
    assert [run.get(key) for key, _ in rows] == [row for _, row in rows]
    assert run.get(LOG + row_id(1_001, 0)) is run.get(LOG + row_id(999, 65_535)) is None


def test_a_damaged_head_and_a_run_that_lies_elsewhere_are_never_read_as_rows() -> None:
    ids = ids_from(row_id(1_000, 0), 3)
    ((under,), (value,)) = laid_together(LOG, ids, [b"a", b"bb", b""])
    head = len(value) - 3
    for bit in range(8 * head):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        assert list(rows_of(LOG + under, bytes(flipped))) == [(LOG + under, flipped)], "one row that matches no checksum"
    for spoilt in (*(value[:size] for size in range(len(value))), value + b"\x00"):
        assert run_of(LOG + under, spoilt) is None
    assert run_of(LOG + ids[0], value) is None


def test_the_layout_of_a_run_never_changes() -> None:
    golden = (Path(__file__).parent.parent / "golden" / "run_v1.hex").read_text().strip()
    _, (value,) = laid_together(LOG, ids_from(row_id(1_000, 0), 3), [b"a", b"bb", b""])
    assert value.hex() == golden


# --- on a store


@pytest.fixture(params=["leveldb", "sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with place_of(request.param, tmp_path) as place:
        yield place


def written_as_run(store: Store, log: bytes, ids: list[bytes], rows: list[bytes], table: Table = Table.MESSAGE) -> None:
    batch = Batch()
    batch.put_run(table, log, ids, rows)
    store.write([batch])


def below(store: Store, table: Table = Table.MESSAGE) -> list[tuple[bytes, bytes]]:
    runs = raw(store)
    assert isinstance(runs, RunStore)
    return list(runs.inner.scan(table, b"", b"\xff" * 64))


EXAMPLE = count()
SHAPES = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 6), st.sampled_from([b"v", b"OLRN", bytes(RUN_BYTES // 3)])),
    st.tuples(st.just("jump"), st.integers(1, 40)),
    st.tuples(st.just("put"), st.lists(st.integers(0, 40), min_size=1, max_size=5)),
    st.tuples(st.just("delete"), st.lists(st.integers(0, 40), min_size=1, max_size=8)),
    st.tuples(
        st.just("end"),
    ),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(shapes=st.lists(SHAPES, max_size=12), stored=st.booleans(), data=st.data())
def test_any_history_of_runs_changes_and_deletes_reads_like_rows(
    place: Place,
    shapes: list[tuple],
    stored: bool,
    data: st.DataObject,  # type: ignore[type-arg]
) -> None:
    store = place._opened[0] if place._opened else place.open()
    table, log = Table.MESSAGE, generation_key(topic_key("default", f"t{next(EXAMPLE)}"), 1)
    if stored:
        table, log = Table.PAYLOAD, pointer_key(log, 7)
    model: dict[bytes, bytes] = {}
    batches, last = [Batch()], int.from_bytes(row_id(1_000, 65_533), "big")
    for number, (kind, *values) in enumerate(shapes):
        known = sorted(model)
        if kind == "run":
            ids = ids_from((last + 1).to_bytes(ROW_ID_SIZE, "big"), values[0])
            last += len(ids)
            rows = [values[1] + b"%d" % number] * len(ids)
            batches[-1].put_run(table, log, ids, rows)
            model.update(zip([log + each for each in ids], rows, strict=True))
            batches.append(Batch())
        elif kind == "jump":
            last += values[0]
        elif kind == "end":
            store.write(batches)
            batches = [Batch()]
        elif known:
            for key in [known[each % len(known)] for each in values[0]]:
                if kind == "put":
                    batches[-1].put(table, key, b"changed%d" % number)
                    model[key] = b"changed%d" % number
                else:
                    batches[-1].delete(table, key)
                    model.pop(key, None)
            batches.append(Batch())
    store.write(batches)
    rows = sorted(model.items())
    assert list(store.scan(table, log, log + AFTER_ANY)) == rows
    assert list(store.scan(table, log, log + AFTER_ANY, reverse=True)) == rows[::-1]
    first = int.from_bytes(row_id(1_000, 65_533), "big")
    for at in range(first, last + 2):
        key = log + at.to_bytes(ROW_ID_SIZE, "big")
        assert store.get(table, key) == model.get(key)
    for _ in range(4):
        ends = [log + data.draw(st.integers(first, last + 2)).to_bytes(ROW_ID_SIZE, "big") for _ in range(2)]
        start, stop = (each + data.draw(st.sampled_from([b"", b"\x00"])) for each in ends)
        keys = [key for key, _ in rows]
        expected = rows[bisect_left(keys, start) : bisect_left(keys, stop)]
        assert list(store.scan(table, start, stop)) == expected
        assert list(store.scan(table, start, stop, reverse=True)) == expected[::-1]


def test_a_request_is_a_handful_of_rows_below_and_none_when_its_messages_are_gone(place: Place) -> None:
    store, ids = place.open(), ids_from(row_id(1_000, 0), 1_000)
    written_as_run(store, LOG, ids, [bytes(150)] * 1_000)
    assert len(below(store)) == -(-1_000 // (RUN_BYTES // 150))
    for some in (ids[:333], ids[333:]):
        batch = Batch()
        for each in some:
            batch.delete(Table.MESSAGE, LOG + each)
        store.write([batch])
        left = 1_000 - len(some) if some[0] == ids[0] else 0
        assert len(list(store.scan(Table.MESSAGE, b"", b"\xff" * 64))) == left
    assert below(store) == []


def test_a_row_that_is_changed_within_a_run_is_laid_among_the_others_again(place: Place) -> None:
    store, ids = place.open(), ids_from(row_id(1_000, 0), 100)
    written_as_run(store, LOG, ids, [b"row"] * 100)
    batch = Batch()
    for each in ids[40:60]:
        batch.put(Table.MESSAGE, LOG + each, b"new")
    store.write([batch])
    assert len(below(store)) == 1
    assert [row for _, row in store.scan(Table.MESSAGE, LOG, LOG + AFTER_ANY)] == [b"row"] * 40 + [b"new"] * 20 + [b"row"] * 40


def test_a_run_whose_head_is_damaged_is_one_damaged_row_and_never_missing_ones(place: Place) -> None:
    store, ids = place.open(), ids_from(row_id(1_000, 0), 10)
    written_as_run(store, LOG, ids, [b"row"] * 10)
    runs = raw(store)
    assert isinstance(runs, RunStore)
    ((key, value),) = below(store)
    damaged = value[:9] + b"\x01" + value[10:]
    batch = Batch()
    batch.put(Table.MESSAGE, key, damaged)
    runs.inner.write([batch])
    assert list(store.scan(Table.MESSAGE, LOG, LOG + AFTER_ANY)) == [(key, damaged)]
    assert {store.get(Table.MESSAGE, LOG + each) for each in ids} == {damaged}


def test_runs_that_are_changed_together_stay_under_their_keys(place: Place) -> None:
    """A scan may read on both sides of such a write: a run that moved behind its end would be missing."""
    store, ids = place.open(), ids_from(row_id(1_000, 0), 12)
    for some in (ids[:5], ids[5:10], ids[10:11], ids[11:]):
        written_as_run(store, LOG, some, [b"row"] * len(some))
    keys = [key for key, _ in below(store)]
    assert keys == [LOG + ids[at] for at in (4, 9, 10, 11)]
    batch = Batch()
    for each in ids[2:]:
        batch.put(Table.MESSAGE, LOG + each, b"new")
    for each in ids[:2]:
        batch.delete(Table.MESSAGE, LOG + each)
    store.write([batch])
    assert [key for key, _ in below(store)] == keys
    assert list(store.scan(Table.MESSAGE, LOG, LOG + AFTER_ANY)) == [(LOG + each, b"new") for each in ids[2:]]


@pytest.mark.parametrize("end", [b"x" * (ROW_ID_SIZE - 1), b"x" * (ROW_ID_SIZE + 1)])
def test_a_row_under_a_key_that_is_no_messages_can_be_written_again(place: Place, end: bytes) -> None:
    """No topic has one, but a store that is copied may: it was deleted by what should have changed it."""
    store = place.open()
    for value in (b"once", b"again"):
        batch = Batch()
        batch.put(Table.MESSAGE, LOG + end, value)
        store.write([batch])
        assert store.get(Table.MESSAGE, LOG + end) == value


def test_a_falling_scan_gives_each_row_once_although_the_run_it_began_in_is_laid_anew_meanwhile(place: Place) -> None:
    store, ids = place.open(), ids_from(row_id(1_000, 0), 10)
    written_as_run(store, LOG, ids, [b"row"] * 10)
    with closing(store.scan(Table.MESSAGE, LOG, LOG + ids[8], reverse=True)) as rows:
        found = [next(rows)]
        batch = Batch()
        batch.delete(Table.MESSAGE, LOG + ids[4])
        store.write([batch])
        found += rows
    assert found == [(LOG + each, b"row") for each in ids[7::-1]], "as of its first step"
