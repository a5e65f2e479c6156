"""Rows as a table on the terminal, and as the table and the pictures of docs/benchmarks.md."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from rich.table import Table

from benchmarks.measure import Beside, Processor, Row

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN = "<!-- measured begin, written by `make bench ARGS=--page` -->\n"
END = "<!-- measured end -->"
BROKERS_BEGIN = "<!-- beside brokers begin, written by `make bench ARGS=--page` -->\n"
BROKERS_END = "<!-- beside brokers end -->"
BROKERS = (KAFKA, UNSYNCED, PULSAR) = "Kafka", "Kafka, not synced", "Pulsar"
"""Whose rows have a table of their own."""
COLUMNS = ("what", "oncelog", "unit", "beside", "its figure", "ratio", "target", "processor, µs a message", "of the other")
_RIGHT = (1, 4, 5, 7, 8)


def rows_from(result: Mapping[str, Any]) -> list[Row]:
    """The rows of a result as it was written."""
    return [_row(**row) for row in result["rows"]]


def _row(processor: Mapping[str, float] | None = None, beside: Mapping[str, Any] | None = None, **rest: Any) -> Row:
    other = None if beside is None else Beside(**{**beside, "processor": _used(beside["processor"])})
    return Row(**rest, processor=_used(processor), beside=other)


def _used(processor: Mapping[str, float] | None) -> Processor | None:
    return None if processor is None else Processor(**processor)


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


def _figure(value: float | None) -> str:
    if value is None:
        return ""
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


def page(text: str, result: Mapping[str, Any]) -> str:
    """The page with what this result says between its marks, and the pictures that it has. What it has no rows for stays."""
    beside = [row for row in rows_from(result) if row.beside and row.beside.rival in BROKERS]
    rest = [row for row in rows_from(result) if row not in beside and row.value is not None]
    for rows, begin, end in ((rest, BEGIN, END), (beside, BROKERS_BEGIN, BROKERS_END)):
        if rows:
            text = _written(text, result, rows, begin, end)
    return text


def _written(text: str, result: Mapping[str, Any], rows: Sequence[Row], begin: str, end: str) -> str:
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{PAGE} has no place for what was measured")
    where = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    shown = "".join(f"![{name.removesuffix('.svg').replace('-', ' ')}](pictures/{name})\n\n" for name in pictures(rows))
    measured = f"Measured on {result['at'][:10]}: {where}.\n\n{markdown(rows)}\n{shown}"
    return before + begin + "\n" + measured + end + after


# --- pictures


def pictures(rows: Sequence[Row]) -> dict[str, str]:
    """File name → SVG, of what these rows have of it: none without rows for it."""
    found = {
        "rate-by-batch": lines(
            "Messages a second by messages of a request, 8 connections, 100 B", _series(rows, _BY_BATCH), "messages of a request"
        ),
        "latency-by-senders": lines(
            "Median of one message by connections, ms", _series(rows, _BY_SENDERS), "connections, each with one message under way"
        ),
        "cost-of-a-message": bars("Processor time of a message, µs: server and client", _costs(rows)),
        "beside-brokers": ratios("oncelog's rate as a multiple of theirs: right of the line it is faster", _multiples(rows)),
    }
    return {f"{name}.svg": svg for name, svg in found.items() if svg}


_BY_BATCH = re.compile(r"requests of ([\d,]+) × 100 B, 8 connections")
_BY_SENDERS = re.compile(r"one message at a time, (\d+) connections?: p50")
_OTHERS = {"INSERT by pgbench": "INSERT", "INSERT by psycopg": "INSERT"}
_INKS = ("#0b7285", "#e8590c", "#7048e8", "#868e96")
"""Of each series, legible on white and on black."""
_STYLE = (
    "<style>text{font:13px system-ui,sans-serif;fill:#343a40}.axis{stroke:#adb5bd}.title{font-weight:600}"
    "@media(prefers-color-scheme:dark){text{fill:#dee2e6}.axis{stroke:#495057}}</style>"
)
_WIDTH, _HEIGHT, _LEFT, _TOP = 720, 360, 80, 50
_BAR = 22


def _series(rows: Sequence[Row], of: re.Pattern[str]) -> dict[str, dict[float, float]]:
    """Who → (x, figure), of the rows that this matches as a whole."""
    series: dict[str, dict[float, float]] = {}
    for row in rows:
        if (found := of.fullmatch(row.what)) and row.beside:
            x, other = float(found[1].replace(",", "")), row.beside.rival
            series.setdefault("oncelog", {})[x] = row.value
            series.setdefault(_OTHERS.get(other, other), {})[x] = row.beside.value
    return series


def _costs(rows: Sequence[Row]) -> list[tuple[str, Processor]]:
    """The largest requests over many connections, oncelog and its rivals."""
    costs: dict[str, Processor] = {}
    for row in rows:
        if row.what == "requests of 1,000 × 100 B, 8 connections" and row.beside and row.processor and row.beside.processor:
            costs.setdefault("oncelog", row.processor)
            costs[row.beside.rival] = row.beside.processor
    return list(costs.items())


def _multiples(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Of each piece of work, oncelog's rate beside each broker's."""
    multiples: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.beside and row.beside.rival in BROKERS and not row.what.endswith(": p50"):
            multiples.setdefault(row.what, {})[row.beside.rival] = row.beside.ratio
    return multiples


