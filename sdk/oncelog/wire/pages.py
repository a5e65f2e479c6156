"""The messages of a page, cut out of the bytes of an answer, each decoded when it is looked at. Pure.

A dict for each message is most of what a reader of small messages would cost, and most readers look at the payload alone. So a
page is walked along once. That finds where each message and its payload begin, and that every byte is well-formed: what was found
so never fails later. Neighbours are alike: offsets mostly follow on each other; producer, key and properties are often those of
the message before. So most of it is a comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from oncelog.errors import InvalidRequest
from oncelog.message_id import SIZE
from oncelog.wire.avro_parts import VALUE_BRANCH, decode_long, encode_length, encode_long_run

_ID_LENGTH = encode_length(SIZE)[0]
_OFFSET_AT = 1 + SIZE
_NOTHING = b"\x00\x00\x00"
"""No key, no properties, no ttl."""
_AHEAD = 256
"""Heads that are foretold at a time."""
_LEAST = _OFFSET_AT + 7
"""Bytes of the smallest message."""
_NONE = b"\xff"
"""What no head and no tail begins with."""
_MAX_LONG = 2**63 - 1
_LONG_BYTES = 10
"""Of the longest number of 64 bits."""
_LAST = 0x7F
"""A number's last byte is not above it."""
_LONG_OR_ODD = 0x81
"""Of a length's first byte: it has another one, or is negative."""
_VALUE = VALUE_BRANCH[0]
_PAUSE = 4
"""Messages behind what was foretold and came otherwise: where sequence ids leave gaps it would be made in vain for each."""


class Rest(NamedTuple):
    """What a message says between its offset and its payload."""

    producer: str | None
    sequenceId: int | None  # noqa: N815  # as the schema calls it
    key: bytes | None
    properties: dict[str, str] | None
    ttl: int | None


class Record(Mapping[str, Any]):
    """A message, as a mapping of the fields that the schema names. It holds its own bytes and nothing else of its page."""

    __slots__ = ("_payload_at", "_raw", "_rest")

    def __init__(self, raw: bytes, payload_at: int) -> None:
        """``raw``: the message in Avro, known to be well-formed; ``payload_at``: where the payload begins in it."""
        self._raw = raw
        self._payload_at = payload_at
        self._rest: Rest | None = None

    def __getitem__(self, name: str) -> Any:
        if name == "payload":
            return self._raw[self._payload_at :]
        if name == "id":
            return self._raw[1:_OFFSET_AT]
        if name == "offset":
            return decode_long(self._raw, _OFFSET_AT)[0]
        if name not in Rest._fields:
            raise KeyError(name)
        if self._rest is None:
            self._rest = _rest(self._raw)
        return getattr(self._rest, name)

    def __iter__(self) -> Iterator[str]:
        return iter(("id", "offset", *Rest._fields, "payload"))

    def __len__(self) -> int:
        return 3 + len(Rest._fields)

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, Record) and self._raw == other._raw) or Mapping.__eq__(self, other)

    __hash__ = None  # type: ignore[assignment]  # as no mapping that can be compared has one

    def __repr__(self) -> str:
        return repr(dict(self))


