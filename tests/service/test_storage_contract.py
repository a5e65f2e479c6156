"""What the log may expect of a store, whichever it is (storage/port.py); and what only LevelDB can get wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncelog_service.storage.leveldb import LevelDBStore
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Store, StoreClosed, StoreDamaged, StoreError, Table
from tests.patience import PATIENCE, until
from tests.postgres import postgres_server

M, S = Table.MESSAGE, Table.SNAPSHOT
END = b"\xff" * 8
KINDS = ["memory", "leveldb", "sqlite", "postgresql"]


class Opener:
    """One place to store, opened again and again."""

    def __init__(self, kind: str, path: Path) -> None:
        self._disk = Disk()
        self._kind = kind
        self._open = self._opener(path / "data")
        self._opened: list[Store] = []

    def _opener(self, path: Path) -> Callable[[], Store]:
        if self._kind == "memory":
            return lambda: MemoryStore(self._disk)
        return store_opener(postgres_server().fresh_schema() if self._kind == "postgresql" else f"{self._kind}://{path}")

    def __call__(self) -> Store:
        """Open it; an opening before this one is closed first, as a service does."""
        self.close()
        self._opened.append(self._open())
        return self._opened[-1]

    def fail_write(self, store: Store, batch: Batch) -> None:
        """Try to write ``batch`` and fail."""
        behind = Batch()
        if self._kind == "memory":
            self._disk.before_sync = refuse
        elif self._kind == "postgresql":
            behind.put(M, os.urandom(10_000), b"longer than an index takes")
        else:
            behind.put(M, b"no bytes", None)  # type: ignore[arg-type]
        with pytest.raises(StoreError):
            store.write([batch, behind])
        self._disk.before_sync = None

    def close(self) -> None:
        for store in self._opened:
            store.close()
        self._opened.clear()


def refuse(_: object) -> None:
    raise OSError("no space left on device")


@pytest.fixture(params=KINDS)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(request.param, tmp_path)
    yield opener
    opener.close()


@pytest.fixture
def store(opener: Opener) -> Store:
    return opener()


def put(*rows: tuple[Table, bytes, bytes]) -> Batch:
    batch = Batch()
    for row in rows:
        batch.put(*row)
    return batch


def everything(store: Store) -> list[tuple[Table, bytes, bytes]]:
    return [(table, key, value) for table in Table for key, value in store.scan(table, b"", END)]


# --- reading what was written


def test_a_row_reads_back_as_it_was_written(store: Store) -> None:
    store.write([put((M, b"k", b"v"), (M, b"", b"empty key"), (M, b"empty value", b""))])
    assert store.get(M, b"k") == b"v"
    assert store.get(M, b"") == b"empty key"
    assert store.get(M, b"empty value") == b""


def test_a_row_that_was_never_written_is_none(store: Store) -> None:
    assert store.get(M, b"k") is None
    assert list(store.scan(M, b"", END)) == []


def test_the_tables_are_kept_apart(store: Store) -> None:
    for table in Table:
        store.write([put((table, b"k", table.value))])
    for table in Table:
        assert store.get(table, b"k") == table.value
        assert list(store.scan(table, b"", END)) == [(b"k", table.value)]


def test_the_last_put_of_a_key_holds(store: Store) -> None:
    store.write([put((M, b"k", b"1"), (M, b"k", b"2")), put((M, b"k", b"3"))])
    assert store.get(M, b"k") == b"3"
    store.write([put((M, b"k", b"4"))])
    assert list(store.scan(M, b"", END)) == [(b"k", b"4")]


def test_a_scan_goes_in_order_of_bytes_both_ways(store: Store) -> None:
    keys = [b"", b"\x00", b"\x00\x00", b"\x01", b"a", b"a\x00", b"aa", b"b", b"\x7f", b"\x80", b"\xff"]
    store.write([put(*((M, key, key) for key in reversed(keys)))])
    assert list(store.scan(M, b"", END)) == [(key, key) for key in sorted(keys)]
    assert list(store.scan(M, b"", END, reverse=True)) == [(key, key) for key in sorted(keys, reverse=True)]


def test_a_scan_has_its_start_and_not_its_stop(store: Store) -> None:
    store.write([put(*((M, key, b"") for key in (b"a", b"b", b"c", b"d")))])
    assert [key for key, _ in store.scan(M, b"b", b"d")] == [b"b", b"c"]
    assert [key for key, _ in store.scan(M, b"b", b"d", reverse=True)] == [b"c", b"b"]
    assert [key for key, _ in store.scan(M, b"b", b"b")] == []
    assert [key for key, _ in store.scan(M, b"aa", b"b\x00")] == [b"b"]


def test_a_row_right_at_the_start_is_found_both_ways(store: Store) -> None:
    store.write([put((M, b"a", b"1"), (M, b"b", b"2"), (M, b"c", b"3"))])
    assert list(store.scan(M, b"b", b"c")) == [(b"b", b"2")]
    assert list(store.scan(M, b"b", b"c", reverse=True)) == [(b"b", b"2")]
    assert list(store.scan(M, b"b", b"b", reverse=True)) == []


def test_a_scan_that_began_does_not_see_later_writes(store: Store) -> None:
    store.write([put(*((M, b"%02d" % number, b"old") for number in range(50)))])
    with closing(store.scan(M, b"", END)) as rows:
        seen = [next(rows)]
        batch = put(*((M, b"%02d" % number, b"new") for number in range(60)))
        batch.delete(M, b"49")
        store.write([batch])
        seen += rows
    assert seen == [(b"%02d" % number, b"old") for number in range(50)]
    assert store.get(M, b"49") is None


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_history_of_writes_reads_like_a_dict(
    kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    opener = Opener(kind, tmp_path_factory.mktemp("store"))
    keys, values = st.binary(max_size=2), st.binary(max_size=3)
    tables = st.sampled_from([M, S])
    model: dict[tuple[Table, bytes], bytes] = {}
    store = opener()
    for _ in range(data.draw(st.integers(1, 6))):
        puts, deletes = data.draw(st.lists(st.tuples(tables, keys, values))), data.draw(st.lists(st.tuples(tables, keys)))
        batch = put(*puts)
        for table, key in deletes:
            batch.delete(table, key)
        store.write([batch])
        model.update({(table, key): value for table, key, value in puts})
        for each in deletes:
            model.pop(each, None)
        if data.draw(st.booleans()):
            store = opener()
    start, stop = data.draw(keys), data.draw(keys)
    for table in (M, S):
        expected = sorted((key, value) for (each, key), value in model.items() if each is table and start <= key < stop)
        assert list(store.scan(table, start, stop)) == expected
        assert list(store.scan(table, start, stop, reverse=True)) == expected[::-1]
    opener.close()


# --- writing


def test_a_run_of_rows_has_the_same_effect_as_single_ones(store: Store) -> None:
    batch = Batch()
    batch.put_run(M, b"topic", [b"1", b"2", b"3"], [b"a", b"b", b"c"])
    store.write([batch])
    assert list(store.scan(M, b"", END)) == [(b"topic1", b"a"), (b"topic2", b"b"), (b"topic3", b"c")]


def test_a_deleted_row_is_gone_and_the_rest_stays(store: Store) -> None:
    store.write([put((M, b"a", b"1"), (M, b"b", b"2"), (S, b"a", b"3"))])
    batch = Batch()
    batch.delete(M, b"a")
    batch.delete(M, b"never there")
    store.write([batch])
    assert everything(store) == [(M, b"b", b"2"), (S, b"a", b"3")]
    assert store.get(M, b"a") is None


def test_batches_are_applied_in_their_order(store: Store) -> None:
    delete = Batch()
    delete.delete(M, b"k")
    store.write([put((M, b"k", b"1")), delete])
    assert store.get(M, b"k") is None
    store.write([delete, put((M, b"k", b"2"))])
    assert store.get(M, b"k") == b"2"


def test_a_write_of_several_batches_and_tables_that_fails_leaves_nothing(opener: Opener) -> None:
    store = opener()
    store.write([put((M, b"before", b"1"))])
    batch = put((S, b"k", b"2"))
    batch.put_run(M, b"topic", [b"1"], [b"a"])
    batch.delete(M, b"before")
    opener.fail_write(store, batch)
    assert everything(opener()) == [(M, b"before", b"1")]


def test_writing_nothing_is_no_error(store: Store) -> None:
    store.write([])
    store.write([Batch()])
    assert everything(store) == []


def test_what_was_written_is_there_when_the_store_is_opened_again(opener: Opener) -> None:
    rows = [(table, b"%04d" % number, b"v" * number) for table in (M, S) for number in range(300)]
    store = opener()
    for row in rows:
        store.write([put(row)])
    assert everything(opener()) == rows
    assert everything(opener()) == rows


# --- after a failure, after closing


def calls(store: Store) -> list[Callable[[], object]]:
    return [
        lambda: store.get(M, b"k"),
        lambda: list(store.scan(M, b"", END)),
        lambda: list(store.scan(M, b"", END, reverse=True)),
        lambda: store.write([put((M, b"k", b"later"))]),
        lambda: store.write([]),
    ]


def test_after_a_failed_write_the_store_refuses_everything_until_it_is_opened_again(opener: Opener) -> None:
    store = opener()
    store.write([put((M, b"k", b"1"))])
    opener.fail_write(store, put((M, b"k", b"2")))
    for _ in range(2):
        for call in calls(store):
            with pytest.raises(StoreClosed):
                call()
    store = opener()
    assert store.get(M, b"k") == b"1"
    store.write([put((M, b"k", b"3"))])
    assert store.get(M, b"k") == b"3"


def test_a_closed_store_refuses_everything(store: Store) -> None:
    store.write([put((M, b"k", b"1"))])
    store.close()
    for call in calls(store):
        with pytest.raises(StoreClosed):
            call()


def test_closing_twice_is_as_once(store: Store) -> None:
    store.close()
    store.close()


def test_a_scan_that_is_running_when_the_store_is_closed_ends_and_says_so(opener: Opener) -> None:
    store = opener()
    store.write([put(*((M, b"%04d" % number, b"v" * 500) for number in range(2_000)))])
    begun, closing_now = threading.Event(), threading.Event()
    seen: list[bytes] = []

    def read() -> None:
        with closing(store.scan(M, b"", END)) as rows:
            seen.extend(key for key, _ in islice(rows, 10))
            begun.set()
            closing_now.wait(PATIENCE)
            until(lambda: is_closed(store), "the store is being closed")
            with pytest.raises(StoreClosed):
                seen.extend(key for key, _ in rows)

    reader, closer = threading.Thread(target=read), threading.Thread(target=store.close)
    reader.start()
    assert begun.wait(PATIENCE)
    closer.start()
    closing_now.set()
    reader.join(PATIENCE)
    closer.join(PATIENCE)
    assert not reader.is_alive()
    assert not closer.is_alive()
    assert len(seen) < 2_000
    assert is_closed(store)


def is_closed(store: Store) -> bool:
    try:
        store.get(M, b"0000")
    except StoreClosed:
        return True
    return False


def test_a_scan_that_was_left_early_does_not_hold_up_closing(store: Store) -> None:
    store.write([put((M, b"a", b"1"), (M, b"b", b"2"))])
    rows = store.scan(M, b"", END)
    next(rows)
    rows.close()
    closer = threading.Thread(target=store.close)
    closer.start()
    closer.join(PATIENCE)
    assert not closer.is_alive()


def test_readers_on_other_threads_see_each_write_whole(store: Store) -> None:
    stop = threading.Event()
    halves: list[tuple[bytes | None, ...]] = []

    def read() -> None:
        while not stop.is_set():
            rows = dict(store.scan(M, b"", END))
            if len(set(rows.values())) > 1:
                halves.append(tuple(rows.values()))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(200):
        store.write([put((M, b"a", b"%d" % number)), put((M, b"b", b"%d" % number))])
    stop.set()
    for reader in readers:
        reader.join(PATIENCE)
    assert halves == []


# --- the memory store's own


def test_a_failed_write_may_be_on_disk_all_the_same() -> None:
    disk = Disk()
    disk.before_sync, disk.fail_after_apply = refuse, True
    with pytest.raises(StoreError):
        MemoryStore(disk).write([put((M, b"k", b"1"))])
    assert MemoryStore(disk).get(M, b"k") == b"1"


# --- LevelDB's own


def test_a_leveldb_directory_opens_in_one_store_at_a_time(tmp_path: Path) -> None:
    first = LevelDBStore(tmp_path / "data")
    with pytest.raises(StoreError, match="data"):
        LevelDBStore(tmp_path / "data")
    first.close()
    LevelDBStore(tmp_path / "data").close()


def test_a_path_that_is_a_file_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    with pytest.raises(StoreError):
        LevelDBStore(tmp_path / "data")


ROWS = [(b"%06d" % number, (b"%06d" % number) * 20) for number in range(400)]


@pytest.fixture(scope="module")
def table_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose rows all lie in one table file."""
    path = tmp_path_factory.mktemp("leveldb") / "data"
    store = LevelDBStore(path)
    batch = Batch()
    batch.put_run(M, b"", *zip(*ROWS, strict=True))  # type: ignore[arg-type]
    store.write([batch])
    store.close()
    LevelDBStore(path).close()  # opening moves what is in the log into a table
    (file,) = path.glob("*.ldb")
    return file


