"""Names that the service assigns to producers that bring none: each is made once, ends once, and is never made again.

While such a name lives, its producer has a row. When it ends, the row goes, and all that is known of it with the row: nothing
else is left that says so, and nothing else is needed. A name of this form without a row has ended, and whatever comes under it
is refused; what the log holds of it counts for nobody, in memory and when the log is folded again.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

from oncelog_service.storage.records import ProducerRow

_PREFIX = "producer-"
_LENGTH = len(_PREFIX) + 32
_NEVER = 2**63
"""Above every offset."""


def new_name() -> str:
    """A name that nobody had, and nobody will have."""
    return f"{_PREFIX}{uuid4().hex}"


def is_assigned(name: str) -> bool:
    """Whether only the service makes names of this form."""
    if len(name) != _LENGTH or not name.startswith(_PREFIX):
        return False
    return all(character in "0123456789abcdef" for character in name[len(_PREFIX) :])


def has_ended(name: str, rows: Mapping[str, ProducerRow]) -> bool:
    """Whether the name was assigned and has ended, if these are the rows of all producers."""
    return len(name) == _LENGTH and name not in rows and is_assigned(name)


def counted_from(rows: Mapping[str, ProducerRow], name: str) -> int:
    """From which offset on a producer's messages count: 0, unless an operator had it forgotten or it has ended."""
    row = rows.get(name)
    if row is not None:
        return row.forgotten_below
    return _NEVER if is_assigned(name) else 0
