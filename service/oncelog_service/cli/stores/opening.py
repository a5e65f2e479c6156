"""Stores that a command opens itself, while no service does: what `verify`, `copy` and `salvage` share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import typer
from rich.filesize import decimal
from rich.progress import Progress, TaskID

from oncelog.errors import OncelogError
from oncelog_service.cli.frame.codes import ERROR
from oncelog_service.cli.output import Output
from oncelog_service.cli.serve import data_of, why_not_open
from oncelog_service.cluster.unserved import Served
from oncelog_service.storage.copying import TABLES, CopyRefused, pieces
from oncelog_service.storage.files.directory import private
from oncelog_service.storage.files.end_file import beside, is_new
from oncelog_service.storage.open import path_of, store_opener
from oncelog_service.storage.port import RowDamaged, Store, StoreError

TELLING_ROWS = "{task.fields[rows]:,} rows, {task.fields[size]}, {task.fields[rate]:,.0f} rows/s"


class CannotOpen(Exception):
    """A sentence that says why."""


def check_store(url: str, param: str, *, there: bool) -> None:
    """Raises BadParameter: it names no store, one that is gone with its process, or (``there``) files that are not there.

    Opening would make an empty one, in which nothing is wrong.
    """
    try:
        store_opener(url)
    except ValueError as error:
        raise typer.BadParameter(str(error).removeprefix("--store "), param_hint=param) from None
    if url.startswith("memory:"):
        raise typer.BadParameter("a store in memory is gone with its process", param_hint=param)
    path = path_of(url)
    if there and path is not None and not _holds_a_store(path, url.startswith("leveldb:")):
        raise typer.BadParameter(f"there is no store at {data_of(url)}", param_hint=param)


def _holds_a_store(path: Path, is_leveldb: bool) -> bool:
    """Whether there was one at any rate: of what is damaged, opening it says more."""
    if not is_leveldb:
        return path.is_file() or beside(path).is_file()
    return path.is_dir() and not is_new(path)


@contextmanager
def opening(url: str) -> Iterator[None]:
    """Say why the store cannot be opened. Raises CannotOpen."""
    try:
        yield
    except (StoreError, RowDamaged, OncelogError) as error:
        raise CannotOpen(why_not_open(error, url)) from error


@contextmanager
def opened(url: str) -> Iterator[Store]:
    """The store, closed at the end. Raises CannotOpen."""
    # What the driver remarks beside the error that it raises would stand on stderr, where there is one sentence or JSON.
    logging.getLogger("psycopg").addHandler(logging.NullHandler())
    with private():
        with opening(url):
            store = store_opener(url)()
        try:
            yield store
        finally:
            store.close()


@contextmanager
def ending(out: Output, verb: str, go_on: str = "") -> Iterator[None]:
    """What goes wrong with stores, as a sentence and exit code 1. ``go_on``: what follows when one fails on the way."""
    try:
        yield
    except (CannotOpen, CopyRefused, Served) as error:
        detail = str(error)
    except (StoreError, RowDamaged) as error:
        detail = f"{error}{go_on}"
    except OncelogError as error:
        detail = error.detail
    else:
        return
    problem = {"title": f"Cannot {verb}", "code": f"cannot_{verb.replace(' ', '_')}", "detail": detail}
    out.failure(problem, f"error: {detail}")
    raise typer.Exit(ERROR)


@contextmanager
def served_named(which: str, go_on: str = "") -> Iterator[None]:
    """Say which store others serve, and what to do then. Raises Served."""
    try:
        yield
    except Served as error:
        raise Served(f"{which}{error}{go_on}") from error


def size_of(store: Store, bar: Progress) -> int | None:
    """Bytes of all rows, for a bar that is shown; reading them takes far less time than writing them."""
    if bar.disable:
        return None
    task = bar.add_task("counting", total=None, rows=0, size="", rate=0.0)
    rows = size = 0
    for table in TABLES:
        with closing(pieces(store, table)) as found:  # type: ignore[type-var]
            for piece in found:
                rows, size = rows + len(piece.rows), size + piece.size
                show(bar, task, size, rows)
    bar.remove_task(task)
    return size


def show(bar: Progress, task: TaskID, size: int, rows: int) -> None:
    """Move the bar on."""
    if not bar.disable:
        elapsed = bar.tasks[bar.task_ids.index(task)].elapsed or 0.001
        bar.update(task, completed=size, rows=rows, size=decimal(size), rate=rows / max(elapsed, 0.001))
