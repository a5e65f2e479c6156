"""`oncelog outbox …`: the relay of a transactional outbox in an application's database, and questions about it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote, urlsplit

import typer
from rich.progress import Progress

from oncelog.errors import OncelogError
from oncelog.wire.names import PRODUCER_PATTERN
from oncelog_service.cli.frame.codes import ERROR
from oncelog_service.cli.frame.lazy import noun
from oncelog_service.cli.output import progress_bar
from oncelog_service.cli.session import Session, Yes, command

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from oncelog.sql.outbox.outbox import Outbox
    from oncelog.sql.outbox.relay import OutboxRelay, RelayStatus

group = noun()

Database = Annotated[
    str,
    typer.Argument(
        metavar="DATABASE", envvar="ONCELOG_OUTBOX_DATABASE", help="SQLAlchemy URL of the outbox's database.", show_default=False
    ),
]
Name = Annotated[str, typer.Option("--name", help="Name of the outbox: the producer that its messages are published under.")]
Table = Annotated[str, typer.Option("--table", help="Name of the table that holds its rows.")]
TABLE = "oncelog_outbox"
_SHOWN_SECONDS = 1.0
_TOLD_SECONDS = 10.0
"""Between two lines that tell of nothing but more messages."""


@command(group, "relay", namespaced=False)
def relay(
    session: Session,
    database: Database,
    name: Name,
    table: Table = TABLE,
    once: Annotated[bool, typer.Option("--once", help="Publish what is committed now, and end.")] = False,
    rows: Annotated[int, typer.Option("--rows", min=1, max=10_000, help="Most rows that are published at once.")] = 1_000,
    poll_seconds: Annotated[float, typer.Option("--poll-seconds", min=0.001, help="How often an idle relay looks.")] = 0.2,
    takeover_seconds: Annotated[
        float, typer.Option("--takeover-seconds", min=0.1, help="Silence after which another relay is thought dead.")
    ] = 10.0,
) -> None:
    """Publish an outbox's rows, each once, until Ctrl-C or SIGTERM. Of several relays one works, the others stand by."""
    with _opened(session, database, name, table) as (outbox, engine):
        from oncelog.sql.outbox.database import OutboxDatabase
        from oncelog.sql.outbox.relay import OutboxRelay

        OutboxDatabase(outbox, engine).lease()  # what fails here would be tried again for ever
        with progress_bar(session.out.as_json, "{task.fields[text]}") as bar:
            shown = _Shown(session, outbox, engine, bar)
            made = OutboxRelay(
                outbox,
                engine,
                client=session.client,
                rows=rows,
                poll_seconds=poll_seconds,
                takeover_seconds=takeover_seconds,
                on_change=None if once else shown.tell,
            )
            session.so_far = lambda: _counts(made.status) + "; what is committed and not published waits"
            _run(made, once)
        value = {"outbox": name, "state": "stopped", "stored": made.status.stored, "duplicates": made.status.duplicates}
        session.out.result(value, f"{name}: {_counts(made.status)}")


def _run(made: OutboxRelay, once: bool) -> None:
    if once:
        made.run_once()
        return
    before = signal.signal(signal.SIGTERM, lambda *_: made.stop())
    try:
        made.run()
    finally:
        signal.signal(signal.SIGTERM, before)


@command(group, "status", namespaced=False, reads=True)
def status(session: Session, database: Database, name: Name, table: Table = TABLE) -> None:
    """How many rows wait, for how long, and which relay publishes them. Changes nothing."""
    with _opened(session, database, name, table) as (outbox, engine):
        from sqlalchemy import inspect

        from oncelog.sql.outbox.database import OutboxDatabase

        missing = [each for each in outbox.metadata.tables if not inspect(engine).has_table(each)]
        if missing:
            raise _refused(session, "no_outbox", f"there is no table {missing[0]} in this database")
        with engine.connect() as connection:
            waiting = outbox.waiting(connection)
        lease = OutboxDatabase(outbox, engine).seen()
        value: dict[str, object] = {
            "outbox": name,
            "waiting": waiting.rows,
            "oldest_seconds": waiting.oldest_seconds,
            "relay": None if lease is None else lease.holder,
            "numbered": 0 if lease is None else len(lease.plan),
            "next_number": 0 if lease is None else lease.next_number,
        }
        session.out.members(value, "outbox")


@command(group, "renumber", namespaced=False)
def renumber(session: Session, database: Database, name: Name, table: Table = TABLE, yes: Yes = False) -> None:
    """After outbox_behind: number above everything that is published. Rows that are published already would be so again."""
    with _opened(session, database, name, table) as (outbox, engine):
        from oncelog.sql.outbox.relay import OutboxRelay

        session.confirm(f"Is every row of outbox {name} that is in its topic already deleted here?", yes)
        number = OutboxRelay(outbox, engine, client=session.client).renumber()
        session.out.result({"outbox": name, "next_number": number}, f"{name}: the next number is {number}")


# --- what all of them share


