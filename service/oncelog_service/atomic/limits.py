"""How long journaled transactions may take, and how wide the journal is."""

from __future__ import annotations

from typing import NamedTuple


class JournalLimits(NamedTuple):
    """Of one service."""

    partitions: int
    """Groups are spread over so many."""
    default_timeout_ms: int
    """A transaction that does not say otherwise is aborted when it is not committed by then."""
    max_timeout_ms: int
    max_messages: int
    """Of one request."""
