"""An audit as one page of HTML: everything is in it, nothing is fetched. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from oncelog.spark.jobs.audit_findings import Audit, ProducerFindings, TopicFindings
from oncelog.spark.jobs.audit_pass import MINUTE_MS

MOST_BARS = 240
"""In a plot over time: beyond it minutes are drawn together."""
MOST_PRODUCERS = 30
"""In a plot, and in the table: those with most to say come first."""

_WIDTH, _HEIGHT, _ROW = 960, 160, 22

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --faint: #6b7685; --rule: #d9dee5; --ground: #ffffff;
  --bar: #3b6fb6; --bad: #c0392b; --good: #1e8449 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ee; --faint: #93a0b1; --rule: #333c48; --ground: #14181e; --bar: #7aa7e6; --bad: #ef7a6d; --good: #63c98b }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem }
h2 { font-size: 1.1rem; margin-top: 2.2rem }
.faint { color: var(--faint) }
.bad { color: var(--bad) }
.good { color: var(--good) }
div.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100% }
th, td { padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap }
th.text, td.text { text-align: left }
th { font-weight: 600 }
svg { width: 100%; height: auto; display: block }
svg text { font: 12px system-ui, sans-serif; fill: var(--faint) }
svg .bar { fill: var(--bar) }
svg .bad { fill: var(--bad) }
svg line { stroke: var(--rule) }
"""


def report_html(audit: Audit) -> str:
    """The whole page."""
    verdict = '<span class="good">everything is there once, in order</span>'
    if not audit.ok:
        verdict = f'<span class="bad">{len(audit.violations):,} violation{"s" * (len(audit.violations) > 1)}</span>'
    compared = "held against the service's maps" if audit.maps_compared else "not held against a service's maps"
    parts = [
        f"<h1>Audit of {escape(audit.of)}: {verdict}</h1>",
        f'<p class="faint">{audit.messages:,} messages in {audit.seconds:.1f} s; {compared}.</p>',
        _sentences("Violations", audit.violations, "bad"),
        _sentences("Worth knowing", audit.notes, ""),
        "<h2>Topics</h2>",
        _table(TOPIC_COLUMNS, [topic_row(topic) for topic in audit.topics]),
    ]
    for topic in audit.topics:
        parts += [f"<h2>{escape(topic.topic)}: messages per minute</h2>", over_time(topic.per_minute)]
    parts += _of_producers(audit.producers)
    if audit.examples:
        rows = [[str(example[name]) for name in _EXAMPLE] for example in audit.examples]
        parts += ["<h2>Some of the messages with which something is wrong</h2>", _table(_EXAMPLE, rows)]
    title = escape(f"Audit of {audit.of}")
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title><style>{_STYLE}</style>'
    )
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(filter(None, parts)) + "\n</body></html>\n"
    )


TOPIC_COLUMNS = (
    "topic", "messages", "producers", "offsets", "duplicates", "out of order", "sequence ids missing", "offsets missing",
    "offsets twice", "ids not rising",
)  # fmt: skip
_PRODUCER = ("topic", "producer", "messages", "sequence ids", "duplicates", "out of order", "gaps", "sequence ids missing")
_EXAMPLE = ("topic", "offset", "message_id", "producer", "sequence_id", "wrong")


def topic_row(topic: TopicFindings) -> list[str]:
    """As :data:`TOPIC_COLUMNS`."""
    counts = (topic.duplicates, topic.disorder, topic.missing, topic.missing_offsets, topic.offsets_twice, topic.ids_not_rising)
    offsets = f"{topic.first_offset:,} to {topic.last_offset:,}"
    return [topic.topic, f"{topic.messages:,}", f"{topic.producers:,}", offsets, *(f"{count:,}" for count in counts)]


