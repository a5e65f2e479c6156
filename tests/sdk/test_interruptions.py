"""An interruption is no decision: wherever one ends reading, nothing is left out or comes twice; wherever it ends a transaction
with a database, both change or neither does."""

from __future__ import annotations

import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count, cycle
from linecache import getline
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, event, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

import oncelog
from oncelog import AtomicBatch, Client, Consumer, Message, Outbox, OutboxRelay, Producer, Reader, SqlParticipant, errors
from oncelog.errors import ProducerStopped, TransactionClosed, TransactionInDoubt
from oncelog.http.sockets import Blocking, Deadline
from oncelog.http.sockets import Stream as Connected
from oncelog.http.transport import Transport
from oncelog.process.clock import REAL
from oncelog.process.errands import Errands
from oncelog.process.turns import Condition, Turn
from oncelog.producing.outcome import LOCK, Outcome, Outcomes
from oncelog.reading.position import ConsumerPosition, Found, PolledAhead, ReaderPosition
from oncelog.reading.stream import Stream
from oncelog.values.receipt import Receipts
from oncelog.wire.requests import ConsumeRequest
from tests.patience import PATIENCE, until
from tests.sdk.databases import change, effects, with_effects
from tests.sdk.fakes import Answer, fake_server
from tests.sdk.memory_service import MemoryClient
from tests.sdk.signals import ctrl_c
from tests.sdk.test_position import Log

# An interruption may come between a procedure's call and its first step: Python warns of one that nobody has awaited, rightly.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")

PACKAGE = Path(oncelog.__file__).parent
ENDING = ("transactions/transaction.py", "transactions/ending.py", "sql/participant.py", "sql/markers.py")
ATOMIC = ("transactions/atomic.py", "transactions/enlisted_producers.py")
LOST = OperationalError("COMMIT", None, Exception("the connection is lost"))


class OutOfTime(Exception):
    """What a worker raises in a task that takes too long."""


INTERRUPTIONS: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit, OutOfTime, PoolTimeout)


def interrupted(at: int, kind: type[BaseException], run: Callable[[], object], modules: tuple[str, ...]) -> str | None:
    """Run it with an interruption at its so-manieth line or return in these modules; where that was. None: it has not as many."""
    left, where = at, None
    traced = {str(PACKAGE / module) for module in modules}
    assert all(Path(module).exists() for module in traced)

    def on_line(frame: FrameType, what: str, _: object) -> Any:
        nonlocal left, where
        # Not on the way out of a with statement: there no signal comes in before what it holds is let go. Nor at the word try,
        # which does nothing and belongs to no block.
        statement = getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if what == "return" or (what == "line" and not statement.startswith(("with ", "try:"))):
            left -= 1
            if left == 0:
                sys.settrace(None)
                where = f"{kind.__name__} at the {what} {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise kind
        return on_line

    before = sys.gettrace()
    sys.settrace(lambda frame, _, __: on_line if frame.f_code.co_filename in traced else None)
    try:
        run()
    except (*INTERRUPTIONS, OperationalError, TransactionInDoubt):
        pass
    finally:
        sys.settrace(before)
    return where


class Faulty(SqlParticipant):
    """The answer of its commit is lost, before it is done or after."""

    done = True

    def _commit(self) -> None:
        if self.done:
            super()._commit()
        raise LOST


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    is_file = request.param == "sqlite"
    return f"sqlite:///{tmp_path}/data.db" if is_file else request.getfixturevalue("postgres").fresh_schema()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of SQLAlchemy's own end, interrupted
