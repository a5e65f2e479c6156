"""`oncelog top`: what goes on, live in the terminal; where there is none, line by line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from oncelog.errors import OncelogError
from oncelog.wire.overview import Alarm, Overview, Sample
from oncelog_service.cli.output import iso_time
from oncelog_service.cli.session import Session, command
from oncelog_service.watch.rules import size, span

_BARS = "▁▂▃▄▅▆▇█"
_PAST = 60
"""Samples in a line of bars: five minutes."""
_ALARMS = 8
_WIDE = 200
"""Columns, where there is no terminal."""
_STYLE = {"critical": "bold red", "warning": "yellow", "info": "dim"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "top", namespaced=False, reads=True)(top)


def top(
    session: Session,
    interval: Annotated[float, typer.Option("--interval", min=0.5, help="Seconds until it is shown anew.")] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once.")] = False,
) -> None:
    """Show what goes on in the service: rates, latency, disk, the busiest topics, alarms. Ctrl-C ends it.

    On a terminal it is shown in place, else a line each time; with --json a line of JSON each time.
    """
    seen: list[Sample] = []
    found = _overviews(session, interval)
    with suppress(KeyboardInterrupt):
        if session.out.as_json:
            for each in islice(found, 1 if once else None):
                print(json.dumps(each.model_dump(mode="json")), flush=True)
        elif sys.stdout.isatty() and not once:
            with Live(Text(""), console=Console(), auto_refresh=False, screen=True) as live:
                for each in found:
                    seen = _kept(seen, each)
                    live.update(page(each, seen), refresh=True)
        elif once:
            each = next(found)
            Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE).print(page(each, _kept(seen, each)))
        else:
            _lines(found)


def _overviews(session: Session, interval: float) -> Iterator[Overview]:
    """One each time; the first failure is raised, a later one is waited out and said."""
    overview, after = session.client.overview(), 0
    while True:
        yield overview
        after = after if overview.sample is None else overview.sample.number
        began = time.monotonic()
        while True:
            try:
                overview = session.client.overview(after=after, wait=interval)
                break
            except OncelogError as error:
                session.out.note(f"no answer, and asked again: {error.detail}")
                time.sleep(interval)
        time.sleep(max(0.0, began + interval - time.monotonic()))


def _kept(seen: Sequence[Sample], each: Overview) -> list[Sample]:
    behind = {sample.number: sample for sample in chain(seen, each.history)}
    if each.sample is not None and seen and each.sample.number < seen[-1].number:  # another process
        behind = {sample.number: sample for sample in each.history}
    return [behind[number] for number in sorted(behind)][-_PAST:]


# --- as a page


def page(overview: Overview, past: Sequence[Sample]) -> RenderableType:
    """All of it, for a terminal."""
    return Group(_head(overview), _numbers(overview, past), *_alarms(overview.alarms), _topics(overview))


def _head(overview: Overview) -> Text:
    style = "green" if overview.status == "ok" else "bold red"
    up = span(overview.now_ms - overview.started_ms)
    instances = f", {overview.instances} instances" if overview.instances > 1 else ""
    at = iso_time(overview.now_ms)
    return Text.assemble(f"oncelog {overview.version}  {overview.url}  ", (overview.status, style), f"  up {up}{instances}  {at}")


def _numbers(overview: Overview, past: Sequence[Sample]) -> RenderableType:
    sample = overview.sample
    if sample is None:
        return Text("no sample yet")
    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(3):
        table.add_column()
    duplicates = f"{rate(sample.duplicates)}/s duplicates"
    rows = [
        ("in", f"{rate(sample.messages_in)}/s  {bytes_rate(sample.bytes_in)}  {duplicates}", [each.messages_in for each in past]),
        ("out", f"{rate(sample.messages_out)}/s  {bytes_rate(sample.bytes_out)}", [each.messages_out for each in past]),
        (
            "sync",
            f"p50 {latency(sample.sync_p50_ms)}  p99 {latency(sample.sync_p99_ms)}  {rate(sample.writes)}/s",
            [each.sync_p99_ms for each in past],
        ),
        ("disk", disk(overview, sample), []),
        (
            "process",
            f"{'?' if sample.memory_bytes is None else size(sample.memory_bytes)}  cpu {rate(sample.cpu)}  "
            f"{sample.connections} connections",
            [each.cpu for each in past],
        ),
        (
            "topics",
            f"{sample.open_topics} open, {sample.held_topics} held, lag {sample.largest_lag:,}  "
            f"transactions {_or_elsewhere(sample.transactions)}, atomic commits {_or_elsewhere(sample.atomic_commits)}",
            [],
        ),
    ]
    for name, text, values in rows:
        table.add_row(Text(name, style="dim"), Text(text), Text(bars(values), style="cyan"))
    return table


def _alarms(alarms: Sequence[Alarm]) -> Iterator[RenderableType]:
    if not alarms:
        yield Text("no alarms", style="green")
    for each in alarms[:_ALARMS]:
        yield Text.assemble((each.severity.upper(), _STYLE[each.severity]), f"  {each.what}")
    if len(alarms) > _ALARMS:
        yield Text(f"and {len(alarms) - _ALARMS} more: oncelog doctor", style="dim")


def _topics(overview: Overview) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("topic", overflow="fold")
    for column in ("in/s", "bytes in/s", "out/s", "bytes out/s", "duplicates/s", "lag", "held"):
        table.add_column(column, justify="right")
    for each in overview.topics:
        table.add_row(
            Text(f"{each.namespace}/{each.name}"),
            rate(each.messages_in),
            bytes_rate(each.bytes_in),
            rate(each.messages_out),
            bytes_rate(each.bytes_out),
            rate(each.duplicates),
            f"{each.lag:,}",
            Text("yes", style="yellow") if each.held else "-",
        )
    return table


# --- as lines


def _lines(found: Iterator[Overview]) -> None:
    known: set[tuple[str, str]] = set()
    for each in found:
        print(line(each), flush=True)
        now = {(alarm.code, alarm.subject) for alarm in each.alarms}
        for alarm in each.alarms:
            if (alarm.code, alarm.subject) not in known:
                print(f"  {alarm.severity}: {alarm.what}", flush=True)
        for code, subject in sorted(known - now):
            print(f"  over: {code} of {subject}", flush=True)
        known = now


def line(overview: Overview) -> str:
    """All of it, in a line."""
    sample = overview.sample
    if sample is None:
        return f"{iso_time(overview.now_ms)} {overview.status}"
    return (
        f"{iso_time(overview.now_ms)} {overview.status} in {rate(sample.messages_in)}/s out {rate(sample.messages_out)}/s "
        f"duplicates {rate(sample.duplicates)}/s sync p99 {latency(sample.sync_p99_ms)} disk {disk(overview, sample)} "
        f"connections {sample.connections} topics {sample.open_topics} held {sample.held_topics} lag {sample.largest_lag} "
        f"alarms {len(overview.alarms)}"
    )


# --- words


def rate(value: float | None) -> str:
    """So many a second; `-` where nobody counts."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def bytes_rate(value: float | None) -> str:
    """So many bytes a second."""
    return "-" if value is None else f"{size(value)}/s"


def latency(ms: float | None) -> str:
    """How long something took."""
    return "-" if ms is None else f"{ms:.1f} ms"


def disk(overview: Overview, sample: Sample) -> str:
    """What is free, and what must be."""
    floor = f", floor {size(overview.disk_min_free_bytes)}" if overview.disk_min_free_bytes else ""
    return "unknown" if sample.disk_free_bytes is None else f"{size(sample.disk_free_bytes)} free{floor}"


def bars(values: Sequence[float | None]) -> str:
    """A line of bars, the highest as high as a line."""
    most = max((each for each in values if each is not None), default=0)
    if not most:
        return ""
    return "".join(" " if each is None else _BARS[min(len(_BARS) - 1, int(each / most * len(_BARS)))] for each in values)


def _or_elsewhere(number: int | None) -> str:
    return "?" if number is None else str(number)
