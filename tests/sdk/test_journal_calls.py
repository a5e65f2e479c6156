"""The calls that atomic commits are made of, against the real service; and when they are repeated."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from oncelog import Client, Reader
from oncelog.api import atomic as module
from oncelog.errors import (
    ChunkReused,
    ConnectionFailed,
    GroupProducerNotFound,
    InvalidRequest,
    InvalidResponse,
    ProducerFenced,
    TopicNotFound,
    TransactionExists,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog.wire.requests import CommitRequest, Part, PublishRequest
from tests.sdk.fakes import Answer, Request, fake_server, forward
from tests.support import RunningService


@pytest.fixture
def group() -> str:
    return f"g-{uuid4().hex}"


@pytest.fixture
def losing_first(house: RunningService, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client that never gets the first answer to a request."""
    monkeypatch.setattr("oncelog.api.retry.FIRST_SECONDS", 0.002)
    seen: set[tuple[str, str]] = set()

    def handle(request: Request) -> Answer | None:
        answer = forward(house.url, request)
        if (request.method, request.path) in seen:
            return answer
        seen.add((request.method, request.path))
        return None

    with fake_server(handle) as fake, Client(fake.url) as client:
        yield client


def payloads(client: Client, topic: str) -> list[bytes]:
    with Reader(topic, client=client, timeout=0) as reader:
        return [message.payload for message in reader]


def test_a_transaction_is_begun_staged_committed_and_asked_for(client: Client, topic: str, group: str) -> None:
    begun = client.begin_atomic(group, timeout=20)
    assert (begun.state, begun.group) == ("in_progress", group)
    assert begun.began_ms is not None
    assert begun.expires_ms is not None
    assert abs(begun.expires_ms - begun.began_ms - 20_000) < 10_000
    client.stage(begun.id, topic, 0, PublishRequest([b"0"]))
    assert payloads(client, topic) == []
    part = Part("default", topic, PublishRequest([b"1"]))
    outcome = client.commit_atomic(begun.id, CommitRequest(parts=[part]))
    assert (outcome.state, outcome.messages) == ("committed", 2)
    assert payloads(client, topic) == [b"0", b"1"]
    assert client.atomic_outcome(begun.id) == outcome == client.commit_atomic(begun.id, CommitRequest(parts=[part]))
    with pytest.raises(TransactionNotInProgress) as caught:
        client.abort_atomic(begun.id)
    assert (caught.value.transaction, caught.value.state) == (begun.id, "committed")


def test_what_is_aborted_is_dropped_and_cannot_be_committed_any_more(client: Client, topic: str, group: str) -> None:
    begun = client.begin_atomic(group)
    client.stage(begun.id, topic, 0, PublishRequest([b"0"]))
    assert client.abort_atomic(begun.id).state == client.abort_atomic(begun.id).state == "aborted"
    with pytest.raises(TransactionNotInProgress) as caught:
        client.commit_atomic(begun.id, CommitRequest())
    assert (caught.value.state, caught.value.reason) == ("aborted", "asked")
    assert payloads(client, topic) == []


def test_every_call_whose_answer_is_lost_is_repeated_and_is_as_once(
    losing_first: Client, client: Client, topic: str, group: str
) -> None:
    begun = losing_first.begin_atomic(group)
    assert [each.id for each in losing_first.atomic_transactions(group=group)] == [begun.id]
    losing_first.stage(begun.id, topic, 0, PublishRequest([b"0"]))
    request = CommitRequest(producer="p", sequence_id=0)
    assert losing_first.commit_atomic(begun.id, request).state == "committed"
    assert losing_first.atomic_outcome(begun.id).state == "committed"
    assert losing_first.group_producer(group, "p").transaction == begun.id
    with pytest.raises(ConnectionFailed):  # it may have been done, and somebody may have committed since
        losing_first.forget_group_producer(group, "p")
    assert payloads(client, topic) == [b"0"]
    other = losing_first.begin_atomic(group)
    assert losing_first.abort_atomic(other.id).state == "aborted"


def test_branches_are_committed_by_the_transaction_that_names_them(client: Client, topic: str, group: str) -> None:
    parent = uuid4().hex
    counted, dropped = (client.begin_atomic(group, of=parent) for _ in range(2))
    for branch in (counted, dropped):
        assert branch.of == parent
        client.stage(branch.id, topic, 0, PublishRequest([branch.id.encode()]))
    assert client.commit_atomic(parent, CommitRequest(group, branches=[counted.id])).branches == [counted.id]
    assert payloads(client, topic) == [counted.id.encode()]
    assert client.atomic_outcome(counted.id).of == parent


