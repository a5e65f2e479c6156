"""Bounds on transactions: how long they may take, and how large they may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """Bounds on transactions. Times in milliseconds."""

    default_timeout_ms: int = 30_000
    """Whoever has lived for less is judged by every change set; beyond it, he may come to be too old to change anything."""
    max_timeout_ms: int = 3_600_000
    """Of a short transaction."""
    max_lifetime_ms: int = 90_000_000
    """25 h: no transaction is older, nor is a pointer that a topic takes messages under."""
    max_in_progress: int = 10_000
    """Their checkpoints are counted, too: each is a pointer in every answer to a start."""
    max_of_one: int = 1_000
    """In progress of one owner, with their checkpoints; those that nobody with a name began are bounded by ``max_in_progress``
    alone."""
    max_topics_each: int = 20
    """Pointers of an owner may be on so many topics as there may be of them, times this; each is looked through by a publish."""
    max_invalid_of_one: int = 1_000
    """Invalid ones of an owner, with their checkpoints, at which it begins none: 8 bytes each in every answer to a start."""
    invalid_kept_ms: int = 86_400_000
    """Beyond the longest lifetime, how long an invalid one stays in the list; 0: until somebody prunes it."""
    max_kept_of_one: int = 32 * 2**20
    """Memory for the change sets of one owner that are kept: a dozen of 20,000 short keys, or three of 20,000 of 400 bytes.
    Beyond it the oldest are dropped."""
    max_kept: int = 128 * 2**20
    """… and of all."""
    max_changes: int = 20_000
    """Keys in one change set; so many are judged, written and remembered in one turn of the event loop, which takes 30 ms."""
    max_change_bytes: int = 8 * 2**20
    snapshot_edits: int = 1_000
    """A snapshot is wanted after so many edits, and after as many as the state has entries."""
    outcome_grace_ms: int = 3_600_000
    """Outcomes are kept this much longer than a transaction can live, for one that ended at the last moment."""
