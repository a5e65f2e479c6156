"""Records of the small tables come back as they were written, what is none is refused, and their bytes never change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncelog_service.storage.keys import row_id
from oncelog_service.storage.port import RowDamaged
from oncelog_service.storage.records import (
    BehindRow,
    ChunkRow,
    CopyRow,
    EndedRow,
    ExpiryRow,
    GroupNoteRow,
    GroupProducerRow,
    GroupRow,
    IncarnationRow,
    JournalMetaRow,
    LostRow,
    NamespaceRow,
    ProducerRow,
    SubscriptionRow,
    TopicRow,
    TrimRow,
    decode_record,
    encode_record,
)

GOLDEN = Path(__file__).parent.parent / "golden"

RECORDS = {
    "topic_v1": TopicRow(3, 1_790_000_000_000, {"ttl": "3600", "deduplication": "false"}),
    "topic_deleted_v1": TopicRow(3, 1_790_000_000_000, deleted=True, last_timestamp=1_790_000_000_123),
    "namespace_v1": NamespaceRow({"deduplication": None}),
    "producer_v1": ProducerRow(7, [("nonce-1", 6), ("nonce-2", 7)], "refuse", 42),
    "producer_assigned_v1": ProducerRow(1, [("nonce-1", 1)], assigned_ms=1_790_000_000_000),
    "producer_never_opened_v1": ProducerRow(forgotten_below=9),
    "group_v1": GroupRow(row_id(1_790_000_000_000, 7).hex(), "flights"),
    "group_expired_v1": GroupRow(None),
    "trim_v1": TrimRow(
        *(336_776, "0000019d7a1f4e00000500000000000000000000", 400_000, "0000019d7a1f4f000007"), 67_355_200, [[400_100, 512]]
    ),
    "expiry_v1": ExpiryRow([[1_790_003_600_000, "0000019d7a1f4e000006"], [1_790_000_000_000, "0000019d7a1f4e000009"]]),
    "chunk_v1": ChunkRow(
        first_index=3,
        messages=2,
        digest="00112233445566778899aabbccddeeff",
        producer="loader",
        epoch=7,
        expected_offset=42,
        expected_last_message_id="01" * 20,
        expected_key_offsets={"\xff": None, "k": 41},
        key_indexes={"k": 1},
    ),
    "journal_meta_v1": JournalMetaRow(2, 1_790_000_000_000_000_000, [0, 1_000]),
    "subscription_v1": SubscriptionRow(7, [("nonce-1", 6), ("nonce-2", 7)], 336_776),
    "subscription_deleted_v1": SubscriptionRow(8),
    "copy_v1": CopyRow(of="00112233445566778899aabbccddeeff", source="leveldb:///var/lib/oncelog", finished=False),
    "behind_v1": BehindRow("http://10.0.0.1:7070", "the last 3 writes are gone", 1_790_000_000_000),
    "ended_v1": EndedRow(True, 42),
    "lost_v1": LostRow([["0000019d7a1f4e00000500000000000000000000", 1_790_000_000_001], ["", 1_790_000_100_001]]),
    "incarnation_v1": IncarnationRow(
        3_757_200_000_000_000, 1_790_000_000_001, 1_790_000_000_002, 1_790_000_000_003, 1_790_000_000_000
    ),
    "group_producer_v1": GroupProducerRow(4, "2026-09-21", "t-4", 336_776, "c0ffee", "ada"),
    "group_note_v1": GroupNoteRow(4, "t-4", [["default", "flights", 2, 3]], [["default", "trains", 1, None]], "refuse"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_the_layout_of_a_record_never_changes(name: str) -> None:
    golden = (GOLDEN / f"{name}.json").read_bytes().strip()
    assert encode_record(RECORDS[name]) == golden
    assert decode_record(type(RECORDS[name]), golden) == listed(RECORDS[name])


def listed(record: Any) -> Any:
    """JSON knows no tuples: what is read back holds lists."""
    opened = isinstance(record, ProducerRow | SubscriptionRow)
    return replace(record, opens=[list(each) for each in record.opens]) if opened else record


NO_RECORDS = (
    b"",
    b"{",
    b"null",
    b"[]",
    b"{}",
    b"1",
    b'{"version":2}',
    b'{"version":1,"surprise":0}',
    b"\xff",
    b'{"version":null}',
)


@pytest.mark.parametrize("kind", dict.fromkeys(type(record) for record in RECORDS.values()))
def test_what_is_no_record_of_this_version_is_refused(kind: type[Any]) -> None:
    for data in NO_RECORDS:
        with pytest.raises(RowDamaged):
            decode_record(kind, data)
