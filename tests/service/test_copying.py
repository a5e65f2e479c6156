"""A store copied: every row as it was, broken off anywhere and gone on with; and who is kept out meanwhile."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.progress import Progress
from sqlalchemy import update

from oncelog.errors import OncelogError
from oncelog_service.cli.rows import READ, shown_key
from oncelog_service.cli.verify import compare
from oncelog_service.cluster import unserved
from oncelog_service.cluster.unserved import COPY, Kept, Served, Unserved
from oncelog_service.storage import copying
from oncelog_service.storage.copying import (
    TABLES,
    CopyRefused,
    begin_copy,
    check_whole,
    copy_rows,
    end_copy,
    forget_copy,
    mark_of,
    pieces,
)
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Fence, Instance, Store, StoreError, StoreFenced, Table
from oncelog_service.storage.rows import TrimRow, encode_record
from oncelog_service.storage.seals import SealedStore
from oncelog_service.storage.sql_tables import INSTANCE
from tests.patience import until
from tests.postgres import PostgresServer, postgres_server
from tests.support import running_service

KINDS = ("memory", "leveldb", "sqlite", "postgresql")
NAME = b"0123456789abcdef0123456789abcdef"
Contents = dict[tuple[Table, bytes], bytes]


def opener(kind: str, path: Path) -> Callable[[], Store]:
    if kind == "memory":
        disk = Disk()
        return lambda: MemoryStore(disk)
    return store_opener(postgres_server().fresh_schema() if kind == "postgresql" else f"{kind}://{path}")


def put(store: Store, contents: Contents) -> None:
    batch = Batch()
    for (table, key), value in contents.items():
        batch.put(table, key, value)
    store.write([batch])


def remove(store: Store, table: Table, key: bytes) -> None:
    batch = Batch()
    batch.delete(table, key)
    store.write([batch])


def contents_of(store: Store) -> Contents:
    return {(table, key): value for table in TABLES for key, value in store.scan(table, b"", b"\xff" * 64)}


def copy_whole(source: Store, target: Store) -> None:
    begin_copy(source, target, "there")
    for _ in copy_rows(source, target):
        pass
    end_copy(target)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a small store goes over: many pieces, some ended by their bytes."""
    monkeypatch.setattr(copying, "PIECE_ROWS", 7)
    monkeypatch.setattr(copying, "PIECE_BYTES", 5_000)


def random_contents(seed: int) -> Contents:
    """Rows in all tables; runs whose keys share a beginning, keys at the edges, empty and large values."""
    chosen = random.Random(seed)
    edges = (b"", b"\x00", b"\x00\x00", b"\xff", b"\xff" * 12)
    contents: Contents = {(Table.INSTANCE, b""): NAME}
    for table in TABLES:
        if table is not Table.INSTANCE:
            keys = {chosen.randbytes(chosen.randrange(5)) for _ in range(chosen.randrange(20))} | set(chosen.sample(edges, 2))
            keys |= {bytes(each) for length in range(4) for each in product((0, 1), repeat=length)}
            start = b"default:t:\x00\x00\x00\x01" + chosen.randbytes(2)
            keys |= {start + number.to_bytes(4, "big") for number in range(chosen.randrange(30))}
            contents.update({(table, key): chosen.randbytes(chosen.choice((0, 1, 100, 100, 3_000))) for key in keys})
    contents[Table.MESSAGE, b"large"] = chosen.randbytes(2 * 2**20)
    return contents


# --- equal


@pytest.mark.parametrize(("of", "to"), list(product(KINDS, KINDS)))
def test_a_copy_holds_every_row_as_it_was(of: str, to: str, tmp_path: Path) -> None:
    seed = random.randrange(10_000)
    contents = random_contents(seed)
    with closing(opener(of, tmp_path / "a")()) as source, closing(opener(to, tmp_path / "b")()) as target:
        put(source, contents)
        copy_whole(source, target)
        assert contents_of(target) == contents, f"seed {seed}"
        assert contents_of(source) == contents, f"seed {seed}"
        assert mark_of(source) is None
        check_whole(target)


def test_pieces_are_bounded_and_leave_no_gap() -> None:
    store = MemoryStore()
    contents = random_contents(1)
    put(store, contents)
    for table in TABLES:
        found = list(pieces(store, table))
        assert found[0].start == b""
        assert [piece.stop for piece in found[:-1]] == [piece.start for piece in found[1:]]
        assert {key: value for piece in found for key, value in piece.rows.items()} == {
            key: value for (each, key), value in contents.items() if each is table
        }
        for piece in found:
            before = list(piece.rows.items())[:-1]
            assert len(piece.rows) <= 7
            assert sum(len(key) + len(value) for key, value in before) < 5_000
            assert all(piece.start <= key < piece.stop for key in piece.rows)


