"""What a client of the store noted: each request before it was made, and its answer. One file a client, lines of JSON.

A process that is killed loses nothing that it had noted: the file is the operating system's. A request without an answer is one
whose client was killed meanwhile; nobody knows what became of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from .leader import Value

Kind = Literal["increment", "compare and set", "put", "delete", "get"]


@dataclass(frozen=True)
class Request:
    """What was asked."""

    name: str
    """Unique; the change that it brings about carries it."""
    kind: Kind
    key: str
    value: Value = None
    """The new one, of a put and a compare-and-set."""
    expected: Value = None
    """Of a compare-and-set."""


@dataclass(frozen=True)
class Answer:
    """What the client was told."""

    status: Literal["changed", "refused", "read"]
    place: int
    """How many changes there were when it was answered; a change's own offset where there was one."""
    before: Value
    """The value there was."""
    after: Value
    """The value there was then."""
    fenced: int = 0
    """How often another leader had been faster, until this one could answer."""


@dataclass(frozen=True)
class Attempt:
    """A request, and what its client knows of it. Times are those of one clock for all processes of the machine."""

    request: Request
    begun: float
    answer: Answer | None = None
    """None: not known."""
    ended: float | None = None


class Notes:
    """A client's file, to be continued by the next process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def asks(self, request: Request) -> None:
        """Before anything is done."""
        self._note({"request": asdict(request), "at": time.monotonic()})

    def was_answered(self, request: Request, answer: Answer) -> None:
        """Right after it came."""
        self._note({"answered": request.name, "answer": asdict(answer), "at": time.monotonic()})

    def _note(self, line: dict[str, Any]) -> None:
        # The new line comes first: a line that a kill has cut cannot spoil the one behind it.
        self._file.write("\n" + json.dumps(line))
        self._file.flush()


def read_notes(path: Path) -> list[Attempt]:
    """Everything in a client's file, in the order of asking."""
    return attempts(path.read_text("utf-8").splitlines()) if path.exists() else []


def attempts(lines: Iterable[str]) -> list[Attempt]:
    """What the lines say. One that was cut was being written when its client was killed, before it did anything more."""
    found: dict[str, Attempt] = {}
    for line in lines:
        try:
            note = json.loads(line)
        except ValueError:
            continue
        if "request" in note:
            request = Request(**note["request"])
            found[request.name] = Attempt(request, note["at"])
        else:
            asked = found[note["answered"]]
            found[asked.request.name] = Attempt(asked.request, asked.begun, Answer(**note["answer"]), note["at"])
    return list(found.values())
