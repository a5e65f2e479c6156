"""What this process has written to a database that several share, so that it notices when that has gone back in time.

Each write of an instance sets a row of its own too, in the same transaction, to one more than before::

    key     02 · the URL at which the instance answers
    value   how many writes an instance has made at this URL, u64, big-endian · checksum of both

A standby that takes over, a dump or a volume that is put back under a process that lives: what it has been told is written is
then not there, and the row says so, whatever was in the newest writes. A server that has lost nothing has the row as it was,
whichever it is. The row only rises; the next process at the URL counts on from there. Another incarnation (incarnation.py)
counts anew.
"""

from __future__ import annotations

from collections.abc import Callable

from oncelog_service.storage.checksum import SIZE, matches, with_checksum
from oncelog_service.storage.incarnation import KEY, number_in
from oncelog_service.storage.port import StoreBehind, StoreDamaged, Table

_PREFIX = b"\x02"
_INCARNATION = Table.STORE_ID.value + KEY


class Written:
    """Counts over all openings of the database. On the thread that writes, but for :meth:`check`."""

    def __init__(self) -> None:
        self.name = ""
        """The URL; empty: what is written is not counted."""
        self._count: int | None = None
        """Of writes that are certainly there; None: none was made or looked for yet."""
        self._incarnation = 0
        """That they belong to."""

    def named(self, url: str) -> None:
        """The process answers at this URL from now on."""
        if url != self.name:
            self.name, self._count = url, None

    def next(self) -> dict[bytes, bytes]:
        """The row that goes with the next write, by its key."""
        if self._count is None:
            return {}
        return {self._key: self._value(self._count + 1)}

    @property
    def newest(self) -> tuple[bytes, bytes] | None:
        """The row of the newest write that is certainly there; None: there is none. No other write is to be made without it."""
        return (self._key, self._value(self._count)) if self._count else None

    def made(self) -> None:
        """That write is there."""
        if self._count is not None:
            self._count += 1

    def check(self, value_of: Callable[[bytes], bytes | None]) -> None:
        """Raises StoreBehind: it is not there any more; StoreDamaged. ``value_of``: reads a row."""
        if not self.name:
            return
        known = self._count  # before it is asked: it may rise meanwhile
        incarnation = number_in(value_of(_INCARNATION))  # before the row: what is found then is of no former one
        data = value_of(self._key)
        if data is not None and not matches(data, self._key):
            raise StoreDamaged(f"the row that counts the writes of {self.name} is damaged")
        found = 0 if data is None else int.from_bytes(data[:-SIZE], "big")
        if known is None or incarnation > self._incarnation:
            self._count, self._incarnation = found, incarnation
        elif found < known:
            raise StoreBehind(f"the last {known - found} writes of {self.name} are gone")
        elif incarnation < self._incarnation:
            raise StoreBehind(f"the incarnation that {self.name} has written to is gone")

    @property
    def _key(self) -> bytes:
        return _PREFIX + self.name.encode()

    def _value(self, count: int) -> bytes:
        return with_checksum(count.to_bytes(8, "big"), self._key)
