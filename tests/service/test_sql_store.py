"""The store on SQL: what only SQLite and PostgreSQL can get wrong. What every store promises: test_storage_contract.py."""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sqlalchemy import make_url

from oncelog_service.config import Settings
from oncelog_service.storage.memory import MemoryStore
from oncelog_service.storage.open import shown, store_opener
from oncelog_service.storage.port import Batch, Fence, Store, StoreClosed, StoreDamaged, StoreError, StoreFenced, Table
from oncelog_service.storage.sql import changes_of
from tests.patience import PATIENCE, until
from tests.postgres import PASSWORD, PostgresServer

M, S = Table.MESSAGE, Table.SNAPSHOT
END = b"\xff" * 8


def put(*rows: tuple[bytes, bytes], fence: Fence | None = None) -> Batch:
    batch = Batch()
    batch.put_run(M, b"", [key for key, _ in rows], [value for _, value in rows])
    if fence is not None:
        batch.fences.add(fence)
    return batch


def rows_of(store: Store, start: bytes = b"", stop: bytes = END) -> list[tuple[bytes, bytes]]:
    return list(store.scan(M, start, stop))


class Place:
    """A database, and a connection to it beside the store's."""

    def __init__(self, url: str, connect: Callable[[], psycopg.Connection] | None) -> None:
        self.url = url
        self._connect = connect
        self._opened: list[Store] = []

    def open(self) -> Store:
        store = store_opener(self.url)()
        self._opened.append(store)
        return store

    def connect(self) -> psycopg.Connection:
        assert self._connect is not None
        return self._connect()

    def lease(self, *fences: Fence, instance: str | None = "me") -> None:
        """Make leases that stand."""
        rows = [(fence.resource, fence.epoch, instance) for fence in fences]
        if self._connect is None:
            with closing(sqlite3.connect(self.url.removeprefix("sqlite://"))) as file, file:
                file.executemany("INSERT INTO oncelog_lease VALUES (?, ?, ?)", rows)
        else:
            with self._connect() as connection, connection.cursor() as cursor:
                cursor.executemany("INSERT INTO oncelog_lease VALUES (%s, %s, %s)", rows)

    def close(self) -> None:
        for store in self._opened:
            store.close()


@contextmanager
def sqlite_place(path: Path) -> Iterator[Place]:
    with closing(Place(f"sqlite://{path / 'data'}", None)) as place:
        yield place


@contextmanager
def postgresql_place(server: PostgresServer) -> Iterator[Place]:
    url = server.fresh_schema()
    schema = url.rpartition("%3D")[2]

    def connect() -> psycopg.Connection:
        connection = server.connect()
        connection.execute(f"SET search_path = {schema}")
        return connection

    with closing(Place(url, connect)) as place:
        yield place


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = sqlite_place(tmp_path) if request.param == "sqlite" else postgresql_place(request.getfixturevalue("postgres"))
    with made as place:
        yield place


@pytest.fixture
def shared(postgres: PostgresServer) -> Iterator[Place]:
    """On PostgreSQL."""
    with postgresql_place(postgres) as place:
        yield place


