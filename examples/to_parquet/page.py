"""A page that shows what an archive has: messages by time, and the keys with the most. One file, drawn in SVG, no script."""

from __future__ import annotations

from html import escape
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from examples.to_parquet.archive import Archive

_BARS, _WIDTH, _HEIGHT = 60, 900, 160
_STYLE = (
    "body{font:16px system-ui;max-width:960px;margin:2em auto;color:#1b1f24;background:#fff}rect{fill:#2f6fdb}"
    "td{padding:.1em 1em .1em 0}td+td{text-align:right}"
    "@media(prefers-color-scheme:dark){body{color:#e6e8ea;background:#16181b}rect{fill:#6ea0ff}}"
)


def by_time(table: pa.Table) -> list[int]:
    """How many messages each of equally long times has, from the first message to the last."""
    times = pc.cast(table["time"], pa.int64()).to_pylist()
    if not times:
        return []
    first, span = min(times), max(times) - min(times) + 1
    counts = [0] * _BARS
    for each in times:
        counts[(each - first) * _BARS // span] += 1
    return counts


def top_keys(table: pa.Table, most: int = 10) -> list[tuple[str, int]]:
    """The keys with the most messages, the greatest first."""
    counted = pc.value_counts(table["key"].drop_null()).to_pylist()
    return sorted(((each["values"], each["counts"]) for each in counted), key=lambda each: (-each[1], each[0]))[:most]


def bars(counts: list[int]) -> str:
    """The counts, drawn."""
    wide, most = _WIDTH / _BARS, max(counts, default=0) or 1
    drawn = "".join(
        f'<rect x="{at * wide:.1f}" y="{_HEIGHT - _HEIGHT * count / most:.1f}" width="{wide - 1:.1f}"'
        f' height="{_HEIGHT * count / most:.1f}"><title>{count} messages</title></rect>'
        for at, count in enumerate(counts)
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="messages by time">{drawn}</svg>'


def write(archive: Archive, to: Path) -> None:
    """Writes the page, whole: it may be looked at meanwhile."""
    table = archive.table()
    keys = "".join(f"<tr><td>{escape(key)}</td><td>{count:,}</td></tr>" for key, count in top_keys(table))
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="5">'
        f"<title>{escape(archive.topic)}</title><style>{_STYLE}</style><h1>{escape(archive.topic)}</h1>"
        f"<p>{len(table):,} messages in the archive</p>{bars(by_time(table))}<h2>By key</h2><table>{keys}</table></html>"
    )
    temporary = to.with_suffix(".part")
    temporary.write_text(page, "utf-8")
    temporary.rename(to)
