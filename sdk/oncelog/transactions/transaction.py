"""One transaction over topics and participants: the order of the calls, and what happens when one of them fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from inspect import iscoroutinefunction
from typing import Any, NoReturn, Self, cast

from oncelog.api.api import AnyApi, end_rolled_back, end_unconfirmed, tried
from oncelog.api.topics import AsyncApi
from oncelog.api.transactions import BUFFER_BYTES
from oncelog.codecs import codec_for
from oncelog.errors import (
    OncelogError,
    TransactionClosed,
    TransactionFailed,
    TransactionInDoubt,
    TransactionNotInProgress,
)
from oncelog.process import exits, forks
from oncelog.process.frames import Face
from oncelog.process.procedures import answer_of, drive, driven
from oncelog.producing.twins import codec_of
from oncelog.transactions.ending import MOVES, Event, State, verdict
from oncelog.transactions.message_publisher import MessagePublisher
from oncelog.transactions.participants import DecidingParticipant, NotCommitted, Participant, TransactionAware
from oncelog.transactions.twins import PRODUCERS, AnyProducer
from oncelog.values.arguments import check_flag, check_kind
from oncelog.values.numbers import milliseconds
from oncelog.values.outgoing import outgoing
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import TransactionState
from oncelog.wire.transaction import Transaction


class _Transaction(Face):
    """The procedures of a transaction, over the calls of either twin's client and participants of either kind."""

    def __init__(
        self,
        client: AnyApi,
        *participants: Participant,
        long: bool = False,
        timeout: float | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        """
        Args:
            long: does not time out before the service's maximum lifetime, and detects no conflicts.
            timeout: seconds, else the service's setting; then the transaction becomes invalid.
            buffer_bytes: of messages held in memory; more are stored on the service until the transaction commits.

        Raises:
            ValueError: more than one participant decides; a number that cannot be. InvalidRequest: such a ``timeout``.
        """
        milliseconds("timeout", timeout)
        check_flag("long", long)
        for one in participants:
            if isinstance(one, type) or not isinstance(one, TransactionAware):
                hint = "; for a database, oncelog.SqlParticipant(engine, …) does" if hasattr(one, "connect") else ""
                what = one.__name__ if isinstance(one, type) else f"an object of type {type(one).__name__}"
                raise TypeError(
                    f"{what} takes no part in transactions: a participant has the methods of a TransactionAware{hint}"
                )
        self._client = client
        self._publisher = MessagePublisher(client, buffer_bytes)
        self._participants: Sequence[Participant] = (*participants, self._publisher)
        deciding = [one for one in participants if isinstance(one, DecidingParticipant)]
        for one in participants:
            if hasattr(one, "decide") and not isinstance(one, DecidingParticipant):
                raise TypeError(f"{type(one).__name__} decides, but lacks methods of a DecidingParticipant")
        if len(deciding) > 1:
            raise ValueError("of two databases without two-phase commit only one can decide; put both sets of tables into one")
        self._deciding: Any = deciding[0] if deciding else None  # its calls are of either twin
        if isinstance(client, AsyncApi) and deciding and not iscoroutinefunction(deciding[0].decide):
            raise TypeError(f"{type(self._deciding).__name__} blocks while its database decides: use a Client, in a thread")
        self._long = long
        self._timeout = timeout
        self._started: list[Participant] = []
        self._tx: Transaction | None = None
        self._state: State = "new"
        self._home = forks.here()

    def __del__(self) -> None:
        if getattr(self, "_tx", None) is not None and self._state == "in_progress":
            exits.unclosed(self, self._home, "was neither finished nor aborted: readers wait for it until its time is over")

    def __str__(self) -> str:
        return "a transaction" if self._tx is None else f"transaction {self.transaction_id}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(transaction_id={self._tx and self._tx.transaction_id}, state={self._state!r})"

    @property
    def state(self) -> State:
        """The state that it is in. ``in_doubt``: ask :meth:`oncelog.Client.transaction_status`."""
        return self._state

    @property
    def transaction(self) -> Transaction:
        """The snapshot that it sees, as of its start or its latest checkpoint. Raises TransactionClosed before it has started."""
        if self._tx is None:
            raise TransactionClosed("the transaction has not started; use it in a with statement, or start() it")
        return self._tx

    @property
    def transaction_id(self) -> int:
        """The write pointer that it began with: what :meth:`oncelog.Client.transaction_status` asks for."""
        return self.transaction.transaction_id

    @property
    def write_pointer(self) -> int:
        """The pointer that it writes under now; a checkpoint changes it."""
        return self.transaction.write_pointer

    @property
    def buffered_bytes(self) -> int:
        """The bytes of messages that are held in memory now."""
        return self._publisher.buffered_bytes

    async def _send(
        self,
        topic: str,
        value: Any,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        producer: AnyProducer | None = None,
        codec: Any = None,
        sequence_id: int | None = None,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        ttl: int | None = None,
    ) -> None:
        """Publishes one message when the transaction commits. Messages of one topic and producer keep their order.

        Args:
            topic: where it is to be.
            value: bytes, or what ``codec`` (else the producer's) turns into bytes.
            namespace: the topic's.
            producer: an open one of this topic, under whose name and numbers the message is deduplicated. What it was given
                before is sent first; until the transaction ends it takes no messages but through it. Its sequence ids are usable
                again after a rollback.
            codec: None for bytes, or what :func:`oncelog.codecs.codec_for` takes.
            sequence_id: rises from message to message of ``producer``; without it the SDK numbers.
            key: what the message is about; a str is sent as UTF-8.
            properties: further things to say of it, by name.
            ttl: seconds that it lives, at most the topic's.

        Raises:
            TransactionClosed: the transaction has ended, or one of its messages failed before.
            OncelogError: storing what exceeds the buffer failed; the transaction cannot be committed any more.
        """
        self._require("in_progress")
        if producer is not None:
            check_kind("producer", producer, PRODUCERS, "an open Producer")
        if sequence_id is not None and producer is None:
            raise ValueError("a sequence id is a producer's; give the producer too")
        encode = codec_for(codec)
        if encode is None and producer is not None:
            encode = codec_of(producer)
        await self._publisher.send(topic, outgoing(value, encode, sequence_id, key, properties, ttl), namespace, producer)

    # --- from start to end

    async def _start(self) -> None:
        """Begins, and tells the participants. Raises TransactionClosed when it was started before."""
        self._require("new")
        if self._deciding is not None:
            await answer_of(self._deciding.recover_once, self._client)
        self._tx = await answer_of(self._client.start_transaction, "long" if self._long else "short", self._timeout)
        self._move("start")
        try:
            await end_unconfirmed(self._client)
            for participant in self._participants:
                await answer_of(participant.start_tx, self._tx)  # where this raises, there is nothing of it to roll back
                self._started.append(participant)
        except BaseException as cause:
            await self._abort_because(cause)
            raise

    async def _checkpoint(self) -> None:
        """Publishes what was sent so far under the present write pointer and goes on under a new one.

        A ``Reader(transaction=tx)`` sees it then, like everything of this transaction. Raises as :meth:`finish` does, and the
        transaction has ended then.
        """
        self._require("in_progress")
        try:
            self._tx = await answer_of(self._client.checkpoint_transaction, self.transaction_id)
            for participant in self._started:
                update = getattr(participant, "update_tx", None)
                if update is not None:
                    await answer_of(update, self._tx)
        except BaseException as cause:
            await self._abort_because(cause)
            raise

    async def _finish(self) -> None:
        """Commits the transaction.

        Raises:
            TransactionConflict: another transaction that committed meanwhile changed the same, or this one is too old for anybody
                to know; it is rolled back.
            TransactionFailed: a participant said no; rolled back.
            TransactionInDoubt: whether it is committed is not known. Nothing was rolled back.
            BaseException: what a participant raised; rolled back, unless its ``post_tx_commit`` did: that the transaction is
                committed all the same is in the notes, and in :attr:`state`.
        """
        self._require("in_progress")
        try:
            await self._can_commit()
            await self._commit_parts()
            # Before the first call that may commit: whatever interrupts from here on undoes nothing.
            self._move("commit")
            await self._decide()
            await self._commit()
            self._move("committed")
        except BaseException as cause:
            # An interruption comes anywhere, also when all is committed: what follows from it the state says, not where it came.
            await self._abort_because(cause)
            raise
        failures = [error for _, error in await _call_all(self._participants, lambda each: each.post_tx_commit())]
        if failures:
            failures[0].add_note(f"transaction {self.transaction_id} is committed all the same; do not repeat it")
            _attach(failures[0], failures[1:])
            raise failures[0]

    async def _abort(self) -> None:
        """Rolls everything back. Raises what went wrong with that; the transaction does not take effect all the same."""
        self._require("in_progress")
        self._move("abort")
        others = await self._roll_back()
        if others:
            _attach(others[0], others[1:])
            raise others[0]

    async def _leave(self, error: BaseException | None) -> None:
        """What the end of the block does."""
        if self._state != "in_progress":
            return  # finished or aborted in the block
        if error is None:
            await self._finish()
        elif forks.here() != self._home:
            return  # a forked child leaves the block: it is the parent's to end
        else:
            await self._abort_because(error)

    def _require(self, state: State) -> None:
        forks.check_made_here(self._home, "the transaction")
        if self._state != state:
            raise TransactionClosed(
                "the transaction has not started" if self._state == "new" else f"this transaction is {self._state}; start another"
            )

    def _move(self, event: Event) -> None:
        self._state = MOVES[self._state, event]

    # --- towards the commit

    async def _can_commit(self) -> None:
        changes = [change for participant in self._participants for change in await answer_of(participant.get_tx_changes)]
        if changes or self._deciding is not None:
            resource = None if self._deciding is None else self._deciding.resource
            store_id = await answer_of(self._client.can_commit, self.transaction_id, changes, resource)
            if self._deciding is not None:
                await answer_of(self._deciding.prepared_tx, self._client, store_id)

    async def _commit_parts(self) -> None:
        for participant in self._participants:
            if await answer_of(participant.commit_tx) is False:
                raise TransactionFailed(f"{type(participant).__name__} could not commit its part; everything is rolled back")

    async def _decide(self) -> None:
        if self._deciding is None:
            return
        try:
            await answer_of(self._deciding.decide)
        except NotCommitted as refused:
            cause = refused.cause
        except TransactionInDoubt:
            raise
        except Exception as error:
            self._raise_in_doubt(error)
        else:
            return
        self._move("refused")
        raise cause

    async def _commit(self) -> None:
        try:
            await answer_of(self._client.commit_transaction, self.transaction_id)
        except OncelogError as error:
            state = _state_in(error)
            if state is None and not error.definite:
                state = await self._find_state(error)
            self._judge(state, error)

    async def _find_state(self, error: OncelogError) -> TransactionState:
        """Asks what became of a commit whose answer was not definite. Raises TransactionInDoubt."""

        async def ask() -> TransactionState:
            try:
                status = await answer_of(self._client.transaction_status, self.transaction_id)
                if status.state == "in_progress":  # not yet; committing is idempotent
                    status = await answer_of(self._client.commit_transaction, self.transaction_id)
            except TransactionNotInProgress as ended:
                if (state := _state_in(ended)) is None:
                    raise
                return state
            return status.state

        try:
            return await tried(self._client, ask)
        except OncelogError:
            self._raise_in_doubt(error)

    def _judge(self, state: TransactionState | None, error: OncelogError) -> None:
        match verdict(state, self._deciding is not None):
            case "committed":
                return
            case "refused":
                self._move("refused")
            case "contradicted":
                # Only an operator, or the end of the maximum lifetime, ends a prepared transaction against its database.
                assert self._deciding is not None
                error.add_note(f"the database {self._deciding.resource!r} has committed its part, and the transaction is {state}")
            case "in_doubt":
                self._raise_in_doubt(error)
        raise error

    def _raise_in_doubt(self, cause: Exception) -> NoReturn:
        pointer = self.transaction_id
        detail = f"whether transaction {pointer} is committed is not known: {cause}; ask for its state before doing it again"
        if self._deciding is not None:
            detail = (
                f"the database {self._deciding.resource!r} decides about transaction {pointer}, and that is not known yet or the "
                f"transaction service cannot be notified: {cause}. It is when the database is recovered"
            )
        raise TransactionInDoubt(detail, write_pointer=pointer) from cause

    # --- back

    async def _abort_because(self, cause: BaseException) -> None:
        """Aborts because of ``cause``, or lets go of what may be committed; attaches to it what goes wrong with that."""
        self._move("abort")
        if self._state != "in_doubt":
            _attach(cause, await self._roll_back())
            return
        if not isinstance(cause, OncelogError):
            cause.add_note(f"whether transaction {self.transaction_id} is committed is not known; nothing was rolled back")
        letting_go = [each for each in self._started if hasattr(each, "in_doubt_tx")]
        others = [error for _, error in await _call_all(letting_go, lambda each: each.in_doubt_tx(cause))]
        _attach(cause, others)
        _raise_interruption(others)

    async def _roll_back(self) -> list[BaseException]:
        failures: list[BaseException] = []
        for participant, error in await _call_all(self._started, _rollback_tx):
            failures.append(error)
            if participant is not self._publisher:  # what topics hold, the service rolls back by itself
                self._move("invalidate")
        try:
            await end_rolled_back(self._client, self.transaction_id, invalid=self._state == "invalid")
        except OncelogError as error:
            failures.append(error)
        _raise_interruption(failures)
        return failures


class TransactionContext(_Transaction):
    """A transaction from its start to its end; a context manager, for one transaction. Tephra's TransactionContext.

        with client.transaction(orders) as tx:            # orders: a TransactionAware
            orders["17"] = "paid"
            tx.send("payments", b"order 17 is paid")

    When the block ends, everything takes effect or nothing: the changes of all participants are collected and checked for
    conflicts (can-commit), each participant commits in the order given, the messages are published last, and then the
    transaction is committed. With a deciding participant (:class:`oncelog.SqlParticipant`), that one's own commit, after all the
    others, is what decides.

    When anything fails before that, or the block raises, every participant is rolled back and the transaction aborted, or
    invalidated if one of them could not be rolled back. What the topics hold the service rolls back by itself. The first cause
    is raised as it came; whatever else went wrong meanwhile is in its notes, and in its attribute ``others``.

    Messages become readable when the transaction is committed; a ``Reader(transaction=tx)`` sees them as soon as they are
    published, which a :meth:`checkpoint` brings about.
    """

    send = driven(_Transaction._send)
    start = driven(_Transaction._start)
    checkpoint = driven(_Transaction._checkpoint)
    finish = driven(_Transaction._finish)
    abort = driven(_Transaction._abort)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
        drive(self._leave(error))


class AsyncTransactionContext(_Transaction):
    """The twin of :class:`oncelog.TransactionContext` for asyncio; an asynchronous context manager, for one transaction.

        async with client.transaction() as tx:            # an AsyncClient
            await tx.send("payments", b"order 17 is paid")

    A participant's methods may be coroutine functions, and are awaited; one whose methods block, blocks the event loop. A task
    that is cancelled in the block, or at any await of its end before the commit is asked for, rolls everything back; behind that
    the transaction is in doubt, as :attr:`state` says, and nothing is rolled back.
    """

    send = _Transaction._send
    start = _Transaction._start
    checkpoint = _Transaction._checkpoint
    finish = _Transaction._finish
    abort = _Transaction._abort

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
        await self._leave(error)


async def _call_all(
    participants: Iterable[Participant], call: Callable[[Any], object]
) -> list[tuple[Participant, BaseException]]:
    """Calls each participant, whatever the others raise; answers who raised what."""
    failures: list[tuple[Participant, BaseException]] = []
    for participant in participants:
        try:
            await answer_of(call, participant)
        except BaseException as error:
            failures.append((participant, error))
    return failures


async def _rollback_tx(participant: Participant) -> None:
    if await answer_of(participant.rollback_tx) is False:
        raise TransactionFailed(f"{type(participant).__name__} could not undo everything")


def _state_in(error: OncelogError) -> TransactionState | None:
    return cast("TransactionState", error.state) if isinstance(error, TransactionNotInProgress) else None


def _attach(cause: BaseException, others: Sequence[BaseException]) -> None:
    for other in others:
        cause.add_note(f"and then: {type(other).__name__}: {other}")
    with suppress(AttributeError):  # an exception with slots has the notes
        cause.others = (*getattr(cause, "others", ()), *others)  # type: ignore[attr-defined]


def _raise_interruption(failures: Sequence[BaseException]) -> None:
    """Raises Ctrl-C that came while rolling back, once everything is rolled back."""
    for failure in failures:
        if not isinstance(failure, Exception):
            raise failure
