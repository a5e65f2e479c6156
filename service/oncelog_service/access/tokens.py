"""Tokens: 256 random bits, of which the store keeps a hash alone, with the name and the grants of who carries one.

A hash of so many random bits needs no salt and must not be slow: it is computed with each request. Two tokens with one name are
one principal with two secrets, as when one is exchanged. A name that begins with `cert:` belongs to a client certificate, one
with `jwt:` to the subject of signed tokens. These have no secret: the row says what their holders may do. No other name has a
colon.
"""

from __future__ import annotations

import hashlib
import os
import re
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

from oncelog.errors import InvalidRequest
from oncelog_service.access.grants import NAMELESS, Grant
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.storage.records import TokenRow, decode_record, encode_record

PREFIX = "oncelog_"
"""Begins each token, so that whatever looks for secrets in files finds it."""
CERTIFICATE = "cert:"
SIGNED = "jwt:"
_NAME = re.compile(r"cert:[A-Za-z0-9_.@=:/+-]{1,200}|jwt:[A-Za-z0-9_.@=:/+|-]{1,200}|[A-Za-z0-9_.@=-]{1,200}", re.ASCII)
_LONGEST_MS = 100 * 366 * 86_400_000
_RESERVED = (*NAMELESS, "settings")


class Token(NamedTuple):
    """A token as the store knows it."""

    id: str
    """Names the token; the secret cannot be told from it."""
    name: str
    """Of the principal."""
    grants: tuple[str, ...]
    digest: bytes
    """SHA-256 of the secret; empty: there is none."""
    created_ms: int
    expires_ms: int | None

    def holds(self, now_ms: int) -> bool:
        """Tells whether it has not expired."""
        return self.expires_ms is None or now_ms < self.expires_ms

    def shown(self) -> dict[str, Any]:
        """Returns what may be told of it, by the names of the wire's models."""
        return {name: value for name, value in self._asdict().items() if name != "digest"} | {"grants": list(self.grants)}

    def put(self, batch: Batch) -> None:
        """Adds its row."""
        row = TokenRow(self.name, list(self.grants), self.digest.hex(), self.created_ms, self.expires_ms)
        batch.put(Table.TOKEN, self.id.encode(), encode_record(row))


def digest_of(secret: bytes) -> bytes:
    """Hashes what a request carries."""
    return hashlib.sha256(secret).digest()


def draw(name: str, grants: Sequence[str], now_ms: int, expires_in_ms: int | None) -> tuple[Token, str | None]:
    """Makes a token and its secret, which is told this once. Raises InvalidRequest."""
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise InvalidRequest(
            "a principal's name has letters, digits and _.@=- (behind cert: and jwt: also :/+) and is none of "
            f"{', '.join(_RESERVED)}: {name[:100]!r}"
        )
    if not grants:
        raise InvalidRequest("a token without grants may do nothing; name at least one, as read:orders/*")
    for each in grants:
        Grant.parse(each)
    if expires_in_ms is not None and not 0 < expires_in_ms < _LONGEST_MS:
        raise InvalidRequest("a token expires after 1 ms to 100 years, or never")
    expires_ms = None if expires_in_ms is None else now_ms + expires_in_ms
    secret = None if name.startswith((CERTIFICATE, SIGNED)) else PREFIX + urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()
    digest = b"" if secret is None else digest_of(secret.encode())
    return Token(os.urandom(6).hex(), name, (*dict.fromkeys(grants),), digest, now_ms, expires_ms), secret


def read_tokens(store: Store) -> list[Token]:
    """Reads all of them, in the order of their ids. Raises StoreError."""
    with closing(store.scan(Table.TOKEN, b"", b"\xff")) as rows:
        return [_token_of(key.decode(), decode_record(TokenRow, row)) for key, row in rows]


def _token_of(id: str, row: TokenRow) -> Token:  # noqa: A002
    return Token(id, row.name, (*row.grants,), bytes.fromhex(row.digest), row.created_ms, row.expires_ms)
