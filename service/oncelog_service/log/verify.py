"""Refolds a topic's log and compares it with the live maps: the proof that nothing is lost, doubled or out of order.

Reads everything through the same checks as a poll (checksum, dense offsets, rising ids) and folds it as recovery does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from oncelog.errors import TopicDamaged
from oncelog.wire.models import Verification
from oncelog_dedup import LastEntry, Position, SequenceMap
from oncelog_service.log.keep.recovery import key_entries_of, read_snapshots, rows_of
from oncelog_service.log.names.assigned import counted_from
from oncelog_service.log.scan import after, bytes_in, earliest_offset, runs_from, stored_payloads
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.storage.keys import FIRST_ROW_ID
from oncelog_service.storage.port import Store, Table
from oncelog_service.storage.rows import Row
from oncelog_service.storage.runs import StoredRun

_SLICE_ROWS = 2_000
"""Read in one go: no scan is open while a client takes its time or has gone, or while the store is to be closed."""
_MAX_PROBLEMS = 100


class _Watching(Protocol):
    watchers: list[set[Any]]


class LiveSize(NamedTuple):
    """What a log takes, as memory has it (bounds/size.py)."""

    written: int
    below: int
    missing: dict[int, int]
    earliest: int
    """Offset of the first run that was there."""
    begin: int
    """Runs that end at or below this offset are counted no more."""
    changed: set[int]
    """Grows while the log is read: the ends of runs that got fewer bytes meanwhile. They are not compared."""


class LiveKeys(NamedTuple):
    """The index of a topic's keys as it is in memory."""

    last_entries: SequenceMap
    stepped_back: set[str]
    """Grows while the log is read; keys of which something was rolled back meanwhile. They are not compared."""


class Live(NamedTuple):
    """A topic as it was in memory at one moment."""

    upto: Position
    """What was persisted by then."""
    last_entries: SequenceMap
    """The persisted map of its producers, copied."""
    size: LiveSize
    keys: LiveKeys | None = None
    """The index of keys, where there is one."""
    stepped_back: Collection[str] = ()
    """Grows while the log is read: producers of whom something was rolled back meanwhile, or who were forgotten or have ended.
    They are not compared."""


@dataclass(slots=True)
class Findings:
    """What was found so far."""

    messages: int = 0
    rolled_back: int = 0
    duplicates: int = 0
    problems: list[str] = field(default_factory=list)
    last_entries: SequenceMap = field(default_factory=SequenceMap)
    keys: SequenceMap = field(default_factory=SequenceMap)
    """The newest message of each key, where the topic keeps an index of them."""
    upto_bytes: int | None = None
    """As the newest run says it. None: none was read."""
    end: int = 0
    """The offset behind that."""
    bytes_differ: list[tuple[int, str]] = field(default_factory=list)
    """(the offset behind a run, what is wrong) of those whose bytes are not what the log and memory say."""
    filled: list[range] = field(default_factory=list)
    """Offsets at which a salvage found no message: what snapshots say of those is all that is known."""

    def problem(self, text: str) -> None:
        """Note a problem; the first hundred are kept."""
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(text)

    def fill(self, offset: int) -> None:
        """Note that no message is left at this offset, which is behind those that were noted."""
        begin = self.filled.pop().start if self.filled and self.filled[-1].stop == offset else offset
        self.filled.append(range(begin, offset + 1))

    def is_gone(self, offset: int, earliest: int) -> bool:
        """Whether the message at this offset was deleted or lost."""
        return offset < earliest or any(offset in each for each in self.filled)


def verify_log(store: Store, log: TopicLog) -> Generator[Findings]:
    """Verify an open topic against its live maps as they are at this call. The iterator may run on another thread."""
    live = log.dedup.fold.copy()
    stepped_back: set[str] = set()
    size = log.topic.size
    sized = LiveSize(size.written, size.below, size.missing, log.earliest_offset, log.begin_offset, set(size.shrinking))
    watchers: list[tuple[_Watching, set[Any]]] = [(log.topic, stepped_back), (size, sized.changed)]
    keys = None
    if log.topic.keys is not None:
        keys = LiveKeys(log.topic.keys.copy(), set[str]())
        watchers.append((log.topic.keys, keys.stepped_back))
    for watching, watcher in watchers:
        watching.watchers.append(watcher)
    counts_from = partial(counted_from, dict(log.topic.producers))
    there = Live(log.position, live, sized, keys, stepped_back)
    found = verify(store, log.prefix, there, counts_from, log.topic.rules.deduplicates)
    steps = _watched(found, watchers)
    next(steps)  # of a generator that has not begun, which a client that hangs up at once leaves, nothing ends the watching
    return steps


