"""The service's life: open the store, serve, and after a failed write close, reopen and read everything back.

After **any** storage error nothing in memory is believed. LevelDB acknowledged 348 of 420 later writes that were gone after a
restart when it was used on after a full disk; closing, reopening and reading back lost none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from oncelog.errors import OncelogError, StorageUnavailable
from oncelog_service.clock import Clock
from oncelog_service.config import Settings
from oncelog_service.journal.coordinator import Journal
from oncelog_service.log.cache import RecentMessages
from oncelog_service.log.writer import Writer
from oncelog_service.retention import Retention
from oncelog_service.settlement import SettlementTask
from oncelog_service.storage.port import Store, StoreError
from oncelog_service.topics import Topics
from oncelog_service.transactions.instance import instance_of
from oncelog_service.transactions.manager import TransactionManager
from oncelog_service.transactions.remote import RemoteTransactions

_log = logging.getLogger(__name__)

_REOPEN_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Pauses before each attempt to reopen a store that failed; the last one repeats."""


class Service:
    """One service over one store. Everything runs on the event loop that :meth:`start` was called on."""

    def __init__(self, settings: Settings, open_store: Callable[[], Store], clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.failures = 0
        """How often the store had to be reopened."""
        self._open_store = open_store
        self._store: Store | None = None
        self._writer: Writer | None = None
        self._topics: Topics | None = None
        self._transactions: TransactionManager | RemoteTransactions | None = None
        self._journal: Journal | None = None
        self.cache = RecentMessages(settings.cache_bytes)
        self._background: list[asyncio.Task[None]] = []
        self._reopening: asyncio.Task[None] | None = None
        self._reason = "the store is not open yet"

    async def start(self) -> None:
        """Open the store. Raises StoreError if that does not work; then nothing is left open."""
        await self._open()

    def release(self) -> None:
        """Before a stop: whoever waits for a message is told at once to try again; else the stop would wait for every reader."""
        if self._topics is not None:
            for log in self._topics.opened.values():
                log.release()
        if self._transactions is not None:
            self._transactions.release()

    async def stop(self) -> None:
        """Finish what is in hand, leave a snapshot of every open topic, close the store."""
        self._reason = "the service is stopping"
        for task in (self._reopening, *self._background):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        topics, transactions, writer, store = self._topics, self._transactions, self._writer, self._store
        journal = self._journal
        self._topics = self._transactions = self._writer = self._store = self._journal = None
        if topics is not None and transactions is not None and writer is not None and store is not None and journal is not None:
            try:
                await journal.close()
                await topics.close()
                await transactions.close()
            finally:
                await writer.close()
                await asyncio.to_thread(store.close)

    @property
    def topics(self) -> Topics:
        """The topics. Raises StorageUnavailable while the store is not open."""
        if self._topics is None:
            raise StorageUnavailable(self._reason)
        return self._topics

    @property
    def transactions(self) -> TransactionManager | RemoteTransactions:
        """The transaction service, wherever it runs. Raises StorageUnavailable while the store is not open."""
        if self._transactions is None:
            raise StorageUnavailable(self._reason)
        return self._transactions

    @property
    def journal(self) -> Journal:
        """The coordinator of atomic commits. Raises StorageUnavailable while the store is not open."""
        if self._journal is None:
            raise StorageUnavailable(self._reason)
        return self._journal

    @property
    def writer(self) -> Writer:
        """The writer. Raises StorageUnavailable while the store is not open."""
        if self._writer is None:
            raise StorageUnavailable(self._reason)
        return self._writer

    @property
    def store(self) -> Store:
        """The store, for reading. Raises StorageUnavailable while it is not open."""
        if self._store is None:
            raise StorageUnavailable(self._reason)
        return self._store

    @property
    def retention(self) -> Retention:
        """A retention over the present store, to run a round by hand."""
        settings = self.settings
        lifetime_ms = settings.limits.max_transaction_lifetime_ms
        return Retention(self.topics, self.journal, self.store, self.writer, self.clock, settings.retention_seconds, lifetime_ms)

    async def _open(self) -> None:
        settings = self.settings
        store = await asyncio.to_thread(self._open_store)
        writer: Writer | None = None
        try:
            instance = await asyncio.to_thread(instance_of, store)
            writer = Writer(store, self._on_failure)
            self.cache = RecentMessages(settings.cache_bytes)
            transactions = await self._open_transactions(store, writer, instance)
            topics = await asyncio.to_thread(
                Topics,
                store,
                writer,
                self.clock,
                self.cache,
                settings.limits,
                settings.deduplication,
                transactions,
                instance,
            )
            journal = await Journal.recover(store, writer, topics, self.clock, settings.journal_limits)
        except BaseException:
            if writer is not None:
                await writer.close()
            await asyncio.to_thread(store.close)
            raise
        self._store, self._writer, self._topics, self._transactions = store, writer, topics, transactions
        self._journal = journal
        running = (
            self.retention.run(),
            transactions.run(),
            journal.run(),
            self._forget_outcomes(transactions, journal),
            SettlementTask(topics, transactions).run(),
        )
        self._background = [asyncio.ensure_future(each) for each in running]

    async def _open_transactions(self, store: Store, writer: Writer, instance: str) -> TransactionManager | RemoteTransactions:
        settings = self.settings
        if settings.transactions_url is None:
            return await TransactionManager.recover(store, writer, self.clock, settings.transaction_limits, instance)
        token = settings.transactions_token or settings.token
        return RemoteTransactions(settings.transactions_url, token, instance, self.clock)

    async def _forget_outcomes(self, transactions: TransactionManager | RemoteTransactions, journal: Journal) -> None:
        while True:
            await asyncio.sleep(self.settings.retention_seconds)
            try:
                while isinstance(transactions, TransactionManager) and await transactions.forget_outcomes():
                    pass
                while await journal.forget_outcomes():
                    pass
            except OncelogError as error:
                _log.warning("outcomes of old transactions are forgotten later: %s", error)

    def _on_failure(self, error: Exception) -> None:
        """A write failed: from this moment nothing is answered from memory."""
        _log.error("the store failed and is closed until it has been read back: %s", error)
        self.failures += 1
        self._reason = f"the store failed and is being reopened: {error}"
        topics, transactions, writer, store = self._topics, self._transactions, self._writer, self._store
        self._topics = self._transactions = self._writer = self._store = self._journal = None
        for task in self._background:
            task.cancel()
        if topics is not None and transactions is not None and writer is not None and store is not None:
            topics.abandon()
            transactions.release()
            self._reopening = asyncio.ensure_future(self._reopen(writer, store))

    async def _reopen(self, writer: Writer, store: Store) -> None:
        await writer.close()
        await asyncio.to_thread(store.close)
        attempt = 0
        while True:
            await asyncio.sleep(_REOPEN_SECONDS[min(attempt, len(_REOPEN_SECONDS) - 1)])
            attempt += 1
            try:
                await self._open()
            except StoreError as error:
                self._reason = f"the store failed and cannot be reopened yet: {error}"
                _log.error("%s", self._reason)
            else:
                _log.warning("the store is open again after %d attempts", attempt)
                return