class Page(list[Record]):
    """The messages of a page, and what is known of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[bytes] = []
        self.offsets: list[range] = []
        """In runs of those that follow on each other."""
        self.any_ttl = False
        """Whether a message has a ttl of its own."""


def read_page(body: bytes, most: int | None = None) -> tuple[Page, int]:
    """Read the array of messages that a body begins with. Return where it ends, too.

    Raises InvalidRequest: it is none, or has more than ``most`` messages; no more are made then.
    """
    page, at = Page(), 0
    try:
        while True:
            count, at = _long(body, at)  # raises IndexError behind the body
            if count == 0:
                return page, at
            # No service of ours writes the other form of a block, with its size.
            left = (len(body) - at) // _LEAST if most is None else most - len(page)
            if not 0 < count <= left:
                raise InvalidRequest(f"the body has more than {len(page) + left} messages")
            at = _read_block(page, body, at, count)
    except (IndexError, UnicodeDecodeError) as error:
        raise _not_avro() from error


def _read_block(page: Page, body: bytes, at: int, count: int) -> int:
    """Cut so many messages that begin at ``at``; where they end, which may be behind the body.

    Raises InvalidRequest, IndexError, UnicodeDecodeError.
    """
    begins, payloads = list[int](), list[int]()
    heads, tail = _Heads(count), _NONE
    ahead: Iterator[bytes] = iter(())
    for number in range(count):
        if body[at] != _ID_LENGTH:
            raise InvalidRequest(f"the answer has a message whose id has other than {SIZE} bytes")
        begins.append(at)
        head, end = next(ahead, _NONE), at + _OFFSET_AT
        if body.startswith(head, end):
            end += len(head)
        else:
            ahead, end = heads.read(page, body, end, number, head is not _NONE)
        if body.startswith(tail, end):
            end += len(tail)
        else:
            begin, end = end, _end_of_tail(body, end, page)
            tail = body[begin:end]
        length = body[end]
        if length <= _LAST:
            end += 1
        elif (high := body[end + 1]) <= _LAST:
            length, end = length & _LAST | high << 7, end + 2
        else:
            length, end = _long(body, end)
            length <<= 1
        if length & 1 or length < 0:
            raise _not_avro()
        payloads.append(end - at)
        at = end + (length >> 1)
    heads.end_run(page, count)
    raws = [body[begin:end] for begin, end in pairwise((*begins, at))]
    page.ids += [raw[1:_OFFSET_AT] for raw in raws]
    page += map(Record, raws, payloads)
    return at


class _Heads:
    """Offset, producer and sequence id of a block's messages: what they are, and what they will be."""

    __slots__ = ("_base", "_count", "_fixed", "_known", "_pause", "_run", "_size")

    def __init__(self, count: int) -> None:
        self._count = count
        self._base, self._run = -count, 0
        """Offset of the first message of the block, as those of the last run count; which message began that run."""
        self._fixed = b""
        """Producer, and whether there is a sequence id, of the message before."""
        self._known = {b"\x00\x00", b"\x00\x02"}
        """What was found well-formed of these."""
        self._size = 1
        """How many were foretold."""
        self._pause = 0
        """For so many messages nothing is foretold."""

    def read(self, page: Page, body: bytes, at: int, number: int, is_other: bool) -> tuple[Iterator[bytes], int]:
        """Read what was not foretold, or otherwise (``is_other``). Return what is foretold now, and where this ends."""
        offset, begin = _long(body, at)
        end = self._end_of_fixed(body, begin)
        fixed, numbered_at = body[begin:end], end
        if fixed[-1]:
            while body[end] > _LAST:
                end += 1
            end += 1
            if end - numbered_at >= _LONG_BYTES:
                _long(body, numbered_at)  # which refuses more than 64 bits
        if offset < 0:
            raise InvalidRequest(f"the answer has the offset {offset}")
        follows = offset == self._base + number
        if not follows:
            self.end_run(page, number)
            self._base, self._run = offset - number, number
        if is_other:
            self._size, self._pause = 1, _PAUSE
        is_like, self._fixed = follows and fixed == self._fixed, fixed
        if self._pause or not is_like:
            self._pause = max(0, self._pause - 1)
            return iter(()), end
        self._size = min(4 * self._size, _AHEAD)
        sequence_id = _long(body, numbered_at)[0] if fixed[-1] else None
        return _foretold(offset, fixed, sequence_id, min(self._size, self._count - number - 1)), end

    def end_run(self, page: Page, number: int) -> None:
        """The messages before this one have offsets that follow on each other."""
        first, stop = self._base + self._run, self._base + number
        if 0 <= first < stop:
            page.offsets.append(range(first, stop))

    def _end_of_fixed(self, body: bytes, at: int) -> int:
        length = body[at + 1] if body[at] == _VALUE else 0
        end = at + 2 if not body[at] else at + 3 + (length >> 1)
        if length <= _LAST and body[at:end] in self._known:
            return end
        producer, end = _optional(body, at)
        if producer is not None:
            producer.decode()
        if body[end] not in (0, _VALUE):
            raise _not_avro()
        self._known.add(body[at : end + 1])
        return end + 1


