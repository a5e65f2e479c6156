"""The calls that transactions and atomic commits are made of, against the real service; and when they are repeated."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest

from oncelog import Client, Reader
from oncelog.errors import (
    ConnectionFailed,
    GroupProducerNotFound,
    InvalidRequest,
    ProducerFenced,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog.wire.media import THRIFT
from oncelog.wire.requests import CommitRequest, Part, PublishRequest, PublishResponse
from oncelog.wire.transaction import NO_SHORT, TransactionType
from tests.sdk.fakes import Fate, Request, meeting, problem
from tests.world.service import RunningService

KEY = b"table\x00key\xff"


@pytest.fixture
def group() -> str:
    return f"g-{uuid4().hex}"


def first_answers_lost() -> Callable[[Request], Fate]:
    """The first answer to each request is lost, but for the start of a transaction."""
    seen = {("POST", "/v1/transactions")}

    def fate(request: Request) -> Fate:
        is_first = (request.method, request.path) not in seen
        seen.add((request.method, request.path))
        return "answer" if is_first else None

    return fate


# --- transactions


def test_every_call_of_a_transaction_whose_answer_is_lost_is_repeated_and_is_as_once(house: RunningService) -> None:
    with meeting(house.url, first_answers_lost()) as (client, _):
        tx = client.start_transaction(timeout=20)
        assert tx.transaction_id == tx.write_pointer > 0
        status = client.transaction_status(tx.write_pointer)
        assert (status.state, status.type) == ("in_progress", "short")
        assert abs((status.expires_ms or 0) - (status.started_ms or 0) - 20_000) < 10_000
        later = client.checkpoint_transaction(tx.transaction_id)
        assert tuple(later.checkpoint_write_pointers)[-1] == later.write_pointer > tx.write_pointer
        assert later.transaction_id == client.transaction_status(later.write_pointer).write_pointer == tx.transaction_id
        states = client.transaction_states([tx.transaction_id, later.write_pointer, 5])
        assert states == {tx.transaction_id: "in_progress", later.write_pointer: "in_progress"}
        client.can_commit(tx.write_pointer, [KEY])
        for _ in range(2):
            assert client.commit_transaction(tx.write_pointer).state == "committed"
        with pytest.raises(TransactionNotInProgress) as caught:
            client.abort_transaction(tx.write_pointer)
        assert caught.value.state == "committed"
        long = client.start_transaction("long")
        assert long.type is TransactionType.LONG
        assert client.abort_transaction(long.write_pointer).state == "aborted"


def test_a_start_is_repeated_only_where_it_was_refused_for_now(house: RunningService) -> None:
    with meeting(house.url, lambda _: "answer") as (client, requests):
        with pytest.raises(ConnectionFailed) as caught:
            client.start_transaction()
        assert (len(requests), caught.value.definite) == (1, False)
    fates = iter([problem(503, "storage_unavailable"), problem(503, "transactions_unavailable")])
    with meeting(house.url, lambda _: next(fates, None)) as (client, requests):
        assert client.start_transaction().first_short <= NO_SHORT
        assert [request.headers["accept"] for request in requests] == [THRIFT] * 3


# --- atomic commits


def test_every_call_of_an_atomic_commit_whose_answer_is_lost_is_repeated_and_is_as_once(
    house: RunningService, topic: str, group: str
) -> None:
    with meeting(house.url, first_answers_lost()) as (client, _):
        begun = client.begin_atomic(group, timeout=20)
        assert (begun.state, begun.group) == ("in_progress", group)
        assert abs((begun.expires_ms or 0) - (begun.began_ms or 0) - 20_000) < 10_000
        client.stage(begun.id, topic, 0, PublishRequest([b"0"]))
        request = CommitRequest(parts=[Part("default", topic, PublishRequest([b"1"]))], producer="p", sequence_id=0)
        outcome = client.commit_atomic(begun.id, request)
        assert (outcome.state, outcome.messages) == ("committed", 2)
        assert client.atomic_outcome(begun.id) == outcome
        with pytest.raises(TransactionNotInProgress) as caught:
            client.abort_atomic(begun.id)
        assert (caught.value.transaction, caught.value.state) == (begun.id, "committed")
        assert client.group_producer(group, "p").transaction == begun.id
        with pytest.raises(ConnectionFailed):  # it may have been done, and somebody may have committed since
            client.forget_group_producer(group, "p")
        assert client.abort_atomic(client.begin_atomic(group).id).state == "aborted"
        with Reader(topic, client=client, timeout=0) as reader:
            assert [message.payload for message in reader] == [b"0", b"1"]


def test_a_producer_of_a_group_is_forgotten_under_its_incarnation(client: Client, group: str) -> None:
    client.commit_atomic(uuid4().hex, CommitRequest(group, producer="p", sequence_id=7, incarnation="i"))
    with pytest.raises(ProducerFenced):
        client.forget_group_producer(group, "p", incarnation="new")
    client.forget_group_producer(group, "p", incarnation="i")
    with pytest.raises(GroupProducerNotFound):
        client.group_producer(group, "p")


def test_an_id_that_is_freed_is_as_if_it_had_never_been(client: Client, group: str) -> None:
    name = uuid4().hex
    client.commit_atomic(name, CommitRequest(group))
    client.free_atomic(name)
    with pytest.raises(TransactionNotFound):
        client.atomic_outcome(name)


# --- listings, and what is refused


def test_what_is_listed_beyond_one_page_is_listed_once(
    client: Client, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncelog.api.calls.PAGE", 2)
    pointers = [client.start_transaction().write_pointer for _ in range(5)]
    listed = [status.write_pointer for status in client.transactions()]
    assert (listed, set(pointers) - set(listed)) == (sorted(set(listed)), set())
    ids = [client.begin_atomic(group).id for _ in range(5)]
    client.begin_atomic(f"{group}-other")
    assert [each.id for each in client.atomic_transactions(group=group)] == ids
    assert set(ids) < {each.id for each in client.atomic_transactions()}
    for name in "caebd":
        client.open_subscription(topic, name)
    assert [each.name for each in client.subscriptions(topic)] == list("abcde")


Refused = tuple[type[Exception], Callable[[Client, str], object]]
REFUSED: list[Refused] = [
    *((InvalidRequest, lambda client, _, wrong=wrong: client.transaction_status(wrong)) for wrong in (0, -5, True, "5")),
    (InvalidRequest, lambda client, _: client.start_transaction("endless")),  # type: ignore[arg-type]
    (InvalidRequest, lambda client, _: client.start_transaction(timeout=-1)),
    (InvalidRequest, lambda client, _: client.can_commit(1, [], resource="")),
    (InvalidRequest, lambda client, topic: client.rollback(topic, PublishResponse([]))),
    (TransactionNotFound, lambda client, _: client.transaction_status(12345)),
    (ValueError, lambda client, _: client.prune_transactions(before=datetime(2026, 1, 1))),  # noqa: DTZ001  # without a time zone
    *(((InvalidRequest, lambda client, _, wrong=wrong: client.begin_atomic(timeout=wrong))) for wrong in (0, -1)),
    (InvalidRequest, lambda client, _: client.begin_atomic(timeout="soon")),  # type: ignore[arg-type]
    (InvalidRequest, lambda client, _: client.group_producer("..", "p")),
    (InvalidRequest, lambda client, _: client.forget_group_producer("g", "a/b")),
]
BY_ID: list[Callable[[Client, str, str], Any]] = [
    lambda client, _, id_: client.atomic_outcome(id_),
    lambda client, _, id_: client.abort_atomic(id_),
    lambda client, _, id_: client.free_atomic(id_),
    lambda client, _, id_: client.commit_atomic(id_, CommitRequest()),
    lambda client, topic, id_: client.stage(id_, topic, 0, PublishRequest([b"x"])),
]


@pytest.mark.parametrize(("error", "call"), REFUSED)
def test_what_makes_no_transaction_is_refused(client: Client, topic: str, error: type[Exception], call: Any) -> None:
    with pytest.raises(error):
        call(client, topic)


@pytest.mark.parametrize("call", BY_ID)
def test_an_id_that_is_none_or_that_nobody_began_is_refused(client: Client, topic: str, call: Any) -> None:
    with pytest.raises(TransactionNotFound):
        call(client, topic, uuid4().hex)
    for bad in ("", ".", "..", "a/b"):  # before anything is sent
        with pytest.raises(InvalidRequest):
            call(client, topic, bad)
