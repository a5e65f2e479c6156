"""A transaction as bytes: Tephra's to the byte, and whatever is not exactly one is refused at bounded cost."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncelog.errors import InvalidTransaction
from oncelog.wire.transaction import NO_SHORT, Transaction, TransactionType, VisibilityLevel

GOLDEN = bytes.fromhex(
    "0a000100000000000000030a000200000000000000030f00030a000000000f00040a0000000100000000000000020a00050000000000000002080006"
    "000000010a000700000000000000030f00080a000000000800090000000100"
)
"""CONTRACT §8.4: read pointer 3, id 3, write pointer 3, in progress [2], first short 2, SHORT, SNAPSHOT."""
EXAMPLE = Transaction(3, 3, (), (2,), 2, TransactionType.SHORT, 3)

LONGS = st.integers(-(2**63), 2**63 - 1)
LISTS = st.lists(LONGS, max_size=20).map(tuple)
TRANSACTIONS = st.builds(
    Transaction,
    LONGS,
    LONGS,
    LISTS,
    LISTS,
    LONGS,
    st.sampled_from(TransactionType),
    LONGS,
    LISTS,
    st.sampled_from(VisibilityLevel),
)


def test_the_example_of_the_contract_is_these_91_bytes() -> None:
    assert EXAMPLE.to_bytes() == GOLDEN
    assert Transaction.from_bytes(GOLDEN) == EXAMPLE
    assert len(GOLDEN) == 91


@given(TRANSACTIONS)
def test_every_transaction_comes_back_whole(transaction: Transaction) -> None:
    assert Transaction.from_bytes(transaction.to_bytes()) == transaction


def test_bytes_cut_short_anywhere_or_followed_by_more_are_refused() -> None:
    for length in range(len(GOLDEN)):
        with pytest.raises(InvalidTransaction):
            Transaction.from_bytes(GOLDEN[:length])
    for tail in (b"\x00", b"\x0a", GOLDEN):
        with pytest.raises(InvalidTransaction, match="follow"):
            Transaction.from_bytes(GOLDEN + tail)


@pytest.mark.parametrize("count", ["00000001", "7fffffff", "ffffffff", "80000000", "0fffffff"])
def test_an_absurd_count_is_refused_without_being_believed(count: str) -> None:
    body = bytes.fromhex("0f00030a" + count + "000000")
    tracemalloc.start()
    with pytest.raises(InvalidTransaction, match="does not fit"):
        Transaction.from_bytes(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize(
    "refused",
    [
        "0a00010000000000000003" + GOLDEN.hex(),  # a field twice
        "0f00030a00000000" + GOLDEN.hex(),
        "0a000a0000000000000003" + GOLDEN.hex(),  # a field that there is not
        "0f0003080000000000" + GOLDEN.hex(),  # a list of i32
        GOLDEN.hex().replace("08000600000001", "08000600000003"),  # a type that there is not
        GOLDEN.hex().replace("08000900000001", "08000900000000"),  # a level that there is not
    ],
)
def test_what_does_not_belong_is_refused(refused: str) -> None:
    with pytest.raises(InvalidTransaction):
        Transaction.from_bytes(bytes.fromhex(refused))


def test_lists_type_and_level_may_be_left_out_and_fields_come_in_any_order() -> None:
    body = bytes.fromhex("0a000700000000000000050a000200000000000000040a0001000000000000000500")
    assert Transaction.from_bytes(body) == Transaction(5, 4, first_short=NO_SHORT, write_pointer=5)


@given(st.binary(max_size=200))
@example(GOLDEN)
def test_any_bytes_are_a_transaction_or_refused(data: bytes) -> None:
    try:
        transaction = Transaction.from_bytes(data)
    except InvalidTransaction:
        return
    assert Transaction.from_bytes(transaction.to_bytes()) == transaction


@given(st.permutations([40, 20, 30, 10]), st.permutations([5, 25, 15]))
def test_unsorted_lists_hide_the_same(invalids: list[int], in_progress: list[int]) -> None:
    transaction = Transaction(50, 50, tuple(invalids), tuple(in_progress), write_pointer=50)
    assert transaction.excluded == {10, 20, 30, 40}
    assert transaction.undecided == {5, 15, 25}


def test_its_own_pointers_are_never_undecided_or_excluded() -> None:
    transaction = Transaction(50, 60, (50, 10), (50, 60, 20), write_pointer=60, checkpoint_write_pointers=(55, 60))
    assert (transaction.own, transaction.excluded, transaction.undecided) == ({50, 55, 60}, {10}, {20})
    passing_over = replace(transaction, visibility_level=VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT)
    assert passing_over.own == {50, 55}, "not what it wrote since its latest checkpoint"
    assert (passing_over.excluded, passing_over.undecided) == ({10}, {20, 60})
