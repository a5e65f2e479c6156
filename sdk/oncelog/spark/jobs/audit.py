"""Proof at scale that every message of a topic, or of its archive, is there once and in order."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncelog.errors import TopicNotFound
from oncelog.http.credentials import shown
from oncelog.message_id import MessageId
from oncelog.spark.connection import Connection
from oncelog.spark.jobs.audit_findings import Audit, compare, judge, put_together, stretch
from oncelog.spark.jobs.audit_pass import COLUMNS, SPAN, pieces, wrong
from oncelog.spark.jobs.audit_report import report_html
from oncelog.spark.options import service_options, topic_names
from oncelog.wire.models import TopicAsked, TopicOffsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXAMPLES = 20
"""Messages shown of those with which something is wrong."""


def audit(
    spark: SparkSession,
    topics: str | Sequence[str],
    *,
    url: str | None = None,
    namespace: str | None = None,
    token: str | None = None,
    token_file: str | None = None,
    no_gaps: bool = False,
    report: str | Path | None = None,
    span: int = SPAN,
) -> Audit:
    """Read the topics from where they begin to where they are stable now, and hold them against the service's maps.

    A violation is: a sequence id twice, messages out of their producer's order, message ids that do not rise, a producer that the
    service's map says other things of, and passed over sequence ids of a producer whose gaps are refused – of every producer with
    ``no_gaps``. Offsets that are not there are notes: the service passes over messages that were rolled back or have expired, and
    refuses to read over one that is lost.

    Args:
        topics: Topics to audit.
        url, namespace, token: Of the service; else ONCELOG_URL, ``default``, ONCELOG_TOKEN.
        token_file: Where the token is instead, on each machine; Spark is given no secret then.
        no_gaps: Sequence ids passed over are a violation.
        report: Write a page of HTML with plots there.
        span: See :mod:`oncelog.spark.jobs.audit_pass`.

    Raises TopicNotFound.
    """
    names = topic_names(topics)
    service = Connection.chosen(url, namespace, token, token_file=token_file)
    ranges = service.client().offsets({name: TopicAsked() for name in names}, service.namespace)
    # Up to where they are stable now, whatever comes while they are read, and again if they are read again.
    frame = (
        spark.read.format("oncelog")
        .options(**service_options(url, namespace, token, token_file))
        .option("subscribe", ",".join(ranges))
        .option("startingOffsets", json.dumps({name: known.earliest for name, known in ranges.items()}))
        .option("endingOffsets", json.dumps({name: known.stable for name, known in ranges.items()}))
        .load()
        .select(*COLUMNS)
    )
    of = f"{service.namespace}: {', '.join(names)}"
    return _audit(frame, of, service, span=span, report=report, no_gaps=no_gaps, allow_holes=True, names=names, ranges=ranges)


def audit_archive(
    spark: SparkSession,
    path: str,
    topics: str | Sequence[str] | None = None,
    *,
    url: str | None = None,
    namespace: str | None = None,
    token: str | None = None,
    token_file: str | None = None,
    offline: bool = False,
    no_gaps: bool = False,
    allow_holes: bool = False,
    report: str | Path | None = None,
    span: int = SPAN,
) -> Audit:
    """The same over the Parquet files of an archive, and held against the service's maps unless ``offline``.

    Here offsets that are not there are a violation, for a message may have been lost on the way; ``allow_holes`` where messages
    of the topics are rolled back or have times to live of their own. A topic that the service does not know is a violation, too,
    and one of which nothing is there. How much the service has before and behind what the archive holds is a note: an archive may
    begin later, and be under way.

    Args:
        path: Directory of Parquet files.
        topics: Else all that the archive holds.
        url, namespace, token: Of the service; else ONCELOG_URL, ``default``, ONCELOG_TOKEN.
        token_file: Where the token is instead, on each machine; Spark is given no secret then.
        offline: Of an archive: ask no service about it.
        no_gaps: Sequence ids passed over are a violation.
        allow_holes: Of an archive: missing offsets are none.
        report: Write a page of HTML with plots there.
        span: See :mod:`oncelog.spark.jobs.audit_pass`.
    """
    frame = spark.read.parquet(path)
    names = () if topics is None else topic_names(topics)
    if names:
        frame = frame.where(frame.topic.isin(names))
    service = None if offline else Connection.chosen(url, namespace, token, token_file=token_file)
    return _audit(frame, path, service, span=span, report=report, no_gaps=no_gaps, allow_holes=allow_holes, names=names)


def _audit(
    messages: DataFrame,
    of: str,
    service: Connection | None,
    *,
    span: int,
    report: str | Path | None = None,
    no_gaps: bool,
    allow_holes: bool,
    names: Sequence[str] = (),
    ranges: Mapping[str, TopicOffsets] | None = None,
) -> Audit:
    """``names``: topics that must be there. ``ranges``: what was read of them, if all that the service has."""
    began = time.monotonic()
    found = put_together(of, (row.asDict() for row in pieces(messages, span).collect()))
    there = {topic.topic for topic in found.topics}
    if service is None:
        found.violations += [f"{name}: nothing of it is there" for name in sorted(set(names) - there)]
    else:
        client = service.client()
        for name in sorted(there.union(names)):
            try:
                known = (ranges or client.offsets({name: TopicAsked()}, service.namespace))[name]
                topic = stretch(found, name, known.earliest, known.stable, exact=ranges is not None)
                compare(found, topic, client.producers(name, service.namespace), allow_holes=allow_holes)
            except TopicNotFound:
                found.violations.append(f"{name}: the service at {shown(service.url)} has no such topic")
    if not found.topics:
        found.violations.append("there is no message: nothing was audited")
    judge(found, no_gaps=no_gaps, allow_holes=allow_holes)
    if found.violations:
        found.examples = [_shown(row.asDict()) for row in wrong(messages, span).limit(EXAMPLES).collect()]
    found.seconds = time.monotonic() - began
    if report is not None:
        Path(report).write_text(report_html(found), encoding="utf-8")
    return found


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    flags = [name for name in ("repeats", "disorder", "twice", "id_falls") if row[name]] + ["hole"] * bool(row["hole"])
    shown = {name: row[name] for name in ("topic", "offset", "message_id", "producer", "sequence_id")}
    return {**shown, "message_id": str(MessageId.from_bytes(bytes(row["message_id"]))), "wrong": flags}
