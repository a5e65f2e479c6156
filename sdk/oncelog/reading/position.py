"""Where readers and consumers stand, what they have polled ahead, and what they ask for next.

Pure: it is given the answers and the time, in seconds of a clock that is never set; it asks nothing and waits for nothing. The
shells around it do that: :class:`oncelog.Reader` and :class:`oncelog.Consumer`, in threads.

Each change of state is one step to a signal handler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum, auto
from itertools import repeat, starmap
from math import inf
from typing import Any, NamedTuple
from uuid import uuid4
from weakref import WeakValueDictionary

from oncelog.errors import MessagesExpired
from oncelog.message_id import MessageId
from oncelog.values.message import Message, Source
from oncelog.values.start import Start, start_position
from oncelog.wire.isolation import Held
from oncelog.wire.models import Acknowledge, ReceiveMessages
from oncelog.wire.pages import Page
from oncelog.wire.requests import ConsumeRequest, Polled

TELL_SECONDS = 5.0
"""How long a reader is held up before it is told."""

ITERATED = 128
"""Messages that the first page brings to who iterates, or asks whether there are any. (Of 1 KB each 5,000 took 46 to 65 ms, and
ten took 10: so many take little more.)"""
GROWTH = 4
"""From page to page: the fourth is a whole one then."""

Record = Mapping[str, Any]
"""A message, as a mapping of its fields."""


class Found(Enum):
    """Says what an answer brought."""

    MORE = auto()
    """Messages, or a position further on: to ask again at once may bring something."""
    END = auto()
    """The end of the log: it takes waiting."""
    UNDECIDED = auto()
    """The transaction that reads cannot see what comes next, however long it waits."""


_readings = WeakValueDictionary[int | None, "PolledAhead"]()
"""The readings of this process, by their numbers."""


def delivered_by_now(namespace: str, topic: str) -> dict[int | None, bytes]:
    """Return the ids of the last messages that the readings of a topic in this process have delivered."""
    found: dict[int | None, bytes] = {}
    for number, at in list(_readings.items()):
        last = at.last
        if last is not None and (at.source.namespace, at.source.topic) == (namespace, topic):
            found[number] = last["id"]
    return found


class PolledAhead:
    """Holds messages that were polled and not delivered yet, and drops them when they expire."""

    __slots__ = ("__weakref__", "_lives", "_since", "fresh_until", "last", "records", "source")

    def __init__(self) -> None:
        self.records: deque[Record] = deque()
        self.source = Source()
        """Where these come from, for those who look at them."""
        self.last: Record | None = None
        """The last message delivered: taken from ``records``, and then noted here."""
        self._since: bytes | None = None
        """Id of the message that reading began behind."""
        self.fresh_until = inf
        """When the first message that is held expires: it is not delivered after that."""
        self._lives = 0.0, 0, 0
        """When what is held came, the service's time then in ms, and the topic's ttl in ms."""

    def _begin_reading(self) -> None:
        """Begin another reading, under a number of its own."""
        _readings.pop(self.source.reading, None)
        self.source = self.source._replace(reading=uuid4().int)
        _readings[self.source.reading] = self

    @property
    def delivered(self) -> bytes | None:
        """Id of the last message delivered, or of the one that reading began behind; None if there is neither."""
        return self._since if self.last is None else self.last["id"]

    def take(self, limit: int) -> list[Record]:
        """Deliver at most ``limit`` messages of those that are held, at least one."""
        count = min(limit, len(self.records))
        last, taken = self.records[count - 1], list[Record]()
        popped = starmap(self.records.popleft, repeat((), count))  # not yet
        # No call from here on, so that Ctrl-C cannot come between: what left and was not delivered would be lost.
        self.last = last
        taken += popped
        return taken

    def drop_expired(self, now: float) -> None:
        """Hold no message any more that has expired by now."""
        if now >= self.fresh_until:
            self._drop(now)

    def _drop(self, now: float) -> None:
        # One by one: those that live are never out of it, or Ctrl-C would lose them.
        for at in reversed(range(len(self.records))):
            if self._expires(self.records[at]) <= now:
                del self.records[at]
        self._note_fresh(self.records)

    def _note(self, polled: Polled, now: float) -> None:
        """Note of which generation the messages of an answer are, and how long they live."""
        if self.source.generation != polled.generation:
            self.source = self.source._replace(generation=polled.generation)
        if polled.now_ms is not None and polled.ttl_ms is not None:
            self._lives = now, polled.now_ms, polled.ttl_ms
            self._note_fresh(polled.messages)

    def _note_fresh(self, records: Iterable[Record]) -> None:
        # Where none has a ttl of its own the first one, which is the oldest, is the first to go.
        oldest = records[:1] if isinstance(records, Page) and not records.any_ttl else records
        self.fresh_until = min(map(self._expires, oldest), default=inf)

    def _expires(self, record: Record) -> float:
        """The time at which a message expires: its ttl, or the topic's, after its timestamp."""
        came, now_ms, ttl_ms = self._lives
        own = record["ttl"]
        lives_ms = ttl_ms if own is None else min(ttl_ms, own * 1000)
        return came + (int.from_bytes(record["id"][:8], "big") + lives_ms - now_ms) / 1000


