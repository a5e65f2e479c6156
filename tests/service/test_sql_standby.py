"""Nothing is read from a standby: not where a URL names several hosts, nor after a fail-over of the database itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Store, StoreError, Table
from tests.patience import until
from tests.postgres import PostgresServer

KEY = b"k"
READS = 30
"""Connections that are tried; libpq draws the host of each."""


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture(scope="module")
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    """What it was a moment ago: it receives nothing any more."""
    store = opened(url(primary))
    write(store, b"old")
    store.close()
    server = primary.standby()
    yield server
    server.remove()


def url(*servers: PostgresServer, **options: str) -> str:
    """Of several hosts, in this order."""
    base, _, database = servers[0].url().rpartition("@")
    hosts = [("host", f"127.0.0.1:{each.port}") for each in servers]
    query = "&".join(f"{name}={value}" for name, value in [*hosts, *options.items()])
    return f"{base}@/{database.partition('/')[2]}?{query}"


def opened(at: str) -> Store:
    return store_opener(at)()


def write(store: Store, value: bytes) -> None:
    batch = Batch()
    batch.put(Table.TOPIC, KEY, value)
    store.write([batch])


def test_of_several_hosts_the_primary_is_read_whatever_is_drawn(primary: PostgresServer, standby: PostgresServer) -> None:
    at = url(standby, primary, load_balance_hosts="random")
    for number in range(READS):
        store = opened(at)
        value = str(number).encode()
        write(store, value)
        assert store.get(Table.TOPIC, KEY) == value
        store.close()


def test_a_connection_that_leads_to_a_standby_says_nothing(primary: PostgresServer, standby: PostgresServer) -> None:
    # Whoever asks for any host gets errors, never what was true a while ago.
    at = url(primary, standby, target_session_attrs="any", load_balance_hosts="random")
    store = opened(url(primary))
    write(store, b"new")
    store.close()
    answers = {answer(at) for _ in range(READS)}
    assert answers == {b"new", "refused"}


def answer(at: str) -> bytes | str | None:
    try:
        store = opened(at)
        try:
            return store.get(Table.TOPIC, KEY)
        finally:
            store.close()
    except StoreError as error:
        return "refused" if "is a standby" in str(error) else str(error)


def test_after_a_fail_over_of_the_database_the_new_primary_is_written(primary: PostgresServer, standby: PostgresServer) -> None:
    at = url(primary, standby)
    primary.kill()
    with pytest.raises(StoreError):
        opened(at)
    with standby.connect() as operator:
        operator.execute("SELECT pg_promote()")

    def works() -> bool:
        store = opened(at)
        try:
            write(store, b"new")
            return store.get(Table.TOPIC, KEY) == b"new"
        finally:
            store.close()

    until(works, despite=(StoreError,))