class Thread(threading.Thread):
    """Runs a call, and hands out what came of it."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error

    def ended(self) -> BaseException | None:
        self.join(PATIENCE)
        assert not self.is_alive()
        return self.error


# --- groups


KEYS, VALUES = st.sampled_from([b"", b"a", b"b"]), st.binary(max_size=2)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.lists(KEYS, max_size=4), VALUES),
        st.tuples(st.just("put"), st.sampled_from([M, S]), KEYS, VALUES),
        st.tuples(st.just("delete"), st.sampled_from([M, S]), KEYS),
    ),
    max_size=6,
)
EXAMPLE = count()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=st.lists(st.lists(CHANGES, max_size=4), min_size=1, max_size=3))
def test_a_group_of_batches_has_the_effect_of_its_changes_in_their_order(groups: list[list[list[tuple]]], place: Place) -> None:  # type: ignore[type-arg]
    model, store = MemoryStore(), place._opened[0] if place._opened else place.open()
    prefix = b"%08d" % next(EXAMPLE)
    for group in groups:
        batches = []
        for changes in group:
            batch = Batch()
            for kind, *values in changes:
                if kind == "run":
                    batch.put_run(M, prefix, values[0], [values[1] + b"%d" % at for at in range(len(values[0]))])
                elif kind == "put":
                    batch.put(values[0], prefix + values[1], values[2])
                else:
                    batch.delete(values[0], prefix + values[1])
            batches.append(batch)
        model.write(batches)
        store.write(batches)
        runs, puts, deletes, *_ = changes_of(batches)
        assert len({*runs, *puts, *deletes}) == len(runs) + len(puts) + len(deletes), (
            "what comes of a row changed twice in one statement is left open"
        )
        for table in (M, S):
            assert list(store.scan(table, prefix, prefix + END)) == list(model.scan(table, prefix, prefix + END))


def test_a_group_larger_than_a_statement_is_one_change(place: Place) -> None:
    store = place.open()
    value = os.urandom(8 * 2**20)
    keys = [b"%d" % number for number in range(5)]
    refused = put(*((key, value) for key in keys), fence=Fence(b"t", 1))
    with pytest.raises(StoreFenced):
        store.write([refused])
    assert rows_of(store) == []
    place.lease(Fence(b"t", 1))
    batch = put((b"old", b"1"))
    store.write([batch])
    refused.delete(M, b"old")
    store.write([refused])
    assert [(key, found == value) for key, found in store.scan(M, b"", END)] == [(key, True) for key in keys]
    assert [key for key, _ in store.scan(M, b"", END, reverse=True)] == keys[::-1]
    assert store.get(M, b"3") == value


# --- fences


def test_a_write_happens_only_while_every_lease_it_stands_on_stands(place: Place) -> None:
    store = place.open()
    stands, other, lost, nobodys = Fence(b"a", 3), Fence(b"b", 1), Fence(b"c", 5), Fence(b"d", 1)
    place.lease(stands, other, Fence(b"c", 6))
    place.lease(nobodys, instance=None)
    store.write([put((b"1", b""), fence=stands), put((b"2", b""), fence=other)])
    for refused in (lost, nobodys, Fence(b"unknown", 1)):
        with pytest.raises(StoreFenced) as raised:
            store.write([put((b"3", b""), fence=stands), put((b"4", b""), fence=refused)])
        assert raised.value.lost == {refused}
    delete = Batch()
    delete.delete(M, b"1")
    delete.fences |= {lost, nobodys, stands}
    with pytest.raises(StoreFenced) as raised:
        store.write([delete])
    assert raised.value.lost == {lost, nobodys}
    check = Batch()
    check.fences.add(lost)
    with pytest.raises(StoreFenced):
        store.write([check])
    store.write([put((b"5", b""), fence=stands)])
    assert [key for key, _ in rows_of(store)] == [b"1", b"2", b"5"]


def waits(place: Place, blocked_by: psycopg.Connection) -> None:
    """Return when a session waits for that one."""
    with place.connect() as watcher:
        waits_for(watcher, blocked_by.info.backend_pid)


def waits_for(watcher: psycopg.Connection, pid: int) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    until(lambda: watcher.execute(query, (pid,)).fetchone() != (0,), f"a session waits for {pid}")


TAKE_OVER = "UPDATE oncelog_lease SET epoch = epoch + 1, instance = 'other' WHERE resource = %s"


@pytest.mark.parametrize("taken", [True, False])
def test_a_write_that_meets_a_take_over_waits_for_its_outcome(taken: bool, shared: Place) -> None:
    store = shared.open()
    shared.lease(Fence(b"t", 1), Fence(b"u", 1))
    with shared.connect() as other:
        other.execute("BEGIN")
        other.execute(TAKE_OVER, (b"t",))
        write = Thread(lambda: store.write([put((b"1", b""), fence=Fence(b"t", 1)), put((b"2", b""), fence=Fence(b"u", 1))]))
        waits(shared, other)
        other.execute("COMMIT" if taken else "ROLLBACK")
        error = write.ended()
        if taken:
            assert isinstance(error, StoreFenced)
            assert error.lost == {Fence(b"t", 1)}
        else:
            assert error is None
    assert [key for key, _ in rows_of(store)] == ([] if taken else [b"1", b"2"])
    store.write([put((b"3", b""), fence=Fence(b"u", 1))])


def test_a_take_over_waits_for_the_write_it_meets_and_then_sees_it(shared: Place) -> None:
    store = shared.open()
    shared.lease(Fence(b"t", 1))
    found = []

    def take_over() -> None:
        with shared.connect() as new:
            new.execute(TAKE_OVER, (b"t",))
            found.append(new.execute("SELECT count(*) FROM oncelog_row").fetchone())

    with shared.connect() as holder:
        holder.execute("BEGIN")
        holder.execute("INSERT INTO oncelog_row VALUES (%s, '')", (M.value + b"2",))
        write = Thread(lambda: store.write([put((b"1", b""), (b"2", b""), (b"3", b""), fence=Fence(b"t", 1))]))
        waits(shared, holder)
        taking = Thread(take_over)
        with shared.connect() as watcher:
            writing = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'WITH fence%%' AND state = 'active'"
            (writer,) = watcher.execute(writing).fetchone()  # type: ignore[misc]
            waits_for(watcher, writer)  # the take-over
        holder.execute("ROLLBACK")
    assert write.ended() is None
    assert taking.ended() is None
    assert found == [(3,)]


def test_nothing_is_written_under_an_epoch_once_a_higher_one_was_read(shared: Place) -> None:
    """Owners write as fast as they can; each take-over counts what is there, and it must stay so."""
    shared.open()
    shared.lease(Fence(b"t", 1))
    for epoch in range(1, 16):
        store = shared.open()
        ready = threading.Event()

        def own(store: Store = store, epoch: int = epoch, ready: threading.Event = ready) -> None:
            for number in count():
                store.write([put((b"%04d-%06d" % (epoch, number), b""), fence=Fence(b"t", epoch))])
                if number == 5:
                    ready.set()

        owner = Thread(own)
        assert ready.wait(PATIENCE)
        with shared.connect() as other:
            other.execute(TAKE_OVER, (b"t",))
            before = other.execute("SELECT count(*) FROM oncelog_row").fetchone()
            assert isinstance(owner.ended(), StoreFenced)
            assert other.execute("SELECT count(*) FROM oncelog_row").fetchone() == before


def test_who_is_stopped_in_the_midst_of_sending_a_large_write_does_not_keep_its_leases(shared: Place) -> None:
    """The server has read the beginning of a statement, and waits for the rest."""
    url = make_url(shared.url)
    target = (url.host or "127.0.0.1", url.port or 5432)
    with stalling(target) as (port, limit, goes_on), closing(Place(url.set(port=port).render_as_string(False), None)) as place:
        store = place.open()
        shared.lease(Fence(b"t", 1))
        store.write([put((b"before", b""), fence=Fence(b"t", 1))])
        limit.append(48 * 2**20)  # behind the first statement, within the second
        value = os.urandom(8 * 2**20)
        write = Thread(lambda: store.write([put(*((b"%d" % number, value) for number in range(9)), fence=Fence(b"t", 1))]))
        until(lambda: not limit, "so much was sent")
        with shared.connect() as other:
            other.execute("SET lock_timeout = '30s'")
            other.execute(TAKE_OVER, (b"t",))
        goes_on.set()
        assert isinstance(write.ended(), StoreError)
        assert [key for key, _ in rows_of(shared.open())] == [b"before"]


@contextmanager
def stalling(target: tuple[str, int]) -> Iterator[tuple[int, list[int], threading.Event]]:
    """A way to the server. Once the list holds a number of bytes, so many more go there on one connection, then none until the
    event, and the list is emptied."""
    limit: list[int] = []
    goes_on = threading.Event()

    def carry(source: socket.socket, to: socket.socket, limited: bool) -> None:
        sent = 0
        with suppress(OSError):
            while data := source.recv(65_536):
                to.sendall(data)
                sent = sent + len(data) if limited and limit else 0
                if limit and sent > limit[0]:
                    limit.clear()
                    goes_on.wait()
        for each in (source, to):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def accept(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                upstream = socket.create_connection(target)
                for way in ((client, upstream, True), (upstream, client, False)):
                    threading.Thread(target=carry, args=way, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        try:
            yield server.getsockname()[1], limit, goes_on
        finally:
            goes_on.set()


# --- scans


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_of_many_pages_sees_one_state_while_others_write(reverse: bool, place: Place) -> None:
    store = place.open()
    keys = [b"%06d" % number for number in range(3_000)]

    def state(number: int) -> Batch:
        batch = put(*((key, b"%d" % number) for key in keys[number % 2 :: 2]), *((key, b"%d" % number) for key in keys[::7]))
        for key in keys[number % 50 :: 50]:
            batch.delete(M, key)
        return batch

    model = MemoryStore()
    states: dict[bytes, list[tuple[bytes, bytes]]] = {}
    store.write([put(*((key, b"0") for key in keys)), put((b"state", b"0"))])
    model.write([put(*((key, b"0") for key in keys)), put((b"state", b"0"))])
    states[b"0"] = rows_of(model)
    stop = threading.Event()

    def write() -> None:
        for number in range(1, 40):
            if stop.is_set():
                return
            group = [state(number), put((b"state", b"%d" % number))]
            model.write(group)
            states[b"%d" % number] = rows_of(model)
            store.write(group)

    writer = Thread(write)
    seen: set[bytes] = set()
    while writer.is_alive() or not seen:
        rows = list(store.scan(M, b"", END, reverse=reverse))
        rows = rows[::-1] if reverse else rows
        which = dict(rows)[b"state"]
        assert rows == states[which]
        seen.add(which)
    assert writer.ended() is None
    assert len(seen) > 2, "no scan met a write"


def test_scans_that_are_held_open_keep_nobody_from_reading_and_writing(place: Place) -> None:
    store = place.open()
    store.write([put(*((b"%04d" % number, b"old") for number in range(1_000)))])
    with ExitStack() as held:
        scans = [held.enter_context(closing(store.scan(M, b"", END))) for _ in range(30)]
        for scan in scans:
            assert next(scan) == (b"0000", b"old")

        def work() -> None:
            assert store.get(M, b"0999") == b"old"
            store.write([put(*((b"%04d" % number, b"new") for number in range(1_000)))])
            assert len(rows_of(store)) == 1_000

        assert Thread(work).ended() is None
        assert {value for _, value in scans[0]} == {b"old"}


MEASURE = """
    import re, sys
    from pathlib import Path
    from oncelog_service.storage.open import store_opener
    from oncelog_service.storage.port import Table

    def peak():
        return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

    store = store_opener(sys.argv[1])()
    assert next(store.scan(Table.MESSAGE, b"", b"\\xff"))
    for table, rows in ((Table.MESSAGE, 100_000), (Table.SNAPSHOT, 24)):
        for reverse in (False, True):
            before = peak()
            found = sum(1 for _ in store.scan(table, b"", b"\\xff", reverse=reverse))
            assert found == rows, found
            assert peak() < before + 25, f"{peak() - before} MB for {table}"
