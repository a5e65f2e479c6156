"""Which sequence id each row of `oncelog publish` has. Pure.

Invariants:

* A row's number is said by the row and its place in the input, by nothing else: not by what was published before.
* Numbers rise from row to row, also over rows that are passed over. Else a row of a file in another order would be taken for one
  that is there already, and be lost.
* Offsets join on what is persisted: a window that begins further on would leave a hole for good. Between two rows they may leave
  numbers out, since what was rolled back or has expired has an offset, too, and is not read.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

import typer

from oncelog.errors import InvalidRequest, SequenceGap
from oncelog_service.cli.messages.rows import OFFSET, Row

_HINT = "--sequence-id"


class Gaps(StrEnum):
    """Whether sequence ids may be left out."""

    ALLOW = "allow"
    REFUSE = "refuse"


class Numbering(NamedTuple):
    """Where sequence ids come from."""

    first: int | None = None
    """Of the first row; the others follow on."""
    column: str | None = None
    by_name: bool = False
    gaps: Gaps | None = None
    """None: it is not said."""

    @property
    def is_of_the_row(self) -> bool:
        """Whether the row says it itself."""
        return self.column is not None or self.by_name

    @property
    def is_given(self) -> bool:
        """Whether rows have numbers at all; else the SDK numbers what is sent."""
        return self.first is not None or self.is_of_the_row

    @property
    def joins_on(self) -> bool:
        """Whether the first new row follows on what is persisted, or on that very row in the input."""
        return self.gaps is Gaps.REFUSE or (self.gaps is None and self.column == OFFSET)

    def is_dense(self, resume: bool) -> bool:
        """Whether the service is to refuse every gap: that is asked for, or lines are counted from the first one on."""
        return self.gaps is Gaps.REFUSE or (self.gaps is None and resume and self.first is not None)


def parse_numbering(text: str | None, resume: bool, are_files: bool, gaps: Gaps | None = None) -> Numbering:
    """``line``, ``name``, ``column=NAME``, or the number of the first row. Raises BadParameter."""
    if text is None and not resume:
        if gaps is not None:
            raise typer.BadParameter("is about sequence ids; it goes with --sequence-id or --resume", param_hint="--gaps")
        return Numbering()
    if text == "name" and not are_files:
        raise typer.BadParameter("name is the name of a file; it goes with --input file", param_hint=_HINT)
    if text == "name":
        return Numbering(by_name=True, gaps=gaps)
    if text is None or text == "line":
        if are_files:
            # Which file is the how-manieth changes with each that is there besides.
            raise typer.BadParameter("files are numbered by their names: --sequence-id name", param_hint=_HINT)
        return Numbering(first=0, gaps=gaps)
    if text.startswith("column=") and text != "column=":
        return Numbering(column=text.partition("=")[2], gaps=gaps)
    if re.fullmatch(r"[0-9]{1,19}", text) and int(text) < 2**63:
        if resume:
            raise typer.BadParameter("is one numbering, --resume another; choose", param_hint=_HINT)
        return Numbering(first=int(text), gaps=gaps)
    raise typer.BadParameter(f"{text!r} is neither a number, line, name, nor column=NAME", param_hint=_HINT)


class Numbers:
    """The sequence ids of rows as they come."""

    def __init__(self, numbering: Numbering, persisted: int | None = None, producer: str | None = None) -> None:
        """``persisted``: the last one that ``producer`` had before the input began."""
        self._first, self._is_of_the_row = numbering.first, numbering.is_of_the_row
        self._joins_on, self._is_dense = numbering.joins_on, numbering.gaps is Gaps.REFUSE
        self._persisted = persisted
        self._producer = producer
        self._last = -1

    def of(self, at: int, row: Row) -> int | None:
        """Of the row at this place; None: it has none. Raises InvalidRequest: it does not rise. SequenceGap."""
        number = row.number
        if not self._is_of_the_row:
            if self._first is None:
                return None
            number = self._first + at
        assert number is not None
        if number <= self._last:
            raise InvalidRequest(f"its sequence id {number} is not above {self._last}, which is that of the row before it")
        if self._joins_on:
            self._check_gap(number)
        self._last = number
        return number

    def _check_gap(self, number: int) -> None:
        before, persisted = self._last, self._persisted
        if self._is_dense and before >= 0:
            behind, lacks = before, f"that of the row before it {before}: put in what is missing between them"
        elif persisted is not None and before < persisted:
            behind = persisted
            lacks = f"{persisted}, up to which the producer is persisted, is not in the input: begin it there or before"
        else:
            return
        if number > behind + 1:
            raise SequenceGap(
                f"its sequence id is {number}, and {lacks}, or, if nothing between them is left to publish, say --gaps allow",
                producer=self._producer,
                expected=behind + 1,
                received=number,
            )
