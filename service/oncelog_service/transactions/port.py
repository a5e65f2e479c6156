"""The transaction service as topics and the REST skin need it, wherever it runs: in this process or behind a URL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from oncelog.wire.models import Settlement, TransactionState, TransactionStatus
from oncelog.wire.transaction import Transaction, TransactionType
from oncelog_service.transactions.wanted import EVERYTHING, Wanted


class Owned(NamedTuple):
    """A write pointer that the transaction service has handed out."""

    owner: str | None
    """Of its transaction; None: nobody with a name."""


MayAppear = Callable[[Collection[str], Collection[int]], None]
"""Raises NotAllowed, Unauthorized unless the client that commits may write to the topics of these participants;
TransactionConflict: an operator has rolled back what one of them held under one of these pointers of the transaction."""


class Transactions(Protocol):
    """The transaction service. Every answer is durable, and so is everything that it depends on.

    ``by`` is for what a client asks: whose the transaction must be (access/owners.py), else NotAllowed is raised and nothing was
    done; None: it may be everybody's, as for whatever the services do themselves.

    Every method raises TransactionsUnavailable when the service cannot be reached (the embedded one: StorageUnavailable).
    """

    async def start(self, kind: TransactionType, timeout_ms: int | None = None, owner: str | None = None) -> Transaction:
        """Begins a transaction of ``owner``. Raises InvalidRequest for a time-out that is too long, QuotaExceeded."""
        ...

    async def can_commit(
        self,
        pointer: int,
        changes: Collection[bytes],
        resource: str | None = None,
        by: str | None = None,
        may: MayAppear | None = None,
    ) -> str:
        """Hands in what a transaction changed; with ``resource`` it is prepared: it times out at the maximum lifetime only, and
        ``may`` is asked, as for a commit, since from then on the database decides.

        Answers the id of the store that the transaction is in: with the pointer its name for a database that decides, since other
        services may hand out the same pointers.

        Raises TransactionConflict, TransactionNotInProgress, TransactionNotFound.
        """
        ...

    async def commit(
        self, pointer: int, changes: Collection[bytes] = (), by: str | None = None, may: MayAppear | None = None
    ) -> None:
        """Commits, idempotently; ``changes`` as in can-commit, for a transaction that did not call it.

        ``may`` is told of its participants and pointers, and raises: the client may not have its messages appear
        there, at this moment, or they cannot all appear; the transaction is in progress as before. Of one that is prepared its
        database has decided.

        Raises TransactionConflict, TransactionNotInProgress (aborted, invalid), TransactionNotFound.
        """
        ...

    async def abort(self, pointer: int, unless_prepared: bool = False, by: str | None = None) -> None:
        """Undoes a transaction, idempotently: its messages are rolled back.

        ``unless_prepared`` is for everybody who does not know that its database has not committed: judged in the same step as the
        abort. What is invalid stays so then, since nobody knows either that its participants have rolled back.

        Raises TransactionNotInProgress, TransactionNotFound; TransactionPrepared: nothing was done, its database decides.
        """
        ...

    async def invalidate(self, pointer: int, by: str | None = None) -> None:
        """Gives a transaction up: as abort, and its pointers stay in the list of invalid ones. Raises as abort does."""
        ...

    async def checkpoint(self, pointer: int, by: str | None = None) -> Transaction:
        """Hands out a further write pointer. ``pointer``: the transaction's id.

        Raises TransactionNotInProgress, TransactionNotFound.
        """
        ...

    async def show(self, pointer: int, by: str | None = None) -> TransactionStatus:
        """Returns a transaction, by its id or a checkpoint's pointer. Raises TransactionNotFound."""
        ...

    async def list(self, state: TransactionState, after: int, limit: int, by: str | None = None) -> Sequence[TransactionStatus]:
        """Lists transactions in progress, or invalid ones, with pointers above ``after``, rising, without those of others."""
        ...

    async def prune(self, pointers: Collection[int] | None, before_ms: int | None) -> int:
        """Takes transactions out of the list of invalid ones; returns how many.

        Those that a participant has not acknowledged stay.
        """
        ...

    # --- for those that hold messages of transactions

    async def states(self, pointers: Collection[int], by: str | None = None) -> dict[int, TransactionState]:
        """Returns the state of those among ``pointers`` (ids or checkpoints) that this service handed out and still knows; those
        of others are left out."""
        ...

    async def forgotten(self, pointer: int) -> bool:
        """Returns whether this service has handed a pointer out, whose state it does not know, and has forgotten how it ended.

        Before it forgets, every participant has dealt with the end: what still stands under the pointer has committed. Else it is
        another service's; or this one was put back to an earlier time, and nobody knows.
        """
        ...

    async def root(self, pointer: int) -> int | None:
        """Returns the id of the transaction in progress that this pointer belongs to; None for one that was never handed
        out here.

        Raises TransactionNotInProgress: it was, and has ended.
        """
        ...

    async def enlist(self, pointer: int, participant: str, by: str | None = None) -> Owned | None:
        """Notes, before anything is written, that ``participant`` is about to hold messages under ``pointer``.

        None: the pointer was never handed out here, so another service decides about it. Of the embedded service this
        is durable no later than what is submitted to the same writer next. Raises TransactionNotInProgress: it has ended.
        """
        ...

    def ended(self, pointer: int) -> bool:
        """Returns whether the transaction is known here, at this very moment, to have ended. For code that must not await."""
        ...

    async def unacknowledged(
        self, wait_seconds: float, store_id: str | None = None, wanted: Wanted = EVERYTHING
    ) -> Sequence[Settlement]:
        """Returns ended transactions whose participants have not acknowledged it; waits for some.

        Participants of ``store_id``, else of this service's own; those that are ``wanted``.
        """
        ...

    async def acknowledge(self, pointer: int, participant: str) -> None:
        """Notes that a participant has dealt with the end of the transaction. Nobody waits for this to be durable."""
        ...