"""


def test_a_scan_holds_a_page_and_not_the_table(place: Place) -> None:
    store = place.open()
    for start in range(0, 100_000, 20_000):
        store.write([put(*((b"%08d" % number, b"v" * 400) for number in range(start, start + 20_000)))])
    for number in range(24):
        large = Batch()
        large.put(S, b"%02d" % number, os.urandom(4 * 2**20))
        store.write([large])
    store.close()
    command = [sys.executable, "-c", textwrap.dedent(MEASURE), place.url]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


# --- a server that fails


def test_what_was_acknowledged_is_there_after_the_server_was_killed_and_the_rest_is_whole_or_not(
    postgres: PostgresServer, shared: Place
) -> None:
    dice = random.Random(seed := random.randrange(2**32))
    print(f"seed {seed}")  # pytest shows it beside a failure
    numbers = count()
    acknowledged: list[int] = []
    tried: list[int] = []

    def write(store: Store, enough: threading.Event) -> None:
        for number in numbers:
            tried.append(number)
            store.write([put(*((b"%06d-%02d" % (number, row), b"v" * 100) for row in range(50)))])
            acknowledged.append(number)
            if len(tried) % 5 == 0:
                enough.set()

    for _ in range(5):
        store, enough = shared.open(), threading.Event()
        writer = Thread(lambda store=store, enough=enough: write(store, enough))  # type: ignore[misc]
        assert enough.wait(PATIENCE)
        time.sleep(dice.uniform(0, 0.05))
        postgres.kill()
        assert isinstance(writer.ended(), StoreError)
        for _ in range(2):
            with pytest.raises(StoreClosed):
                store.get(M, b"")
        store.close()
        postgres.start()
    found: dict[int, int] = {}
    for key, _ in rows_of(shared.open()):
        found[int(key[:6])] = found.get(int(key[:6]), 0) + 1
    assert set(found.values()) == {50}, seed
    assert set(acknowledged) <= set(found) <= set(tried), seed


def test_a_read_that_fails_with_the_server_is_an_error_and_later_ones_work(postgres: PostgresServer, shared: Place) -> None:
    store = shared.open()
    store.write([put(*((b"%04d" % number, b"v") for number in range(100)))])
    with closing(store.scan(M, b"", END)) as rows:
        next(rows)
        postgres.kill()
        with pytest.raises(StoreError, match="cannot be read"):
            list(rows)
    with pytest.raises(StoreError, match="cannot be read"):
        store.get(M, b"0000")
    postgres.start()
    assert store.get(M, b"0000") == b"v"
    assert len(rows_of(store)) == 100


def test_a_write_that_a_synchronous_standby_was_not_waited_for_counts_as_failed(shared: Place) -> None:
    """An operator has cancelled the wait: it is committed, but only there."""
    store = shared.open()

    def write_on() -> None:
        while True:
            store.write([put((b"k", b"v"))])

    with shared.connect() as operator:
        operator.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        try:
            operator.execute("SELECT pg_reload_conf()")
            # Commits wait once the checkpointer has read its configuration, whatever the sessions have.
            write = Thread(write_on)
            cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            until(lambda: operator.execute(cancel).fetchone() != (0,))
            error = write.ended()
        finally:
            operator.execute("ALTER SYSTEM RESET synchronous_standby_names")
            operator.execute("SELECT pg_reload_conf()")
    assert isinstance(error, StoreError)
    assert "may not be safe" in str(error)
    with pytest.raises(StoreClosed):
        store.get(M, b"k")


def test_other_warnings_of_the_server_are_logged_and_harm_no_write(shared: Place, caplog: pytest.LogCaptureFixture) -> None:
    """As that the database must be vacuumed, which it says with each write for weeks."""
    store = shared.open()
    with shared.connect() as connection:
        connection.execute(
            "CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'soon'; RETURN NULL; END $$"
        )
        connection.execute("CREATE TRIGGER warn AFTER INSERT ON oncelog_row EXECUTE FUNCTION warn()")
    store.write([put((b"k", b"v"))])
    assert store.get(M, b"k") == b"v"
    assert [record for record in caplog.records if record.levelname == "WARNING" and record.message.endswith(": soon")]


def test_a_server_that_does_not_sync_is_refused(postgres: PostgresServer, shared: Place) -> None:
    for setting in ("fsync", "full_page_writes"):
        postgres.restart(**{setting: "off"})
        with pytest.raises(StoreError, match=f"{setting} = off.*ALTER SYSTEM SET {setting} = on"):
            shared.open()


@pytest.mark.parametrize(
    ("default", "wanted"), [("off", "on"), ("local", "on"), ("remote_write", "on"), ("remote_apply", "remote_apply")]
)
def test_every_session_waits_until_its_commits_are_synced(
    default: str, wanted: str, postgres: PostgresServer, shared: Place
) -> None:
    postgres.restart(synchronous_commit=default, default_transaction_isolation="serializable")
    store = shared.open()
    table = store.lease_table()
    assert table is not None
    for engine in (store.inner._database.engine, table._engine):  # type: ignore[attr-defined]
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == wanted
            assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"


def test_a_read_only_server_is_refused(postgres: PostgresServer, shared: Place) -> None:
    postgres.restart(default_transaction_read_only="on")
    with pytest.raises(StoreError, match="read-only"):
        shared.open()


def test_a_damaged_page_is_damage_and_not_an_end(postgres: PostgresServer, shared: Place) -> None:
    store = shared.open()
    store.write([put(*((b"%06d" % number, b"v" * 300) for number in range(2_000)))])
    with shared.connect() as connection:
        connection.execute("CHECKPOINT")
        (path,) = connection.execute("SELECT pg_relation_filepath('oncelog_row')").fetchone()  # type: ignore[misc]
        postgres.stop()
    with (postgres.data / path).open("r+b") as file:
        file.seek(20 * 8_192 + 4_000)
        file.write(b"damage")
    postgres.start()
    store = shared.open()
    with pytest.raises(StoreDamaged):
        rows_of(store)
    assert store.get(M, b"000000") == b"v" * 300


def test_instances_that_start_at_the_same_time_both_find_the_tables(shared: Place) -> None:
    starting = [Thread(shared.open) for _ in range(4)]
    assert [each.ended() for each in starting] == [None] * 4


# --- SQLite's own


OPEN = """
    import sys
    from oncelog_service.storage.open import store_opener
    from oncelog_service.storage.port import StoreError
    try:
        store = store_opener(sys.argv[1])()
    except StoreError as error:
        sys.exit(str(error))
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_kept_out_of_a_sqlite_file_until_the_first_has_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(OPEN), f"sqlite://{tmp_path / 'data'}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"open\n"
        second = subprocess.run(command, input="", capture_output=True, text=True, check=False)
        assert second.returncode == 1
        assert second.stderr == f"{tmp_path / 'data'} is in use by another process\n"
        with pytest.raises(StoreError, match="in use"):
            store_opener(command[-1])()
        first.kill()
    store_opener(command[-1])().close()


