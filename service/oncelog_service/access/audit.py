"""The record of administrative requests: who asked for what, from where, and what came of it. One JSON line each.

It is apart from the log of the service: lines go to the file that the settings name, which may be moved away at any time, or
else to the logger `oncelog.audit`.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

_LOGGER = "oncelog.audit"
_SECRET = re.compile(r"oncelog_[A-Za-z0-9_-]{20,}|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]++\.[A-Za-z0-9_-]++\.[A-Za-z0-9_-]*+")
"""A token that somebody took for its id, ours or a signed one."""
NOTHING: Mapping[str, object] = MappingProxyType({})


_LONGEST = 2_000
"""Characters of a path that are kept: more than any address of ours has, and less than a head may hold."""


def as_said(path: str) -> str:
    """The path as a line may say it: what looks like a token is left out, and so is what is longer than any address.

    Else whoever reaches the port could fill the disk, without a credential, with lines of 128 KiB.
    """
    said = _SECRET.sub("oncelog_...", path[:_LONGEST])
    return said if len(path) <= _LONGEST else f"{said}... ({len(path)} characters)"


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

    def __init__(self, path: Path | None) -> None:
        """Opens the file, for its owner alone. Raises OSError."""
        self._logger = logging.getLogger(_LOGGER)
        self._handler: logging.Handler | None = None
        if path is not None:
            self._handler = _OwnersFile(path, encoding="utf-8")

    def note(self, asked: Asked, status: int, code: str | None) -> None:
        """Writes a line. ``code``: of the refusal, if it was one. What cannot be written is said on stderr."""
        told = {
            "time": datetime.fromtimestamp(asked.time_ms / 1000, UTC).isoformat(timespec="milliseconds"),
            "principal": asked.principal,
            "from": asked.peer,
            "method": asked.method,
            "path": as_said(asked.path),
            **({"subject": dict(asked.subject)} if asked.subject else {}),
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
