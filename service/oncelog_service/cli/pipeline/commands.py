"""The commands themselves: what they refuse before Spark starts, which is slow; the job; what they print."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncelog.spark import jobs
from oncelog.spark.jobs.audit_report import TOPIC_COLUMNS, topic_row
from oncelog.spark.jobs.progress import follow
from oncelog.wire.models import TopicAsked
from oncelog_service.cli.frame.codes import FOUND
from oncelog_service.cli.pipeline.parameters import parameters
from oncelog_service.cli.pipeline.running import running_spark, shown
from oncelog_service.cli.session import Session, command
from oncelog_service.cli.values import parse_pairs

if TYPE_CHECKING:
    from oncelog.spark.jobs.audit_findings import Audit

Spark = Callable[[], AbstractContextManager[Any]]
"""Starts Spark, which takes long: what can be refused before is."""
Master = Annotated[str, typer.Option("--master", help="Spark master: where the work is done.")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; repeatable.", show_default=False)
]

_group = typer.Typer()


def made() -> MutableMapping[str, Any]:
    """By name."""
    whole: Any = typer.main.get_command(_group)
    commands: MutableMapping[str, Any] = whole.commands
    return commands


def job(name: str, *jobs: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that asks for what the jobs take, and is given, after its Session, what starts Spark."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        def run(session: Session, *, master: Master = "local[*]", conf: Conf = None, **given: Any) -> None:
            settings = parse_pairs(conf or [], "a setting is NAME=VALUE", "--conf")
            function(session, partial(running_spark, session, f"oncelog pipeline {name}", master, settings), **given)

        first, *shared, _ = inspect.signature(run, eval_str=True).parameters.values()
        run.__signature__ = inspect.Signature([first, *parameters(function, *jobs), *shared])  # type: ignore[attr-defined]
        run.__doc__ = function.__doc__
        command(_group, name)(run)
        return function

    return register


@job("archive", jobs.archive)
def archive(
    session: Session,
    spark: Spark,
    *,
    topics: Annotated[list[str], typer.Argument()],
    path: Annotated[str, typer.Option("--to")],
    starting: Annotated[str, typer.Option("--from", help="Of a new archive: earliest or latest.")],
    **given: Any,
) -> None:
    """Keep Parquet files, by day, a copy of topics: each message once, whatever is killed."""
    if starting not in ("earliest", "latest"):
        raise typer.BadParameter("earliest or latest", param_hint="--from")
    _check_there(session, topics)
    with spark() as running, shown(session) as on_progress:
        query = jobs.archive(running, topics, path, **_service(session), starting=starting, **given)
        [(name, done)] = follow({", ".join(topics): query}, on_progress).items()
    session.out.result({"path": path, **asdict(done)}, f"{name}: {done.rows:,} rows in {done.batches} batches")


@job("backfill", jobs.backfill)
def backfill(
    session: Session,
    spark: Spark,
    *,
    source: Annotated[str, typer.Argument(help="Directory of Parquet files.")],
    topic: str | None,
    keep_producers: Annotated[bool | None, typer.Option("--keep-producers/--drop-producers")],
    **given: Any,
) -> None:
    """Publish Parquet files, such as an archive's: each row once, however often this is killed and begun again."""
    _check_there(session, [] if topic is None else [topic])
    with spark() as running, shown(session) as on_progress:
        try:
            done = jobs.backfill(
                running, source, topic, **_service(session), keep_producers=keep_producers, **given, on_progress=on_progress
            )
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    again = " more" if done.resumed else ""
    session.out.result(asdict(done), f"{done.rows:,}{again} rows in {done.commits} commits, as {done.name}")


@job("audit", jobs.audit, jobs.audit_archive)
def audit(
    session: Session,
    spark: Spark,
    *,
    topics: Annotated[list[str] | None, typer.Argument(help="Topics; of an archive: else all in it.")] = None,
    path: Annotated[str | None, typer.Option("--archive", help="Audit these Parquet files.")] = None,
    offline: bool,
    no_gaps: bool,
    allow_holes: bool,
    report: Path | None,
) -> None:
    """Look for duplicates, gaps, disorder and what the service's maps say otherwise. Exits with 10 on a violation."""
    if path is None:
        if not topics:
            raise typer.BadParameter("name topics, or an archive with --archive", param_hint="TOPIC")
        if offline or allow_holes:
            raise typer.BadParameter("goes with --archive", param_hint="--offline" if offline else "--allow-holes")
        _check_there(session, topics)
    elif not offline:
        _check_there(session, [])  # a topic that the archive has and the service does not is a finding
    if report is not None and not report.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no directory {report.parent}", param_hint="--report")
    both: dict[str, Any] = {**_service(session), "no_gaps": no_gaps, "report": report}
    with spark() as running:
        if path is None:
            found = jobs.audit(running, topics or [], **both)
        else:
            found = jobs.audit_archive(running, path, topics or None, **both, offline=offline, allow_holes=allow_holes)
    _show(session, found, report)
    if not found.ok:
        raise typer.Exit(FOUND)


def _show(session: Session, found: Audit, report: Path | None) -> None:
    session.out.table(found.as_json(), TOPIC_COLUMNS, [topic_row(topic) for topic in found.topics])
    for note in found.notes:
        session.out.note(f"note: {note}")
    for violation in found.violations:
        session.out.note(f"VIOLATION: {violation}")
    where = "" if report is None else f"; the report is {report}"
    session.out.note(f"{found.messages:,} messages in {found.seconds:.1f} s, {len(found.violations)} violations{where}")


def _check_there(session: Session, topics: Iterable[str]) -> None:
    """Raises OncelogError: the service does not answer, or has no such topics. Spark would say so late and at length."""
    session.client.offsets({topic: TopicAsked() for topic in topics}, session.namespace)


def _service(session: Session) -> dict[str, Any]:
    return {"url": session.client.url, "namespace": session.namespace, "token": session.token}
