"""Running reads: counted, so that a store is not closed under one of them."""

from __future__ import annotations

import threading

from oncelog_service.storage.port import StoreClosed


class RunningReads:
    """Counts running reads, as a context for each; :meth:`close` waits for them and lets in no more."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._closed = False

    def __enter__(self) -> None:
        with self._changed:
            if self._closed:
                raise StoreClosed("the store is closed")
            self._running += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._running -= 1
            if self._closed:  # else nobody waits for it
                self._changed.notify_all()

    @property
    def running(self) -> int:
        """How many run now."""
        return self._running

    def close(self) -> None:
        """Waits until no read runs. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._running == 0)
