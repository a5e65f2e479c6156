"""What is tried again, and after how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.api.retry import FIRST_SECONDS, LONGEST_SECONDS, may_retry, pause
from oncelog.errors import (
    ConnectionFailed,
    InternalError,
    InvalidRequest,
    InvalidResponse,
    KeyInTransaction,
    OffsetMismatch,
    OncelogError,
    Overloaded,
    ProducerFenced,
    ProducerInTransaction,
    RequestTimeout,
    ResponseTimeout,
    SequenceGap,
    SequenceReused,
    StorageFailed,
    StorageUnavailable,
    TopicDamaged,
    TopicNotFound,
    TransactionsUnavailable,
    Unauthorized,
)

PASSING = (
    ConnectionFailed,
    ResponseTimeout,
    StorageUnavailable,
    StorageFailed,
    TransactionsUnavailable,
    ProducerInTransaction,
    KeyInTransaction,
    Overloaded,
    RequestTimeout,
)
LASTING = (
    InvalidRequest,
    InvalidResponse,
    InternalError,
    OffsetMismatch,
    ProducerFenced,
    SequenceGap,
    SequenceReused,
    TopicDamaged,
    TopicNotFound,
    Unauthorized,
)


@given(attempt=st.integers(0, 10_000), fraction=st.floats(0, 1))
def test_a_pause_is_never_zero_and_never_longer_than_the_longest(attempt: int, fraction: float) -> None:
    assert FIRST_SECONDS / 2 <= pause(attempt, fraction) <= LONGEST_SECONDS


@given(attempt=st.integers(0, 60), fraction=st.floats(0, 1))
def test_pauses_double_until_the_longest(attempt: int, fraction: float) -> None:
    doubled = FIRST_SECONDS
    for _ in range(attempt):
        doubled = min(LONGEST_SECONDS, doubled * 2)
    assert pause(attempt, 1.0) == pytest.approx(doubled)
    assert pause(attempt, 0.0) == pytest.approx(doubled / 2)
    assert pause(attempt, fraction) == pytest.approx(doubled * (1 + fraction) / 2)


@pytest.mark.parametrize("kind", PASSING)
def test_what_passes_is_tried_again_if_that_cannot_do_it_twice(kind: type[OncelogError]) -> None:
    assert may_retry(kind(definite=False), idempotent=True)
    assert may_retry(kind(definite=True), idempotent=True)
    assert may_retry(kind(definite=True), idempotent=False)
    assert not may_retry(kind(definite=False), idempotent=False)


@pytest.mark.parametrize("kind", LASTING)
@pytest.mark.parametrize("idempotent", [True, False])
def test_what_lasts_is_not_tried_again(kind: type[OncelogError], idempotent: bool) -> None:
    assert not may_retry(kind(), idempotent)
