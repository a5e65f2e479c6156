"""The calls on tokens: who may do what. One method a call."""

from __future__ import annotations

from collections.abc import Iterable

from oncelog.api.calls import as_request, parse, quoted
from oncelog.api.subscriptions import SubscriptionCalls
from oncelog.values.numbers import milliseconds
from oncelog.wire.models import CreatedToken, CreateToken, Token

_TOKENS = "/v1/tokens"


class TokenCalls(SubscriptionCalls):
    """Tokens; all of it is for who has the grant `admin`."""

    async def create_token(self, name: str, grants: Iterable[str], *, expires_in: float | None = None) -> CreatedToken:
        """Make a token for a principal; its secret is in the answer, and nowhere else.

        ``grants``: as ``read:orders/*``, ``write:default/payments``, ``observe``; ``expires_in``: seconds, None for never. It is
        not tried again by itself once it was sent: an answer that was lost leaves a token behind that nobody has.

        Raises:
            InvalidRequest: not a name, not a grant, or the first token without `admin`.
            NotAllowed: `admin` is missing.
        """
        expires_ms = milliseconds("expires_in", expires_in)
        asked = as_request(CreateToken, "a token", name=name, grants=list(grants), expires_in_ms=expires_ms)
        return parse(CreatedToken, await self._post(_TOKENS, asked, idempotent=False))

    async def tokens(self) -> list[Token]:
        """List the tokens by name, those that have expired too. Their secrets are not known to anybody."""
        return parse(list[Token], await self._get(_TOKENS))

    async def revoke_token(self, token_id: str) -> None:
        """End a token, by its id: whoever carries it is refused from now on, at other instances within a second.

        Raises:
            TokenNotFound: there is none. InvalidRequest: it is the last one with `admin`.
        """
        await self._delete(f"{_TOKENS}/{quoted(token_id)}")
