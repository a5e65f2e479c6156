"""Acknowledges in the background, on a thread for that: the shell of a durable consumer."""

from __future__ import annotations

import threading
from contextlib import suppress
from math import inf

from oncelog.api.api import Api
from oncelog.api.retry import may_retry
from oncelog.codecs import V
from oncelog.errors import OncelogError
from oncelog.process import exits, forks
from oncelog.process.exits import EXIT_SECONDS
from oncelog.process.procedures import drive
from oncelog.process.tending import Tender
from oncelog.reading.position import Upto
from oncelog.reading.stream import Stream
from oncelog.reading.twins import ConsumerTwin


class Acknowledging(ConsumerTwin[Api, V], Stream[V]):
    """Sends what is acknowledged, one request at a time; to be called from any thread, also in a signal handler."""

    _hurries = False
    """The interpreter exits: what waits is not to wait for company any more."""

    def _made(self) -> None:
        try:
            drive(self._open_subscription())
        except BaseException:
            drive(self._let_go())
            raise
        self._sending = threading.RLock()
        """Held while an acknowledgement or a seek is under way: one after the other."""
        self._guard = threading.RLock()
        self._thread: Tender | None = None
        self._due: float | None = None
        """When what waits has waited for company long enough."""
        forks.register(self)
        exits.register(self)

    def _acknowledge_later(self, wanted: Upto) -> None:
        """Have it sent when it has waited for company long enough."""
        with self._guard:
            while True:
                before = self._pending
                if before is not None and not before.message_id < wanted.message_id:
                    break
                if self._pending is before:  # else a signal handler has acknowledged more in between
                    self._pending = wanted
                    break
            thread = self._thread
            if thread is None or thread.ident is None:  # not started yet: a signal handler has come between these lines
                thread = self._thread = Tender(self, Acknowledging._tend, f"oncelog-consumer-{self.subscription}")
                with suppress(RuntimeError):  # none can be started any more: it is sent at the exit
                    thread.begin()
            elif before is None:
                thread.ring()
        exits.late(self)

    def _end(self, timeout: float | None) -> None:
        """Send what waits, and let go of everything."""
        with self._guard:
            self._interrupted = True
            self._stop()
            self._ring()
        try:
            if forks.here() != self._home:
                return  # what waits is the parent's
            # Not joined: a signal handler may have interrupted who holds what the thread waits for. It sends nothing any more.
            try:
                self._send_pending(timeout)
            except (OncelogError, TimeoutError):
                self._pending = None  # raised once; a second close has nothing left to say
                raise
            if self._untold:
                self._raise_failure()
        finally:
            drive(self._let_go())

    def _after_fork(self) -> None:
        self._errands.after_fork()
        forks.renew(self._sending)
        forks.renew(self._guard)
        self._pending, self._thread, self._interrupted = None, None, True

    def _begin_exit(self) -> None:
        with self._guard:
            self._hurries = True
            self._ring()

    def _end_exit(self, passed: float) -> str | None:
        if self._pending is None or forks.here() != self._home:
            return None
        try:
            self._send_pending(max(0.0, EXIT_SECONDS - passed))
        except (OncelogError, TimeoutError) as error:
            return f"consumer of {self._namespace}/{self._topic} at the exit: {error}"
        return None

    def _send_pending(self, timeout: float | None = None) -> None:
        """Acknowledge what waits. It waits on if that fails, unless it never could succeed. Raises TimeoutError: ``timeout``
        seconds were not enough."""
        end = None if timeout is None else self._clock.monotonic() + timeout
        if not self._sending.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutError(self._unacknowledged())
        try:
            left = None if end is None else end - self._clock.monotonic()
            if self._pending is not None and left is not None and left <= 0:
                raise TimeoutError(self._unacknowledged())
            drive(self._acknowledge_pending(None if left is None else max(0.0, left)))
        except OncelogError as error:
            if end is not None and may_retry(error, idempotent=True):
                raise TimeoutError(f"{self._unacknowledged()}: {error}") from error
            raise
        finally:
            self._sending.release()

    def _tend(self) -> float | None:
        """Send what has waited long enough, in the thread for that, which is told as :class:`Tender` says."""
        with self._guard:
            is_mine = self._thread is threading.current_thread()
            if self._closed or not is_mine or self._has_ended:
                self._thread = None if is_mine else self._thread
                return None
            if self._pending is None:
                return inf
            now = self._clock.monotonic()
            if self._due is None:
                self._due = now + self._ack_interval
            if now < self._due and not self._hurries:
                return self._due - now
            self._due, self._hurries = None, False
        with self._sending:  # until the failure is noted: who waits for it, to flush or to close, must hear of that
            try:
                self._send_pending()
            except OncelogError as error:
                self._note_in_background(error)
        return 0.0

    def _ring(self) -> None:
        if (thread := self._thread) is not None:
            thread.ring()

    def _rest(self) -> None:
        self._ring()
        self._errands.rest()

    def _check_here(self) -> None:
        if forks.here() != self._home:
            raise forks.forked(f"the consumer of subscription {self.subscription!r}")
