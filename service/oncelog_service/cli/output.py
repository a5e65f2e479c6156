"""How a command prints: on stdout the result, as text or as JSON and nothing else; on stderr all the rest."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, TypeAlias

from pydantic import BaseModel
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from oncelog.errors import ConnectionFailed, OncelogError
from oncelog.wire.models import HeldMessages

_PAGE = 1_000
"""Rows of a table on a terminal, whose columns are as wide as they need: the first ones are seen before the last ones come."""

Members: TypeAlias = BaseModel | Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Output:
    """Where results go."""

    as_json: bool

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
        elif sys.stdout.isatty():
            table = Table(box=SIMPLE_HEAD, pad_edge=False)
            for column in columns:
                table.add_column(column, overflow="fold")
            for row in rows:
                table.add_row(*(Text(_shown(field)) for field in row))
            Console().print(table)
        else:
            for row in chain([columns], rows):
                print("\t".join(_shown(field) for field in row))

    def stream(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """The same, as they come: on a terminal some at a time, each with its head, else line by line."""
        if not sys.stdout.isatty():
            self.table(None, columns, rows)
            return
        left = iter(rows)
        page = list(islice(left, _PAGE))
        while True:
            self.table(None, columns, page)
            if len(page) < _PAGE:
                return
            page = list(islice(left, _PAGE))
            if not page:
                return

    def error(self, error: OncelogError, facts: Mapping[str, object]) -> None:
        """Why it did not happen, and whether that is certain."""
        problem = error.to_problem()
        if error.status is None:
            del problem["status"]  # only the SDK raises it: there was no answer that had one
        if isinstance(error, ConnectionFailed) and error.definite:
            problem["detail"] += "; is it running? `oncelog serve` starts one"
        certainty = (
            "definite: it was not done"
            if error.definite
            else "not definite: it may have been done; repeat it (a publish: under the same sequence ids)"
        )
        self.failure({**problem, **facts}, f"error: {problem['detail']} [{error.code}]\n{certainty}")

    def failure(self, problem: Mapping[str, object], text: str) -> None:
        """Anything else that went wrong."""
        print(json.dumps(problem) if self.as_json else text, file=sys.stderr)

    def note(self, text: str) -> None:
        """Something worth knowing beside the result; nothing with --json."""
        if not self.as_json:
            print(text, file=sys.stderr)


def progress_bar(as_json: bool, text: str) -> Progress:
    """A bar on stderr; nothing where that is no terminal. ``text``: of the last column, with the task's fields."""
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
    state = held.state or "of no transaction known here"
    return f"{held.messages} messages{whose} from offset {held.first_offset} since {iso_time(held.since_ms)} ({state})"


def forget_stdout() -> None:
    """Sends stdout nowhere when its reader has gone: Python would complain at exit about what it could not write."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _members(found: Members) -> Mapping[str, object]:
    return found.model_dump(mode="json") if isinstance(found, BaseModel) else found


def _titled(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ")


def _read(name: str, value: Any) -> object:
    return iso_time(value) if name.endswith("_ms") else value


def _shown(value: object) -> str:
    match value:
        case None | []:
            return "-"
        case list():
            return ", ".join(map(str, value))
        case True:
            return "yes"
        case False:
            return "no"
        case _:
            return str(value)
