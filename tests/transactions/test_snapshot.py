"""Snapshots of transactions, and their outcomes, on disk: every layout is golden, and no bit can be flipped unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelog.wire.transaction import TransactionType
from oncelog_service.storage.checksum import with_checksum
from oncelog_service.storage.events import EventDamaged
from oncelog_service.storage.port import StoreDamaged
from oncelog_service.transactions.edits import (
    Aborted,
    Acknowledged,
    ChangesDropped,
    Checkpointed,
    Committed,
    Edit,
    Enlisted,
    HandedIn,
    Invalidated,
    Started,
)
from oncelog_service.transactions.outcomes import Outcome, decode_outcome, encode_outcome
from oncelog_service.transactions.snapshot import decode_snapshot, encode_snapshot
from oncelog_service.transactions.state import TransactionsState

GOLDEN = Path(__file__).parent.parent / "golden"
SHORT, LONG = TransactionType.SHORT, TransactionType.LONG
P = 1_790_000_000_000_000_000
HERE, THERE = "here:default/orders/1", "there:default/bestellungen-ü/1"

LIFE: list[Edit] = [
    Started(P, SHORT, 1_790_000_030_000, "ada"),  # becomes invalid and nothing else
    Started(P + 1, LONG, 1_790_090_000_000),
    Started(P + 2, SHORT, 1_790_000_030_000, "loader"),  # commits while a younger one is in progress
    Started(P + 3, SHORT, 1_790_000_030_000, "ada"),
    Checkpointed(P + 3, P + 4),
    Enlisted(P + 3, HERE),
    Enlisted(P + 4, THERE),
    HandedIn(P + 2, 1_790_000_030_000, None, frozenset({b"a"})),
    Committed(P + 2, frozenset({b"b"})),
    Invalidated(P),
    Started(P + 5, SHORT, 1_790_000_030_000),
    HandedIn(P + 5, 1_790_090_000_000, "db", frozenset({b"c"})),
    Started(P + 6, SHORT, 1_790_000_030_000, "lädt"),
    Checkpointed(P + 6, P + 7),
    Enlisted(P + 7, HERE),
    Aborted(P + 6),
    Started(P + 8, SHORT, 1_790_000_030_000),
    Enlisted(P + 8, HERE),
    Enlisted(P + 8, THERE),
    Committed(P + 8, frozenset({b"d", b"a"})),
    Acknowledged(P + 8, THERE),
    *(Started(P + 9 + at, SHORT, 30_000, owner) for at, owner in enumerate(("loader", None, "ada", "loader"))),
    *(Invalidated(P + 9 + at) for at in range(4)),  # those of one owner are no run of pointers
]

DROPPED: list[Edit] = [
    *LIFE,
    *(Started(P + 13 + at, SHORT, 30_000) for at in range(3)),
    Committed(P + 15, frozenset({b"e"})),
    ChangesDropped(P + 16),
]
"""P + 3, P + 13 and P + 14 began before that: nobody knows any more whether they conflict."""


def lived(edits: list[Edit] = LIFE) -> TransactionsState:
    state = TransactionsState()
    for edit in edits:
        state.apply(edit)
    return state


def test_the_bytes_of_a_snapshot_never_change() -> None:
    golden = bytes.fromhex((GOLDEN / "transaction_snapshot_v1.hex").read_text())
    assert encode_snapshot(lived()) == golden
    assert encode_snapshot(decode_snapshot(golden)) == golden


def test_a_snapshot_says_who_is_judged_no_more_and_is_of_the_first_layout_again_when_they_have_ended() -> None:
    golden = bytes.fromhex((GOLDEN / "transaction_snapshot_v2.hex").read_text())
    back = decode_snapshot(golden)
    assert encode_snapshot(lived(DROPPED)) == encode_snapshot(lived(DROPPED).copy()) == encode_snapshot(back) == golden
    assert list(back.unjudged) == [P + 3, P + 13, P + 14]
    for at, edit in enumerate((Aborted(P + 3), Committed(P + 13, frozenset()), HandedIn(P + 14, 30_000, "db", frozenset()))):
        assert encode_snapshot(back)[4] == 2, at
        back.apply(edit)
    assert encode_snapshot(back)[4] == 1


def test_a_snapshot_keeps_whose_everything_is() -> None:
    state = lived()
    back = decode_snapshot(encode_snapshot(state))
    owners = {pointer: state.owner(pointer) for pointer in state.roots}
    assert {pointer: back.owner(pointer) for pointer in back.roots} == owners
    assert (owners[P], owners[P + 1], owners[P + 4], owners[P + 7]) == ("ada", None, "ada", "lädt")
    assert [owners[P + 9 + at] for at in range(4)] == ["loader", None, "ada", "loader"]
    assert list(back.ended)[:5] == sorted(list(back.ended)[:5])


@pytest.mark.parametrize("edits", [LIFE, DROPPED], ids=["1", "2"])
@pytest.mark.parametrize("at", [0, 4])
def test_a_snapshot_of_another_layout_is_refused_although_its_checksum_holds(at: int, edits: list[Edit]) -> None:
    body = bytearray(encode_snapshot(lived(edits))[:-4])
    body[at] += 1
    with pytest.raises(EventDamaged):
        decode_snapshot(with_checksum(bytes(body)))


def test_a_snapshot_with_something_left_over_is_refused_although_its_checksum_holds() -> None:
    with pytest.raises(EventDamaged, match="left over"):
        decode_snapshot(with_checksum(encode_snapshot(lived())[:-4] + bytes(1)))


def test_no_flipped_bit_and_no_cut_of_a_snapshot_goes_unnoticed() -> None:
    data = encode_snapshot(lived(DROPPED))
    for bit in range(0, len(data) * 8, 7):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(EventDamaged):
            decode_snapshot(bytes(flipped))
    for length in range(len(data)):
        with pytest.raises(EventDamaged):
            decode_snapshot(data[:length])


def test_the_bytes_of_an_outcome_never_change_and_others_are_refused() -> None:
    golden = bytes.fromhex((GOLDEN / "transaction_outcome_v1.hex").read_text())
    assert encode_outcome(Outcome(P, "aborted", "ada")) == golden
    assert decode_outcome(golden) == Outcome(P, "aborted", "ada")
    nobodys = golden[: -len(b"ada")]
    assert decode_outcome(nobodys) == Outcome(P, "aborted")
    for wrong in (b"\x02" + golden[1:], b"\x01\x04" + golden[2:], nobodys[:-1], golden + b"\xff", b""):
        with pytest.raises(StoreDamaged):
            decode_outcome(wrong)


def test_change_sets_that_were_read_back_are_whose_they_were() -> None:
    """A snapshot does not say so; outcomes do."""
    before, after = lived(), decode_snapshot(encode_snapshot(lived()))
    assert before.changed.of("loader") > 0
    assert (after.changed.of("loader"), after.changed.total) == (0, before.changed.total)
    after.attribute({P + 2: "loader", P + 8: None})
    assert (after.changed.of("loader"), after.changed.total) == (before.changed.of("loader"), before.changed.total)