# --- broken off


@given(data=st.data())
def test_a_copy_that_is_broken_off_anywhere_is_gone_on_with_whatever_its_source_did_meanwhile(data: st.DataObject) -> None:
    keys = st.tuples(st.sampled_from((Table.MESSAGE, Table.JOURNAL, Table.SUBSCRIPTION)), st.binary(max_size=2))
    contents: Contents = data.draw(st.dictionaries(keys, st.binary(max_size=2), max_size=60))
    contents[Table.INSTANCE, b""] = NAME
    source, disk = MemoryStore(), Disk()
    put(source, contents)
    for _ in range(data.draw(st.integers(0, 3))):
        left = data.draw(st.integers(0, 12))

        def fail(_: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError("killed")

        disk.before_sync, disk.fail_after_apply = fail, data.draw(st.booleans())
        target = MemoryStore(disk)
        try:
            copy_whole(source, target)
        except StoreError:
            disk.before_sync = None
        if (mark := mark_of(MemoryStore(disk))) is not None and mark.finished:
            assert contents_of(MemoryStore(disk)) == contents
            return
        there = st.sampled_from(sorted(contents.keys() - {(Table.INSTANCE, b"")}, key=repr) or [(Table.MESSAGE, b"")])
        changed = data.draw(st.dictionaries(keys | there, st.binary(max_size=2), max_size=8))
        gone = data.draw(st.lists(st.sampled_from(sorted(contents, key=repr)), max_size=8))
        put(source, changed)
        contents.update(changed)
        for table, key in gone:
            if table is not Table.INSTANCE:
                remove(source, table, key)
                contents.pop((table, key), None)
    disk.before_sync = None
    target = MemoryStore(disk)
    copy_whole(source, target)
    assert contents_of(target) == contents
    check_whole(target)


def test_going_on_writes_only_what_is_not_there() -> None:
    source, target = MemoryStore(), MemoryStore()
    put(source, random_contents(3))
    begin_copy(source, target, "there")
    steps = copy_rows(source, target)
    for _ in range(10):
        there = next(steps).written
    steps.close()
    assert begin_copy(source, target, "there") is True
    *_, copied = copy_rows(source, target)
    assert there > 0
    assert copied.written == copied.rows - there


# --- refused


def half_copy(source: Store, target: Store) -> None:
    begin_copy(source, target, "leveldb:///old")
    next(copy_rows(source, target))


def test_half_a_copy_is_not_whole_and_a_finished_one_is() -> None:
    source, target = MemoryStore(), MemoryStore()
    put(source, random_contents(4))
    half_copy(source, target)
    with pytest.raises(StoreError, match="half a copy, of leveldb:///old; the same `oncelog copy` again"):
        check_whole(target)
    check_whole(source)
    copy_whole(source, target)
    check_whole(target)


def test_what_would_be_no_copy_is_refused_and_nothing_changed() -> None:
    source, other, empty = MemoryStore(), MemoryStore(), MemoryStore()
    put(source, random_contents(5))
    put(other, {(Table.INSTANCE, b""): NAME[::-1]})
    for table in TABLES:
        taken = MemoryStore()
        put(taken, {(table, b"k"): b"v"})
        with pytest.raises(CopyRefused, match="not empty"):
            begin_copy(source, taken, "there")
        assert mark_of(taken) is None
    with pytest.raises(CopyRefused, match="no service has ever opened it"):
        begin_copy(empty, MemoryStore(), "there")
    half = MemoryStore()
    half_copy(source, half)
    with pytest.raises(CopyRefused, match="half a copy itself"):
        begin_copy(half, MemoryStore(), "there")
    with pytest.raises(CopyRefused, match="a copy of another store, leveldb:///old"):
        begin_copy(other, half, "there")
    copy_whole(source, half)
    before = contents_of(half)
    with pytest.raises(CopyRefused, match="finished copy"):
        begin_copy(source, half, "there")
    assert contents_of(half) == before


def test_a_copy_of_a_copy_is_a_whole_store() -> None:
    first, second, third = MemoryStore(), MemoryStore(), MemoryStore()
    put(first, random_contents(6))
    copy_whole(first, second)
    copy_whole(second, third)
    assert contents_of(third) == contents_of(first)


@pytest.mark.parametrize("kind", ["leveldb", "sqlite", "postgresql"])
def test_no_service_opens_half_a_copy_nor_stays_behind(kind: str, tmp_path: Path) -> None:
    open_target = opener(kind, tmp_path / "b")
    source = MemoryStore()
    put(source, {(Table.INSTANCE, b""): NAME})
    with closing(open_target()) as target:
        half_copy(source, target)
    with pytest.raises(StoreError, match="half a copy"), running_service(open_store=open_target):
        pass
    with closing(open_target()) as target:
        leases = target.lease_table()
        assert leases is None or not leases.instances()
        copy_whole(source, target)
    with running_service(open_store=open_target) as service:
        assert service.service.store.get(Table.INSTANCE, b"") == NAME


# --- compared


ROWS: Contents = {
    (Table.INSTANCE, b""): NAME,
    (Table.TRIM, b"default:t:\x00\x00\x00\x01"): encode_record(TrimRow(1)),
    (Table.TRIM, b"default:u:\x00\x00\x00\x02"): encode_record(TrimRow(2)),
}
T = (Table.TRIM, b"default:t:\x00\x00\x00\x01")


def compared(left: Contents, right: Contents) -> list[str]:
    stores = SealedStore(MemoryStore()), SealedStore(MemoryStore())
    for store, contents in zip(stores, (left, right), strict=True):
        put(store, contents)
    return compare(*stores, "A", "B", Progress(disable=True)).problems


def test_every_table_is_read_when_stores_are_compared() -> None:
    assert READ.keys() == set(TABLES)


def test_equal_stores_are_equal() -> None:
    assert compared(ROWS, ROWS) == []


def test_each_difference_is_named() -> None:
    without = {each: value for each, value in ROWS.items() if each != T}
    more = {**ROWS, T: encode_record(TrimRow(12))}
    assert compared(ROWS, without) == ["TRIM default/t generation 1: only in A"]
    assert compared(without, ROWS) == ["TRIM default/t generation 1: only in B"]
    at = encode_record(TrimRow(1)).index(b"1") + 1
    assert compared(ROWS, more) == [
        f"TRIM default/t generation 1: differs from byte {at} on; {len(ROWS[T]) + 4} bytes in A, {len(more[T]) + 4} in B"
    ]


def test_what_is_damaged_on_both_sides_is_found_though_it_is_equal() -> None:
    for table in TABLES:
        rows = {(table, T[1]): b"\xfe"}
        (problem,) = compared(rows, rows)
        assert problem.startswith(f"{table.name} default/t generation 1: damaged in A: ")


def test_a_row_whose_checksum_does_not_hold_hides_none_of_those_behind_it() -> None:
    disk = Disk()
    store = SealedStore(MemoryStore(disk))
    put(store, ROWS)
    rows = disk.tables[Table.TRIM]
    for key in rows:
        rows[key] = bytes([rows[key][0] ^ 1]) + rows[key][1:]
    problems = compare(store, SealedStore(MemoryStore(disk)), "A", "B", Progress(disable=True)).problems
    assert [problem.partition(": damaged in A: ")[0] for problem in problems] == [
        "TRIM default/t generation 1",
        "TRIM default/u generation 2",
    ]


def test_half_a_copy_is_said_to_be_one_though_all_rows_are_equal() -> None:
    source, target = MemoryStore(), MemoryStore()
    put(source, ROWS)
    begin_copy(source, target, "there")
    for _ in copy_rows(source, target):
        pass
    assert compare(source, target, "A", "B", Progress(disable=True)).problems == ["B is half a copy, of there"]
    end_copy(target)
    assert compare(source, target, "A", "B", Progress(disable=True)).ok


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (b"", "(one row)"),
        (b"default:t:", "default/t"),
        (b"default:t:\x00\x00\x00\x02", "default/t generation 2"),
        (b"default:t:\x00\x00\x00\x02loader", "default/t generation 2 loader"),
        (b"default:t:\x00\x00\x00\x02\x00\x01", "default/t generation 2 0001"),
        (b"\x00\x00\x00\x01", "00000001"),
        (b"group\x00producer", "67726f75700070726f6475636572"),
    ],
)
def test_a_key_is_shown_as_people_know_it(key: bytes, shown: str) -> None:
    assert shown_key(key) == shown