def read_right_or_not_at_all(path: Path) -> bool:
    """Whether damage was noticed; whatever is answered is right."""
    noticed = False

    def tried(read: Callable[[Store], object], expected: object) -> None:
        nonlocal noticed
        try:
            assert read(store) == expected
        except StoreDamaged:
            noticed = True

    try:
        store = LevelDBStore(path)
    except StoreError:
        return True
    try:
        tried(lambda store: list(store.scan(M, b"", END)), ROWS)
        tried(lambda store: list(store.scan(M, b"", END, reverse=True)), ROWS[::-1])
        for number in range(0, len(ROWS), 7):
            key, value = ROWS[number]
            tried(lambda store, key=key: store.get(M, key), value)
            # The first row of a scan: a damaged block must not be stepped over to the next one.
            tried(lambda store, key=key: first(store.scan(M, key, END)), ROWS[number])
            tried(lambda store, key=key: first(store.scan(M, b"", key + b"\x00", reverse=True)), ROWS[number])
    finally:
        store.close()
    return noticed


def first(rows: Iterator[tuple[bytes, bytes]]) -> tuple[bytes, bytes] | None:
    with closing(rows):  # type: ignore[type-var]
        return next(rows, None)


def test_a_flipped_bit_in_a_table_is_refused_and_never_answered_as_if_a_row_were_missing(table_file: Path) -> None:
    intact = table_file.read_bytes()
    assert not read_right_or_not_at_all(table_file.parent)
    noticed = 0
    places = range(3, len(intact), max(1, len(intact) // 60))
    for place in places:
        damaged = bytearray(intact)
        damaged[place] ^= 1 << place % 8
        table_file.write_bytes(bytes(damaged))
        noticed += read_right_or_not_at_all(table_file.parent)
    table_file.write_bytes(intact)
    assert noticed >= len(places) * 3 // 4, "nearly all of the file is data, so nearly every flip must be noticed"
    assert not read_right_or_not_at_all(table_file.parent)


@pytest.mark.slow
def test_a_write_that_fails_since_a_table_is_damaged_says_so_at_every_attempt(tmp_path: Path) -> None:
    """LevelDB meets it while it merges tables; from then on no write gets through, and opening it anew does not help."""

    def write(store: Store) -> None:
        rows = [(os.urandom(10), os.urandom(1_000)) for _ in range(4_000)]
        store.write([put(*((M, *row) for row in rows))])

    path = tmp_path / "data"
    with closing(LevelDBStore(path)) as store:
        for _ in range(10):
            write(store)
    LevelDBStore(path).close()
    file = max(path.glob("*.ldb"), key=lambda each: each.stat().st_size)
    data = file.read_bytes()
    middle = len(data) // 2
    file.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])

    def write_on(store: Store) -> None:
        for _ in range(100):
            write(store)

    for _ in range(2):
        with closing(LevelDBStore(path)) as store, pytest.raises(StoreDamaged, match="a table is damaged"):
            write_on(store)


