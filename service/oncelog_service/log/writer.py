"""Group commit: one thread that writes, over all topics, everything admitted since its last write in one synced batch.

A synced write of one row costs about as much as one of 1,000, so under load the requests of many connections share a sync; it
is LevelDB's own group commit one level up (its ``BuildBatchGroup``).

The invariants everything stands on:

* Submissions become durable in the order in which they were submitted, and are reported in that order on the event loop.
* After a failed write nothing is written any more. The submissions of that write may be on disk (not definite); those behind it
  were never written (definite).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

from oncelog.errors import OncelogError, StorageFailed, StorageUnavailable
from oncelog_service.storage.port import Batch, Store, StoreClosed

LAZY_SECONDS = 0.05
"""How long a lazy submission waits for a write it can join."""


class _Submission(NamedTuple):
    batch: Batch
    on_written: Callable[[], None]
    done: asyncio.Future[None]


class Writer:
    """Belongs to one event loop and one opening of the store."""

    def __init__(self, store: Store, on_failure: Callable[[Exception], None]) -> None:
        """``on_failure`` is called once, on the event loop, before any waiting caller hears of the failure."""
        self._store = store
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_Submission | None] = SimpleQueue()
        self._lazy: list[_Submission] = []
        self._last: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._closed = False
        self.groups = 0
        """Synced writes so far."""
        self.submissions = 0
        """Submissions that those writes carried."""
        self._thread = threading.Thread(target=self._run, name="oncelog-writer", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch, on_written: Callable[[], None]) -> asyncio.Future[None]:
        """Queue a batch. ``on_written`` runs on the event loop once it is synced, in submission order, before anyone awakes.

        The future raises StorageFailed (it may be on disk) or StorageUnavailable (it is not).
        """
        self.check()
        for lazy in self._lazy:
            self._queue.put(lazy)
        self._lazy.clear()
        return self._enqueue(batch, on_written)

    def submit_lazily(self, batch: Batch, on_written: Callable[[], None]) -> asyncio.Future[None]:
        """The same for what nobody waits for: it joins the next write, or makes its own after a short while."""
        self.check()
        done: asyncio.Future[None] = self._loop.create_future()
        done.add_done_callback(_retrieve)
        self._lazy.append(_Submission(batch, on_written, done))
        self._loop.call_later(LAZY_SECONDS, self._flush_lazy)
        return done

    async def settled(self) -> None:
        """Return when everything submitted before this call is on disk. Raises StorageFailed if it may not be."""
        if self._last is not None and not self._last.done():
            await asyncio.wait([self._last])
        if self._failure is not None:
            raise StorageFailed(f"the store failed: {self._failure}")

    async def synced(self) -> None:
        """Return when everything handed over before this call, lazily too, is on disk. Raises as the future of a submission."""
        await self.submit(Batch(), lambda: None)

    async def close(self) -> None:
        """Write what is queued, then end the thread. Nothing may be submitted any more."""
        self._flush_lazy()
        self._closed = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def check(self) -> None:
        """Raises StorageUnavailable if a submission would."""
        if self._failure is not None:
            raise StorageUnavailable(f"the store failed and is being reopened: {self._failure}")
        if self._closed:
            raise StorageUnavailable("the service is stopping")

    def _enqueue(self, batch: Batch, on_written: Callable[[], None]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        done.add_done_callback(_retrieve)
        self._last = done
        self._queue.put(_Submission(batch, on_written, done))
        return done

    def _flush_lazy(self) -> None:
        for lazy in self._lazy:
            self._queue.put(lazy)
        self._lazy.clear()

    # --- on the writer thread

    def _run(self) -> None:
        failed = False
        while (first := self._queue.get()) is not None:
            group = [first]
            stop = self._drain(group)
            failed = failed or not self._write(group)
            if failed:
                self._refuse_rest(stop)
                return
            if stop:
                return

    def _drain(self, group: list[_Submission]) -> bool:
        """Add everything queued to ``group``; whether the end of the queue was among it."""
        while True:
            try:
                submission = self._queue.get_nowait()
            except Empty:
                return False
            if submission is None:
                return True
            group.append(submission)

    def _write(self, group: list[_Submission]) -> bool:
        try:
            self._store.write([submission.batch for submission in group])
        except Exception as error:
            self._report(self._failed, group, error)
            return False
        self._report(self._written, group)
        return True

    def _refuse_rest(self, stop: bool) -> None:
        while not stop:
            submission = self._queue.get()
            stop = submission is None
            if submission is not None:
                self._report(_fail, submission.done, StorageUnavailable("the store failed before this was written"))

    def _report(self, call: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop was closed under us: nobody is left who waits for an answer
            return

    # --- back on the event loop

    def _written(self, group: list[_Submission]) -> None:
        self.groups += 1
        self.submissions += len(group)
        for _, on_written, done in group:
            on_written()
            if not done.done():
                done.set_result(None)

    def _failed(self, group: list[_Submission], error: Exception) -> None:
        self._failure = error
        self._on_failure(error)
        never = isinstance(error, StoreClosed)
        for _, _, done in group:
            _fail(done, StorageUnavailable(str(error)) if never else StorageFailed(f"the write failed: {error}"))
        for lazy in self._lazy:
            _fail(lazy.done, StorageUnavailable("the store failed before this was written"))
        self._lazy.clear()


def _fail(done: asyncio.Future[None], error: OncelogError) -> None:
    if not done.done():
        done.set_exception(error)


def _retrieve(done: asyncio.Future[None]) -> None:
    """A failure that nobody awaits (a snapshot's) is no unhandled exception: on_failure has told of it."""
    if not done.cancelled():
        done.exception()
