"""`oncelog pipeline …`: the jobs of oncelog.spark.jobs, on a Spark that this process starts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncelog.errors import OncelogError
from oncelog.wire.models import TopicAsked
from oncelog_service.cli.output import progress_bar
from oncelog_service.cli.session import ERROR, FAILED, Session, command
from oncelog_service.cli.values import parse_pairs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncelog.spark.jobs.audit_findings import Audit
    from oncelog.spark.jobs.progress import Progress
else:
    SparkSession = object  # typer reads the signatures, and nothing of Spark is loaded before a pipeline runs

group = typer.Typer(help="Run a pipeline on Spark: archive, backfill, audit, flights.", no_args_is_help=True)

Topics = Annotated[list[str], typer.Argument(metavar="TOPIC", help="Topics.", show_default=False)]
Path_ = Annotated[str, typer.Argument(metavar="PATH", help="Directory of Parquet files.", show_default=False)]
To = Annotated[str, typer.Option("--to", metavar="PATH", help="Directory of Parquet files.", show_default=False)]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", metavar="PATH", help="Where Spark keeps its position; else in _checkpoint there.", show_default=False
    ),
]
AvailableNow = Annotated[bool, typer.Option("--available-now", help="End when what is there now is done; else go on.")]
Every = Annotated[str, typer.Option("--every", help="Time between two batches.")]
Master = Annotated[str, typer.Option("--master", help="Spark master: where the work is done.")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; repeatable.", show_default=False)
]

_MASTER = "local[*]"
_QUIET = {"spark.log.level": "FATAL"}
"""What a command says when it fails, or is interrupted, is a sentence; Spark would print its stacks beside it."""
NOTHING: Mapping[str, str] = MappingProxyType({})
FEW_PARTITIONS = {"spark.sql.shuffle.partitions": "4"}
"""Each has a state of its own in every micro-batch; Spark's 200 are for clusters."""
Told = Callable[["dict[str, Progress]"], None]
Spark = Callable[[], AbstractContextManager[SparkSession]]
"""Starts Spark, which takes long: what can be refused before is."""


def job(name: str, usual: Mapping[str, str] = NOTHING) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that is given, after its Session, what starts Spark: as ``--master`` and ``--conf`` say, else ``usual``."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        def run(session: Session, master: str, conf: list[str] | None, **given: Any) -> None:
            settings = parse_pairs(conf or [], "a setting is NAME=VALUE", "--conf")
            function(session, partial(_spark, session, f"oncelog pipeline {name}", master, {**usual, **settings}), **given)

        first, _, *own = inspect.signature(function, eval_str=True).parameters.values()
        keyword = inspect.Parameter.KEYWORD_ONLY
        shared = [
            inspect.Parameter("master", keyword, annotation=Master, default=_MASTER),
            inspect.Parameter("conf", keyword, annotation=Conf, default=None),
        ]
        run.__signature__ = inspect.Signature([first, *(each.replace(kind=keyword) for each in own), *shared])  # type: ignore[attr-defined]
        run.__doc__ = function.__doc__
        command(group, name)(run)
        return function

    return register


@job("archive")
def archive(
    session: Session,
    spark: Spark,
    topics: Topics,
    to: To,
    available_now: AvailableNow = False,
    every: Every = "30 seconds",
    starting: Annotated[str, typer.Option("--from", help="Of a new archive: earliest or latest.")] = "earliest",
    max_offsets: Annotated[int, typer.Option("--max-offsets", min=1, help="Messages of one batch at most.")] = 2_000_000,
    checkpoint: Checkpoint = None,
) -> None:
    """Keep Parquet files, by day, a copy of topics: each message once, whatever is killed."""
    if starting not in ("earliest", "latest"):
        raise typer.BadParameter("earliest or latest", param_hint="--from")
    _ask_for(session, topics)
    with spark() as running, _shown(session) as told:
        from oncelog.spark.jobs.archive import archive as start
        from oncelog.spark.jobs.progress import follow

        query = start(
            running,
            topics,
            to,
            **_service(session),
            available_now=available_now,
            every=every,
            starting=starting,
            max_offsets=max_offsets,
            checkpoint=checkpoint,
        )
        done = follow({", ".join(topics): query}, told)
    _result(session, {"path": to}, done)


