"""Lays the service's log: one line a record, as text or as JSON, with the time and its zone, and with the request it is about.

Lines are written by a thread of their own: whoever was to read stderr and does not – a pipe that is full, a terminal that was
stopped – must not stop the service. Then lines are left out, and it is said how many.

What is said while a request is answered names that request, who asked, and the topic: :data:`asking` is set where its handler
begins, and is inherited by what that awaits. It holds some words, never the request itself: a task that lives on keeps no body.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import sys
import threading
from collections.abc import Mapping
from contextvars import Context, ContextVar
from datetime import UTC, datetime
from typing import Literal, NamedTuple

Form = Literal["text", "json"]


_LONGEST = 2_000
"""Characters of a path that are kept: more than any address of ours has, and less than a head may hold."""
_SECRET = re.compile(r"oncelog_[A-Za-z0-9_-]{20,}|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]++\.[A-Za-z0-9_-]++\.[A-Za-z0-9_-]*+")
"""A token that somebody took for its id, ours or a signed one."""
_LONGEST_NAME = 250
"""Characters of a name that a line keeps; one that is longer is none."""
_MOST_LINES = 2_000
"""That wait to be written."""
_LAST_SECONDS = 1.0
"""How long the end of the process waits for lines to be written."""


class Asking(NamedTuple):
    """The request that is being answered."""

    request: str
    """Its id: the client's own (`x-request-id`), else one of this process."""
    principal: str
    """Empty: nobody is known to have asked."""
    path: Mapping[str, str]
    """The names in its address."""
    trace: str = ""
    """Id of the trace that it is part of, where the service traces requests."""

    def fields(self) -> dict[str, object]:
        """What a line says of it."""
        topic = "/".join(as_said(self.path[name])[:_LONGEST_NAME] for name in ("namespace", "topic") if name in self.path)
        said = {"request": self.request, "principal": self.principal, "topic": topic, "trace": self.trace}
        return {name: value for name, value in said.items() if value}


asking: ContextVar[Asking | None] = ContextVar("asking", default=None)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """What the record says beside its message: of the request it is about, and what it was given as ``extra={"fields": …}``."""
    found = asking.get()
    return {**({} if found is None else found.fields()), **getattr(record, "fields", {})}


def as_said(path: str) -> str:
    """The path, or a name in it, as a line or a span may say it: what looks like a token is left out, and so is what is longer
    than any address.

    Else whoever reaches the port could fill the disk, without a credential, with lines of 128 KiB.
    """
    said = _SECRET.sub("oncelog_...", path[:_LONGEST])
    return said if len(path) <= _LONGEST else f"{said}... ({len(path)} characters)"


def printable(text: str, kept: str = "\t") -> str:
    """The text on one line: what would end it, move a terminal's cursor (also C1, in one character) or turn the order of what is
    read (bidi) is written as Python writes it in a string. A client's words must not look like ours. ``kept``: stays as it is."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in kept else ascii(each)[1:-1] for each in text)


class TextLines(logging.Formatter):
    """`2026-11-24T12:00:00.000+00:00 WARNING oncelog_service.service: what is so [request=… principal=… topic=…]`."""

    def format(self, record: logging.LogRecord) -> str:
        """Lays one record; a traceback follows on lines of its own, indented."""
        fields = " ".join(f"{name}={_word(value)}" for name, value in _fields(record).items())
        behind = f" [{fields}]" if fields else ""
        line = f"{_time(record)} {record.levelname} {record.name}: {printable(record.getMessage())}{behind}"
        trace = _trace(self, record)
        return line if not trace else "\n".join([line, *(f"  {printable(each)}" for each in trace.splitlines())])


class JsonLines(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`; where known `request`, `principal`, `topic`, `trace`,
    `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """Lays one record."""
        told = {"time": _time(record), "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        trace = _trace(self, record)
        return json.dumps({**told, **_fields(record), **({"exception": trace} if trace else {})}, default=str)


def _word(value: object) -> str:
    text = printable(str(value))
    return json.dumps(text, ensure_ascii=False) if not text or re.search(r'[\s"\[\]=]', text) else text


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info else []
    return "\n".join([*parts, *([record.stack_info] if record.stack_info else [])])


class Unhurried(logging.Handler):
    """Hands lines to a thread that writes them to a file; what logs never waits for that."""

    def __init__(self, file: int) -> None:
        """``file``: its descriptor. What Python buffers would be locked by the thread when the process ends."""
        super().__init__()
        self._file = file
        self._lines: queue.Queue[str] = queue.Queue(_MOST_LINES)
        self._left_out = 0
        threading.Thread(target=self._write, name="oncelog-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Lays the record here and now, where it is known which request it is about."""
        try:
            if self._left_out and not self._lines.full():
                said, self._left_out = self._left_out, 0
                self._lines.put_nowait(Context().run(self.format, _about_those_left_out(said)))  # of no request
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._left_out += 1
        except Exception:  # as every handler of logging does with a record that cannot be laid
            self.handleError(record)

    def flush(self) -> None:
        """Returns when all is written, or nobody has read for a moment."""
        with self._lines.all_tasks_done:
            self._lines.all_tasks_done.wait_for(lambda: not self._lines.unfinished_tasks, _LAST_SECONDS)

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            left = f"{line}\n".encode("utf-8", "backslashreplace")
            try:
                while left:
                    left = left[os.write(self._file, left) :]
            except OSError:
                pass  # whoever read has gone; there is nobody to tell
            finally:
                self._lines.task_done()


def _about_those_left_out(number: int) -> logging.LogRecord:
    said = "%d lines of the log were left out, as nobody read them"
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, said, (number,), None)


def begin(level: str, form: Form) -> None:
    """Have the process log to stderr from now on, in this form, this and what is worse. Again: from now on otherwise.

    Where somebody else has set up the log already, as tests do, that stays as it is.
    """
    root, formatter = logging.getLogger(), JsonLines() if form == "json" else TextLines()
    for handler in root.handlers:
        if isinstance(handler.formatter, (TextLines, JsonLines)):
            handler.setFormatter(formatter)
            root.setLevel(level.upper())
            return
    made = _to_stderr()
    made.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[made])


def _to_stderr() -> logging.Handler:
    try:
        return Unhurried(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):  # it is no file, as in a test, or there is none
        return logging.StreamHandler()
