"""How a command prints: on stdout the result, as text or as JSON and nothing else; on stderr all the rest."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from oncelog.errors import OncelogError
from oncelog.wire.transaction import is_own
from oncelog_service.cli.frame.table import lines
from oncelog_service.logs import printable

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.progress import Progress

    from oncelog.wire.models import HeldMessages

Members: TypeAlias = "BaseModel | Mapping[str, object]"


@dataclass(frozen=True, slots=True)
class Output:
    """Where results go."""

    as_json: bool
    reads: bool = False
    """Whether the command changes nothing: whatever fails, nothing was done."""

    def result(self, value: object, text: str) -> None:
        """The result of a command: ``value`` as one line of JSON, or ``text``."""
        print(json.dumps(value, default=_members) if self.as_json else text)

    def rows(self, found: Sequence[Members], columns: Sequence[str]) -> None:
        """Objects, each a row of these members."""
        of_each = map(_members, found)
        self.table(found, list(map(_titled, columns)), [[_read(name, each.get(name)) for name in columns] for each in of_each])

    def members(self, found: Members, title: str, shown: Mapping[str, object] | None = None) -> None:
        """One object, each member a row. ``shown``: how people read it, where that differs."""
        self.table(found, ["", title], [(_titled(name), _read(name, each)) for name, each in (shown or _members(found)).items()])

    def table(self, value: object, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """``value`` as one line of JSON, or a table: drawn on a terminal, else lines of fields with tabs between them."""
        if self.as_json:
            self.result(value, "")
        else:
            self.stream(columns, rows)

    def stream(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """The table alone, each row as it comes."""
        texts = (list(map(_shown, row)) for row in rows)
        if sys.stdout.isatty():
            for line in lines(columns, texts, shutil.get_terminal_size().columns, styled=is_styled()):
                print(line)
        else:
            for row in chain([columns], texts):
                print("\t".join(row))

    def error(self, error: OncelogError, facts: Mapping[str, object]) -> None:
        """Why it did not happen, and whether that is certain."""
        problem = error.to_problem()
        if error.status is None:
            del problem["status"]  # only the SDK raises it: there was no answer that had one
        said = f"error: {problem['detail']} [{error.code}]"
        if self.reads:
            problem["definite"] = True
        elif error.definite:
            said += "\ndefinite: it was not done"
        else:
            said += "\nnot definite: it may have been done; repeat it (a publish: under the same sequence ids)"
        self.failure({**problem, **facts}, said)

    def failure(self, problem: Mapping[str, object], text: str) -> None:
        """Anything else that went wrong."""
        print(json.dumps(problem) if self.as_json else text, file=sys.stderr)

    def note(self, text: str) -> None:
        """Something worth knowing beside the result; nothing with --json."""
        if not self.as_json:
            print(text, file=sys.stderr)


def progress_bar(as_json: bool, text: str) -> Progress:
    """A bar on stderr; nothing where that is no terminal. ``text``: of the last column, with the task's fields."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn(text, markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=as_json or not console.is_terminal,
    )


def iso_time(ms: int | None) -> str | None:
    """Milliseconds since 1970 as people read them."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def held_text(held: HeldMessages) -> str:
    """What is held back under one write pointer, as people read it."""
    whose = f" of {', '.join(held.producers)}" if held.producers else ""
    unknown = "ours, but not known any more" if is_own(held.write_pointer) else "of no transaction known here"
    state = held.state or unknown
    return f"{held.messages} messages{whose} from offset {held.first_offset} since {iso_time(held.since_ms)} ({state})"


def is_styled() -> bool:
    """Whether what goes to a terminal has colours and bold letters: not with NO_COLOR, nor where it can show none."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _members(found: Members) -> Mapping[str, object]:
    return found if isinstance(found, Mapping) else found.model_dump(mode="json")


def _titled(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ")


def _read(name: str, value: Any) -> object:
    return iso_time(value) if name.endswith("_ms") else value


def _shown(value: object) -> str:
    match value:
        case None | []:
            return "-"
        case list():
            return printable(", ".join(map(str, value)), kept="")
        case True:
            return "yes"
        case False:
            return "no"
        case _:
            return printable(str(value), kept="")
