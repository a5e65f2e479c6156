"""`oncelog verify`: of a running service over HTTP, of a stopped one by opening its store."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Annotated, cast

import typer
from rich.progress import Progress, TaskID

from oncelog.errors import OncelogError, TopicDamaged, TopicNotFound
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import Verification
from oncelog_service.cli.output import progress_bar
from oncelog_service.cli.serve import data_of, settings_from, why_not_open
from oncelog_service.cli.session import ERROR, FAILED, Session, command
from oncelog_service.clock import SystemClock
from oncelog_service.log.reading import read
from oncelog_service.log.verify import Findings, verification, verify_log
from oncelog_service.service import Service
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import StoreError
from oncelog_service.storage.rows import RowDamaged

Name = tuple[str, str]
"""(namespace, topic)."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "verify", namespaced=False)(verify)


def verify(
    session: Session,
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="Topics; all if none is named.")] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", help="Of the topics; without any topic named: all namespaces.", show_default=False),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", help="Open this store itself: the service is stopped.", show_default=False)
    ] = None,
) -> None:
    """Read every message of the logs again, rebuild the maps from them and compare. Exits with 2 if anything is wrong."""
    with progress_bar(session.out.as_json, "{task.fields[messages]:,} messages") as bar:
        if store is None:
            found = [_over_http(session, name, bar) for name in _names_over_http(session, topics or [], namespace)]
        else:
            found = _of_store(session, store, topics or [], namespace, bar)
    columns = ("namespace", "topic", "generation", "messages", "producers", "duplicates", "ok")
    value = [each.model_dump(mode="json") for each in found]
    session.out.table(value, columns, [[row[column] for column in columns] for row in value])
    for each in found:
        for problem in each.problems:
            session.out.note(f"{each.namespace}/{each.topic}: {problem}")
    if not all(each.ok for each in found):
        raise typer.Exit(FAILED)


# --- a running service


def _names_over_http(session: Session, topics: Sequence[str], namespace: str | None) -> list[Name]:
    if topics:
        return [(namespace or DEFAULT_NAMESPACE, topic) for topic in topics]
    namespaces = session.client.namespaces() if namespace is None else [namespace]
    return [(each, topic) for each in namespaces for topic in session.client.topics(each)]


def _over_http(session: Session, name: Name, bar: Progress) -> Verification:
    task = _task(bar, name)
    try:
        for step in session.client.verify(name[1], name[0]):
            if isinstance(step, Verification):
                return step
            bar.update(task, completed=step[0], total=step[1], messages=step[0])
    except TopicDamaged as damage:
        return _damaged(name, damage)
    raise AssertionError("Client.verify ends with a Verification or raises")


# --- a stopped one


def _of_store(session: Session, store: str, topics: Sequence[str], namespace: str | None, bar: Progress) -> list[Verification]:
    settings = settings_from({"store": store})
    if store.startswith("leveldb:") and not (Path(data_of(store)) / "CURRENT").is_file():
        # LevelDB would make an empty one, in which nothing is wrong.
        raise typer.BadParameter(f"there is no store at {data_of(store)}", param_hint="--store")
    service = Service(settings, store_opener(store), SystemClock())

    async def run() -> list[Verification]:
        with _telling(session, store):
            await service.start()
        try:
            names = await read(_names_in, service, topics, namespace)
            return [await _in_store(service, name, bar) for name in names]
        finally:
            await service.stop()

    return asyncio.run(run())


@contextmanager
def _telling(session: Session, store: str) -> Iterator[None]:
    try:
        yield
    except (StoreError, RowDamaged, OncelogError) as error:
        detail = why_not_open(error, store)
        session.out.failure({"title": "Cannot verify", "code": "cannot_verify", "detail": detail}, f"error: {detail}")
        raise typer.Exit(ERROR) from None


def _names_in(service: Service, topics: Sequence[str], namespace: str | None) -> list[Name]:
    """The topics to verify. Raises TopicNotFound."""
    there = [name for name, row in service.topics.rows() if not row.deleted]
    if not topics:
        return [name for name in there if namespace in (None, name[0])]
    wanted = [(namespace or DEFAULT_NAMESPACE, topic) for topic in topics]
    for name in wanted:
        if name not in there:
            raise TopicNotFound(f"there is no topic {name[0]}/{name[1]} in this store")
    return wanted


async def _in_store(service: Service, name: Name, bar: Progress) -> Verification:
    task = _task(bar, name)
    try:
        log = await service.topics.open(*name)
    except TopicDamaged as damage:
        return _damaged(name, damage)
    total = log.position.upcoming_offset - log.earliest_offset
    findings = Findings()
    with _Steps(verify_log(service.store, log)) as steps:
        while (found := await read(steps.next)) is not None:  # in between, Ctrl-C gets its turn
            findings = found
            bar.update(task, completed=findings.messages, total=total, messages=findings.messages)
    return verification(*name, log.row.generation, findings)


class _Steps:
    """A verification on another thread that ends when the block does: a scan left open would keep the store from closing."""

    def __init__(self, steps: Iterator[Findings]) -> None:
        self._steps = cast(Generator[Findings, None, None], steps)
        self._running = Lock()

    def next(self) -> Findings | None:
        with self._running:
            return next(self._steps, None)

    def __enter__(self) -> _Steps:
        return self

    def __exit__(self, *_: object) -> None:
        with self._running:  # after Ctrl-C the step under way goes on to its end
            self._steps.close()


def _task(bar: Progress, name: Name) -> TaskID:
    return bar.add_task(f"{name[0]}/{name[1]}", total=None, messages=0)


def _damaged(name: Name, damage: TopicDamaged) -> Verification:
    """A log that cannot even be opened: nothing of it could be counted."""
    return Verification(
        namespace=name[0], topic=name[1], generation=0, messages=0, producers=0, duplicates=0, ok=False, problems=[damage.detail]
    )