@pytest.mark.parametrize(
    ("through", "done"),
    [("engine", True), pytest.param("connection", False, marks=pytest.mark.real)],
)
def test_wherever_the_end_is_interrupted_both_change_or_neither(url: str, through: str, done: bool) -> None:
    """The answer of the COMMIT is lost, too, so that what became of it has to be found out. Who works in a session or connection
    of his own goes on with that, and commits; then the process dies. At every third place: there are some hundreds."""
    client, opened = MemoryClient(), list[Any]()
    engine = create_engine(url, poolclass=NullPool)

    def connected(connection: Any, _: object) -> None:
        opened.append(connection)
        if engine.dialect.name == "sqlite":
            connection.execute("PRAGMA synchronous = OFF")  # no power is cut here

    event.listen(engine, "connect", connected)
    with_effects(engine)
    # On PostgreSQL whoever makes it makes it within its transaction, and the first one is interrupted at once.
    SqlParticipant(engine, "shop").table.create(engine)
    places: dict[int, str] = {}
    kinds = cycle(INTERRUPTIONS)
    for at in count(1, 3):
        working: Any = {"engine": lambda: engine, "session": lambda: Session(engine), "connection": engine.connect}[through]()
        participant = Faulty(working, "shop")
        participant.done = done
        context = client.transaction(participant)
        context.start()
        change(participant.connection, at)
        context.send("t", b"%d" % at)
        place = interrupted(at, next(kinds), context.finish, ENDING)
        if through != "engine":
            if context.state == "in_progress":
                context.abort()  # the end had not begun
            with suppress(SQLAlchemyError):
                working.commit()
        while opened:  # the process is gone, and with it its connections
            opened.pop().close()
        SqlParticipant(engine, "shop").recover(client)
        for status in client.transactions():  # what the service does at last with what is not prepared
            client.abort_transaction(status.write_pointer, unless_prepared=True)
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM oncelog_transactions"))  # else each process looks through more of them
        if place is None:
            break
        places[at] = place
    assert {place.split()[-1].split(":")[0] for place in places.values()} == {"transaction.py", "participant.py", "markers.py"}
    visible = {int(payload) for payload in client.service.visible("t")}
    torn = {places[number] for number in set(effects(engine)) ^ visible}
    assert not torn, f"one of both changed, interrupted {torn}"
    assert (at in visible) is done, "the last one was not interrupted"


@pytest.mark.parametrize("leave", [AtomicBatch.abort, lambda batch: batch.__exit__(OutOfTime, OutOfTime(), None)])
def test_wherever_an_atomic_commit_is_interrupted_it_is_not_aborted_if_it_is_committed(
    client: Client, topic: str, leave: Callable[[AtomicBatch], None]
) -> None:
    """Else the producer gets numbers back that are used, and what follows under them is taken for duplicates."""
    lost = []
    kinds = cycle(INTERRUPTIONS)
    for at in count(1, 3):
        with Producer[bytes](topic, name=f"p{at}", client=client) as producer:
            batch = client.atomic(group="orders").__enter__()
            batch.send(topic, b"%d" % at, producer=producer)
            place = interrupted(at, next(kinds), batch.commit, ATOMIC)
            with suppress(TransactionClosed):
                leave(batch)
            with suppress(ProducerStopped):  # whatever became of it, the batch has let the producer go
                if producer.send(b"%d" % at).status == "duplicate":
                    lost.append(place)
        if place is None:
            break
    assert at > 20, "there are that many places"
    assert not lost, "what followed was taken for a duplicate"
    with Reader(topic, client=client, timeout=0) as reader:
        found = Counter(message.payload for message in reader)
    assert found[b"%d" % at] == 2, "the last one was not interrupted"


def assert_ends(call: Callable[[], object], place: object) -> None:
    """Somebody else's call, behind an interruption at this place."""
    other = Thread(target=call, daemon=True)
    other.start()
    other.join(PATIENCE)
    assert not other.is_alive(), f"interrupted at {place}"


def enter(turn: Turn) -> None:
    with turn:
        pass


def test_wherever_ctrl_c_comes_nobody_waits_for_the_turn_of_who_was_interrupted() -> None:
    for at in count(1):
        turn = Turn("it")
        place = ctrl_c(at, partial(enter, turn), ("process/turns.py",))
        assert_ends(partial(enter, turn), place)
        enter(turn)
        if place is None:
            break
    assert at > 2, "there are that many places"


def test_wherever_ctrl_c_comes_no_producer_waits_for_the_outcome_of_who_was_interrupted() -> None:
    def ask(outcomes: Outcomes) -> None:
        outcome = Outcome(outcomes, 0)
        outcome.add_done_callback(lambda _: None)
        outcomes.complete(0, 1, Receipts([]), errors.ProducerClosed())
        outcome.exception()

    for at in count(1):
        place = ctrl_c(at, partial(ask, Outcomes()), ("producing/outcome.py", threading.__file__))
        assert not LOCK._is_owned(), f"interrupted at {place}"  # type: ignore[attr-defined]
        if place is None:
            break
    assert at > 2, "there are that many places"


