"""`oncelog producer …`"""

from __future__ import annotations

from typing import Annotated

import typer

from oncelog_service.cli.frame import completing
from oncelog_service.cli.frame.lazy import noun
from oncelog_service.cli.session import Session, Topic, Yes, command

group = noun()

Name = Annotated[str, typer.Argument(help="Name of the producer.", autocompletion=completing.producers, show_default=False)]


@command(group, "list", reads=True)
def list_(session: Session, topic: Topic) -> None:
    """List the producers of a topic with how far each has come."""
    found = list(session.client.producers(topic, session.namespace))
    columns = ("name", "epoch", "gaps", "last_pushed", "last_persisted", "last_offset", "last_published_ms", "assigned")
    session.out.rows(found, columns)


@command(group, "show", reads=True)
def show(session: Session, topic: Topic, name: Name) -> None:
    """Show one producer as the live maps have it."""
    session.out.members(session.client.producer(topic, name, session.namespace), f"{session.namespace}/{topic}")


@command(group, "forget")
def forget(session: Session, topic: Topic, name: Name, yes: Yes = False) -> None:
    """Forget a producer's sequence ids and fence its running incarnation. Messages stay; sent again, they are stored again."""
    generation = session.client.stats(topic, session.namespace).generation  # of the topic that is asked about
    session.confirm(f"Forget producer {name} of {session.namespace}/{topic}? What it sends again is stored again.", yes)
    session.client.forget_producer(topic, name, session.namespace, generation=generation)
    value = {"namespace": session.namespace, "topic": topic, "forgotten": name}
    session.out.result(value, f"producer {name} of {session.namespace}/{topic} is forgotten")


@command(group, "why", reads=True)
def why(
    session: Session,
    topic: Topic,
    name: Name,
    sequence_id: Annotated[int, typer.Argument(min=0, max=2**63 - 1, help="The producer's number.", show_default=False)],
) -> None:
    """Say why a message with this sequence id was, or would be, dropped or stored."""
    answer = session.client.why(topic, name, sequence_id, session.namespace)
    where = "" if answer.offset is None else f"\nstored at offset {answer.offset}, message id {answer.message_id}"
    session.out.result(answer, f"{answer.verdict}: {answer.reason}{where}")
