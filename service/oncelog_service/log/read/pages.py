"""What one poll answers: rows → visible to its transaction → payloads joined in → within its limits.

A place in a topic is a message id (20 bytes), or one with a zero byte behind it: after that message. The first 10 bytes are the
row's, the others lead into a stored group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from enum import Enum, auto
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from oncelog.wire.isolation import Held
from oncelog.wire.transaction import Transaction
from oncelog_service.log.judgements import Judgements, judged_at
from oncelog_service.log.scan import Runs, runs_from, stored_in
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, ROW_ID_SIZE, split_row_id
from oncelog_service.storage.payload_rows import own_ttl as own_payload_ttl
from oncelog_service.storage.payload_rows import stored_messages_of, tms_stored_messages_of
from oncelog_service.storage.port import Store
from oncelog_service.storage.rows import own_ttl, tms_messages_of
from oncelog_service.storage.runs import GROUP, TTL, StoredRun

_LAST_PAYLOAD_ID = b"\xff" * 10


class Encoding(NamedTuple):
    """How messages become bytes of the answer."""

    messages: Callable[[StoredRun, int, int], Sequence[bytes]]
    """From a run of the log, and which of its messages: one after the other, in as many pieces as it takes."""
    stored: Callable[[bytes, int, StoredRun, int, int], Sequence[bytes]]
    """From row id and offset of a stored group, a run of its messages, and which of them."""
    max_messages: int | None = None
    """Of a page; None: as many as the settings allow."""
    max_bytes: int | None = None
    """Bytes of a page; None: as many as the settings allow."""
    note: Callable[[StoredRun, int, int], None] | None = None
    """Called with a run of the log, the offset of the first message of it that is answered, and how many are."""


def _as_they_lie(run: StoredRun, begin: int, end: int) -> Sequence[bytes]:
    return (run.text(begin, end),)


def _stored(row_id: bytes, offset: int, run: StoredRun, begin: int, end: int) -> Sequence[bytes]:
    return stored_messages_of(row_id, offset + run.first + begin, run, begin, end)


def _stored_for_tms(row_id: bytes, offset: int, run: StoredRun, begin: int, end: int) -> Sequence[bytes]:
    return tms_stored_messages_of(row_id, run, begin, end)


AS_ONCELOG = Encoding(_as_they_lie, _stored)
AS_JSON = Encoding(_as_they_lie, _stored, 2_000, 2**20)
"""As the other, to be turned into JSON: a parser and a printer that give nobody a turn, so 10 ms of them at a time."""
AS_TMS = Encoding(tms_messages_of, _stored_for_tms)


def noting_pointers(encoding: Encoding, pointers: list[tuple[int, int] | None]) -> Encoding:
    """Encode as ``encoding`` does, and note for each message the write pointer and the offset of it, or of the first message of
    its stored group; None for one without.

    The pointer is negative once the message is rolled back.
    """

    def note(run: StoredRun, offset: int, messages: int) -> None:
        pointer = run.write_pointer
        if pointer is None:
            pointers.extend([None] * messages)
        elif run.flags & GROUP:
            pointers.extend([(pointer, run.first)] * messages)
        else:
            pointers.extend((pointer, each) for each in range(offset, offset + messages))

    return encoding._replace(note=note)


class Lives(NamedTuple):
    """How long the messages of a page live, as it was when the page was made."""

    now_ms: int
    ttl_ms: int
    """Of the topic."""


class Page(NamedTuple):
    """What one poll found."""

    messages: list[bytes]
    """Encoded, ready to be joined into an answer; many may stand in one piece."""
    delivered: int
    """How many messages they are."""
    last_id: bytes | None
    """Id of the last message looked at, delivered or not; None when there was none."""
    expired_at: int = 0
    """The latest millisecond at which the ttl of a message ended that was passed over for its own ttl; 0: none was."""
    upcoming: int | None = None
    """Where nothing was looked at, since the page begins behind the last message: the offset of the next one."""
    lives: Lives | None = None
    undecided: bool = False
    """It ended before a message whose transaction the reader's transaction takes for undecided: waiting would not help."""
    more: bool = False
    """It ended because it has looked at as many rows as it may. There is more behind ``last_id``, perhaps nothing that lives."""
    held: Held | None = None
    """It has no message, since what is stable ends before this one."""
    room: int = 0
    """Bytes that are left of its bound; below 1 it is full."""
    cut_before: bytes | None = None
    """Where a bound of the service ended it, and not the limit that was asked for: the id up to which there was more."""


