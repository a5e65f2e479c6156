"""Message ids and offsets: strictly rising for the whole life of a topic, whatever the clock does. Pure: the time is given.

``publish_timestamp = max(wall clock, last one)``; when the 65,536 seq_ids of a millisecond are used up, it goes on in the next
millisecond without sleeping. CDAP's stamps, run with a clock of 1000, 999, 1000, overwrote an acknowledged row; with
a frozen clock 65,540 publishes left 65,536 rows.
"""

from __future__ import annotations

from oncelog_service.storage.keys import SEQ_BYTES, split_row_id, timestamp_prefix

SEQ_IDS_PER_MS = len(SEQ_BYTES)


class Stamps:
    """Hands out row ids and offsets in the order in which it is asked."""

    __slots__ = ("_seq_id", "_timestamp", "upcoming_offset")

    def __init__(self, floor: int, upcoming_offset: int = 0, last_row_id: bytes | None = None) -> None:
        """``floor``: no timestamp is below it; ``last_row_id``: the last one handed out, recovered from the log."""
        self.upcoming_offset = upcoming_offset
        self._timestamp, self._seq_id = (floor, -1) if last_row_id is None else split_row_id(last_row_id)
        self.rise(floor)

    def rise(self, floor: int) -> None:
        """No timestamp from now on is below ``floor``."""
        if floor > self._timestamp:
            self._timestamp, self._seq_id = floor, -1

    def take(self, count: int, now_ms: int) -> tuple[list[bytes], int]:
        """Row ids for ``count`` messages, contiguous, and the offset of the first of them."""
        first_offset = self.upcoming_offset
        if now_ms > self._timestamp:
            self._timestamp, self._seq_id = now_ms, -1
        if count == 1 and self._seq_id < SEQ_IDS_PER_MS - 1:
            self._seq_id += 1
            self.upcoming_offset += 1
            return [timestamp_prefix(self._timestamp) + SEQ_BYTES[self._seq_id]], first_offset
        row_ids: list[bytes] = []
        while len(row_ids) < count:
            begin = self._seq_id + 1
            if begin == SEQ_IDS_PER_MS:
                self._timestamp, self._seq_id = self._timestamp + 1, -1
                continue
            end = min(SEQ_IDS_PER_MS, begin + count - len(row_ids))
            prefix = timestamp_prefix(self._timestamp)
            row_ids += [prefix + seq for seq in SEQ_BYTES[begin:end]]
            self._seq_id = end - 1
        self.upcoming_offset += count
        return row_ids, first_offset

    def take_row(self, messages: int, now_ms: int) -> tuple[bytes, int]:
        """The row id of one row that stands for so many messages, and the offset of the first of them."""
        (row_id,), first_offset = self.take(1, now_ms)
        self.upcoming_offset = first_offset + messages
        return row_id, first_offset

    @property
    def mark(self) -> tuple[int, int, int]:
        """Where it stands, for :meth:`put_back`."""
        return self._timestamp, self._seq_id, self.upcoming_offset

    def put_back(self, mark: tuple[int, int, int]) -> None:
        """Take back what was handed out since: nobody has seen it, and no hole is left."""
        self._timestamp, self._seq_id, self.upcoming_offset = mark

    @property
    def last_timestamp(self) -> int:
        """The highest timestamp handed out so far, or the floor."""
        return self._timestamp
