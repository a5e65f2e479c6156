"""Which sequence id each row of `oncelog publish` has. Pure.

Invariants:

* A row's number is said by the row and its place in the input, by nothing else: not by what was published before.
* Numbers rise from row to row, also over rows that are passed over. Else a row of a file in another order would be taken for one
  that is there already, and be lost.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import typer

from oncelog.errors import InvalidRequest
from oncelog_service.cli.messages.rows import Row

_HINT = "--sequence-id"


class Numbering(NamedTuple):
    """Where sequence ids come from."""

    first: int | None = None
    """Of the first row; the others follow on."""
    column: str | None = None
    by_name: bool = False

    @property
    def is_of_the_row(self) -> bool:
        """Whether the row says it itself."""
        return self.column is not None or self.by_name

    @property
    def is_given(self) -> bool:
        """Whether rows have numbers at all; else the SDK numbers what is sent."""
        return self.first is not None or self.is_of_the_row


def parse_numbering(text: str | None, resume: bool, are_files: bool) -> Numbering:
    """``line``, ``name``, ``column=NAME``, or the number of the first row. Raises BadParameter."""
    if text is None and not resume:
        return Numbering()
    if text == "name" and not are_files:
        raise typer.BadParameter("name is the name of a file; it goes with --input file", param_hint=_HINT)
    if text == "name":
        return Numbering(by_name=True)
    if text is None or text == "line":
        if are_files:
            # Which file is the how-manieth changes with each that is there besides.
            raise typer.BadParameter("files are numbered by their names: --sequence-id name", param_hint=_HINT)
        return Numbering(first=0)
    if text.startswith("column=") and text != "column=":
        return Numbering(column=text.partition("=")[2])
    if re.fullmatch(r"[0-9]{1,19}", text) and int(text) < 2**63:
        if resume:
            raise typer.BadParameter("is one numbering, --resume another; choose", param_hint=_HINT)
        return Numbering(first=int(text))
    raise typer.BadParameter(f"{text!r} is neither a number, line, name, nor column=NAME", param_hint=_HINT)


class Numbers:
    """The sequence ids of rows as they come."""

    def __init__(self, numbering: Numbering) -> None:
        self._first, self._is_of_the_row = numbering.first, numbering.is_of_the_row
        self._last = -1

    def of(self, at: int, row: Row) -> int | None:
        """Of the row at this place; None: it has none. Raises InvalidRequest: it does not rise."""
        if not self._is_of_the_row:
            return None if self._first is None else self._first + at
        number = row.number
        assert number is not None
        if number <= self._last:
            raise InvalidRequest(f"its sequence id {number} is not above {self._last}, which is that of the row before it")
        self._last = number
        return number
