"""The order of the calls of a transaction, and what becomes of it when any of them fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import Client, Reader, TransactionAware, TransactionContext
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
from oncelog.transactions.ending import MOVES, Event, State
from oncelog.transactions.participants import NotCommitted
from tests.sdk.memory_service import MemoryClient, faults_of
from tests.sdk.recording import Deciding, Recorded
from tests.sdk.test_sent_together import visible

NAMES = ("a", "b", "c")
Faults = dict[str, Any]
"""By who fails and where, ``"b.commit_tx"`` or ``"client.lost commit"``: what is raised, or returned."""

BOOM = ZeroDivisionError("planted")
NO = InvalidRequest("planted")
UNCLEAR = [InternalError("planted")] * 9
UNAVAILABLE = [TransactionsUnavailable("planted")] * 9


@pytest.fixture
def memory() -> MemoryClient:
    return MemoryClient()


def context_of(client: MemoryClient, faults: Faults, database: bool = False) -> TransactionContext:
    """A transaction of three participants, and a database where there is to be one."""
    participants: list[Recorded] = [Recorded(name, client.calls, (b"k",), **faults_of(faults, name)) for name in NAMES]
    if database:
        participants.insert(1, Deciding("d", client.calls, **faults_of(faults, "d")))
    for call, fault in faults_of(faults, "client").items():
        client.faults[call] = list(fault) if isinstance(fault, list) else [fault]
    return client.transaction(*participants)


def run(context: TransactionContext, faults: Faults) -> BaseException | None:
    """What the transaction raises; its block sends a message, and raises what is planted for it."""
    try:
        with context as tx:
            tx.send("t", b"x")
            if faults.get("checkpoint"):
                tx.checkpoint()
            if "block" in faults:
                raise faults["block"]
    except BaseException as error:
        return error
    return None


# --- the table of moves ------------------------------------------------------------------------------------------------


def reached(begin: State, without: Event | None = None) -> set[State]:
    """The states that may follow."""
    found: set[State] = {begin}
    while more := {state for (before, event), state in MOVES.items() if before in found and event != without} - found:
        found |= more
    return found


def test_every_state_and_event_is_of_use() -> None:
    assert reached("new") == set(get_args(State))
    assert {event for _, event in MOVES} == set(get_args(Event))


def test_nothing_is_committed_that_was_not_asked_for_and_nothing_undone_that_may_be_committed() -> None:
    assert reached("new", without="commit") == {"new", "in_progress", "aborted", "invalid"}
    assert reached("in_doubt", without="refused") == {"in_doubt", "committed"}
    assert reached("committed", without="refused") == {"in_doubt", "committed"}
    for ended in ("aborted", "invalid"):
        assert reached(ended) <= {"aborted", "invalid"}


# --- the order ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("participants", "calls"),
    [
        (
            "a b",
            "client.start a.start_tx b.start_tx a.get_tx_changes b.get_tx_changes client.can_commit a.commit_tx b.commit_tx "
            "client.publish client.commit a.post_tx_commit b.post_tx_commit",
        ),
        (  # who decides commits after everybody else
            "d b",
            "d.recover_once client.start d.start_tx b.start_tx d.get_tx_changes b.get_tx_changes client.can_commit d.prepared_tx "
            "d.commit_tx b.commit_tx client.publish d.decide client.commit d.post_tx_commit b.post_tx_commit",
        ),
        (  # nobody is asked for conflicts where nothing can conflict
            "b",
            "client.start b.start_tx b.get_tx_changes b.commit_tx client.publish client.commit b.post_tx_commit",
        ),
    ],
)
def test_the_calls_come_in_tephras_order_and_messages_last(memory: MemoryClient, participants: str, calls: str) -> None:
    made = {"a": Recorded("a", memory.calls, (b"k",)), "b": Recorded("b", memory.calls), "d": Deciding("d", memory.calls)}
    with memory.transaction(*(made[name] for name in participants.split())) as tx:
        tx.send("t", b"x")
    assert " ".join(memory.calls) == calls


def test_who_can_take_part() -> None:
    class Half(Recorded):
        resource = "a database"

        def decide(self) -> None: ...

    assert isinstance(Recorded("a", []), TransactionAware)
    assert not isinstance({}, TransactionAware)
    with pytest.raises(ValueError, match="only one can decide"):
        MemoryClient().transaction(Deciding("a", []), Deciding("b", []))
    with pytest.raises(TypeError, match="lacks"):
        MemoryClient().transaction(Half("h", []))


# --- failures -----------------------------------------------------------------------------------------------------------


class End(NamedTuple):
    """How a transaction ends for those who take part."""

    told: str
    then: tuple[str, ...]
    state: str
    service: str


COMMITTED = End("post_tx_commit", (), "committed", "committed")
ABORTED = End("rollback_tx", ("client.abort",), "aborted", "aborted")
INVALID = End("rollback_tx", ("client.invalidate",), "invalid", "invalid")
DOUBT = End("in_doubt_tx", (), "in_doubt", "in_progress")
DOUBT_COMMITTED = DOUBT._replace(service="committed")

FAILURES: list[tuple[Faults, End, Any]] = [
    *[({f"{who}.{method}": BOOM}, ABORTED, BOOM) for who in NAMES for method in ("get_tx_changes", "commit_tx")],
    *[({f"{who}.commit_tx": False}, ABORTED, TransactionFailed) for who in NAMES],
    *[({"block": cause}, ABORTED, cause) for cause in (BOOM, KeyboardInterrupt(), GeneratorExit())],
    *[({f"client.{call}": NO}, ABORTED, NO) for call in ("can_commit", "publish", "commit")],
    # could not be undone
    *[({"block": BOOM, f"{who}.rollback_tx": fault}, INVALID, BOOM) for who in NAMES for fault in (KeyError("2"), False)],
    ({"b.commit_tx": BOOM, "b.rollback_tx": KeyboardInterrupt()}, INVALID, KeyboardInterrupt),
    # committed all the same
    *[({f"{who}.post_tx_commit": KeyError("planted")}, COMMITTED, KeyError) for who in NAMES],
    # the answer to the commit is lost
    ({"client.commit": UNCLEAR[:1]}, COMMITTED, None),
    ({"client.lost commit": UNCLEAR[:1]}, COMMITTED, None),
    ({"client.commit": UNCLEAR, "client.status": UNCLEAR}, DOUBT, TransactionInDoubt),
    ({"client.lost commit": UNCLEAR, "client.status": TransactionNotFound()}, DOUBT_COMMITTED, TransactionInDoubt),
    ({"client.lost commit": KeyboardInterrupt()}, DOUBT_COMMITTED, KeyboardInterrupt),
    ({"client.commit": [UNCLEAR[0], TransactionNotInProgress(write_pointer=1, state="aborted")]}, ABORTED, InternalError),
]
DATABASE: list[tuple[Faults, End, Any]] = [
    ({"d.decide": NotCommitted(BOOM)}, ABORTED, BOOM),
    ({"d.decide": TransactionInDoubt(write_pointer=1)}, DOUBT, TransactionInDoubt),
    ({"d.decide": BOOM}, DOUBT, TransactionInDoubt),
    ({"d.decide": KeyboardInterrupt()}, DOUBT, KeyboardInterrupt),
    # it has committed
    ({"client.commit": UNCLEAR[:1]}, COMMITTED, None),
    ({"client.commit": UNAVAILABLE, "client.status": UNAVAILABLE}, DOUBT, TransactionInDoubt),
    ({"client.commit": [ConnectionFailed("planted")], "client.status": [ConnectionFailed("planted")]}, DOUBT, TransactionInDoubt),
    ({"client.commit": NO}, DOUBT, TransactionInDoubt),
    ({"client.commit": TransactionNotInProgress(write_pointer=1, state="invalid")}, DOUBT, TransactionNotInProgress),
]


@pytest.mark.parametrize(
    ("faults", "end", "raised", "database"),
    [(*each, database) for database, table in ((False, FAILURES), (True, [*FAILURES[:-4], *DATABASE])) for each in table],
    ids=lambda each: " ".join(each) if isinstance(each, dict) else "",
)
def test_what_becomes_of_a_transaction_in_which_something_fails(
    memory: MemoryClient, faults: Faults, end: End, raised: Any, database: bool
) -> None:
    context = context_of(memory, faults, database)
    if database and {"client.commit", "client.lost commit"} & faults.keys() and end is ABORTED:
        end, raised = DOUBT, TransactionInDoubt  # once the database has committed, nothing is rolled back any more
    error = run(context, faults)
    assert (
        error is raised if isinstance(raised, BaseException) else error is None if raised is None else isinstance(error, raised)
    )
    everybody = ("a", "d", "b", "c") if database else NAMES
    told = [*(f"{name}.{end.told}" for name in everybody), *end.then]
    assert memory.calls[-len(told) :] == told
    for other in {"post_tx_commit", "rollback_tx", "in_doubt_tx"} - {end.told}:
        assert not any(call.endswith(other) for call in memory.calls)
    assert context.state == end.state
    assert memory.service.transactions[context.transaction_id].state == end.service
    assert memory.service.visible("t") == [b"x"] * (end.service == "committed")
    if isinstance(error, TransactionInDoubt):
        assert (error.write_pointer, error.definite) == (context.transaction_id, False)
    if end is COMMITTED and error is not None:
        assert "committed all the same" in error.__notes__[0]
    if isinstance(error, TransactionNotInProgress):
        assert "has committed its part" in error.__notes__[0]


METHODS = [name for name in dir(Deciding) if not name.startswith("_") and name not in ("resource", "recover_once")]
LOST = ["checkpoint", "can_commit", "publish", "commit", "abort"]
CALLS = ["status", *LOST, *(f"lost {call}" for call in LOST)]
PLACES = [*(f"{who}.{method}" for who in (*NAMES, "d") for method in METHODS), *(f"client.{call}" for call in CALLS), "block"]
PLANTED = [BOOM, KeyboardInterrupt(), NO, UNCLEAR[0], UNAVAILABLE[0]]


@given(st.dictionaries(st.sampled_from(PLACES), st.sampled_from(PLANTED), max_size=4), st.booleans(), st.booleans())
def test_whatever_fails_all_are_told_the_same_end_once_and_it_is_the_services(
    faults: Faults, database: bool, checkpoint: bool
) -> None:
    client = MemoryClient()
    lost = {place for place, fault in faults.items() if "lost" in place and isinstance(fault, OncelogError)}
    faults = {place: copy(UNCLEAR[0] if place in lost else fault) for place, fault in faults.items()}  # a refusal did nothing
    context = context_of(client, faults, database)
    run(context, {**faults, "checkpoint": checkpoint})
    started = [call[0] for call in client.calls if call.endswith("start_tx") and faults.get(call) is None]
    ends = ("post_tx_commit", "rollback_tx", "in_doubt_tx")
    told = Counter((call.partition(".")[2], call[0]) for call in client.calls if call.endswith(ends))
    assert len({end for end, _ in told}) <= 1
    assert told == {(end, who): 1 for end, _ in told for who in started}
    service = client.service.transactions[context.transaction_id].state
    assert (
        service
        in {
            "committed": ["committed"],
            "aborted": ["aborted", "in_progress"],
            "invalid": ["invalid", "in_progress"],
            "in_doubt": ["committed", "in_progress"],
        }[context.state]
    )
    assert client.service.visible("t") == [b"x"] * (service == "committed")
    if database and context.state == "aborted":
        assert "d.decide" not in client.calls or isinstance(faults.get("d.decide"), NotCommitted)


# --- an abort that did not get through ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [UNAVAILABLE[0], KeyboardInterrupt()])
def test_an_abort_that_did_not_get_through_is_repeated_by_the_next_transaction(
    memory: MemoryClient, fault: BaseException
) -> None:
    """A prepared transaction, or a long one, would hold up everybody for up to 25 h."""
    stuck = context_of(memory, {"b.commit_tx": BOOM, "client.abort": fault}, database=True)
    run(stuck, {})
    assert memory.service.transactions[stuck.transaction_id].state == "in_progress"
    memory.faults["abort"] = UNAVAILABLE[:1]  # that holds up no transaction, and is tried again by the next one
    for expected in ("in_progress", "aborted", "aborted"):
        assert run(memory.transaction(), {}) is None
        assert memory.service.transactions[stuck.transaction_id].state == expected
    assert memory.calls.count("client.abort") == 3


@pytest.mark.parametrize(
    "answers", [[TransactionNotInProgress(write_pointer=1, state="invalid")], [UNAVAILABLE[0], TransactionNotFound()]]
)
def test_an_abort_of_what_has_ended_already_is_not_repeated(memory: MemoryClient, answers: list[BaseException]) -> None:
    run(context_of(memory, faults := {"block": BOOM, "client.abort": answers}), faults)
    for _ in range(2):
        assert run(memory.transaction(), {}) is None
    assert memory.calls.count("client.abort") == len(answers)


def test_ctrl_c_while_older_ones_are_ended_leaves_no_transaction_behind(memory: MemoryClient) -> None:
    run(context_of(memory, {"block": BOOM, "client.abort": [UNAVAILABLE[0], KeyboardInterrupt()]}), {"block": BOOM})
    context = memory.transaction(long=True)
    with pytest.raises(KeyboardInterrupt):
        context.start()
    assert memory.service.transactions[context.transaction_id].state == "aborted"


# --- conflicts ----------------------------------------------------------------------------------------------------------


def test_a_conflict_and_nothing_else_is_tried_again_in_a_new_transaction(memory: MemoryClient) -> None:
    memory.faults["commit"] = [TransactionConflict(), TransactionConflict()]
    assert memory.run_in_transaction(lambda tx: tx.write_pointer) == 3
    memory.faults["commit"] = [TransactionConflict()] * 5
    with pytest.raises(TransactionConflict):
        memory.run_in_transaction(lambda _: None, attempts=3)
    assert len(memory.service.transactions) == 6
    for fault in (StorageFailed("planted", definite=True), TransactionNotFound()):
        memory.faults["commit"] = [fault]
        with pytest.raises(type(fault)):
            memory.run_in_transaction(lambda _: None)
    with pytest.raises(TransactionConflict):  # another one's: this one is committed
        memory.run_in_transaction(lambda _: None, Recorded("a", [], post_tx_commit=TransactionConflict()))
    assert len(memory.service.transactions) == 9
    with pytest.raises(ValueError, match="attempts"):
        memory.run_in_transaction(lambda _: None, attempts=0)


@pytest.mark.parametrize("attempts", [1, 2])
def test_what_is_to_be_awaited_is_not_committed_undone(memory: MemoryClient, attempts: int) -> None:
    async def work(_: TransactionContext) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match="AsyncClient"):
        _ = memory.run_in_transaction(work, attempts=attempts)
    assert [each.state for each in memory.service.transactions.values()] == ["aborted"]


# --- its life -----------------------------------------------------------------------------------------------------------


def test_a_context_is_for_one_transaction(memory: MemoryClient) -> None:
    context = memory.transaction()
    uses: list[Callable[[], object]] = [
        lambda: context.send("t", b"x"),
        context.finish,
        context.abort,
        context.checkpoint,
    ]
    for use in (*uses, lambda: context.write_pointer):
        with pytest.raises(TransactionClosed):
            use()
    with context, pytest.raises(TransactionClosed):
        context.start()
    for use in (*uses, context.start):
        with pytest.raises(TransactionClosed, match="committed"):
            use()


def test_one_that_is_dropped_before_its_end_is_named(memory: MemoryClient) -> None:
    with pytest.warns(ResourceWarning, match="transaction 1 was neither finished nor aborted"):
        memory.transaction().start()


def test_what_it_is_shown_as_says_which_it_is_and_how_far(memory: MemoryClient) -> None:
    context = memory.transaction()
    assert repr(context) == "TransactionContext(transaction_id=None, state='new')"
    with context:
        assert repr(context) == "TransactionContext(transaction_id=1, state='in_progress')"


def test_an_abort_tells_what_went_wrong_with_it(memory: MemoryClient) -> None:
    context = context_of(memory, {"a.rollback_tx": ZeroDivisionError(), "b.rollback_tx": KeyError(), "c.rollback_tx": False})
    context.start()
    with pytest.raises(ZeroDivisionError) as caught:
        context.abort()
    assert [type(other) for other in caught.value.others] == [KeyError, TransactionFailed]  # type: ignore[attr-defined]
    assert context.state == "invalid"


# --- against the real service -------------------------------------------------------------------------------------------


def test_after_a_checkpoint_a_transaction_reads_its_own_messages_and_goes_on(client: Client, topic: str) -> None:
    participant = Recorded("a", [])
    with client.transaction(participant) as tx:
        first = tx.write_pointer
        with Reader(topic, client=client, transaction=tx, timeout=0) as reader:
            tx.send(topic, b"before")
            assert list(reader) == []
            tx.checkpoint()
            assert [message.payload for message in reader] == [b"before"]
            assert tx.transaction_id == first < tx.write_pointer
            assert visible(client, topic) == []
            tx.send(topic, b"after")
    assert "a.update_tx" in participant.calls
    assert visible(client, topic) == [b"before", b"after"]
