"""The order of the calls of a transaction, and what becomes of it when any of them fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog import Client, Reader, TransactionalDict, TransactionAware, TransactionContext
from oncelog.errors import (
    ConnectionFailed,
    InternalError,
    InvalidRequest,
    OncelogError,
    StorageFailed,
    TransactionClosed,
    TransactionConflict,
    TransactionFailed,
    TransactionInDoubt,
    TransactionNotFound,
    TransactionNotInProgress,
    TransactionsUnavailable,
)
from oncelog.transactions.participants import NotCommitted
from tests.sdk.fakes import Answer, Request, fake_server, forward
from tests.sdk.recording import Deciding, Recorded, RecordedClient
from tests.support import RunningService, ServiceProcess

NAMES = ("a", "b", "c")


@pytest.fixture
def recorded(house: RunningService) -> Iterator[RecordedClient]:
    with RecordedClient(house.url, retry=0.3) as client:
        yield client


def visible(client: Client, topic: str) -> list[bytes]:
    """What a transaction that begins now sees."""
    tx = client.start_transaction()
    try:
        with Reader(topic, client=client, transaction=tx, timeout=0) as reader:
            return [message.payload for message in reader]
    finally:
        client.abort_transaction(tx.transaction_id)


def parts(client: RecordedClient, kind: type[Recorded] = Recorded, **faults: Any) -> list[Recorded]:
    """Three participants; ``faults``: of the one with this name."""
    return [kind(name, client.calls, (), **faults.get(name, {})) for name in NAMES]


def run(context: TransactionContext, block: Callable[[TransactionContext], object], cause: BaseException | None = None) -> None:
    """The context with this block, which raises ``cause`` in the end."""
    with context as tx:
        block(tx)
        if cause is not None:
            raise cause


def state(client: Client, tx: TransactionContext) -> str:
    return Client.transaction_status(client, tx.transaction_id).state


# --- the order ----------------------------------------------------------------------------------------------------------


def test_the_calls_come_in_tephras_order_and_messages_last(recorded: RecordedClient, topic: str) -> None:
    calls = recorded.calls
    with recorded.transaction(Recorded("a", calls, (b"k",)), Recorded("b", calls)) as tx:
        tx.send(topic, b"x")
        calls.append("block")
    assert calls == [
        "client.start",
        "a.start_tx",
        "b.start_tx",
        "block",
        "a.get_tx_changes",
        "b.get_tx_changes",
        "client.can_commit",
        "a.commit_tx",
        "b.commit_tx",
        "client.publish",
        "client.commit",
        "a.post_tx_commit",
        "b.post_tx_commit",
    ]
    assert (tx.state, state(recorded, tx)) == ("committed", "committed")
    assert visible(recorded, topic) == [b"x"]


def test_the_deciding_participant_commits_after_everybody_else(recorded: RecordedClient, topic: str) -> None:
    calls = recorded.calls
    with recorded.transaction(Deciding("d", calls), Recorded("b", calls)) as tx:
        tx.send(topic, b"x")
    assert calls == [
        "d.recover_once",
        "client.start",
        "d.start_tx",
        "b.start_tx",
        "d.get_tx_changes",
        "b.get_tx_changes",
        "client.can_commit",
        "d.prepared_tx",
        "d.commit_tx",
        "b.commit_tx",
        "client.publish",
        "d.decide",
        "client.commit",
        "d.post_tx_commit",
        "b.post_tx_commit",
    ]


def test_nobody_is_asked_for_conflicts_where_nothing_can_conflict(recorded: RecordedClient) -> None:
    with recorded.transaction(Recorded("a", recorded.calls)):
        pass
    assert "client.can_commit" not in recorded.calls


def test_only_one_participant_can_decide(client: Client) -> None:
    with pytest.raises(ValueError, match="only one can decide"):
        client.transaction(Deciding("a", []), Deciding("b", []))


def test_participants_are_known_by_what_they_can_do() -> None:
    assert isinstance(Recorded("a", []), TransactionAware)
    assert isinstance(TransactionalDict(), TransactionAware)
    assert not isinstance({}, TransactionAware)


# --- failures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", NAMES)
@pytest.mark.parametrize("method", ["get_tx_changes", "commit_tx"])
def test_whoever_fails_before_the_commit_all_are_rolled_back(
    recorded: RecordedClient, topic: str, method: str, which: str
) -> None:
    fault = ZeroDivisionError("planted")
    context = recorded.transaction(*parts(recorded, **{which: {method: fault}}))
    with pytest.raises(ZeroDivisionError) as caught, context as tx:
        tx.send(topic, b"x")
    assert caught.value is fault
    assert recorded.calls[-4:] == ["a.rollback_tx", "b.rollback_tx", "c.rollback_tx", "client.abort"]
    assert "client.publish" not in recorded.calls
    assert (context.state, state(recorded, context)) == ("aborted", "aborted")
    assert fault.others == ()  # type: ignore[attr-defined]
    assert visible(recorded, topic) == []


@pytest.mark.parametrize("which", NAMES)
def test_a_participant_that_says_no_fails_the_transaction(recorded: RecordedClient, which: str) -> None:
    context = recorded.transaction(*parts(recorded, **{which: {"commit_tx": False}}))
    with pytest.raises(TransactionFailed), context:
        pass
    assert recorded.calls[-4:] == ["a.rollback_tx", "b.rollback_tx", "c.rollback_tx", "client.abort"]


@pytest.mark.parametrize(("at", "which"), list(enumerate(NAMES)))
def test_where_the_start_fails_those_that_have_started_are_rolled_back(recorded: RecordedClient, at: int, which: str) -> None:
    context = recorded.transaction(*parts(recorded, **{which: {"start_tx": ZeroDivisionError()}}))
    with pytest.raises(ZeroDivisionError):
        context.start()
    assert [call for call in recorded.calls if "rollback" in call] == [f"{name}.rollback_tx" for name in NAMES[:at]]
    assert state(recorded, context) == "aborted"


@pytest.mark.parametrize("call", ["can_commit", "publish", "commit"])
def test_a_refusal_of_the_service_rolls_everything_back(recorded: RecordedClient, topic: str, call: str) -> None:
    fault = InvalidRequest("planted")
    recorded.faults[call] = [fault]
    participants = parts(recorded)
    participants[0].changes = (b"k",)
    context = recorded.transaction(*participants)
    with pytest.raises(InvalidRequest) as caught, context as tx:
        tx.send(topic, b"x")
    assert caught.value is fault
    assert [call for call in recorded.calls if "rollback_tx" in call] == ["a.rollback_tx", "b.rollback_tx", "c.rollback_tx"]
    assert recorded.calls[-1] == "client.abort"
    assert state(recorded, context) == "aborted"
    assert visible(recorded, topic) == []


def test_a_start_that_fails_leaves_nothing_behind(recorded: RecordedClient) -> None:
    recorded.faults["start"] = [TransactionsUnavailable("planted")]
    with pytest.raises(TransactionsUnavailable), recorded.transaction(*parts(recorded)):
        pass
    assert recorded.calls == ["client.start"]


@pytest.mark.parametrize("which", NAMES)
@pytest.mark.parametrize("fault", [KeyError("planted"), False], ids=["raises", "says no"])
def test_what_cannot_be_rolled_back_makes_the_transaction_invalid(
    recorded: RecordedClient, topic: str, which: str, fault: Any
) -> None:
    cause = ZeroDivisionError("the first")
    context = recorded.transaction(*parts(recorded, **{which: {"rollback_tx": fault}}))
    with pytest.raises(ZeroDivisionError) as caught:
        run(context, lambda tx: tx.send(topic, b"x"), cause)
    assert caught.value is cause
    assert recorded.calls[-4:] == ["a.rollback_tx", "b.rollback_tx", "c.rollback_tx", "client.invalidate"]
    (other,) = cause.others  # type: ignore[attr-defined]
    assert other is fault if isinstance(fault, Exception) else isinstance(other, TransactionFailed)
    assert any(type(other).__name__ in note for note in cause.__notes__)
    assert (context.state, state(recorded, context)) == ("invalid", "invalid")
    assert visible(recorded, topic) == []


def test_whatever_goes_wrong_the_first_cause_is_raised_and_the_rest_attached(recorded: RecordedClient) -> None:
    first, second, third = ZeroDivisionError("1"), KeyError("2"), InternalError("3")
    recorded.faults["invalidate"] = [third]
    participants = parts(recorded, b={"commit_tx": first}, a={"rollback_tx": second})
    with pytest.raises(ZeroDivisionError) as caught, recorded.transaction(*participants):
        pass
    assert caught.value is first
    assert caught.value.others == (second, third)  # type: ignore[attr-defined]
    assert "c.rollback_tx" in recorded.calls


def test_ctrl_c_while_rolling_back_is_raised_once_all_are_rolled_back(recorded: RecordedClient) -> None:
    context = recorded.transaction(*parts(recorded, a={"commit_tx": ZeroDivisionError(), "rollback_tx": KeyboardInterrupt()}))
    with pytest.raises(KeyboardInterrupt), context:
        pass
    assert recorded.calls[-4:] == ["a.rollback_tx", "b.rollback_tx", "c.rollback_tx", "client.invalidate"]


def test_an_exception_in_the_block_undoes_everything_and_is_raised_as_it_is(recorded: RecordedClient, topic: str) -> None:
    numbers = TransactionalDict[str, int]()
    for cause in (ZeroDivisionError("mine"), KeyboardInterrupt(), GeneratorExit()):
        context = recorded.transaction(numbers)

        def block(tx: TransactionContext) -> None:
            tx.send(topic, b"x")
            numbers["x"] = 5

        with pytest.raises(type(cause)) as caught:
            run(context, block, cause)
        assert caught.value is cause
        assert state(recorded, context) == "aborted"
        assert dict(numbers) == {}
    assert visible(recorded, topic) == []


def test_what_has_been_published_is_rolled_back_too(recorded: RecordedClient, topic: str) -> None:
    recorded.faults["commit"] = [InvalidRequest("planted")]
    with pytest.raises(InvalidRequest), recorded.transaction() as tx:
        tx.send(topic, b"x")
    assert recorded.calls[-3:] == ["client.publish", "client.commit", "client.abort"]
    assert visible(recorded, topic) == []


@pytest.mark.parametrize("which", NAMES)
def test_a_failure_after_the_commit_undoes_nothing_and_says_so(recorded: RecordedClient, topic: str, which: str) -> None:
    fault = KeyError("planted")
    context = recorded.transaction(*parts(recorded, **{which: {"post_tx_commit": fault}}))
    with pytest.raises(KeyError) as caught, context as tx:
        tx.send(topic, b"x")
    assert caught.value is fault
    assert "committed all the same" in fault.__notes__[0]
    assert recorded.calls[-3:] == ["a.post_tx_commit", "b.post_tx_commit", "c.post_tx_commit"]
    assert (context.state, state(recorded, context)) == ("committed", "committed")
    assert visible(recorded, topic) == [b"x"]


def test_a_transaction_that_has_timed_out_is_rolled_back_and_says_so(recorded: RecordedClient, topic: str) -> None:
    context = recorded.transaction(*parts(recorded), timeout=0.5)

    def block(tx: TransactionContext) -> None:
        tx.send(topic, b"x")
        time.sleep(1)

    with pytest.raises(TransactionNotInProgress) as caught:
        run(context, block)
    assert caught.value.state == "invalid"
    assert "c.rollback_tx" in recorded.calls
    assert visible(recorded, topic) == []


# --- in doubt -----------------------------------------------------------------------------------------------------------


def unclear(client: RecordedClient, *calls: str) -> None:
    for call in calls:
        client.faults[call] = [InternalError("planted")] * 20


def test_an_outcome_that_cannot_be_known_is_left_in_doubt_and_nothing_is_rolled_back(
    recorded: RecordedClient, topic: str
) -> None:
    unclear(recorded, "commit", "status")
    context = recorded.transaction(*parts(recorded))
    with pytest.raises(TransactionInDoubt) as caught, context as tx:
        tx.send(topic, b"x")
    assert caught.value.write_pointer == tx.write_pointer
    assert not caught.value.definite
    assert context.state == "in_doubt"
    assert not any("rollback" in call or "abort" in call or "invalidate" in call for call in recorded.calls)
    assert recorded.calls[-3:] == ["a.in_doubt_tx", "b.in_doubt_tx", "c.in_doubt_tx"]


@pytest.mark.parametrize("arrived", [True, False])
def test_a_commit_without_an_answer_is_asked_for_and_done_if_it_was_not(
    recorded: RecordedClient, topic: str, arrived: bool
) -> None:
    (recorded.lost if arrived else recorded.faults)["commit"] = [InternalError("planted")]
    with recorded.transaction(*parts(recorded)) as tx:
        tx.send(topic, b"x")
    assert "client.status" in recorded.calls
    assert recorded.calls.count("client.commit") == (1 if arrived else 2)
    assert tx.state == "committed"
    assert visible(recorded, topic) == [b"x"]


def test_a_commit_without_an_answer_that_was_refused_is_rolled_back(recorded: RecordedClient, topic: str) -> None:
    """An operator aborts it after it has published."""
    recorded.faults["commit"] = [InternalError("planted")]

    def block(tx: TransactionContext) -> None:
        tx.send(topic, b"x")
        tx.checkpoint()
        recorded.abort_transaction(tx.transaction_id)

    with pytest.raises(InternalError):
        run(recorded.transaction(*parts(recorded)), block)
    assert "c.rollback_tx" in recorded.calls
    assert visible(recorded, topic) == []


def test_a_commit_whose_answer_is_lost_on_the_way_is_repeated(house: RunningService, topic: str) -> None:
    lost: list[Request] = []

    def lose_the_first(request: Request) -> Answer | None:
        answer = forward(house.url, request)
        if request.path.endswith("/commit") and not lost:
            lost.append(request)
            return None
        return answer

    with fake_server(lose_the_first) as fake, Client(fake.url) as client:
        with client.transaction() as tx:
            tx.send(topic, b"x")
        assert tx.state == "committed"
        assert visible(client, topic) == [b"x"]
    assert lost


def test_ctrl_c_while_the_commit_is_under_way_leaves_it_in_doubt(recorded: RecordedClient) -> None:
    recorded.lost["commit"] = [KeyboardInterrupt()]  # type: ignore[list-item]
    context = recorded.transaction(*parts(recorded))
    with pytest.raises(KeyboardInterrupt), context:
        pass
    assert context.state == "in_doubt"
    assert recorded.calls[-1] == "c.in_doubt_tx"


@pytest.mark.parametrize("fault", [TransactionsUnavailable("planted"), ConnectionFailed("planted"), InternalError("planted")])
def test_once_the_database_has_committed_nothing_is_rolled_back_any_more(recorded: RecordedClient, fault: OncelogError) -> None:
    recorded.faults["commit"] = [fault] * 20
    recorded.faults["status"] = [fault] * 20
    context = recorded.transaction(*parts(recorded), Deciding("d", recorded.calls))
    with pytest.raises(TransactionInDoubt) as caught, context:
        pass
    assert "recovered" in caught.value.detail
    assert not any("rollback" in call or "abort" in call for call in recorded.calls)


def test_a_transaction_that_was_ended_against_its_database_is_told_as_it_is(recorded: RecordedClient) -> None:
    recorded.faults["commit"] = [TransactionNotInProgress(write_pointer=1, state="invalid")]
    context = recorded.transaction(Deciding("d", recorded.calls))
    with pytest.raises(TransactionNotInProgress) as caught, context:
        pass
    assert "has committed its part" in caught.value.__notes__[0]
    assert context.state == "in_doubt"
    assert "d.rollback_tx" not in recorded.calls


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (NotCommitted(ZeroDivisionError()), ZeroDivisionError),
        (TransactionInDoubt(write_pointer=1), TransactionInDoubt),
        (ZeroDivisionError(), TransactionInDoubt),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_decision_that_fails_is_in_doubt_unless_it_says_that_it_is_none(
    recorded: RecordedClient, fault: BaseException, raised: type[BaseException]
) -> None:
    context = recorded.transaction(Deciding("d", recorded.calls, decide=fault))
    with pytest.raises(raised), context:
        pass
    known = isinstance(fault, NotCommitted)
    assert ("d.rollback_tx" in recorded.calls) is known
    assert ("client.abort" in recorded.calls) is known
    assert context.state == ("aborted" if known else "in_doubt")


def test_who_decides_without_saying_when_it_is_certain_takes_no_part(recorded: RecordedClient) -> None:
    class Half(Recorded):
        resource = "a database"

        def decide(self) -> None: ...

    with pytest.raises(TypeError, match="lacks"):
        recorded.transaction(Half("h", recorded.calls))


# --- conflicts ----------------------------------------------------------------------------------------------------------


def test_of_two_transactions_that_change_the_same_key_exactly_one_commits(client: Client, topic: str) -> None:
    table = TransactionalDict[str, int]("conflicts")
    other = table.view()
    first, second = client.transaction(table), client.transaction(other)
    first.start()
    second.start()
    table["k"], other["k"] = 1, 2
    first.send(topic, b"first")
    second.send(topic, b"second")
    second.finish()
    with pytest.raises(TransactionConflict):
        first.finish()
    assert (first.state, second.state) == ("aborted", "committed")
    assert dict(table) == {"k": 2}
    assert visible(client, topic) == [b"second"]


def test_a_conflict_and_nothing_else_is_tried_again_in_a_new_transaction(client: Client, topic: str) -> None:
    table = TransactionalDict[str, int]("retries")
    pointers: list[int] = []

    def increment(tx: TransactionContext) -> int:
        table["n"] = table.get("n", 0) + 1
        tx.send(topic, b"%d" % table["n"])
        pointers.append(tx.write_pointer)
        if len(pointers) < 3:
            with client.transaction(table.view()) as other:
                other._participants[0]["n"] = 10 * len(pointers)  # type: ignore[index]
        return table["n"]

    assert client.run_in_transaction(increment, table) == 21
    assert len(set(pointers)) == 3
    assert dict(table) == {"n": 21}
    assert visible(client, topic) == [b"21"]


def test_conflicts_without_end_are_raised_after_the_last_attempt(recorded: RecordedClient) -> None:
    recorded.faults["commit"] = [TransactionConflict()] * 5
    with pytest.raises(TransactionConflict):
        recorded.run_in_transaction(lambda _: None, attempts=3)
    assert recorded.calls.count("client.start") == 3
    with pytest.raises(ValueError, match="attempts"):
        recorded.run_in_transaction(lambda _: None, attempts=0)


def test_other_failures_are_not_tried_again(recorded: RecordedClient) -> None:
    for fault in (StorageFailed("planted", definite=True), TransactionNotFound()):
        recorded.calls.clear()
        recorded.faults["commit"] = [fault]
        with pytest.raises(type(fault)):
            recorded.run_in_transaction(lambda _: None)
        assert recorded.calls.count("client.start") == 1


def test_a_conflict_after_the_commit_is_not_tried_again(recorded: RecordedClient) -> None:
    with pytest.raises(TransactionConflict):
        recorded.run_in_transaction(lambda _: None, Recorded("a", recorded.calls, post_tx_commit=TransactionConflict()))
    assert recorded.calls.count("client.start") == 1


# --- its life -----------------------------------------------------------------------------------------------------------


def test_a_context_is_for_one_transaction(client: Client, topic: str) -> None:
    context = client.transaction()
    for use in (
        lambda: context.send(topic, b"x"),
        context.finish,
        context.abort,
        context.checkpoint,
        lambda: context.write_pointer,
    ):
        with pytest.raises(TransactionClosed):
            use()
    with context, pytest.raises(TransactionClosed):
        context.start()
    for again in (context.start, context.finish, context.abort, context.checkpoint, lambda: context.send(topic, b"x")):
        with pytest.raises(TransactionClosed, match="committed"):
            again()


def test_a_transaction_may_be_ended_inside_its_block(client: Client, topic: str) -> None:
    with client.transaction() as tx:
        tx.send(topic, b"a")
        tx.finish()
    with client.transaction() as tx:
        tx.send(topic, b"b")
        tx.abort()
    assert tx.state == "aborted"
    assert visible(client, topic) == [b"a"]


def test_an_abort_tells_what_went_wrong_with_it(recorded: RecordedClient) -> None:
    fault = ZeroDivisionError()
    context = recorded.transaction(*parts(recorded, a={"rollback_tx": fault}, c={"rollback_tx": False}))
    context.start()
    with pytest.raises(ZeroDivisionError) as caught:
        context.abort()
    (other,) = caught.value.others  # type: ignore[attr-defined]
    assert isinstance(other, TransactionFailed)
    assert state(recorded, context) == "invalid"


def test_after_a_checkpoint_a_transaction_reads_its_own_messages_and_goes_on(recorded: RecordedClient, topic: str) -> None:
    with recorded.transaction(*parts(recorded)) as tx:
        first = tx.write_pointer
        with Reader(topic, client=recorded, transaction=tx, timeout=0) as reader:
            tx.send(topic, b"before")
            assert list(reader) == []
            tx.checkpoint()
            assert [message.payload for message in reader] == [b"before"]
            assert tx.transaction_id == first < tx.write_pointer
            assert visible(recorded, topic) == []
            tx.send(topic, b"after")
    assert "b.update_tx" in recorded.calls
    assert visible(recorded, topic) == [b"before", b"after"]


def test_a_checkpoint_is_rolled_back_with_everything_else(client: Client, topic: str) -> None:
    def block(tx: TransactionContext) -> None:
        tx.send(topic, b"before")
        tx.checkpoint()
        tx.send(topic, b"after")

    with pytest.raises(ZeroDivisionError):
        run(client.transaction(buffer_bytes=0), block, ZeroDivisionError())
    assert visible(client, topic) == []


def test_a_checkpoint_that_fails_ends_the_transaction(recorded: RecordedClient) -> None:
    context = recorded.transaction(*parts(recorded, b={"update_tx": ZeroDivisionError()}))
    with pytest.raises(ZeroDivisionError), context as tx:
        tx.checkpoint()
    assert context.state == "aborted"
    assert recorded.calls.count("a.rollback_tx") == 1


def test_a_long_transaction_does_not_time_out_soon_and_knows_no_conflicts(client: Client) -> None:
    table = TransactionalDict[str, int]("long")
    other = table.view()
    with client.transaction(table, long=True) as tx:
        table["k"] = 1
        status = client.transaction_status(tx.write_pointer)
        assert status.type == "long"
        with client.transaction(other):
            other["k"] = 2
    assert tx.state == "committed"


class Killing(Deciding):
    """Before it commits, and again when it decides, the service is killed and comes back."""

    def __init__(self, service: ServiceProcess) -> None:
        super().__init__("killing", [])
        self.service = service

    def _called(self, method: str) -> bool | None:
        if method in ("commit_tx", "decide"):
            self.service.kill()
            self.service.start()
        return super()._called(method)


def test_a_transaction_outlives_the_death_of_the_service(tmp_path: Path) -> None:
    """Killed before the messages are published, and between them and the commit."""
    with ServiceProcess(tmp_path / "data") as service, Client(service.url) as client:
        client.create_topic("t")
        with client.transaction(Killing(service), TransactionalDict[str, int]("d")) as tx:
            tx.send("t", b"in memory")
        assert tx.state == "committed"
        assert visible(client, "t") == [b"in memory"]
