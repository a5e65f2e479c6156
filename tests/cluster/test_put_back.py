"""A database that is put back under its instances, or while all were stopped: nobody serves it on, and its clients are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from oncelog import Client, Producer, Reader
from oncelog.errors import ProducerFenced, StaleMessageId
from oncelog.wire.requests import PublishRequest
from oncelog_service.service import Service
from oncelog_service.storage.copying import check_whole
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Fence, StoreBehind, StoreError, Table
from oncelog_service.storage.seals import SealedStore
from oncelog_service.storage.sql.leases import SqlLeaseTable
from oncelog_service.storage.sql.store import SqlStore
from tests.behaviours.cli.support import run, value
from tests.patience import PATIENCE, until
from tests.postgres import PostgresServer
from tests.storage.stores import write
from tests.world.service import RunningService, free_port, running_service

pytestmark = pytest.mark.real

TABLES = ("oncelog_row", "oncelog_lease", "oncelog_instance")


class Database:
    """One whose state is kept, and put back, as by a dump."""

    def __init__(self, server: PostgresServer) -> None:
        self.url = server.fresh_database()
        self._connection = server.connect(self.url.rpartition("/")[2])

    def keep(self) -> None:
        for table in TABLES:
            self._connection.execute(f"CREATE TABLE kept_{table} AS SELECT * FROM {table}")

    def put_back(self) -> None:
        with self._connection.transaction():
            for table in TABLES:
                self._connection.execute(f"TRUNCATE {table}")
                self._connection.execute(f"INSERT INTO {table} SELECT * FROM kept_{table}")

    def empty(self) -> None:
        with self._connection.transaction():
            for table in TABLES:
                self._connection.execute(f"TRUNCATE {table}")


@contextmanager
def instance(database: Database) -> Iterator[tuple[RunningService, Client]]:
    with (
        running_service(database.url, port=free_port(), lease_seconds=3) as service,
        Client(service.url, retry=PATIENCE) as client,
    ):
        yield service, client


def renewed(database: Database) -> Any:
    found: list[Any] = []

    def alone() -> bool:
        result = run("renew", database.url, "--yes", "--json")
        if result.exit_code == 0:
            found.append(value(result))
        else:
            assert "serves it" in result.stderr
        return result.exit_code == 0

    until(alone, "the instances that were killed, or were dumped, have expired")
    return found[0]


@pytest.fixture
def database(postgres: PostgresServer) -> Database:
    return Database(postgres)


def test_instances_whose_database_is_put_back_under_them_serve_nothing_until_it_was_renewed(database: Database) -> None:
    with instance(database) as (one, client), instance(database) as (other, _):
        client.create_topic("t")
        epoch = client.open_producer("t", "p").epoch
        client.publish("t", PublishRequest([b"0"], producer="p", epoch=epoch, sequence_ids=[0]))
        database.keep()
        client.publish("t", PublishRequest([b"1"], producer="p", epoch=epoch, sequence_ids=[1]))
        lost = client.stats("t").last_message_id
        database.put_back()
        for each in (one, other):  # also the one that has written nothing since
            until(lambda each=each: "oncelog renew" in each.service.reason, "it serves nothing")
    with pytest.raises(StoreError, match="gone back in time"), running_service(database.url):
        pass
    found = renewed(database)
    assert lost is not None
    with instance(database) as (_, client):
        assert client.stats("t").generation == found["incarnation"] + 1
        with pytest.raises(ProducerFenced):
            client.publish("t", PublishRequest([b"2"], producer="p", epoch=epoch, sequence_ids=[2]))
        with Reader("t", client=client, start=lost, timeout=0) as reader, pytest.raises(StaleMessageId):
            list(reader)
        with Producer("t", name="p", client=client) as producer:
            assert producer.send(b"1").sequence_id == 1


def test_a_dump_that_was_put_back_while_all_were_stopped_is_renewed_by_hand_as_the_page_says(database: Database) -> None:
    with instance(database) as (_, client):
        client.create_topic("t")
        database.keep()
        client.publish("t", PublishRequest([b"0", b"1"]))
        generation = client.stats("t").generation
        refused = run("renew", database.url, "--yes", "--json")
        assert (refused.exit_code, "stop every service" in refused.stderr) == (1, True)
    database.put_back()
    renewed(database)
    with instance(database) as (_, client):
        client.publish("t", PublishRequest([b"2", b"3", b"4"]))
        with Reader("t", client=client, start=2, generation=generation, timeout=0) as reader, pytest.raises(StaleMessageId):
            list(reader)


@pytest.mark.parametrize("size", [10, 20 * 2**20])
def test_nothing_is_written_behind_what_was_lost(database: Database, size: int) -> None:
    def write(*keys: bytes) -> None:
        batch = Batch(fence)
        batch.put_rows(Table.MESSAGE, b"default:t:\x00\x00\x00\x01", [(key.rjust(10, b"\x00"), bytes(size)) for key in keys])
        store.write([batch])

    with closing(store_opener(database.url)()) as store:
        table = store.lease_table()
        assert table is not None
        table.join("a", "http://127.0.0.1:1", 60_000)
        store.check_written()
        fence = table.take("a", b"topic:t")
        assert isinstance(fence, Fence)
        write(b"1")
        database.keep()
        write(b"2")
        store.check_written()
        database.put_back()
        with pytest.raises(StoreBehind):
            write(b"3", b"4")
    with closing(store_opener(database.url)()) as store:
        found = [key[-1:] for key, _ in store.scan(Table.MESSAGE, b"", b"\xff")]
    assert found == [b"1"], "though its lease is as it was"


def test_a_fence_of_the_lost_time_is_valid_for_nobody_after_a_renewal(database: Database) -> None:
    with instance(database):
        pass
    database.keep()
    store = store_opener(database.url)()
    table = store.lease_table()
    assert table is not None
    table.join("frozen", "http://127.0.0.1:1", 60_000)
    for _ in range(3):
        fence = table.take("frozen", b"topic:lost")
    assert isinstance(fence, Fence)
    database.put_back()
    renewed(database)
    table.join("next", "http://127.0.0.1:2", 60_000)
    for _ in range(3):
        taken = table.take("next", b"topic:lost")
        assert isinstance(taken, Fence)
        assert taken.epoch > fence.epoch
    store.close()


def test_who_was_stopped_before_it_could_write_down_what_it_found_does_not_end_what_was_renewed_since(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with instance(database):
        pass
    store = store_opener(database.url)()
    assert isinstance(store, SealedStore)
    assert isinstance(store.inner, SqlStore)
    table, leases = store.lease_table(), store.inner._leases
    assert table is not None
    table.join("one", "http://127.0.0.1:1", 60_000)
    table.leave("one")
    store.check_written()
    write(store, Table.SNAPSHOT, b"one")
    database.keep()
    write(store, Table.SNAPSHOT, b"two")
    database.put_back()

    def leases_later() -> SqlLeaseTable:
        renewed(database)
        return leases()

    monkeypatch.setattr(store.inner, "_leases", leases_later)
    store.check_written()
    write(store, Table.SNAPSHOT, b"two")
    check_whole(store)
    store.close()


def test_a_database_that_was_emptied_under_an_instance_is_begun_again_by_a_renewal(database: Database) -> None:
    with instance(database) as (service, client):
        client.create_topic("t")
        client.publish("t", PublishRequest([b"0"]))
        database.empty()
        until(lambda: "oncelog renew" in service.service.reason, "it serves nothing")
    with pytest.raises(StoreError, match="gone back in time"), running_service(database.url):
        pass
    found = renewed(database)
    with instance(database) as (_, client):
        client.create_topic("t")
        assert client.stats("t").generation == found["incarnation"] + 1


async def fail(service: Service) -> None:
    service._on_failure(StoreError("planted"))


def test_a_database_that_is_opened_again_with_all_that_was_written_is_served_on(database: Database) -> None:
    with instance(database) as (service, client):
        client.create_topic("t")
        failures = service.service.failures.count
        for number in range(3):
            client.publish("t", PublishRequest([b"%d" % number]))
            service.on_loop(fail)
            until(lambda: service.service.present is not None, "it is open again")
        assert service.service.failures.count == failures + 3
        assert client.stats("t").upcoming_offset == 3
        assert client.stats("t").generation == 1
