"""`oncelog verify --store A --same-as B`: every row of two stores that nobody serves, compared; and each read as what it is."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from rich.progress import Progress

from oncelog_dedup.snapshot import Snapshot
from oncelog_service.atomic.outcomes import decode_ended
from oncelog_service.atomic.records import decode as decode_journal
from oncelog_service.cli.copying import show, size_of
from oncelog_service.cli.output import Output
from oncelog_service.cli.serve import data_of
from oncelog_service.cli.stores import check_store, ending, opened
from oncelog_service.cluster.unserved import Unserved
from oncelog_service.storage.copying import TABLES, Difference, differences, mark_of, pieces
from oncelog_service.storage.keys import GENERATION_SIZE, PAYLOAD_ID_SIZE, ROW_ID_SIZE
from oncelog_service.storage.pieces import intact_piece, is_piece
from oncelog_service.storage.port import Store, StoreDamaged, Table
from oncelog_service.storage.rows import (
    ChunkRow,
    ExpiryRow,
    GroupProducerRow,
    GroupRow,
    JournalMetaRow,
    NamespaceRow,
    ProducerRow,
    SubscriptionRow,
    TopicRow,
    TrimRow,
    all_intact,
    decode_payload_row,
    decode_record,
    decode_row,
)
from oncelog_service.storage.seals import UNSEALED, SealedStore, unseal
from oncelog_service.transactions.edits import decode_edit
from oncelog_service.transactions.outcomes import decode_outcome
from oncelog_service.transactions.snapshot import decode_snapshot

MAX_PROBLEMS = 100
_TOPIC_KEY = re.compile(rb"([!-9;-~]+):([!-9;-~]+):", re.DOTALL)


def _number(key: bytes) -> int:
    return int.from_bytes(key, "big", signed=True)


def _whole(read: Callable[[bytes], object], value: bytes) -> object:
    """What a row of a snapshot says, or that it is a piece of one that is intact. Raises ValueError."""
    if not is_piece(value):
        return read(value)
    if not intact_piece(value):
        raise ValueError("the piece does not match its checksum")
    return value


READ: Mapping[Table, Callable[[bytes, bytes], object]] = {
    Table.MESSAGE: lambda key, value: decode_row(key[-ROW_ID_SIZE:], value),
    Table.PAYLOAD: lambda key, value: decode_payload_row(key[-PAYLOAD_ID_SIZE:], value),
    Table.TOPIC: lambda _, value: decode_record(TopicRow, value),
    Table.NAMESPACE: lambda _, value: decode_record(NamespaceRow, value),
    Table.PRODUCER: lambda _, value: decode_record(ProducerRow, value),
    Table.SNAPSHOT: lambda _, value: _whole(Snapshot.from_bytes, value),
    Table.TRIM: lambda _, value: decode_record(TrimRow, value),
    Table.EXPIRY: lambda _, value: decode_record(ExpiryRow, value),
    Table.GROUP: lambda _, value: decode_record(GroupRow, value),
    Table.TRANSACTION_EDIT: lambda key, value: decode_edit(_number(key), value),
    Table.TRANSACTION_SNAPSHOT: lambda _, value: _whole(decode_snapshot, value),
    Table.OUTCOME: lambda key, value: decode_outcome(_number(key), value),
    Table.INSTANCE: lambda _, value: bytes.fromhex(value.decode("ascii")),
    Table.KEY_SNAPSHOT: lambda _, value: _whole(Snapshot.from_bytes, value),
    Table.CHUNK: lambda _, value: decode_record(ChunkRow, value),
    Table.JOURNAL: lambda key, value: decode_journal(_number(key[2:]), value),
    Table.JOURNAL_META: lambda _, value: decode_record(JournalMetaRow, value),
    Table.ATOMIC_ID: lambda _, value: struct.unpack(">q", value),
    Table.ATOMIC_OUTCOME: lambda _, value: decode_ended(value),
    Table.GROUP_PRODUCER: lambda _, value: decode_record(GroupProducerRow, value),
    Table.SUBSCRIPTION: lambda _, value: decode_record(SubscriptionRow, value),
}
"""How each table's rows are read, without their seals; that checks their form, and the checksums of those that have no seal."""


def _unsealing(table: Table, read: Callable[[bytes, bytes], object]) -> Callable[[bytes, bytes], object]:
    return lambda key, value: read(key, unseal(table, key, value))


ON_DISK: Mapping[Table, Callable[[bytes, bytes], object]] = {
    table: read if table in UNSEALED else _unsealing(table, read) for table, read in READ.items()
}
"""The same for rows as they stand on disk."""

CHECKSUMMED = (Table.MESSAGE, Table.PAYLOAD)
"""Those of which there are many: they are read one by one only where a checksum does not hold."""


