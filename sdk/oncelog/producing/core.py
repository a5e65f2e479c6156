"""A producer without hands: no thread, no socket, no clock, no lock. A shell brings all four and obeys.

What happens comes in: a message (:meth:`Core.put`), the time, the answer to a request or its failure, the end. What is to be done
goes out, from :meth:`Core.next`: publish a request, open another name, wait, complete messages with their results. One request is
under way at a time. A second one beside it could overtake the first; then the service would take the first one's smaller sequence
ids for duplicates, and they would be lost.

    while (action := core.next(now)) is not None:
        Publish  → core.answered(runs) or core.failed(error, now, fraction)
        Open     → core.opened(opened) or core.not_opened(error)
        Wait     → ask again when so many seconds are over
        Complete → tell the waiters, then core.completed()

**One caller at a time**, but for a signal handler, which interrupts the caller and may call in the middle: send, flush and close.
CPython runs handlers where a function begins, behind calls and at the ends of loops. So the queue and the numbering change like
this: find out everything, compare :attr:`Core.version` with what it was, then change all of it with no call in between. To a
handler that is one step, and what came between makes the caller look again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from oncelog.api.plausible import check_names_all
from oncelog.api.retry import Tries, ends_a_producer, is_one_messages_fault
from oncelog.errors import (
    InvalidRequest,
    InvalidResponse,
    OffsetMismatch,
    OncelogError,
    ProducerClosed,
    ProducerEnded,
    ProducerInTransaction,
    ProducerStopped,
    RequestTooLarge,
    SequenceReused,
)
from oncelog.message_id import MessageId
from oncelog.producing.batching import LINGER_SECONDS, MAX_BYTES, MAX_MESSAGES, Batch
from oncelog.producing.cutting import Bounds
from oncelog.producing.numbering import Numbers
from oncelog.values.outgoing import Outgoing
from oncelog.values.receipt import Receipt
from oncelog.wire.requests import PublishRequest, ReceiptRun

MAX_PENDING = 50_000
MAX_PENDING_BYTES = 64 << 20
"""Messages, and their bytes, that may wait to be sent; send_async waits beyond that, so that memory is bounded when the service
is slow. (Kafka's buffer.memory is 32 MiB.)"""
DELIVERY_SECONDS = 120.0
"""How long a message is tried again (Kafka's delivery.timeout.ms)."""
SHARED_SECONDS = 1.0
"""How long what is waited for takes company while a request is under way."""

_CAN_BE_ONE_OF_MANY = (SequenceReused, InvalidRequest, RequestTooLarge)
"""The faults that one message brings upon a request of many, so that it has to be found."""


class Policy(NamedTuple):
    """How a producer sends."""

    is_assigned: bool = False
    """Whether its name was assigned by the service: nobody resumes under it."""
    refuses_gaps: bool = False
    bounds: Bounds = Bounds(MAX_MESSAGES, MAX_BYTES)
    linger: float = LINGER_SECONDS
    max_pending: int = MAX_PENDING
    max_pending_bytes: int = MAX_PENDING_BYTES
    delivery_timeout: float = DELIVERY_SECONDS
    stops_on_refusal: bool = False
    """Whether nothing is sent behind a message that was refused for its own fault."""

    def goes_on_after(self, error: OncelogError) -> bool:
        """Tell whether only the messages of the request fail: they are certainly not stored, and nobody relies on each being
        there."""
        relied_on = self.refuses_gaps or self.stops_on_refusal
        return self.is_assigned and not relied_on and error.definite and not ends_a_producer(error)


class Opened(NamedTuple):
    """The producer as the service has opened it."""

    name: str
    epoch: int
    last_sequence_id: int | None = None
    last_message_id: MessageId | None = None


class Enlisted(NamedTuple):
    """The transaction that a producer is in, and its numbering before."""

    transaction: int | str
    """Its write pointer; the id of an atomic commit."""
    before: Numbers


class Publish(NamedTuple):
    """Send this; say what was answered."""

    request: PublishRequest


class Open(NamedTuple):
    """Open the producer under another name: its own has ended, and nothing of the request can be stored."""


class Wait(NamedTuple):
    """Ask again when so many seconds are over."""

    seconds: float


class Complete(NamedTuple):
    """Give messages their results: the receipts in these runs, or all of them one error."""

    part: Batch
    """The messages: those of ``part.shared`` from ``part.begin`` on, ``len(part)`` of them."""
    runs: Sequence[ReceiptRun]
    error: OncelogError | None


Action = Publish | Open | Wait | Complete


class _Try:
    """One request and its tries so far."""

    __slots__ = ("has_renewed", "is_renewing", "tries", "until")

    def __init__(self, end: float) -> None:
        # With its name and sequence ids a request can be repeated: what is there already is answered as a duplicate.
        self.tries = Tries(end, named=True)
        self.until = -inf
        """The next try waits as long."""
        self.is_renewing = self.has_renewed = False
        """Whether it waits for another name; whether it was given one."""


class Core:
    """A producer's state: what is numbered, queued, under way, stopped. See the module for its protocol."""

    __slots__ = (
        "_failure", "_known", "_last", "_max_bytes", "_max_messages", "_max_pending", "_max_pending_bytes", "_new_batch",
        "_parts", "_results", "_try", "due", "enlisted", "epoch", "is_abandoned", "is_closed", "last_moment", "last_sequence_id",
        "name", "numbers", "open", "pending", "pending_bytes", "policy", "queue", "stopped", "version",
    )  # fmt: skip

    def __init__(self, policy: Policy, opened: Opened, initial: int | None = None, batch: Callable[[], Batch] = Batch) -> None:
        """``initial``: sequence id of the first message; ``batch``: makes an empty one, with what its results are given to."""
        self.policy = policy
        self._max_messages, self._max_bytes = policy.bounds
        self._max_pending, self._max_pending_bytes = policy.max_pending, policy.max_pending_bytes
        self._new_batch = batch
        self.name, self.epoch, self.last_sequence_id, self._known = opened
        self._last: Receipt | None = None
        """Of the highest sequence id, once it was published here; what was known of it before is kept beside."""
        self.numbers = Numbers(opened.last_sequence_id, initial)
        self.version = 0
        """Rises with every change of what is queued or numbered."""
        self.open = batch()
        """Takes the next message."""
        self.queue: deque[Batch] = deque()
        """Complete batches, the first of them under way."""
        self.pending = 0
        self.pending_bytes = 0
        """Messages that have no result yet, and what they count for."""
        self.due: float | None = None
        """When the open batch has lingered long enough."""
        self.is_closed = False
        self.is_abandoned = False
        """Whether nothing is tried again."""
        self.last_moment = inf
        """What has no answer is given up then at the latest."""
        self.stopped: OncelogError | None = None
        """Why nothing more is sent."""
        self.enlisted: Enlisted | None = None
        self._failure: OncelogError | None = None
        self._parts: list[Batch] | None = None
        """What is still to be sent of the first batch, in order; None: it is not begun."""
        self._try: _Try | None = None
        """The tries of the first part."""
        self._results: deque[Complete] = deque()

    # --- messages come in

    def put(self, message: Outgoing, batch: Batch) -> int | None:
        """Number and queue one message in ``batch``, the open one; let it :meth:`linger` then.

        Return its index there. None: not queued, since it does not go with those before it, or something has come between; end
        the batch and look again.

        Raises ProducerStopped, ProducerClosed, ProducerInTransaction, MixedSequenceIds, SequenceIdNotRising, InvalidRequest.
        """
        if self.stopped is not None or self.is_closed or self.enlisted is not None:
            raise self.unusable()
        version, numbers = self.version, self.numbers
        _, given, _, _, _, expected, size = message
        number, newest = numbers.one(given)
        rows = batch.rows
        at = len(rows)
        is_too_large = at and batch.size + size > self._max_bytes
        if is_too_large or batch is not self.open or not batch.accepts(number, expected):
            return None
        # One step from here to the row.
        if self.version != version:
            return None
        self.version = version + 1
        if given is None:
            numbers.by_caller = False
            numbers.next = number + 1
        else:
            numbers.by_caller = True
            if newest is not None:
                numbers.highest = number
                if newest[0] == number:
                    numbers.ranges += (newest,)
                else:
                    numbers.ranges[-1] = newest
        if not at:
            batch.expected = expected
            self.due = None  # a handler may have ended the batch that was given its time
        batch.size += size
        batch.last = number
        self.pending_bytes += size
        self.pending += 1
        rows += (message,)
        if newest is not None and newest[0] == number:
            numbers.forget()
        return at

    def lingers(self) -> bool:
        """Tell whether the open batch has been given its time, and is not full."""
        batch = self.open
        return self.due is not None and batch.size < self._max_bytes and len(batch.rows) < self._max_messages

    def linger(self, now: float) -> None:
        """Complete the open batch if it is full; else give it its time to wait for company."""
        batch = self.open
        if batch.size >= self._max_bytes or len(batch.rows) >= self._max_messages:
            self.end_batch(now)
        elif self.due is None:
            self.due = now + self.policy.linger

    def hurry(self, now: float) -> None:
        """The newest message waits for no company: its batch is the next request, and what comes before that goes with it. One
        that has waited for SHARED_SECONDS is complete: what joins it would wait longer for its own end."""
        self.linger(now)
        due = self.due
        if due is None:
            return  # it was full
        if due > now:
            self.due = now
        elif now - due > SHARED_SECONDS:
            self.end_batch(now)

    def put_batch(self, batch: Batch, now: float) -> bool:
        """Number and queue messages that come together, as columns, and are one request. False: not queued, look again.

        Raises as :meth:`put` does, and takes no number then.
        """
        if self.stopped is not None or self.is_closed or self.enlisted is not None:
            raise self.unusable()
        self.end_batch(now)
        version = self.version
        numbers, after = self.numbers.all(batch.sequence_ids)
        count, queue = len(numbers), self.queue
        # One step from here to the end.
        if self.version != version:
            return False
        self.version = version + 1
        self.numbers = after
        self.pending += count
        self.pending_bytes += batch.size
        batch.sequence_ids = numbers  # type: ignore[assignment]  # the same list, of what is never None
        batch.queued_at = now
        queue.append(batch)
        return True

    def has_room(self, size: int, count: int = 1) -> bool:
        """Tell whether so many messages of this size together may be queued; what comes alone always may."""
        pending, pending_bytes = self.pending + count, self.pending_bytes + size
        return not self.pending or (pending <= self._max_pending and pending_bytes <= self._max_pending_bytes)

    def tick(self, now: float) -> float | None:
        """Complete the open batch if its time to linger is over. Return the seconds until it is; None: nothing lingers."""
        left = 0.0 if self.is_closed else None if self.due is None else self.due - now
        if left is None or left > 0:
            return left
        self.end_batch(now)
        return None

    def end_batch(self, now: float) -> Batch | None:
        """Queue the open batch, if there is anything in it. Return the last batch that is queued."""
        fresh, queue, batch = self._new_batch(), self.queue, self.open
        queued_at = now if self.due is None else min(now, self.due + SHARED_SECONDS)
        # One step. Also where nothing lingers: a handler may have ended the batch before its message was given a time, and the
        # time would be over for ever then.
        self.due = None
        if batch.rows:
            self.version += 1
            self.open = fresh
            batch.queued_at = queued_at
            queue.append(batch)
        try:
            return queue[-1]
        except IndexError:
            return None

    def is_usable(self) -> bool:
        """Tell whether messages may come in."""
        return self.stopped is None and not self.is_closed and self.enlisted is None

    def unusable(self) -> OncelogError:
        """Say why no message may come in."""
        if self.stopped is not None:
            error = ProducerStopped(f"producer {self.name!r} stopped: {self.stopped}; open it again")
            error.__cause__ = self.stopped
            return error
        if self.is_closed or self.enlisted is None:
            return ProducerClosed()
        transaction = self.enlisted.transaction
        detail = f"producer {self.name!r} is in transaction {transaction}: send with the transaction, or when it has ended"
        pointer = transaction if isinstance(transaction, int) else None
        return ProducerInTransaction(detail, producer=self.name, write_pointer=pointer)

    # --- what is to be done

    def next(self, now: float) -> Action | None:
        """Return what is to be done now; None: nothing, until another batch is complete."""
        while True:
            if self._results:
                return self._results[0]
            if not self.queue:
                return None
            if self._parts is None:
                self._parts = [self.queue[0].settled()]
            if self.stopped is not None:
                detail = f"producer {self.name!r} stopped before this was sent: {self.stopped}; open it again"
                self._fail(self._parts[0], ProducerStopped(detail))
                self._replace([])
                continue
            return self._proceed(self._parts[0], now)

    def _proceed(self, part: Batch, now: float) -> Action:
        if self._try is None:
            # An assigned name does not stop when a batch fails: counted from the first try, each of those that wait would take
            # the whole time again.
            since = part.queued_at if self.policy.is_assigned else now
            self._try = _Try(min(since + self.policy.delivery_timeout, self.last_moment))
        if self._try.is_renewing:
            return Open()
        if self._try.until > now and not self.is_abandoned:
            return Wait(self._try.until - now)
        return Publish(part.request(self.name, self.epoch))

    def completed(self) -> None:
        """The messages of the result that :meth:`next` returned have it."""
        if len(self._results) == 1 and not self._parts:  # the first batch has all its results, and its callbacks have run
            batch = self.queue[0]
            count, size = len(batch), batch.size
            self._parts = None
            batch.done = True
            self.queue.popleft()
            self.pending -= count
            self.pending_bytes -= size
        self._results.popleft()

    def answered(self, runs: Sequence[ReceiptRun], now: float) -> None:
        """The request was answered with receipts."""
        if not self._parts:
            return
        part = self._parts[0]
        # Before anything moves: receipts of other messages would advance the last sequence id past what is stored.
        try:
            check_names_all(runs, part.sequence_ids)  # type: ignore[arg-type]  # a producer's are numbers
        except InvalidResponse as error:
            self.failed(error, now, 0.0)
            return
        self.advance(Receipt(runs[-1], runs[-1].count - 1))
        self._results.append(Complete(part, runs, None))
        self._replace([])

    def failed(self, error: OncelogError, now: float, fraction: float) -> float | None:
        """The request failed. ``fraction``: 0 to 1, which spreads the pauses of many producers.

        Return the seconds until it is sent again; None: it is not.
        """
        tried = self._try
        if not self._parts or tried is None:
            return None
        # Under another name nothing is known of the tries before: a message that one of them stored would be stored twice.
        may_renew = self.policy.is_assigned and not tried.tries.perhaps_done and not tried.has_renewed
        if isinstance(error, ProducerEnded) and may_renew:
            tried.is_renewing = tried.has_renewed = True
            return 0.0
        wait = tried.tries.wait_after(error, inf if self.is_abandoned else now, fraction)
        if wait is None:
            self._judge(error)
        else:
            tried.until = now + wait
        return wait

    def opened(self, opened: Opened) -> None:
        """It has another name, under which the request is sent again: nothing of it can have been stored."""
        self.name, self.epoch = opened.name, opened.epoch
        if self._try is not None:
            self._try.is_renewing = False

    def not_opened(self, error: OncelogError) -> None:
        """There is no other name to be had."""
        error.definite = True  # of the messages, whatever became of the open
        self._judge(error)

    def _judge(self, error: OncelogError) -> None:
        """What follows from an error that is not tried again."""
        if not self._parts:
            return
        part = self._parts[0]
        if is_one_messages_fault(error):
            self._replace(self._refuse(part, error))
            return
        if self.policy.goes_on_after(error):
            self._give_back(part, self._is_newest())
        elif self.stopped is None:
            self.stopped = error
        self._fail(part, error)
        self._replace([])

    def _replace(self, rest: list[Batch]) -> None:
        """Put what is still to be sent of the first part in its place."""
        assert self._parts is not None
        self._parts[:1] = rest
        self._try = None

    def _refuse(self, part: Batch, error: OncelogError) -> list[Batch]:
        """Fail the messages whose fault it is; return those that are still to be sent."""
        if isinstance(error, OffsetMismatch):
            known, refused, rest = part.parted(error)
            if self.policy.stops_on_refusal:
                if known.payloads:  # they have their receipts before the one behind them is refused again
                    return [known, part.part(len(known), len(part))]
                refused, rest = part, rest.part(0, 0)
                self.stopped = error
            self._give_back(refused, not rest.payloads and self._is_newest())
            self._fail_each(refused, error)
            return [each for each in (known, rest) if each.payloads]
        if len(part) > 1 and not part.whole and isinstance(error, _CAN_BE_ONE_OF_MANY):
            return part.halves()
        if isinstance(error, RequestTooLarge) and (bare := part.bare()) is not None:
            return [bare]  # perhaps it was only too large for what the SDK had added
        self._give_back(part, self._is_newest())
        self._fail(part, error)
        if self.policy.stops_on_refusal:
            self.stopped = error
        return []

    def _is_newest(self) -> bool:
        """Tell whether nothing is queued behind the first part."""
        return not self.open.rows and len(self.queue) == 1 and self._parts is not None and len(self._parts) == 1

    def _give_back(self, refused: Batch, newest: bool) -> None:
        """These messages are refused for good: their sequence ids are unused, unless they were stored before. ``newest``: nothing
        was queued behind them."""
        last = -1 if self.last_sequence_id is None else self.last_sequence_id
        unused = [each for each in refused.sequence_ids if each is not None and each > last]
        if unused:
            self.version += 1
            self.numbers.give_back(unused, newest)

    def _fail(self, part: Batch, error: OncelogError) -> None:
        self._results.append(Complete(part, (), error))

    def _fail_each(self, part: Batch, error: OffsetMismatch) -> None:
        """Fail each message with the offset that it expected itself."""
        if part.whole or len(part) == 1 or part.expected is None:
            self._fail(part, error)
            return
        for at in range(len(part)):
            offset = part.expected.moved(at).offset
            detail = f"offset {offset} was expected of {error.topic}, in one request with those before it: {error.detail}"
            own = OffsetMismatch(detail, condition="offset", expected=offset, actual=error.actual, topic=error.topic)
            self._fail(part.part(at, at + 1), own)

    def interrupted(self, error: BaseException) -> None:
        """Sending broke off, nobody knows where: the producer stops, and what has no result yet fails."""
        self.stopped = interruption(error)
        if self.queue:
            self._results.clear()
            self._fail(self.queue[0], self.stopped)
            self._parts, self._try = [], None

    # --- flush and close

    def untold(self, error: OncelogError) -> None:
        """A message failed that nobody waits for: :meth:`take_failure` tells the first of these."""
        if self._failure is None:
            self._failure = error

    def take_failure(self) -> OncelogError | None:
        """Return the first failure since the last call that no sender has heard of."""
        failure, self._failure = self._failure, None
        return failure

    def close(self) -> None:
        """Take no more messages; what is queued is sent."""
        self.is_closed = True
        self.version += 1  # a send that this handler interrupts looks again whether it may

    def give_up(self, now: float) -> tuple[list[int], list[Complete]]:
        """Stop. Return the sequence ids that have no result, and the results that their messages get now."""
        self.end_batch(now)
        if self.stopped is None:
            self.stopped = OncelogError("the producer was closed before this was answered", definite=False)
        self.is_abandoned = True
        unsent = ProducerStopped("the producer was closed before this was sent")
        queued = [batch.settled() for batch in self.queue]
        left = queued if self._parts is None else [*self._parts, *queued[1:]]
        ids = [each for part in left for each in part.sequence_ids if each is not None]
        results = [Complete(batch, (), unsent if at else self.stopped) for at, batch in enumerate(queued)]
        return ids, [*self._results, *results]  # only the first can be under way

    # --- in a transaction

    def enlist(self, transaction: int | str) -> None:
        """Take messages of this transaction only, until it ends. Again: note what was refused meanwhile, and gave its id back."""
        self.enlisted = Enlisted(transaction, self.numbers.copy())
        self.version += 1  # as in close

    def number(self, sequence_id: int | None) -> int:
        """Return the sequence id of the transaction's next message. Raises as :meth:`put` does."""
        while True:
            if self.stopped is not None or self.is_closed:
                raise self.unusable()
            version = self.version
            (number,), after = self.numbers.all([sequence_id])
            # One step from here to the end.
            if self.version == version:
                self.version = version + 1
                self.numbers = after
                return number

    def release(self, last: Receipt | None) -> None:
        """The transaction is committed; ``last``: of its last message."""
        self.enlisted = None
        if last is not None:
            self.advance(last)

    def roll_back(self) -> None:
        """The transaction is rolled back: its sequence ids were never used."""
        if self.enlisted is not None:
            self.numbers = self.enlisted.before
            self.version += 1
        self.enlisted = None

    def stop(self, error: BaseException) -> None:
        """Nobody knows which sequence ids are used: nothing may follow."""
        self.enlisted = None
        self.stopped = error if isinstance(error, OncelogError) else interruption(error)

    def advance(self, last: Receipt) -> None:
        """A message is known to be stored."""
        if self.last_sequence_id is None or last.sequence_id > self.last_sequence_id:
            self.last_sequence_id, self._last = last.sequence_id, last

    @property
    def last_message_id(self) -> MessageId | None:
        """The id of the message with the highest sequence id that is known to be stored."""
        last = self._last
        return self._known if last is None else last.message_id


def interruption(error: BaseException) -> OncelogError:
    """Make the error of messages whose sending an exception from outside broke off."""
    stopped = OncelogError(f"sending was interrupted: {error!r}", definite=False)
    stopped.__cause__ = error
    return stopped
