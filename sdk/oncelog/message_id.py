"""Message ids: 20 bytes that sort as every consumer sees the messages.

Layout (the TMS page's), big-endian::

    0   8  publish_timestamp   i64, ms since 1970: when the service accepted the message; only rises within a topic
    8   2  seq_id              u16, counts within one millisecond
    10  8  write_timestamp     i64, ms, when the payload was stored; 0 unless it lies in the Payload Table
    18  2  payload_seq_id      u16, 0 unless it lies in the Payload Table
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from functools import total_ordering
from typing import ClassVar

_LAYOUT = struct.Struct(">qHqH")
SIZE = _LAYOUT.size
"""20: the size of a message id in bytes."""


@total_ordering
class MessageId:
    """The place of one message in its topic: immutable, hashable, picklable, ordered as the log is.

    ``str(message_id)`` is 40 hex digits and :meth:`parse` reads them back; ``bytes(message_id)`` is the wire form.
    """

    __slots__ = ("_raw",)
    _raw: bytes

    NONE: ClassVar[MessageId]
    """No message's id, 20 zero bytes: as the expected last id, that nothing was ever published. It sorts before every other."""

    def __init__(self, publish_timestamp: int, seq_id: int, write_timestamp: int = 0, payload_seq_id: int = 0) -> None:
        """The four fields. Raises ValueError when one does not fit its size."""
        try:
            raw = _LAYOUT.pack(publish_timestamp, seq_id, write_timestamp, payload_seq_id)
        except struct.error as error:
            raise ValueError(
                f"not a message id: {publish_timestamp}, {seq_id}, {write_timestamp}, {payload_seq_id}: timestamps are "
                "signed 64-bit milliseconds, the counters 0 to 65535"
            ) from error
        object.__setattr__(self, "_raw", raw)

    @classmethod
    def from_bytes(cls, raw: bytes) -> MessageId:
        """The id with these 20 bytes. Raises ValueError for any other length."""
        if len(raw) != SIZE:
            raise ValueError(f"a message id has {SIZE} bytes, not {len(raw)}")
        self = object.__new__(cls)
        object.__setattr__(self, "_raw", bytes(raw))
        return self

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """The id with this text form. Raises ValueError unless it is 40 hex digits, TypeError for no text."""
        if not isinstance(text, str):
            raise TypeError(f"the text form of a message id is a str, not {text!r}")
        if len(text) != 2 * SIZE or not all(digit in "0123456789abcdefABCDEF" for digit in text):
            raise ValueError(f"the text form of a message id is {2 * SIZE} hex digits, not {text[:100]!r}")
        return cls.from_bytes(bytes.fromhex(text))

    @property
    def publish_timestamp(self) -> int:
        """Milliseconds since 1970 at which the service accepted the message."""
        return int.from_bytes(self._raw[:8], "big", signed=True)

    @property
    def seq_id(self) -> int:
        """Counter within the millisecond of :attr:`publish_timestamp`."""
        return int.from_bytes(self._raw[8:10], "big")

    @property
    def write_timestamp(self) -> int:
        """Milliseconds at which the payload was stored under its transaction, else 0."""
        return int.from_bytes(self._raw[10:18], "big", signed=True)

    @property
    def payload_seq_id(self) -> int:
        """Counter within the millisecond of :attr:`write_timestamp`, else 0."""
        return int.from_bytes(self._raw[18:], "big")

    @property
    def published_at(self) -> datetime:
        """:attr:`publish_timestamp` as an aware UTC datetime."""
        return datetime.fromtimestamp(self.publish_timestamp / 1000, UTC)

    def __bytes__(self) -> bytes:
        return self._raw

    def __str__(self) -> str:
        return self._raw.hex()

    def __repr__(self) -> str:
        return f"MessageId.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self._raw == other._raw if isinstance(other, MessageId) else NotImplemented

    def __lt__(self, other: MessageId) -> bool:
        return self._raw < other._raw if isinstance(other, MessageId) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._raw)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a MessageId is immutable; {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a MessageId is immutable; {name} cannot be deleted")

    def __reduce__(self) -> tuple[object, tuple[bytes]]:
        return MessageId.from_bytes, (self._raw,)


MessageId.NONE = MessageId.from_bytes(bytes(SIZE))
