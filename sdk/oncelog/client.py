"""The client: every call to the service, and what begins transactions and atomic commits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Generic, TypeVar

from oncelog.api.api import Api
from oncelog.api.atomic import DEFAULT_GROUP
from oncelog.api.retry import pause
from oncelog.api.topics import AsyncApi
from oncelog.api.transactions import BUFFER_BYTES
from oncelog.errors import TransactionConflict
from oncelog.transactions.atomic import AsyncAtomicBatch, AsyncAtomicBranch, AtomicBatch, AtomicBranch
from oncelog.transactions.participants import Participant, TransactionAware
from oncelog.transactions.transaction import AsyncTransactionContext, TransactionContext
from oncelog.values.numbers import check_count
from oncelog.wire.media import DEFAULT_NAMESPACE

T = TypeVar("T")
P = TypeVar("P")
X = TypeVar("X")
B = TypeVar("B")
S = TypeVar("S")


class _Begins(Generic[P, X, B, S]):
    """What begins with one argument list and another class for each twin."""

    _transactions: Callable[..., X]
    _batches: Callable[..., B]
    _branches: Callable[..., S]

    def transaction(
        self,
        *participants: P,
        long: bool = False,
        timeout: float | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> X:
        """Make a transaction over topics and ``participants``, for a ``with`` statement of the same twin."""
        return self._transactions(self, *participants, long=long, timeout=timeout, buffer_bytes=buffer_bytes)

    def atomic(
        self,
        group: str = DEFAULT_GROUP,
        *,
        id: str | None = None,  # noqa: A002  # the field's word
        timeout: float | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        branches: Iterable[str] = (),
        producer: str | None = None,
        sequence_id: int | None = None,
        incarnation: str | None = None,
        checksum: str | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> B:
        """Gather messages for several topics and commit them together, in a ``with`` block; see :class:`oncelog.AtomicBatch`."""
        return self._batches(
            self,
            group,
            id=id,
            timeout=timeout,
            namespace=namespace,
            branches=branches,
            producer=producer,
            sequence_id=sequence_id,
            incarnation=incarnation,
            checksum=checksum,
            buffer_bytes=buffer_bytes,
        )

    def atomic_branch(
        self,
        of: str,
        group: str = DEFAULT_GROUP,
        *,
        id: str | None = None,  # noqa: A002
        timeout: float | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> S:
        """Stage messages for the atomic commit of id ``of``, for a ``with`` statement; see :class:`oncelog.AtomicBranch`."""
        return self._branches(self, of, group, id=id, timeout=timeout, namespace=namespace, buffer_bytes=buffer_bytes)


class Client(_Begins[TransactionAware, TransactionContext, AtomicBatch, AtomicBranch], Api):
    """Calls a service, by its URL. Thread-safe; a context manager. In a forked child it has connections of its own.

    Every call tries again what is safe to try again, for ``retry`` seconds, and raises an OncelogError then.
    """

    _transactions, _batches, _branches = TransactionContext, AtomicBatch, AtomicBranch

    def run_in_transaction(
        self,
        function: Callable[[TransactionContext], T],
        *participants: TransactionAware,
        attempts: int = 5,
        long: bool = False,
        timeout: float | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> T:
        """Call ``function(tx)`` in a transaction and return what it does; after a conflict again, ``attempts`` times.

        Raises:
            TransactionConflict: the last attempt's. TypeError: it returned an awaitable; that is rolled back.
                Whatever else fails is raised at once, as by :class:`TransactionContext`.
        """
        check_count("attempts", attempts)
        for attempt in range(attempts - 1):
            context = self.transaction(*participants, long=long, timeout=timeout, buffer_bytes=buffer_bytes)
            try:
                with context as tx:
                    return _returned(function, tx)
            except TransactionConflict:
                if context.state not in ("aborted", "invalid"):
                    raise  # not this transaction's: it has taken effect
            self._clock.sleep(pause(attempt, random.random()))
        with self.transaction(*participants, long=long, timeout=timeout, buffer_bytes=buffer_bytes) as tx:
            return _returned(function, tx)


class AsyncClient(_Begins[Participant, AsyncTransactionContext, AsyncAtomicBatch, AsyncAtomicBranch], AsyncApi):
    """The twin of :class:`oncelog.Client` for asyncio: every call is awaited. An asynchronous context manager.

    It belongs to the event loop on which it is used first; on another one it raises RuntimeError, in a forked child
    :class:`~oncelog.errors.Forked`. Any number of tasks may call at once; each request under way has a connection of its own.
    Where a call is cancelled its connection is closed, so that its answer reaches nobody else; whether it was done is not known
    then, as after a time-out.
    """

    _transactions, _batches, _branches = AsyncTransactionContext, AsyncAtomicBatch, AsyncAtomicBranch

    async def run_in_transaction(
        self,
        function: Callable[[AsyncTransactionContext], Awaitable[T]],
        *participants: Participant,
        attempts: int = 5,
        long: bool = False,
        timeout: float | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> T:
        """Await ``function(tx)`` in a transaction and return what it does; after a conflict again, ``attempts`` times.

        Raises:
            TransactionConflict: the last attempt's. Whatever else fails is raised at once, as by its block.
        """
        check_count("attempts", attempts)
        for attempt in range(attempts - 1):
            context = self.transaction(*participants, long=long, timeout=timeout, buffer_bytes=buffer_bytes)
            try:
                async with context as tx:
                    return await function(tx)
            except TransactionConflict:
                if context.state not in ("aborted", "invalid"):
                    raise  # not this transaction's: it has taken effect
            await asyncio.sleep(pause(attempt, random.random()))
        async with self.transaction(*participants, long=long, timeout=timeout, buffer_bytes=buffer_bytes) as tx:
            return await function(tx)


def _returned(function: Callable[[TransactionContext], T], tx: TransactionContext) -> T:
    """What the function returns. Raises TypeError for an awaitable: its work would be done behind the commit, or never."""
    returned = function(tx)
    if isinstance(returned, Awaitable):
        if isinstance(returned, Coroutine):
            returned.close()  # or Python says that it was never awaited
        raise TypeError(f"function returned {type(returned).__name__!r}, which is to be awaited: that takes an AsyncClient")
    return returned
