"""Group commit: one worker that writes, over all topics, everything admitted since its last write in one synced batch.

A synced write of one row costs about as much as one of 1,000, so under load the requests of many connections share a sync; it
is LevelDB's own group commit one level up (its ``BuildBatchGroup``).

Where the disk is quick, waking a thread and being woken by it takes longer than a small write: then the event loop makes it
itself, last in a turn, so that all that the turn has brought shares it (:meth:`Writer._end_turn`).

The invariants on which everything depends:

* Submissions become durable in the order in which they were submitted, and are reported in that order on the event loop.
* A submission grows (:meth:`Writer.join`) only while it is queued and nothing of its view was handed over behind it. All that is
  queued is one write: what joins is neither ahead of anything that was handed over before, nor without it.
* After a failed write nothing is written any more. The submissions of that write may be on disk (not definite); those behind it
  were never written (definite).
* Loop and worker write in one order, and tell in it: the loop writes only while the worker has nothing, and **all that was handed
  to it before has been told on the loop**. Its thread is idle before that.
* The loop writes nothing that is large, that nobody waits for, or for which the store would have to wait for anybody
  (``Store.write_at_once``); after a slow write the worker has all of it until the disk has shown again that it is quick.
* What stands on a fence that is lost is not written, nor is anything behind it that shares a fence with what was not: it was
  decided on memory that has not come true. The rest goes on.
* Handing over never raises. What may refuse is asked before anything moves, in the same step: by :meth:`Writer.check` whether
  anything is written; of what adds rows, by :attr:`Writer.room`, whether it fits. What happens later is said by a call, and
  memory that has moved by something which is not written is dropped and read back.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial

from oncelog.errors import OncelogError, StorageFailed, StorageUnavailable
from oncelog_service.bounds.room import Room
from oncelog_service.clock import Clock
from oncelog_service.cluster.leases import LOST, Lease
from oncelog_service.counting.counts import Counts
from oncelog_service.storage.port import Batch, Fence, Store, StoreClosed, StoreError, StoreFenced
from oncelog_service.workers import Worker, Workers

_log = logging.getLogger(__name__)

_TIMES = 1_024
"""Writes of which it is kept how long they took."""
STALLED_SECONDS = 10.0
"""A write that takes longer has met a store that hangs: LevelDB holds one up for some seconds at most while it merges tables."""
LAZY_SECONDS = 0.05
"""How long a lazy submission waits for a write it can join."""

_QUICK_SECONDS = 0.7e-3
"""A disk whose writes take less is quick. The worker costs 0.1 to 0.2 ms of latency a write, and as much of the processor; a loop
that waits longer keeps others from being read."""
_SMALL_BYTES = 64 * 2**10
"""A group of more is the worker's: the loop can do something else while it makes, checks and copies the rows."""

_BEHIND_SECONDS = 0.05
"""So far may a store fall behind before whatever comes next waits for it. Up to there only those wait who are told of it
(bounds/turns.py): what brings much, and not the small write behind it."""


Told = Callable[[OncelogError | None], None]
"""Is called once, on the event loop: when what was handed over is on disk, or with the error why it is not, or may not be. It
must not raise."""


class _Submission:
    """What was handed over as one batch."""

    __slots__ = ("batch", "fallen", "has_ended", "is_lazy", "on_written", "told", "waiting")

    def __init__(self, batch: Batch, on_written: Callable[[], None], told: Told, fallen: bool) -> None:
        self.batch = batch
        self.is_lazy = False
        self.on_written = on_written
        self.told = [told]
        """One for each that handed over a part of it."""
        self.fallen = fallen
        """It was handed over under a lease that is known to be lost: it is not written."""
        self.has_ended = False
        self.waiting: list[asyncio.Future[None]] = []
        """Of those who wait for its end, whatever that is."""

    def end(self, error: Callable[[], OncelogError] | None = None) -> None:
        """Tell all; each gets an error of its own, or None: it is on disk. Whoever fails to listen stands in nobody's way."""
        self.has_ended = True
        for told in self.told:
            try:
                told(None if error is None else error())
            except Exception:
                _log.exception("an answer could not be given")
        for each in self.waiting:
            if not each.done():
                each.set_result(None)


