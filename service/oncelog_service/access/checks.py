"""Checks signed tokens beside the event loop, and bounds what those cost who carry forged ones.

The invariants:

* A signature is checked on one thread, one at a time. Whose token was verified before waits for none.
* What waits to be checked is bounded, over all and of each address, and addresses take turns: a flood of one holds up another's
  token by one check.
* An address of which FAILURES tokens did not hold within a second is refused without a check, until one more may fail.
* A token that many requests carry is checked once for all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

from oncelog.errors import OncelogError, Overloaded
from oncelog_service.access.issuer import Issuer, Key, Signed
from oncelog_service.bounds.quotas import Bucket
from oncelog_service.traffic import Traffic

FAILURES = 10
"""Of one address in a second; a check takes 0.1 ms, of the slowest kind 1 ms."""
WAITING = 128
"""Checks that wait, of all addresses; one address may have as many as are left."""
_ADDRESSES = 10_000
"""Whose failures are known."""


class Unchecked(Exception):
    """A token is signed, and not known: whether it holds is to be checked."""

    def __init__(self, token: bytes, digest: bytes) -> None:
        self.token, self.digest = token, digest
        """It, and its hash."""


class _Check(NamedTuple):
    """A token that waits."""

    token: bytes
    digest: bytes
    address: str
    algorithm: str
    key: Key
    checked: asyncio.Future[None]


class Checks:
    """Has tokens verified. Belongs to one event loop."""

    def __init__(
        self, issuer: Issuer, threads: Executor, now_ms: Callable[[], int], seconds: Callable[[], float], traffic: Traffic
    ) -> None:
        """``seconds``: of a clock that is never set back."""
        self._issuer = issuer
        self._threads = threads
        self._now_ms = now_ms
        self._seconds = seconds
        self._traffic = traffic
        self._queues: dict[str, deque[_Check]] = {}
        """Address → what waits; the first one is next."""
        self._known: dict[bytes, _Check] = {}
        """By the token's hash: those that wait, and the one that is being checked."""
        self._failed: dict[str, Bucket] = {}
        self._busy = False

    def begin(self, unchecked: Unchecked, address: str) -> asyncio.Future[None]:
        """Have a token checked; once that is done the issuer knows it, or this raises Unauthorized or Overloaded, as does what it
        returns."""
        known = self._known.get(unchecked.digest)
        if known is not None:
            return known.checked
        algorithm, key = self._issuer.key_of(unchecked.token)
        self._issuer.check_unexpired(unchecked.token, self._now_ms())  # it is no failure that others are to pay for
        queue = self._queues.get(address, ())
        is_full = len(queue) >= WAITING - len(self._known)
        if self._has_failed(address) or (is_full and not (not queue and self._displaces())):
            raise self._refused()
        checked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        checked.add_done_callback(_look_at)
        check = _Check(unchecked.token, unchecked.digest, address, algorithm, key, checked)
        self._known[check.digest] = check
        self._queues.setdefault(address, deque()).append(check)
        if not self._busy:
            self._next()
        return checked

    def _displaces(self) -> bool:
        """Refuse the last of whoever has most that waits, for an address that has nothing; False: nobody has more than one."""
        longest = max(self._queues.values(), key=len, default=deque[_Check]())
        if len(longest) < 2:
            return False
        self._end(longest.pop(), self._refused())
        return True

    def _has_failed(self, address: str) -> bool:
        failed = self._failed.get(address)
        return failed is not None and failed.level(self._seconds()) < 1

    def _next(self) -> None:
        """Check the first token of the next address."""
        self._busy = False
        while self._queues and not self._busy:
            address = next(iter(self._queues))
            queue = self._queues.pop(address)
            check = queue.popleft()
            if queue:
                self._queues[address] = queue
            if self._has_failed(address):
                self._end(check, self._refused())
                continue
            self._busy = True
            read = partial(self._issuer.read_token, check.token, check.algorithm, check.key)
            done = asyncio.get_running_loop().run_in_executor(self._threads, read)
            done.add_done_callback(partial(self._is_read, check))

    def _is_read(self, check: _Check, done: asyncio.Future[Signed]) -> None:
        if done.cancelled():  # the service ends
            self._end(check, self._refused())
            return
        try:
            self._issuer.remember(done.result(), check.digest, self._now_ms())
            self._end(check)
        except Exception as failure:
            if isinstance(failure, OncelogError):
                self._count(check.address)
            self._end(check, failure)
        self._next()

    def _refused(self) -> Overloaded:
        self._traffic.refused["tokens"] += 1
        return Overloaded(
            "more signed tokens come from this address, or wait to be checked, than are checked; try again in a moment"
        )

    def _end(self, check: _Check, failure: Exception | None = None) -> None:
        del self._known[check.digest]
        if check.checked.done():
            return
        if failure is None:
            check.checked.set_result(None)
        else:
            check.checked.set_exception(failure)

    def _count(self, address: str) -> None:
        """One more of this address has failed."""
        now = self._seconds()
        if address not in self._failed and len(self._failed) >= _ADDRESSES:
            self._failed = {each: failed for each, failed in self._failed.items() if failed.level(now) < FAILURES}
            if len(self._failed) >= _ADDRESSES:
                del self._failed[next(iter(self._failed))]
        self._failed.setdefault(address, Bucket(FAILURES, now)).take(1, now)


def _look_at(checked: asyncio.Future[None]) -> None:
    """Nobody may be left who asks what became of it."""
    if not checked.cancelled():
        checked.exception()
