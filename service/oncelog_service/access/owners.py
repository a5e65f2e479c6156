"""Whose a transaction is, or an atomic commit, or a producer of a group: of the principal that began it, by its name. Pure.

The invariant: nobody else commits it, writes under it or learns what became of it, but for those whose grants let them. What was
begun while the service was open belongs to nobody, and anybody goes on with it. Owners are names: a principal that exchanges its
token keeps what it owns.
"""

from __future__ import annotations

from oncelog.errors import NotAllowed
from oncelog_service.access.grants import Right

EVERYBODYS = ""
"""Stands on the wire, as on disk, where an owner is nobody, or a thing may be everybody's. No name is empty."""


def may_touch(owner: str | None, by: str | None) -> bool:
    """Returns whether this is nobody's (``owner`` is None), or that of ``by``; None: of one who may touch everybody's."""
    return owner is None or by is None or owner == by


def check_owner(owner: str | None, by: str | None, what: str, right: Right = Right.ADMIN) -> None:
    """Raises NotAllowed unless :func:`may_touch`. ``right``: what would let another one."""
    if not may_touch(owner, by):
        raise NotAllowed(f"{what} belongs to another principal than {by}", principal=by or "", right=right.value)
