"""Futures that share a condition behave as those that do not."""

from __future__ import annotations

import threading
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, Future, as_completed, wait
from itertools import repeat

import pytest

from oncelog.errors import ConnectionFailed, SequenceReused
from oncelog.producing.outcome import Outcome, complete
from oncelog.values.receipt import Receipt
from oncelog.wire.requests import ReceiptRun
from tests.patience import PATIENCE


def batch(n: int) -> tuple[list[Outcome], list[Receipt]]:
    condition = threading.Condition()
    run = ReceiptRun("stored", n, 10, bytes(20), 100)
    return [Outcome(condition) for _ in range(n)], [Receipt(run, at) for at in range(n)]


def test_each_message_gets_its_own_receipt_once_and_its_callbacks_run_once_whatever_they_raise() -> None:
    outcomes, receipts = batch(4)
    called: list[object] = []
    outcomes[0].add_done_callback(lambda _: 1 // 0)
    outcomes[0].add_done_callback(called.append)
    for soon in (outcomes[0].result, outcomes[0].exception):
        with pytest.raises(TimeoutError):
            soon(0.01)
    assert (outcomes[0].cancel(), isinstance(outcomes[0], Future)) == (False, True)
    complete(outcomes[:2], receipts[:2])
    complete(outcomes, repeat(None), ConnectionFailed())
    assert [(each.result(0).sequence_id, each.result(0).offset, each.exception()) for each in outcomes[:2]] == [
        (10, 100, None),
        (11, 101, None),
    ]
    assert [type(outcome.exception()) for outcome in outcomes[2:]] == [ConnectionFailed] * 2
    outcomes[0].add_done_callback(called.append)
    assert called == [outcomes[0]] * 2


@pytest.mark.parametrize("when", [ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION])
def test_wait_wakes_for_a_batch_that_is_settled_meanwhile(when: str) -> None:
    outcomes, receipts = batch(4)
    others, _ = batch(4)
    timer = threading.Timer(0.02, lambda: (complete(outcomes, receipts), complete(others, repeat(None), ConnectionFailed())))
    timer.start()
    done, _ = wait(outcomes + others, timeout=PATIENCE, return_when=when)
    timer.join()
    assert done >= set(outcomes) if when != FIRST_COMPLETED else done & set(outcomes)
    assert len(list(as_completed(outcomes + others, timeout=PATIENCE))) == 8


def test_the_error_raised_keeps_its_values_and_its_cause() -> None:
    outcomes, _ = batch(2)
    error = SequenceReused("planted", definite=True, producer="p", sequence_id=5, message_id="00", offset=3)
    error.__cause__ = ZeroDivisionError()
    complete(outcomes, repeat(None), error)
    for outcome in outcomes:
        with pytest.raises(SequenceReused, match="planted") as caught:
            outcome.result()
        assert (caught.value.sequence_id, caught.value.offset, caught.value.definite) == (5, 3, True)
        assert caught.value.__cause__ is error.__cause__
    assert error.__traceback__ is None


def test_a_receipt_counts_on_from_its_run_and_knows_no_place_where_the_run_has_none() -> None:
    receipt, same = Receipt(ReceiptRun("duplicate", 3, 7, None, None), 2), Receipt(ReceiptRun("duplicate", 1, 9, None, None), 0)
    assert (receipt.status, receipt.sequence_id, receipt.offset, receipt.message_id) == ("duplicate", 9, None, None)
    assert len({receipt, same}) == 1
