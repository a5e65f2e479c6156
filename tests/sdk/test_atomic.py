"""Atomic commits through the SDK: what travels, what is undone, and what is known when answers are lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from oncelog import AtomicBatch, Client, MessageId, Producer, Reader
from oncelog.errors import (
    BranchGone,
    InternalError,
    InvalidRequest,
    OffsetMismatch,
    OncelogError,
    ProducerFenced,
    ProducerInTransaction,
    ProducerStopped,
    SequenceIdNotRising,
    TopicNotFound,
    TransactionClosed,
    TransactionInDoubt,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog.transactions import atomic as module
from oncelog.wire.models import AtomicOutcome
from oncelog.wire.requests import CommitRequest, PublishRequest
from tests.patience import PATIENCE
from tests.sdk.fakes import Answer, Request, fake_server, forward, problem
from tests.support import RunningService

Reply = Callable[[Request], Answer | None]


@pytest.fixture
def topics(client: Client) -> list[str]:
    names = [f"t-{uuid4().hex}" for _ in range(2)]
    for name in names:
        client.create_topic(name, {"check.expected.offsets": True})
    return names


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.api.retry.FIRST_SECONDS", 0.002)
    monkeypatch.setattr("oncelog.api.retry.LONGEST_SECONDS", 0.05)


@contextmanager
def watched(house: RunningService, commits: list[Reply] | None = None) -> Iterator[tuple[Client, list[str]]]:
    """A client and the calls that it makes; ``commits``: what is done with the first commits instead of answering them."""
    calls: list[str] = []
    faults = iter(commits or [])

    def handle(request: Request) -> Answer | None:
        calls.append(f"{request.method} {request.path.rsplit('/', 1)[-1]}")
        fault = next(faults, None) if request.path.endswith("/commit") else None
        return forward(house.url, request) if fault is None else fault(request)

    with fake_server(handle) as fake, Client(fake.url, retry=0.3) as client:
        yield client, calls


def lost_request(_: Request) -> None:
    return None


def lost_answer(house: RunningService) -> Reply:
    def lose(request: Request) -> None:
        forward(house.url, request)

    return lose


def payloads(client: Client, topic: str) -> list[bytes]:
    with Reader(topic, client=client, timeout=0) as reader:
        messages = list(reader)
    assert [message.offset for message in messages] == list(range(len(messages)))
    return [message.payload for message in messages]


def of(batch: AtomicBatch) -> AtomicOutcome:
    assert batch.outcome is not None
    return batch.outcome


# --- what travels


def test_a_small_commit_is_one_request(house: RunningService, client: Client, topics: list[str]) -> None:
    with watched(house) as (through, calls), through.atomic("g", namespace="default") as batch:
        assert batch.outcome is None
        batch.send(topics[0], b"1", key="k", expected_key_offset=None, properties={"a": "b"}, ttl=60)
        batch.send(topics[1], b"2", expected_offset=0, expected_last_id=MessageId.NONE)
        batch.send(topics[0], b"3", namespace="default")
        assert calls == []
    assert calls == ["POST commit"]
    assert (of(batch).id, of(batch).group, of(batch).state, of(batch).messages) == (batch.id, "g", "committed", 3)
    assert client.atomic_outcome(batch.id) == of(batch)
    assert (payloads(client, topics[0]), payloads(client, topics[1])) == ([b"1", b"3"], [b"2"])
    with Reader(topics[0], client=client, timeout=0) as reader:
        message = reader.read()[0]
    assert (message.key, message.properties, message.ttl) == (b"k", {"a": "b"}, 60)


def test_a_commit_of_nothing_has_an_outcome_too(client: Client) -> None:
    with client.atomic() as batch:
        pass
    assert (of(batch).state, of(batch).messages) == ("committed", 0)


def test_what_exceeds_the_buffer_is_staged_and_seen_only_when_everything_is(
    house: RunningService, client: Client, topics: list[str]
) -> None:
    with watched(house) as (through, calls):
        with through.atomic("g", buffer_bytes=2_000) as batch:
            for number in range(20):
                batch.send(topics[number % 2], b"%d" % number * 100)
                assert batch.buffered_bytes <= 2_000
            assert payloads(client, topics[0]) == payloads(client, topics[1]) == []
            assert [each.id for each in client.atomic_transactions()] == [batch.id]
        assert calls[0] == "POST journal"
        assert calls[1:-1] == [f"PUT {number // 2}" for number in range(len(calls) - 2)]
        assert calls[-1] == "POST commit"
        assert len(calls) > 4
    for at, topic in enumerate(topics):
        assert payloads(client, topic) == [b"%d" % number * 100 for number in range(at, 20, 2)]


def test_more_messages_than_a_request_takes_are_staged(
    house: RunningService, client: Client, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_MESSAGES", 10)
    with watched(house) as (through, calls), through.atomic("g") as batch:
        for number in range(25):
            batch.send(topics[0], b"%d" % number)
    assert calls == ["POST journal", "PUT 0", "PUT 1", "POST commit"]
    assert payloads(client, topics[0]) == [b"%d" % number for number in range(25)]


def test_a_large_buffer_does_not_make_a_request_that_nobody_takes(
    house: RunningService, client: Client, topics: list[str]
) -> None:
    with watched(house) as (through, calls), through.atomic("g", buffer_bytes=1 << 30) as batch:
        for number in range(4):
            batch.send(topics[number % 2], b"%d" % number * 3_000_000)
        assert calls == []
    assert calls == ["POST journal", "PUT 0", "PUT 0", "PUT 1", "POST commit"]
    assert [len(payloads(client, topic)) for topic in topics] == [2, 2]


def test_messages_that_cannot_share_a_request_keep_their_order(house: RunningService, client: Client, topics: list[str]) -> None:
    topic = topics[0]
    with watched(house) as (through, calls), through.atomic("g") as batch:
        batch.send(topic, b"0")
        batch.send(topic, b"1", producer="p", sequence_id=4)
        batch.send(topic, b"2", producer="p", sequence_id=9)
        batch.send(topic, b"3", producer="q", sequence_id=0, expected_offset=3)
        batch.send(topic, b"4", expected_offset=4)
        batch.send(topic, b"5", key="k", expected_key_offset=None)
        batch.send(topic, b"6", key="k", expected_key_offset=5)
    assert calls == ["POST journal", "PUT 0", "PUT 1", "PUT 2", "PUT 3", "POST commit"]
    assert payloads(client, topic) == [b"%d" % number for number in range(7)]
    assert client.producer(topic, "p").last_persisted == 9


def test_threads_may_send_through_one_batch(client: Client, topics: list[str]) -> None:
    with client.atomic("g", buffer_bytes=3_000) as batch:

        def send(thread: int) -> None:
            for number in range(50):
                batch.send(topics[number % 2], b"%d %d" % (thread, number))

        threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(PATIENCE)
    found = payloads(client, topics[0]) + payloads(client, topics[1])
    assert sorted(found) == sorted(b"%d %d" % (thread, number) for thread in range(4) for number in range(50))
    for thread in range(4):
        mine = [payload for payload in payloads(client, topics[1]) if payload.startswith(b"%d " % thread)]
        assert mine == [b"%d %d" % (thread, number) for number in range(1, 50, 2)]


# --- back


@pytest.mark.parametrize(("buffer_bytes", "made"), [(1 << 20, []), (0, ["POST journal", "PUT 0", "POST abort"])])
def test_a_block_that_raises_leaves_nothing_behind(
    house: RunningService, client: Client, topics: list[str], buffer_bytes: int, made: list[str]
) -> None:
    with watched(house) as (through, calls):
        with pytest.raises(ZeroDivisionError), through.atomic("g", buffer_bytes=buffer_bytes) as batch:  # noqa: PT012
            batch.send(topics[0], b"never")
            raise ZeroDivisionError
        assert calls == made
        if made:
            assert (client.atomic_outcome(batch.id).state, client.atomic_outcome(batch.id).reason) == ("aborted", "asked")
        assert batch.outcome is None
    assert payloads(client, topics[0]) == []


def test_the_blocks_error_gets_out_even_if_the_service_cannot_be_told(house: RunningService, topics: list[str]) -> None:
    def no_abort(request: Request) -> Answer:
        return problem(503, "storage_unavailable") if request.path.endswith("/abort") else forward(house.url, request)

    with fake_server(no_abort) as fake, Client(fake.url, retry=0.05) as client:
        with pytest.raises(ZeroDivisionError) as caught, client.atomic("g", buffer_bytes=0) as batch:  # noqa: PT012
            batch.send(topics[0], b"never")
            raise ZeroDivisionError
        assert batch.id in caught.value.__notes__[0]
        other = client.atomic("g", buffer_bytes=0)
        other.send(topics[0], b"never")
        with pytest.raises(OncelogError):
            other.abort()


def test_it_can_be_committed_and_aborted_by_hand_and_ends_once(client: Client, topics: list[str]) -> None:
    with client.atomic("g") as done:
        done.send(topics[0], b"1")
        assert done.commit() == done.outcome
    with client.atomic("g", buffer_bytes=0) as dropped:
        dropped.send(topics[0], b"never")
        dropped.abort()
    assert client.atomic_outcome(dropped.id).state == "aborted"
    for ended in (done, dropped):
        for call in (lambda batch: batch.send(topics[0], b"late"), AtomicBatch.commit, AtomicBatch.abort):
            with pytest.raises(TransactionClosed):
                call(ended)
    assert payloads(client, topics[0]) == [b"1"]


def test_a_message_that_cannot_be_staged_spoils_everything(client: Client, topics: list[str]) -> None:
    batch = client.atomic("g", buffer_bytes=0)
    batch.send(topics[0], b"never")
    with pytest.raises(TopicNotFound):
        batch.send("no-such-topic", b"x")
    with pytest.raises(TransactionClosed) as caught:
        batch.send(topics[0], b"never")
    assert isinstance(caught.value.__cause__, TopicNotFound)
    with pytest.raises(TransactionClosed):
        batch.commit()
    assert client.atomic_outcome(batch.id).state == "aborted"
    assert payloads(client, topics[0]) == []


def test_a_refusal_is_raised_as_it_is_and_nothing_is_committed_anywhere(client: Client, topics: list[str]) -> None:
    with pytest.raises(OffsetMismatch) as caught, client.atomic("g") as batch:  # noqa: PT012
        batch.send(topics[0], b"never")
        batch.send(topics[1], b"never", expected_offset=7)
    assert (caught.value.expected, caught.value.actual, caught.value.topic) == (7, 0, f"default/{topics[1]}")
    assert caught.value.definite
    assert batch.outcome is None
    assert client.atomic_outcome(batch.id).reason == "offset_mismatch"
    assert payloads(client, topics[0]) == payloads(client, topics[1]) == []


def test_a_branch_that_is_gone_leaves_it_to_be_committed_again_under_the_same_id(client: Client, topics: list[str]) -> None:
    with pytest.raises(BranchGone), client.atomic("g", branches=["gone"], buffer_bytes=0) as batch:
        batch.send(topics[0], b"1")
    with client.atomic("g", id=batch.id, buffer_bytes=0) as again:
        again.send(topics[0], b"1")
    assert of(again).state == "committed"
    assert payloads(client, topics[0]) == [b"1"]


# --- losses on the way


def test_a_commit_is_repeated_under_its_id_and_is_as_once(house: RunningService, client: Client, topics: list[str]) -> None:
    faults = [lost_request, lambda _: problem(503, "storage_unavailable"), lost_answer(house)]
    with watched(house, faults) as (through, calls), through.atomic("g") as batch:
        through._retry = 0.0  # the commit is tried for longer than other calls
        batch.send(topics[0], b"1")
        batch.send(topics[1], b"2", expected_offset=0)
    assert calls == ["POST commit"] * 4
    assert of(batch).state == "committed"
    assert (payloads(client, topics[0]), payloads(client, topics[1])) == ([b"1"], [b"2"])


@pytest.mark.parametrize("got_through", [True, False])
def test_a_commit_without_an_answer_is_in_doubt_and_its_outcome_can_be_asked_for(
    house: RunningService, client: Client, topics: list[str], got_through: bool
) -> None:
    faults: list[Reply] = [lost_answer(house) if got_through else lost_request] + [lost_request] * 1_000
    with watched(house, faults) as (through, _), Producer(topics[0], url=house.url, name="p") as producer:
        batch = AtomicBatch(through, "g", delivery_timeout=0.1)
        batch.send(topics[0], b"1", producer=producer)
        with pytest.raises(TransactionInDoubt) as caught:
            batch.commit()
        assert (caught.value.transaction, caught.value.definite, batch.outcome) == (batch.id, False, None)
        with pytest.raises(ProducerStopped):
            producer.send(b"2")
        with pytest.raises(TransactionClosed):
            batch.commit()
    if got_through:
        assert client.atomic_outcome(batch.id).state == "committed"
        assert payloads(client, topics[0]) == [b"1"]
    else:
        with pytest.raises(TransactionNotFound):
            client.atomic_outcome(batch.id)


@pytest.mark.parametrize("answer", [problem(500, "internal_error", False), problem(404, "topic_not_found"), Answer(body=b"?")])
def test_a_refusal_behind_a_commit_that_got_through_is_not_believed(
    house: RunningService, client: Client, topics: list[str], answer: Answer
) -> None:
    with watched(house, [lost_answer(house), lambda _: answer]) as (through, _):
        with through.atomic("g", buffer_bytes=0) as staged:
            staged.send(topics[0], b"1")
        assert of(staged) == client.atomic_outcome(staged.id)
    assert payloads(client, topics[0]) == [b"1"]


def test_a_refusal_behind_a_commit_that_did_not_get_through_is_made_final(
    house: RunningService, client: Client, topics: list[str]
) -> None:
    with watched(house, [lost_request, lambda _: problem(500, "internal_error", False)]) as (through, _):
        with Producer(topics[0], url=house.url, name="p") as producer:
            with pytest.raises(InternalError) as caught, through.atomic("g") as batch:
                batch.send(topics[0], b"never", producer=producer)
            assert caught.value.definite
            assert producer.send(b"1").sequence_id == 0
        assert client.atomic_outcome(batch.id).state == "aborted"
        with pytest.raises(TransactionNotInProgress):  # what may still be on its way
            client.commit_atomic(batch.id, CommitRequest("g"))
    assert payloads(client, topics[0]) == [b"1"]


@pytest.mark.parametrize("carried", [[b"carried"], []])
def test_a_commit_that_another_one_overtook_got_through_only_if_it_carried_nothing(
    house: RunningService, client: Client, topics: list[str], carried: list[bytes]
) -> None:
    chosen, other = client.begin_atomic("g").id, uuid4().hex
    client.stage(chosen, topics[0], 0, PublishRequest([b"staged"]))

    def overtake(_: Request) -> Answer:
        client.commit_atomic(other, CommitRequest("g", branches=[chosen]))
        return problem(500, "internal_error", False)

    with watched(house, [overtake]) as (through, _):
        batch = AtomicBatch(through, "g", id=chosen)
        for payload in carried:
            batch.send(topics[0], payload)
        if carried:
            with pytest.raises(InternalError) as caught:
                batch.commit()
            assert caught.value.definite
        else:
            assert batch.commit().of == other
    assert payloads(client, topics[0]) == [b"staged"]


def test_a_refusal_of_which_nothing_more_can_be_learned_is_a_doubt(house: RunningService, topics: list[str]) -> None:
    def away(request: Request) -> Answer | None:
        return problem(500, "internal_error", False) if request.path.endswith("/commit") else None

    with fake_server(away) as fake, Client(fake.url, retry=0.05) as client:
        with pytest.raises(TransactionInDoubt) as caught, client.atomic("g") as batch:
            batch.send(topics[0], b"x")
        assert caught.value.transaction == batch.id
        assert isinstance(caught.value.__cause__, InternalError)


def test_ctrl_c_while_it_is_committed_leaves_it_in_doubt(house: RunningService, client: Client, topics: list[str]) -> None:
    class Interrupted(Client):
        def commit_atomic(self, id: str, request: CommitRequest, *, retry: float | None = None) -> AtomicOutcome:  # noqa: A002
            super().commit_atomic(id, request, retry=retry)
            raise KeyboardInterrupt

    with Interrupted(house.url) as through, Producer(topics[0], url=house.url, name="p") as producer:
        with pytest.raises(KeyboardInterrupt), through.atomic("g") as batch:
            batch.send(topics[0], b"1", producer=producer)
        with pytest.raises(ProducerStopped):
            producer.send(b"2")
    assert client.atomic_outcome(batch.id).state == "committed"


# --- once


@pytest.mark.parametrize("buffer_bytes", [1 << 20, 0])
def test_the_same_id_again_commits_nothing_twice(client: Client, topics: list[str], buffer_bytes: int) -> None:
    chosen = uuid4().hex
    outcomes = []
    for _ in range(2):
        with client.atomic("g", id=chosen, buffer_bytes=buffer_bytes) as batch:
            batch.send(topics[0], b"1")
            batch.send(topics[1], b"2")
        outcomes.append(of(batch))
    assert outcomes[0] == outcomes[1]
    assert (payloads(client, topics[0]), payloads(client, topics[1])) == ([b"1"], [b"2"])


def test_an_id_that_was_aborted_is_refused_when_something_is_staged_under_it(client: Client, topics: list[str]) -> None:
    chosen = client.begin_atomic("g").id
    client.abort_atomic(chosen)
    with pytest.raises(TransactionNotInProgress) as caught, client.atomic("g", id=chosen, buffer_bytes=0) as batch:
        batch.send(topics[0], b"1")
    assert (caught.value.state, caught.value.reason) == ("aborted", "asked")


def test_a_numbered_commit_is_deduplicated_as_a_whole(client: Client, topics: list[str]) -> None:
    group = f"g-{uuid4().hex}"
    batches = []
    for _ in range(2):
        with client.atomic(group, producer="sink", sequence_id=3, incarnation="i", checksum="c") as batch:
            batch.send(topics[0], b"1")
        batches.append(of(batch))
    assert [each.state for each in batches] == ["committed", "duplicate"]
    assert (batches[1].original, batches[1].checksum, batches[1].committed) == (batches[0].id, "c", True)
    with pytest.raises(ProducerFenced) as caught, client.atomic(group, producer="sink", sequence_id=4, incarnation="j"):
        pass
    assert (caught.value.incarnation, caught.value.current_incarnation) == ("j", "i")
    assert client.group_producer(group, "sink").sequence_id == 3
    assert payloads(client, topics[0]) == [b"1"]


# --- producers


def test_a_producer_numbers_the_messages_and_goes_on_behind_them(client: Client, topics: list[str]) -> None:
    with Producer(topics[0], client=client, name="p", gaps="refuse") as producer, Producer(topics[1], client=client) as other:
        producer.send_async(b"0")
        with client.atomic("g") as batch:
            batch.send(topics[0], b"1", producer=producer)
            batch.send(topics[1], b"0", producer=other)
            with pytest.raises(ProducerInTransaction, match=batch.id):
                producer.send(b"not now")
            batch.send(topics[0], b"2", producer=producer)
        assert producer.last_sequence_id == 2
        assert producer.last_message_id is None
        assert producer.send(b"3").sequence_id == 3
    assert payloads(client, topics[0]) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("end", ["abort", "raise", "refused", "duplicate"])
def test_the_numbers_of_what_was_not_committed_are_unused(client: Client, topics: list[str], end: str) -> None:
    group = f"g-{uuid4().hex}"
    with client.atomic(group, producer="sink", sequence_id=0):
        pass
    numbered: dict[str, Any] = {"producer": "sink", "sequence_id": 0} if end == "duplicate" else {}
    with Producer(topics[0], client=client, name="p", gaps="refuse") as producer:
        try:
            with client.atomic(group, **numbered) as batch:
                batch.send(topics[0], b"never", producer=producer, expected_offset=5 if end == "refused" else None)
                if end == "abort":
                    batch.abort()
                if end == "raise":
                    raise ZeroDivisionError
        except (ZeroDivisionError, OffsetMismatch):
            pass
        assert producer.send(b"0").sequence_id == 0
    assert payloads(client, topics[0]) == [b"0"]


@pytest.mark.parametrize("name", ["p", None], ids=["named", "without a name"])
def test_a_process_that_comes_again_under_its_id_is_answered_and_its_producer_goes_on(
    client: Client, topics: list[str], name: str | None
) -> None:
    """Its producer took the numbers for used that it had given in vain: the next message left a gap. One whose name the service
    assigned had another name this time, and was refused."""
    committed = f"job-{uuid4().hex}"
    for life in range(2):
        with Producer(topics[0], client=client, name=name, gaps="refuse") as producer:
            with client.atomic(id=committed) as batch:
                batch.send(topics[0], b"1", producer=producer)
                batch.send(topics[0], b"2", producer=producer)
            assert (batch.outcome and batch.outcome.state) == "committed"
            before = producer.last_sequence_id
            receipt = producer.send(b"%d" % (3 + life))
            assert receipt.sequence_id == (0 if before is None else before + 1)
    assert payloads(client, topics[0]) == [b"1", b"2", b"3", b"4"]


def test_a_producer_by_its_name_is_numbered_by_the_caller(client: Client, topics: list[str]) -> None:
    with client.atomic("g") as batch:
        batch.send(topics[0], b"5", producer="p", sequence_id=5)
        with pytest.raises(ValueError, match="sequence_id"):
            batch.send(topics[0], b"x", producer="p")
        with pytest.raises(ValueError, match="producer"):
            batch.send(topics[0], b"x", sequence_id=6)
        for again in (5, 4):
            with pytest.raises(SequenceIdNotRising):
                batch.send(topics[0], b"x", producer="p", sequence_id=again)
        with pytest.raises(InvalidRequest):
            batch.send(topics[0], b"x", producer="p", sequence_id=-1)
        batch.send(topics[1], b"5", producer="p", sequence_id=5)
        batch.send(topics[0], b"6", producer="p", sequence_id=6)
    assert (payloads(client, topics[0]), payloads(client, topics[1])) == ([b"5", b"6"], [b"5"])
    with Producer(topics[0], client=client, name="p") as producer:
        assert producer.last_sequence_id == 6


@pytest.mark.parametrize(
    "options",
    [{"id": "a b"}, {"id": ""}, {"id": ".."}, {"group": "a/b"}, {"producer": "p"}, {"sequence_id": 1}, {"buffer_bytes": -1}],
)
def test_what_cannot_be_committed_is_refused_at_once(client: Client, options: dict[str, Any]) -> None:
    with pytest.raises((InvalidRequest, ValueError)):
        client.atomic(**options)


def test_a_message_that_cannot_be_sent_harms_no_other(client: Client, topics: list[str]) -> None:
    with client.atomic("g") as batch:
        for value, options, error in (
            ("text", {}, TypeError),
            (b"x", {"key": 5}, TypeError),
            (b"x", {"ttl": 0}, InvalidRequest),
            (b"x", {"expected_key_offset": 1}, InvalidRequest),
        ):
            with pytest.raises(error):
                batch.send(topics[0], value, **options)  # type: ignore[arg-type]
        batch.send(topics[0], b"1")
    assert payloads(client, topics[0]) == [b"1"]


# --- branches


def test_the_branches_that_a_commit_names_are_committed_behind_it_in_their_order(client: Client, topics: list[str]) -> None:
    named: list[str] = []
    with client.atomic("g", branches=named) as batch:
        branches = []
        for number in range(3):
            with client.atomic_branch(batch.id, "g") as branch:
                branch.send(topics[0], b"branch %d" % number, producer=f"p{number}", sequence_id=0)
                branch.send(topics[1], b"branch %d" % number)
            branches.append(branch.id)
        named += [branches[2], branches[0]]
        batch.send(topics[0], b"own")
        assert payloads(client, topics[0]) == []
    assert payloads(client, topics[0]) == [b"own", b"branch 2", b"branch 0"]
    assert payloads(client, topics[1]) == [b"branch 2", b"branch 0"]
    assert client.atomic_outcome(branches[0]).of == batch.id


def test_a_branch_without_messages_can_be_named_too(client: Client) -> None:
    parent = uuid4().hex
    with client.atomic_branch(parent) as branch:
        pass
    assert client.atomic_outcome(branch.id).state == "in_progress"
    with client.atomic(id=parent, branches=(each for each in [branch.id])) as batch:
        pass
    assert of(batch).branches == [branch.id]


def test_a_branch_whose_id_was_aborted_is_refused_even_without_messages(client: Client) -> None:
    chosen = client.begin_atomic("g", of="parent").id
    client.abort_atomic(chosen)
    with pytest.raises(TransactionNotInProgress), client.atomic_branch("parent", "g", id=chosen):
        pass


def test_a_branch_that_raises_is_aborted_and_one_that_cannot_be_staged_too(client: Client, topics: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), client.atomic_branch("parent", buffer_bytes=0) as branch:  # noqa: PT012
        branch.send(topics[0], b"never")
        raise ZeroDivisionError
    assert client.atomic_outcome(branch.id).state == "aborted"
    with pytest.raises(TopicNotFound), client.atomic_branch("parent") as other:
        other.send("no-such-topic", b"never")
    assert client.atomic_outcome(other.id).state == "aborted"
    with pytest.raises(TransactionClosed):
        other.stage()


def test_a_branch_takes_no_open_producer_since_that_would_never_learn_what_became_of_it(
    client: Client, topics: list[str]
) -> None:
    with Producer(topics[0], client=client, name="p") as producer:
        with client.atomic_branch("parent") as branch, pytest.raises(ValueError, match="branch"):
            branch.send(topics[0], b"x", producer=producer)
        assert producer.send(b"0").sequence_id == 0