class _State:
    """What all views of one writer share. On the event loop, but for the queue."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Of the queue. It is taken whole, and what joins a submission does so before it is taken or not at all."""
        self.queue: list[_Submission] = []
        self.newest: dict[Writer, _Submission] = {}
        """What each view has handed over last, as long as it is queued and can be joined."""
        self.lazy: list[_Submission] = []
        self.hurries = False
        """It is about to end: what is lazy goes with what is handed over in the same turn of the event loop."""
        self.last: _Submission | None = None
        """What was handed over last, until it has ended."""
        self.failure: Exception | None = None
        self.closed = False
        self.untold = 0
        """How often the worker was woken for something that it has not told on the loop yet."""
        self.ends_turn = False
        """What is queued waits for the end of the loop's turn."""
        self.writing_since: float | None = None
        """When the write that is under way began. Set by who writes."""
        self.pace = 10 * _QUICK_SECONDS
        """Seconds that a write takes: a moving mean, which one that is slow enough lifts at once."""
        self.times: deque[float] = deque(maxlen=_TIMES)
        # Of whoever writes: the worker or the loop, one at a time.
        self.caught_up = 0.0
        """When the store will have, as it said behind its writes."""
        self.fallen: set[Fence] = set()
        """Fences under which nothing is written any more."""
        self.goes_on = True


