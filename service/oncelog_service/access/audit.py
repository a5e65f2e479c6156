"""The record of administrative requests: who asked for what, from where, and what came of it. One JSON line each.

It is apart from the log of the service: lines go to the file that the settings name, which may be moved away at any time, or
else to the logger `oncelog.audit`.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

_LOGGER = "oncelog.audit"


class Asked(NamedTuple):
    """Who asked for what, when, and from where."""

    time_ms: int
    principal: str
    peer: str
    method: str
    path: str


class Audit:
    """Writes the lines."""

    def __init__(self, path: Path | None) -> None:
        """Opens the file, for its owner alone. Raises OSError."""
        self._logger = logging.getLogger(_LOGGER)
        self._handler: logging.Handler | None = None
        if path is not None:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
            self._handler = logging.handlers.WatchedFileHandler(path, encoding="utf-8")

    def note(self, asked: Asked, status: int, code: str | None) -> None:
        """Writes a line. ``code``: of the refusal, if it was one. What cannot be written is said on stderr."""
        told = {
            "time": datetime.fromtimestamp(asked.time_ms / 1000, UTC).isoformat(timespec="milliseconds"),
            "principal": asked.principal,
            "from": asked.peer,
            "method": asked.method,
            "path": asked.path,
            "status": status,
            **({} if code is None else {"code": code}),
        }
        record = self._logger.makeRecord(_LOGGER, logging.INFO, "", 0, json.dumps(told), (), None)
        if self._handler is None:
            self._logger.handle(record)
        else:
            self._handler.handle(record)

    def close(self) -> None:
        """Closes the file."""
        if self._handler is not None:
            self._handler.close()
