"""Of a row that was written anew after scrubbing nothing is left in the files of its store as it was before."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from oncelog_service.storage.files.leveldb import LevelDBStore
from oncelog_service.storage.port import Batch, Store, StoreClosed, StoreError
from tests.patience import PATIENCE, until
from tests.storage.stores import END, IN_FILES, KINDS, Hasty, M, Place, place_of, put

ERASED = b"erased"


def mark(number: int, turn: int = 0) -> bytes:
    return b"<mark %06d.%d>" % (number, turn)


def key(number: int) -> bytes:
    return b"k%06d" % number


def left_in(path: Path, *marks: bytes) -> set[bytes]:
    """Those of the marks that any file there has."""
    files = [each.read_bytes() for each in path.rglob("*") if each.is_file()]
    return {each for each in marks if any(each in data for data in files)}


def write_erased(store: Store, number: int) -> None:
    store.scrub(M, key(number), written=False)
    store.write([put((M, key(number), ERASED))])


def erase(store: Store, number: int) -> None:
    write_erased(store, number)
    store.scrub(M, key(number), written=True)


def fill(place: Place, rng: random.Random) -> tuple[Store, int]:
    """Rows of many sizes in any order, some written more than once or deleted, over openings of the store."""
    store, count = place.open(), rng.choice([20, 200, 600])
    numbers = list(range(count))
    if rng.random() < 0.5:
        rng.shuffle(numbers)
    again = rng.sample(numbers, count // 10)
    for turn, some in enumerate((numbers, again)):
        for at in range(0, len(some), 10):
            batch = Batch()
            for number in some[at : at + 10]:
                batch.put(M, key(number), mark(number, turn) + b"." * rng.choice([3, 300, 3_000, 30_000]))
            store.write([batch])
        if rng.random() < 0.4:
            store = place.reopen()
    batch = Batch()
    for number in rng.sample(numbers, count // 4):
        batch.delete(M, key(number))
    store.write([batch])
    return store, count


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", IN_FILES)
def test_no_file_has_an_earlier_value_of_a_row_that_was_scrubbed(kind: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{kind} {seed}")
    with place_of(kind, tmp_path) as place:
        store, count = fill(place, rng)
        for number in rng.sample(range(count), 5):
            erase(store, number)
            assert not left_in(tmp_path, mark(number), mark(number, 1)), f"row {number} of {count}"
            assert store.get(M, key(number)) == ERASED


@pytest.mark.parametrize("kind", IN_FILES)
def test_nor_where_all_values_were_still_in_memory_or_in_a_log(kind: str, tmp_path: Path) -> None:
    with place_of(kind, tmp_path) as place:
        store = place.open()
        for turn in range(3):
            store.write([put((M, key(1), mark(1, turn)), (M, key(2), mark(2, turn)))])
        assert left_in(tmp_path, mark(1, 2)), "or this test says nothing"
        erase(store, 1)
        assert not left_in(tmp_path, *(mark(1, turn) for turn in range(3)))
        assert dict(store.scan(M, b"", END)) == {key(1): ERASED, key(2): mark(2, 2)}
        assert dict(place.reopen().scan(M, b"", END)) == {key(1): ERASED, key(2): mark(2, 2)}


@pytest.mark.parametrize("kind", KINDS)
def test_scrubbing_changes_no_row_and_may_be_repeated(kind: str, tmp_path: Path) -> None:
    with place_of(kind, tmp_path) as place:
        store = place.open()
        rows = {key(number): mark(number) for number in range(100)}
        store.write([put(*((M, *row) for row in rows.items()))])
        for number in (0, 50, 99, 1_000):
            for written in (False, True, True):
                store.scrub(M, key(number), written=written)
        assert dict(store.scan(M, b"", END)) == rows
        assert dict(place.reopen().scan(M, b"", END)) == rows
        place.close()
        with pytest.raises(StoreClosed):
            store.scrub(M, key(0), written=True)


def test_a_value_that_lies_deeper_than_leveldb_looked_is_scrubbed(tmp_path: Path) -> None:
    with closing(LevelDBStore(tmp_path / "data")) as store:
        store.write([put((M, key(0), mark(0)))])
        store.scrub(M, key(0), written=False)
        store.write([put((M, key(0), ERASED))])
        store._db = Hasty(store._db)
        store.scrub(M, key(0), written=True)
        assert left_in(tmp_path, mark(0)) == set()


@pytest.mark.parametrize("kind", IN_FILES)
def test_a_scan_that_is_under_way_is_waited_for_and_reads_and_writes_go_on(kind: str, tmp_path: Path) -> None:
    with place_of(kind, tmp_path) as place, ThreadPoolExecutor(1) as pool:
        place.open().write([put(*((M, key(number), mark(number) + b"." * 1_000) for number in range(1_100)))])
        store = place.reopen()  # its rows are in a table now
        with closing(store.scan(M, b"", END)) as scan:
            seen = [next(scan)]
            write_erased(store, 1_000)
            erasing = pool.submit(store.scrub, M, key(1_000), written=True)
            for turn in range(20):
                store.write([put((M, key(3_000), b"%d" % turn))])
                assert store.get(M, key(3_000)) == b"%d" % turn
            assert not erasing.done(), "what the scan sees is still in a file"
            seen += scan
        assert seen[1_000][1].startswith(mark(1_000))
        erasing.result(PATIENCE)
        assert not left_in(tmp_path, mark(1_000))


@pytest.mark.parametrize("kind", IN_FILES)
def test_what_a_scan_keeps_for_too_long_is_said_to_be_left(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, seconds = {"leveldb": ("files.leveldb._SCRUB_SECONDS", 0.2), "sqlite": ("sql.sqlite._BUSY_SECONDS", 1)}[kind]
    monkeypatch.setattr(f"oncelog_service.storage.{name}", seconds)
    with place_of(kind, tmp_path) as place:
        place.open().write([put(*((M, key(number), mark(number) + b"." * 1_000) for number in range(1_100)))])
        store = place.reopen()
        with closing(store.scan(M, b"", END)) as scan:
            next(scan)
            with pytest.raises(StoreError, match="try again later"):
                erase(store, 1_000)
        monkeypatch.undo()
        store.write([put((M, key(1), b"the store goes on"))])
        erase(store, 1_000)
        assert not left_in(tmp_path, mark(1_000))


def test_a_store_that_is_closed_meanwhile_ends_the_waiting(tmp_path: Path) -> None:
    with place_of("leveldb", tmp_path) as place:
        place.open().write([put(*((M, key(number), mark(number) + b"." * 1_000) for number in range(1_100)))])
        store = place.reopen()
        scan = store.scan(M, b"", END)
        next(scan)
        with ThreadPoolExecutor(2) as pool:
            write_erased(store, 1_000)
            erasing = pool.submit(store.scrub, M, key(1_000), written=True)
            until(erasing.running)
            closing = pool.submit(store.close)
            with pytest.raises(StoreClosed):
                erasing.result(PATIENCE)
            with pytest.raises(StoreClosed):
                list(scan)
            closing.result(PATIENCE)


def test_on_postgresql_dead_rows_are_vacuumed_while_others_write(tmp_path: Path) -> None:
    with place_of("postgresql", tmp_path) as place:
        store = place.open()
        for turn in range(5):
            store.write([put(*((M, key(number), mark(number, turn)) for number in range(50)))])
        stop, failed = threading.Event(), list[BaseException]()

        def go_on() -> None:
            number = 0
            try:
                while not stop.is_set():
                    store.write([put((M, key(1_000 + number), b"x"))])
                    number += 1
            except BaseException as error:
                failed.append(error)

        writer = threading.Thread(target=go_on)
        writer.start()
        try:
            store.scrub(M, key(7), written=True)
        finally:
            stop.set()
            writer.join(PATIENCE)
        assert not failed
        with place.connect() as session:

            def vacuumed() -> bool:
                session.rollback()
                asked = "SELECT last_vacuum IS NOT NULL FROM pg_stat_all_tables WHERE relid = 'oncelog_row'::regclass"
                return session.execute(asked).fetchone() == (True,)

            until(vacuumed, "the server says so")
        assert store.get(M, key(7)) == mark(7, 4)