class Writer:
    """Belongs to one event loop and one opening of the store."""

    __slots__ = (
        "_at_once",
        "_clock",
        "_lease",
        "_loop",
        "_on_behind",
        "_on_failure",
        "_on_fenced",
        "_state",
        "_store",
        "_worker",
        "counts",
        "room",
    )

    def __init__(
        self,
        store: Store,
        on_failure: Callable[[Exception], None],
        on_fenced: Callable[[frozenset[Fence]], None] = lambda lost: None,
        room: Room | None = None,
        counts: Counts | None = None,
        on_behind: Callable[[float], None] = lambda seconds: None,
        *,
        clock: Clock,
        workers: Workers,
        at_once: bool = False,
    ) -> None:
        """``at_once``: small groups are written by the event loop while the disk is quick.

        ``on_failure`` is called once, on the event loop, before any waiting caller hears of the failure.

        ``on_fenced``: likewise, with all fences so far under which nothing is written any more.

        ``room``: on the disk; None: there is no end of it. ``counts``: of the process, over all openings.

        ``on_behind``: called on the event loop when a write has left the store behind, with the seconds that it needs.
        """
        self._store = store
        self._clock = clock
        self.room = room or Room(0)
        """On the disk. What adds rows asks :meth:`~oncelog_service.bounds.room.Room.admit` in the step that hands it over, before
        anything of it moves. What changes, ends or deletes is not asked: it has to go on, or there would never be room again."""
        self.counts = counts or Counts()
        """What all that write through it count."""
        self._on_failure = on_failure
        self._on_fenced = on_fenced
        self._on_behind = on_behind
        self._loop = asyncio.get_running_loop()
        self._state = _State()
        self._lease: Lease | None = None
        self._at_once = at_once
        self._worker = workers.begin("oncelog-writer", self._step)

    def under(self, lease: Lease) -> Writer:
        """A view of this writer that may write as long as this lease is valid."""
        view = copy(self)
        view._lease = None if lease.lasts else lease  # it is asked for with each request
        return view

    def fence(self, batch: Batch) -> None:
        """Have a batch that another view submits stand on the lease of this view too. Nothing joins what was submitted before."""
        self._state.newest.pop(self, None)
        if self._lease is not None and self._lease.fence is not None:
            batch.fences.add(self._lease.fence)

    @property
    def is_valid(self) -> bool:
        """Whether the lease of this view is known to stand: what it has written is the newest there is."""
        return self._lease is None or self._lease.is_valid

    @property
    def shared(self) -> bool:
        """Whether others may write to the store too: it is a database then, and to read a row takes a while."""
        return self._lease is not None and self._lease.fence is not None

    def queued(self) -> tuple[int, int]:
        """Returns how many submissions wait for the worker, what joined them too, and of how many bytes they are."""
        with self._state.lock:
            waiting = [*self._state.queue]
        return sum(len(each.told) for each in waiting), sum(each.batch.size for each in waiting)

    @property
    def writing_seconds(self) -> float:
        """For how long the write has been under way that the store is in; 0: it is in none."""
        since = self._state.writing_since
        return 0.0 if since is None else self._clock.elapsed() - since

    def take_times(self) -> list[float]:
        """Seconds that each synced write took, of the newest since this was called last."""
        times, self._state.times = self._state.times, deque(maxlen=_TIMES)
        return list(times)

    def submit(self, batch: Batch, on_written: Callable[[], None] = lambda: None) -> asyncio.Future[None]:
        """Hand over a batch; the future raises what :meth:`hand_over` tells. Never raises itself."""
        done: asyncio.Future[None] = self._loop.create_future()
        self.hand_over(batch, on_written, partial(complete, done))
        return done

    def hand_over(self, batch: Batch, on_written: Callable[[], None], told: Told) -> None:
        """Queue a batch. ``on_written`` runs on the event loop once it is synced, in submission order, before anyone is told.

        Never raises: the caller has moved memory, or is about to. The clock is not asked either; what keeps a late write
        out is its fence. ``told`` StorageFailed (it may be on disk) or StorageUnavailable (it is not).
        """
        submission = self._submission(batch, on_written, told)
        if self._takes(submission):
            self._state.last = submission
            self._flush_lazy()  # ahead of it: they were handed over before
            self._put(submission, joinable=True)

    def join(self, batch: Batch, more: Callable[[], object], told: Told) -> bool:
        """Have a batch that was handed over carry more, if it is still queued and nothing of this view was handed over behind it.

        ``more`` adds to the batch, and to what its ``on_written`` will note; it awaits nothing, and raises nothing. False: it was
        not called; hand it over.
        """
        state = self._state
        if state.failure is not None or state.closed:
            return False
        with state.lock:
            submission = state.newest.get(self)
            if submission is None or submission.batch is not batch:
                return False
            more()
        submission.told.append(told)
        return True

    def _takes(self, submission: _Submission) -> bool:
        """Whether anything is written any more; if not, who handed it over is told."""
        refusal = self._refusal
        if refusal is not None:
            submission.end(lambda: refusal)
        return refusal is None

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Memory moves within, and what it moves by is submitted. Nothing awaits within, and nothing may raise.

        Should something raise all the same, memory is ahead of what is written and cannot be put back: that is a failure of the
        store, after which everything is read back.
        """
        try:
            yield
        except BaseException as error:
            self.give_up(error)
            raise

    def submit_lazily(self, batch: Batch, on_written: Callable[[], None] = lambda: None) -> asyncio.Future[None]:
        """Queue a batch without waiting for it: it joins the next write, or makes its own after a short while."""
        done: asyncio.Future[None] = self._loop.create_future()
        submission = self._submission(batch, on_written, partial(complete, done))
        submission.is_lazy = True
        if self._takes(submission):
            self._state.lazy.append(submission)
            self._loop.call_later(0 if self._state.hurries else LAZY_SECONDS, self._flush_lazy)
        return done

    async def drained(self) -> None:
        """Return when everything submitted before this call is on disk. Others have had a turn meanwhile, whatever was under way:
        a caller that asks again and again does not keep the event loop for itself.

        Raises StorageFailed if it may not be, or is not the newest there is, since the lease is lost.
        """
        state = self._state
        last = state.last
        if last is None or last.has_ended:
            await asyncio.sleep(0)
        else:
            ended: asyncio.Future[None] = self._loop.create_future()
            last.waiting.append(ended)
            await asyncio.wait([ended])
        if state.failure is not None:
            raise StorageFailed(f"the store failed: {state.failure}")
        if not self.is_valid:
            raise StorageFailed(LOST)

    async def synced(self) -> None:
        """Return when everything handed over before this call, lazily too, is on disk. Raises as the future of a submission."""
        await self.submit(Batch())

    def hurry(self) -> None:
        """Have nothing wait for others from now on: it is about to end."""
        self._state.hurries = True
        self._flush_lazy()

    async def close(self) -> None:
        """Write what is queued, then end the worker. Nothing may be submitted any more."""
        self._flush_lazy()
        self._state.closed = True
        self._end_turn(is_closing=True)
        self._worker.end()
        await self._worker.ended()

    async def abandon(self) -> None:
        """Drop what is queued, as the end of the process would, and end the worker once the write that it is in has ended."""
        self._state.closed = True
        self._state.ends_turn = False
        self._state.lazy.clear()
        with self._state.lock:
            self._state.queue, self._state.newest = [], {}
        self._worker.end()
        await self._worker.ended()

    def check(self) -> None:
        """The last question before memory moves. Raises StorageUnavailable if nothing can be written, or not under this lease."""
        state = self._state
        if (state.failure is not None or state.closed) and (refusal := self._refusal) is not None:
            raise refusal
        if self._lease is not None and not self._lease.is_valid:
            raise StorageUnavailable(LOST)

    @property
    def _refusal(self) -> StorageUnavailable | None:
        if self._state.failure is not None:
            return StorageUnavailable(f"the store failed and is being reopened: {self._state.failure}")
        return StorageUnavailable("the service is stopping") if self._state.closed else None

    def _submission(self, batch: Batch, on_written: Callable[[], None], told: Told) -> _Submission:
        self.fence(batch)
        return _Submission(batch, on_written, told, self._lease is not None and self._lease.lost)

    def _flush_lazy(self) -> None:
        for lazy in self._state.lazy:
            self._put(lazy)
        self._state.lazy.clear()

    def _put(self, submission: _Submission, joinable: bool = False) -> None:
        state = self._state
        with state.lock:
            state.queue.append(submission)
            is_first = len(state.queue) == 1
            if joinable:
                state.newest[self] = submission
        if not is_first:
            return
        if self._at_once and state.pace < _QUICK_SECONDS:
            state.ends_turn = True
            self._end_turn_soon()
        else:
            self._wake()

    def _wake(self) -> None:
        self._state.untold += 1
        self._worker.wake()

    # --- at the end of the loop's turn

    def _end_turn_soon(self) -> None:
        """Behind all that this turn has still to do, and all that the worker has still to tell."""
        if not self._state.untold:
            self._loop.call_soon(self._end_turn)

    def _end_turn(self, is_closing: bool = False) -> None:
        """Write what the turn of the loop has handed over, if that is little and nobody is in the way; else the worker does."""
        state = self._state
        if not state.ends_turn:
            return
        state.ends_turn = False
        if is_closing or state.failure is not None or not self._write_here():
            self._wake()

    def _write_here(self) -> bool:
        """Write all that is queued, and tell it, unless that is not for the loop to do. The worker has nothing meanwhile."""
        state = self._state
        group = state.queue
        if any(each.is_lazy for each in group) or sum(each.batch.size for each in group) > _SMALL_BYTES:
            return False
        with state.lock:
            state.queue, state.newest = [], {}
        tell = self._write(group, wait=False)
        if tell is None:
            state.queue, state.pace = group, 2 * _QUICK_SECONDS
            return False
        tell()
        return True

    # --- by the worker

    def _step(self, worker: Worker) -> float | None:
        """Write all that is queued, and report it; or return the seconds after which to begin, where the store is far behind."""
        state = self._state
        if (ahead := state.caught_up - self._clock.elapsed() - _BEHIND_SECONDS) > 0:
            return ahead  # what comes meanwhile is in the same write
        with state.lock:
            group, state.queue, state.newest = state.queue, [], {}
        if not state.goes_on or state.failure is not None:  # not the store's: nothing that memory said is believed
            state.goes_on = False
            tell: Callable[[], None] | None = partial(self._refuse, group)
        else:
            tell = self._write(group)
        assert tell is not None  # it has waited for whoever was in the way
        worker.report(self._tell, tell)
        return None

    # --- by either, one at a time

    def _write(self, group: list[_Submission], wait: bool = True) -> Callable[[], None] | None:
        """Write the group but for what stands on a fence that is lost, now or before. Returns what is to be called on the loop.

        ``wait``: for whoever is in the way; else nothing is written then, and None returned.

        All of it is told at once: a caller that waits for the last submission must find those before it written.
        """
        state, store = self._state, self._store
        failure: Exception | None = None
        seconds = 0.0
        while standing := _standing(group, state.fallen):
            began = state.writing_since = self._clock.elapsed()
            try:
                batches = [submission.batch for submission in standing]
                if wait:
                    store.write(batches)
                elif not store.write_at_once(batches):
                    return None
                seconds = self._clock.elapsed() - began
                state.times.append(seconds)
                state.pace += (seconds - state.pace) / 8
            except StoreFenced as error:
                state.fallen |= error.lost
                continue
            except Exception as error:
                failure = error
                state.goes_on = False
            finally:
                state.writing_since = None
            break
        ahead = 0.0
        if failure is None and (behind := store.behind()):
            now = self._clock.elapsed()
            state.caught_up = max(state.caught_up, now) + behind
            ahead = state.caught_up - now
        return partial(self._decided, group, standing, frozenset(state.fallen), failure, seconds, ahead)

    # --- back on the event loop

    def _tell(self, tell: Callable[[], None]) -> None:
        """What the worker has to tell of what it was woken for."""
        self._state.untold -= 1
        if self._state.ends_turn:
            self._end_turn_soon()
        tell()

    def _decided(
        self,
        group: list[_Submission],
        standing: list[_Submission],
        lost: frozenset[Fence],
        failure: Exception | None,
        seconds: float,
        ahead: float,
    ) -> None:
        """``standing``: what of the group was written, or failed to be, in so many seconds; the rest stands on what is lost.
        ``ahead``: seconds that the store needs now.

        Everybody gets an answer, whatever happens to the others.
        """
        if failure is not None:
            self.give_up(failure)
        if len(standing) < len(group):
            with suppress(Exception), self.moving():
                self._on_fenced(lost)
        if failure is None and standing:
            self.counts.sync.observe(seconds)
            self.counts.group.observe(sum(len(submission.told) for submission in standing))
        stand = set(map(id, standing))
        # Memory first, all of it: whoever is told may hand over more at once, and finds the log as it is.
        ends = [(each, self._written(each) if id(each) in stand else _lost) for each in group]
        if ahead:
            try:
                self._on_behind(ahead)  # before anybody awakes and something large begins
            except Exception:
                _log.exception("who waits for a store that is behind could not be told")
        for submission, error in ends:
            submission.end(error)
        self._forget_last()

    def _refuse(self, group: list[_Submission]) -> None:
        for submission in group:
            submission.end(_unwritten)
        self._forget_last()

    def _forget_last(self) -> None:
        """What was handed over last has a batch, which nobody needs once it has ended."""
        if (last := self._state.last) is not None and last.has_ended:
            self._state.last = None

    def _written(self, submission: _Submission) -> Callable[[], OncelogError] | None:
        """It is on disk, or may be, if the store has failed: then what its callers are told. What cannot be taken note of is a
        failure too."""
        if self._state.failure is None:
            with suppress(Exception), self.moving():
                submission.on_written()
        failure = self._state.failure
        return None if failure is None else partial(_failed, failure)

    def give_up(self, error: BaseException) -> None:
        """Nothing is written any more, and nothing in memory is believed: the store has failed."""
        if self._state.failure is not None:
            return
        failure = error if isinstance(error, Exception) else RuntimeError(f"interrupted: {error!r}")
        if not isinstance(error, StoreError):
            _log.error("memory could not follow what is written; everything is read back", exc_info=error)
        self._state.failure = failure
        self._on_failure(failure)  # before any waiting caller hears of it
        for lazy in self._state.lazy:
            lazy.end(_unwritten)
        self._state.lazy.clear()


def _standing(group: list[_Submission], lost: set[Fence]) -> list[_Submission]:
    """Those on no lost fence or lease. What is not written takes its other fences with it, for whatever comes behind it."""
    standing: list[_Submission] = []
    for submission in group:
        if lost.isdisjoint(submission.batch.fences) and not submission.fallen:
            standing.append(submission)
        else:
            lost |= submission.batch.fences
    return standing


def _failed(failure: Exception) -> OncelogError:
    if isinstance(failure, StoreClosed):
        return StorageUnavailable(str(failure))
    return StorageFailed(f"the write failed: {failure}")


def _lost() -> StorageUnavailable:
    return StorageUnavailable(LOST)


def _unwritten() -> StorageUnavailable:
    return StorageUnavailable("the store failed before this was written")


def complete(done: asyncio.Future[None], error: OncelogError | None) -> None:
    """Tell a future. One that nobody awaits (a snapshot's) is no unhandled exception: it was reported."""
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
        done.exception()
