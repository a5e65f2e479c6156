"""`oncelog tx …`"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from oncelog_service.cli.frame.lazy import noun
from oncelog_service.cli.output import iso_time
from oncelog_service.cli.session import Session, Yes, command
from oncelog_service.cli.values import parse_time

group = noun()

_LARGEST = 2**63 - 1
Pointer = Annotated[
    int, typer.Argument(metavar="POINTER", min=1, max=_LARGEST, help="Write pointer of the transaction.", show_default=False)
]


class Listed(StrEnum):
    """The states in which transactions can be listed."""

    IN_PROGRESS = "in_progress"
    INVALID = "invalid"
    HELD = "held"


@command(group, "list", namespaced=False, reads=True)
def list_(
    session: Session,
    state: Annotated[
        Listed, typer.Option("--state", help="Those in progress, the invalid ones, or what topics hold back undecided.")
    ] = Listed.IN_PROGRESS,
) -> None:
    """List transactions, oldest first."""
    if state is Listed.HELD:
        _list_held(session)
        return
    found = list(session.client.transactions("invalid" if state is Listed.INVALID else "in_progress"))
    columns = ("write_pointer", "type", "started_ms", "expires_ms", "owner", "resource", "checkpoints", "participants")
    session.out.rows(found, columns)


def _list_held(session: Session) -> None:
    columns = ["write pointer", "state", "topic", "since", "first offset", "messages", "producers"]
    held = session.client.held()
    rows = [
        (
            *(each.write_pointer, each.state, f"{each.namespace}/{each.topic}", iso_time(each.since_ms)),
            *(each.first_offset, each.messages, each.producers),
        )
        for each in held
    ]
    session.out.table(held, columns, rows)


@command(group, "show", namespaced=False, reads=True)
def show(session: Session, pointer: Pointer) -> None:
    """Show what became of a transaction, by its write pointer or that of a checkpoint."""
    session.out.members(session.client.transaction_status(pointer), "transaction")


@command(group, "abort", namespaced=False)
def abort(
    session: Session,
    pointer: Pointer,
    unless_prepared: Annotated[
        bool, typer.Option("--unless-prepared", help="Leave it to its database if it is prepared.", show_default=False)
    ] = False,
    yes: Yes = False,
) -> None:
    """Abort a transaction: the service rolls its messages back. Its client cannot commit it any more."""
    session.confirm(f"Abort transaction {pointer}? Its messages are rolled back.", yes)
    session.out.members(session.client.abort_transaction(pointer, unless_prepared=unless_prepared), "transaction")


@command(group, "invalidate", namespaced=False)
def invalidate(session: Session, pointer: Pointer, yes: Yes = False) -> None:
    """Give a transaction up: as abort, and it stays in the list of invalid ones until it is pruned."""
    session.confirm(f"Invalidate transaction {pointer}? Its messages are rolled back.", yes)
    session.out.members(session.client.invalidate_transaction(pointer), "transaction")


@command(group, "prune", namespaced=False)
def prune(
    session: Session,
    pointers: Annotated[
        list[int] | None, typer.Argument(metavar="POINTER", min=1, max=_LARGEST, help="Write pointers.", show_default=False)
    ] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="TIME", help="All that began before this ISO time.", show_default=False)
    ] = None,
    yes: Yes = False,
) -> None:
    """Take transactions out of the list of invalid ones. Those whose messages are not all rolled back yet stay in it."""
    if bool(pointers) == (before is not None):
        raise typer.BadParameter("name either write pointers or --before")
    time = None if before is None else parse_time(before, "--before")
    which = f"invalid transaction {', '.join(map(str, pointers or ()))}"
    if time is not None:
        which = f"every invalid transaction that began before {before}"
    session.confirm(f"Forget {which}?", yes)
    pruned = session.client.prune_transactions(pointers or None, time)
    session.out.result({"pruned": pruned}, f"{pruned} invalid transactions are forgotten")
