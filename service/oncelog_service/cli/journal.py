"""`oncelog journal …`"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from oncelog.wire.models import AtomicOutcome, AtomicTopic
from oncelog_service.cli.output import iso_time
from oncelog_service.cli.session import Session, Yes, command

group = typer.Typer(help="List, show and abort atomic commits over several topics.", no_args_is_help=True)

Transaction = Annotated[str, typer.Argument(metavar="ID", help="Id of the transaction.", show_default=False)]


class Listed(StrEnum):
    """Which have not ended, so that they can be listed."""

    IN_PROGRESS = "in_progress"
    PREPARED = "prepared"


@command(group, "list", namespaced=False)
def list_(
    session: Session,
    state: Annotated[
        Listed, typer.Option("--state", help="Those in progress, or those that are committed and not on all topics yet.")
    ] = Listed.IN_PROGRESS,
    of_group: Annotated[str | None, typer.Option("--group", help="Of this group only.", show_default=False)] = None,
) -> None:
    """List atomic commits that have not ended, oldest first."""
    found = list(session.client.atomic_transactions(state.value, of_group))
    columns = ["id", "group", "began", "expires", "branch of", "topics"]
    session.out.table([each.model_dump(mode="json") for each in found], columns, [_row(each) for each in found])


@command(group, "show", namespaced=False)
def show(session: Session, transaction: Transaction) -> None:
    """Show what became of an atomic commit, and where its messages are."""
    _print(session, session.client.atomic_outcome(transaction))


@command(group, "abort", namespaced=False)
def abort(session: Session, transaction: Transaction, yes: Yes = False) -> None:
    """Abort an atomic commit: what is staged is dropped. Whoever runs it cannot commit it any more."""
    session.confirm(f"Abort transaction {transaction}? What it has staged is dropped.", yes)
    _print(session, session.client.abort_atomic(transaction))


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