def test_sqlite_syncs_every_commit(tmp_path: Path) -> None:
    with sqlite_place(tmp_path) as place:
        store = place.open()
        with store.inner._database.engine.connect() as connection:  # type: ignore[attr-defined]
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_a_damaged_sqlite_file_is_damage_or_read_right(tmp_path: Path) -> None:
    rows = [(b"%06d" % number, b"v" * 300) for number in range(2_000)]
    with sqlite_place(tmp_path) as place:
        place.open().write([put(*rows)])
    path = tmp_path / "data"
    intact = path.read_bytes()
    noticed = 0
    for at in range(0, len(intact), 4_096):
        # The head of each page: where SQLite itself can notice. Damage inside of rows is found by their own checksums.
        path.write_bytes(intact[:at] + b"\xff" * 16 + intact[at + 16 :])
        with sqlite_place(tmp_path) as place:
            try:
                assert rows_of(place.open()) == rows
            except StoreDamaged:
                noticed += 1
    assert noticed > len(intact) // 4_096 * 0.9


def test_a_sqlite_url_names_a_path_in_the_way_of_leveldbs_and_in_sqlalchemys(tmp_path: Path) -> None:
    store_opener(f"sqlite://{tmp_path}/my%20data")().close()
    assert (tmp_path / "my data").exists()
    with closing(store_opener(f"sqlite:///{tmp_path}/my%20data")()), pytest.raises(StoreError, match="in use"):
        store_opener(f"sqlite://{tmp_path}/my%20data")()