def _watched(found: Iterator[Findings], watchers: Sequence[tuple[_Watching, set[Any]]]) -> Generator[Findings]:
    try:
        yield Findings()
        yield from found
    finally:
        for watching, watcher in watchers:
            watching.watchers = [each for each in watching.watchers if each is not watcher]


def verification(namespace: str, topic: str, generation: int, findings: Findings) -> Verification:
    """The findings as what is answered."""
    return Verification(
        namespace=namespace,
        topic=topic,
        generation=generation,
        messages=findings.messages,
        rolled_back=findings.rolled_back,
        producers=len(findings.last_entries),
        duplicates=findings.duplicates,
        ok=not findings.problems,
        problems=findings.problems,
    )


def verify(
    store: Store,
    prefix: bytes,
    live: Live,
    counts_from: Callable[[str], int],
    judged: bool,
) -> Iterator[Findings]:
    """Yields the same findings again and again while it reads, and a last time when they are complete.

    Args:
        live: what the log is compared with; no further is read than that was persisted.
        counts_from: producer → offset below which nothing of it counts.
        judged: deduplication is on, so that a sequence id which does not rise is a fault.
    """
    findings, keys, upto = Findings(), live.keys, live.upto
    try:
        start: bytes | None = FIRST_ROW_ID
        while start is not None:
            start = _fold_slice(findings, store, prefix, start, live, counts_from, judged)
            yield findings
        earliest = earliest_offset(store, prefix)
        findings.last_entries = _with_gone(store, prefix, findings, findings.last_entries, earliest, counts_from)
        _compare(findings, "producer", findings.last_entries, live.last_entries, live.stepped_back)
        _compare_size(findings, live.size, upto.upcoming_offset)
        if keys is not None:
            findings.keys = _with_gone(store, prefix, findings, findings.keys, earliest, _all_count, Table.KEY_SNAPSHOT)
            _compare(findings, "key", findings.keys, keys.last_entries, keys.stepped_back)
        _check_count(findings, earliest, upto)
    except TopicDamaged as damage:
        findings.problem(damage.detail)
    yield findings


def _fold_slice(
    findings: Findings,
    store: Store,
    prefix: bytes,
    start: bytes,
    live: Live,
    counts_from: Callable[[str], int],
    judged: bool,
) -> bytes | None:
    """Fold the next runs from the key ``start`` on; where to go on, None: they were the last. Raises TopicDamaged."""
    read = 0
    with closing(runs_from(store, prefix, start)) as runs:
        for run in runs:
            if run.end > live.upto.upcoming_offset:
                return None
            if read and read + len(run) > _SLICE_ROWS:
                return start
            for row in rows_of(run):
                _fold_row(findings, store, prefix, row, counts_from, judged, live.keys is not None)
            _count_bytes(findings, store, prefix, run, live.size)
            read += len(run)
            start = after(run.id)
    return None


def _fold_row(
    findings: Findings,
    store: Store,
    prefix: bytes,
    row: Row,
    counts_from: Callable[[str], int],
    judged: bool,
    keyed: bool,
) -> None:
    if row.fills_a_hole:
        findings.fill(row.offset)
    for producer, last_entry in _last_entries(store, prefix, row):
        if last_entry.offset >= counts_from(producer):
            _fold(findings, producer, last_entry, judged)
    if keyed:
        for name, last_entry in key_entries_of(store, prefix, row):
            findings.keys.raise_to(name, last_entry)
    findings.messages += row.messages
    if row.write_pointer is not None and row.write_pointer < 0:
        findings.rolled_back += row.messages


