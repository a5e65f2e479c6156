"""`oncelog atomic …`"""

from __future__ import annotations

from typing import Annotated

import typer

from oncelog.wire.models import AtomicOutcome, AtomicTopic
from oncelog_service.cli.output import iso_time
from oncelog_service.cli.session import Session, Yes, command

group = typer.Typer(help="List, show and abort atomic commits; show and forget their producers.", no_args_is_help=True)

Transaction = Annotated[str, typer.Argument(metavar="ID", help="Id of the transaction.", show_default=False)]

Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="Name of the commit group; Spark's sink uses spark.", show_default=False)
]
Producer = Annotated[str, typer.Argument(metavar="PRODUCER", help="Name of the producer.", show_default=False)]


@command(group, "list", namespaced=False)
def list_(
    session: Session,
    of_group: Annotated[str | None, typer.Option("--group", help="Only commits of this group.", show_default=False)] = None,
) -> None:
    """List atomic commits that are in progress, oldest first."""
    found = list(session.client.atomic_transactions(of_group))
    columns = ["id", "group", "began", "expires", "branch of", "topics"]
    session.out.table([each.model_dump(mode="json") for each in found], columns, [_row(each) for each in found])


@command(group, "show", namespaced=False)
def show(session: Session, transaction: Transaction) -> None:
    """Show what became of an atomic commit, and where its messages are."""
    _print(session, session.client.atomic_outcome(transaction))


@command(group, "abort", namespaced=False)
def abort(session: Session, transaction: Transaction, yes: Yes = False) -> None:
    """Abort an atomic commit: what is staged is dropped. Its owner cannot commit it any more."""
    session.confirm(f"Abort transaction {transaction}? What it has staged is dropped.", yes)
    _print(session, session.client.abort_atomic(transaction))


@command(group, "producer", namespaced=False)
def producer(session: Session, of_group: Group, name: Producer) -> None:
    """Show the newest atomic commit under a producer's name: what is at or below its sequence id is a duplicate."""
    session.out.members(session.client.group_producer(of_group, name).model_dump(mode="json"), "newest commit")


@command(group, "forget", namespaced=False)
def forget(session: Session, of_group: Group, name: Producer, yes: Yes = False) -> None:
    """Forget a producer's newest atomic commit. Messages stay; what it commits again is stored again."""
    session.confirm(f"Forget producer {name} of group {of_group}? What it commits again is stored again.", yes)
    session.client.forget_group_producer(of_group, name)
    session.out.result({"group": of_group, "forgotten": name}, f"producer {name} of group {of_group} is forgotten")


def _print(session: Session, outcome: AtomicOutcome) -> None:
    value = outcome.model_dump(mode="json")
    shown = {
        **value,
        "began_ms": iso_time(outcome.began_ms),
        "expires_ms": iso_time(outcome.expires_ms),
        "branches": ", ".join(outcome.branches) or None,
        "topics": ", ".join(map(_placed, outcome.topics)) or None,
    }
    session.out.table(
        value, ["", "transaction"], [(_NAMES.get(name, name.replace("_", " ")), each) for name, each in shown.items()]
    )


_NAMES = {"of": "branch of", "began_ms": "began", "expires_ms": "expires"}


def _row(outcome: AtomicOutcome) -> list[object]:
    topics = ", ".join(f"{each.namespace}/{each.topic}" for each in outcome.topics) or None
    return [outcome.id, outcome.group, iso_time(outcome.began_ms), iso_time(outcome.expires_ms), outcome.of, topics]


def _placed(topic: AtomicTopic) -> str:
    """``namespace/topic``, and which offsets are the transaction's."""
    name = f"{topic.namespace}/{topic.topic}"
    if topic.first_offset is None:
        return name
    last = topic.first_offset + topic.messages - 1
    return f"{name} offset {last}" if topic.messages == 1 else f"{name} offsets {topic.first_offset} to {last}"