def test_the_ones_in_progress_are_listed_page_by_page(client: Client, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAGE", 2)
    ids = [client.begin_atomic(group).id for _ in range(5)]
    client.begin_atomic(f"{group}-other")
    assert [each.id for each in client.atomic_transactions(group=group)] == ids
    assert set(ids) < {each.id for each in client.atomic_transactions()}
    client.abort_atomic(ids[1])
    assert [each.id for each in client.atomic_transactions(group=group)] == [ids[0], *ids[2:]]


def test_a_producer_of_a_group_is_shown_and_forgotten(client: Client, group: str) -> None:
    with pytest.raises(GroupProducerNotFound):
        client.group_producer(group, "p")
    request = CommitRequest(group, producer="p", sequence_id=7, incarnation="i", checksum="c")
    first = client.commit_atomic(uuid4().hex, request)
    shown = client.group_producer(group, "p")
    assert (shown.group, shown.producer, shown.sequence_id, shown.incarnation) == (group, "p", 7, "i")
    assert (shown.transaction, shown.checksum) == (first.id, "c")
    again = client.commit_atomic(uuid4().hex, request)
    assert (again.state, again.original) == ("duplicate", first.id)
    client.forget_group_producer(group, "p")
    with pytest.raises(GroupProducerNotFound):
        client.forget_group_producer(group, "p")
    assert client.commit_atomic(uuid4().hex, request).state == "committed"


def test_what_the_service_refuses_is_raised_as_it_is(client: Client, topic: str, group: str) -> None:
    unknown = uuid4().hex
    for call in (
        lambda: client.atomic_outcome(unknown),
        lambda: client.abort_atomic(unknown),
        lambda: client.commit_atomic(unknown, CommitRequest()),
        lambda: client.stage(unknown, topic, 0, PublishRequest([b"x"])),
    ):
        with pytest.raises(TransactionNotFound):
            call()
    begun = client.begin_atomic(group)
    with pytest.raises(TransactionExists) as caught:
        client.begin_atomic(f"{group}-other", id=begun.id)
    assert caught.value.group == group
    client.stage(begun.id, topic, 0, PublishRequest([b"x"]))
    client.stage(begun.id, topic, 0, PublishRequest([b"x"]))
    with pytest.raises(ChunkReused):
        client.stage(begun.id, topic, 0, PublishRequest([b"y"]))
    with pytest.raises(TopicNotFound):
        client.stage(begun.id, "no-such-topic", 0, PublishRequest([b"x"]))


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b"])
def test_what_is_no_name_is_refused_before_anything_is_sent(client: Client, topic: str, bad: str) -> None:
    for call in (
        lambda: client.atomic_outcome(bad),
        lambda: client.abort_atomic(bad),
        lambda: client.commit_atomic(bad, CommitRequest()),
        lambda: client.stage(bad, topic, 0, PublishRequest([b"x"])),
        lambda: client.group_producer(bad, "p"),
        lambda: client.forget_group_producer("g", bad),
    ):
        with pytest.raises(InvalidRequest):
            call()


@pytest.mark.parametrize("timeout", [0, -1, "soon"])
def test_a_time_out_is_a_number_of_seconds(client: Client, timeout: float) -> None:
    with pytest.raises((InvalidRequest, TypeError)):
        client.begin_atomic(timeout=timeout)


def test_an_answer_that_is_no_outcome_is_not_taken_for_one() -> None:
    with fake_server(lambda _: Answer(body=b"[]")) as fake, Client(fake.url, retry=0) as client:
        for call in (lambda: client.begin_atomic(), lambda: client.commit_atomic("x", CommitRequest())):
            with pytest.raises(InvalidResponse) as caught:
                call()
            assert not caught.value.definite


def test_a_producer_is_forgotten_only_while_its_newest_commit_is_of_that_incarnation(
    client: Client, topic: str, group: str
) -> None:
    def commit(number: int, incarnation: str) -> None:
        part = Part("default", topic, PublishRequest([b"m"]))
        request = CommitRequest(group, [part], producer="p", sequence_id=number, incarnation=incarnation)
        client.commit_atomic(f"{group}-{number}-{incarnation}", request)

    commit(5, "old")
    with pytest.raises(ProducerFenced) as refused:
        client.forget_group_producer(group, "p", incarnation="new")
    assert refused.value.current_incarnation == "old"
    assert client.group_producer(group, "p").sequence_id == 5
    client.forget_group_producer(group, "p", incarnation="old")
    with pytest.raises(GroupProducerNotFound):
        client.forget_group_producer(group, "p", incarnation="old")
    commit(0, "new")
    assert client.group_producer(group, "p").incarnation == "new"
