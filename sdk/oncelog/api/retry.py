"""Says what may be tried again, and after how long. Pure: told what failed and when, it tries nothing and waits for nobody.

Each caller keeps a :class:`Tries`, asks it after every failure, and sleeps as it can: in a thread, on an event, in a loop.
"""

from __future__ import annotations

from math import inf

from oncelog.errors import (
    ClientClosed,
    ConnectionFailed,
    DiskFull,
    ExpectationsNotChecked,
    InvalidRequest,
    KeyInTransaction,
    OffsetMismatch,
    OncelogError,
    Overloaded,
    ProducerEnded,
    ProducerFenced,
    ProducerInTransaction,
    QuotaExceeded,
    RequestTimeout,
    RequestTooLarge,
    ResponseTimeout,
    SequenceGap,
    SequenceReused,
    StorageFailed,
    StorageUnavailable,
    TransactionsUnavailable,
)
from oncelog.values.expectation import is_past

FIRST_SECONDS = 0.05
LONGEST_SECONDS = 2.0
"""A service that reopens its store or restarts is back within seconds; waiting longer only adds to that."""
LONGEST_ASKED_SECONDS = 30.0
"""Of a ``Retry-After`` no more is heeded: nobody on the way to the service decides that its clients stand still."""
AWAY_SECONDS = 2.0
"""Then who waits for a service that is away wants to know: a restart takes less, mostly."""
_UNCUT = 0.75
"""Of the time after which a request was cut, what the next ones wait."""
_LEAST_CUT_SECONDS = 1.0
"""What breaks off sooner is no bound on waiting, and shorter waits would keep everybody busy."""
_CUTS_HOLD_SECONDS = 600.0
"""Then a longer wait is tried again: what seemed a bound may have been a process that was killed, or a gateway that is gone."""

_TRANSIENT = (
    ConnectionFailed,  # also GatewayUnavailable: a gateway says that the service is away
    StorageUnavailable,
    StorageFailed,
    TransactionsUnavailable,
    ProducerInTransaction,  # as Kafka's CONCURRENT_TRANSACTIONS: mostly one that has just ended and is not settled yet
    KeyInTransaction,
    Overloaded,
    DiskFull,
    QuotaExceeded,
    RequestTimeout,
)
_AWAY = (ConnectionFailed, StorageUnavailable, StorageFailed, TransactionsUnavailable)
"""With these nothing of the service, or of what it stands on, answers."""
_NEVER_OTHERWISE = (SequenceReused, InvalidRequest, RequestTooLarge)
"""The same request is refused with these whenever it comes."""
_ENDS_A_PRODUCER = (ProducerFenced, ProducerEnded, SequenceGap, ClientClosed)
"""Whatever this producer sends after one of these is refused, too."""
_OF_AN_EXPECTATION = (OffsetMismatch, ExpectationsNotChecked, KeyInTransaction)


def pause(attempt: int, fraction: float) -> float:
    """Seconds before retry number ``attempt`` (from 0): exponential, half of it spread by ``fraction`` (0 to 1)."""
    # Without the spread, the clients of a service that restarts all come back in the same moment.
    longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(attempt, 16))
    return longest / 2 + longest / 2 * fraction


class Tries:
    """The tries of one call: how many there were, until when there may be more, and whether one may have got through.

    What waits on the service while nothing is wrong is no trying. So the time counts from when the service was last heard of: a
    success, or a definite refusal of its own. Nothing is known to be wrong before the first failure behind that, and a try that
    somebody broke off – a 503, a gateway's word, a closed connection – counts from there.
    """

    __slots__ = (
        "_ends",
        "_failed",
        "_held",
        "_idempotent",
        "_is_heard",
        "_named",
        "_others",
        "_seconds",
        "last_failure",
        "perhaps_done",
    )

    def __init__(
        self,
        ends: float = inf,
        *,
        idempotent: bool = True,
        named: bool = False,
        others: int = 0,
        seconds: float = 0.0,
        held: bool = False,
    ) -> None:
        """``ends``: by the caller's clock; ``idempotent``: see :func:`may_retry`; ``named``: it is a named producer's request.

        ``others``: so many further instances are asked when one has not answered, even if that took all the time there was.
        ``seconds``: so long at least from the first failure on, unless that was a try that used up all its own time, as then
        nobody is there; ``held``: also then, as it waited on the service, and those behind it do not.
        """
        self._ends = ends
        self._idempotent = idempotent
        self._named = named
        self._others = others
        self._seconds = seconds
        self._held = held
        self._failed = 0
        self._is_heard = True
        self.perhaps_done = False
        """Whether a try that failed may have got through all the same."""
        self.last_failure: OncelogError | None = None
        """Of the last try that was followed by another one."""

    def heard(self) -> None:
        """The service has answered, and there is more to ask it: the time counts anew. Pauses go on to grow."""
        self._is_heard = True

    def wait(self, now: float, fraction: float, asked: float = 0.0) -> float | None:
        """Seconds until the next try, at least ``asked`` of them; None: there is no time for one.

        What is asked is heeded up to :data:`LONGEST_ASKED_SECONDS`, and up to the last moment: one more try may be the one.
        """
        own, left = pause(self._failed, fraction), self._ends - now
        self._failed += 1
        return None if own > left else min(own + min(asked, LONGEST_ASKED_SECONDS), left)

    def wait_after(self, error: OncelogError, now: float, fraction: float) -> float | None:
        """Seconds until the next try after ``error``. None: that is how the call ends, and ``error`` says now whether it is
        definite of *all* tries: a refusal now says nothing of an earlier one that may have got through."""
        if self._is_heard and (self._held or not isinstance(error, ResponseTimeout)):
            self._ends = max(self._ends, now + self._seconds)
        self._is_heard = False
        wait = self.wait(now, fraction, error.retry_after or 0.0)
        if isinstance(error, ResponseTimeout) and self._others:  # that took all the time; another one may answer at once
            self._others, wait = self._others - 1, wait or 0.0
        if wait is None or not may_retry(error, self._idempotent):
            error.definite = error.definite and (not self.perhaps_done or (self._named and rules_out_earlier_tries(error)))
            return None
        self.perhaps_done = self.perhaps_done or not error.definite
        self.last_failure = error
        return wait