@pytest.mark.real
def test_wherever_a_handler_has_waited_for_a_message_who_waits_for_another_one_meanwhile_is_woken() -> None:
    for at in count(1):
        outcomes, others = Outcomes(), list[Thread]()

        def look(outcomes: Outcomes = outcomes) -> None:
            with suppress(TimeoutError):
                outcomes.wait_for(0, 0.001)

        def handle(outcomes: Outcomes = outcomes, others: list[Thread] = others) -> None:
            others.append(Thread(target=outcomes.wait_for, args=(1, None), daemon=True))
            others[0].start()
            until(lambda: look(outcomes) or outcomes.waited._waiters)  # type: ignore[union-attr]

        place = ctrl_c(at, look, ("producing/outcome.py", threading.__file__), handle)
        outcomes.complete(0, 2, Receipts([]), errors.ProducerClosed())
        for each in others:
            each.join(PATIENCE / 6)
            assert not each.is_alive(), f"interrupted at {place}"
        if place is None:
            break
    assert at > 20, "there are that many places"


class Noted(Blocking):
    """A network that notes its streams."""

    def __init__(self) -> None:
        self.streams: list[Any] = []

    async def connect(self, address: Any, deadline: Deadline) -> Connected:
        self.streams.append(stream := await super().connect(address, deadline))
        return stream


@pytest.mark.parametrize("begun", [False, True], ids=["the first", "another one"])
def test_wherever_a_thread_closes_a_client_no_connection_of_a_call_in_another_one_is_left(begun: bool) -> None:
    with fake_server(lambda _: Answer()) as fake:
        for at in count(1):
            transport = Transport(fake.url, network=(network := Noted()))
            if begun:
                transport.call("GET", "/v1/x")
            closing = Thread(target=transport.close)

            def close(closing: Thread = closing) -> None:
                closing.start()
                closing.join(0.01)  # where it waits for what this thread holds, it goes on when that is let go

            def call(transport: Transport = transport) -> None:
                with suppress(errors.ClientClosed):
                    transport.call("GET", "/v1/x")

            place = ctrl_c(at, call, ("http/transport.py", "http/connections.py"), close)
            if place is None:
                break
            closing.join()
            left = [stream for stream in network.streams if stream._socket.fileno() != -1]
            assert not left, f"closed at {place}"
        transport.close()
    assert at > 50, "there are that many places"


def wait(lock: Any, condition: Condition) -> None:
    with lock, lock:  # a handler's, in the midst of another one
        condition.wait_for(lambda: False, 0.001)
        condition.wait(0)


@pytest.mark.parametrize("one", [lambda: Condition(threading.RLock()), lambda: Errands("it")._changed, lambda: Condition(LOCK)])
def test_wherever_ctrl_c_ends_the_waiting_it_is_what_is_raised_and_the_lock_is_let_go_as_often_as_it_was_taken(
    one: Callable[[], Condition],
) -> None:
    for at in count(1):
        condition = one()
        lock = condition._lock  # type: ignore[attr-defined]
        place = ctrl_c(at, partial(wait, lock, condition), ("process/turns.py", threading.__file__))
        assert not lock._is_owned(), f"interrupted at {place}"
        assert_ends(partial(wait, lock, condition), place)
        if place is None:
            break
    assert at > 10, "there are that many places"


class Idle(OutboxRelay):
    """Has nothing to do, and is told to stop in its third turn."""

    turns = 0

    def _turn(self) -> float:
        self.turns += 1
        if self.turns == 3:
            self.stop()
        return 0.001


