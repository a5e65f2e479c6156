"""Futures that are views of what became of a request behave as those that are not; receipts as a list of them."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, as_completed, wait

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import ConnectionFailed, OncelogError, SequenceReused
from oncelog.producing.outcome import Outcome, Outcomes
from oncelog.values.receipt import Receipt, Receipts
from oncelog.wire.requests import ReceiptRun
from tests.patience import PATIENCE

RUN = ReceiptRun("stored", 4, 10, bytes(20), 100)


def batch(n: int) -> tuple[Outcomes, list[Outcome]]:
    outcomes = Outcomes(n)
    return outcomes, [Outcome(outcomes, at) for at in range(n)]


def stored(outcomes: Outcomes, begin: int, count: int) -> None:
    outcomes.complete(begin, count, Receipts([RUN._replace(count=count, sequence_id=10 + begin, offset=100 + begin)]))


def failed(outcomes: Outcomes, begin: int, count: int, error: OncelogError) -> None:
    outcomes.complete(begin, count, Receipts([]), error)


def test_each_message_gets_its_own_receipt_once_and_its_callbacks_run_once_whatever_they_raise() -> None:
    together, outcomes = batch(4)
    called: list[object] = []
    outcomes[0].add_done_callback(lambda _: 1 // 0)
    outcomes[0].add_done_callback(called.append)
    for soon in (outcomes[0].result, outcomes[0].exception):
        with pytest.raises(TimeoutError):
            soon(0.01)
    assert (outcomes[0].cancel(), outcomes[0].cancelled(), outcomes[0].running()) == (False, False, False)
    assert "pending" in repr(outcomes[0])
    stored(together, 0, 2)
    failed(together, 0, 4, ConnectionFailed())
    stored(together, 0, 2)
    assert [(each.result(0).sequence_id, each.result(0).offset, each.exception()) for each in outcomes[:2]] == [
        (10, 100, None),
        (11, 101, None),
    ]
    assert [type(outcome.exception()) for outcome in outcomes[2:]] == [ConnectionFailed] * 2
    outcomes[0].add_done_callback(called.append)
    assert called == [outcomes[0]] * 2
    assert ("returned Receipt" in repr(outcomes[0]), "raised ConnectionFailed" in repr(outcomes[3])) == (True, True)
    assert together.watched == {}
    with pytest.raises(AttributeError):
        _ = outcomes[0].value  # type: ignore[attr-defined]


@pytest.mark.parametrize("when", [ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION])
def test_wait_wakes_for_a_batch_that_is_settled_meanwhile(when: str) -> None:
    (together, outcomes), (apart, others) = batch(4), batch(4)
    timer = threading.Timer(0.02, lambda: (stored(together, 0, 4), failed(apart, 0, 4, ConnectionFailed())))
    timer.start()
    done, _ = wait(outcomes + others, timeout=PATIENCE, return_when=when)
    timer.join()
    assert done >= set(outcomes) if when != FIRST_COMPLETED else done & set(outcomes)
    assert len(list(as_completed(outcomes + others, timeout=PATIENCE))) == 8


class Told:
    """What waits for several futures."""

    def __init__(self) -> None:
        self.of: list[object] = []

    def add_result(self, outcome: object) -> None:
        self.of.append(outcome)


def test_who_waits_for_several_is_told_once_and_only_what_is_not_done_is_watched() -> None:
    together, outcomes = batch(3)
    told = Told()
    outcomes[0]._waiters.append(told)  # type: ignore[arg-type]  # as concurrent.futures does
    stored(together, 0, 2)
    outcomes[0].wake()  # as a call that was interrupted and is made again
    assert told.of == [outcomes[0]]
    wait(outcomes, timeout=0)
    assert list(together.watched) == [2]


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(1, 12), st.booleans()), max_size=12))
def test_what_is_completed_stays_as_it_is_in_whatever_order_parts_are_completed(
    parts: list[tuple[int, int, bool]],
) -> None:
    together, outcomes = batch(12)
    expected: dict[int, int | str] = {}
    called: Counter[int] = Counter()
    for at in range(0, 12, 3):
        outcomes[at].add_done_callback(lambda each: called.update([outcomes.index(each)]))  # type: ignore[arg-type]  # its own
    for begin, length, is_stored in parts:
        count = min(length, 12 - begin)
        if is_stored:
            stored(together, begin, count)
        else:
            failed(together, begin, count, ConnectionFailed())
        for at in range(begin, begin + count):
            expected.setdefault(at, 10 + at if is_stored else "failed")
        assert together.done() is (len(expected) == 12)
    for at, outcome in enumerate(outcomes):
        assert outcome.done() is (at in expected)
        if outcome.done():
            assert (outcome.result().sequence_id if outcome.exception() is None else "failed") == expected[at]
    assert called == Counter(at for at in expected if at % 3 == 0)


def test_the_error_raised_keeps_its_values_and_its_cause() -> None:
    together, outcomes = batch(2)
    error = SequenceReused("planted", definite=True, producer="p", sequence_id=5, message_id="00", offset=3)
    error.__cause__ = ZeroDivisionError()
    failed(together, 0, 2, error)
    for result in (outcomes[0].result, outcomes[1].result, together.receipts):
        with pytest.raises(SequenceReused, match="planted") as caught:
            result()
        assert (caught.value.sequence_id, caught.value.offset, caught.value.definite) == (5, 3, True)
        assert caught.value.__cause__ is error.__cause__
    assert error.__traceback__ is None


RUNS = st.lists(
    st.builds(
        ReceiptRun,
        st.sampled_from(["stored", "duplicate"]),
        st.integers(1, 5),
        st.integers(0, 9),
        st.none() | st.just(bytes(20)),
        st.none() | st.integers(0, 9),
    ),
    max_size=6,
)


@given(RUNS, st.slices(20))
def test_receipts_behave_as_the_list_of_them_does(runs: list[ReceiptRun], part: slice) -> None:
    receipts, eager = Receipts(runs), [Receipt(run, at) for run in runs for at in range(run.count)]
    assert (len(receipts), list(receipts), repr(receipts)) == (len(eager), eager, repr(eager))
    assert receipts == eager == receipts == Receipts(runs)
    assert (receipts == [*eager, None], receipts == tuple(eager), receipts != eager[1:]) == (False, False, bool(eager))
    assert receipts[part] == eager[part]
    assert list(reversed(receipts)) == eager[::-1]
    for at in range(-len(eager), len(eager)):
        assert receipts[at] == eager[at]
    for at in (len(eager), -len(eager) - 1):
        with pytest.raises(IndexError):
            _ = receipts[at]
    assert pickle.loads(pickle.dumps(receipts)) == eager


def test_a_receipt_counts_on_from_its_run_and_knows_no_place_where_the_run_has_none() -> None:
    receipt, same = Receipt(ReceiptRun("duplicate", 3, 7, None, None), 2), Receipt(ReceiptRun("duplicate", 1, 9, None, None), 0)
    assert (receipt.status, receipt.sequence_id, receipt.offset, receipt.message_id) == ("duplicate", 9, None, None)
    assert len({receipt, same}) == 1
