"""What of a log is read, what holds a reader up, and whether there is more: in the address of a poll, and in the headers of its
answer.

Not in the bodies: a service of an older version passes over a parameter that it does not know, and refuses a body. The headers
stand on an answer of any media type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

COMMITTED = "committed"
"""Only messages that are committed, up to the first one that is not decided."""
UNCOMMITTED = "uncommitted"
"""Everything in the log, also what is not decided or was rolled back, as the TMS page has it."""
Isolation = Literal["committed", "uncommitted"]
"""What a reader is given."""
IN_TRANSACTION = "transaction"
"""What the transaction of the request sees."""

ISOLATION = "isolation"
"""The parameter of the address: COMMITTED or UNCOMMITTED."""
_SAYS_ISOLATION, _SAYS_HELD = "oncelog-isolation", "oncelog-held"
MORE = "oncelog-more"
"""The header of a page that a bound of the service ended, and not the limit that was asked for, nor the log: ``true``."""
_PARTS = ("offset", "write-pointer", "since", "now")
_NO_TIME = 253_402_300_800_000
"""Behind the year 9999, which is the last one that Python can show, ms."""


class Held(NamedTuple):
    """The first message of a topic that is not decided: what is committed is read up to it."""

    offset: int
    write_pointer: int
    since_ms: int
    """When it was published, by the service's clock."""
    now_ms: int
    """By the same clock."""


def headers_of(isolation: str, held: Held | None = None, more: bool = False) -> dict[str, str]:
    """What an answer says of it. ``more``: a bound of the service ended it."""
    said = {_SAYS_ISOLATION: isolation}
    if held is not None:
        said[_SAYS_HELD] = ", ".join(f"{name}={value}" for name, value in zip(_PARTS, held, strict=True))
    if more:
        said[MORE] = "true"
    return said


def read_headers(headers: Mapping[str, str]) -> tuple[str | None, Held | None]:
    """The isolation, None where a service does not say it, and what holds back. What cannot be read is not said."""
    parts = dict(part.strip().partition("=")[::2] for part in headers.get(_SAYS_HELD, "").split(","))
    values = [int(text) for name in _PARTS if (text := parts.get(name, "")).isascii() and text.isdigit() and len(text) < 20]
    held = Held(*values) if len(values) == len(_PARTS) else None
    return headers.get(_SAYS_ISOLATION), None if held is None or held.since_ms >= _NO_TIME else held