@dataclass(slots=True)
class Compared:
    """What was found."""

    rows: Counter[str] = field(default_factory=Counter)
    """Of the first store, by table."""
    different: Counter[str] = field(default_factory=Counter)
    damaged: Counter[str] = field(default_factory=Counter)
    size: int = 0
    """In bytes."""
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def problem(self, text: str) -> None:
        """Note one; the first hundred are kept."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)


def verify_same(out: Output, left_url: str, right_url: str, bar: Progress) -> Compared:
    """Compare them. Exits with a sentence if that cannot be."""
    check_store(left_url, "--store", there=True)
    check_store(right_url, "--same-as", there=True)
    with ending(out, "verify"), ExitStack() as stack:
        stores = [stack.enter_context(opened(url)) for url in (left_url, right_url)]
        unserved = [Unserved(store) for store in stores]
        for each in unserved:
            each.begin()
        compared = compare(stores[0], stores[1], data_of(left_url), data_of(right_url), bar)
        for each in unserved:
            each.check()
    return compared


def compare(left: Store, right: Store, left_name: str, right_name: str, bar: Progress) -> Compared:
    """Every row of every table, as it stands on disk: one that is damaged does not hide those behind it. Raises StoreError."""
    found = Compared()
    for name, store in ((left_name, left), (right_name, right)):
        mark = mark_of(store)
        if mark is not None and not mark.finished:
            found.problem(f"{name} is half a copy, of {mark.source}")
    task = bar.add_task("comparing", total=size_of(left, bar), rows=0, size="", rate=0.0)

    def told() -> None:
        show(bar, task, found.size, found.rows.total())

    readers = READ
    if isinstance(left, SealedStore) and isinstance(right, SealedStore):
        left, right, readers = left.inner, right.inner, ON_DISK
    for table in TABLES:
        try:
            _compare_table(found, table, readers[table], left, right, (left_name, right_name), told)
        except StoreDamaged as damage:
            found.damaged[table.name] += 1
            found.problem(f"{table.name}: cannot be read to its end: {damage}")
    return found


def _compare_table(
    found: Compared,
    table: Table,
    read: Callable[[bytes, bytes], object],
    left: Store,
    right: Store,
    names: tuple[str, str],
    told: Callable[[], None],
) -> None:
    with closing(pieces(left, table)) as all_pieces:  # type: ignore[type-var]
        for piece in all_pieces:
            if table not in CHECKSUMMED or not all_intact(piece.rows.values()):
                for key, value in piece.rows.items():
                    _check(found, table, key, value, read, names[0])
            found.rows[table.name] += len(piece.rows)
            found.size += piece.size
            for difference in differences(piece, right):
                found.different[table.name] += 1
                found.problem(_sentence(difference, *names))
                if difference.right is not None:
                    _check(found, table, difference.key, difference.right, read, names[1])
            told()


def _check(found: Compared, table: Table, key: bytes, value: bytes, read: Callable[[bytes, bytes], object], where: str) -> None:
    try:
        read(key, value)
    except (StoreDamaged, ValueError, struct.error, IndexError, KeyError, TypeError) as damage:
        found.damaged[table.name] += 1
        found.problem(f"{table.name} {shown_key(key)}: damaged in {where}: {damage}")


def _sentence(difference: Difference, left_name: str, right_name: str) -> str:
    table, key, left, right = difference
    name = f"{table.name} {shown_key(key)}"
    if left is None:
        return f"{name}: only in {right_name}"
    if right is None:
        return f"{name}: only in {left_name}"
    differing = (place for place, (one, other) in enumerate(zip(left, right, strict=False)) if one != other)
    at = next(differing, min(len(left), len(right)))
    return f"{name}: differs from byte {at} on; {len(left)} bytes in {left_name}, {len(right)} in {right_name}"


def shown_key(key: bytes) -> str:
    """A key for people: topic, generation, and what follows as hex digits or, where it is a name, as text."""
    topic = _TOPIC_KEY.match(key)
    if topic is None or topic.end() == len(key):
        return _text(key.removesuffix(b":").replace(b":", b"/"))
    name, rest = f"{topic[1].decode()}/{topic[2].decode()}", key[topic.end() :]
    if len(rest) < GENERATION_SIZE:
        return _text(key)
    generation, end = _number(rest[:GENERATION_SIZE]), rest[GENERATION_SIZE:]
    return f"{name} generation {generation}" + (f" {_text(end)}" if end else "")


def _text(key: bytes) -> str:
    if not key:
        return "(one row)"
    text = key.decode("ascii", "replace")
    return text if text.isprintable() and "\ufffd" not in text else key.hex()
