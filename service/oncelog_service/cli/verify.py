"""`oncelog verify`: of a running service over HTTP, of a stopped one by opening its store (`verify_store.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.progress import Progress

from oncelog.errors import TopicDamaged
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import Verification
from oncelog_service.cli.output import progress_bar
from oncelog_service.cli.session import FAILED, Session, command
from oncelog_service.cli.verifying import Name, damaged, task_of


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
            # Loaded here: no other command needs the service itself.
            from oncelog_service.cli.verify_store import verify_store

            found = verify_store(session, store, topics or [], namespace, bar)
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
    from oncelog_service.cli.verify_same import verify_same
    from oncelog_service.storage.open import shown

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
    task = task_of(bar, name)
    try:
        for step in session.client.verify(name[1], name[0]):
            if isinstance(step, Verification):
                return step
            bar.update(task, completed=step[0], total=step[1], messages=step[0])
    except TopicDamaged as damage:
        return damaged(name, damage)
    raise AssertionError("Client.verify ends with a Verification or raises")
