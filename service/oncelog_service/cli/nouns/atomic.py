"""`oncelog atomic …`"""

from __future__ import annotations

from typing import Annotated

import typer

from oncelog.wire.models import AtomicOutcome, AtomicTopic
from oncelog_service.cli.frame.lazy import noun
from oncelog_service.cli.output import iso_time
from oncelog_service.cli.session import Session, Yes, command

group = noun()

Transaction = Annotated[str, typer.Argument(metavar="ID", help="Id of the transaction.", show_default=False)]

Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="Name of the commit group; Spark's sink uses spark.", show_default=False)
]
Producer = Annotated[str, typer.Argument(metavar="PRODUCER", help="Name of the producer.", show_default=False)]


@command(group, "list", namespaced=False, reads=True)
def list_(
    session: Session,
    of_group: Annotated[str | None, typer.Option("--group", help="Only commits of this group.", show_default=False)] = None,
) -> None:
    """List atomic commits that are in progress, oldest first."""
    found = list(session.client.atomic_transactions(of_group))
    rows = [
        (each.id, each.group, iso_time(each.began_ms), iso_time(each.expires_ms), each.of, list(map(_named, each.topics)))
        for each in found
    ]
    session.out.table(found, ["id", "group", "began", "expires", "branch of", "topics"], rows)


@command(group, "show", namespaced=False, reads=True)
def show(session: Session, transaction: Transaction) -> None:
    """Show what became of an atomic commit, and where its messages are."""
    _print(session, session.client.atomic_outcome(transaction))


@command(group, "abort", namespaced=False)
def abort(session: Session, transaction: Transaction, yes: Yes = False) -> None:
    """Abort an atomic commit: what is staged is dropped. Its owner cannot commit it any more."""
    session.confirm(f"Abort transaction {transaction}? What it has staged is dropped.", yes)
    _print(session, session.client.abort_atomic(transaction))


@command(group, "free", namespaced=False)
def free(session: Session, transaction: Transaction, yes: Yes = False) -> None:
    """Free the id of an atomic commit that somebody else has taken. Messages stay; its commit made again is another one."""
    session.confirm(f"Forget what became of {transaction}? It is aborted if it is in progress, and else may happen twice.", yes)
    session.client.free_atomic(transaction)
    session.out.result({"freed": transaction}, f"the id {transaction} is free")


@command(group, "producer", namespaced=False, reads=True)
def producer(session: Session, of_group: Group, name: Producer) -> None:
    """Show the newest atomic commit under a producer's name: what is at or below its sequence id is a duplicate."""
    session.out.members(session.client.group_producer(of_group, name), "newest commit")


@command(group, "forget", namespaced=False)
def forget(session: Session, of_group: Group, name: Producer, yes: Yes = False) -> None:
    """Forget a producer's newest atomic commit. Messages stay; what it commits again is stored again."""
    session.confirm(f"Forget producer {name} of group {of_group}? What it commits again is stored again.", yes)
    session.client.forget_group_producer(of_group, name)
    session.out.result({"group": of_group, "forgotten": name}, f"producer {name} of group {of_group} is forgotten")


def _print(session: Session, outcome: AtomicOutcome) -> None:
    shown = {**outcome.model_dump(mode="json"), "topics": list(map(_placed, outcome.topics))}
    session.out.members(outcome, "transaction", {"branch of" if name == "of" else name: each for name, each in shown.items()})


def _named(topic: AtomicTopic) -> str:
    return f"{topic.namespace}/{topic.topic}"


def _placed(topic: AtomicTopic) -> str:
    """``namespace/topic``, and which offsets are the transaction's."""
    if topic.first_offset is None:
        return _named(topic)
    last = topic.first_offset + topic.messages - 1
    where = f"offset {last}" if topic.messages == 1 else f"offsets {topic.first_offset} to {last}"
    return f"{_named(topic)} {where}"
