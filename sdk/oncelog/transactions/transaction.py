"""One transaction over topics and participants: the order of the calls, and what happens when one of them fails."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NoReturn, cast

from oncelog.api.retry import may_retry, wait_before_retry
from oncelog.api.transactions import BUFFER_BYTES, TransactionCalls
from oncelog.errors import (
    OncelogError,
    TransactionClosed,
    TransactionFailed,
    TransactionInDoubt,
    TransactionNotInProgress,
)
from oncelog.process import forks
from oncelog.producing.producer import Producer
from oncelog.transactions.message_publisher import MessagePublisher
from oncelog.transactions.participants import DecidingParticipant, NotCommitted, TransactionAware
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import TransactionState
from oncelog.wire.transaction import Transaction

State = Literal["new", "in_progress", "committed", "aborted", "invalid", "in_doubt"]


class TransactionContext:
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

    def __init__(
        self,
        client: TransactionCalls,
        *participants: TransactionAware,
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
            ValueError: more than one participant decides; a negative buffer.
        """
        self._client = client
        self._publisher = MessagePublisher(client, buffer_bytes)
        self._participants: Sequence[TransactionAware] = (*participants, self._publisher)
        deciding = [one for one in participants if isinstance(one, DecidingParticipant)]
        for one in participants:
            if hasattr(one, "decide") and not isinstance(one, DecidingParticipant):
                raise TypeError(f"{type(one).__name__} decides, but lacks methods of a DecidingParticipant")
        if len(deciding) > 1:
            raise ValueError("of two databases without two-phase commit only one can decide; put both sets of tables into one")
        self._deciding = deciding[0] if deciding else None
        self._long = long
        self._timeout = timeout
        self._started: list[TransactionAware] = []
        self._tx: Transaction | None = None
        self._state: State = "new"
        self._home = forks.here()
        self._may_be_committed = False
        """From just before the call that commits: what fails then is no reason to undo anything, until it is known not to be."""

    @property
    def state(self) -> State:
        """Where it stands. ``in_doubt``: ask :meth:`oncelog.Client.transaction_status`."""
        return self._state

    @property
    def transaction(self) -> Transaction:
        """What it sees, as of its start or its latest checkpoint. Raises TransactionClosed before it has started."""
        if self._tx is None:
            raise TransactionClosed("the transaction has not started; use it in a with statement, or start() it")
        return self._tx

    @property
    def transaction_id(self) -> int:
        """The write pointer that it began with: what :meth:`oncelog.Client.transaction_status` asks for."""
        return self.transaction.transaction_id

    @property
    def write_pointer(self) -> int:
        """What it writes under now; a checkpoint changes it."""
        return self.transaction.write_pointer

    @property
    def buffered_bytes(self) -> int:
        """Of messages that are held in memory now."""
        return self._publisher.buffered_bytes

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        ttl: int | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        producer: Producer[Any] | None = None,
        sequence_id: int | None = None,
        codec: Any = None,
    ) -> None:
        """Publish one message when the transaction commits. Messages of one topic and producer keep their order.

        Args:
            value: bytes, or what ``codec`` (else the producer's) turns into bytes.
            ttl: seconds that it lives; shorter than the topic's.
            producer: an open one of this topic, under whose name and numbers the message is deduplicated. What it was given
                before is sent first; until the transaction ends it takes no messages but through it. Its sequence ids are usable
                again after a rollback.
            sequence_id: rising from message to message; else the SDK numbers. Not both with one producer.

        Raises:
            TransactionClosed: the transaction has ended, or one of its messages failed before.
            OncelogError: storing what exceeds the buffer failed; the transaction cannot be committed any more.
        """
        self._require("in_progress")
        self._publisher.send(
            topic,
            value,
            key=key,
            properties=properties,
            ttl=ttl,
            namespace=namespace,
            producer=producer,
            sequence_id=sequence_id,
            codec=codec,
        )

    # --- from start to end

    def start(self) -> None:
        """Begin, and tell the participants. Raises TransactionClosed when it was started before."""
        self._require("new")
        if self._deciding is not None:
            self._deciding.recover_once(self._client)
        self._tx = self._client.start_transaction("long" if self._long else "short", self._timeout)
        self._state = "in_progress"
        try:
            self._client._end_unconfirmed()
            for participant in self._participants:
                participant.start_tx(self._tx)
                self._started.append(participant)
        except BaseException as cause:
            self._undo(cause)
            raise

    def checkpoint(self) -> None:
        """Publish what was sent so far under the present write pointer and go on under a new one.

        A ``Reader(transaction=tx)`` sees it then, like everything of this transaction. Raises as :meth:`finish` does, and the
        transaction has ended then.
        """
        self._require("in_progress")
        try:
            self._tx = self._client.checkpoint_transaction(self.transaction_id)
            for participant in self._started:
                update = getattr(participant, "update_tx", None)
                if update is not None:
                    update(self._tx)
        except BaseException as cause:
            self._undo(cause)
            raise

    def finish(self) -> None:
        """Commit.

        Raises:
            TransactionConflict: another transaction that committed meanwhile changed the same; this one is rolled back.
            TransactionFailed: a participant said no; rolled back.
            TransactionInDoubt: whether it is committed is not known. Nothing was rolled back.
            BaseException: what a participant raised; rolled back, unless its ``post_tx_commit`` did: that the transaction is
                committed all the same is in the notes, and in :attr:`state`.
        """
        self._require("in_progress")
        try:
            self._prepare()
            self._may_be_committed = True
            self._decide()
            self._commit()
            self._state = "committed"
        except BaseException as cause:
            # An interruption comes anywhere, also when all is committed: which it is says a variable, not where it came.
            if self._may_be_committed:
                self._leave_in_doubt(cause)
            else:
                self._undo(cause)
            raise
        self._after_commit()

    def abort(self) -> None:
        """Roll everything back. Raises what went wrong with that; the transaction does not take effect all the same."""
        self._require("in_progress")
        others = self._roll_back()
        if others:
            _attach(others[0], others[1:])
            raise others[0]

    def __enter__(self) -> TransactionContext:
        self.start()
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
        if self._state != "in_progress":
            return  # finished or aborted in the block
        if error is None:
            self.finish()
        elif forks.here() != self._home:
            return  # a forked child leaves the block: it is the parent's to end
        else:
            self._undo(error)

    def _require(self, state: State) -> None:
        forks.check_made_here(self._home, "the transaction")
        if self._state != state:
            raise TransactionClosed(
                "the transaction has not started" if self._state == "new" else f"this transaction is {self._state}; start another"
            )

    # --- towards the commit

    def _prepare(self) -> None:
        changes = [change for participant in self._participants for change in participant.get_tx_changes()]
        if changes or self._deciding is not None:
            resource = None if self._deciding is None else self._deciding.resource
            store_id = self._client.can_commit(self.transaction_id, changes, resource)
            if self._deciding is not None:
                self._deciding.prepared_tx(self._client, store_id)
        for participant in self._participants:
            if participant.commit_tx() is False:
                raise TransactionFailed(f"{type(participant).__name__} could not commit its part; everything is rolled back")

    def _decide(self) -> None:
        if self._deciding is None:
            return
        refused = None
        try:
            self._deciding.decide()
        except NotCommitted as error:
            refused = error
        except TransactionInDoubt:
            raise
        except Exception as error:
            self._raise_in_doubt(error)
        if refused is not None:
            self._may_be_committed = False
            raise refused.cause

    def _commit(self) -> None:
        try:
            self._client.commit_transaction(self.transaction_id)
        except OncelogError as error:
            state = _state_in(error) if error.definite else self._find_state(error)
            if state != "committed":
                self._not_committed(error, state)

    def _find_state(self, error: OncelogError) -> TransactionState | None:
        """What became of it, after the call that commits failed without a definite answer. Raises TransactionInDoubt."""
        end = time.monotonic() + self._client._retry
        attempt = 0
        while True:
            try:
                status = self._client.transaction_status(self.transaction_id)
                if status.state == "in_progress":  # not yet: the same again, since twice is as once
                    status = self._client.commit_transaction(self.transaction_id)
                return status.state
            except TransactionNotInProgress as ended:
                return _state_in(ended)
            except OncelogError as unknown:
                wait = wait_before_retry(unknown, attempt, random.random(), end - time.monotonic())
                if wait is None or not may_retry(unknown, idempotent=True):
                    self._raise_in_doubt(error)
            time.sleep(wait)
            attempt += 1

    def _not_committed(self, error: OncelogError, state: TransactionState | None) -> NoReturn:
        if self._deciding is None:
            self._may_be_committed = False
        elif state is None:
            self._raise_in_doubt(error)
        else:
            # Nobody but an operator, or the end of the maximum lifetime, ends a prepared transaction against its database.
            error.add_note(f"the database {self._deciding.resource!r} has committed its part, and the transaction is {state}")
        raise error

    def _raise_in_doubt(self, cause: Exception) -> NoReturn:
        pointer = self.transaction_id
        detail = f"whether transaction {pointer} is committed is not known: {cause}; ask for its state before doing it again"
        if self._deciding is not None:
            detail = (
                f"the database {self._deciding.resource!r} decides about transaction {pointer}, and that is not known yet or the "
                f"transaction service cannot be told: {cause}. It is when the database is recovered"
            )
        raise TransactionInDoubt(detail, write_pointer=pointer) from cause

    def _leave_in_doubt(self, error: BaseException) -> None:
        """Let go without undoing anything: what may be committed must stay."""
        self._state = "in_doubt"
        if not isinstance(error, OncelogError):
            error.add_note(f"whether transaction {self.transaction_id} is committed is not known; nothing was rolled back")
        others: list[BaseException] = []
        for participant in self._started:
            let_go = getattr(participant, "in_doubt_tx", None)
            if let_go is not None:
                try:
                    let_go(error)
                except BaseException as other:
                    others.append(other)
        _attach(error, others)
        _raise_interruption(others)

    def _after_commit(self) -> None:
        failures: list[BaseException] = []
        for participant in self._participants:
            try:
                participant.post_tx_commit()
            except BaseException as error:
                failures.append(error)
        if failures:
            failures[0].add_note(f"transaction {self.transaction_id} is committed all the same; do not repeat it")
            _attach(failures[0], failures[1:])
            raise failures[0]

    # --- back

    def _undo(self, cause: BaseException) -> None:
        """Roll back because of ``cause``, and attach to it what goes wrong with that."""
        _attach(cause, self._roll_back())

    def _roll_back(self) -> list[BaseException]:
        failures: list[BaseException] = []
        self._state = "aborted"  # first, so that nothing of what is half undone can be committed after an interruption
        for participant in self._started:
            failure = _rolled_back(participant)
            if failure is not None:
                failures.append(failure)
                if participant is not self._publisher:  # what topics hold, the service marks by itself
                    self._state = "invalid"
        given_up = self._state == "invalid"
        end = self._client.invalidate_transaction if given_up else self._client.abort_transaction
        unconfirmed = self._client._unconfirmed
        unconfirmed[self.transaction_id] = given_up  # also when Ctrl-C interrupts the call
        try:
            end(self.transaction_id)
            unconfirmed.pop(self.transaction_id, None)
        except OncelogError as error:
            if _state_in(error) in ("aborted", "invalid"):
                unconfirmed.pop(self.transaction_id, None)
            else:
                failures.append(error)
        _raise_interruption(failures)
        return failures


def _rolled_back(participant: TransactionAware) -> BaseException | None:
    """What goes wrong with rolling it back."""
    try:
        if participant.rollback_tx() is False:
            return TransactionFailed(f"{type(participant).__name__} could not undo everything")
    except BaseException as error:
        return error
    return None


def _state_in(error: OncelogError) -> TransactionState | None:
    return cast("TransactionState", error.state) if isinstance(error, TransactionNotInProgress) else None


def _attach(cause: BaseException, others: Sequence[BaseException]) -> None:
    for other in others:
        cause.add_note(f"and then: {type(other).__name__}: {other}")
    with suppress(AttributeError):  # an exception with slots has the notes
        cause.others = (*getattr(cause, "others", ()), *others)  # type: ignore[attr-defined]


def _raise_interruption(failures: Sequence[BaseException]) -> None:
    """Ctrl-C while rolling back is not swallowed, once everything is rolled back."""
    for failure in failures:
        if not isinstance(failure, Exception):
            raise failure
