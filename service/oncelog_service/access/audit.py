"""The record of administrative requests: who asked for what, from where, and what came of it. One JSON line each.

It is apart from the log of the service: lines go to the file that the settings name, which may be moved away at any time, or
else to the logger `oncelog.audit`.

Who shows no credential that holds is refused, and can ask as often as the network lets it. So of these refusals a bounded number
leaves a line, of each address by itself; the others are counted, and the count is one line. Whatever somebody did, and what was
refused to somebody known, is kept, each by itself.

The file may lie on a disk that hangs. So a thread of its own writes it, which is waited for as long as a disk takes: a line is
there before its request is answered, but where lines wait already.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from oncelog_service.logs import as_said
from oncelog_service.threads import Threads

_LOGGER = "oncelog.audit"
NOTHING: Mapping[str, object] = MappingProxyType({})


NAMELESS_LINES = 60
"""Of refusals to an address without a credential that holds, in so many seconds."""
NAMELESS_SECONDS = 60.0
_HELD_UP_SECONDS = 0.25
"""How long a line is waited for that no other waits before."""
_LAST_SECONDS = 1.0
"""How long the end waits for lines to be written."""
ADDRESSES = 1_000
"""Of which each has lines of its own; of the others together there are as many as of one."""


class Asked(NamedTuple):
    """Who asked for what, when, and from where."""

    time_ms: int
    principal: str | None
    """None: no credential that holds was shown."""
    peer: str
    method: str
    path: str
    subject: Mapping[str, object] = NOTHING
    """What it was about, where the address does not say it; never a secret."""


class _OwnersFile(logging.handlers.WatchedFileHandler):
    """A file that its owner alone can read, also the one that is made when it was moved away."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, opener=partial(os.open, mode=0o600))

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line. That the file cannot be opened any more is no reason to fail a request: it is said on stderr."""
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)


class Audit:
    """Writes the lines."""

    def __init__(self, path: Path | None, later: Callable[[float, Callable[[], None]], object]) -> None:
        """Opens the file, for its owner alone. ``later``: calls after so many seconds. Raises OSError."""
        self._later = later
        self._nameless: Counter[str | None] = Counter()
        """Address → refusals to nobody known, since they were told last. None: of those beyond ADDRESSES."""
        self._lines: Counter[str | None] = Counter()
        """How many of them have lines."""
        self._newest_ms = 0
        """Time of the newest of them."""
        self._logger = logging.getLogger(_LOGGER)
        self._handler: logging.Handler | None = None
        self._thread = Threads(1, "oncelog-audit")
        self._last: Future[bool] | None = None
        """Of the newest line."""
        if path is not None:
            self._handler = _OwnersFile(path, encoding="utf-8")
            self._thread.make_ready(1)  # while one can be begun

    def note(self, asked: Asked, status: int, code: str | None) -> None:
        """Writes a line. ``code``: of the refusal, if it was one. What cannot be written is said on stderr."""
        if asked.principal is None and not self._is_kept(asked):
            return
        told = {
            "time": _time(asked.time_ms),
            "principal": asked.principal,
            "from": asked.peer,
            "method": asked.method,
            "path": as_said(asked.path),
            **({"subject": dict(asked.subject)} if asked.subject else {}),
            "status": status,
            **({} if code is None else {"code": code}),
        }
        self._write(told)

    def _is_kept(self, asked: Asked) -> bool:
        """Counts a refusal to nobody known, and tells whether it has a line of its own."""
        if not self._nameless:
            self._later(NAMELESS_SECONDS, self._tell)
        peer = asked.peer if asked.peer in self._nameless or len(self._nameless) < ADDRESSES else None
        self._nameless[peer] += 1
        self._newest_ms = asked.time_ms
        has_line = self._lines[peer] < NAMELESS_LINES and not self._is_behind
        self._lines[peer] += has_line
        return has_line

    def _tell(self) -> None:
        """Says of each address how many had no line. It has lines again."""
        counts, lines = self._nameless, self._lines
        self._nameless, self._lines = Counter(), Counter()
        for peer, count in counts.items():
            if count > lines[peer]:
                told = {"time": _time(self._newest_ms), "principal": None, "from": peer, "refused": count - lines[peer]}
                self._write(told)

    def _write(self, told: Mapping[str, object]) -> None:
        record = self._logger.makeRecord(_LOGGER, logging.INFO, "", 0, json.dumps(told), (), None)
        if self._handler is None:
            self._logger.handle(record)
        else:
            waits, self._last = self._is_behind, self._thread.submit(self._handler.handle, record)
            if not waits:
                with suppress(TimeoutError):
                    self._last.result(_HELD_UP_SECONDS)

    @property
    def _is_behind(self) -> bool:
        return self._last is not None and not self._last.done()

    def close(self) -> None:
        """Says what has not been said yet, and closes the file; not one that hangs."""
        self._tell()
        self._thread.shutdown(wait=False)
        with suppress(TimeoutError):
            if self._last is not None:
                self._last.result(_LAST_SECONDS)
            if self._handler is not None:
                self._handler.close()


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
