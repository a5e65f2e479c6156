"""How a transaction ends: the moves between its states, and what the service's answer to a commit means. Pure.

The move to ``in_doubt`` is made *before* the first call that may commit. What fails before it undoes everything. What fails
behind it, an interruption too, undoes nothing, unless an answer says that nothing is committed and never will be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from oncelog.wire.models import TransactionState

State = Literal["new", "in_progress", "committed", "aborted", "invalid", "in_doubt"]
Event = Literal["start", "commit", "committed", "refused", "abort", "invalidate"]
"""``commit``: the next call may commit. ``refused``: that call certainly committed nothing. ``abort``: the block raised, a call
failed or was interrupted, or the caller aborts. ``invalidate``: a participant could not undo everything."""

MOVES: Mapping[tuple[State, Event], State] = {
    ("new", "start"): "in_progress",
    ("in_progress", "commit"): "in_doubt",
    ("in_progress", "abort"): "aborted",
    ("in_doubt", "refused"): "aborted",
    ("in_doubt", "abort"): "in_doubt",
    ("in_doubt", "committed"): "committed",
    ("committed", "abort"): "in_doubt",  # interrupted before participants were notified: they let go, and undo nothing
    ("aborted", "abort"): "aborted",
    ("aborted", "invalidate"): "invalid",
    ("invalid", "invalidate"): "invalid",
}

Verdict = Literal["committed", "refused", "contradicted", "in_doubt"]
"""``contradicted``: a database has committed its part of a transaction that was ended otherwise."""


def verdict(state: TransactionState | None, database: bool) -> Verdict:
    """Judges a commit that was not confirmed.

    Args:
        state: of the transaction, as the service names it; None where it refused for certain and names none.
        database: one has committed its part. Then nothing is rolled back any more, whatever the service says.
    """
    if state == "committed":
        return "committed"
    if not database:
        return "refused"
    return "in_doubt" if state is None else "contradicted"
