"""A store copied: every row as it was, broken off anywhere and gone on with; and the processes that are kept out meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.progress import Progress

from oncelog_service.cli.stores.rows import READ
from oncelog_service.cli.stores.same import compare
from oncelog_service.cluster.unserved import COPY, Kept, Served, Unserved
from oncelog_service.storage import copying
from oncelog_service.storage.copying import (
    TABLES,
    CopyRefused,
    begin_copy,
    check_whole,
    copy_row_of,
    copy_rows,
    end_copy,
    pieces,
    set_copy_row,
)
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Fence, Instance, LeaseTable, Store, StoreError, StoreFenced, Table
from oncelog_service.storage.records import TrimRow, encode_record
from oncelog_service.storage.seals import SealedStore
from tests.patience import until
from tests.storage.stores import Place, delete, everything, place_of, put
from tests.world.clock import ManualClock
from tests.world.leases import LeasesInMemory
from tests.world.service import running_service
from tests.world.shared import SharedDatabase

NAME = (Table.STORE_ID, b""), b"0123456789abcdef0123456789abcdef"
Contents = dict[tuple[Table, bytes], bytes]
T = (Table.TRIM, b"default:t:\x00\x00\x00\x01")
ROWS: Contents = dict([NAME]) | {
    T: encode_record(TrimRow(1)),
    (Table.TRIM, b"default:u:\x00\x00\x00\x02"): encode_record(TrimRow(2)),
}


def store_of(contents: Contents, store: Store | None = None) -> Store:
    store = MemoryStore() if store is None else store
    store.write([put(*((*where, value) for where, value in contents.items()))])
    return store


def contents_of(store: Store) -> Contents:
    return {(table, key): value for table, key, value in everything(store) if table is not Table.COPY}


def copy_whole(source: Store, target: Store, fence: Fence | None = None) -> None:
    begin_copy(source, target, "there", fence)
    for _ in copy_rows(source, target, fence):
        pass
    end_copy(target, fence)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a small store goes over: many pieces, some ended by their bytes."""
    monkeypatch.setattr(copying, "PIECE_ROWS", 7)
    monkeypatch.setattr(copying, "PIECE_BYTES", 5_000)


VALUES = st.sampled_from([b"", b"v", bytes(100), bytes(3_000), bytes(5_000), bytes(100_000)])


@given(st.dictionaries(st.binary(max_size=3), VALUES, max_size=40), st.sampled_from(TABLES))
def test_pieces_are_bounded_and_leave_no_gap(rows: dict[bytes, bytes], table: Table) -> None:
    contents: Contents = {(table, key): value for key, value in rows.items()}
    found = list(pieces(store_of(contents), table))
    assert (found[0].start, found[-1].stop > b"\xff" * 12) == (b"", True)
    assert [piece.stop for piece in found[:-1]] == [piece.start for piece in found[1:]]
    assert [row for piece in found for row in piece.rows.items()] == sorted(rows.items())
    for piece in found:
        assert len(piece.rows) <= 7
        assert sum(len(key) + len(value) for key, value in list(piece.rows.items())[:-1]) < 5_000
        assert all(piece.start <= key < piece.stop for key in piece.rows)


# --- broken off


