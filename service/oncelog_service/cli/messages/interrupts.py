"""Ctrl-C, heard only where nothing can be torn."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupts:
    """Ctrl-C, let through only where nothing can be torn.

    An exception in the middle of queueing a message could leave half of it in the queue.
    """

    def __init__(self) -> None:
        self._pending = False
        self._open = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """In this block, and for what came before it, Ctrl-C raises KeyboardInterrupt."""
        self._open = True
        try:
            if self._pending:
                raise KeyboardInterrupt
            yield
        finally:
            self._open = self._pending = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._pending = True
        if self._open:
            raise KeyboardInterrupt
