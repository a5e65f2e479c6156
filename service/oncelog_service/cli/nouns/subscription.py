"""`oncelog subscription …`"""

from __future__ import annotations

from typing import Annotated

import typer

from oncelog_service.cli.frame import completing
from oncelog_service.cli.frame.lazy import noun
from oncelog_service.cli.session import Session, Topic, Yes, command
from oncelog_service.cli.values import parse_start

group = noun()

_COLUMNS = ("name", "epoch", "cursor", "lag", "lost", "oldest_ms", "heard_ms", "held_by", "held_since_ms")

Name = Annotated[
    str, typer.Argument(help="Name of the subscription.", autocompletion=completing.subscriptions, show_default=False)
]


@command(group, "list", reads=True)
def list_(
    session: Session,
    topic: Annotated[str | None, typer.Argument(help="Name of the topic; without one, all topics.", show_default=False)] = None,
) -> None:
    """List the subscriptions of a topic, or of all topics of all namespaces, with how far each has come."""
    if topic is None:
        session.out.rows(list(session.client.all_subscriptions()), ("namespace", "topic", *_COLUMNS))
    else:
        session.out.rows(list(session.client.subscriptions(topic, session.namespace)), _COLUMNS)


@command(group, "show", reads=True)
def show(session: Session, topic: Topic, name: Name) -> None:
    """Show one subscription: its cursor, what is before it, and its consumer's epoch."""
    session.out.members(session.client.subscription(topic, name, session.namespace), f"{session.namespace}/{topic}")


@command(group, "seek")
def seek(
    session: Session,
    topic: Topic,
    name: Name,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="START",
            help="earliest, latest, a message id (40 hex digits), an offset or an ISO time.",
            show_default=False,
        ),
    ],
    inclusive: Annotated[bool, typer.Option("--inclusive", help="To the message of that id, not behind it.")] = False,
    yes: Yes = False,
) -> None:
    """Move a subscription, backwards too. Its consumer is fenced; the next one goes on there."""
    start = parse_start(to, inclusive, "--to")
    generation = session.client.subscription(topic, name, session.namespace).generation  # of the topic that is asked about
    session.confirm(f"Move subscription {name} of {session.namespace}/{topic} to {to}? Its consumer is fenced.", yes)
    moved = session.client.seek_subscription(
        topic, name, start, inclusive=inclusive, generation=generation, namespace=session.namespace
    )
    session.out.members(moved, f"{session.namespace}/{topic}")


@command(group, "delete")
def delete(session: Session, topic: Topic, name: Name, yes: Yes = False) -> None:
    """Forget how far a subscription has come, and fence its consumer. Messages stay."""
    generation = session.client.subscription(topic, name, session.namespace).generation  # of the topic that is asked about
    session.confirm(f"Delete subscription {name} of {session.namespace}/{topic}? How far it has come is forgotten.", yes)
    session.client.delete_subscription(topic, name, session.namespace, generation=generation)
    value = {"namespace": session.namespace, "topic": topic, "deleted": name}
    session.out.result(value, f"subscription {name} of {session.namespace}/{topic} is deleted")
