"""Token buckets: no more is admitted than the rate allows, and no less; who is told when to come again may come then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import QuotaExceeded
from oncelog_service.bounds import quotas
from oncelog_service.bounds.quotas import UNLIMITED, Bucket, Quota, Quotas, Rates

SENT = st.lists(st.tuples(st.floats(0, 3), st.integers(0, 300)), max_size=60)


@given(rate=st.integers(1, 100), sent=SENT)
def test_no_span_of_time_takes_more_than_its_rate_and_one_second_more(rate: int, sent: list[tuple[float, int]]) -> None:
    now, bucket, taken = 0.0, Bucket(rate, 0.0), list[tuple[float, int]]()
    for pause, amount in sent:
        now += pause
        if bucket.wait(amount, now) == 0:
            bucket.take(amount, now)
            taken.append((now, amount))
    for begin in range(len(taken)):
        for end in range(begin + 1, len(taken) + 1):
            span = taken[end - 1][0] - taken[begin][0]
            assert sum(amount for _, amount in taken[begin : end - 1]) <= rate * (span + 1) + 1e-6 * rate


@given(rate=st.integers(1, 10**12), sent=SENT, amount=st.integers(1, 10**13))
def test_who_comes_when_told_is_admitted_and_not_before(rate: int, sent: list[tuple[float, int]], amount: int) -> None:
    now, bucket = 0.0, Bucket(rate, 0.0)
    for pause, each in sent:
        now += pause
        if bucket.wait(each, now) == 0:
            bucket.take(each, now)
    wait = bucket.wait(amount, now)
    assert bucket.wait(amount, now + wait + 0.001) == 0
    assert wait < 0.01 or bucket.wait(amount, now + wait * 0.99 - 0.002) > 0
    assert wait <= 1 + max(each for _, each in [*sent, (0, 0)]) / rate, "never longer than the debt and one second"


@given(rate=st.integers(1, 50))
def test_a_holder_that_sends_less_than_its_rate_is_never_refused(rate: int) -> None:
    bucket = Bucket(rate, 0.0)
    for step in range(500):
        assert bucket.wait(1, step / rate) == 0
        bucket.take(1, step / rate)


def test_a_request_is_counted_by_all_buckets_or_by_none() -> None:
    quota, rates = Quota("the topic"), Rates(messages=10, bytes=100)
    quota.check(rates, 5, 100, 0.0)
    quota.take(5, 100, 0.0)
    for _ in range(3):
        with pytest.raises(QuotaExceeded) as refused:
            quota.check(rates, 5, 50, 0.0)
        assert (refused.value.quota, refused.value.limit, refused.value.retry_after_ms) == ("bytes", 100, 500)
    quota.check(rates, 5, 0, 0.0)  # the messages of those that were refused have not counted
    quota.take(5, 0, 0.0)
    with pytest.raises(QuotaExceeded) as refused:
        quota.check(rates, 1, 0, 0.0)
    assert (refused.value.quota, refused.value.retry_after_ms, refused.value.definite) == ("messages", 100, True)


def test_other_rates_hold_at_once_and_none_is_no_limit() -> None:
    quota = Quota("the topic")
    quota.check(UNLIMITED, 10**9, 10**15, 0.0)
    quota.take(10**9, 10**15, 0.0)
    quota.check(Rates(messages=1), 1, 10**15, 0.0)
    quota.take(1, 10**15, 0.0)
    with pytest.raises(QuotaExceeded):
        quota.check(Rates(messages=1), 1, 0, 0.5)
    quota.check(Rates(messages=2), 2, 0, 0.5)
    quota.take(2, 0, 0.5)
    assert quota.headers(0.75) == {"ratelimit-policy": '"messages";q=2;w=1', "ratelimit": '"messages";r=0;t=1'}
    quota.check(UNLIMITED, 10**9, 0, 0.5)
    assert quota.headers(0.75) == {}


def test_each_holder_has_a_quota_of_its_own_also_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "_MANY", 3)
    held = Quotas("a principal", Rates(messages=2))
    for holder in range(20):
        held.admit(holder, 2, 0, now=holder / 10)
        for other in range(max(0, holder - 9), holder + 1):  # whose bucket is not full again
            level = (holder - other) / 10 * 2
            with pytest.raises(QuotaExceeded):
                held.admit(other, 2, 0, now=holder / 10)
            assert level < 2
    assert len(held._held) < 15, "who has sent nothing for a second is let go of"
    held.admit(0, 2, 0, now=2.0)
    Quotas("a principal", UNLIMITED).admit("x", 10**9, 10**12, 0.0)
