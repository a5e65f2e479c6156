"""How much somebody may send: messages and bytes a second, counted by token buckets. Pure: the time is given.

A bucket holds what may be sent in one second, and fills as time goes by. A request is admitted when the bucket holds what it
takes; one that takes more than the bucket can hold, when it is full, and then the bucket is in debt. So the invariant is: what is
admitted within any span of time, its last request apart, is never more than the rate times the span and one second more.

A request is counted whole or not at all, also where several buckets count it: all are asked before any of them is taken from.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from math import ceil
from typing import NamedTuple

from oncelog.errors import QuotaExceeded


class Rates(NamedTuple):
    """What may be sent in a second; None: as much as comes."""

    messages: int | None = None
    bytes: int | None = None


UNLIMITED = Rates()
_MANY = 10_000
"""Holders whose quotas are kept before those that have sent nothing for a second are let go of."""


class Bucket:
    """Holds what may be sent now of one thing."""

    __slots__ = ("_at", "_level", "rate")

    def __init__(self, rate: int, now: float) -> None:
        """``rate``: how much a second, above 0; it is full at first. ``now``: of a clock that is never set back."""
        self.rate = rate
        self._level = float(rate)
        self._at = now

    def level(self, now: float) -> float:
        """What is in it; below 0 it is in debt."""
        return min(float(self.rate), self._level + max(0.0, now - self._at) * self.rate)

    def wait(self, amount: int, now: float) -> float:
        """Seconds until so much may be sent; 0: now."""
        return max(0.0, (min(amount, self.rate) - self.level(now)) / self.rate)

    def take(self, amount: int, now: float) -> None:
        """Count what is sent."""
        self._level, self._at = self.level(now) - amount, now


class Quota:
    """What one holder – a topic, a principal – may send. Belongs to one event loop."""

    __slots__ = ("_buckets", "_rates", "_whose", "is_limited")

    def __init__(self, whose: str) -> None:
        """``whose``: as a refusal says it."""
        self._whose = whose
        self._rates = UNLIMITED
        self._buckets: dict[str, Bucket] = {}
        self.is_limited = False
        """Whether anything was counted the last time that somebody asked."""

    def check(self, rates: Rates, messages: int, size: int, now: float) -> None:
        """Raises QuotaExceeded unless so much may be sent now. ``rates``: that hold now; if they are others, all begin full."""
        if rates is UNLIMITED and self._rates is UNLIMITED:
            return
        if rates != self._rates:
            self._rates = rates
            self._buckets = {name: Bucket(rate, now) for name, rate in rates._asdict().items() if rate is not None}
            self.is_limited = bool(self._buckets)
        for name, bucket, amount in self._each(messages, size):
            wait = bucket.wait(amount, now)
            if wait > 0:
                raise QuotaExceeded(
                    f"{self._whose} takes {bucket.rate} {name} a second; nothing was done, try again in {wait:.3f} s",
                    quota=name,
                    limit=bucket.rate,
                    retry_after_ms=ceil(wait * 1000),
                )

    def is_full(self, now: float) -> bool:
        """Whether it is as good as a new one."""
        return all(bucket.level(now) == bucket.rate for bucket in self._buckets.values())

    def take(self, messages: int, size: int, now: float) -> None:
        """Count what :meth:`check` has admitted in this very step."""
        for _, bucket, amount in self._each(messages, size):
            bucket.take(amount, now)

    def _each(self, messages: int, size: int) -> Iterator[tuple[str, Bucket, int]]:
        amounts = {"messages": messages, "bytes": size}
        return ((name, bucket, amounts[name]) for name, bucket in self._buckets.items())

    def headers(self, now: float) -> Mapping[str, str]:
        """What an answer says of it, after the draft of the IETF (RateLimit header fields); nothing where there is no limit."""
        if not self._buckets:
            return {}
        policy = ", ".join(f'"{name}";q={bucket.rate};w=1' for name, bucket in self._buckets.items())
        left = ", ".join(
            f'"{name}";r={max(0, int(bucket.level(now)))};t={ceil(bucket.wait(bucket.rate, now))}'
            for name, bucket in self._buckets.items()
        )
        return {"ratelimit-policy": policy, "ratelimit": left}


class Quotas:
    """The quotas of many holders, each of whom may send as much. Belongs to one event loop."""

    def __init__(self, whose: str, rates: Rates) -> None:
        """``whose``: as a refusal says it."""
        self._whose = whose
        self.are_limited = rates != UNLIMITED
        """Else nothing need be counted."""
        self._rates = rates
        self._held: dict[Hashable, Quota] = {}

    def admit(self, holder: Hashable, messages: int, size: int, now: float) -> None:
        """Count what a holder sends. Raises QuotaExceeded; then nothing is counted."""
        if not self.are_limited:
            return
        quota = self._held.get(holder)
        if quota is None:
            if len(self._held) >= _MANY:
                self._held = {each: kept for each, kept in self._held.items() if not kept.is_full(now)}
            quota = self._held[holder] = Quota(self._whose)
        quota.check(self._rates, messages, size, now)
        quota.take(messages, size, now)
