"""`oncelog inspect …`: a debugger for the tables of a topic."""

from __future__ import annotations

from typing import Annotated

import typer

from oncelog_service.cli.frame.lazy import noun
from oncelog_service.cli.session import Session, Topic, command

group = noun()

_PAYLOAD = ("payload_bytes", "payload")

Limit = Annotated[int, typer.Option("--limit", min=1, max=2_000, help="Most entries to show.")]


@command(group, "rows", reads=True)
def rows(
    session: Session,
    topic: Topic,
    first: Annotated[int, typer.Option("--from", metavar="OFFSET", min=0, help="Offset to begin with.")] = 0,
    limit: Limit = 100,
) -> None:
    """Show rows of a topic's log, each with its write pointer and what became of it."""
    found = session.client.inspect_rows(topic, first, limit, session.namespace)
    of_transaction = ("write_pointer", "state")
    session.out.rows(found, ("offset", "messages", "message_id", *of_transaction, "producer", "sequence_id", *_PAYLOAD))


@command(group, "groups", reads=True)
def groups(session: Session, topic: Topic, limit: Limit = 100) -> None:
    """Show what is stored apart from a topic's log, by write pointer, and whether it was published."""
    found = session.client.inspect_groups(topic, limit, session.namespace)
    session.out.rows(found, ("write_pointer", "atomic_number", "state", "messages", "published", "expired", "producer"))


@command(group, "payloads", reads=True)
def payloads(
    session: Session,
    topic: Topic,
    pointer: Annotated[
        int,
        typer.Argument(metavar="POINTER", help="Write pointer; with --atomic a number.", show_default=False),
    ],
    atomic: Annotated[bool, typer.Option("--atomic", help="POINTER is the number of an atomic commit.")] = False,
    limit: Limit = 100,
) -> None:
    """Show the payloads that are stored under a write pointer, in the order of storing."""
    found = session.client.inspect_payloads(topic, -pointer if atomic else pointer, limit, session.namespace)
    session.out.rows(found, ("index", "payload_id", "producer", "sequence_id", *_PAYLOAD))
