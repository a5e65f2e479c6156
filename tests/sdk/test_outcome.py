"""Futures that share a condition behave as those that do not."""

from __future__ import annotations

import threading
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, as_completed, wait

import pytest

from oncelog.errors import ConnectionFailed, SequenceReused
from oncelog.producing.outcome import Outcome, settle, settle_failed
from oncelog.values.receipt import Receipt
from oncelog.wire.requests import ReceiptRun
from tests.patience import PATIENCE


def batch(n: int) -> tuple[list[Outcome], list[Receipt]]:
    condition = threading.Condition()
    run = ReceiptRun("stored", n, 10, bytes(20), 100)
    return [Outcome(condition) for _ in range(n)], [Receipt(run, at) for at in range(n)]


def test_every_message_of_a_batch_gets_its_own_receipt() -> None:
    outcomes, receipts = batch(3)
    assert not any(outcome.done() for outcome in outcomes)
    settle(outcomes, receipts)
    assert [outcome.result(0).sequence_id for outcome in outcomes] == [10, 11, 12]
    assert [outcome.result(0).offset for outcome in outcomes] == [100, 101, 102]


def test_what_is_settled_stays_as_it_is_and_its_callbacks_run_once() -> None:
    outcomes, receipts = batch(3)
    called: list[object] = []
    outcomes[0].add_done_callback(called.append)
    settle(outcomes[:1], receipts[:1])
    settle_failed(outcomes, ConnectionFailed())
    assert outcomes[0].exception() is None
    assert [type(outcome.exception()) for outcome in outcomes[1:]] == [ConnectionFailed] * 2
    assert called == [outcomes[0]]


@pytest.mark.parametrize("when", [ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION])
def test_wait_wakes_for_a_batch_that_is_settled_meanwhile(when: str) -> None:
    outcomes, receipts = batch(4)
    others, _ = batch(4)
    timer = threading.Timer(0.02, lambda: (settle(outcomes, receipts), settle_failed(others, ConnectionFailed())))
    timer.start()
    done, _ = wait(outcomes + others, timeout=PATIENCE, return_when=when)
    timer.join()
    assert done >= set(outcomes) if when != FIRST_COMPLETED else done & set(outcomes)
    assert all(outcome.done() for outcome in outcomes + others)


def test_as_completed_yields_each_once_over_shared_conditions() -> None:
    outcomes, receipts = batch(4)
    others, _ = batch(4)
    settle(outcomes[:2], receipts[:2])
    timer = threading.Timer(0.02, lambda: (settle(outcomes, receipts), settle_failed(others, ConnectionFailed())))
    timer.start()
    assert len(list(as_completed(outcomes + others, timeout=PATIENCE))) == 8
    timer.join()


def test_the_error_raised_keeps_its_values_and_its_cause() -> None:
    outcomes, _ = batch(2)
    error = SequenceReused("planted", definite=True, producer="p", sequence_id=5, message_id="00", offset=3)
    error.__cause__ = ZeroDivisionError()
    settle_failed(outcomes, error)
    for outcome in outcomes:
        with pytest.raises(SequenceReused, match="planted") as caught:
            outcome.result()
        assert (caught.value.sequence_id, caught.value.offset, caught.value.definite) == (5, 3, True)
        assert caught.value.__cause__ is error.__cause__
    assert error.__traceback__ is None


def test_a_receipt_counts_on_from_its_run_and_knows_no_place_where_the_run_has_none() -> None:
    run = ReceiptRun("duplicate", 3, 7, None, None)
    receipt = Receipt(run, 2)
    assert (receipt.status, receipt.sequence_id, receipt.offset, receipt.message_id) == ("duplicate", 9, None, None)
    assert receipt == Receipt(ReceiptRun("duplicate", 1, 9, None, None), 0)
    assert hash(receipt) == hash(Receipt(ReceiptRun("duplicate", 1, 9, None, None), 0))
