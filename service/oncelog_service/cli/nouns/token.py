"""`oncelog token …`"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from oncelog.wire.models import CreatedToken
from oncelog.wire.models import Token as Listed
from oncelog_service.cli.frame.lazy import noun
from oncelog_service.cli.session import Session, Yes, command

Store = Annotated[
    str | None,
    typer.Option("--store", help="Open this store itself, which no service has open, or several share.", show_default=False),
]

group = noun()


@command(group, "create", namespaced=False)
def create(
    session: Session,
    name: Annotated[str, typer.Argument(help="Name of who is to carry it.", show_default=False)],
    grants: Annotated[
        list[str],
        typer.Option(
            "--grant", help="As read:orders/*, write:default/load-*:loader-*, manage:*/*, observe, operate, admin, service."
        ),
    ],
    expires_in: Annotated[float | None, typer.Option("--expires-in", help="Seconds until it expires; without, never.")] = None,
    store: Store = None,
) -> None:
    """Make a token, and print its secret: it is told now and never again."""
    if store is None:
        made = session.client.create_token(name, grants, expires_in=expires_in)
    else:
        from oncelog_service.cli.stores.tokens import changing

        expires_ms = None if expires_in is None else round(expires_in * 1000)
        token, secret = changing(session.out, store, "make a token", lambda access: access.create(name, grants, expires_ms))
        made = CreatedToken(**token.shown(), secret=secret)
    session.out.result(made.to_wire(), made.secret or f"granted to {made.name}; the client certificate is its secret")


@command(group, "list", namespaced=False, reads=True)
def list_(session: Session, store: Store = None) -> None:
    """List the tokens by name, without their secrets."""
    if store is None:
        tokens = session.client.tokens()
    else:
        from oncelog_service.cli.stores.tokens import listed

        tokens = [Listed(**each.shown()) for each in listed(session.out, store)]
    rows = [(each.id, each.name, " ".join(each.grants), _day(each.created_ms), _day(each.expires_ms)) for each in tokens]
    session.out.table([each.to_wire() for each in tokens], ["id", "name", "grants", "created", "expires"], rows)


@command(group, "revoke", namespaced=False)
def revoke(
    session: Session,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the token.", show_default=False)],
    yes: Yes = False,
    store: Store = None,
) -> None:
    """End a token: whoever carries it is refused from now on."""
    session.confirm(f"Revoke the token {token_id}?", yes)
    if store is None:
        session.client.revoke_token(token_id)
    else:
        from oncelog_service.cli.stores.tokens import changing

        changing(session.out, store, "revoke a token", lambda access: access.revoke(token_id), there=True)
    session.out.result({"revoked": token_id}, f"token {token_id} is revoked")


def _day(time_ms: int | None) -> str:
    return "never" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
