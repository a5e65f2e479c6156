"""What a request carries to say who it is: the Authorization header, read as RFC 6750 and RFC 9110 say. Pure."""

from __future__ import annotations

_SCHEME = b"bearer"


def bearer_of(header: bytes) -> bytes | None:
    """The token in an Authorization header; None where it carries none, or something else.

    The scheme is known in any case (RFC 9110, 11.1). A token is bytes, to be compared with the UTF-8 of the one expected.
    """
    scheme, _, token = header.partition(b" ")
    return token.strip(b" \t") or None if scheme.lower() == _SCHEME else None
