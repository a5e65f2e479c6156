"""The write pointers that are in use on one topic: whose they are, how old, and who is in the middle of using them.

The invariant: nothing is written under a pointer before its topic is enlisted, and nothing more once the transaction has ended
and the topic was notified (``closing``). Every use is between :meth:`entered` and its end; closing waits for those that are
under way and refuses the ones that come later. A pointer that our transaction service never handed out is refused, unless a
setting says that another one is in use, and it lies where ours do not; only of those is the age judged. Nobody but its owner
(access/owners.py) uses a pointer of ours; those of another service have none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakValueDictionary

from oncelog.errors import StorageUnavailable, TransactionNotFound, TransactionNotInProgress, UnknownWritePointer
from oncelog.wire.transaction import POINTERS_PER_MS, is_own
from oncelog_service.access.owners import check_owner
from oncelog_service.clock import Clock, SteadyClock
from oncelog_service.storage.records import EndedRow
from oncelog_service.transactions.port import Owned, Transactions

_REMEMBERED = 10_000
"""Pointers whose owner is remembered; asking again costs a read."""


class WritePointers:
    """The write pointers of one open topic. Works on the event loop that owns it."""

    __slots__ = (
        "_clock",
        "_closing",
        "_foreign",
        "_left",
        "_locks",
        "_max_lifetime_ms",
        "_over",
        "_own",
        "_owners",
        "_participant",
        "_transactions",
        "_using",
        "ended_by_hand",
    )

    def __init__(
        self,
        transactions: Transactions,
        participant: str,
        clock: Clock,
        max_lifetime_ms: int,
        foreign: bool = False,
        ended_by_hand: dict[int, EndedRow] | None = None,
    ) -> None:
        """``participant``: how the transaction service calls this topic. ``foreign``: another transaction service is in use,
        too, so that pointers which ours never handed out are taken. ``ended_by_hand``: as it is on disk."""
        self._transactions = transactions
        self._participant = participant
        self._clock = SteadyClock(clock)
        self._max_lifetime_ms = max_lifetime_ms
        self._foreign = foreign
        self._own: dict[int, Owned | None] = {}
        """None: another service's. Of a pointer that is refused as unknown nothing is remembered: it may be handed out yet."""
        self._owners: dict[int, str | None] | None = None
        """Of pointers under which something was rolled back or read."""
        self.ended_by_hand = {} if ended_by_hand is None else ended_by_hand
        """Pointers that an operator has ended on this topic, and how; it is on disk."""
        self._using: Counter[int] = Counter()
        # Made when they are needed: most topics of many never see a transaction.
        self._left: asyncio.Event | None = None
        self._closing: dict[int, bool] = {}
        """Whose end is being settled, and whether it is still to be stored: an operator has just said it."""
        self._over: dict[int, None] = {}
        """Settled while requests were under way: those write nothing any more. Gone with the last of them."""
        self._locks: WeakValueDictionary[int, asyncio.Lock] | None = None
        """Each is gone with its last user."""

    @asynccontextmanager
    async def entered(self, pointer: int, by: str | None = None) -> AsyncIterator[None]:
        """While something is written under the pointer. It is enlisted with its transaction service before anything is.

        Raises:
            NotAllowed: its transaction is not that of ``by``.
            UnknownWritePointer: the transaction service never handed it out, and no other one is in use.
            TransactionNotInProgress: its transaction has ended, or another service's is older than a transaction may become.
        """
        self._using[pointer] += 1  # before the question below: a settlement that comes meanwhile must wait for this use
        try:
            known = pointer in self._own
            owned = self._own[pointer] if known else await self._transactions.enlist(pointer, self._participant, by)
            if owned is None:
                self._check_foreign(pointer)
            else:
                _check_owner(pointer, owned.owner, by)
            if not known:
                if len(self._own) >= _REMEMBERED:
                    self._own.clear()
                self._own[pointer] = owned
            async with self.refusing_for_good(pointer):
                self.check(pointer)
                yield
        finally:
            self._using[pointer] -= 1
            if not self._using[pointer]:
                del self._using[pointer]
                self._over.pop(pointer, None)
            if self._left is not None:
                self._left.set()

    async def check_owner(self, pointer: int, by: str | None) -> None:
        """Raises NotAllowed: its transaction is not that of ``by``. TransactionsUnavailable: nobody says whose it is."""
        if by is None:
            return
        if self._owners is None:
            self._owners = {}
        if pointer not in self._owners:
            try:
                owner = (await self._transactions.show(pointer)).owner
            except TransactionNotFound:
                return  # another service's, or one that may be handed out yet: nothing is remembered of it
            if len(self._owners) >= _REMEMBERED:
                self._owners.clear()
            self._owners[pointer] = owner
        _check_owner(pointer, self._owners[pointer], by)

    def check(self, pointer: int) -> None:
        """Raises TransactionNotInProgress if the transaction is known to have ended. Awaits nothing: for the last moment.

        Its end may not be on disk yet, so this is for the inside of :meth:`refusing_for_good`.
        """
        if pointer in self._closing or self._is_notified(pointer) or self._transactions.ended(pointer):
            raise TransactionNotInProgress(
                f"the transaction of write pointer {pointer} has ended; nothing can be written under it", write_pointer=pointer
            )

    @asynccontextmanager
    async def refusing_for_good(self, pointer: int) -> AsyncIterator[None]:
        """Hold a refusal for an ended transaction back until its end is on disk, so that no crash takes it back.

        Raises StorageUnavailable: the end did not get there, and the transaction goes on; or an operator's word is on its way.
        """
        try:
            yield
        except TransactionNotInProgress as refusal:
            if self._is_notified(pointer):
                raise
            if pointer in self._closing:
                raise StorageUnavailable("an operator is ending the transaction; nothing was done, try again") from refusal
            if (await self._transactions.states([pointer])).get(pointer) == "in_progress":
                raise StorageUnavailable("the end of the transaction was not stored; it goes on, try again") from refusal
            raise

    def _is_notified(self, pointer: int) -> bool:
        """Whether the topic was notified of the end, which is on disk then."""
        return pointer in self._over or pointer in self.ended_by_hand or self._closing.get(pointer) is False

    @asynccontextmanager
    async def changing(self, pointer: int) -> AsyncIterator[None]:
        """One roll-back or settlement of a pointer at a time."""
        if self._locks is None:
            self._locks = WeakValueDictionary()
        lock = self._locks.get(pointer)
        if lock is None:
            lock = self._locks[pointer] = asyncio.Lock()
        async with lock:
            yield

    @asynccontextmanager
    async def closed(self, pointer: int, by_hand: bool = False) -> AsyncIterator[None]:
        """Wait until all writes under the pointer have finished, and let none begin meanwhile.

        ``by_hand``: its end is not stored yet.
        """
        self._closing[pointer] = by_hand
        try:
            while self._using[pointer]:
                self._left = self._left or asyncio.Event()
                self._left.clear()
                await self._left.wait()
            yield
        finally:
            self._closing.pop(pointer, None)

    @contextmanager
    def committed(self, pointer: int, by_hand: bool = False) -> Iterator[None]:
        """Let nothing more be written under the pointer. Waits for nobody: what is under way is refused at its last moment.

        Another service's pointer, and one that an operator has ended, is ended here alone: the transaction service does not know.
        ``by_hand``: its end is not stored yet.
        """
        self._closing[pointer] = by_hand
        try:
            yield
        finally:
            self._closing.pop(pointer, None)
            if self._using[pointer]:
                self._over[pointer] = None

    def forget(self, pointer: int) -> None:
        """Its transaction has ended and is settled: the next request under the pointer asks again, and is refused."""
        self._own.pop(pointer, None)

    @property
    def any_known(self) -> bool:
        """Whether a pointer was used here of whose end the topic has not been notified since."""
        return bool(self._own)

    @property
    def in_use(self) -> bool:
        """Whether anything at all is being written under a write pointer."""
        return bool(self._using)

    def expired(self, pointer: int) -> bool:
        """Whether a pointer that is in no transaction in progress is older than one may become.

        A clock that is set forward while the topic is open ages nothing.
        """
        return self._age_ms(pointer) > self._max_lifetime_ms

    def _age_ms(self, pointer: int) -> int:
        """How long ago its number says that it was handed out. Only of pointers that our transaction service knows nothing of."""
        return self._clock.now_ms() - pointer // POINTERS_PER_MS

    def _check_foreign(self, pointer: int) -> None:
        if not self._foreign:
            raise UnknownWritePointer(
                f"write pointer {pointer} was never handed out by the transaction service; those of another service are taken "
                "where the setting foreign_write_pointers is on",
                write_pointer=pointer,
            )
        if is_own(pointer):
            raise UnknownWritePointer(
                f"write pointer {pointer} lies in the upper half of its millisecond, where our transaction service hands them "
                "out, and it does not know this one. It may be Tephra's, which gets there for some minutes after its clock "
                "stepped back: begin the transaction again. It may be another oncelog's: share one transaction service "
                "(`oncelog tx-serve`). Or it is ours, and the transaction service was put back to an earlier time",
                write_pointer=pointer,
            )
        age = self._age_ms(pointer)
        if abs(age) > self._max_lifetime_ms:
            when = f"{age / 1000:,.0f} s ago" if age > 0 else f"{-age / 1000:,.0f} s ahead of the clock"
            raise TransactionNotInProgress(
                f"write pointer {pointer} was handed out {when}, as its number says; "
                f"a transaction lives at most {self._max_lifetime_ms / 1000:,.0f} s",
                write_pointer=pointer,
            )


def _check_owner(pointer: int, owner: str | None, by: str | None) -> None:
    check_owner(owner, by, f"transaction {pointer}")
