"""The Spark that a pipeline runs on, how far it is, and in a sentence what ended it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from oncelog.errors import OncelogError
from oncelog.spark import JavaNotFound
from oncelog.spark import session as spark_session
from oncelog_service.cli.output import progress_bar
from oncelog_service.cli.pipeline import refused
from oncelog_service.cli.session import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncelog.spark.jobs.progress import Progress

_QUIET = {"spark.log.level": "FATAL"}
"""What a command says when it fails, or is interrupted, is a sentence; Spark would print its stacks beside it."""


@contextmanager
def running_spark(session: Session, name: str, master: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """A Spark that ends with the command. Without Java: a sentence, and the command ends with 1."""
    session.out.note("starting Spark …")
    try:
        spark = spark_session(name, master, **{**_QUIET, **conf})
    except JavaNotFound as error:
        raise refused(session.out, "java_missing", f"{error}") from None
    except Exception as error:
        raise refused(session.out, "spark_failed", f"Spark does not start: {in_short(error)}") from error
    try:
        yield spark
    except Exception as error:
        if isinstance(error, OncelogError | typer.Exit | typer.Abort | typer.BadParameter | BrokenPipeError):
            raise
        raise refused(session.out, "pipeline_failed", in_short(error)) from error
    finally:
        spark.stop()


_PYTHON_ERROR = re.compile(r"^([A-Za-z_][\w.]*)(?:: ((?:.*\n?)+?))?(?=\s*(?:SQLSTATE|\Z))", re.MULTILINE)


def in_short(error: Exception) -> str:
    """What Spark says, without the JVM's stack; of an error in one of its Python processes, what that one said."""
    text = str(error).partition("\n\tat ")[0].partition("JVM stacktrace")[0].strip()
    _, traceback, tail = text.rpartition("Traceback (most recent call last):\n")
    if traceback and (raised := _PYTHON_ERROR.search(tail)):
        kind, said = raised.groups()
        text = said.strip() if said and kind.startswith(("oncelog.", "ValueError")) else raised[0]
    return text.strip()[:2_000] or type(error).__name__


@contextmanager
def shown(session: Session) -> Iterator[Callable[[dict[str, Progress]], None]]:
    """Batches, rows and lag of each query, on stderr while they run; when it is interrupted, in the sentence then said."""
    text = "{task.fields[batches]:,} batches  {task.fields[rows]:,} rows  lag {task.fields[lag]}"
    with progress_bar(session.out.as_json, text) as bar:
        tasks: dict[str, Any] = {}

        def on_progress(progress: dict[str, Progress]) -> None:
            for name, each in progress.items():
                if name not in tasks:
                    tasks[name] = bar.add_task(name, total=None, batches=0, rows=0, lag="-")
                lag = "-" if each.lag is None else f"{each.lag:,}"
                bar.update(tasks[name], batches=each.batches, rows=each.rows, lag=lag)
            session.so_far = lambda: _so_far(progress)

        yield on_progress


def _so_far(progress: dict[str, Progress]) -> str:
    rows = sum(each.rows for each in progress.values())
    return f"{rows:,} rows were read; started again it goes on where it was"
