"""Holds a publish against the topic as it is at this moment, and answers what does not hold once that is certain.

The verdict falls where offsets are assigned, against what is pushed, in the same step; nothing awaits in between. A refusal waits
for the rows it lost to: if their write fails it was no refusal, and nothing of the request was written.
"""

from __future__ import annotations

from oncelog.errors import (
    ExpectationsNotChecked,
    KeyInTransaction,
    OffsetMismatch,
    OncelogError,
    StorageFailed,
    StorageUnavailable,
)
from oncelog.wire.requests import PublishRequest
from oncelog_service.log.append.step import Known
from oncelog_service.log.conditions import KEY_OFFSET, NOTHING_REPEATED, OFFSET, LockedKey, Mismatch, Repeated, mismatch
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.settling import Settling
from oncelog_service.storage.keys import GENERATION_SIZE, split_topic_key

_REMEMBERED = 10_000
"""Write pointers whose relatives are remembered; asking again costs a read."""


class Expectations:
    """Judges what requests expect of one open topic. Works on the event loop that owns it."""

    __slots__ = ("_dedup", "_name", "_relatives", "_settling", "_writer", "keys")

    def __init__(self, topic: OpenTopic, settling: Settling) -> None:
        self._name = topic_name(topic.prefix)
        self.keys = topic.keys
        self._dedup = topic.dedup
        self._writer = topic.writer
        self._settling = settling
        self._relatives: dict[int, set[int]] = {}
        """Write pointer → others that belong to the same transaction, as far as they were met."""

    def check_on(self) -> None:
        """Raises ExpectationsNotChecked where nobody looks at what a request expects."""
        if self.keys is None:
            raise ExpectationsNotChecked(
                f"topic {self._name} does not check expected offsets (its property check.expected.offsets), so a request that "
                "carries an expectation is refused; nothing was stored"
            )

    def found(self, request: PublishRequest, known: Known | None = None) -> Mismatch | LockedKey | None:
        """What of the request does not hold at this moment. Awaits nothing. Raises ExpectationsNotChecked."""
        self.check_on()
        assert self.keys is not None  # checked
        state = self.keys.state(request.write_pointer)
        relatives = self._relatives.get(request.write_pointer or 0)
        if relatives:
            held_by = state.held_by
            state = state._replace(held_by=lambda key: None if (other := held_by(key)) in relatives else other)
        repeated = NOTHING_REPEATED if known is None or not known.messages else self._repeated(request, known)
        return mismatch(request, state, repeated)

    async def refuse(self, found: Mismatch | LockedKey, pointer: int | None) -> None:
        """Refuse for good; or return, when what stood in the way has been settled: judge again.

        Raises:
            OffsetMismatch, KeyInTransaction: definite. StorageUnavailable: what the request lost to may not be on disk; definite.
        """
        await self.drained()
        if isinstance(found, Mismatch):
            raise self.refusal(found)
        if not await self._settling.settle_ended([found.write_pointer], under=pointer):
            return
        if pointer is None or not await self._settling.are_related(pointer, found.write_pointer):
            raise self.refusal(found)
        if len(self._relatives) >= _REMEMBERED:
            self._relatives.clear()
        self._relatives.setdefault(pointer, set()).add(found.write_pointer)

    async def drained(self) -> None:
        """Return when what a refusal depends on is on disk. Raises StorageUnavailable: it may not be, and nothing was done."""
        try:
            await self._writer.drained()
        except StorageFailed as error:
            raise StorageUnavailable(f"{error.detail}; nothing of this request was written") from error

    def refusal(self, found: Mismatch | LockedKey) -> OncelogError:
        """The answer, once it is certain."""
        if isinstance(found, LockedKey):
            return KeyInTransaction(
                f"the newest message with key {found.key[:100]!r} belongs to the transaction {found.write_pointer}, which is not "
                "settled; try again when it is",
                key=found.key,
                write_pointer=found.write_pointer,
            )
        return OffsetMismatch(
            f"topic {self._name}: {_told(found)}; nothing was stored",
            condition=found.condition,
            expected=found.expected,
            actual=found.actual,
            key=found.key,
            topic=self._name,
        )

    def _repeated(self, request: PublishRequest, known: Known) -> Repeated:
        assert request.producer is not None  # whose messages are known
        assert request.sequence_ids is not None
        ids = request.sequence_ids[: known.messages]
        originals = [known.originals.get(each) for each in ids]
        last_entry = self._dedup.last_pushed(request.producer)
        if last_entry is not None and last_entry.sequence_id == ids[-1]:
            last_id: bytes | None = last_entry.message_id
        else:
            last_id = None if originals[-1] is None else originals[-1].message_id
        offsets: dict[str, int | None] = {}
        if request.keys is not None and request.expected_key_offsets:
            for key, original in zip(request.keys, originals, strict=False):
                if key is not None:
                    offsets[key.decode("latin-1")] = None if original is None else original.offset
        return Repeated(known.messages, last_id, offsets)


def _told(found: Mismatch) -> str:
    if found.condition == OFFSET:
        return f"expected the upcoming offset to be {found.expected}, it is {found.actual}"
    of_key, what = "", "id"
    if found.condition == KEY_OFFSET:
        of_key, what = f" with key {(found.key or '')[:100]!r}", "offset"
    expected = "none" if found.expected is None else f"{what} {found.expected}"
    actual = "none" if found.actual is None else f"{what} {found.actual}"
    return f"expected the newest message{of_key} to be {expected}, it is {actual}"


def topic_name(prefix: bytes) -> str:
    """`namespace/topic` of the prefix that begins every key of a generation."""
    return "/".join(split_topic_key(prefix[:-GENERATION_SIZE]))
