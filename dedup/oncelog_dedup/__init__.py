"""The core of oncelog: which message of a named producer is new, and how that survives a crash.

No I/O, no clock, no lock. Everything here is given the time and the entries of the log, and returns verdicts. The ideas
are those of Pulsar's PIP-6 (guaranteed message deduplication); the differences are in docs/decisions/0004.
"""

from oncelog_dedup.deduplicator import Deduplicator, Verdict
from oncelog_dedup.fold import Fold, ReplayError, Run
from oncelog_dedup.replay import Entry, Replayed, replay
from oncelog_dedup.schedule import SnapshotSchedule, frees_enough
from oncelog_dedup.sequence_map import MAX_SEQUENCE_ID, LastEntry, SequenceMap
from oncelog_dedup.snapshot import START, Position, Snapshot, SnapshotDamaged

__all__ = [
    "MAX_SEQUENCE_ID",
    "START",
    "Deduplicator",
    "Entry",
    "Fold",
    "LastEntry",
    "Position",
    "ReplayError",
    "Replayed",
    "Run",
    "SequenceMap",
    "Snapshot",
    "SnapshotDamaged",
    "SnapshotSchedule",
    "Verdict",
    "frees_enough",
    "replay",
]
