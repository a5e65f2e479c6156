"""`oncelog verify`: of a running service over HTTP, of a stopped one by opening its store, of a store beside its copy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from threading import Lock
from typing import cast

import typer
from rich.progress import Progress, TaskID

from oncelog.errors import TopicDamaged, TopicNotFound
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import Verification
from oncelog_service.cli.frame.codes import FOUND
from oncelog_service.cli.output import Output, progress_bar
from oncelog_service.cli.session import Session
from oncelog_service.cli.settings import settings_from
from oncelog_service.cli.stores.opening import check_store, ending, opening, served_named
from oncelog_service.clock import SystemClock
from oncelog_service.cluster.unserved import Unserved
from oncelog_service.log.verify import Findings, verification, verify_log
from oncelog_service.reading import read
from oncelog_service.service import Service
from oncelog_service.storage.files.directory import private
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Store
from oncelog_service.workers import ThreadWorkers

Name = tuple[str, str]
"""(namespace, topic)."""

NOT_SERVED = "http://oncelog-verify.invalid"
"""The URL under which others over a shared store would see this process: it does not answer."""


def verify_topics(session: Session, topics: Sequence[str], namespace: str | None, store: str | None) -> None:
    """Verifies topics of a running service, or of a ``store``, and prints what was found. Exits with 10 if anything is wrong."""
    with progress_bar(session.out.as_json, "{task.fields[messages]:,} messages") as bar:
        if store is None:
            found = [_over_http(session, name, bar) for name in _names_over_http(session, topics, namespace)]
        else:
            found = over_store(session.out, store, topics, namespace, bar)
    session.out.rows(found, ("namespace", "topic", "generation", "messages", "rolled_back", "producers", "duplicates", "ok"))
    note_problems(session.out, found)
    if not all(each.ok for each in found):
        raise typer.Exit(FOUND)


def note_problems(out: Output, found: Sequence[Verification]) -> None:
    """Prints what is wrong, beside the result."""
    for each in found:
        for problem in each.problems:
            out.note(f"{each.namespace}/{each.topic}: {problem}")


def _names_over_http(session: Session, topics: Sequence[str], namespace: str | None) -> list[Name]:
    if topics:
        return [(namespace or DEFAULT_NAMESPACE, topic) for topic in topics]
    namespaces = session.client.namespaces() if namespace is None else [namespace]
    return [(each, topic) for each in namespaces for topic in session.client.topics(each)]


def _over_http(session: Session, name: Name, bar: Progress) -> Verification:
    task = _task_of(bar, name)
    try:
        for step in session.client.verify(name[1], name[0]):
            if isinstance(step, Verification):
                return step
            bar.update(task, completed=step[0], total=step[1], messages=step[0])
    except TopicDamaged as damage:
        return _damaged(name, damage)
    raise AssertionError("Client.verify ends with a Verification or raises")


def _task_of(bar: Progress, name: Name) -> TaskID:
    """A line that shows how far it is."""
    return bar.add_task(f"{name[0]}/{name[1]}", total=None, messages=0)


def _damaged(name: Name, damage: TopicDamaged) -> Verification:
    """A log that cannot even be opened: nothing of it could be counted."""
    return Verification(
        namespace=name[0], topic=name[1], generation=0, messages=0, producers=0, duplicates=0, ok=False, problems=[damage.detail]
    )


def over_store(
    out: Output, store: str, topics: Sequence[str], namespace: str | None, bar: Progress, *, is_copy: bool = False
) -> list[Verification]:
    """Open the store of a stopped service and verify these topics, all if none is named. Exits with a sentence if it cannot.

    ``is_copy``: it asks no transaction service that runs alone, which would take the copy for the store.
    """
    settings = settings_from({"store": store, **({"transactions_url": None} if is_copy else {})})
    if not store.startswith("memory:"):
        check_store(store, "--store", there=True)
    service = Service(settings, _unserved(store), SystemClock(), ThreadWorkers(), NOT_SERVED)

    async def run() -> list[Verification]:
        with ending(out, "verify"), opening(store):
            await service.start()
        try:
            names = await read(_names_in, service, topics, namespace)
            return [await _in_store(service, name, bar) for name in names]
        finally:
            await service.stop()

    with private():
        return asyncio.run(run())


def _unserved(store: str) -> Callable[[], Store]:
    """What opens it. Raises Served when opening a store that others serve: its topics are theirs, and can be verified there."""
    opener = store_opener(store)

    def opened() -> Store:
        made = opener()
        try:
            with served_named("", "; or verify through them: oncelog verify --url URL"):
                Unserved(made).begin()
        except BaseException:
            made.close()
            raise
        return made

    return opened


def _names_in(service: Service, topics: Sequence[str], namespace: str | None) -> list[Name]:
    """The topics to verify. Raises TopicNotFound."""
    there = [name for name, row in service.opening.topics.directory.rows() if not row.deleted]
    if not topics:
        return [name for name in there if namespace in (None, name[0])]
    wanted = [(namespace or DEFAULT_NAMESPACE, topic) for topic in topics]
    for name in wanted:
        if name not in there:
            raise TopicNotFound(f"there is no topic {name[0]}/{name[1]} in this store")
    return wanted


async def _in_store(service: Service, name: Name, bar: Progress) -> Verification:
    task = _task_of(bar, name)
    try:
        log = await service.opening.topics.logs.open(*name)
    except TopicDamaged as damage:
        return _damaged(name, damage)
    total = log.position.upcoming_offset - log.earliest_offset
    findings = Findings()
    with _Steps(verify_log(service.opening.store, log)) as steps:
        while (found := await read(steps.next)) is not None:  # in between, Ctrl-C gets its turn
            findings = found
            bar.update(task, completed=findings.messages, total=total, messages=findings.messages)
    return verification(*name, log.generation, findings)


class _Steps:
    """A verification on another thread that ends when the block does: a scan left open would keep the store from closing."""

    def __init__(self, steps: Iterator[Findings]) -> None:
        self._steps = cast("Generator[Findings, None, None]", steps)
        self._running = Lock()

    def next(self) -> Findings | None:
        with self._running:
            return next(self._steps, None)

    def __enter__(self) -> _Steps:
        return self

    def __exit__(self, *_: object) -> None:
        with self._running:  # after Ctrl-C the step under way goes on to its end
            self._steps.close()