FULL_DISK = """
    import resource, sys
    from pathlib import Path
    from oncelog_service.storage.leveldb import LevelDBStore
    from oncelog_service.storage.port import Batch, StoreClosed, StoreError, Table

    def put(number):
        batch = Batch()
        batch.put(Table.MESSAGE, b"%06d" % number, b"v" * 1_000)
        store.write([batch])

    path = Path(sys.argv[1])
    store = LevelDBStore(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    acknowledged = []
    try:
        for number in range(1_000):
            put(number)
            acknowledged.append(number)
    except StoreClosed:
        sys.exit("it must say that this write failed, not that it was closed")
    except StoreError:
        pass
    assert 50 < len(acknowledged) < 1_000, len(acknowledged)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for number in range(2_000, 2_100):
        try:
            put(number)
        except StoreClosed:
            continue
        sys.exit("written behind a failed write")
    store.close()
    store = LevelDBStore(path)
    found = [int(key) for key, _ in store.scan(Table.MESSAGE, b"", b"\\xff")]
    assert found[:len(acknowledged)] == acknowledged and len(found) <= len(acknowledged) + 1, found
    put(3_000)
    store.close()
    assert LevelDBStore(path).get(Table.MESSAGE, b"003000") is not None
"""


def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """The limit on the size of a file stands for the full disk: LevelDB's write of its log fails, and later would not."""
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path / "data")], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


# --- chosen by URL


def test_a_memory_url_opens_the_same_rows_again() -> None:
    open_store = store_opener("memory://")
    open_store().write([put((M, b"k", b"1"))])
    assert open_store().get(M, b"k") == b"1"
    assert store_opener("memory://")().get(M, b"k") is None


def test_a_leveldb_url_names_a_path_that_may_hold_spaces(tmp_path: Path) -> None:
    store = store_opener(f"leveldb://{tmp_path}/my%20data")()
    store.close()
    assert (tmp_path / "my data" / "CURRENT").exists()


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "oncelog-data",
            "leveldb://",
            "leveldb:///data?sync=no",
            "leveldb:///data#x",
            "memory://x",
            "memory:///x",
            "redis://h",
        ),
        *("sqlite://", "sqlite:///data?mode=ro", "postgresql://h", "postgresql://h:x/d", "postgresql+asyncpg://h/d"),
    ],
)
def test_a_url_that_names_no_store_is_refused_with_the_ones_that_do(url: str) -> None:
    with pytest.raises(ValueError, match="leveldb:///absolute/path"):
        store_opener(url)