class _Shown:
    """What a running relay does: on a terminal as a line that changes, else as a line now and then."""

    def __init__(self, session: Session, outbox: Outbox, engine: Engine, bar: Progress) -> None:
        self._session = session
        self._outbox = outbox
        self._engine = engine
        self._bar = bar
        self._task = bar.add_task(outbox.name, total=None, text="") if not bar.disable else None
        self._told: tuple[object, ...] = ()
        self._due = 0.0

    def tell(self, now: RelayStatus) -> None:
        """The state, what is blocked, what fails: at once; how far it has come: not more often than need be."""
        facts = (now.state, tuple(now.blocked), type(now.error))
        if now.state == "stopped" or (facts == self._told and time.monotonic() < self._due):
            return
        self._told, self._due = facts, time.monotonic() + (_TOLD_SECONDS if self._task is None else _SHOWN_SECONDS)
        waiting = self._waiting()
        if self._task is not None:
            self._bar.update(self._task, text=self._text(now, waiting))
            return
        value = {
            "outbox": self._outbox.name,
            "state": now.state,
            "stored": now.stored,
            "duplicates": now.duplicates,
            **waiting,
            "blocked": {topic: error.code for topic, error in now.blocked.items()},
            "error": None if now.error is None else _in_short(now.error),
        }
        self._session.out.result(value, f"{self._outbox.name}: {self._text(now, waiting)}")
        sys.stdout.flush()

    def _waiting(self) -> dict[str, object]:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with self._engine.connect() as connection:
                waiting = self._outbox.waiting(connection)
        except SQLAlchemyError:
            return {"waiting": None, "oldest_seconds": None}
        return {"waiting": waiting.rows, "oldest_seconds": waiting.oldest_seconds}

    def _text(self, now: RelayStatus, waiting: dict[str, object]) -> str:
        text = f"{now.state}, {_counts(now)}"
        if waiting["waiting"]:
            text += f", {waiting['waiting']:,} waiting, the oldest for {waiting['oldest_seconds']:,.1f} s"
        for topic, error in now.blocked.items():
            text += f"; {topic} is blocked: {error.detail} [{error.code}]"
        return text if now.error is None else f"{text}; {_in_short(now.error)}"


@contextmanager
def _opened(session: Session, database: str, name: str, table: str) -> Iterator[tuple[Outbox, Engine]]:
    """The outbox and its database. Without the extra, or when the database fails: a sentence, and the command ends with 1."""
    if not PRODUCER_PATTERN.fullmatch(name):
        raise typer.BadParameter("1 to 249 of the characters A-Z a-z 0-9 _ . : @ = -, but not . or ..", param_hint="--name")
    try:
        from sqlalchemy.exc import ArgumentError, SQLAlchemyError

        from oncelog.sql.outbox.outbox import Outbox
        from oncelog.sql.table import UnfitEngine
    except ModuleNotFoundError:
        raise _refused(session, "sqlalchemy_missing", "an outbox needs SQLAlchemy: pip install 'oncelog[sql]'") from None
    try:
        engine = _engine(database)
    except ArgumentError as error:
        raise typer.BadParameter("no URL as SQLAlchemy takes it", param_hint="DATABASE") from error
    except ModuleNotFoundError as error:
        detail = f"that database needs the driver {error.name}, which is not installed"
        raise _refused(session, "driver_missing", detail) from None
    missing = _missing_file(engine)
    if missing is not None:
        raise _refused(session, "database_failed", f"there is no database {missing}")
    try:
        yield Outbox(name, table), engine
    except SQLAlchemyError as error:
        raise _refused(session, "database_failed", _in_short(error)) from None
    except UnfitEngine as error:
        raise _refused(session, "database_failed", str(error)) from None
    finally:
        engine.dispose()


def _engine(database: str) -> Engine:
    from sqlalchemy import create_engine, make_url

    url = make_url(database)
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")  # the driver that this house comes with
    return create_engine(url, pool_pre_ping=True)


def _missing_file(engine: Engine) -> str | None:
    """The file of SQLite that is not there, and would be made by opening it."""
    if engine.dialect.name != "sqlite":
        return None
    [(name, *_), options] = engine.dialect.create_connect_args(engine.url)
    if options.get("uri"):
        uri = urlsplit(name)
        name = ":memory:" if "mode=memory" in uri.query.split("&") else unquote(uri.path)
    return None if name in ("", ":memory:") or Path(name).exists() else name


def _refused(session: Session, code: str, detail: str) -> typer.Exit:
    session.out.failure({"title": "The outbox's database cannot be used", "code": code, "detail": detail}, f"error: {detail}")
    return typer.Exit(ERROR)


def _in_short(error: Exception) -> str:
    """What failed, without statements and their parameters, which hold what people publish."""
    if isinstance(error, OncelogError):
        return f"{error.detail} [{error.code}]"
    return str(getattr(error, "orig", None) or error).strip().partition("\n")[0] or type(error).__name__


def _counts(now: RelayStatus) -> str:
    again = f", {now.duplicates:,} were there already" if now.duplicates else ""
    return f"{now.stored:,} messages published{again}"
