"""Ends the transactions that nobody ends, and forgets what became of those that nobody can ask for any more."""

from __future__ import annotations

import asyncio
import logging

from oncelog.errors import OncelogError
from oncelog_service.atomic.endings import Endings
from oncelog_service.atomic.ledger import Ledger
from oncelog_service.atomic.outcomes import forgettable
from oncelog_service.atomic.plan import GiveUp, Transaction
from oncelog_service.clock import Clock
from oncelog_service.group_commit import Writer
from oncelog_service.reading import read
from oncelog_service.storage.keys import number_key
from oncelog_service.storage.port import Batch, Store

_log = logging.getLogger(__name__)

_ROUND_SECONDS = 0.2
_LOOKED_AT = 1_000
"""Outcomes in one step of forgetting them."""


class Upkeep:
    """Works on one ledger, beside the calls of clients, and leaves alone what one of these changes just now."""

    def __init__(self, ledger: Ledger, endings: Endings, store: Store, writer: Writer, clock: Clock) -> None:
        self._ledger = ledger
        self._endings = endings
        self._store = store
        self._writer = writer
        self._clock = clock
        self._stepping = asyncio.Lock()
        self.forgetting = asyncio.Lock()
        """Held by whoever forgets an outcome with its id: what is found to be old is not to be another one's by then."""
        self._looked = b""
        """Key of the outcome at which forgetting goes on."""

    async def run(self) -> None:
        """Gives up what is out of time or was left out, until cancelled."""
        while True:
            await asyncio.sleep(_ROUND_SECONDS)
            try:
                await self.once()
            except OncelogError as error:
                _log.warning("transactions cannot be given up now; they will be: %s", error)

    async def once(self) -> None:
        """Gives up everything that is due now, but for what a call commits or aborts just now."""
        async with self._stepping:
            left: set[int] = set()
            while steps := [each for each in self._ledger.due() if each[1].number not in left]:
                for transaction, step in steps:
                    if not await self._give_up(transaction, step):
                        left.add(step.number)

    async def _give_up(self, transaction: Transaction, step: GiveUp) -> bool:
        """Returns whether it has ended; a call that may end it can be under way."""
        if not self._ledger.is_open(step.number):
            return True
        changing = self._ledger.changing(transaction.id)
        if changing.locked():
            return False
        try:
            async with changing:  # which nobody holds: nothing awaits here
                await self._endings.abort(transaction, step.reason, step.detail)
        except OncelogError as error:
            _log.warning("%s cannot be done now; it will be: %s", step, error)
            return False
        return True

    async def forget_outcomes(self) -> int:
        """Forgets what became of some old transactions, as far as none of their messages lives; returns how many.

        Called again and again, it comes to all of them.
        """
        async with self.forgetting:
            found, self._looked = await read(forgettable, self._store, self._clock.now_ms(), _LOOKED_AT, self._looked)
            batch = Batch()
            for number, id_ in found:
                self._ledger.forget(batch, id_, number_key(number))
            if found:
                await self._writer.submit(batch)
        return len(found)
