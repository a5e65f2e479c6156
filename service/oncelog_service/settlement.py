"""Tells topics how their transactions ended: the background task of one opening of the store.

A transaction that was aborted, invalidated or timed out must have its rows marked also when its client is gone, and a committed
one must be settled so that snapshots go further. The transaction service keeps every participant until it was told; so this may
die at any point and begin again. Telling twice is as once.
"""

from __future__ import annotations

import asyncio
import logging

from oncelog.errors import NotServedHere, OncelogError, StorageUnavailable, TransactionsUnavailable
from oncelog.wire.models import Settlement
from oncelog_service.topics import Topics
from oncelog_service.transactions.port import Transactions

_log = logging.getLogger(__name__)

_WAIT_SECONDS = 1.0
"""How long to wait for something to settle before looking again."""
_GATHER_SECONDS = 0.02
"""Between two rounds: a few ended transactions are dealt with together. Nobody waits for it; whoever must know sooner asks."""
_PAUSE_SECONDS = 1.0
"""After a failure, or when the same participant could not be told."""


class SettlementTask:
    """Works on the event loop of the topics."""

    def __init__(self, topics: Topics, transactions: Transactions) -> None:
        self._topics = topics
        self._transactions = transactions

    async def run(self) -> None:
        """Settle what there is again and again, until cancelled."""
        while True:
            try:
                settled = await self.once(_WAIT_SECONDS)
            except (StorageUnavailable, TransactionsUnavailable):
                settled = False  # a stop, or a failure that is told elsewhere
            except OncelogError as error:
                _log.warning("transactions cannot be settled now; they will be: %s", error)
                settled = False
            await asyncio.sleep(_GATHER_SECONDS if settled else _PAUSE_SECONDS)

    async def once(self, wait_seconds: float = 0.0) -> bool:
        """Settle everything that waits for it; whether all of it worked. Raises TransactionsUnavailable."""
        settled = True
        for each in await self._transactions.unsettled(wait_seconds):
            settled = await self._settle(each) and settled
        return settled

    async def _settle(self, each: Settlement) -> bool:
        try:
            await self._topics.settle(each.participant, each.write_pointer, each.state == "committed")
        except NotServedHere:
            return False  # whoever serves the topic asks too
        except OncelogError as error:
            _log.warning(
                "transaction %d cannot be settled on %s now; it will be: %s", each.write_pointer, each.participant, error
            )
            return False
        await self._transactions.settled(each.write_pointer, each.participant)
        return True
