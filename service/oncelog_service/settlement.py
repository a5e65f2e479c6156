"""Tells topics how their transactions ended: the background task of one opening of the store.

A transaction that was aborted, invalidated or timed out must have its rows marked also when its client is gone, and a committed
one must be settled so that snapshots go further. The transaction service keeps every participant until it has acknowledged the
end; so this may die at any point and begin again: telling is idempotent.

An acknowledgement says that nothing has to be told any more; it decides nothing. Whatever becomes of it – lost on its way, lost
with its answer, told by mistake before the topic had dealt with the end –, nothing stays held, and nothing that was aborted
appears: what stays unsettled on a topic here is asked for once in a while, whoever has acknowledged what, and a poll in a
transaction asks how that ended which its transaction takes for committed (log/read/polls.py).

What cannot be settled now – its topic is damaged, or another instance serves it – is not asked for again for a moment, and what
takes long – a roll-back waits for room on the disk – goes on beside the rounds behind it: neither holds up anything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import islice

from oncelog.errors import NotServedHere, OncelogError, StorageUnavailable, TransactionsUnavailable
from oncelog.wire.models import Settlement, TransactionState
from oncelog_service.clock import Clock
from oncelog_service.topics.participants import Participants
from oncelog_service.transactions.port import Transactions

_log = logging.getLogger(__name__)

_WAIT_SECONDS = 1.0
"""How long to wait for something to settle before looking again."""
_GATHER_SECONDS = 0.02
"""Between two rounds: a few ended transactions are dealt with together. A request that must know sooner asks."""
_PAUSE_SECONDS = 1.0
"""After a failure of the transaction service; and before a participant is asked for again that could not be notified."""
_ELSEWHERE_SECONDS = 5.0
"""The same of one that another instance serves: where topics belong has changed, and it has not been moved yet."""
_BUG_SECONDS = 30.0
"""The same of one whose topic met an unforeseen error; each time costs a traceback in the log."""
_AT_ONCE = 8
"""Topics that are notified of commits, and as many of roll-backs, with the answers that are under way, at the same time."""
ASK_SECONDS = 10
"""Between two times that all that is unsettled here is asked for: it is one call, as a rule, and seldom finds anything."""
_ASKED_AT_ONCE = 1_000
_ROUND_SECONDS = 0.25
"""How long a round waits for what it has begun."""


class SettlementTask:
    """Settles what is served here, again and again. Belongs to the event loop of the topics."""

    def __init__(self, participants: Participants, transactions: Transactions, clock: Clock) -> None:
        self._participants = participants
        self._transactions = transactions
        self._clock = clock
        self._ask_again = clock.monotonic() + ASK_SECONDS  # a topic that is opened asks for itself
        self._later: dict[str, float] = {}
        """Participant → when to ask for it again."""
        self._under_way: dict[str, asyncio.Task[int]] = {}
        """Participant → what notifies it."""
        self._commits, self._roll_backs = asyncio.Semaphore(_AT_ONCE), asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Settles what there is again and again, until cancelled."""
        try:
            while True:
                pause = _GATHER_SECONDS
                try:
                    await self.once(_WAIT_SECONDS, _ROUND_SECONDS)
                except (StorageUnavailable, TransactionsUnavailable):
                    pause = _PAUSE_SECONDS  # a stop, or a failure that is reported elsewhere
                except OncelogError as error:
                    _log.warning("transactions cannot be settled now; they will be: %s", error)
                    pause = _PAUSE_SECONDS
                await asyncio.sleep(pause)
        finally:
            await self._end()

    async def _end(self) -> None:
        tasks = [*self._under_way.values()]
        for each in tasks:
            each.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def once(self, wait_seconds: float = 0.0, most_seconds: float | None = None) -> int:
        """Settles everything that is served here and waits for it; returns how much. Raises TransactionsUnavailable.

        ``most_seconds``: what takes longer goes on, and is neither waited for nor begun again.
        """
        now = self._clock.monotonic()
        self._later = {participant: until for participant, until in self._later.items() if until > now}
        without = frozenset((*self._later, *self._under_way))
        found = await self._transactions.unacknowledged(wait_seconds, wanted=self._participants.wanted(without))
        by_participant: dict[str, list[Settlement]] = {}
        unheard: list[Settlement] = []
        with suppress(TransactionsUnavailable):  # what is known to have ended is settled all the same
            unheard = await self._unheard(without)
        for each in dict.fromkeys([*found, *unheard]):
            by_participant.setdefault(each.participant, []).append(each)
        begun = [self._begin(*each) for each in by_participant.items() if each[0] not in self._under_way]
        if not begun:
            return 0
        done, _ = await asyncio.wait(begun, timeout=most_seconds)
        return sum(each.result() for each in begun if each in done)

    async def _unheard(self, without: Collection[str]) -> list[Settlement]:
        """Some of what has ended and is unsettled on a topic here, as by an acknowledgement that was not the topic's word; of
        participants ``without`` some. Nothing, if it was asked a moment ago. Raises TransactionsUnavailable."""
        if self._clock.monotonic() < self._ask_again:
            return []
        held = self._participants.unsettled()
        asked = iter(dict.fromkeys(pointer for pointers in held.values() for pointer in pointers))
        states: dict[int, TransactionState] = {}
        while some := [*islice(asked, _ASKED_AT_ONCE)]:
            states |= await self._transactions.states(some)
        self._ask_again = self._clock.monotonic() + ASK_SECONDS
        ended = (
            Settlement(write_pointer=pointer, state=states[pointer], participant=participant)
            for participant, pointers in held.items()
            for pointer in pointers
            if participant not in without and states.get(pointer, "in_progress") != "in_progress"
        )
        return [*islice(ended, _ASKED_AT_ONCE)]

    def _begin(self, participant: str, of_one: Sequence[Settlement]) -> asyncio.Task[int]:
        task = self._under_way[participant] = asyncio.ensure_future(self._notify(participant, of_one))
        task.add_done_callback(lambda _: self._under_way.pop(participant))
        return task

    async def _notify(self, participant: str, of_one: Sequence[Settlement]) -> int:
        """Settles what one participant is to be notified of; returns how much of it was.

        First what has committed: that needs no room on the disk, and does not wait until there is some for a roll-back, nor
        for the roll-backs of others that do.
        """
        committed = [each for each in of_one if each.state == "committed"]
        rolled_back = [each for each in of_one if each.state != "committed"]
        count = 0
        try:
            for part, room in ((committed, self._commits), (rolled_back, self._roll_backs)):
                if part:
                    async with room:
                        settled = await self._settle_all(part)
                    count += settled
                    if settled < len(part):
                        break
        except OncelogError as error:
            self._later[participant] = self._clock.monotonic() + _PAUSE_SECONDS
            if not isinstance(error, StorageUnavailable | TransactionsUnavailable):
                _log.warning("the ends of transactions cannot be acknowledged now; they will be: %s", error)
        return count

    async def _settle_all(self, of_one: Sequence[Settlement]) -> int:
        settled = []
        for each in of_one:
            if not await self._settle(each):
                break
            settled.append(each)
        await asyncio.gather(*(self._transactions.acknowledge(each.write_pointer, each.participant) for each in settled))
        return len(settled)

    async def _settle(self, each: Settlement) -> bool:
        try:
            await self._participants.settle(each.participant, each.write_pointer, each.state == "committed")
        except NotServedHere:
            self._later[each.participant] = self._clock.monotonic() + _ELSEWHERE_SECONDS  # the other instance asks too
            return False
        except OncelogError as error:
            self._later[each.participant] = self._clock.monotonic() + _PAUSE_SECONDS
            _log.warning(
                "transaction %d cannot be settled on %s now; it will be: %s", each.write_pointer, each.participant, error
            )
            return False
        except Exception:  # a bug: what else is to be settled must not wait for it
            self._later[each.participant] = self._clock.monotonic() + _BUG_SECONDS
            _log.exception(
                "transaction %d cannot be settled on %s now; it will be tried again", each.write_pointer, each.participant
            )
            return False
        return True
