"""The example's dictionary: seen as it was committed, changed all or nothing."""

from __future__ import annotations

import pytest
from examples.transactional_dict import TransactionalDict

from oncelog.errors import TransactionConflict
from tests.sdk.memory_service import MemoryClient
from tests.sdk.recording import Recorded


@pytest.fixture
def client() -> MemoryClient:
    return MemoryClient()


@pytest.fixture
def table() -> TransactionalDict[str, int]:
    return TransactionalDict()


def put(client: MemoryClient, table: TransactionalDict[str, int], **values: int) -> None:
    with client.transaction(table):
        table.update(values)


def test_changes_are_seen_outside_once_they_are_committed_and_by_a_transaction_that_begins_then(
    client: MemoryClient, table: TransactionalDict[str, int]
) -> None:
    put(client, table, kept=1, deleted=2)
    outside, reader = table.view(), table.view()
    with client.transaction(reader):
        with client.transaction(table):
            table["new"] = 3
            del table["deleted"]
            assert dict(table) == {"kept": 1, "new": 3}
            assert dict(outside) == {"kept": 1, "deleted": 2}
        assert (dict(reader), dict(outside)) == ({"kept": 1, "deleted": 2}, {"kept": 1, "new": 3})
    assert dict(reader) == dict(table) == {"kept": 1, "new": 3}


def test_what_is_written_and_not_committed_yet_is_seen_by_no_later_transaction(
    client: MemoryClient, table: TransactionalDict[str, int]
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
    assert (seen, dict(view)) == ([{}], {"a": 1})


def test_only_the_same_key_of_the_same_dictionary_conflicts(client: MemoryClient, table: TransactionalDict[str, int]) -> None:
    with client.transaction(table):
        table["a"] = 1
        put(client, table.view(), b=2)
        put(client, TransactionalDict("elsewhere"), a=3)
    with pytest.raises(TransactionConflict), client.transaction(table):  # noqa: PT012
        table["a"] = 5
        put(client, table.view(), a=2)
    assert dict(table) == {"a": 2, "b": 2}
