"""Tokens: made, listed, revoked."""

from __future__ import annotations

import asyncio

from oncelog.wire.models import CreatedToken, CreateToken, Token
from oncelog_service.access import tokens
from oncelog_service.bounds.slices import slices
from oncelog_service.rest.routes import Call

_SHOWN_AT_ONCE = 50


def _named(token: tokens.Token) -> dict[str, object]:
    return {"id": token.id, "name": token.name, "grants": token.grants}


async def create(call: Call, asked: CreateToken) -> CreatedToken:
    """Make a token for a principal. `secret` is told in this answer and never again; the service keeps its hash alone.

    The first token must have the grant `admin` and no end: from then on every request needs one. A name that begins with `cert:`
    is that of a client certificate, which is its own secret. Two tokens under one name hold at once, as when one is exchanged.
    """
    token, secret = await call.service.access.create(asked.name, asked.grants, asked.expires_in_ms, call.still)
    call.subject = _named(token)
    return CreatedToken(**token.shown(), secret=secret)


async def list_(call: Call) -> list[Token]:
    """Tokens by name, those that have expired too; never their secrets."""
    found: list[Token] = []
    for at, part in enumerate(slices(call.service.access.tokens, _SHOWN_AT_ONCE)):
        if at:
            await asyncio.sleep(0)
        found += [Token(**each.shown()) for each in part]
    return found


async def revoke(call: Call) -> None:
    """End a token: whoever carries it is refused from now on, at other instances within a second.

    The last token with `admin` and without an end is not ended, unless the service has one from its settings.
    """
    call.subject = _named(await call.service.access.revoke(call.path["token"], call.still))
