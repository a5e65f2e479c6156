"""The promises that every store keeps towards the log (storage/port.py)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count, islice, product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncelog_service.storage.memory import MemoryStore
from oncelog_service.storage.port import Batch, Store, StoreClosed, Table
from oncelog_service.storage.seals import raw
from tests.patience import PATIENCE, until
from tests.storage.stores import END, KINDS, M, Place, S, everything, place_of, put, run, write


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with place_of(request.param, tmp_path) as place:
        yield place


@pytest.fixture
def store(place: Place) -> Store:
    return place.open()


KEYS = (b"", b"\x00", b"a", b"a\x00", b"b", b"\x7f", b"\xff")
TABLES, SOME_KEYS, VALUES = st.sampled_from([M, S]), st.sampled_from(KEYS), st.binary(max_size=2)
BATCH = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.lists(SOME_KEYS, max_size=4), VALUES),
        st.tuples(st.just("put"), TABLES, SOME_KEYS, VALUES),
        st.tuples(st.just("delete"), TABLES, SOME_KEYS),
    ),
    max_size=6,
)
Batches = list[list[tuple]]  # type: ignore[type-arg]
EXAMPLE = count()


def batches_of(group: Batches, prefix: bytes) -> tuple[list[Batch], Callable[[dict[tuple[Table, bytes], bytes]], None]]:
    """The batches, and their effect on a dict."""
    batches = []
    for changes in group:
        batches.append(batch := Batch())
        for kind, *values in changes:
            if kind == "run":
                batch.put_rows(M, prefix, [(key, values[1] + b"%d" % at) for at, key in enumerate(values[0])])
            elif kind == "put":
                batch.put(values[0], prefix + values[1], values[2])
            else:
                batch.delete(values[0], prefix + values[1])

    def apply(model: dict[tuple[Table, bytes], bytes]) -> None:
        for batch in batches:
            for laid in batch.laid:
                model.update({(laid.table, laid.prefix + end): value for end, value in laid.rows()})
            model.update({(table, key): value for table, key, value in batch.puts})
            for each in batch.deletes:
                model.pop(each, None)

    return batches, apply


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(st.tuples(st.lists(BATCH, max_size=4), st.integers(0, 3)), min_size=1, max_size=4))
def test_any_history_of_writes_reads_like_a_dict(place: Place, history: list[tuple[Batches, int]]) -> None:
    prefix = b"%08d" % next(EXAMPLE)
    model: dict[tuple[Table, bytes], bytes] = {}
    store = place._opened[0] if place._opened else place.open()
    for group, chance in history:
        batches, apply = batches_of(group, prefix)
        store.write(batches)
        apply(model)
        if not chance:
            store = place.reopen()
    for table in (M, S):
        rows = sorted((key, value) for (each, key), value in model.items() if each is table)
        assert list(store.scan(table, prefix, prefix + END)) == rows
        assert list(store.scan(table, prefix, prefix + END, reverse=True)) == rows[::-1]
        for key in KEYS:
            assert store.get(table, prefix + key) == model.get((table, prefix + key))


def test_what_it_takes_on_disk_grows_with_what_is_written(store: Store) -> None:
    before = store.size_bytes()
    for number in range(4):
        store.write([put((M, b"%d" % number, os.urandom(2**20)))])
    grown = store.size_bytes() - before
    assert grown == 0 if isinstance(raw(store), MemoryStore) else 4 * 2**20 <= grown < 40 * 2**20


def test_a_look_at_a_store_finds_one_that_is_empty_and_one_that_is_not(store: Store) -> None:
    store.look()
    write(store, M, b"k")
    store.look()


def test_a_scan_has_its_start_and_not_its_stop_in_the_order_of_bytes_both_ways(store: Store) -> None:
    keys = (b"", b"\x00", b"\x00\x00", b"\x01", b"a", b"a\x00", b"aa", b"b", b"\x7f", b"\x80", b"\xff")
    store.write([put(*((M, key, key) for key in reversed(keys)))])
    for start, stop in product((*keys, b"aaa", b"\x90"), (*keys, END)):
        expected = [(key, key) for key in sorted(keys) if start <= key < stop]
        assert list(store.scan(M, start, stop)) == expected
        assert list(store.scan(M, start, stop, reverse=True)) == expected[::-1], "also a single row, right at the start"


def test_the_tables_are_kept_apart(store: Store) -> None:
    for table in Table:
        write(store, table, b"k", value=table.value)
    assert everything(store) == [(table, b"k", table.value) for table in Table]
    assert [store.get(table, b"k") for table in Table] == [table.value for table in Table]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_sees_the_state_at_its_first_step(store: Store, reverse: bool) -> None:
    keys = [b"%06d" % number for number in range(3_000)]  # several pages of a database
    store.write([run(*((key, b"old") for key in keys))])
    with closing(store.scan(M, b"", END, reverse=reverse)) as rows:
        seen = [next(rows)]
        later = run(*((key, b"new") for key in (*keys[::7], b"x")))
        later.deletes += [(M, key) for key in keys[::50]]
        store.write([later])
        seen += rows
    assert seen == [(key, b"old") for key in (keys[::-1] if reverse else keys)]
    assert store.get(M, keys[50]) is None
    assert store.get(M, keys[7]) == b"new"


@pytest.mark.real
def test_readers_on_other_threads_see_each_write_whole(store: Store) -> None:
    stop = threading.Event()
    halves = []

    def read() -> None:
        while not stop.is_set():
            rows = dict(store.scan(M, b"", END))
            if len(set(rows.values())) > 1:
                halves.append(rows)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(100):
        store.write([put((M, b"a", b"%d" % number)), put((M, b"b", b"%d" % number))])
    stop.set()
    for reader in readers:
        reader.join(PATIENCE)
    assert halves == []


# --- after a failure, after closing


def check_closed(store: Store) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.get(M, b"k"),
        lambda: list(store.scan(M, b"", END)),
        store.look,
        lambda: list(store.scan(M, b"", END, reverse=True)),
        lambda: write(store, M, b"k"),
        lambda: store.write([]),
    ]
    for call in calls:
        with pytest.raises(StoreClosed):
            call()


def test_a_failed_write_leaves_nothing_and_closes_the_store_until_it_is_opened_again(place: Place) -> None:
    store = place.open()
    write(store, M, b"before")
    batch = put((S, b"k", b"2"))
    batch.put_rows(M, b"topic", [(b"1", b"a")])
    batch.delete(M, b"before")
    place.fail_write(store, batch)
    for _ in range(2):
        check_closed(store)
    store = place.reopen()
    assert everything(store) == [(M, b"before", b"value")]
    write(store, M, b"k")
    assert everything(place.reopen()) == [(M, b"before", b"value"), (M, b"k", b"value")]


def test_a_closed_store_refuses_everything_and_may_be_closed_again(store: Store) -> None:
    store.close()
    check_closed(store)
    store.close()


def test_a_scan_that_is_running_when_the_store_is_closed_ends_and_says_so(store: Store) -> None:
    store.write([run(*((b"%04d" % number, b"v" * 500) for number in range(2_000)))])
    begun = threading.Event()
    seen: list[bytes] = []

    def is_closed() -> bool:
        try:
            return store.get(M, b"never") is not None
        except StoreClosed:
            return True

    def read() -> None:
        with closing(store.scan(M, b"", END)) as rows:
            seen.extend(key for key, _ in islice(rows, 10))
            begun.set()
            until(is_closed, "the store is being closed")
            with pytest.raises(StoreClosed):
                seen.extend(key for key, _ in rows)

    reader, closer = threading.Thread(target=read), threading.Thread(target=store.close)
    reader.start()
    assert begun.wait(PATIENCE)
    closer.start()
    for thread in (reader, closer):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert len(seen) < 2_000


def test_a_scan_that_was_left_early_does_not_hold_up_closing(store: Store) -> None:
    write(store, M, b"a", b"b")
    rows = store.scan(M, b"", END)
    next(rows)
    rows.close()
    closer = threading.Thread(target=store.close)
    closer.start()
    closer.join(PATIENCE)
    assert not closer.is_alive()