def _foretold(offset: int, fixed: bytes, sequence_id: int | None, count: int) -> Iterator[bytes]:
    """What the heads of so many messages are, if they go on as this one."""
    if sequence_id is None:
        return iter([each + fixed for each in encode_long_run(offset + 1, min(count, _MAX_LONG - offset))])
    if sequence_id < 0:
        return iter(())
    count = min(count, _MAX_LONG - offset, _MAX_LONG - sequence_id)
    both = zip(encode_long_run(offset + 1, count), encode_long_run(sequence_id + 1, count), strict=True)
    return iter([each + fixed + number for each, number in both])


def _end_of_tail(body: bytes, at: int, page: Page) -> int:
    """Where key, properties and ttl end. Mostly there is nothing, or a short key alone."""
    length = body[at + 1]
    if body[at] == _VALUE and not length & _LONG_OR_ODD:
        at += 2 + (length >> 1)
        if body.startswith(_NOTHING[1:], at):
            return at + 2
    else:
        _, at = _optional(body, at)
    if body[at] == _VALUE:
        at = _end_of_map(body, at + 1)
    elif body[at]:
        raise _not_avro()
    else:
        at += 1
    ttl, at = _optional_long(body, at)
    page.any_ttl |= ttl is not None
    return at


def _end_of_map(body: bytes, at: int) -> int:
    """Where a map of strings ends, each of which is UTF-8."""
    count, at = _long(body, at)
    while count:
        if count < 0:
            raise _not_avro()
        for _ in range(2 * count):
            length = body[at]
            if length & _LONG_OR_ODD:
                text, at = _bytes(body, at)
            else:
                begin, at = at + 1, at + 1 + (length >> 1)
                text = body[begin:at]
            if not text.isascii():
                text.decode()
        count, at = _long(body, at)
    return at


def _tail(body: bytes, at: int) -> tuple[bytes | None, dict[str, str] | None, int | None, int]:
    """Key, properties and ttl, and where they end."""
    key, at = _optional(body, at)
    properties: dict[str, str] | None = None
    if body[at] == _VALUE:
        properties = {}
        count, at = _long(body, at + 1)
        while count:
            if count < 0:
                raise _not_avro()
            for _ in range(count):
                name, at = _bytes(body, at)
                value, at = _bytes(body, at)
                properties[name.decode()] = value.decode()
            count, at = _long(body, at)
    elif body[at]:
        raise _not_avro()
    else:
        at += 1
    ttl, at = _optional_long(body, at)
    return key, properties, ttl, at


def _rest(raw: bytes) -> Rest:
    _, at = decode_long(raw, _OFFSET_AT)
    producer, at = _optional(raw, at)
    sequence_id, at = _optional_long(raw, at)
    key, properties, ttl, _ = _tail(raw, at)
    return Rest(None if producer is None else producer.decode(), sequence_id, key, properties, ttl)


def _optional(body: bytes, at: int) -> tuple[bytes | None, int]:
    """A ``["null", "bytes"]`` or ``["null", "string"]``, and where it ends."""
    if body[at] == _VALUE:
        return _bytes(body, at + 1)
    if body[at]:
        raise _not_avro()
    return None, at + 1


def _optional_long(body: bytes, at: int) -> tuple[int | None, int]:
    if body[at] == _VALUE:
        return _long(body, at + 1)
    if body[at]:
        raise _not_avro()
    return None, at + 1


def _bytes(body: bytes, at: int) -> tuple[bytes, int]:
    length, at = _long(body, at)
    if not 0 <= length <= len(body) - at:
        raise _not_avro()
    return body[at : at + length], at + length


def _long(body: bytes, at: int) -> tuple[int, int]:
    """A ``long``, and where it ends: one of more than 64 bits would take as much time as it has bytes, squared."""
    value, end = decode_long(body[at : at + _LONG_BYTES], 0)
    if not -(2**63) <= value < 2**63:
        raise _not_avro()
    return value, at + end


def _not_avro() -> InvalidRequest:
    return InvalidRequest("the body is not an Avro ConsumeResponse: it is cut short or not of that schema")
