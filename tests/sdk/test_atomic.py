"""Atomic commits through the SDK: what travels, and what is known when answers are lost. See test_sent_together too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, repeat
from typing import Any
from uuid import uuid4

import pytest

from oncelog import AtomicBatch, Client, MessageId, Producer
from oncelog.errors import (
    ConnectionFailed,
    InternalError,
    InvalidRequest,
    KeyInTransaction,
    OffsetMismatch,
    OncelogError,
    ProducerStopped,
    SequenceIdNotRising,
    TopicNotFound,
    TransactionClosed,
    TransactionInDoubt,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog.producing.cutting import REQUEST
from oncelog.transactions import atomic as module
from oncelog.wire.models import AtomicOutcome
from oncelog.wire.requests import TOPIC_WEIGHT, CommitRequest, PublishRequest
from tests.sdk.fakes import Answer, Fate, Request, meeting, problem
from tests.sdk.topics import payloads
from tests.world.service import RunningService


@pytest.fixture
def topics(client: Client) -> list[str]:
    names = [f"t-{uuid4().hex}" for _ in range(2)]
    for name in names:
        client.create_topic(name, {"check.expected.offsets": True})
    return names


UNCLEAR = problem(500, "internal_error", False)


def at_commits(*fates: Fate | Callable[[], Fate]) -> Callable[[Request], Fate]:
    """The fates of the first commits, one after the other; nothing happens to the other requests."""
    left = iter(fates)

    def fate(request: Request) -> Fate:
        met = next(left, None) if request.path.endswith("/commit") else None
        return met() if callable(met) else met

    return fate


def made(requests: list[Request]) -> list[str]:
    return [f"{request.method} {request.path.rsplit('/', 1)[-1]}" for request in requests]


def of(batch: AtomicBatch) -> AtomicOutcome:
    assert batch.outcome is not None
    return batch.outcome


# --- what travels


def test_a_small_commit_is_one_request(house: RunningService, client: Client, topics: list[str]) -> None:
    with meeting(house.url, at_commits()) as (through, requests), through.atomic("g", namespace="default") as batch:
        assert batch.outcome is None
        batch.send(topics[0], b"1", key="k", expected_key_offset=None)
        batch.send(topics[1], b"2", expected_offset=0, expected_last_id=MessageId.NONE)
        batch.send(topics[0], b"3", namespace="default")
        assert requests == []
    assert made(requests) == ["POST commit"]
    assert (of(batch).id, of(batch).group, of(batch).state, of(batch).messages) == (batch.id, "g", "committed", 3)
    assert client.atomic_outcome(batch.id) == of(batch)
    assert payloads(client, *topics) == [b"1", b"3", b"2"]


def test_of_many_topics_some_are_staged_so_that_the_commit_is_little_work(
    monkeypatch: pytest.MonkeyPatch, house: RunningService, client: Client, topics: list[str]
) -> None:
    monkeypatch.setattr(module, "MAX_CARRIED", TOPIC_WEIGHT + 1)
    with meeting(house.url, at_commits()) as (through, requests), through.atomic("g") as batch:
        for topic in topics:
            batch.send(topic, b"1")
    assert made(requests) == ["POST atomic", "PUT 0", "POST commit"]
    assert [payloads(client, topic) for topic in topics] == [[b"1"]] * 2


@pytest.mark.parametrize(
    ("buffer_bytes", "most", "sizes", "staged"),
    [
        (1_500, 5_000, [300] * 14, {"PUT 0": 2, "PUT 1": 2}),
        (1 << 20, 10, [2] * 25, {"PUT 0": 1, "PUT 1": 1}),
        (1 << 30, 5_000, [3_000_000] * 4, {"PUT 0": 2, "PUT 1": 1}),  # no request that nobody takes
    ],
    ids=["bytes", "messages", "a large buffer"],
)
def test_what_does_not_fit_is_staged_and_seen_only_when_everything_is(
    house: RunningService, client: Client, topics: list[str], monkeypatch: pytest.MonkeyPatch, buffer_bytes: int, most: int,
    sizes: list[int], staged: dict[str, int]
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "REQUEST", REQUEST._replace(messages=most))
    places = topics if most == 5_000 else topics[:1]
    sent = [(places[number % len(places)], b"%02d" % number * (size // 2)) for number, size in enumerate(sizes)]
    with meeting(house.url, at_commits()) as (through, requests):
        with through.atomic("g", buffer_bytes=buffer_bytes) as batch:
            for topic, value in sent:
                batch.send(topic, value)
                assert batch.buffered_bytes <= buffer_bytes
            assert payloads(client, *topics) == []
        first, *others, last = made(requests)
        assert (first, last, Counter(others)) == ("POST atomic", "POST commit", staged)
    assert payloads(client, *topics) == [value for topic in topics for to, value in sent if to == topic]


# --- back


def test_the_blocks_error_gets_out_even_if_the_service_cannot_be_told(house: RunningService, topics: list[str]) -> None:
    away = problem(503, "storage_unavailable")
    with meeting(house.url, lambda each: away if each.path.endswith("/abort") else None, retry=0.05) as (client, _):
        with pytest.raises(ZeroDivisionError) as caught, client.atomic("g", buffer_bytes=0) as batch:  # noqa: PT012
            batch.send(topics[0], b"never")
            raise ZeroDivisionError
        assert batch.id in caught.value.__notes__[0]
        with client.atomic("g", buffer_bytes=0) as other:
            other.send(topics[0], b"never")
            with pytest.raises(OncelogError):
                other.abort()


def test_one_whose_begin_was_lost_can_be_aborted(house: RunningService, topics: list[str]) -> None:
    with (
        meeting(house.url, lambda each: "request" if each.path.endswith("/atomic") else None, retry=0) as (client, _),
        client.atomic("g", buffer_bytes=0) as batch,
    ):
        with pytest.raises(ConnectionFailed):
            batch.send(topics[0], b"never")
        batch.abort()


@pytest.mark.parametrize("make", [Client.atomic, lambda client: client.atomic_branch("i")], ids=["atomic", "branch"])
def test_outside_of_its_block_it_takes_nothing_that_nobody_would_commit(client: Client, make: Callable[[Client], Any]) -> None:
    each = make(client)
    with pytest.raises(TransactionClosed, match="with block"):
        each.send("t", b"never")
    assert each.buffered_bytes == 0
    with each:
        each.abort()


def test_it_can_be_committed_and_aborted_by_hand_and_ends_once(client: Client, topics: list[str]) -> None:
    with client.atomic("g") as done:
        done.send(topics[0], b"1")
        assert done.commit() == done.outcome
    with client.atomic("g", buffer_bytes=0) as dropped:
        dropped.send(topics[0], b"never")
        dropped.abort()
    for ended in (done, dropped):
        for call in (lambda batch: batch.send(topics[0], b"late"), AtomicBatch.commit, AtomicBatch.abort):
            with pytest.raises(TransactionClosed):
                call(ended)
    assert payloads(client, topics[0]) == [b"1"]


def test_a_commit_that_waited_until_its_time_was_over_says_for_what(house: RunningService, topics: list[str]) -> None:
    held = problem(409, "key_in_transaction", key="k", write_pointer=7)
    over = problem(409, "transaction_not_in_progress", state="aborted", reason="timed_out")
    with (
        meeting(house.url, at_commits(held, over)) as (through, _),
        pytest.raises(TransactionNotInProgress, match=r"a planted transaction_not.*a planted key_in_transaction") as caught,
        through.atomic("g") as batch,
    ):
        batch.send(topics[0], b"never")
    cause = caught.value.__cause__
    assert isinstance(cause, KeyInTransaction)
    assert cause.write_pointer == 7
    assert (caught.value.reason, caught.value.definite) == ("timed_out", True)


# --- losses on the way


@pytest.mark.parametrize("first", ["answer", "request"])
@pytest.mark.parametrize("then", ["request", UNCLEAR], ids=["silence", "a refusal, and silence"])
def test_a_commit_without_an_answer_is_in_doubt_and_its_outcome_can_be_asked_for(
    house: RunningService, client: Client, topics: list[str], first: str, then: Fate
) -> None:
    fates = chain([first, then], repeat("request"))
    with (
        meeting(house.url, lambda _: next(fates), retry=0.05) as (through, _),
        Producer(topics[0], url=house.url, name="p") as producer,
    ):
        batch = AtomicBatch(through, "g", delivery_timeout=0.1).__enter__()
        batch.send(topics[0], b"1", producer=producer)
        with pytest.raises(TransactionInDoubt) as caught:
            batch.commit()
        assert (caught.value.transaction, caught.value.definite, batch.outcome) == (batch.id, False, None)
        with pytest.raises(ProducerStopped):
            producer.send(b"2")
        with pytest.raises(TransactionClosed):
            batch.commit()
    if first == "answer":
        assert client.atomic_outcome(batch.id).state == "committed"
    else:
        with pytest.raises(TransactionNotFound):
            client.atomic_outcome(batch.id)
    assert payloads(client, topics[0]) == [b"1"] * (first == "answer")


@pytest.mark.parametrize("answer", [UNCLEAR, problem(404, "topic_not_found"), Answer(body=b"?")])
def test_a_refusal_behind_a_commit_that_got_through_is_not_believed(
    house: RunningService, client: Client, topics: list[str], answer: Answer
) -> None:
    with meeting(house.url, at_commits("answer", answer)) as (through, _):
        with through.atomic("g", buffer_bytes=0) as staged:
            staged.send(topics[0], b"1")
        assert of(staged) == client.atomic_outcome(staged.id)
    assert payloads(client, topics[0]) == [b"1"]


def test_a_refusal_behind_a_commit_that_did_not_get_through_is_made_final(
    house: RunningService, client: Client, topics: list[str]
) -> None:
    with (
        meeting(house.url, at_commits("request", UNCLEAR)) as (through, _),
        Producer(topics[0], url=house.url, name="p") as producer,
    ):
        with pytest.raises(InternalError) as caught, through.atomic("g") as batch:
            batch.send(topics[0], b"never", producer=producer)
        assert caught.value.definite
        assert producer.send(b"1").sequence_id == 0
        with pytest.raises(TransactionNotInProgress):  # what may still be on its way
            client.commit_atomic(batch.id, CommitRequest("g"))
    assert payloads(client, topics[0]) == [b"1"]


@pytest.mark.parametrize("carried", [[b"carried"], []])
def test_a_commit_that_another_one_overtook_got_through_only_if_it_carried_nothing(
    house: RunningService, client: Client, topics: list[str], carried: list[bytes]
) -> None:
    chosen, other = client.begin_atomic("g").id, uuid4().hex
    client.stage(chosen, topics[0], 0, PublishRequest([b"staged"]))

    def overtake() -> Answer:
        client.commit_atomic(other, CommitRequest("g", branches=[chosen]))
        return UNCLEAR

    with meeting(house.url, at_commits(overtake)) as (through, _):
        batch = AtomicBatch(through, "g", id=chosen).__enter__()
        for payload in carried:
            batch.send(topics[0], payload)
        if carried:
            with pytest.raises(InternalError) as caught:
                batch.commit()
            assert caught.value.definite
        else:
            assert batch.commit().of == other
    assert payloads(client, topics[0]) == [b"staged"]


# --- once


# --- producers


@pytest.mark.parametrize("end", ["refused", "duplicate"])
def test_the_numbers_of_what_was_not_committed_are_unused(client: Client, topics: list[str], end: str) -> None:
    group = f"g-{uuid4().hex}"
    with client.atomic(group, producer="sink", sequence_id=0):
        pass
    numbered: dict[str, Any] = {"producer": "sink", "sequence_id": 0} if end == "duplicate" else {}
    with Producer(topics[0], client=client, name="p", gaps="refuse") as producer:
        with suppress(OffsetMismatch), client.atomic(group, **numbered) as batch:
            batch.send(topics[0], b"never", producer=producer, expected_offset=5 if end == "refused" else None)
        assert (batch.outcome is None) is (end == "refused")
        assert producer.send(b"0").sequence_id == 0
    assert payloads(client, topics[0]) == [b"0"]


@pytest.mark.parametrize("buffer_bytes", [1 << 20, 0])
@pytest.mark.parametrize("name", ["p", None], ids=["named", "without a name"])
def test_a_process_that_comes_again_under_its_id_is_answered_and_its_producer_goes_on(
    client: Client, topics: list[str], name: str | None, buffer_bytes: int
) -> None:
    """Its producer took the numbers for used that it had given in vain: the next message left a gap. One whose name the service
    assigned had another name this time, and was refused."""
    outcomes, committed = [], f"job-{uuid4().hex}"
    for life in range(2):
        with Producer(topics[0], client=client, name=name, gaps="refuse") as producer:
            with client.atomic(id=committed, buffer_bytes=buffer_bytes) as batch:
                for payload in (b"1", b"2"):
                    batch.send(topics[0], payload, producer=producer)
            outcomes.append(of(batch))
            before = producer.last_sequence_id
            assert producer.send(b"%d" % (3 + life)).sequence_id == (0 if before is None else before + 1)
    assert outcomes[0] == outcomes[1]
    assert payloads(client, topics[0]) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    "options",
    [{"id": "a b"}, {"id": ""}, {"id": ".."}, {"group": "a/b"}, {"producer": "p"}, {"sequence_id": 1}],
)
def test_what_cannot_be_committed_is_refused_at_once(client: Client, options: dict[str, Any]) -> None:
    with pytest.raises((InvalidRequest, ValueError)):
        client.atomic(**options)


def test_messages_under_a_name_bring_their_numbers_which_rise_on_each_topic(client: Client, topics: list[str]) -> None:
    with client.atomic("g") as batch:
        batch.send(topics[0], b"5", producer="p", sequence_id=5)
        for error, given in (
            (ValueError, {}),
            (SequenceIdNotRising, {"sequence_id": 5}),
            (InvalidRequest, {"sequence_id": -1}),
            (InvalidRequest, {"sequence_id": 6, "expected_key_offset": 1}),
        ):
            with pytest.raises(error):
                batch.send(topics[0], b"x", producer="p", **given)  # type: ignore[arg-type]
        batch.send(topics[1], b"5", producer="p", sequence_id=5)
        batch.send(topics[0], b"6", producer="p", sequence_id=6)
    assert payloads(client, *topics) == [b"5", b"6", b"5"]
    assert client.producer(topics[0], "p").last_persisted == 6


# --- branches


@pytest.mark.usefixtures("twin")
def test_the_branches_that_a_commit_names_are_committed_behind_it_in_their_order(client: Client, topics: list[str]) -> None:
    named: list[str] = []
    with client.atomic("g", branches=(each for each in named)) as batch:
        branches = []
        for number in range(4):
            with client.atomic_branch(batch.id, "g") as branch:
                for topic in topics if number < 3 else ():
                    branch.send(topic, b"branch %d" % number, producer=f"p{number}", sequence_id=0)
            assert client.atomic_outcome(branch.id).state == "in_progress"
            branches.append(branch.id)
        named += [branches[2], branches[3], branches[0]]
        batch.send(topics[0], b"own")
        assert payloads(client, topics[0]) == []
    assert payloads(client, topics[0]) == [b"own", b"branch 2", b"branch 0"]
    assert payloads(client, topics[1]) == [b"branch 2", b"branch 0"]
    assert of(batch).branches == named
    assert client.atomic_outcome(branches[0]).of == batch.id


@pytest.mark.usefixtures("twin")
def test_a_branch_that_raises_or_cannot_be_staged_is_aborted_and_none_takes_a_producer(client: Client, topics: list[str]) -> None:
    """What becomes of the branch, its producer would never learn."""
    with pytest.raises(ZeroDivisionError), client.atomic_branch("parent", buffer_bytes=0) as branch:  # noqa: PT012
        branch.send(topics[0], b"never")
        raise ZeroDivisionError
    with pytest.raises(TopicNotFound), client.atomic_branch("parent") as other:
        other.send("no-such-topic", b"never")
    assert client.atomic_outcome(branch.id).state == client.atomic_outcome(other.id).state == "aborted"
    with pytest.raises(TransactionClosed):
        other.stage()
    with Producer(topics[0], client=client, name="p") as producer:
        with client.atomic_branch("parent") as branch, pytest.raises(ValueError, match="branch"):
            branch.send(topics[0], b"x", producer=producer)
        assert producer.send(b"0").sequence_id == 0