class ReaderPosition(PolledAhead):
    """The position of a reader: it lies with the caller, and an answer moves it."""

    __slots__ = ("_begun", "_lost_upto", "_next", "_skips_expired", "generation", "lost")

    def __init__(self, skips_expired: bool = False) -> None:
        """``skips_expired``: messages that expired before they were read are counted in ``lost``, and are no error."""
        super().__init__()
        self._skips_expired = skips_expired
        self.generation: int | None = None
        """Of the topic, as soon as it has answered: from then on another one is refused."""
        self.lost = 0
        self._lost_upto: int | None = None
        """Offset of the last message that was skipped."""
        self._next = ConsumeRequest()
        self._begun: tuple[ConsumeRequest, bytes | None] = self._next, None
        """What asks for everything there is to be delivered, as long as ``delivered`` is still this."""

    def begin(self, start: Start, inclusive: bool = False, generation: int | None = None) -> None:
        """Go on from ``start``, an offset instead of ``latest``, with nothing polled ahead.

        ``generation``: of the topic, that ``start`` belongs to. Raises ValueError for what is no start: nothing has moved then.
        """
        asked = start_position(start, inclusive)
        assert asked.at != "latest"
        since = None if inclusive or asked.message_id is None else bytes(asked.message_id)
        if asked.message_id is not None:
            following = replace(self._behind(bytes(asked.message_id)), inclusive=inclusive)
        elif asked.offset is not None:
            following = self._at(asked.offset)
        else:
            following = ConsumeRequest(start_from=asked.timestamp)
        self.generation, self.last, self._lost_upto = generation, None, None
        self._next, self._begun, self._since = following, (following, since), since
        self.records.clear()
        self._begin_reading()

    def asks(self, limit: int, wait_ms: int = 0, transaction: bytes | None = None) -> ConsumeRequest:
        """The next poll, held by the service for ``wait_ms`` where there is nothing yet."""
        return replace(self._next, limit=limit, wait=wait_ms, transaction=transaction, generation=self.generation)

    def answered(self, asked: ConsumeRequest, polled: Polled, now: float) -> Found:
        """Hold the messages of the answer, and go on behind it."""
        self.generation = polled.generation
        following, begun = self._next, self._begun
        if polled.position is not None:
            following = self._behind(polled.position)
        elif polled.upcoming is not None and asked.start_from is None and asked.start_offset is None:
            # From the oldest, and there is none: from now on it is the next one that must not be missed.
            following = self._at(polled.upcoming)
            begun = following, self.delivered
        self._note(polled, now)
        records, messages = self.records, polled.messages
        # No call between these, so that Ctrl-C cannot come between: one without the other would lose a page, or double it.
        self._next, self._begun = following, begun
        records += messages
        if polled.position is not None or polled.messages:
            return Found.MORE
        # At the end of the log the service would have said so.
        return Found.UNDECIDED if asked.transaction is not None and polled.upcoming is None else Found.END

    def expired(self, error: MessagesExpired) -> int:
        """Go on with the first message that lives, past those that are lost; how many these are.

        Raises ``error``, which says where they begin as far as that is known, unless expired messages are skipped.
        """
        if error.first is None:
            error.first = self._upcoming()  # what the service does not know any more
        if not self._skips_expired:
            raise error
        lost = error.earliest - (0 if error.first is None else error.first)
        following = self._at(error.earliest)
        begun = following, self.delivered
        self.lost += lost
        self._lost_upto, self._next, self._begun = error.earliest - 1, following, begun
        return lost

    def rewind(self) -> None:
        """Go on behind what was delivered, with nothing polled ahead."""
        (following, since), delivered = self._begun, self.delivered
        following = following if delivered is None or delivered == since else self._behind(delivered)
        # No call between these: Ctrl-C there would lose what was held.
        self._next, self.fresh_until = following, inf
        self.records.clear()

    def _drop(self, now: float) -> None:
        self.rewind()  # the service is asked again: it knows what is lost, and what messages' own ttl has ended

    def _upcoming(self) -> int | None:
        """The offset behind all that was delivered or lost; None while there is nothing."""
        known = [] if self.last is None else [self.last["offset"]]
        known += [] if self._lost_upto is None else [self._lost_upto]
        return max(known) + 1 if known else None

    def _behind(self, position: bytes) -> ConsumeRequest:
        return ConsumeRequest(start_from=position, inclusive=False, refuse_expired=True)

    def _at(self, offset: int) -> ConsumeRequest:
        return ConsumeRequest(start_offset=offset, refuse_expired=True)