@job("backfill")
def backfill(
    session: Session,
    spark: Spark,
    path: Path_,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Where all rows go; else where their column `topic` says.", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Under which the service keeps the position; else drawn from path and topic.")
    ] = None,
    position: Annotated[str, typer.Option("--position", help="Column of whole numbers by which rows are in order.")] = "offset",
    keep_producers: Annotated[
        bool | None,
        typer.Option(
            "--keep-producers/--drop-producers",
            help="Whether rows keep their producer and sequence id; else if they have both, and positions.",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Rows of one commit, where they have positions.")] = 500_000,
    max_files: Annotated[int, typer.Option("--max-files", min=1, help="Files of one commit, where they have none.")] = 16,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="PATH", help="Where Spark keeps its position then.", show_default=False),
    ] = None,
) -> None:
    """Publish Parquet files, such as an archive's: each row once, however often this is killed and begun again."""
    _ask_for(session, [] if topic is None else [topic])
    with spark() as running, _shown(session) as told:
        from oncelog.spark.jobs.backfill import backfill as run

        try:
            done = run(
                running,
                path,
                topic,
                **_service(session),
                name=name,
                position=position,
                keep_producers=keep_producers,
                rows=rows,
                max_files=max_files,
                checkpoint=checkpoint,
                told=told,
            )
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    again = " more" if done.resumed else ""
    session.out.result(asdict(done), f"{done.rows:,}{again} rows in {done.commits} commits, as {done.name}")


@job("audit")
def audit(
    session: Session,
    spark: Spark,
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="Topics; of an archive: else all in it.")] = None,
    of_archive: Annotated[
        str | None, typer.Option("--archive", metavar="PATH", help="Audit these Parquet files.", show_default=False)
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Of an archive: ask no service about it.")] = False,
    no_gaps: Annotated[bool, typer.Option("--no-gaps", help="Sequence ids passed over are a violation.")] = False,
    allow_holes: Annotated[bool, typer.Option("--allow-holes", help="Of an archive: missing offsets are none.")] = False,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write a page of HTML with plots.", show_default=False)
    ] = None,
) -> None:
    """Look for duplicates, gaps, disorder and what the service's maps say otherwise. Exits with 1 on a violation."""
    if of_archive is None:
        if not topics:
            raise typer.BadParameter("name topics, or an archive with --archive", param_hint="TOPIC")
        if offline or allow_holes:
            raise typer.BadParameter("goes with --archive", param_hint="--offline" if offline else "--allow-holes")
        _ask_for(session, topics)
    elif not offline:
        _ask_for(session, [])  # a topic that the archive has and the service does not is a finding
    if report is not None and not report.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no directory {report.parent}", param_hint="--report")
    with spark() as running:
        from oncelog.spark.jobs.audit import audit as audit_topics
        from oncelog.spark.jobs.audit import audit_archive

        if of_archive is None:
            found = audit_topics(running, topics or [], **_service(session), no_gaps=no_gaps, report=report)
        else:
            found = audit_archive(
                running,
                of_archive,
                topics or None,
                **_service(session),
                offline=offline,
                no_gaps=no_gaps,
                allow_holes=allow_holes,
                report=report,
            )
    _tell(session, found, report)
    if not found.ok:
        raise typer.Exit(ERROR)


def _tell(session: Session, found: Audit, report: Path | None) -> None:
    from oncelog.spark.jobs.audit_report import TOPIC_COLUMNS, topic_row

    session.out.table(found.as_json(), TOPIC_COLUMNS, [topic_row(topic) for topic in found.topics])
    for note in found.notes:
        session.out.note(f"note: {note}")
    for violation in found.violations:
        session.out.note(f"VIOLATION: {violation}")
    where = "" if report is None else f"; the report is {report}"
    session.out.note(f"{found.messages:,} messages in {found.seconds:.1f} s, {len(found.violations)} violations{where}")


@job("flights", FEW_PARTITIONS)
def flights(
    session: Session,
    spark: Spark,
    to: To,
    flights_topic: Annotated[str, typer.Option("--flights", metavar="TOPIC", help="Lines of flights.csv.")] = "flights",
    weather_topic: Annotated[str, typer.Option("--weather", metavar="TOPIC", help="Lines of weather.csv.")] = "weather",
    delays_topic: Annotated[str, typer.Option("--delays", metavar="TOPIC", help="Where the delays go.")] = "delays",
    available_now: AvailableNow = False,
    every: Every = "1 second",
    max_offsets: Annotated[int, typer.Option("--max-offsets", min=1, help="Messages of one batch at most.")] = 20_000,
) -> None:
    """Delays by airport and hour, and flights beside their weather, as streams. With --available-now: compared with a batch."""
    names: dict[str, Any] = {"flights_topic": flights_topic, "weather_topic": weather_topic, "delays_topic": delays_topic}
    _ask_for(session, names.values())
    with spark() as running:
        from oncelog.spark.jobs.flights import compare_with_batch
        from oncelog.spark.jobs.flights import flights as start
        from oncelog.spark.jobs.progress import follow

        with _shown(session) as told:
            queries = start(
                running, to, **_service(session), **names, available_now=available_now, every=every, max_offsets=max_offsets
            )
            done = follow(queries, told)
        if not available_now:
            return
        session.out.note("comparing with a batch …")
        rows, problems = compare_with_batch(running, to, **_service(session), **names)
    value = {"rows": rows, "problems": problems, **{name: asdict(each) for name, each in done.items()}}
    session.out.table(value, ("query", "rows as in the batch"), list(rows.items()))
    for problem in problems:
        session.out.note(f"not as in the batch: {problem}")
    if problems:
        raise typer.Exit(FAILED)


