"""When the rows of a topic were judged: which millisecond holds for whether a message has expired. Pure.

Pairs and not one number, because the clock may have been ahead for a while: what is published after it was set right again must
not be judged at a time that has not come yet. The millisecond falls from each to the next, and the row rises.
"""

from __future__ import annotations

from typing import NamedTuple

from oncelog_service.storage.port import RowDamaged
from oncelog_service.storage.records import ExpiryRow


class Judgement(NamedTuple):
    """The rows before ``upto`` were judged at ``ms``."""

    ms: int
    upto: bytes
    """A row id or more; sorts after every row that was there then."""


Judgements = tuple[Judgement, ...]


def judged(before: Judgements, ms: int, upto: bytes) -> Judgements:
    """Add a judgement at ``ms`` of the rows before ``upto``: all that there are, so that no earlier one goes further."""
    kept = tuple(each for each in before if each.ms > ms)
    return kept if kept and kept[-1].upto >= upto else (*kept, Judgement(ms, upto))


def judged_at(judgements: Judgements, row_id: bytes, now_ms: int) -> int:
    """The latest millisecond at which this row has been judged or is, now. Pure."""
    for each in judgements:
        if row_id < each.upto:
            return max(each.ms, now_ms)
    return now_ms


def judgements_of(row: ExpiryRow) -> Judgements:
    """Decode the judgements of a topic. Raises RowDamaged."""
    try:
        return tuple(Judgement(int(ms), bytes.fromhex(str(upto))) for ms, upto in row.judgements)
    except (ValueError, TypeError) as error:
        raise RowDamaged(f"not the judgements of a topic: {row}") from error