# --- a database that several share


@pytest.fixture
def shared(postgres: PostgresServer) -> Callable[[], Store]:
    return store_opener(postgres.fresh_schema())


def test_a_store_that_is_served_is_neither_read_nor_written(shared: Callable[[], Store]) -> None:
    with running_service(open_store=shared) as service, closing(shared()) as store:
        for enter in (Unserved(store).begin, Kept(store).__enter__):
            with pytest.raises(Served, match=r"http://.* serves it; stop every service"):
                enter()
        leases = store.lease_table()
        assert leases is not None
        assert [each.url for each in leases.instances()] == [service.service.url]
    with closing(shared()) as store:
        unserved = Unserved(store)
        unserved.begin()
        unserved.check()
        unserved.check()
        with Kept(store) as kept:
            kept.check()
        assert not store.lease_table().instances()  # type: ignore[union-attr]


@pytest.mark.parametrize("still", [True, False], ids=["and is there", "and is gone"])
def test_a_service_that_came_meanwhile_is_noticed(shared: Callable[[], Store], still: bool) -> None:
    with closing(shared()) as store:
        unserved = Unserved(store)
        unserved.begin()
        with running_service(open_store=shared):
            if still:
                with pytest.raises(Served, match="serves it"):
                    unserved.check()
        if not still:
            with pytest.raises(Served, match="meanwhile"):
                unserved.check()


