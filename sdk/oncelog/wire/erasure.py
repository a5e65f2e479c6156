"""The mark of a message that was erased: a property beside an empty payload. Pure.

The service lays it, and a copy of an erased message is an erased message: so a publish takes the mark too, where there is no
payload. Nobody can lay it on a message that says something.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from oncelog.errors import InvalidRequest

ERASED = "oncelog.erased"
"""The property's name. Its value says when that was: ms since 1970, in decimal digits."""
_DIGITS = re.compile("0|[1-9][0-9]{0,18}")
_LATEST_MS = 2**62
"""As of every timestamp that is sent."""


def is_erased(payload: bytes, properties: Mapping[str, str] | None) -> bool:
    """Whether this is what a message was erased to: nothing is known any more of what it said."""
    return not payload and properties is not None and ERASED in properties


def check_mark(payload: bytes, properties: Mapping[str, str]) -> None:
    """Raises InvalidRequest where the mark is given to a message that says something, or is none that the service would lay."""
    since = properties.get(ERASED)
    if since is None:
        return
    if payload:
        raise InvalidRequest(
            f"the property {ERASED!r} says that a message was erased: it goes with an empty payload, in a copy of such a message"
        )
    if not (_DIGITS.fullmatch(since) and int(since) <= _LATEST_MS):
        raise InvalidRequest(f"the property {ERASED!r} is a number of ms since 1970 in decimal digits, not {since[:40]!r}")
