"""Log lines of those whom others wait for: a thread of its own hands them to the handlers.

A handler may wait, and for those who log: one that publishes waits for room, with its lock held by whoever logs in the
application. A sender that wanted that lock before it makes the room would wait for ever, and every message behind it. Also a slow
handler holds up no message so.

No lock here: a signal handler may log in the midst of it.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial

from oncelog.process import exits, forks

_MOST = 1_000
"""Lines that wait for a handler which does not come to its end; the newest are kept. Each is of a request that failed: so many
are twenty minutes of one producer's."""
_END_SECONDS = 1.0
"""That those lines get when the interpreter exits: a handler that has hung until then will not be done later."""


class _Lines:
    """Those of this process that are not handed over yet."""

    def __init__(self) -> None:
        self.waiting = deque[Callable[[], None]](maxlen=_MOST)
        self._thread: threading.Thread | None = None
        self._is_armed = False
        forks.register(self)

    def add(self, line: Callable[[], None]) -> None:
        self.waiting.append(line)
        if not self._is_armed:
            self._is_armed = True
            exits.register_last(self.end)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="oncelog-log", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # none can be started any more, since the interpreter exits: :meth:`end` hands over
                self._thread = None

    def end(self) -> None:
        """Return when all is handed over, or that takes too long. The interpreter exits."""
        thread = self._thread
        if thread is not None:
            thread.join(_END_SECONDS)
        if thread is None or not thread.is_alive():
            self._hand_over()

    def _run(self) -> None:
        while True:
            self._hand_over()
            self._thread = None  # before the last look: who adds behind that begins another one
            if not self.waiting:
                return

    def _hand_over(self) -> None:
        while self.waiting:
            try:
                line = self.waiting.popleft()
            except IndexError:  # another thread, begun meanwhile, was quicker
                return
            try:
                line()
            except Exception:  # as logging does with what handlers raise
                traceback.print_exc()

    def _after_fork(self) -> None:
        self.waiting.clear()  # the parent says them
        self._thread = None


_lines = _Lines()


def log(logger: logging.Logger, level: int, text: str, *args: object, error: BaseException | None = None) -> None:
    """As ``logger.log``, without waiting for a handler; with the traceback of ``error``, if there is one."""
    if not logger.isEnabledFor(level):
        return
    path, line, function, _ = logger.findCaller(stacklevel=2)
    raised = None if error is None else (type(error), error, error.__traceback__)
    record = logger.makeRecord(logger.name, level, path, line, text, args, raised, function)
    # In the context of who says it: filters and handlers may ask whose request this was.
    _lines.add(partial(copy_context().run, logger.handle, record))
