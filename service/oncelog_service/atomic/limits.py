"""Bounds on atomic commits: how long they may take, how many messages they carry, how wide their journal is."""

from __future__ import annotations

from typing import NamedTuple


class AtomicLimits(NamedTuple):
    """The settings of one service."""

    partitions: int
    """Groups are spread over so many."""
    default_timeout_ms: int
    """A transaction that does not say otherwise is aborted when it is not committed by then."""
    max_timeout_ms: int
    max_messages: int
    """Of one request."""
    max_of_one: int = 1_000
    """In progress of one owner; those that nobody with a name began are not counted."""
    max_names_of_one: int = 10_000
    """Names of producers in groups that one owner may have: 0.7 kB of memory each, more where they wrote to many topics."""