# --- what all of them share


@contextmanager
def _spark(session: Session, name: str, master: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """A Spark that ends with the command. Without the extra, without Java: a sentence, and the command ends with 1."""
    try:
        from oncelog.spark import JavaNotFound
        from oncelog.spark import session as make
    except ImportError as error:
        raise _refused(session, "spark_missing", f"{error}") from None
    session.out.note("starting Spark …")
    try:
        spark = make(name, master, **{**_QUIET, **conf})
    except JavaNotFound as error:
        raise _refused(session, "java_missing", f"{error}") from None
    except Exception as error:
        raise _refused(session, "spark_failed", f"Spark does not start: {_in_short(error)}") from error
    try:
        yield spark
    except Exception as error:
        if isinstance(error, OncelogError | typer.Exit | typer.Abort | typer.BadParameter | BrokenPipeError):
            raise
        raise _refused(session, "pipeline_failed", _in_short(error)) from error
    finally:
        spark.stop()


def _ask_for(session: Session, topics: Iterable[str]) -> None:
    """Raises OncelogError: the service does not answer, or has no such topics. Spark would say so late and at length."""
    session.client.offsets({topic: TopicAsked() for topic in topics}, session.namespace)


def _refused(session: Session, code: str, detail: str) -> typer.Exit:
    session.out.failure({"title": "The pipeline has ended", "code": code, "detail": detail}, f"error: {detail}")
    return typer.Exit(ERROR)


_PYTHON_ERROR = re.compile(r"^([A-Za-z_][\w.]*)(?:: ((?:.*\n?)+?))?(?=\s*(?:SQLSTATE|\Z))", re.MULTILINE)


def _in_short(error: Exception) -> str:
    """What Spark says, without the JVM's stack; of an error in one of its Python processes, what that one said."""
    text = str(error).partition("\n\tat ")[0].partition("JVM stacktrace")[0].strip()
    _, traceback, tail = text.rpartition("Traceback (most recent call last):\n")
    if traceback and (raised := _PYTHON_ERROR.search(tail)):
        kind, said = raised.groups()
        text = said.strip() if said and kind.startswith(("oncelog.", "ValueError")) else raised[0]
    return text.strip()[:2_000] or type(error).__name__


def _service(session: Session) -> dict[str, Any]:
    return {"url": session.client.url, "namespace": session.namespace, "token": session.token}


@contextmanager
def _shown(session: Session) -> Iterator[Told]:
    """Batches, rows and lag of each query, on stderr while they run; when it is interrupted, in the sentence then said."""
    text = "{task.fields[batches]:,} batches  {task.fields[rows]:,} rows  lag {task.fields[lag]}"
    with progress_bar(session.out.as_json, text) as bar:
        tasks: dict[str, Any] = {}

        def told(progress: dict[str, Progress]) -> None:
            for name, each in progress.items():
                if name not in tasks:
                    tasks[name] = bar.add_task(name, total=None, batches=0, rows=0, lag="-")
                lag = "-" if each.lag is None else f"{each.lag:,}"
                bar.update(tasks[name], batches=each.batches, rows=each.rows, lag=lag)
            session.so_far = lambda: _so_far(progress)

        yield told


def _so_far(progress: dict[str, Progress]) -> str:
    rows = sum(each.rows for each in progress.values())
    return f"{rows:,} rows were read; started again it goes on where it was"


def _result(session: Session, facts: dict[str, object], done: dict[str, Progress]) -> None:
    [(name, progress)] = done.items()
    text = f"{name}: {progress.rows:,} rows in {progress.batches} batches"
    session.out.result({**facts, **asdict(progress)}, text)