# --- what is told


def texts_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


def test_a_password_is_nowhere_to_be_read(postgres: PostgresServer, shared: Place, caplog: pytest.LogCaptureFixture) -> None:
    secret = "s3cret/of:mine"
    quoted = "s3cret%2Fof%3Amine"
    url = postgres.url().replace("only-for%3Atests", quoted)
    assert quoted in url
    texts = []
    with caplog.at_level(logging.DEBUG):
        for wrong in (url, url.replace(str(postgres.port), "1"), f"{url}?options=-cnonsense%3D1"):
            with pytest.raises(StoreError) as raised:
                store_opener(wrong)()
            texts.append(texts_of(raised.value).replace("only-for", ""))
        store = shared.open()
        store.write([put((b"k", b"v"))])
        postgres.kill()
        with pytest.raises(StoreError) as raised:
            store.write([put((b"k", b"v"))])
        texts.append(texts_of(raised.value))
    broken = [
        "postgresql://u:{}@h",
        "postgresql://u:{}@h:x/d",
        "postgres://u:{}@h/d",
        "mysql://u:{}@h/d",
        "postgresql://h?password={}",
    ]
    for form in broken:
        with pytest.raises(ValueError, match="names no store") as refused:
            store_opener(form.format(secret))
        with pytest.raises(ValidationError) as invalid:
            Settings(store=form.format(quoted))
        texts += [texts_of(refused.value), texts_of(invalid.value)]
    for text in (*texts, caplog.text, shown(url), shown(f"postgresql://h/d?password={secret}")):
        assert secret not in text
        assert "s3cret" not in text
        assert quoted not in text
        assert PASSWORD not in text