class PageSize:
    """How many messages the next poll asks for: at first about what its caller wants, and more as reading goes on."""

    __slots__ = ("_most", "count")

    def __init__(self, most: int) -> None:
        self._most = most
        self.begin()

    def begin(self) -> None:
        """Reading begins, here or somewhere else."""
        self.count = 1

    def want(self, count: int) -> None:
        """So many are wanted at once."""
        self.count = min(max(self.count, count), self._most)

    def grow(self) -> None:
        """A page was of use."""
        self.want(self.count * GROWTH)


class HeldUp:
    """Says when a reader has been held up for so long by one undecided message that it is to be told, which is once."""

    __slots__ = ("_at", "_since", "_told")

    def __init__(self) -> None:
        self._at: int | None = None
        """Offset of the message that holds it up."""
        self._since, self._told = 0.0, False

    def is_told(self, held: Held | None, asked: float, now: float) -> bool:
        """Whether to tell of what ended a page that was ``asked`` for then; None: nothing did."""
        at = None if held is None else held.offset
        if at != self._at:
            self._at, self._since, self._told = at, asked, False
        if held is None or self._told:
            return False
        # Of a wait that began before that message was published only what came behind it counts.
        self._told = min(now - self._since, (held.now_ms - held.since_ms) / 1000) >= TELL_SECONDS
        return self._told


class Upto(NamedTuple):
    """The last message that is acknowledged."""

    message_id: MessageId
    offset: int | None
    """Where it is certain that it is of this generation; the service looks an id up otherwise."""

    def asks(self, epoch: int, generation: int) -> Acknowledge:
        """The acknowledgement, of the consumer with this epoch."""
        message_id = self.message_id if self.offset is None else None
        return Acknowledge(epoch=epoch, generation=generation, offset=self.offset, message_id=message_id)


class ConsumerPosition(PolledAhead):
    """The position of a durable consumer: the service begins it at the subscription's cursor."""

    __slots__ = ("_after", "_first", "passed")

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        """Go on from the cursor of the subscription, with nothing polled ahead."""
        self._after: MessageId | None = None
        self._first: bytes | None = None
        """Id of the first message that was polled since it began."""
        self.last = None
        self.passed: MessageId | None = None
        """Acknowledged before it was delivered: what lies up to there is not to be delivered any more."""
        self.records.clear()
        self._begin_reading()

    def asks(self, epoch: int, generation: int, limit: int, wait_ms: int = 0) -> ReceiveMessages:
        """The next request for messages, held by the service for ``wait_ms`` where there is nothing yet."""
        return ReceiveMessages(epoch=epoch, generation=generation, after=self._after, limit=limit, wait=wait_ms)

    def answered(self, polled: Polled, now: float) -> Found:
        """Hold the messages of the answer, and go on behind it."""
        after = self._after if polled.position is None else MessageId.from_bytes(polled.position)
        if polled.messages and self._first is None:
            self._first = polled.messages[0]["id"]
        self._note(polled, now)
        records, messages = self.records, polled.messages
        # No call between these two, so that Ctrl-C cannot come between: one without the other would lose a page, or double it.
        self._after = after
        records += messages
        return Found.END if polled.position is None else Found.MORE

    def upto(self, message: Message[Any] | MessageId) -> Upto:
        """The acknowledgement of the message and everything before it. Raises TypeError."""
        if isinstance(message, MessageId):
            return Upto(message, None)
        if not isinstance(message, Message):
            raise TypeError(f"what is acknowledged is a Message or a MessageId, not {type(message).__name__}")
        message_id, first, delivered = message.message_id, self._first, self.delivered
        given = first is not None and delivered is not None and first <= bytes(message_id) <= delivered
        return Upto(message_id, message.offset if given else None)

    def acknowledged(self, upto: Upto) -> bool:
        """Note what is acknowledged. Whether some of it was not delivered, and is to be passed over."""
        if self.delivered is not None and self.delivered >= bytes(upto.message_id):
            return False
        while True:
            passed = self.passed
            furthest = upto.message_id if passed is None else max(passed, upto.message_id)
            if self.passed is passed:  # else a signal handler has acknowledged more in between
                self.passed = furthest
                return True

    def pass_over(self) -> None:
        """Drop what is held although it is acknowledged, and go on behind it."""
        upto = self.passed
        if upto is None:
            return
        while self.records and self.records[0]["id"] <= bytes(upto):
            self.records.popleft()
        if self._after is None or self._after < upto:
            self._after = upto
        # At the end: Ctrl-C in the middle of this leaves it to be done again.
        if self.passed is upto:
            self.passed = None
