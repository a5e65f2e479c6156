"""The dictionary that takes part in transactions: seen as it was committed, changed all or nothing."""

from __future__ import annotations

import threading

import pytest

from oncelog import Client, TransactionalDict
from oncelog.errors import TransactionClosed, TransactionConflict
from tests.sdk.recording import Recorded


@pytest.fixture
def table(topic: str) -> TransactionalDict[str, int]:
    return TransactionalDict(topic)


def put(client: Client, table: TransactionalDict[str, int], **values: int) -> None:
    with client.transaction(table):
        table.update(values)


def test_changes_are_seen_outside_once_they_are_committed(client: Client, table: TransactionalDict[str, int]) -> None:
    put(client, table, kept=1, deleted=2)
    outside = table.view()
    with client.transaction(table):
        table["new"] = 3
        del table["deleted"]
        assert dict(table) == {"kept": 1, "new": 3}
        assert dict(outside) == {"kept": 1, "deleted": 2}
        assert (len(table), len(outside)) == (2, 2)
    assert dict(outside) == dict(table) == {"kept": 1, "new": 3}
    assert repr(outside) == "TransactionalDict({'kept': 1, 'new': 3})"


def test_a_rollback_drops_the_changes(client: Client, table: TransactionalDict[str, int]) -> None:
    put(client, table, a=1)
    context = client.transaction(table)
    context.start()
    table["a"], table["b"] = 5, 6
    context.abort()
    assert dict(table) == {"a": 1}


def test_it_is_changed_in_a_transaction_only_and_in_one_at_a_time(client: Client, table: TransactionalDict[str, int]) -> None:
    with pytest.raises(TransactionClosed):
        table["a"] = 1
    with client.transaction(table):
        with pytest.raises(TransactionClosed, match="view"):
            client.transaction(table).start()
        table["a"] = 1
        with pytest.raises(KeyError):
            del table["b"]
    assert dict(table) == {"a": 1}


def test_a_transaction_sees_what_was_committed_when_it_began(client: Client, table: TransactionalDict[str, int]) -> None:
    put(client, table, a=1)
    reader = table.view()
    with client.transaction(reader):
        put(client, table, a=2, b=3)
        put(client, table, a=4)
        assert dict(reader) == {"a": 1}
        assert dict(table) == {"a": 4, "b": 3}
    assert dict(reader) == {"a": 4, "b": 3}


def test_a_transaction_that_begins_before_another_one_commits_sees_nothing_of_it(
    client: Client, table: TransactionalDict[str, int]
) -> None:
    seen: list[dict[str, int]] = []
    view = table.view()

    class Looking(Recorded):
        """Between the dictionary's commit_tx and the commit."""

        def commit_tx(self) -> None:
            with client.transaction():
                pass  # a later one commits first
            with client.transaction(view):
                seen.append(dict(view))

    with client.transaction(table, Looking("looking", [])):
        table["a"] = 1
    assert seen == [{}]
    assert dict(view) == {"a": 1}


def test_nobody_needs_old_versions_for_ever(client: Client, table: TransactionalDict[str, int]) -> None:
    for number in range(5):
        put(client, table, a=number, b=number)
    with client.transaction(table):
        del table["b"]
    assert {key: len(versions) for key, versions in table._table.versions.items()} == {"a": 1}
    assert len(table._table.committed) == 1


def test_different_keys_and_different_dictionaries_do_not_conflict(client: Client, table: TransactionalDict[str, int]) -> None:
    other, elsewhere = table.view(), TransactionalDict[str, int]("elsewhere")
    with client.transaction(table):
        table["a"] = 1
        with client.transaction(other):
            other["b"] = 2
        with client.transaction(elsewhere):
            elsewhere["a"] = 3
    assert dict(table) == {"a": 1, "b": 2}


def test_no_increment_is_lost_between_threads(client: Client, table: TransactionalDict[str, int]) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        view = table.view()

        def increment(_: object) -> None:
            view["n"] = view.get("n", 0) + 1

        try:
            for _ in range(5):
                client.run_in_transaction(increment, view, attempts=50)
        except TransactionConflict as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert dict(table) == {"n": 15}