def test_one_that_was_frozen_writes_nothing_once_a_copy_has_begun(shared: Callable[[], Store]) -> None:
    with closing(shared()) as store:
        leases = store.lease_table()
        assert leases is not None
        leases.join("frozen", "http://frozen", 60_000)
        topic = leases.take("frozen", b"topic:t")
        leases.renew("frozen", 1)
        until(lambda: not leases.instances())
        batch = Batch()
        batch.fences.add(topic)  # type: ignore[arg-type]
        batch.put(Table.MESSAGE, b"k", b"v")
        store.write([batch])
        Unserved(store).begin()
        with pytest.raises(StoreFenced):
            store.write([batch])


def test_thousands_of_leases_of_one_that_was_killed_are_taken_over_in_time(
    shared: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    ttl, lasts = 3_600.0, 400.0  # so long that only the time that is made to pass counts: this much for each lease
    passed = 0.0
    monkeypatch.setattr(unserved, "_TTL_SECONDS", ttl)
    monkeypatch.setattr(unserved, "time", SimpleNamespace(monotonic=lambda: passed, sleep=time.sleep))
    with closing(shared()) as store:
        leases = store.lease_table()
        assert leases is not None
        leases.join("killed", "http://killed", 60_000)
        for number in range(20):
            leases.take("killed", b"topic:%d" % number)
        leases.renew("killed", 1)
        until(lambda: not leases.instances())
        copying = Kept(store)
        table = copying._table
        assert table is not None
        take = table.take

        def take_long(id: str, resource: bytes) -> Fence | Instance:  # noqa: A002
            nonlocal passed
            passed += lasts
            with table._transaction() as connection:
                connection.execute(update(INSTANCE).values(expires_ms=INSTANCE.c.expires_ms - round(lasts * 1000)))
            return take(id, resource)

        monkeypatch.setattr(table, "take", take_long)
        with copying:
            assert {each.instance for each in leases.held().values()} == {copying._id}
        assert passed > 2 * ttl


def test_of_two_copies_into_one_store_the_first_goes_on_and_a_killed_one_is_followed(shared: Callable[[], Store]) -> None:
    with closing(shared()) as store:
        leases = store.lease_table()
        assert leases is not None
        leases.join("killed", "oncelog on host, process 1", 60_000)
        before = leases.take("killed", COPY)
        leases.renew("killed", 1_000)
        with Kept(store) as first:
            with pytest.raises(Served, match="is copying or verifying it"):
                Kept(store).__enter__()
            first.check()
            batch = Batch()
            batch.fences.add(before)  # type: ignore[arg-type]
            batch.put(Table.MESSAGE, b"k", b"killed")
            with pytest.raises(StoreFenced):
                store.write([batch])
            source = MemoryStore()
            put(source, {(Table.INSTANCE, b""): NAME})
            begin_copy(source, store, "there", first.fence)
            forget_copy(store, first.fence)
        assert mark_of(store) is None
        with pytest.raises(StoreFenced):
            forget_copy(store, before)  # type: ignore[arg-type]


def test_a_service_that_begins_while_a_store_is_copied_into_it_is_refused(shared: Callable[[], Store]) -> None:
    source = MemoryStore()
    put(source, {(Table.INSTANCE, b""): NAME})
    with closing(shared()) as store, Kept(store) as kept:
        begin_copy(source, store, "there", kept.fence)
        with pytest.raises((StoreError, OncelogError), match="half a copy"), running_service(open_store=shared):
            pass
        kept.check()
        for _ in copy_rows(source, store, kept.fence):
            pass
        end_copy(store, kept.fence)
        assert contents_of(store) == {(Table.INSTANCE, b""): NAME}
