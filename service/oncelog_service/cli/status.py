"""`oncelog status`"""

from __future__ import annotations

from collections.abc import Iterator

import typer

from oncelog.errors import TopicDamaged, TopicNotFound
from oncelog.http.credentials import shown
from oncelog_service.cli.session import Session, command


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "status", namespaced=False)(status)


def status(session: Session) -> None:
    """Say whether the service is up and its store open, and how its topics stand."""
    client = session.client
    namespaces = client.namespaces()  # an unhealthy service refuses this, and says why
    topics = [topic for namespace in namespaces for topic in _topics(session, namespace)]
    value = {"url": shown(client.url), "status": "ok" if client.healthy() else "unavailable", "topics": topics}
    session.out.note(f"{shown(client.url)}: {value['status']}")
    columns = ["namespace", "name", "generation", "earliest_offset", "upcoming_offset", "producers", "deduplication"]
    if any("damage" in topic for topic in topics):
        columns.append("damage")
    rows = [[topic.get(column) for column in columns] for topic in topics]
    session.out.table(value, [column.replace("_", " ") for column in columns], rows)


def _topics(session: Session, namespace: str) -> Iterator[dict[str, object]]:
    for name in session.client.topics(namespace):
        try:
            stats = session.client.stats(name, namespace).model_dump(mode="json")
        except TopicDamaged as damage:
            stats = {"name": name, "damage": damage.detail}
        except TopicNotFound:
            continue  # deleted since it was listed
        yield {"namespace": namespace, **stats}
