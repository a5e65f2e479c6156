"""`oncelog status`"""

from __future__ import annotations

from collections.abc import Iterator

import typer

from oncelog.errors import NotAllowed
from oncelog.http.credentials import shown
from oncelog_service.cli.session import Session, command

_COLUMNS = (
    "namespace",
    "name",
    "generation",
    "earliest_offset",
    "upcoming_offset",
    "bytes",
    "producers",
    "deduplication",
    "damage",
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "status", namespaced=False, reads=True)(status)


def status(session: Session) -> None:
    """Say whether the service is up and its store open, and how its topics stand. Opens none of them."""
    client = session.client
    namespaces = client.namespaces()  # an unhealthy service refuses this, and says why
    value = {"url": shown(client.url), "status": "ok" if client.healthy() else "unavailable"}
    session.out.note(f"{value['url']}: {value['status']}{_alarms(session)}")
    topics = ({"namespace": each, **topic.model_dump(mode="json")} for each in namespaces for topic in client.all_stats(each))
    if session.out.as_json:
        session.out.result({**value, "topics": list(topics)}, "")
    else:
        session.out.stream([column.replace("_", " ") for column in _COLUMNS], _rows(topics))


def _rows(topics: Iterator[dict[str, object]]) -> Iterator[list[object]]:
    for topic in topics:
        yield [topic[column] for column in _COLUMNS]


def _alarms(session: Session) -> str:
    """Whether there is more to be said, as far as who asks may know."""
    try:
        found = [each for each in session.client.alarms().alarms if each.severity != "info"]
    except NotAllowed:
        return ""
    return f", {len(found)} alarm{'' if len(found) == 1 else 's'}: `oncelog doctor` says which" if found else ""
