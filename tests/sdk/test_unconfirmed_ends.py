"""A transaction that was rolled back, and whose service was not told, ends while its process lives and goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog.errors import TransactionsUnavailable
from tests.sdk.recording import Deciding, RecordedClient
from tests.support import RunningService


@pytest.fixture
def recorded(house: RunningService) -> Iterator[RecordedClient]:
    with RecordedClient(house.url, retry=0.3) as client:
        yield client


@pytest.mark.parametrize("fault", [TransactionsUnavailable("planted"), KeyboardInterrupt()])
def test_a_prepared_transaction_whose_abort_did_not_get_through_ends_with_the_next_one(
    recorded: RecordedClient, topic: str, fault: BaseException
) -> None:
    recorded.faults["abort"] = [fault]
    context = recorded.transaction(Deciding("database", recorded.calls, commit_tx=ZeroDivisionError()))
    with pytest.raises((ZeroDivisionError, KeyboardInterrupt)), context as tx:
        tx.send(topic, b"rolled back")
    stuck = recorded.transaction_status(context.transaction_id)
    assert (stuck.state, stuck.resource) == ("in_progress", "a database"), "it would block for up to 25 h"
    with recorded.transaction() as tx:
        tx.send(topic, b"next")
    assert recorded.transaction_status(context.transaction_id).state == "aborted"
    assert recorded.calls.count("client.abort") == 2


def test_what_cannot_be_told_now_is_told_later_and_holds_up_no_transaction(recorded: RecordedClient, topic: str) -> None:
    recorded.faults["abort"] = [TransactionsUnavailable("planted") for _ in range(3)]
    context = recorded.transaction(long=True)
    context.start()
    context.send(topic, b"rolled back")
    with pytest.raises(TransactionsUnavailable):
        context.abort()
    for state in ("in_progress", "in_progress", "aborted"):
        with recorded.transaction() as tx:
            tx.send(topic, b"next")
        assert recorded.transaction_status(context.transaction_id).state == state


def test_ctrl_c_while_older_ones_are_ended_leaves_no_transaction_behind(recorded: RecordedClient, topic: str) -> None:
    recorded.faults["abort"] = [TransactionsUnavailable("planted"), KeyboardInterrupt()]
    older = recorded.transaction()
    older.start()
    with pytest.raises(TransactionsUnavailable):
        older.abort()
    context = recorded.transaction(long=True)
    with pytest.raises(KeyboardInterrupt):
        context.start()
    assert recorded.transaction_status(context.transaction_id).state == "aborted", "it would hold up readers for up to 25 h"