class Bounds(NamedTuple):
    """What a page may hold."""

    limit: int
    """Messages delivered, never rows looked at."""
    max_bytes: int
    """A page ends after the message that reaches this; it always holds one."""
    now_ms: int
    rows: int = 2**62
    """Looked at, delivered or not: 2 at the least, or paging would not go on."""
    judgements: Judgements = ()


class Sight(Enum):
    """What a transaction makes of a message."""

    SEEN = auto()
    PASSED = auto()
    """Rolled back or invalid: as if it were not there."""
    UNDECIDED = auto()


def sight(transaction: Transaction, pointer: int) -> Sight:
    """What ``transaction`` makes of a message under ``pointer``: Tephra's visibility, and the TMS page's stop."""
    if pointer < 0:
        return Sight.PASSED
    if pointer in transaction.own:
        return Sight.SEEN
    if pointer in transaction.excluded:
        return Sight.PASSED
    if pointer > transaction.read_pointer or pointer in transaction.undecided:
        return Sight.UNDECIDED
    return Sight.SEEN


def read_page(
    store: Store,
    prefix: bytes,
    start: bytes,
    bounds: Bounds,
    encoding: Encoding,
    transaction: Transaction | None,
    last_row: bytes | None = None,
) -> Page:
    """The deliverable messages from the place ``start`` on, read from the store. Raises TopicDamaged.

    ``last_row``: id of the last row that counts, None for all.
    """
    with closing(runs_from(store, prefix, start[:ROW_ID_SIZE])) as runs:
        upto = through(runs, last_row)
        return collect(upto, start, bounds, encoding, transaction, lambda run, within: stored_in(store, prefix, run, within))


def through(runs: Iterable[StoredRun], last_row: bytes | None) -> Iterable[StoredRun]:
    """The runs up to the one that ends with this id, or all."""
    return runs if last_row is None else takewhile(lambda run: run.id <= last_row, runs)


def collect(
    runs: Iterable[StoredRun],
    start: bytes,
    bounds: Bounds,
    encoding: Encoding,
    transaction: Transaction | None = None,
    stored: Callable[[StoredRun, bytes], Runs] | None = None,
) -> Page:
    """The deliverable messages among ``runs``, from ``start`` on; the runs are checked and younger than the topic's TTL.

    ``stored`` joins in the payloads of a group from a payload id on; without it there may be none.
    """
    page = _Collected(bounds, encoding)
    runs = iter(runs)
    for run in runs:
        begin, within = _begin(run, start)
        if begin == len(run):
            continue  # before the start, or the one to start after: a position that was given is not answered again
        # An empty group holds nobody up: nothing can be added to it, and the cache, which counts messages, does not know of it.
        pointer = run.write_pointer if run.count else None
        seen = Sight.SEEN if transaction is None or pointer is None else sight(transaction, pointer)
        if seen is Sight.UNDECIDED:
            return page.ended(undecided=True)
        if seen is Sight.PASSED:
            page.pass_over(run)
        elif run.flags & GROUP:
            assert stored is not None
            with closing(stored(run, within)) as payloads:
                page.add_group(run, within, payloads)
        else:
            page.add(run, begin)
        if page.more or page.full:
            break
        if page.rows <= 0:
            page.more = next(runs, None) is not None
            break
    return page.ended()


