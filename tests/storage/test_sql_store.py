"""The promises of a store on SQL that only databases can break; those of every store are in test_contract.py."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.engine import Connection

from oncelog_service.storage.port import Fence, StoreClosed, StoreDamaged, StoreError, StoreFenced
from oncelog_service.storage.sql import postgresql
from oncelog_service.storage.sql.store import Changes, changes_of
from tests.patience import PATIENCE, until
from tests.postgres import PostgresServer
from tests.storage.stores import END, M, Place, S, keys_of, put, run, write
from tests.storage.test_contract import BATCH, Batches, batches_of

T, U = Fence(b"t", 1), Fence(b"u", 1)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


# --- groups of batches


@given(st.lists(BATCH, max_size=5))
def test_no_row_is_changed_twice_in_one_statement(group: Batches) -> None:
    """A database does not say what comes of that."""
    runs, puts, deletes, *_ = changes_of(batches_of(group, b"")[0])
    assert len({*runs, *puts, *deletes}) == len(runs) + len(puts) + len(deletes)


def test_a_group_larger_than_a_statement_is_one_change(on_sql: Place) -> None:
    store, value = on_sql.open(), os.urandom(8 * 2**20)
    keys = [b"%d" % number for number in range(5)]
    large = run(*((key, value) for key in keys), fence=T)
    with pytest.raises(StoreFenced):
        store.write([large])
    assert keys_of(store) == []
    on_sql.lease(T)
    write(store, M, b"old")
    large.delete(M, b"old")
    store.write([large])
    assert [(key, found == value) for key, found in store.scan(M, b"", END)] == [(key, True) for key in keys]
    assert [key for key, _ in store.scan(M, b"", END, reverse=True)] == keys[::-1]
    assert store.get(M, b"3") == value


# --- fences


def test_a_write_happens_only_while_every_lease_it_needs_is_valid(on_sql: Place) -> None:
    store = on_sql.open()
    lost, nobodys = Fence(b"c", 5), Fence(b"d", 1)
    on_sql.lease(T, U, Fence(b"c", 6))
    on_sql.lease(nobodys, instance=None)
    store.write([run((b"1", b""), fence=T), run((b"2", b""), fence=U)])
    both, only = put(fence=T), put(fence=lost)
    both.delete(M, b"1")
    both.fences |= {lost, nobodys}
    for batches, refused in (
        ([run((b"3", b""), fence=T), put((M, b"4", b""), fence=lost)], {lost}),
        ([run((b"3", b""), fence=T), put((M, b"4", b""), fence=nobodys)], {nobodys}),
        ([put((M, b"4", b""), fence=Fence(b"unknown", 1))], {Fence(b"unknown", 1)}),
        ([both], {lost, nobodys}),
        ([only], {lost}),
    ):
        with pytest.raises(StoreFenced) as raised:
            store.write(batches)
        assert raised.value.lost == refused
    store.write([run((b"5", b""), fence=T)])
    assert keys_of(store) == [b"1", b"2", b"5"]


TAKE_OVER = "UPDATE oncelog_lease SET epoch = epoch + 1, instance = 'other' WHERE resource = %s"


def until_blocked(place: Place, pid: int) -> None:
    """Return when a session waits for that one."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    with place.connect() as watcher:
        until(lambda: watcher.execute(query, (pid,)).fetchone() != (0,), f"a session waits for {pid}")


@pytest.mark.parametrize("taken", [True, False])
def test_a_write_that_meets_a_take_over_waits_for_its_outcome(taken: bool, shared: Place, threads: ThreadPoolExecutor) -> None:
    store = shared.open()
    shared.lease(T, U)
    with shared.connect() as other:
        other.execute("BEGIN")
        other.execute(TAKE_OVER, (b"t",))
        writing = threads.submit(store.write, [run((b"1", b""), fence=T), run((b"2", b""), fence=U)])
        until_blocked(shared, other.info.backend_pid)
        other.execute("COMMIT" if taken else "ROLLBACK")
        error = writing.exception(PATIENCE)
    assert error is None if not taken else isinstance(error, StoreFenced) and error.lost == {T}
    assert keys_of(store) == ([] if taken else [b"1", b"2"])
    store.write([run((b"3", b""), fence=U)])


