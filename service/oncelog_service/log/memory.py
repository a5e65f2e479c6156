"""Moves what memory knows of a topic, once its rows are on disk: the one place where written rows begin to count.

The index of keys gets the same runs, commits and roll-backs as the producers' map, here and in the fold of recovery. A name that
has ended counts for nobody, also where its messages were in flight when it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from oncelog_dedup import Run
from oncelog_service.log.addition import Addition, Appeared
from oncelog_service.log.keep.snapshots import Snapshots
from oncelog_service.log.names.assigned import has_ended
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.storage.keys import ROW_ID_SIZE
from oncelog_service.storage.runs import StoredRun


class Memory:
    """The memory of one open topic. The writer calls it in the order of the log, on the event loop that owns the topic."""

    __slots__ = ("_cache", "_counts", "_dedup", "_keys", "_snapshots", "_topic")

    def __init__(self, topic: OpenTopic, snapshots: Snapshots) -> None:
        self._topic = topic
        self._dedup = topic.dedup
        self._keys = topic.keys
        self._cache = topic.cache
        self._snapshots = snapshots
        self._counts = topic.counts

    def written(self, addition: Addition) -> None:
        """Note that messages are on disk, as they were laid."""
        run, laid = addition.run, addition.laying
        self._persist(run, None if self._keys is None else addition.keyed)
        self._cache.append(laid.runs)
        self._topic.size.grow(laid.upto_bytes)
        self._count(run)

    def group_written(self, group: Appeared) -> None:
        """Note that the row which stands for a stored group is on disk."""
        self._persist(group.run, group.keyed)
        self._topic.size.grow(group.upto_bytes)
        self._cache.clear()  # the group's payloads are not in memory, and what is must reach up to the end of the log
        self._count(group.run)

    def _persist(self, run: Run, keyed: Run | None) -> None:
        self._dedup.persist(run)
        for name, _ in run.last_entries:
            if has_ended(name, self._topic.producers):
                self._dedup.forget(name)
        if self._keys is not None and keyed is not None:
            self._keys.persist(keyed)

    def _count(self, run: Run) -> None:
        self._counts.stored(run.count)
        self._snapshots.count(run.count)
        self._topic.arrivals.wake()
        self._topic.stable_arrivals.wake()
        self._topic.grown()

    def commit(self, pointer: int) -> None:
        """What was written under the pointer counts for good."""
        self._decided(self._dedup.fold.unsettled.get(pointer, ()))
        self._dedup.fold.commit(pointer)
        if self._keys is not None:
            self._keys.commit(pointer)
        self._more_stable()

    def roll_back(self, pointer: int, runs: Sequence[Run], stored: Sequence[StoredRun]) -> None:
        """These runs of the pointer do not count any more; what is ``stored`` of them on disk says so."""
        self._decided(runs)
        affected = self._dedup.fold.roll_back(pointer, runs)
        if self._keys is not None:
            self._keys.roll_back(pointer, runs)
        for watcher in self._topic.watchers:
            watcher |= affected
        self._cache.replace(stored)
        self._more_stable()

    def _decided(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self._topic.size.decided(run.first_id[:ROW_ID_SIZE])

    def _more_stable(self) -> None:
        self._snapshots.begin_if_due()
        self._topic.stable_arrivals.wake()
        self._topic.grown()