@pytest.mark.real
def test_wherever_ctrl_c_ends_a_relay_that_waits_it_is_what_is_raised_and_the_relay_can_be_stopped(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db", poolclass=NullPool)  # other pools wait at conditions of Python's
    for at in count(1):
        relay = Idle(Outbox("o"), engine, url="http://127.0.0.1:1")
        place = ctrl_c(at, relay.run, ("sql/outbox/relay.py", threading.__file__))
        assert_ends(relay.close, place)
        if place is None:
            break
    assert at > 20, "there are that many places"


def test_whoever_waits_at_a_condition_is_woken_by_all_who_notify_and_by_no_other() -> None:
    condition, woken = Condition(threading.RLock()), list[bool]()

    def sleep(timeout: float | None) -> None:
        with condition:
            woken.append(condition.wait(timeout))

    sleepers = [Thread(target=sleep, args=(timeout,)) for timeout in (None, PATIENCE, 0.001)]
    for each in sleepers:
        each.start()
    sleepers[2].join(PATIENCE)
    assert woken == [False]
    until(lambda: len(condition._waiters) == 2)  # type: ignore[attr-defined]
    with condition:
        condition.notify_all()
    for each in sleepers:
        each.join(PATIENCE)
    assert woken == [False, True, True]
    with pytest.raises(RuntimeError, match="un-acquired"):
        condition.wait()


@pytest.mark.real
def test_ctrl_c_ends_the_waiting_also_where_it_does_not_wake_who_waits() -> None:
    """As where it comes in the moment before the lock waits: Python has noted it, and nothing wakes the main thread."""
    condition, has_ended, was_woken = Condition(threading.RLock()), threading.Event(), list[bool]()

    def strike() -> None:
        until(lambda: condition._waiters)  # type: ignore[attr-defined]
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not has_ended.wait(PATIENCE / 6):
            was_woken.append(True)
            with condition:
                condition.notify_all()

    thread = Thread(target=strike)
    thread.start()
    with pytest.raises(KeyboardInterrupt), condition:
        condition.wait()
    has_ended.set()
    thread.join()
    assert not was_woken


# --- reading ------------------------------------------------------------------------------------------------------------


MODULES = ("reading/position.py", "reading/stream.py", "reading/twins.py", "values/message.py")
LOG = Log([True] * 12)


class Reading(Stream[bytes]):
    """A stream whose service is at hand."""

    def __init__(self, at: PolledAhead) -> None:
        super().__init__(at, timeout=0, codec=None, page_size=5)
        self._clock = REAL

    async def _poll(self, wait_ms: int) -> Found:
        at = self._at
        if isinstance(at, ReaderPosition):
            asked = at.asks(5)
            return at.answered(asked, LOG.poll(asked), 0.0)
        assert isinstance(at, ConsumerPosition)
        at.pass_over()
        after = at.asks(1, 1, 5).after
        return at.answered(LOG.poll(ConsumeRequest(None if after is None else bytes(after), inclusive=False, limit=5)), 0.0)

    def _check(self) -> None:
        pass


def read(stream: Reading, got: list[Message[bytes]]) -> None:
    for _ in range(2):
        for message in stream:
            got.append(message)
            if len(got) % 3 == 0:
                break
        stream._at._drop(0.0)
        got.extend(stream._deliver(2, 0))


# An iterator that is dropped is closed by CPython, which cannot raise there what 3.14 lets come there.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("position", [ReaderPosition, ConsumerPosition])
def test_wherever_reading_is_interrupted_it_goes_on_with_the_next_message(position: Callable[[], PolledAhead]) -> None:
    wrong = set()
    for at in count(1):
        stream, got = Reading(position()), list[Message[bytes]]()
        place = ctrl_c(at, partial(read, stream, got), MODULES)
        got += stream
        if [message.offset for message in got] != list(range(12)):
            wrong.add(place)
        if place is None:
            break
    assert not wrong, "interrupted there, something was left out or came twice"
    assert at > 40, "there are that many places"


def test_wherever_a_consumer_is_interrupted_what_is_acknowledged_is_passed_over(client: Client, filled: str) -> None:
    with Consumer(filled, "other", client=client) as other:
        fifth = other.read(5, timeout=0)[4]
    wrong = set()
    for at in count(1):
        with Consumer(filled, f"s{at}", client=client, timeout=0) as consumer:
            got = consumer.read(1, timeout=0)
            consumer.ack(fifth)
            place = ctrl_c(at, lambda consumer=consumer, got=got: got.extend(consumer.read(1, 0)), MODULES)  # type: ignore[misc]
            if [message.offset for message in (*got, *consumer)] != [0, *range(5, 10)]:
                wrong.add(place)
        if place is None:
            break
    assert not wrong
    assert at > 20, "there are that many places"