def test_a_take_over_waits_for_the_write_it_meets_and_then_sees_it(shared: Place, threads: ThreadPoolExecutor) -> None:
    store = shared.open()
    shared.lease(T)

    def take_over() -> object:
        with shared.connect() as new:
            new.execute(TAKE_OVER, (b"t",))
            return new.execute("SELECT count(*) FROM oncelog_row").fetchone()

    with shared.connect() as holder:
        holder.execute("BEGIN")
        holder.execute("INSERT INTO oncelog_row VALUES (%s, '')", (M.value + b"2",))
        writing = threads.submit(store.write, [run((b"1", b""), (b"2", b""), (b"3", b""), fence=T)])
        until_blocked(shared, holder.info.backend_pid)
        taking = threads.submit(take_over)
        active = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'WITH fence%' AND state = 'active'"
        (writer,) = holder.execute(active).fetchone()  # type: ignore[misc]
        until_blocked(shared, writer)  # the take-over
        holder.execute("ROLLBACK")
    writing.result(PATIENCE)
    assert taking.result(PATIENCE) == (3,)


def test_a_process_stopped_in_the_midst_of_a_large_write_does_not_keep_its_leases(
    shared: Place, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, goes_on, execute = shared.open(), threading.Event(), postgresql._execute
    # Of a statement that is not prepared the server has read the first part before the values come, and is not idle any more.
    assert store.inner._writer.connection.driver_connection.prepare_threshold == 0  # type: ignore[attr-defined]
    shared.lease(T)
    store.write([run((b"before", b""), fence=T)])

    def stopped_behind(writer: Connection, changes: Changes, newest: tuple[bytes, bytes] | None) -> frozenset[Fence]:
        lost = execute(writer, changes, newest)
        goes_on.wait(PATIENCE)
        return lost

    monkeypatch.setattr(postgresql, "_execute", stopped_behind)
    value = os.urandom(8 * 2**20)
    writing = threads.submit(store.write, [run(*((b"%d" % number, value) for number in range(5)), fence=T)])
    with shared.connect() as other:
        until(lambda: other.execute("SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction'").fetchone())
        other.execute("SET lock_timeout = '30s'")
        other.execute(TAKE_OVER, (b"t",))
    goes_on.set()
    assert isinstance(writing.exception(PATIENCE), StoreError)
    assert keys_of(shared.open()) == [b"before"]


# --- scans


def test_a_look_at_a_database_hangs_where_reading_does(shared: Place, threads: ThreadPoolExecutor) -> None:
    store = shared.open()
    with shared.connect() as other, other.transaction():
        other.execute("LOCK TABLE oncelog_row IN ACCESS EXCLUSIVE MODE")
        looked = threads.submit(store.look)
        with pytest.raises(TimeoutError):
            looked.result(0.3)
    looked.result(PATIENCE)


def test_scans_that_are_held_open_keep_nobody_from_reading_and_writing(on_sql: Place, threads: ThreadPoolExecutor) -> None:
    store, keys = on_sql.open(), [b"%04d" % number for number in range(1_000)]
    store.write([run(*((key, b"old") for key in keys))])
    with ExitStack() as held:
        scans = [held.enter_context(closing(store.scan(M, b"", END))) for _ in range(30)]
        for scan in scans:
            assert next(scan) == (b"0000", b"old")
        threads.submit(store.write, [run(*((key, b"new") for key in keys))]).result(PATIENCE)
        assert store.get(M, b"0999") == b"new"
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
    for table, rows in ((Table.MESSAGE, 80_000), (Table.SNAPSHOT, 10)):
        for reverse in (False, True):
            before = peak()
            assert sum(1 for _ in store.scan(table, b"", b"\\xff", reverse=reverse)) == rows
            assert peak() < before + 25, f"{peak() - before} MB for {table}"
"""


@pytest.mark.real
def test_a_scan_holds_a_page_and_not_the_table(on_sql: Place) -> None:
    store = on_sql.open()
    for start in range(0, 80_000, 20_000):
        store.write([run(*((b"%08d" % number, b"v" * 400) for number in range(start, start + 20_000)))])
    for number in range(10):
        write(store, S, b"%02d" % number, value=os.urandom(4 * 2**20))
    store.close()
    measured = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURE), on_sql.url], capture_output=True, text=True, check=False
    )
    assert measured.returncode == 0, measured.stderr


# --- a server that fails


def test_a_read_that_fails_with_the_server_is_an_error_and_later_ones_work(postgres: PostgresServer, shared: Place) -> None:
    store = shared.open()
    keys = [b"%04d" % number for number in range(100)]
    write(store, M, *keys)
    with closing(store.scan(M, b"", END)) as rows:
        next(rows)
        postgres.kill()
        with pytest.raises(StoreError, match="cannot be read"):
            list(rows)
    with pytest.raises(StoreError, match="cannot be read"):
        store.get(M, b"0000")
    postgres.start()
    assert store.get(M, b"0000") == b"value"
    assert keys_of(store) == keys


def test_a_write_that_a_synchronous_standby_was_not_waited_for_counts_as_failed(
    shared: Place, threads: ThreadPoolExecutor
) -> None:
    """An operator has cancelled the wait: it is committed, but only there."""
    store = shared.open()

    def write_on() -> None:
        while True:
            write(store, M, b"k")

    with shared.connect() as operator:
        operator.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        try:
            operator.execute("SELECT pg_reload_conf()")
            # Commits wait once the checkpointer has read its configuration, whatever the sessions have.
            writing: Future[None] = threads.submit(write_on)
            cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            until(lambda: operator.execute(cancel).fetchone() != (0,))
            with pytest.raises(StoreError, match="may not be safe"):
                writing.result(PATIENCE)
        finally:
            operator.execute("ALTER SYSTEM RESET synchronous_standby_names")
            operator.execute("SELECT pg_reload_conf()")
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
    write(store, M, b"k")
    assert store.get(M, b"k") == b"value"
    assert any(record.levelno == logging.WARNING and record.message.endswith(": soon") for record in caplog.records)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("fsync", "fsync = off.*ALTER SYSTEM SET fsync = on"),
        ("full_page_writes", "full_page_writes = off.*ALTER SYSTEM SET full_page_writes = on"),
        ("default_transaction_read_only", "read-only"),
    ],
)
def test_a_server_that_does_not_sync_or_cannot_be_written_is_refused(
    setting: str, told: str, postgres: PostgresServer, shared: Place
) -> None:
    postgres.restart(**{setting: "on" if "read_only" in setting else "off"})
    with pytest.raises(StoreError, match=told):
        shared.open()


@pytest.mark.parametrize(("default", "wanted"), [("off", "on"), ("remote_write", "on"), ("remote_apply", "remote_apply")])
def test_every_session_waits_until_its_commits_are_synced(
    default: str, wanted: str, postgres: PostgresServer, shared: Place
) -> None:
    postgres.restart(synchronous_commit=default, default_transaction_isolation="serializable")
    store = shared.open()
    for engine in (store.inner._database.engine, store.lease_table()._engine):  # type: ignore[attr-defined, union-attr]
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == wanted
            assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"


def test_a_damaged_page_is_damage_and_not_an_end(postgres: PostgresServer, shared: Place) -> None:
    store = shared.open()
    store.write([run(*((b"%06d" % number, b"v" * 300) for number in range(2_000)))])
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
        keys_of(store)
    assert store.get(M, b"000000") == b"v" * 300


# --- standbys


def url_of(*servers: PostgresServer, **options: str) -> str:
    """Of several hosts, in this order."""
    base, _, database = servers[0].url().rpartition("@")
    hosts = [("host", f"127.0.0.1:{each.port}") for each in servers]
    query = "&".join(f"{name}={value}" for name, value in [*hosts, *options.items()])
    return f"{base}@/{database.partition('/')[2]}?{query}"


@pytest.mark.real
def test_nothing_is_read_from_a_standby_and_after_a_fail_over_the_new_primary_is_written(tmp_path: Path) -> None:
    """Not where a URL names several hosts, nor where anybody asks for any of them. The standby receives nothing any more."""

    def answer(url: str, value: bytes | None = None) -> bytes | str | None:
        try:
            with closing(Place("postgresql", tmp_path, url)) as place:
                store = place.open()
                if value is not None:
                    write(store, S, b"k", value=value)
                return store.get(S, b"k")
        except StoreError as error:
            return "refused" if "is a standby" in str(error) else str(error)

    primary = PostgresServer()
    with closing(ExitStack()) as ends:
        ends.callback(primary.remove)
        assert answer(url_of(primary), b"old") == b"old"
        standby = primary.standby()
        ends.callback(standby.remove)
        drawn = url_of(standby, primary, load_balance_hosts="random")
        for number in range(20):  # libpq draws the host of each connection
            assert answer(drawn, b"%d" % number) == b"%d" % number
        either = url_of(primary, standby, target_session_attrs="any", load_balance_hosts="random")
        assert {answer(either) for _ in range(30)} == {b"19", "refused"}
        primary.kill()
        assert answer(url_of(primary, standby)) != b"old"
        with standby.connect() as operator:
            operator.execute("SELECT pg_promote()")
        until(lambda: answer(url_of(primary, standby), b"new") == b"new")
