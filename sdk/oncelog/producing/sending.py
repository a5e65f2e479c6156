"""The shell around a producer's core: its threads, its lock, its futures, its clock, and the end of its process.

Whoever sends holds ``_sending`` and does what the core says next; the lock is held for single steps of the core only. The main
thread, which signal handlers interrupt, sends nothing as long as there can be another thread: if it did, a handler could not wait
for its own message, since the request of the frame that it interrupts would be under way until it returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from math import inf

from oncelog.errors import OncelogError, ProducerClosed
from oncelog.process import exits, forks
from oncelog.process.procedures import drive
from oncelog.process.tending import Tender
from oncelog.process.turns import Condition
from oncelog.producing.batching import Batch
from oncelog.producing.core import Complete, Core, Opened, Policy
from oncelog.producing.outcome import Outcome, Outcomes
from oncelog.producing.shell import Address, Shell
from oncelog.values.outgoing import Outgoing
from oncelog.values.receipt import Receipt, Receipts


class Sender(Shell):
    """Sends on a thread of its own, or on that of a caller who waits."""

    def __init__(self, address: Address, policy: Policy, exit_timeout: float) -> None:
        """Open the producer. Raises what that raises."""
        # Reentrant: a signal handler may interrupt the thread that holds it. See :mod:`oncelog.producing.core`.
        super().__init__(address, policy, lock := threading.RLock())
        self._exit_timeout = exit_timeout
        self._changed = Condition(lock)
        self._opening = threading.RLock()
        """Held in a forked child while its own producer is opened."""
        self._sending = threading.Lock()
        """Never held by the main thread, which handlers interrupt, as long as there can be another one."""
        self._enter(drive(address.open()))
        forks.register(self)
        exits.register(self)

    def _enter(self, opened: Opened) -> None:
        self.core = Core(self._policy, opened, self._address.initial, _new_batch)
        self._abandoned = threading.Event()
        self._thread: Tender | None = None
        self._sends: int | None = None
        """The thread that sends."""
        self._begin()  # at the end: a signal handler that finds this object elsewhere yet begins by itself

    # --- messages

    def put(self, message: Outgoing, is_awaited: bool) -> Outcome:
        """Queue one message. ``is_awaited``: its caller waits for it, so that it lingers for no company."""
        if is_awaited:
            self.check_may_wait()
        if forks.here() != self._home:
            self._come_over()
        with self._lock:
            core = self.core
            while True:
                if not core.has_room(message.size):
                    self._wait_for_room(message.size)
                batch = core.open
                at = core.put(message, batch)
                if self.core is not core:
                    raise self._disowned()
                if at is not None:
                    break
                core.end_batch(self._clock.monotonic())
            if is_awaited:
                batch.shared.awaited = {*batch.shared.awaited, at}
                if core.queue:
                    core.hurry(self._clock.monotonic())
                else:
                    core.end_batch(self._clock.monotonic())
            elif not core.lingers():
                core.linger(self._clock.monotonic())
                self._wake()
        if exits.over and not is_awaited:
            exits.late(self)  # everything that waits was sent already: nothing else would send this
        return Outcome(batch.shared, at)

    def put_batch(self, batch: Batch) -> Outcomes:
        """Queue messages, as columns, in as few requests as can be; one if it is ``whole``. Its caller waits for them."""
        self.check_may_wait()
        outcomes = batch.shared = Outcomes(len(batch))
        if self.is_elsewhere():
            self._come_over()
        core = self.core
        try:
            for part in self._parts(batch):
                with self._lock:
                    while True:
                        self._wait_for_room(part.size, len(part))
                        is_queued = core.put_batch(part, self._clock.monotonic())
                        if self.core is not core:
                            raise self._disowned()
                        if is_queued:
                            break
        except BaseException as error:
            if self.core is core:
                self.disregard(outcomes, error)
            raise
        return outcomes

    def _wait_for_room(self, size: int, count: int = 1) -> None:
        """Return when there is room, or none is needed any more. The thread that makes the room cannot wait for it."""
        if self._sends == threading.get_ident():
            return
        if not self.core.has_room(size, count):
            self.core.end_batch(self._clock.monotonic())  # what lingers would take room until its time is up
            self._wake()
        self._changed.wait_for(lambda: self.core.has_room(size, count) or self.core.stopped is not None or self.core.is_closed)

    def receipt(self, outcome: Outcome) -> Receipt:
        """Return the receipt of a message that its caller waits for."""
        self._come_to(outcome)
        return outcome.result()

    def result(self, outcomes: Outcomes) -> Receipts:
        """Return the receipts of messages that one call has sent."""
        self._come_to(outcomes)
        return outcomes.receipts()

    def _come_to(self, outcome: Outcome | Outcomes) -> None:
        try:
            self.wait(outcome)
        except BaseException as error:
            self.disregard(outcome, error)
            raise

    def wait(self, outcome: Outcome | Outcomes) -> None:
        """Return when the message has its result, or all of them have."""
        if threading.current_thread() is threading.main_thread():
            with self._lock:
                if self._wake():
                    self._changed.wait_for(outcome.done)
                    return
        self._drain(until=outcome.done)
        outcome.wait()

    def check_may_wait(self) -> None:
        """Raises RuntimeError in a future's callback: it runs on the thread that sends, which would wait for itself."""
        if self._sends == threading.get_ident():
            raise RuntimeError(
                "send, send_batch, flush and close wait and cannot be called by a future's callback; use send_async"
            )

    def _check(self) -> None:
        self.check_may_wait()
        if self.is_elsewhere():
            self._come_over()

    # --- the end

    def end_batch(self) -> Batch | None:
        """Return the last batch that is on its way; every message so far is in it or in one before it."""
        with self._lock:
            return self.core.end_batch(self._clock.monotonic())

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything queued so far has its result; raise the first failure that no caller has heard of."""
        self.check_may_wait()
        if self.is_elsewhere():
            return  # nothing was sent on this side of the fork
        was_given_up, last = self._abandoned.is_set(), self.end_batch()
        if last is not None and not last.done:
            if timeout is None:
                if threading.current_thread() is not threading.main_thread() or not self._wakes():
                    self._drain(until=lambda: last.done)
            elif not self._wakes():
                self.core.last_moment = self._clock.monotonic() + timeout  # nobody else can: the interpreter exits
                self._drain(until=lambda: last.done)
        with self._lock:
            if not self._changed.wait_for(lambda: last is None or last.done, timeout):
                raise TimeoutError(f"{self.core.pending} messages have no result yet")
            failure = self.core.take_failure()
            if failure is None and last is not None and self._abandoned.is_set() and not was_given_up:
                result = last.shared.of(last.begin + len(last) - 1)
                if result is not None and result.error is not None:  # another thread has closed it, and waits no longer
                    failure = self.core.unusable()
        if failure is not None:
            raise failure

    def close(self, timeout: float | None) -> None:
        """Flush, end an assigned name. Raises as :meth:`flush` does; TimeoutError says what was given up."""
        self.check_may_wait()
        with self._lock:
            self.core.close()
            if self._thread is not None:
                self._thread.ring()
            self._changed.notify_all()
        try:
            self.flush(timeout)
            with self._lock:
                self._changed.wait_for(lambda: self._thread is None, 1.0)  # it has nothing left to do
        except TimeoutError:
            raise TimeoutError(self._give_up()) from None
        finally:
            drive(self.end_name(timeout))

    def _notify(self) -> None:
        self._changed.notify_all()

    def _nap(self, seconds: float) -> bool:
        return self._abandoned.wait(seconds)

    def _abandon(self) -> None:
        self._abandoned.set()

    def _begin_exit(self) -> None:
        if not self.is_elsewhere() and self.end_batch() is not None:
            self._wakes()

    def _end_exit(self, passed: float) -> str | None:
        if self.is_elsewhere() or self._abandoned.is_set() or self._sends == threading.get_ident():
            return None
        end = self._clock.monotonic() + self._exit_timeout - passed
        try:
            self.flush(max(0.0, self._exit_timeout - passed))
            drive(self.end_name(end - self._clock.monotonic()))
        except TimeoutError:
            return self._give_up() + ": the interpreter exits; flush() or close() the producer before"
        except OncelogError as error:
            return f"{self}: a message failed and nobody has asked: {error}"
        return None

    # --- forks

    def _come_over(self) -> None:
        """Begin anew on this side of a fork. Raises Forked where that would fence the producer of the other side."""
        if self.core.is_closed:
            raise ProducerClosed
        if self._address.name is not None:
            raise forks.forked(f"producer {self._address.name!r}")
        with self._opening:
            if not self.is_elsewhere():
                return  # the thread that held the lock before has done it
            opened = drive(self._address.open())
            with self._lock:
                if self.is_elsewhere():  # else a signal handler has done it
                    self._enter(opened)
        exits.register(self)

    def _after_fork(self) -> None:
        """The child sends nothing of what its parent has queued."""
        if self._sends != threading.get_ident():
            forks.renew(self._sending)
        forks.renew(self._opening)
        forks.renew(self._lock)
        old, error = self.core, self._disowned()
        for batch in (*old.queue, old.open):
            batch.shared.disown(error)
        opened = Opened(old.name, old.epoch, old.last_sequence_id, old.last_message_id)
        self.core = Core(self._policy, opened, None, _new_batch)
        self.core.is_closed = old.is_closed
        self._abandoned = threading.Event()
        self._thread = self._sends = None
        self._has_ended = False

    def _disowned(self) -> OncelogError:
        """Make the error of a message that the other side of a fork has, also where a signal handler forks in the midst of it."""
        error = forks.forked(f"the message was queued, and producer {self.core.name!r}")
        error.definite = False
        return error

    # --- who sends

    def _wake(self) -> bool:
        """Wake the sender's thread. False: no thread can be started any more, since the interpreter exits."""
        thread = self._thread
        if thread is None or thread.ident is None:  # not started yet: a signal handler has come between these lines
            thread = self._thread = Tender(self, Sender._tend, f"oncelog-producer-{self.core.name}")
            try:
                thread.begin()
            except RuntimeError:
                self._thread = None
                return False
        thread.ring()
        return True

    def _wakes(self) -> bool:
        with self._lock:
            return self._wake()

    def _tend(self) -> float | None:
        """Send what is full or has lingered long enough, in the sender's thread, which is told as :class:`Tender` says."""
        while True:
            with self._lock:
                core = self.core
                if self._thread is not threading.current_thread():
                    return None  # another one was started instead
                left = None if core.queue else core.tick(self._clock.monotonic())
                if not core.queue:
                    if not core.open.rows and (core.is_closed or core.stopped is not None):
                        self._thread = None
                        self._changed.notify_all()
                        return None
                    return inf if left is None else left
            # What escapes from here has stopped the producer; the thread stays, so that what is queued fails at once.
            with suppress(BaseException):
                self._drain()

    def _drain(self, until: Callable[[], bool] | None = None) -> None:
        """Do what the core says, until ``until`` says so (None: until nothing is queued).

        With ``until``, returns at once where another thread is sending: that one, or the sender's thread after it, gets there.
        """
        if not self._sending.acquire(blocking=until is None):
            return
        try:
            self._sends = threading.get_ident()
            while not (until is not None and until()) and self._do_next():
                pass
        finally:
            self._sends = None
            self._sending.release()
            if until is not None and (self.core.queue or self.core.open.rows):
                self._wakes()

    def _do_next(self) -> bool:
        """Do one thing that the core says; False: there is nothing."""
        with self._lock:
            if not self.core.queue:
                self.core.tick(self._clock.monotonic())
            action = self.core.next(self._clock.monotonic())
        if action is None:
            return False
        try:
            drive(self._do(action))
        except BaseException as error:
            with self._lock:
                self.core.interrupted(error)
                result = self.core.next(self._clock.monotonic())
            # Here, while it is known which batch it was: this thread may be on its way out, and others wait for the messages.
            if isinstance(result, Complete):
                self._complete(result)
            raise
        return True


def _new_batch() -> Batch:
    return Batch(Outcomes())
