"""`oncelog token …`"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from oncelog_service.cli.session import Session, Yes, command

group = typer.Typer(help="Make, list and revoke tokens: who may do what.", no_args_is_help=True)


@command(group, "create", namespaced=False)
def create(
    session: Session,
    name: Annotated[str, typer.Argument(help="Name of who is to carry it.", show_default=False)],
    grants: Annotated[
        list[str], typer.Option("--grant", help="As read:orders/*, write:default/load-*:loader-*, manage:*/*, operate, admin.")
    ],
    expires_in: Annotated[float | None, typer.Option("--expires-in", help="Seconds until it expires; without, never.")] = None,
) -> None:
    """Make a token, and print its secret: it is told now and never again."""
    made = session.client.create_token(name, grants, expires_in=expires_in)
    session.out.result(made.to_wire(), made.secret or f"granted to {made.name}; the client certificate is its secret")


@command(group, "list", namespaced=False)
def list_(session: Session) -> None:
    """List the tokens by name, without their secrets."""
    tokens = session.client.tokens()
    rows = [(each.id, each.name, " ".join(each.grants), _day(each.created_ms), _day(each.expires_ms)) for each in tokens]
    session.out.table([each.to_wire() for each in tokens], ["id", "name", "grants", "created", "expires"], rows)


@command(group, "revoke", namespaced=False)
def revoke(
    session: Session,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the token.", show_default=False)],
    yes: Yes = False,
) -> None:
    """End a token: whoever carries it is refused from now on."""
    session.confirm(f"Revoke the token {token_id}?", yes)
    session.client.revoke_token(token_id)
    session.out.result({"revoked": token_id}, f"token {token_id} is revoked")


def _day(time_ms: int | None) -> str:
    return "never" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
