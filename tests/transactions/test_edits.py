"""Edits, outcomes and snapshots on disk: every layout is golden, and no bit can be flipped unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.wire.transaction import TransactionType
from oncelog_service.storage.checksum import with_checksum
from oncelog_service.storage.keys import AFTER_NUMBERS, edit_key, outcome_key
from oncelog_service.transactions.edits import (
    KINDS,
    Aborted,
    Checkpointed,
    Committed,
    Edit,
    EditDamaged,
    Enlisted,
    HandedIn,
    Invalidated,
    Pruned,
    Settled,
    Started,
    decode_edit,
    encode_edit,
)
from oncelog_service.transactions.outcomes import Outcome, decode_outcome, encode_outcome
from oncelog_service.transactions.snapshot import decode_snapshot, encode_snapshot
from oncelog_service.transactions.state import TransactionsState

GOLDEN = Path(__file__).parent.parent / "golden"
P = 1_790_000_000_000_000_000
HERE, THERE = "here:default/orders/1", "there:default/bestellungen-ü/1"

EDITS: dict[str, Edit] = {
    "started": Started(P, TransactionType.SHORT, 1_790_000_030_000),
    "handed_in": HandedIn(P, 1_790_090_000_000, "the database", frozenset({b"b", b"", b"a\x00"})),
    "committed": Committed(P, frozenset({b"late"})),
    "aborted": Aborted(P),
    "invalidated": Invalidated(P),
    "checkpointed": Checkpointed(P, P + 1),
    "pruned": Pruned((P, P + 7)),
    "enlisted": Enlisted(P + 1, HERE),
    "settled": Settled(P + 1, HERE),
}

LIFE: list[Edit] = [
    Started(P, TransactionType.SHORT, 1_790_000_030_000),  # becomes invalid and nothing else
    Started(P + 1, TransactionType.LONG, 1_790_090_000_000),
    Started(P + 2, TransactionType.SHORT, 1_790_000_030_000),  # commits while a younger one is in progress
    Started(P + 3, TransactionType.SHORT, 1_790_000_030_000),
    Checkpointed(P + 3, P + 4),
    Enlisted(P + 3, HERE),
    Enlisted(P + 4, THERE),
    HandedIn(P + 2, 1_790_000_030_000, None, frozenset({b"a"})),
    Committed(P + 2, frozenset({b"b"})),
    Invalidated(P),
    Started(P + 5, TransactionType.SHORT, 1_790_000_030_000),
    HandedIn(P + 5, 1_790_090_000_000, "db", frozenset({b"c"})),
    Started(P + 6, TransactionType.SHORT, 1_790_000_030_000),
    Checkpointed(P + 6, P + 7),
    Enlisted(P + 7, HERE),
    Aborted(P + 6),
    Started(P + 8, TransactionType.SHORT, 1_790_000_030_000),
    Enlisted(P + 8, HERE),
    Enlisted(P + 8, THERE),
    Committed(P + 8, frozenset({b"d", b"a"})),
    Settled(P + 8, THERE),
]


def lived() -> TransactionsState:
    state = TransactionsState()
    for edit in LIFE:
        state.apply(edit)
    return state


pointers = st.integers(1, 2**63 - 1)
keys = st.frozensets(st.binary(max_size=10), max_size=4)
edits: st.SearchStrategy[Edit] = st.one_of(
    st.builds(Started, pointers, st.sampled_from(TransactionType), pointers),
    st.builds(HandedIn, pointers, pointers, st.none() | st.text("aü ", min_size=1), keys),
    st.builds(Committed, pointers, keys),
    st.builds(Aborted, pointers),
    st.builds(Invalidated, pointers),
    st.builds(Checkpointed, pointers, pointers),
    st.builds(Pruned, st.lists(pointers, max_size=4).map(tuple)),
    st.builds(Enlisted, pointers, st.text("aü/", min_size=1)),
    st.builds(Settled, pointers, st.text("aü/", min_size=1)),
)


@given(edits, pointers)
def test_an_edit_reads_back_as_it_was_written(edit: Edit, number: int) -> None:
    back = decode_edit(number, encode_edit(number, edit))
    assert (type(back), back) == (type(edit), edit)


@pytest.mark.parametrize("name", EDITS)
def test_the_bytes_of_an_edit_never_change(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"transaction_edit_{name}.hex").read_text())
    assert encode_edit(41, EDITS[name]) == golden
    assert decode_edit(41, golden) == EDITS[name]


def test_every_kind_of_edit_is_golden() -> None:
    assert {type(edit) for edit in EDITS.values()} == set(KINDS)


def test_the_bytes_of_a_snapshot_never_change() -> None:
    golden = bytes.fromhex((GOLDEN / "transaction_snapshot_v1.hex").read_text())
    assert encode_snapshot(lived()) == golden
    assert encode_snapshot(decode_snapshot(golden)) == golden


def test_the_bytes_of_an_outcome_never_change() -> None:
    golden = bytes.fromhex((GOLDEN / "transaction_outcome_v1.hex").read_text())
    assert encode_outcome(P + 1, Outcome(P, "aborted")) == golden
    assert decode_outcome(P + 1, golden) == Outcome(P, "aborted")


@pytest.mark.parametrize("name", EDITS)
def test_no_flipped_bit_and_no_cut_of_an_edit_goes_unnoticed(name: str) -> None:
    data = encode_edit(41, EDITS[name])
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(EditDamaged):
            decode_edit(41, bytes(flipped))
    for length in range(len(data)):
        with pytest.raises(EditDamaged):
            decode_edit(41, data[:length])


@pytest.mark.parametrize(
    "change", [lambda body: b"\x02" + body[1:], lambda body: body[:1] + b"\x0a" + body[2:], lambda body: body + b"\x00"]
)
def test_an_edit_of_another_layout_is_refused_although_its_checksum_holds(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(EditDamaged):
        decode_edit(41, with_checksum(change(encode_edit(41, Settled(P, HERE))[:-4])))


@pytest.mark.parametrize("at", [0, 4])
def test_a_snapshot_of_another_layout_is_refused_although_its_checksum_holds(at: int) -> None:
    body = bytearray(encode_snapshot(lived())[:-4])
    body[at] += 1
    with pytest.raises(EditDamaged):
        decode_snapshot(with_checksum(bytes(body)))


def test_an_outcome_of_another_layout_is_refused_although_its_checksum_holds() -> None:
    with pytest.raises(EditDamaged):
        decode_outcome(P, with_checksum(b"\x02" + encode_outcome(P, Outcome(P, "aborted"))[1:-4]))


def test_an_edit_at_the_wrong_number_is_refused() -> None:
    with pytest.raises(EditDamaged, match="number 41"):
        decode_edit(42, encode_edit(41, Aborted(P)))


def test_an_outcome_under_the_wrong_pointer_is_refused() -> None:
    with pytest.raises(EditDamaged):
        decode_outcome(P + 1, encode_outcome(P, Outcome(P, "committed")))


def test_the_keys_never_change_and_sort_as_numbers() -> None:
    assert edit_key(41).hex() == "0000000000000029"
    assert outcome_key(P).hex() == "18d75b8423f30000"
    assert edit_key(1) < edit_key(2**40) < AFTER_NUMBERS
    assert outcome_key(2**63 - 1) < AFTER_NUMBERS


def test_no_flipped_bit_of_a_snapshot_goes_unnoticed() -> None:
    data = encode_snapshot(lived())
    for bit in range(0, len(data) * 8, 7):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(EditDamaged):
            decode_snapshot(bytes(flipped))
    for length in range(len(data)):
        with pytest.raises(EditDamaged):
            decode_snapshot(data[:length])


@pytest.mark.parametrize("cut", range(len(LIFE) + 1))
def test_a_snapshot_at_any_point_and_the_rest_of_the_edits_give_the_same_state(cut: int) -> None:
    state = TransactionsState()
    for edit in LIFE[:cut]:
        state.apply(edit)
    state = decode_snapshot(encode_snapshot(state))
    for edit in LIFE[cut:]:
        state.apply(edit)
    assert encode_snapshot(state) == encode_snapshot(lived())
