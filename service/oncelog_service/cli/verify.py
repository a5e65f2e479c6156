"""`oncelog verify`: of a running service over HTTP, of a stopped one by opening its store, of a store beside its copy."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.progress import Progress, TaskID

from oncelog.errors import TopicDamaged, TopicNotFound
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import Verification
from oncelog_service.cli.output import Output, progress_bar
from oncelog_service.cli.serve import data_of, settings_from
from oncelog_service.cli.session import FAILED, Session, command
from oncelog_service.storage.open import shown, store_opener
from oncelog_service.storage.port import Store, StoreDamaged, Table
from oncelog_service.storage.seals import SealedStore

if TYPE_CHECKING:
    # Loaded where they are needed: no other command needs the service itself.
    from oncelog_service.log.verify import Findings
    from oncelog_service.service import Service
    from oncelog_service.storage.copying import Difference

Name = tuple[str, str]
"""(namespace, topic)."""

NOBODY = "http://oncelog-verify.invalid"
"""Where the others over a shared store would find what verifies it: it answers nobody."""

MAX_PROBLEMS = 100


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
    same_as: Annotated[
        str | None,
        typer.Option("--same-as", help="Compare every row of --store with this store's, as after a copy.", show_default=False),
    ] = None,
) -> None:
    """Read every message of the logs again, rebuild the maps from them and compare. Exits with 2 if anything is wrong."""
    if same_as is not None:
        if store is None or topics or namespace is not None:
            raise typer.BadParameter("goes with --store, and compares all of it", param_hint="--same-as")
        _same(session, store, same_as)
        return
    with progress_bar(session.out.as_json, "{task.fields[messages]:,} messages") as bar:
        if store is None:
            found = [_over_http(session, name, bar) for name in _names_over_http(session, topics or [], namespace)]
        else:
            found = _over_store(session, store, topics or [], namespace, bar)
    columns = ("namespace", "topic", "generation", "messages", "producers", "duplicates", "ok")
    value = [each.model_dump(mode="json") for each in found]
    session.out.table(value, columns, [[row[column] for column in columns] for row in value])
    for each in found:
        for problem in each.problems:
            session.out.note(f"{each.namespace}/{each.topic}: {problem}")
    if not all(each.ok for each in found):
        raise typer.Exit(FAILED)


def _same(session: Session, store: str, same_as: str) -> None:
    from oncelog_service.cli.stores import TELLING_ROWS

    with progress_bar(session.out.as_json, TELLING_ROWS) as bar:
        found = verify_same(session.out, store, same_as, bar)
    tables = {
        name: {"rows": found.rows[name], "different": found.different[name], "damaged": found.damaged[name]}
        for name in sorted({*(+found.rows), *found.different, *found.damaged})
    }
    value = {
        "store": shown(store),
        "same_as": shown(same_as),
        "ok": found.ok,
        "rows": found.rows.total(),
        "bytes": found.size,
        "different": found.different.total(),
        "damaged": found.damaged.total(),
        "tables": tables,
        "problems": found.problems,
    }
    rows = [(name, *counts.values(), not counts["different"] and not counts["damaged"]) for name, counts in tables.items()]
    rows.append(("all", value["rows"], value["different"], value["damaged"], found.ok))
    session.out.table(value, ("table", "rows", "different", "damaged", "ok"), rows)
    for problem in found.problems:
        session.out.note(problem)
    if not found.ok:
        raise typer.Exit(FAILED)


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


def _over_store(session: Session, store: str, topics: Sequence[str], namespace: str | None, bar: Progress) -> list[Verification]:
    """Open the store of a stopped service and verify these topics, all if none is named. Exits with a sentence if it cannot."""
    from oncelog_service.cli.stores import check_store, ending, opening
    from oncelog_service.clock import SystemClock
    from oncelog_service.reading import read
    from oncelog_service.service import Service

    settings = settings_from({"store": store})
    if not store.startswith("memory:"):
        check_store(store, "--store", there=True)
    service = Service(settings, _unserved(store), SystemClock(), NOBODY)

    async def run() -> list[Verification]:
        with ending(session.out, "verify"), opening(store):
            await service.start()
        try:
            names = await read(_names_in, service, topics, namespace)
            return [await _in_store(service, name, bar) for name in names]
        finally:
            await service.stop()

    return asyncio.run(run())


def _unserved(store: str) -> Callable[[], Store]:
    """What opens it. Raises Served when opening a store that others serve: its topics are theirs, and can be verified there."""
    from oncelog_service.cli.stores import served_named
    from oncelog_service.cluster.unserved import Unserved

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
    there = [name for name, row in service.topics.rows() if not row.deleted]
    if not topics:
        return [name for name in there if namespace in (None, name[0])]
    wanted = [(namespace or DEFAULT_NAMESPACE, topic) for topic in topics]
    for name in wanted:
        if name not in there:
            raise TopicNotFound(f"there is no topic {name[0]}/{name[1]} in this store")
    return wanted


async def _in_store(service: Service, name: Name, bar: Progress) -> Verification:
    from oncelog_service.log.verify import Findings, verification, verify_log
    from oncelog_service.reading import read

    task = _task_of(bar, name)
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


@dataclass(slots=True)
class Compared:
    """What was found."""

    rows: Counter[str] = field(default_factory=Counter)
    """Of the first store, by table."""
    different: Counter[str] = field(default_factory=Counter)
    damaged: Counter[str] = field(default_factory=Counter)
    size: int = 0
    """In bytes."""
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def problem(self, text: str) -> None:
        """Note one; the first hundred are kept."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)


