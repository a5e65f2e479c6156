"""What topics and the REST skin need of the transaction service, wherever it runs: in this process or behind a URL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from oncelog.wire.models import Settlement, TransactionState, TransactionStatus
from oncelog.wire.transaction import Transaction, TransactionType
from oncelog_service.transactions.wanted import EVERYTHING, Wanted


class Transactions(Protocol):
    """The transaction service. Every answer is durable, and so is everything that it depends on.

    Every method raises TransactionsUnavailable when the service cannot be reached (the embedded one: StorageUnavailable).
    """

    async def start(self, kind: TransactionType, timeout_ms: int | None = None) -> Transaction:
        """Begin. Raises InvalidRequest for a time-out that is too long."""
        ...

    async def can_commit(self, pointer: int, changes: Collection[bytes], resource: str | None = None) -> str:
        """Hand in what it changed; with ``resource`` it is prepared: it times out at the maximum lifetime only.

        Answers the id of the store that the transaction is in: with the pointer its name for a database that decides, since other
        services may hand out the same pointers.

        Raises TransactionConflict, TransactionNotInProgress, TransactionNotFound.
        """
        ...

    async def commit(self, pointer: int, changes: Collection[bytes] = ()) -> None:
        """Commit; ``changes`` as in can-commit, for a transaction that did not call it. Twice is as once.

        Raises TransactionConflict, TransactionNotInProgress (aborted, invalid), TransactionNotFound.
        """
        ...

    async def abort(self, pointer: int, unless_prepared: bool = False) -> None:
        """Undo: its messages are rolled back. Twice is as once.

        ``unless_prepared`` is for everybody who does not know that its database has not committed: judged in the same step as the
        abort. What is invalid stays so then, since nobody knows either that its participants have rolled back.

        Raises TransactionNotInProgress, TransactionNotFound; TransactionPrepared: nothing was done, its database decides.
        """
        ...

    async def invalidate(self, pointer: int) -> None:
        """Give up: as abort, and its pointers stay in the list of invalid ones. Twice is as once. Raises as abort does."""
        ...

    async def checkpoint(self, pointer: int) -> Transaction:
        """A further write pointer. ``pointer``: the transaction's id. Raises TransactionNotInProgress, TransactionNotFound."""
        ...

    async def show(self, pointer: int) -> TransactionStatus:
        """A transaction, by its id or a checkpoint's pointer. Raises TransactionNotFound."""
        ...

    async def list(self, state: TransactionState, after: int, limit: int) -> Sequence[TransactionStatus]:
        """Transactions in progress, or invalid ones, with pointers above ``after``, rising."""
        ...

    async def prune(self, pointers: Collection[int] | None, before_ms: int | None) -> int:
        """Take transactions out of the list of invalid ones; how many. Those with unsettled participants stay in it."""
        ...

    # --- for whoever holds messages of transactions

    async def states(self, pointers: Collection[int]) -> dict[int, TransactionState]:
        """The state of those among ``pointers`` (ids or checkpoints) that this service handed out and still knows."""
        ...

    async def root(self, pointer: int) -> int | None:
        """The id of the transaction in progress that this pointer belongs to; None for one that was never handed out here.

        Raises TransactionNotInProgress: it was, and has ended.
        """
        ...

    async def enlist(self, pointer: int, participant: str) -> bool:
        """Note, before anything is written, that ``participant`` is about to hold messages under ``pointer``.

        False: the pointer was never handed out here, so somebody else's service decides about it. Of the embedded service this
        is durable no later than what is submitted to the same writer next. Raises TransactionNotInProgress: it has ended.
        """
        ...

    def ended(self, pointer: int) -> bool:
        """Whether the transaction is known here, at this very moment, to have ended. For what must not await."""
        ...

    async def unsettled(
        self, wait_seconds: float, instance: str | None = None, wanted: Wanted = EVERYTHING
    ) -> Sequence[Settlement]:
        """Ended transactions whose participants still wait to be told; returns early when there are some.

        Participants of ``instance``, else of this service's own; those that are ``wanted``.
        """
        ...

    async def settled(self, pointer: int, participant: str) -> None:
        """The participant has dealt with the end of the transaction. Nobody waits for this to be durable."""
        ...
