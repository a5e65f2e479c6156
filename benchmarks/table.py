"""Rows as a table on the terminal, and as the table of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.measure import Beside, Processor, Row

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN = "<!-- measured begin, written by `make bench ARGS=--page` -->\n"
END = "<!-- measured end -->"
COLUMNS = ("what", "oncelog", "unit", "beside", "its figure", "ratio", "target", "processor, µs a message", "of the other")
_RIGHT = (1, 4, 5, 7, 8)


def rows_from(result: Mapping[str, Any]) -> list[Row]:
    """The rows of a result as it was written."""
    return [_row(**row) for row in result["rows"]]


def _row(processor: Mapping[str, float] | None = None, beside: Mapping[str, Any] | None = None, **rest: Any) -> Row:
    other = None if beside is None else Beside(**{**beside, "processor": Processor(**beside["processor"])})
    return Row(**rest, processor=None if processor is None else Processor(**processor), beside=other)


def cells(row: Row) -> list[str]:
    """One for each of :data:`COLUMNS`; whether a target is met stands in words behind it."""
    met = {True: ", met", False: ", **missed**", None: ""}[row.met]
    other = row.beside
    return [
        row.what,
        _figure(row.value),
        row.unit,
        other.rival if other else "",
        _figure(other.value) if other else "",
        f"{other.ratio:.2f} ×" if other else "",
        row.target + met,
        _processor(row.processor),
        _processor(other.processor if other else None),
    ]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def _processor(used: Processor | None) -> str:
    """Server and client."""
    return f"{used.server:,.1f} + {used.client:,.1f}" if used else ""


def terminal(rows: Sequence[Row], where: Mapping[str, str]) -> Table:
    table = Table(title="oncelog", caption=", ".join(f"{name} {value}" for name, value in where.items()))
    for at, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if at in _RIGHT else "left")
    for row in rows:
        shown = cells(row)
        shown[6] = shown[6].replace(", met", " [green]met[/]").replace(", **missed**", " [red]missed[/]")
        table.add_row(*shown)
    return table


def markdown(rows: Sequence[Row]) -> str:
    rule = ["---:" if at in _RIGHT else "---" for at in range(len(COLUMNS))]
    return "".join(f"| {' | '.join(line)} |\n" for line in (COLUMNS, rule, *map(cells, rows)))


def page(text: str, result: Mapping[str, Any], pictures: str = "") -> str:
    """The page with what this result says between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{PAGE} has no place for what was measured")
    where = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    measured = f"Measured on {result['at'][:10]}: {where}.\n\n{markdown(rows_from(result))}\n{pictures}"
    return before + BEGIN + "\n" + measured + END + after