def _begin(run: StoredRun, start: bytes) -> tuple[int, bytes]:
    """The index in a run of the first message that is asked for; of a group, from which of its payloads on."""
    first, within = start[:ROW_ID_SIZE], start[ROW_ID_SIZE:]
    begin = run.index_from(first)
    if begin == len(run) or run.id_at(begin) != first:
        return begin, b""
    after_it = within > (_LAST_PAYLOAD_ID if run.flags & GROUP else FIRST_PAYLOAD_ID)
    return begin + after_it, within


class _Collected:
    """A page while it is put together."""

    def __init__(self, bounds: Bounds, encoding: Encoding) -> None:
        self._bounds = bounds
        self._encoding = encoding
        self._messages: list[bytes] = []
        self._count = 0
        self._room = bounds.max_bytes
        self._last: bytes | None = None
        self._expired_at = 0
        self.rows = bounds.rows
        """How many more may be looked at."""
        self.more = False
        """Whether it ends with less than there is, since no more may be looked at."""

    @property
    def full(self) -> bool:
        """Whether it holds as much as it may."""
        return self._count >= self._bounds.limit or self._room <= 0

    def ended(self, undecided: bool = False) -> Page:
        """The page."""
        return Page(
            self._messages, self._count, self._last, self._expired_at, undecided=undecided, more=self.more, room=self._room
        )

    def pass_over(self, run: StoredRun) -> None:
        """A run that is as if it were not there."""
        self.rows -= len(run)
        self._last = run.id + _LAST_PAYLOAD_ID

    def add(self, run: StoredRun, begin: int) -> None:
        """Messages of the log, from this index on."""
        end = self._take(run, begin, run.id, own_ttl, partial(self._encoding.messages, run), run)
        self._last = run.id_at(end - 1) + FIRST_PAYLOAD_ID

    def add_group(self, run: StoredRun, within: bytes, payloads: Iterable[StoredRun]) -> None:
        """Messages of a stored group, from this payload id on. All have the time at which the group was published."""
        self.rows -= 1  # so that empty ones end a page, too
        for each in payloads:
            begin = each.index_from(within)
            if begin == len(each):
                continue
            if self.rows <= 0:
                self.more = True
                return
            end = self._take(each, begin, run.id, own_payload_ttl, partial(self._encoding.stored, run.id, run.first, each), run)
            self._last = run.id + each.id_at(end - 1)
            if self.more or self.full:
                return
        self._last = run.id + _LAST_PAYLOAD_ID

    def _take(
        self,
        run: StoredRun,
        begin: int,
        row_id: bytes,
        ttl_of: Callable[[StoredRun, int], int | None],
        encode: Callable[[int, int], Sequence[bytes]],
        of: StoredRun,
    ) -> int:
        """Deliver what lives of a run, as far as it may; returns the index behind what was looked at.

        ``row_id``: as of when their own ttl is judged; ``of``: the run of the log that they are of.
        """
        looked_at = min(len(run), begin + self.rows)
        if not run.flags & TTL:
            end = run.fitting(begin, min(looked_at, begin + self._bounds.limit - self._count), self._room)
            self._deliver(run, begin, end, encode, of)
        else:
            judged_ms = judged_at(self._bounds.judgements, row_id, self._bounds.now_ms)
            published, end = split_row_id(row_id)[0], begin
            while end < looked_at and not self.full:
                ttl = ttl_of(run, end)
                gone = 0 if ttl is None else published + ttl * 1000
                if ttl is None or gone > judged_ms:
                    self._deliver(run, end, end + 1, encode, of)
                else:
                    self._expired_at = max(self._expired_at, gone)
                end += 1
        self.rows -= end - begin
        self.more = end == looked_at < len(run) and not self.full
        return end

    def _deliver(
        self, run: StoredRun, begin: int, end: int, encode: Callable[[int, int], Sequence[bytes]], of: StoredRun
    ) -> None:
        self._messages += encode(begin, end)
        self._count += end - begin
        # Of a whole run without a look at each body: one in the cache would keep what it found, and weigh twice as much.
        self._room -= run.size if end - begin == len(run) else run.at(end) - run.at(begin)
        if self._encoding.note is not None:
            self._encoding.note(of, run.first + begin, end - begin)
