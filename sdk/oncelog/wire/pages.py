"""The messages of a page, cut out of the bytes of an answer, each decoded when it is looked at. Pure.

A dict for each message is most of what a reader of small messages would cost, and most readers look at the payload alone. So a
page is walked along once. That finds where each message and its payload begin, and that every byte is well-formed: what was found
so never fails later. Neighbours are alike: offsets mostly follow on each other; producer, key and properties are often those of
the message before. So most of it is a comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from oncelog.errors import InvalidRequest
from oncelog.message_id import SIZE
from oncelog.wire.avro_parts import VALUE_BRANCH, decode_long, encode_length, encode_long_run
from oncelog.wire.avro_strict import Allowance, NotAvro, compile_reader, read_long

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
_LAST = 0x7F
"""A number's last byte is not above it."""
_LONG_OR_ODD = 0x81
"""Of a length's first byte: it has another one, or is negative."""
_VALUE = VALUE_BRANCH[0]
_PAUSE = 4
"""Messages behind what was foretold and came otherwise: where sequence ids leave gaps it would be made in vain for each."""


_REST: dict[str, Any] = {
    "producer": ["null", "string"],
    "sequenceId": ["null", "long"],
    "key": ["null", "bytes"],
    "properties": ["null", {"type": "map", "values": "string"}],
    "ttl": ["null", "long"],
}
"""What a message says between its offset and its payload, and as what."""
_FIELDS = ("id", "offset", *_REST, "payload")
_read = {name: compile_reader(schema) for name, schema in _REST.items()}
_read_rest = compile_reader({"type": "record", "fields": [{"name": name, "type": schema} for name, schema in _REST.items()]})


class Record(Mapping[str, Any]):
    """A message, as a mapping of the fields that the schema names. It holds its own bytes and nothing else of its page."""

    __slots__ = ("_payload_at", "_raw", "_rest")

    def __init__(self, raw: bytes, payload_at: int) -> None:
        """``raw``: the message in Avro, known to be well-formed; ``payload_at``: where the payload begins in it."""
        self._raw = raw
        self._payload_at = payload_at
        self._rest: dict[str, Any] | None = None

    def __getitem__(self, name: str) -> Any:
        if name == "payload":
            return self._raw[self._payload_at :]
        if name == "id":
            return self._raw[1:_OFFSET_AT]
        if name == "offset":
            return decode_long(self._raw, _OFFSET_AT)[0]
        if self._rest is None:
            self._rest, _ = _read_rest(self._raw, decode_long(self._raw, _OFFSET_AT)[1], Allowance())
        return self._rest[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_FIELDS)

    def __len__(self) -> int:
        return len(_FIELDS)

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
            count, at = read_long(body, at)  # raises IndexError behind the body
            if count == 0:
                return page, at
            # No service of ours writes the other form of a block, with its size.
            left = (len(body) - at) // _LEAST if most is None else most - len(page)
            if not 0 < count <= left:
                raise InvalidRequest(f"the body has more than {len(page) + left} messages")
            at = _read_block(page, body, at, count)
    except (IndexError, UnicodeDecodeError, NotAvro) as error:
        raise InvalidRequest("the body is not an Avro ConsumeResponse: it is cut short or not of that schema") from error


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
            length, end = read_long(body, end)
            length <<= 1
        if length & 1 or length < 0:
            raise NotAvro("a length in it is negative")
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
        offset, begin = read_long(body, at)
        end = self._end_of_fixed(body, begin)
        fixed, sequence_id = body[begin:end], None
        if fixed[-1]:
            sequence_id, end = read_long(body, end)
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
        _, end = _read["producer"](body, at, Allowance())
        if body[end] not in (0, _VALUE):
            raise NotAvro("a sequence id in it is neither there nor not")
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
        _, at = _read["key"](body, at, Allowance())
    _, at = _read["properties"](body, at, Allowance())
    ttl, at = _read["ttl"](body, at, Allowance())
    page.any_ttl |= ttl is not None
    return at