def test_serve_tells_where_the_data_is_without_the_password(shared: Place) -> None:
    command = [sys.executable, "-m", "oncelog_service", "serve", "--port", "0", "--json"]
    environment = {**os.environ, "ONCELOG_STORE": shared.url}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as service:
        assert service.stdout is not None
        ready = service.stdout.readline()
        service.terminate()
        out, err = service.communicate(timeout=PATIENCE)
    assert service.returncode == 0, err
    assert json.loads(ready)["data"] == json.loads(ready)["store"] == shown(shared.url)
    for text in (ready, out, err):
        assert PASSWORD.encode() not in text
        assert b"only-for" not in text


WITHOUT = """
    import sys
    sys.modules[sys.argv[1]] = None
    from oncelog_service.storage.open import store_opener
    from oncelog_service.storage.port import StoreError
    try:
        store_opener(sys.argv[2])()
    except StoreError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("missing", "url", "told"),
    [
        ("sqlalchemy", "sqlite:///tmp/never", 'pip install "oncelog[service,sql]"'),
        ("sqlalchemy", "postgresql://h/d", 'pip install "oncelog[service,postgresql]"'),
        ("psycopg", "postgresql://h/d", 'pip install "oncelog[service,postgresql]"'),
    ],
)
def test_an_extra_that_is_not_installed_is_named(missing: str, url: str, told: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(WITHOUT), missing, url]
    assert told in subprocess.run(command, capture_output=True, text=True, check=True).stdout


LOADED = """
    import sys
    from oncelog_service.storage.open import store_opener
    store_opener("memory://")()
    store_opener("postgresql://h/d")
    store_opener("sqlite:///d")
    print(sorted({"psycopg", "sqlalchemy"} & set(sys.modules)))
"""


def test_a_store_of_another_kind_loads_no_driver() -> None:
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(LOADED)], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
