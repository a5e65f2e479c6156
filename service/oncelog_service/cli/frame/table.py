"""Tables as people read them on a terminal, whatever its width. Pure.

Columns are as wide as the first page of rows needs. What is too wide for the terminal is not folded into splinters: of a last
column that still has room the text goes on below itself, else each row is a block with a line a field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

PAGE = 200
"""Rows that are looked at before the first is shown."""
_GAP = 2
_LEAST_LAST = 24
"""Characters that a last column needs for its text to be readable in it."""


def lines(columns: Sequence[str], rows: Iterable[Sequence[str]], width: int, *, styled: bool = False) -> Iterator[str]:
    """The table's lines; each comes as soon as its row does, behind the first page."""
    left = iter(rows)
    page = list(islice(left, PAGE))
    widths = [max(map(measured, column)) for column in zip(columns, *page, strict=True)]
    before_last = sum(widths[:-1]) + _GAP * (len(widths) - 1)
    if before_last + widths[-1] > width and width - before_last < _LEAST_LAST:
        yield from _blocks(columns, chain(page, left))
        return
    if any(columns):
        head = _line(columns, widths)
        yield f"\x1b[1m{head}\x1b[0m" if styled else head
    for row in chain(page, left):
        yield from _folded(row, widths, before_last, max(_LEAST_LAST, width - before_last))


def _blocks(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    most = max(map(measured, columns))
    for number, row in enumerate(rows):
        if number:
            yield ""
        for name, value in zip(columns, row, strict=True):
            yield f"{_padded(name, most)}{' ' * _GAP}{value}".rstrip()


def _folded(row: Sequence[str], widths: Sequence[int], before_last: int, room: int) -> Iterator[str]:
    *first, last = row
    if measured(last) <= room:
        yield _line(row, widths)
        return
    parts = list(_cut(last, room))
    yield _line([*first, parts[0]], widths)
    for part in parts[1:]:
        yield " " * before_last + part


def _line(fields: Sequence[str], widths: Sequence[int]) -> str:
    return (" " * _GAP).join(map(_padded, fields, widths)).rstrip()


def _padded(text: str, width: int) -> str:
    return text + " " * (width - measured(text))


def _cut(text: str, room: int) -> Iterator[str]:
    """Behind a space where there is one not too far from the end of the room."""
    while measured(text) > room:
        end, taken = 0, 0
        while taken + measured(text[end]) <= room:
            taken += measured(text[end])
            end += 1
        space = text.rfind(" ", room // 2, end + 1)
        end = end if space < 0 else space
        yield text[:end]
        text = text[end:].lstrip(" ")
    yield text


def measured(text: str) -> int:
    """Columns of a terminal that the text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)
