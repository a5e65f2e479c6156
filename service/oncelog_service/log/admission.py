"""The one place where a request is taken in, and handed to the writer.

The invariant on which everything depends: from the last verdict on a request to its hand-over nothing awaits and nothing raises.
Another request would take its sequence ids, or its offsets; and memory that has moved by what is not written cannot be put back.
So all that may refuse is asked when an admission is entered, or when :meth:`Admission.take` says how much it is: until then what
raises has changed nothing, and stamps are given back. From there on memory moves, and what raises is a failure of the store:
everything is read back.

The order: whether anything can be written at all; names, which are remembered; rates, before anything is encoded; then, with what
was encoded, the topic's size and the disk. What is stored already, or is refused, takes no room and counts for no quota.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from oncelog_service.bounds.quotas import UNLIMITED
from oncelog_service.group_commit import Writer
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.stamps import Stamps


class Admission:
    """Of one request to one open topic: a context manager around all that it does to memory."""

    __slots__ = ("_before", "_keys", "_messages", "_moves", "_producers", "_size", "_stamps", "_topic")

    def __init__(
        self,
        topic: OpenTopic,
        messages: int,
        size: int,
        producers: Iterable[str],
        keys: Collection[str] = (),
        stamps: Stamps | None = None,
    ) -> None:
        """``messages``, of ``size`` bytes: what its topic's quota counts. ``producers``, ``keys``: names that it may make known.
        ``stamps``: those of a stored group, instead of the log's."""
        self._topic = topic
        self._stamps = stamps or topic.stamps
        self._messages = messages
        self._size = size
        self._producers = producers
        self._keys = keys
        self._moves = False

    def __enter__(self) -> Admission:
        """Raises StorageUnavailable, QuotaExceeded."""
        topic = self._topic
        if topic.closed:
            topic.check_open()
        topic.writer.check()
        if self._producers:
            topic.check_producers(self._producers)
        if self._keys and topic.keys is not None:
            topic.keys.check(self._keys, topic.limits.max_keys)
        rates = topic.rules.rates
        if self._messages and (rates is not UNLIMITED or topic.quota.is_limited):  # what comes too fast is not even encoded
            topic.quota.check(rates, self._messages, self._size, topic.clock.monotonic())
        self._before = self._stamps.mark
        return self

    def take(self, more: int) -> None:
        """It is stamped and encoded, and its topic's log grows by so many bytes ``more``. Raises QuotaExceeded, DiskFull; from
        here on nothing may raise."""
        self._check_size(more)
        self._topic.writer.room.admit(self._size)
        self._count()
        self._moves = True

    def _check_size(self, more: int) -> None:
        limit = self._topic.rules.max_bytes
        if limit is not None:
            self._topic.size.check(limit, more)

    def _count(self) -> None:
        if self._messages:
            topic = self._topic
            topic.counts.taken_in(self._size)
            if topic.quota.is_limited:
                topic.quota.take(self._messages, self._size, topic.clock.monotonic())

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        if self._moves:
            self._topic.writer.give_up(error)
        else:
            self._stamps.put_back(self._before)

    @staticmethod
    def together(admissions: Sequence[tuple[Admission, int]], writer: Writer) -> None:
        """Take in what one write brings to several topics, with the bytes by which each log grows: all of it, or nothing is
        counted. Raises as each of them does."""
        for each, _ in admissions:
            each.__enter__()
        for each, more in admissions:
            each._check_size(more)
        writer.room.admit(sum(each._size for each, _ in admissions))
        for each, _ in admissions:
            each._count()