def verify_same(out: Output, left_url: str, right_url: str, bar: Progress) -> Compared:
    """Compare them. Exits with a sentence if that cannot be."""
    from oncelog_service.cli.stores import check_store, ending, opened
    from oncelog_service.cluster.unserved import Unserved

    check_store(left_url, "--store", there=True)
    check_store(right_url, "--same-as", there=True)
    with ending(out, "verify"), ExitStack() as stack:
        stores = [stack.enter_context(opened(url)) for url in (left_url, right_url)]
        unserved = [Unserved(store) for store in stores]
        for each in unserved:
            each.begin()
        compared = compare(stores[0], stores[1], data_of(left_url), data_of(right_url), bar)
        for each in unserved:
            each.check()
    return compared


def compare(left: Store, right: Store, left_name: str, right_name: str, bar: Progress) -> Compared:
    """Every row of every table, as it stands on disk: one that is damaged does not hide those behind it. Raises StoreError."""
    from oncelog_service.cli.rows import ON_DISK, READ
    from oncelog_service.cli.stores import show, size_of
    from oncelog_service.storage.copying import TABLES, mark_of

    found = Compared()
    for name, store in ((left_name, left), (right_name, right)):
        mark = mark_of(store)
        if mark is not None and not mark.finished:
            found.problem(f"{name} is half a copy, of {mark.source}")
    task = bar.add_task("comparing", total=size_of(left, bar), rows=0, size="", rate=0.0)

    def told() -> None:
        show(bar, task, found.size, found.rows.total())

    readers = READ
    if isinstance(left, SealedStore) and isinstance(right, SealedStore):
        left, right, readers = left.inner, right.inner, ON_DISK
    for table in TABLES:
        try:
            _compare_table(found, table, readers[table], left, right, (left_name, right_name), told)
        except StoreDamaged as damage:
            found.damaged[table.name] += 1
            found.problem(f"{table.name}: cannot be read to its end: {damage}")
    return found


def _compare_table(
    found: Compared,
    table: Table,
    read: Callable[[bytes, bytes], object],
    left: Store,
    right: Store,
    names: tuple[str, str],
    told: Callable[[], None],
) -> None:
    from oncelog_service.cli.rows import CHECKSUMMED
    from oncelog_service.storage.copying import differences, pieces
    from oncelog_service.storage.rows import all_intact

    with closing(pieces(left, table)) as all_pieces:  # type: ignore[type-var]
        for piece in all_pieces:
            if table not in CHECKSUMMED or not all_intact(piece.rows.values()):
                for key, value in piece.rows.items():
                    _check(found, table, key, value, read, names[0])
            found.rows[table.name] += len(piece.rows)
            found.size += piece.size
            for difference in differences(piece, right):
                found.different[table.name] += 1
                found.problem(_sentence(difference, *names))
                if difference.right is not None:
                    _check(found, table, difference.key, difference.right, read, names[1])
            told()


def _check(found: Compared, table: Table, key: bytes, value: bytes, read: Callable[[bytes, bytes], object], where: str) -> None:
    from oncelog_service.cli.rows import shown_key

    try:
        read(key, value)
    except (StoreDamaged, ValueError, struct.error, IndexError, KeyError, TypeError) as damage:
        found.damaged[table.name] += 1
        found.problem(f"{table.name} {shown_key(key)}: damaged in {where}: {damage}")


def _sentence(difference: Difference, left_name: str, right_name: str) -> str:
    from oncelog_service.cli.rows import shown_key

    table, key, left, right = difference
    name = f"{table.name} {shown_key(key)}"
    if left is None:
        return f"{name}: only in {right_name}"
    if right is None:
        return f"{name}: only in {left_name}"
    differing = (place for place, (one, other) in enumerate(zip(left, right, strict=False)) if one != other)
    at = next(differing, min(len(left), len(right)))
    return f"{name}: differs from byte {at} on; {len(left)} bytes in {left_name}, {len(right)} in {right_name}"