def _count_bytes(findings: Findings, store: Store, prefix: bytes, run: StoredRun, live: LiveSize) -> None:
    """Count the bytes of a run, and hold them against what it says, and the one before it."""
    if not run.count:
        return  # what stands for an empty group says what the one before it does
    if findings.upto_bytes is None:
        # What lies before the first one is known where the log begins there.
        before = live.below if run.first == live.earliest and run.end > live.begin else None
    else:
        before = findings.upto_bytes if run.first == findings.end else None  # else some were deleted meanwhile
    findings.upto_bytes, findings.end = run.upto_bytes, run.end
    if before is None or run.end <= live.begin:
        return
    there = bytes_in(store, prefix, run)
    if there is None:
        return
    missing = live.missing.get(run.end, 0)
    if run.upto_bytes - before - there != missing:
        text = f"the run up to offset {run.end} says {run.upto_bytes} bytes: {before} are before it"
        findings.bytes_differ.append((run.end, f"{text}, {there} in it, and {missing} noted as missing"))


def _compare_size(findings: Findings, live: LiveSize, upto: int) -> None:
    for end, text in findings.bytes_differ:
        if end not in live.changed:
            findings.problem(text)
    if findings.upto_bytes is not None and findings.end == upto and findings.upto_bytes != live.written:
        findings.problem(f"the last run says that the log took {findings.upto_bytes} bytes, memory {live.written}")


def _last_entries(store: Store, prefix: bytes, row: Row) -> Iterator[tuple[str, LastEntry]]:
    """(producer, last entry) of each named message that the row stands for, and that was not rolled back.

    The payloads of a stored group are read one by one, not believed from its summary.
    """
    counts = row.write_pointer is None or row.write_pointer > 0
    if row.group is None:
        if counts and row.producer is not None and row.sequence_id is not None:
            yield row.producer, LastEntry(row.sequence_id, row.message_id, row.offset)
        return
    with closing(stored_payloads(store, prefix, row)) as found:
        for payload in found:
            if counts and payload.producer is not None and payload.sequence_id is not None:
                offset = row.offset + payload.group_index
                yield payload.producer, LastEntry(payload.sequence_id, row.row_id + payload.payload_id, offset)


def _fold(findings: Findings, producer: str, last_entry: LastEntry, judged: bool) -> None:
    present = findings.last_entries.get(producer)
    if present is not None and last_entry.sequence_id <= present.sequence_id:
        findings.duplicates += 1
        if judged:
            findings.problem(
                f"offset {last_entry.offset}: sequence id {last_entry.sequence_id} of producer {producer!r} is stored behind "
                f"{present.sequence_id} (at offset {present.offset}); was deduplication off then?"
            )
    findings.last_entries.raise_to(producer, last_entry)


def _all_count(_: str) -> int:
    return 0


def _with_gone(
    store: Store,
    prefix: bytes,
    findings: Findings,
    folded: SequenceMap,
    earliest: int,
    counts_from: Callable[[str], int],
    table: Table = Table.SNAPSHOT,
) -> SequenceMap:
    """The fold of the rows that are there, and as the snapshots keep them of those that retention deleted or a salvage lacks."""
    last_entries = folded.copy()
    for snapshot in read_snapshots(store, prefix, table):
        if snapshot is not None:
            for producer, last_entry in snapshot.last_entries.items():
                if counts_from(producer) <= last_entry.offset and findings.is_gone(last_entry.offset, earliest):
                    last_entries.raise_to(producer, last_entry)
    return last_entries


def _compare(findings: Findings, what: str, folded: SequenceMap, live: SequenceMap, stepped_back: Collection[str]) -> None:
    names = {name for last_entries in (folded, live) for name, _ in last_entries.items()}.difference(stepped_back)
    for name in sorted(name for name in names if folded.get(name) != live.get(name)):  # few: no thread has a turn meanwhile
        findings.problem(f"{what} {name!r}: the log says {_show(folded.get(name))}, the live map {_show(live.get(name))}")


def _check_count(findings: Findings, earliest: int, upto: Position) -> None:
    expected = max(0, upto.upcoming_offset - earliest)
    if findings.messages < expected:
        findings.problem(
            f"{expected} messages from offset {earliest} to {upto.upcoming_offset} should be there, {findings.messages} are"
        )


def _show(last_entry: LastEntry | None) -> str:
    return "nothing" if last_entry is None else f"sequence id {last_entry.sequence_id} at offset {last_entry.offset}"
