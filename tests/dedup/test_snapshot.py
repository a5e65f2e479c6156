"""A snapshot comes back whole or not at all."""

from __future__ import annotations

import struct
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncelog_dedup import MAX_SEQUENCE_ID, START, LastEntry, Position, SequenceMap, Snapshot, SnapshotDamaged
from tests.dedup.last_entries import last_entry, position

GOLDEN = Path(__file__).parent.parent / "golden"

last_entries = st.builds(
    LastEntry, st.integers(0, MAX_SEQUENCE_ID), st.binary(min_size=20, max_size=20), st.integers(0, MAX_SEQUENCE_ID)
)
positions = st.just(START) | st.builds(
    Position, st.integers(1, MAX_SEQUENCE_ID), st.binary(min_size=20, max_size=20).filter(lambda each: any(each))
)
names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30)
snapshots = st.builds(Snapshot, st.builds(SequenceMap, st.dictionaries(names, last_entries, max_size=6)), positions)


@given(snapshots)
@example(Snapshot(SequenceMap(), START))
@example(Snapshot(SequenceMap({"p": last_entry(0)}), position(1)))
@example(Snapshot(SequenceMap({"p" * 249: last_entry(MAX_SEQUENCE_ID)}), position(1)))
def test_a_snapshot_reads_back_as_it_was_written(snapshot: Snapshot) -> None:
    assert Snapshot.from_bytes(snapshot.to_bytes()) == snapshot


def test_the_layout_of_version_1_never_changes() -> None:
    snapshot = Snapshot(
        SequenceMap(
            {"orders": LastEntry(0, bytes(range(20)), 7), "größe:1": LastEntry(MAX_SEQUENCE_ID, bytes(range(20, 40)), 258)}
        ),
        Position(259, bytes(range(20, 40))),
    )
    golden = bytes.fromhex((GOLDEN / "snapshot_v1.hex").read_text())
    assert snapshot.to_bytes() == golden
    assert Snapshot.from_bytes(golden) == snapshot


@given(snapshots, st.data())
def test_a_flipped_bit_anywhere_and_a_cut_are_noticed(snapshot: Snapshot, data: st.DataObject) -> None:
    written = bytearray(snapshot.to_bytes())
    bit = data.draw(st.integers(0, len(written) * 8 - 1))
    flipped = written[:]
    flipped[bit // 8] ^= 1 << bit % 8
    for damaged in (flipped, written[: data.draw(st.integers(0, len(written) - 1))], data.draw(st.binary(max_size=100))):
        with pytest.raises(SnapshotDamaged):
            Snapshot.from_bytes(bytes(damaged))


def test_a_flipped_bit_of_a_large_snapshot_is_noticed_wherever_it_is() -> None:
    snapshot = Snapshot(SequenceMap({f"producer-{number}": last_entry(number, number) for number in range(300)}), position(300))
    written = snapshot.to_bytes()
    assert 2**13 < len(written) < 300 * 60, "less than 60 bytes for each"
    assert Snapshot.from_bytes(written) == snapshot
    for at in (0, len(written) // 2, *range(2**12 - 1, len(written), 997), len(written) - 5, len(written) - 1):
        with pytest.raises(SnapshotDamaged):
            Snapshot.from_bytes(written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :])


def sealed(body: bytes) -> bytes:
    """``body`` with the checksum that fits it: what a faulty writer, not a faulty disk, would leave."""
    return body + struct.pack(">I", crc32(body))


BODY = Snapshot(SequenceMap({"p": last_entry(1), "q": last_entry(2)}), position(3)).to_bytes()[:-4]


@pytest.mark.parametrize(
    "body",
    [
        b"OLSX" + BODY[4:],
        BODY[:4] + b"\x02" + BODY[5:],
        BODY[:33] + struct.pack(">I", 3) + BODY[37:],
        BODY[:33] + struct.pack(">I", 1) + BODY[37:],
        BODY + b"\x00",
        BODY[:-1],
        BODY.replace(b"p", b"\xff", 1),
        BODY.replace(b"p", b"q", 1),
    ],
    ids=["magic", "version", "one too many", "one too few", "longer", "shorter", "name not UTF-8", "name twice"],
)
def test_a_sealed_snapshot_that_says_something_else_than_it_holds_is_refused(body: bytes) -> None:
    Snapshot.from_bytes(sealed(BODY))
    with pytest.raises(SnapshotDamaged):
        Snapshot.from_bytes(sealed(body))