@given(data=st.data())
def test_a_copy_that_is_broken_off_anywhere_is_gone_on_with_whatever_its_source_did_meanwhile(data: st.DataObject) -> None:
    keys = st.tuples(st.sampled_from((Table.MESSAGE, Table.JOURNAL, Table.SUBSCRIPTION)), st.binary(max_size=2))
    contents: Contents = data.draw(st.dictionaries(keys, st.binary(max_size=2), max_size=60)) | dict([NAME])
    source, disk = store_of(contents), Disk()
    for _ in range(data.draw(st.integers(0, 3))):
        left = data.draw(st.integers(0, 12))

        def fail(_: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError("killed")

        disk.before_sync, disk.fail_after_apply = fail, data.draw(st.booleans())
        try:
            copy_whole(source, MemoryStore(disk))
        except StoreError:
            disk.before_sync = None
        if (mark := copy_row_of(MemoryStore(disk))) is not None and mark.finished:
            assert contents_of(MemoryStore(disk)) == contents
            return
        there = st.sampled_from(sorted(contents.keys() - {NAME[0]}, key=repr) or [(Table.MESSAGE, b"")])
        changed = data.draw(st.dictionaries(keys | there, st.binary(max_size=2), max_size=8))
        contents.update(changed)
        store_of(changed, source)
        for gone in data.draw(st.lists(there, max_size=8)):
            delete(source, *gone)
            contents.pop(gone, None)
    disk.before_sync = None
    present = contents_of(target := MemoryStore(disk)).items() & contents.items()
    begin_copy(source, target, "there")
    *_, copied = copy_rows(source, target)
    assert copied.written == copied.rows - len(present), "only what is not there is written"
    end_copy(target)
    assert contents_of(target) == contents
    check_whole(target)


# --- refused


def half_copy(source: Store, target: Store) -> Store:
    begin_copy(source, target, "leveldb:///old")
    next(copy_rows(source, target))
    return target


def test_no_store_is_overwritten_and_no_half_one_copied() -> None:
    source, finished = store_of(ROWS), MemoryStore()
    half = half_copy(source, MemoryStore())
    copy_whole(source, finished)
    other = store_of({NAME[0]: NAME[1][::-1]})
    refused = [(source, store_of({(table, b"k"): b"v"}), "not empty") for table in TABLES]
    refused += [
        (MemoryStore(), MemoryStore(), "no service has ever opened it"),
        (half, MemoryStore(), "half a copy itself"),
        (other, half, "a copy of another store, leveldb:///old"),
        (source, finished, "finished copy"),
    ]
    for of, to, why in refused:
        before = everything(to)
        with pytest.raises(CopyRefused, match=why):
            begin_copy(of, to, "there")
        assert everything(to) == before


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_no_service_opens_half_a_copy_nor_stays_behind(kind: str, tmp_path: Path) -> None:
    source = store_of(dict([NAME]))
    with place_of(kind, tmp_path) as place:
        half_copy(source, place.open())
        place.close()
        with pytest.raises(StoreError, match="half a copy"), running_service(open_store=place.open):
            pass
        leases = place.reopen().lease_table()
        assert leases is None or not leases.instances()
        copy_whole(source, place._opened[-1])
        place.close()
        with running_service(open_store=place.open) as service:
            assert service.service.opening.store.get(*NAME[0]) == NAME[1]


# --- compared


def compared(left: Store, right: Store) -> list[str]:
    return compare(left, right, "A", "B", Progress(disable=True)).problems


def sealed(contents: Contents) -> Store:
    return store_of(contents, SealedStore(MemoryStore()))


def test_damage_on_both_sides_is_found_though_it_is_equal_and_hides_nothing_behind_it() -> None:
    assert READ.keys() == set(TABLES)
    for table in TABLES:
        rows = {(table, T[1]): b"\xfe"}
        (problem,) = compared(sealed(rows), sealed(rows))
        assert problem.startswith(f"{table.name} default/t generation 1: damaged in A: ")
    disk = Disk()
    store_of(ROWS, SealedStore(MemoryStore(disk)))
    rows_of_trim = disk.tables[Table.TRIM]
    for key, value in rows_of_trim.items():
        rows_of_trim[key] = bytes([value[0] ^ 1]) + value[1:]
    found = compared(*(SealedStore(MemoryStore(disk)) for _ in range(2)))
    damaged = [problem.partition(": damaged in A: ")[0] for problem in found]
    assert damaged == ["TRIM default/t generation 1", "TRIM default/u generation 2"]


def test_half_a_copy_is_said_to_be_one_though_all_rows_are_equal() -> None:
    source, target = store_of(ROWS), MemoryStore()
    begin_copy(source, target, "there")
    for _ in copy_rows(source, target):
        pass
    assert compared(source, target) == ["B is half a copy, of there"]
    end_copy(target)
    assert compared(source, target) == []


# --- a database that several share


@pytest.fixture
def store(shared: Place) -> Store:
    return shared.open()


@pytest.fixture
def leases(store: Store) -> LeaseTable:
    table = store.lease_table()
    assert table is not None
    return table


def gone(leases: LeaseTable, id: str, *resources: bytes, url: str = "http://gone") -> list[Fence]:  # noqa: A002
    """The leases of an instance that expires now."""
    leases.join(id, url, 60_000)
    fences = [leases.take(id, each) for each in resources]
    leases.renew(id, 1)
    until(lambda: not leases.instances())
    return [each for each in fences if isinstance(each, Fence)]


@pytest.mark.parametrize("still", [True, False], ids=["and is there", "and is gone"])
def test_a_service_that_came_meanwhile_is_noticed(shared: Place, store: Store, still: bool) -> None:
    unserved = Unserved(store)
    unserved.begin()
    with running_service(open_store=shared.open, lease_seconds=60):  # who is not heard of for that long serves nothing
        if still:
            with pytest.raises(Served, match="serves it"):
                unserved.check()
    if not still:
        with pytest.raises(Served, match="meanwhile"):
            unserved.check()


def test_an_instance_that_was_frozen_writes_nothing_once_a_copy_has_begun(store: Store, leases: LeaseTable) -> None:
    (topic,) = gone(leases, "frozen", b"topic:t")
    batch = put((Table.MESSAGE, b"k", b"v"), fence=topic)
    store.write([batch])
    Unserved(store).begin()
    with pytest.raises(StoreFenced):
        store.write([batch])


def test_thousands_of_leases_of_one_that_was_killed_are_taken_over_in_time() -> None:
    clock = ManualClock()
    database = SharedDatabase(clock.now_ms)

    class Slow(LeasesInMemory):
        def take(self, id: str, resource: bytes) -> Fence | Instance:  # noqa: A002
            clock.advance(500)
            return super().take(id, resource)

    leases = database.leases = Slow(clock.now_ms)
    leases.join("killed", "http://gone", 20_000)
    for number in range(20):
        leases.take("killed", b"topic:%d" % number)
    clock.advance(10_000)
    with Kept(database.open(), clock) as kept:
        assert kept.fence is not None
        assert {each.instance for each in leases.held().values()} == {leases.holder(COPY).id}
    assert clock.seconds > 20, "longer than an instance lives that is not heard of"


def test_of_two_copies_into_one_store_the_first_goes_on_and_a_killed_one_is_followed(store: Store, leases: LeaseTable) -> None:
    (before,) = gone(leases, "killed", COPY, url="oncelog on host, process 1")
    with Kept(store) as first:
        with pytest.raises(Served, match="is at work on it"):
            Kept(store).__enter__()
        first.check()
        with pytest.raises(StoreFenced):
            store.write([put((Table.MESSAGE, b"k", b"killed"), fence=before)])
        begin_copy(store_of(dict([NAME])), store, "there", first.fence)
        set_copy_row(store, None, first.fence)
    assert copy_row_of(store) is None
    with pytest.raises(StoreFenced):
        set_copy_row(store, None, before)
