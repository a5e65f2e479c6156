"""The protocols of those who take part in a transaction, as Tephra has them, and what they promise each other."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from oncelog.wire.transaction import Transaction

if TYPE_CHECKING:
    from oncelog.api.api import Api


@runtime_checkable
class TransactionAware(Protocol):
    """Something that takes part in transactions (Tephra's TransactionAware), one at a time.

    :class:`oncelog.TransactionContext` calls, in this order: ``start_tx``; ``get_tx_changes``; ``commit_tx``; and when the
    transaction is committed ``post_tx_commit``. After any failure before that every participant whose ``start_tx`` returned
    gets ``rollback_tx``, whatever it had reached by then, also if it was its own call that failed.

    Two more are called where a participant has them: ``update_tx(tx)`` at a checkpoint, when the transaction goes on under
    another write pointer; ``in_doubt_tx(error)`` when the outcome cannot be known: let go of it and undo nothing.
    """

    def start_tx(self, tx: Transaction) -> None:
        """Begins a transaction. Where this raises, nothing may have begun: there will be no ``rollback_tx``."""
        ...

    def get_tx_changes(self) -> Iterable[bytes]:
        """The keys that it changed: of two transactions that overlap in time and change the same key, one commits."""
        ...

    def commit_tx(self) -> bool | None:
        """Makes the changes durable so that they can still be undone. False, or raising, fails the transaction."""
        ...

    def post_tx_commit(self) -> None:
        """The transaction is committed. Raising undoes nothing."""
        ...

    def rollback_tx(self) -> bool | None:
        """Undoes everything. False, or raising: something may be left; the transaction is invalidated then, not aborted."""
        ...


class Participant(Protocol):
    """Takes part in transactions of either twin: a :class:`TransactionAware`; for asyncio also one with coroutine functions."""

    def start_tx(self, tx: Transaction) -> Awaitable[None] | None: ...
    def get_tx_changes(self) -> Iterable[bytes] | Awaitable[Iterable[bytes]]: ...
    def commit_tx(self) -> Awaitable[bool | None] | bool | None: ...
    def post_tx_commit(self) -> Awaitable[None] | None: ...
    def rollback_tx(self) -> Awaitable[bool | None] | bool | None: ...


class NotCommitted(Exception):
    """Raised by a participant that decides, when it has certainly not committed. The transaction raises ``cause`` then."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


@runtime_checkable
class DecidingParticipant(TransactionAware, Protocol):
    """A participant that commits in one step which cannot be undone: a database without two-phase commit.

    Its own commit decides about the whole transaction (the "logging last resource" of transaction monitors), so there can be one
    only. It leaves a durable marker of the decision, by which a transaction is ended whose process died in between.
    """

    resource: str
    """Its name at the transaction service."""

    def prepared_tx(self, client: Api, store_id: str) -> None:
        """The transaction is prepared, before anybody's ``commit_tx``: the store of this id has it.

        The marker of the decision names resource, store and write pointer: other services may hand out the same pointers.
        """
        ...

    def decide(self) -> None:
        """Commits, after everybody's ``commit_tx``. Returning means it is committed.

        Raises:
            NotCommitted: it certainly is not, and never will be. After anything else, an interruption too, neither is certain;
                what is not certain is not rolled back but left to :meth:`recover_once`.
        """
        ...

    def recover_once(self, client: Api) -> None:
        """Ends, before the first transaction, those that earlier processes left undecided."""
        ...
