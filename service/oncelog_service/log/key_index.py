"""message key → its newest message, pushed and persisted: what an expected offset of a key is held against.

A second fold over the same log, by key instead of by producer, with the offset in the place of the sequence id; so it steps back
when a transaction is rolled back, and its snapshots pass nothing unsettled. Only topics that check expectations have one.

An empty stored group is a row without a message: it is in the log, but not in this fold, whose last message id is one that a
reader can have seen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from itertools import count

from oncelog_dedup import Fold, LastEntry, Run, SequenceMap, Snapshot
from oncelog_service.bounds.holding import check_names
from oncelog_service.log.conditions import TopicState, nobody
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID

_LONGEST_NAME = 255
_DIGEST = "\u0100"
"""Begins the names of longer keys: no key has this character, for each of its bytes is one of U+0000 to U+00FF."""

KeyEntries = tuple[tuple[str, LastEntry], ...]
"""The newest message of each key, each key once."""


def key_name(key: bytes) -> str:
    """What a key is called in the index: each byte as one character; a long key by its SHA-256, for keys have no limit."""
    return key.decode("latin-1") if len(key) <= _LONGEST_NAME else _DIGEST + sha256(key).hexdigest()


def key_entries(keys: Sequence[bytes | None] | None, row_ids: Sequence[bytes], first_offset: int) -> KeyEntries:
    """The newest message of each key among rows of one message each, at dense offsets from ``first_offset`` on."""
    if keys is None:
        return ()
    last_entries = []
    for key, (offset, row_id) in dict(zip(keys, zip(count(first_offset), row_ids, strict=False), strict=False)).items():
        if key is not None:
            name = key.decode("latin-1") if len(key) <= _LONGEST_NAME else key_name(key)
            last_entries.append((name, LastEntry(offset, row_id + FIRST_PAYLOAD_ID, offset)))
    return tuple(last_entries)


def group_key_entries(keys: Mapping[str, tuple[bytes, int]], row_id: bytes, first_offset: int) -> KeyEntries:
    """Lists the newest message of each key of a stored group that appears at this row. ``keys``: name → (payload id, index)."""
    return tuple(
        (name, LastEntry(first_offset + index, row_id + payload_id, first_offset + index))
        for name, (payload_id, index) in keys.items()
    )


class KeyIndex:
    """Knows the newest message of each key of one open topic. Not thread-safe: one owner moves it, in log order."""

    def __init__(self, fold: Fold, last_message_id: bytes | None = None) -> None:
        """``last_message_id``: for a fold that begins behind messages it was not given."""
        self.fold = fold
        """What is persisted."""
        self._pushed: dict[str, LastEntry] = {}
        """Of the keys with something in flight: offsets only rise, so there is nothing to judge."""
        position = fold.position
        self.upcoming_offset = position.upcoming_offset
        """Behind everything that was pushed."""
        self.last_message_id = position.last_message_id or last_message_id
        """Of the newest message that was pushed; None: there never was one."""
        self._pushed_under: dict[str, int] = {}
        """Key → write pointer, where the newest message is in flight and belongs to a transaction."""
        self._most = len(fold)
        """As many keys as there are, or more."""
        self.watchers: list[set[str]] = []
        """Keys that step back are added to each of these, while a verification compares the log with the index."""

    def check(self, names: Collection[str], limit: int) -> None:
        """Raises QuotaExceeded where these would be more keys than ``limit``; in the step that pushes them.

        They are counted, and looked for, only where they may be too many.
        """
        if self._most + len(names) > limit:
            self._most = len(self.fold) + sum(name not in self.fold for name in self._pushed)
            if self._most + len(names) > limit:
                new = sum(name not in self._pushed and name not in self.fold for name in set(names))
                if new:
                    check_names("keys", self._most, new, limit, "the topic", "raise the bound, or have the topic made anew")
        self._most += len(names)

    def push(self, run: Run) -> Run:
        """Note that this run is about to be written; its last entries are those of keys. Returns it, for :meth:`persist`."""
        if run.count:
            self.upcoming_offset = run.first_offset + run.count
            self.last_message_id = run.last_id
        self._pushed.update(run.last_entries)
        if run.write_pointer is not None:
            self._pushed_under.update((name, run.write_pointer) for name, _ in run.last_entries)
        elif self._pushed_under:
            for name, _ in run.last_entries:
                self._pushed_under.pop(name, None)
        return run

    def persist(self, run: Run) -> None:
        """Note that the next run of the log is synced. Raises ReplayError if it is not the next one."""
        if not run.count:
            return
        self.fold.add(run)
        if run.first_offset + run.count == self.upcoming_offset:  # nothing is in flight any more
            self._pushed.clear()
            self._pushed_under.clear()
            return
        for name, last_entry in run.last_entries:
            if self._pushed[name].offset == last_entry.offset:
                del self._pushed[name]
                self._pushed_under.pop(name, None)

    def newest(self, name: str) -> int | None:
        """Offset of the newest message with this key, in flight included; None: there is none."""
        last_entry = self._pushed.get(name) or self.fold.get(name)
        return None if last_entry is None else last_entry.offset

    def held_by(self, name: str, pointer: int | None = None) -> int | None:
        """The transaction of the key's newest message, if that is unsettled and not ``pointer`` itself."""
        if name in self._pushed:
            under = self._pushed_under.get(name)
            return None if under == pointer else under
        if not self.fold.unsettled:
            return None
        last_entry = self.fold.get(name)
        own = () if pointer is None else (pointer,)
        if last_entry is None or self.fold.settled_entry(name, own) == last_entry:
            return None
        return next(each for each in self.fold.pointers_of(name) if self.fold.settled_entry(name, (each,)) == last_entry)

    def state(self, pointer: int | None = None) -> TopicState:
        """What a publish under this write pointer is judged against now; to be used up before anything awaits."""
        undecided = self._pushed_under or self.fold.unsettled
        return TopicState(
            self.upcoming_offset,
            self.last_message_id,
            lambda key: self.newest(_named(key)),
            (lambda key: self.held_by(_named(key), pointer)) if undecided else nobody,
        )

    def commit(self, pointer: int) -> None:
        """The transaction's messages count for good."""
        self.fold.commit(pointer)

    def roll_back(self, pointer: int, runs: Collection[Run] | None = None) -> None:
        """These runs of the transaction do not count any more: each key steps back to its newest message without them."""
        affected = self.fold.roll_back(pointer, runs)
        for watcher in self.watchers:
            watcher |= affected

    def snapshot(self) -> Snapshot:
        """The settled part and its position; not a copy."""
        return self.fold.stable

    def copy(self) -> SequenceMap:
        """Key → newest persisted message, as it is now."""
        return self.fold.copy()


def _named(key: str) -> str:
    """The name of a key that comes as text, each byte one character, as the wire has it."""
    return key if len(key) <= _LONGEST_NAME else key_name(key.encode("latin-1"))