def ratios(title: str, multiples: Mapping[str, Mapping[str, float]]) -> str:
    """A line for each piece of work, on it a dot for each other one, on a logarithmic axis. Empty without any."""
    if not multiples:
        return ""
    every = [ratio for each in multiples.values() for ratio in each.values()]
    low, high = min(0.5, *every), max(2.0, *every)
    left, right, bottom = 360, _WIDTH - 24, _TOP + 40 + len(multiples) * 24

    def across(ratio: float) -> float:
        return left + (right - left) * math.log(ratio / low) / math.log(high / low)

    drawn: list[str] = []
    for tick in (0.1, 0.3, 1, 3, 10, 30, 100):
        if low <= tick <= high:
            width = 2.5 if tick == 1 else 1
            at = f'x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="{_TOP + 20}" y2="{bottom}"'
            drawn.append(f'<line class="axis" {at} stroke-width="{width}"/>')
            drawn.append(_text(across(tick), bottom + 18, f"{tick:g} ×", "middle"))
    for number, (what, each) in enumerate(multiples.items()):
        y = _TOP + 38 + number * 24
        drawn.append(_text(left - 12, y + 4, what.replace("one message at a time", "one at a time"), "end"))
        for rival, ratio in each.items():
            drawn.append(f'<circle cx="{across(ratio):.1f}" cy="{y}" r="6" fill="{_INKS[BROKERS.index(rival)]}"/>')
    for number, rival in enumerate(BROKERS):
        drawn += _legend(left - 60 + number * 150, _TOP + 2, rival, _INKS[number])
    return _svg(title, bottom + 34, drawn)


def lines(title: str, series: Mapping[str, Mapping[float, float]], axis: str) -> str:
    """A line for each series, both axes logarithmic. Empty where no series has two points."""
    xs = sorted({x for points in series.values() for x in points})
    ys = [y for points in series.values() for y in points.values() if y > 0]
    if len(xs) < 2 or not ys:
        return ""
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    high = max(high, low + 1)
    right, bottom = _WIDTH - 190, _HEIGHT - 50

    def across(x: float) -> float:
        return _LEFT + (right - _LEFT) * math.log(x / xs[0]) / math.log(xs[-1] / xs[0])

    def up(y: float) -> float:
        return bottom - (bottom - _TOP) * (math.log10(y) - low) / (high - low)

    drawn = []
    for power in range(low, high + 1):
        y = up(10.0**power)
        drawn.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(_text(_LEFT - 8, y + 4, f"{10.0**power:,.{max(0, -power)}f}", "end"))
    drawn += [_text(across(x), bottom + 20, f"{x:,.0f}", "middle") for x in xs]
    drawn.append(_text((_LEFT + right) / 2, bottom + 40, axis, "middle"))
    for number, ((who, points), ink) in enumerate(zip(series.items(), _INKS, strict=False)):
        at = [(across(x), up(y)) for x, y in sorted(points.items())]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="2.5"/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{ink}"/>' for x, y in at]
        drawn += _legend(right + 16, _TOP + 10 + number * 24, who, ink)
    return _svg(title, _HEIGHT, drawn)


def bars(title: str, costs: Sequence[tuple[str, Processor]]) -> str:
    """A bar for each, the client's part behind the server's. Empty without any."""
    if not costs:
        return ""
    left, most = 190, max(each.server + each.client for _, each in costs)
    scale = (_WIDTH - left - 80) / most
    drawn = [*_legend(left, _TOP - 6, "server", _INKS[0]), *_legend(left + 90, _TOP - 6, "client", _INKS[3])]
    for number, (who, each) in enumerate(costs):
        y, server = _TOP + 20 + number * (_BAR + 12), each.server * scale
        drawn.append(_text(left - 10, y + 16, who, "end"))
        drawn.append(f'<rect x="{left}" y="{y}" width="{server:.1f}" height="{_BAR}" fill="{_INKS[0]}"/>')
        drawn.append(
            f'<rect x="{left + server:.1f}" y="{y}" width="{each.client * scale:.1f}" height="{_BAR}" fill="{_INKS[3]}"/>'
        )
        drawn.append(_text(left + (each.server + each.client) * scale + 8, y + 16, f"{each.server + each.client:.1f}"))
    return _svg(title, _TOP + 30 + len(costs) * (_BAR + 12), drawn)


def _legend(x: float, y: float, who: str, ink: str) -> list[str]:
    return [f'<rect x="{x}" y="{y - 10}" width="12" height="12" rx="2" fill="{ink}"/>', _text(x + 18, y, who)]


def _text(x: float, y: float, said: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def _svg(title: str, height: float, drawn: Sequence[str]) -> str:
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{escape(title)}</title>{_STYLE}'
    return "\n".join((head, f'<text class="title" x="16" y="24">{escape(title)}</text>', *drawn, "</svg>\n"))