def _of_producers(producers: Sequence[ProducerFindings]) -> list[str]:
    if not producers:
        return []
    shown = sorted(producers, key=lambda each: (-each.duplicates - each.disorder, -each.missing, -each.messages))[:MOST_PRODUCERS]
    rows = [
        [each.topic, each.producer, f"{each.messages:,}", f"{each.first_sequence_id:,} to {each.last_sequence_id:,}"]
        + [f"{count:,}" for count in (each.duplicates, each.disorder, each.gaps, each.missing)]
        for each in shown
    ]
    parts = []
    for what, count in (("Duplicates", "duplicates"), ("Sequence ids missing", "missing")):
        values = {f"{each.topic} · {each.producer}": int(getattr(each, count)) for each in shown if getattr(each, count)}
        parts += [f"<h2>{what}, by producer</h2>", by_name(values)] if values else []
    of_all = "" if len(shown) == len(producers) else f": {len(shown)} of {len(producers):,}, those with most to say first"
    return [*parts, f"<h2>Producers{of_all}</h2>", _table(_PRODUCER, rows, text=2)]


def over_time(per_minute: Mapping[int, int]) -> str:
    """Bars over time: one a minute, or one for several where they would be too many. A minute without messages has none."""
    if not per_minute:
        return '<p class="faint">none</p>'
    first, last = min(per_minute), max(per_minute)
    width_ms = MINUTE_MS * -(-((last - first) // MINUTE_MS + 1) // MOST_BARS)
    bars = [0] * ((last - first) // width_ms + 1)
    for minute, messages in per_minute.items():
        bars[(minute - first) // width_ms] += messages
    step, top = _WIDTH / len(bars), max(bars)
    drawn = [
        f'<rect class="bar" x="{number * step:.1f}" y="{_HEIGHT - count / top * _HEIGHT:.1f}" width="{max(step - 1, 0.5):.1f}" '
        f'height="{count / top * _HEIGHT:.1f}"><title>{_time(first + number * width_ms)}: {count:,}</title></rect>'
        for number, count in enumerate(bars)
        if count
    ]
    each = "a minute" if width_ms == MINUTE_MS else f"{width_ms // MINUTE_MS:,} minutes"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 24}" role="img" aria-label="messages over time">{"".join(drawn)}'
        f'<line x1="0" x2="{_WIDTH}" y1="{_HEIGHT}" y2="{_HEIGHT}"/><text x="0" y="{_HEIGHT + 18}">{_time(first)}</text>'
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT + 18}" text-anchor="middle">a bar is {each}, the highest {top:,} messages</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 18}" text-anchor="end">{_time(last)}</text></svg>'
    )


def by_name(values: Mapping[str, int]) -> str:
    """A bar for each name, the longest first."""
    top = max(values.values())
    rows = []
    for number, (name, count) in enumerate(sorted(values.items(), key=lambda each: (-each[1], each[0]))):
        y = number * _ROW
        length = count / top * (_WIDTH - 420)
        label = name if len(name) <= 44 else name[:43] + "…"
        rows.append(
            f'<text x="300" y="{y + 15}" text-anchor="end">{escape(label)}<title>{escape(name)}</title></text>'
            f'<rect class="bad" x="310" y="{y + 3}" width="{max(length, 1):.1f}" height="{_ROW - 6}"/>'
            f'<text x="{316 + length:.1f}" y="{y + 15}">{count:,}</text>'
        )
    return f'<svg viewBox="0 0 {_WIDTH} {len(values) * _ROW}" role="img" aria-label="by producer">{"".join(rows)}</svg>'


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _sentences(title: str, sentences: Sequence[str], style: str) -> str:
    if not sentences:
        return ""
    shown = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences[:200])
    rest = f"<li>and {len(sentences) - 200:,} more</li>" if len(sentences) > 200 else ""
    return f'<h2>{title}</h2><ul class="{style}">{shown}{rest}</ul>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], text: int = 1) -> str:
    def row(tag: str, fields: Sequence[str]) -> str:
        cells = "".join(
            f"<{tag}{' class=text' if number < text else ''}>{escape(field)}</{tag}>" for number, field in enumerate(fields)
        )
        return f"<tr>{cells}</tr>"

    return f'<div class="wide"><table>{row("th", columns)}{"".join(row("td", fields) for fields in rows)}</table></div>'