class Outage:
    """Says once of a service that is away that it is, when that takes so long that whoever waits is to be told."""

    __slots__ = ("_is_told", "_last", "_since")

    def __init__(self) -> None:
        self._since: float | None = None
        """When it was found to be away."""
        self._last = 0.0
        self._is_told = False

    def heard(self) -> None:
        """The service has answered."""
        self._since, self._is_told = None, False

    def failed(self, error: OncelogError, began: float, now: float) -> float | None:
        """A try that began then has failed, and another one follows. The seconds that the service has been away, if that is to be
        told now."""
        if not isinstance(error, _AWAY):
            self.heard()
            return None
        if self._since is None or began - self._last > LONGEST_ASKED_SECONDS:  # nobody has asked meanwhile: it may be another one
            # Of a try that was to wait on the service it is not known when that went away.
            self._since, self._is_told = began if error.definite else now, False
        self._last = now
        if self._is_told or now - self._since < AWAY_SECONDS:
            return None
        self._is_told = True
        return now - self._since


class Holds:
    """How long a service may hold requests of a client: shorter than what stands before it lets them live.

    Envoy ends a request after 15 seconds, and many a proxy closes a connection on which nothing came for 5.
    """

    __slots__ = ("_longest", "_until")

    def __init__(self) -> None:
        self._longest = inf
        self._until = -inf

    def longest(self, wanted: float, now: float) -> float:
        """Seconds that the next request is to be held, where ``wanted`` are left."""
        if now >= self._until:
            self._longest = inf
        return min(wanted, self._longest)

    def cut(self, after: float, now: float) -> None:
        """A request that was held was broken off after so many seconds, and the service behind it answers."""
        if after >= _LEAST_CUT_SECONDS:
            self._longest, self._until = min(self._longest, after * _UNCUT), now + _CUTS_HOLD_SECONDS


class Held:
    """One call that the service holds where there is nothing yet: how long each of its tries is held, and what is its answer.

    A try that fails is followed by some that are not held: whether the service is there is known at once. When it is, the next
    one is held again, and for less where something on the way had broken it off.
    """

    __slots__ = ("_asked", "_begun", "_cut_after", "_ends", "_failed", "_holds")

    def __init__(self, holds: Holds, wait: float, now: float) -> None:
        """``wait``: seconds that it is held, all its tries together."""
        self._holds = holds
        self._ends = now + wait
        self._begun = now
        self._asked = 0.0
        self._failed = 0
        """Tries since the service was heard of."""
        self._cut_after: float | None = None

    def asks(self, now: float) -> float:
        """A try begins; seconds that it asks to be held."""
        self._begun, self._asked = now, 0.0 if self._failed else self._holds.longest(max(0.0, self._ends - now), now)
        return self._asked

    def failed(self, error: OncelogError, now: float) -> None:
        """It has failed."""
        self._failed += 1
        broken_off = isinstance(error, ConnectionFailed) and not isinstance(error, ResponseTimeout) and not error.definite
        # Where the next one has no answer either, nobody was there.
        self._cut_after = now - self._begun if broken_off and self._asked and self._failed == 1 else None

    def answered(self, is_nothing: bool, now: float) -> bool:
        """It has an answer: ``is_nothing`` where nothing had come yet. Whether the call ends with it; else it asks again."""
        if self._cut_after is not None:
            self._holds.cut(self._cut_after, now)
        failed, self._failed, self._cut_after = self._failed, 0, None
        return not (failed and is_nothing and now < self._ends)


def may_retry(error: OncelogError, idempotent: bool) -> bool:
    """Whether trying again may help and cannot do the thing twice.

    ``idempotent``: a repetition changes nothing (a read; a publish of a named producer). Otherwise only what certainly was not
    done is tried again.
    """
    if isinstance(error, QuotaExceeded) and error.retry_after_ms is None:
        return False  # somebody must make room
    return isinstance(error, _TRANSIENT) and (idempotent or error.definite)


def rules_out_earlier_tries(error: OncelogError) -> bool:
    """Whether this refusal of a named producer's request says that no earlier try of it got through, or ever will.

    A try that got through would have been answered as a duplicate; one that may still be under way is refused as this one was.
    """
    if isinstance(error, RequestTooLarge) and error.limit is None:
        return False  # not the service's own word: whatever stands before it knows nothing of earlier tries
    return isinstance(error, _NEVER_OTHERWISE) or (isinstance(error, OffsetMismatch) and is_past(error))


def is_one_messages_fault(error: OncelogError) -> bool:
    """Whether a message is refused for what it is or expects, so that those behind it may go on without it."""
    return isinstance(error, _NEVER_OTHERWISE + _OF_AN_EXPECTATION) and error.definite


def ends_a_producer(error: OncelogError) -> bool:
    """Whether nothing that the same producer sends later can be stored either."""
    return isinstance(error, _ENDS_A_PRODUCER)
