"""`oncelog verify --store`: the store of a stopped service, opened here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import cast

import typer
from rich.progress import Progress

from oncelog.errors import OncelogError, TopicDamaged, TopicNotFound
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import Verification
from oncelog_service.cli.serve import settings_from, why_not_open
from oncelog_service.cli.session import ERROR, Session
from oncelog_service.cli.stores import check_store
from oncelog_service.cli.verifying import Name, damaged, task_of
from oncelog_service.clock import SystemClock
from oncelog_service.cluster.unserved import Served, Unserved
from oncelog_service.log.verify import Findings, verification, verify_log
from oncelog_service.reading import read
from oncelog_service.service import Service
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Store, StoreError
from oncelog_service.storage.rows import RowDamaged

NOBODY = "http://oncelog-verify.invalid"
"""Where the others over a shared store would find what verifies it: it answers nobody."""


def verify_store(session: Session, store: str, topics: Sequence[str], namespace: str | None, bar: Progress) -> list[Verification]:
    """Open the store of a stopped service and verify these topics, all if none is named. Exits with a sentence if it cannot."""
    settings = settings_from({"store": store})
    if not store.startswith("memory:"):
        check_store(store, "--store", there=True)
    service = Service(settings, _unserved(store), SystemClock(), NOBODY)

    async def run() -> list[Verification]:
        with _telling(session, store):
            await service.start()
        try:
            names = await read(_names_in, service, topics, namespace)
            return [await _in_store(service, name, bar) for name in names]
        finally:
            await service.stop()

    return asyncio.run(run())


def _unserved(store: str) -> Callable[[], Store]:
    """What opens it. Raises Served when opening a store that others serve: its topics are theirs, and can be verified there."""
    opener = store_opener(store)

    def opened() -> Store:
        made = opener()
        try:
            Unserved(made).begin()
        except BaseException:
            made.close()
            raise
        return made

    return opened


@contextmanager
def _telling(session: Session, store: str) -> Iterator[None]:
    try:
        yield
    except (StoreError, RowDamaged, OncelogError, Served) as error:
        served = f"{error}; or verify through them: oncelog verify --url URL"
        detail = served if isinstance(error, Served) else why_not_open(error, store)
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
    task = task_of(bar, name)
    try:
        log = await service.topics.open(*name)
    except TopicDamaged as damage:
        return damaged(name, damage)
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
