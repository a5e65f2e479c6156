"""The calls that transactions are made of, against the real service; and when they are repeated."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from oncelog import Client
from oncelog.errors import (
    ConnectionFailed,
    InvalidRequest,
    InvalidResponse,
    RollbackRefused,
    StoredGroupPublished,
    TransactionConflict,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog.wire.media import THRIFT
from oncelog.wire.requests import PublishRequest, PublishResponse
from oncelog.wire.transaction import NO_SHORT, TransactionType
from tests.patience import until
from tests.sdk.fakes import Answer, Request, fake_server, forward, problem
from tests.support import RunningService

KEY = b"table\x00key\xff"


def test_a_transaction_is_started_and_its_state_is_asked_for(client: Client) -> None:
    tx = client.start_transaction(timeout=20)
    assert tx.transaction_id == tx.write_pointer > 0
    status = client.transaction_status(tx.write_pointer)
    assert (status.state, status.type) == ("in_progress", "short")
    assert status.started_ms is not None
    assert abs(status.expires_ms - status.started_ms - 20_000) < 10_000
    assert tx.write_pointer in [each.write_pointer for each in client.transactions()]
    assert client.commit_transaction(tx.write_pointer).state == "committed"
    assert client.commit_transaction(tx.write_pointer).state == "committed"
    with pytest.raises(TransactionNotInProgress) as caught:
        client.abort_transaction(tx.write_pointer)
    assert caught.value.state == "committed"
    assert tx.write_pointer not in [each.write_pointer for each in client.transactions()]


def test_a_long_one_is_long(client: Client) -> None:
    tx = client.start_transaction("long")
    assert tx.type is TransactionType.LONG
    client.abort_transaction(tx.write_pointer)


def test_conflicts_are_found_at_can_commit_and_at_commit(client: Client) -> None:
    first, second, third = (client.start_transaction() for _ in range(3))
    client.can_commit(first.write_pointer, [KEY])
    client.commit_transaction(first.write_pointer)
    with pytest.raises(TransactionConflict):
        client.can_commit(second.write_pointer, [KEY])
    with pytest.raises(TransactionConflict):
        client.commit_transaction(third.write_pointer, [KEY])
    for loser in (second, third):
        assert client.abort_transaction(loser.write_pointer).state == "aborted"


def test_a_checkpoint_is_a_further_pointer_of_the_same_transaction(client: Client) -> None:
    tx = client.start_transaction()
    later = client.checkpoint_transaction(tx.transaction_id)
    assert later.transaction_id == tx.transaction_id
    assert tuple(later.checkpoint_write_pointers) == (later.write_pointer,)
    assert client.transaction_status(later.write_pointer).write_pointer == tx.transaction_id
    assert client.transaction_states([tx.transaction_id, later.write_pointer, 5]) == {
        tx.transaction_id: "in_progress",
        later.write_pointer: "in_progress",
    }
    client.abort_transaction(tx.transaction_id)


def test_invalid_ones_are_listed_and_pruned(client: Client) -> None:
    first, second = (client.start_transaction() for _ in range(2))
    for tx in (first, second):
        assert client.invalidate_transaction(tx.write_pointer).state == "invalid"
    invalid = [status.write_pointer for status in client.transactions("invalid")]
    assert {first.write_pointer, second.write_pointer} <= set(invalid)
    assert client.prune_transactions([first.write_pointer]) == 1
    assert client.prune_transactions(before=datetime.now(UTC) + timedelta(seconds=1)) >= 1
    assert list(client.transactions("invalid")) == []
    with pytest.raises(ValueError, match="time zone"):
        client.prune_transactions(before=datetime(2026, 1, 1))  # noqa: DTZ001


def test_transactions_are_listed_beyond_one_page_each_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.api.transactions._PAGE", 2)
    started = [client.start_transaction().write_pointer for _ in range(5)]
    listed = [status.write_pointer for status in client.transactions()]
    assert listed == sorted(set(listed))
    assert set(started) <= set(listed)
    for pointer in started:
        client.abort_transaction(pointer)


@pytest.mark.parametrize("pointer", [0, -5, True, "5"])
def test_what_is_no_write_pointer_is_refused(client: Client, pointer: int) -> None:
    with pytest.raises(InvalidRequest):
        client.transaction_status(pointer)


def test_what_makes_no_transaction_is_refused(client: Client) -> None:
    for refused in (lambda: client.start_transaction("endless"), lambda: client.start_transaction(timeout=-1)):  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            refused()
    tx = client.start_transaction()
    with pytest.raises(InvalidRequest):
        client.can_commit(tx.write_pointer, [], resource="")
    client.abort_transaction(tx.write_pointer)
    with pytest.raises(TransactionNotFound):
        client.transaction_status(12345)


# --- messages -----------------------------------------------------------------------------------------------------------


def test_what_is_stored_is_published_as_a_group_and_rolled_back_by_the_answer(client: Client, topic: str) -> None:
    pointer = client.start_transaction().write_pointer
    stored = client.store(topic, PublishRequest([b"a", b"b"], write_pointer=pointer))
    assert [(run.status, run.count, run.message_id, run.offset) for run in stored.receipts] == [("stored", 2, None, None)]
    assert stored.start_timestamp == stored.end_timestamp == 0
    response = client.publish_transactional(topic, PublishRequest([], write_pointer=pointer))
    assert [(run.count, run.sequence_id, run.offset) for run in response.receipts] == [(2, None, 0)]
    assert response.write_pointer == pointer
    with pytest.raises(StoredGroupPublished):
        client.publish_transactional(topic, PublishRequest([], write_pointer=pointer))
    for _ in range(2):
        client.rollback(topic, response)
    client.abort_transaction(pointer)


def test_a_widened_rollback_is_refused(client: Client, topic: str) -> None:
    pointer = client.start_transaction().write_pointer
    response = client.publish_transactional(topic, PublishRequest([b"a"], write_pointer=pointer))
    client.publish(topic, PublishRequest([b"somebody else's"]))
    response.end_timestamp += 10_000
    with pytest.raises(RollbackRefused):
        client.rollback(topic, response)
    client.abort_transaction(pointer)


# --- repeating ----------------------------------------------------------------------------------------------------------


def test_a_start_whose_answer_was_lost_is_not_repeated(house: RunningService) -> None:
    def lose(request: Request) -> Answer | None:
        forward(house.url, request)
        return None

    with fake_server(lose) as fake, Client(fake.url) as client, pytest.raises(ConnectionFailed) as caught:
        client.start_transaction()
    assert len(fake.requests) == 1
    assert not caught.value.definite


@pytest.mark.parametrize("code", ["storage_unavailable", "transactions_unavailable"])
def test_a_start_that_was_refused_for_now_is_repeated(house: RunningService, code: str) -> None:
    answers = iter([problem(503, code)] * 2)
    with fake_server(lambda request: next(answers, None) or forward(house.url, request)) as fake, Client(fake.url) as client:
        assert client.start_transaction().first_short <= NO_SHORT
    assert [request.headers["accept"] for request in fake.requests] == [THRIFT] * 3


def test_what_ends_a_transaction_is_repeated_until_there_is_an_answer(house: RunningService) -> None:
    lost: list[str] = []

    def lose_each_first(request: Request) -> Answer | None:
        answer = forward(house.url, request)
        if request.path in lost or request.path == "/v1/transactions":
            return answer
        lost.append(request.path)
        return None

    with fake_server(lose_each_first) as fake, Client(fake.url) as client:
        for end in (client.commit_transaction, client.abort_transaction, client.invalidate_transaction):
            end(client.start_transaction().transaction_id)
        tx = client.start_transaction()
        client.can_commit(tx.transaction_id, [KEY])
        assert client.checkpoint_transaction(tx.transaction_id).write_pointer > tx.write_pointer
        client.abort_transaction(tx.transaction_id)
    assert len(lost) == 6


@pytest.mark.parametrize("body", [b"", b"\x00", b"{}", b"nonsense"])
def test_an_answer_that_is_no_transaction_is_invalid(body: bytes) -> None:
    with fake_server(lambda _: Answer(200, body)) as fake, Client(fake.url) as client:
        calls = (
            client.start_transaction,
            lambda: client.transaction_status(5),
            lambda: client.commit_transaction(5),
            lambda: client.publish_transactional("t", PublishRequest([])),
            lambda: list(client.transactions()),
            lambda: client.prune_transactions() if body != b"{}" else client.transaction_status(5),
        )
        for call in calls:
            with pytest.raises(InvalidResponse):
                call()


def test_a_transaction_that_is_left_alone_becomes_invalid(client: Client) -> None:
    pointer = client.start_transaction(timeout=0.05).write_pointer
    until(lambda: client.transaction_status(pointer).state != "in_progress")
    assert client.transaction_status(pointer).state == "invalid"
    assert client.prune_transactions([pointer]) == 1


def test_rolling_back_what_is_nothing_is_refused(client: Client, topic: str) -> None:
    with pytest.raises(InvalidRequest):
        client.rollback(topic, PublishResponse([]))
