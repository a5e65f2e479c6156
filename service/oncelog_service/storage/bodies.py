"""Encodes the bodies of messages, for rows of the Message Table and of the Payload Table alike.

What a message says before its payload is alike in all messages of a request but for numbers that rise by one. So 1,000 of these
texts are one template, repeated, in which the few bytes that differ are set for all by one assignment each; to join each from its
parts takes three times as long.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from operator import add
from typing import Any, TypeAlias, overload

from oncelog.wire.avro_parts import (
    NULL_BRANCH,
    VALUE_BRANCH,
    encode_length,
    encode_long,
    encode_long_run,
    encode_longs,
    encode_string,
    encode_tails,
)
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.runs import Bodies

Part: TypeAlias = bytes | int | Sequence[bytes]
"""Of all texts the same bytes; an Avro ``long``, at least 0, that rises by one from each text to the next; or bytes
of each, which do not fall and have one size."""

_NO_TAIL = NULL_BRANCH * 3
"""No key, no properties, no ttl."""
_FEW = 40
"""Texts up to which joining them is faster."""
_TEMPLATES = 4_000
"""Texts in one template: where a number has a byte more within them, they are joined one by one."""
_AT_ONCE = 10_000
"""Bodies that are joined when they are encoded, 4 ms; of more each when it is laid, which the writer's thread does (runs.py)."""


def encode_few(columns: Columns, before: bytes, ids: Sequence[bytes], behind: bytes, first: int) -> Bodies | None:
    """As :func:`encode_bodies` of an id between two constants and a number from ``first`` on, of a few messages that have nothing
    but payloads, and perhaps a producer and sequence ids that leave nothing out. None: they are others."""
    payloads, sequence_ids, producer = columns.payloads, columns.sequence_ids, columns.producer
    count = len(payloads)
    if columns.keys is not None or columns.properties is not None or columns.ttls is not None or count > _FEW:
        return None
    named = NULL_BRANCH if producer is None else _named(producer)
    if count == 1:
        payload = payloads[0]
        number = NULL_BRANCH if sequence_ids is None else VALUE_BRANCH + encode_long(sequence_ids[0])
        head = b"".join((before, ids[0], behind, encode_long(first), named, number, _NO_TAIL))
        body = head + encode_length(len(payload)) + payload
        return Bodies([body], [2 * len(head)], len(body))
    if sequence_ids is None:
        named, numbers = named + NULL_BRANCH, [b""] * count
    elif sequence_ids[-1] - sequence_ids[0] == count - 1:
        named, numbers = named + VALUE_BRANCH, encode_long_run(sequence_ids[0], count)
    else:
        return None
    offsets = encode_long_run(first, count)
    heads = [
        b"".join((before, id_, behind, offset, named, number, _NO_TAIL))
        for id_, offset, number in zip(ids, offsets, numbers, strict=True)
    ]
    place = len(heads[0])
    if place != len(heads[-1]):
        return None
    bodies = [head + encode_length(len(payload)) + payload for head, payload in zip(heads, payloads, strict=True)]
    sizes = [*map(len, bodies)]
    size = sizes[0]
    return Bodies(bodies, [2 * place], size) if sizes.count(size) == count else Bodies(bodies, [2 * place], 0, sizes)


@lru_cache(1_024)
def _named(producer: str) -> bytes:
    return VALUE_BRANCH + encode_string(producer)


def encode_bodies(columns: Columns, *before: Part) -> Bodies:
    """Encodes a body for each message, in the same order: what stands before its fields, these, and its payload."""
    payloads, ids, tails = columns.payloads, columns.sequence_ids, _tails(columns)
    named = NULL_BRANCH if columns.producer is None else _named(columns.producer)
    head: list[Part] = [*before, named + (NULL_BRANCH if ids is None else VALUE_BRANCH)]
    apart: list[Sequence[bytes]] = []
    """What of a message stands between that and the length of its payload, where it is not as in the others."""
    if ids is not None and ids[-1] - ids[0] == len(ids) - 1:  # they rise strictly, so they leave nothing out
        head.append(ids[0])
    elif ids is not None:
        apart.append(encode_longs(ids))
    if apart or tails is not None:
        apart.append(tails or [_NO_TAIL] * len(payloads))
    else:
        head.append(_NO_TAIL)

    sizes = [*map(len, payloads)]
    lengths = {size: encode_length(size) for size in {*sizes}}
    length = b"" if apart or len(lengths) > 1 else lengths[len(payloads[0])]
    heads = texts(len(payloads), *head, length)
    behind = [] if length else [[*map(lengths.__getitem__, sizes)]]
    parts = heads, *apart, *behind, payloads
    few = len(payloads) <= _AT_ONCE
    bodies: Sequence[bytes] = [*map(b"".join, zip(*parts, strict=False))] if few else Joined(*parts)
    if not apart and len(heads[0]) == len(heads[-1]):  # the numbers in them rise; and a ttl stands apart
        place = len(heads[0]) - len(length)
        if length:
            return Bodies(bodies, [2 * place], len(bodies[0]))
        whole = {size: place + len(encoded) + size for size, encoded in lengths.items()}
        return Bodies(bodies, [2 * place], 0, [*map(whole.__getitem__, sizes)])
    places = [size - len(length) for size in map(sum, zip(*(map(len, each) for each in (heads, *apart)), strict=True))]
    ttls: Iterable[int | None] = repeat(None) if columns.ttls is None else columns.ttls
    shapes = [2 * place + (ttl is not None) for place, ttl in zip(places, ttls, strict=False)]
    behind_place = {size: len(encoded) + size for size, encoded in lengths.items()}
    return Bodies(bodies, shapes, 0, [*map(add, places, map(behind_place.__getitem__, sizes))])


class Joined(Sequence[bytes]):
    """Texts side by side with those of other columns, each joined when it is asked for."""

    __slots__ = ("_columns",)

    def __init__(self, *columns: Sequence[bytes]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, int):
            return b"".join(column[at] for column in self._columns)
        return [*map(b"".join, zip(*(column[at] for column in self._columns), strict=False))]


def _tails(columns: Columns) -> Sequence[bytes] | None:
    """What stands between sequence id and payload of each message; None: nothing."""
    if all(each is None for each in (columns.keys, columns.properties, columns.ttls)):
        return None
    return columns.tails or encode_tails(len(columns.payloads), columns.keys, columns.properties, columns.ttls)


def texts(count: int, *parts: Part) -> Sequence[bytes]:
    """So many texts, each made of these parts, one after the other."""
    if count == 1:
        return [b"".join(map(_first, parts))]
    if count > _TEMPLATES:
        return [text for at in range(0, count, _TEMPLATES) for text in texts(*_slice(parts, at, min(count, at + _TEMPLATES)))]
    at_once = _at_once(count, parts) if count > _FEW else None
    return at_once or [*map(b"".join, zip(*(_each(part, count) for part in parts), strict=False))]


def _slice(parts: Sequence[Part], begin: int, end: int) -> list[Any]:
    """How many, and what of these parts, some of the texts are made of."""
    some = (each if isinstance(each, bytes) else each + begin if isinstance(each, int) else each[begin:end] for each in parts)
    return [end - begin, *some]


def _first(part: Part) -> bytes:
    if isinstance(part, bytes):
        return part
    return encode_long(part) if isinstance(part, int) else part[0]


def _each(part: Part, count: int) -> Iterable[bytes]:
    if isinstance(part, bytes):
        return repeat(part, count)
    return encode_long_run(part, count) if isinstance(part, int) else part


def _at_once(count: int, parts: Sequence[Part]) -> Sequence[bytes] | None:
    """None where the texts are not all of one size: now and then a number has a byte more."""
    firsts = [*map(_first, parts)]
    template = b"".join(firsts)
    size, at = len(template), 0
    out = bytearray(template * count)
    for part, first in zip(parts, firsts, strict=True):
        columns: Iterable[tuple[int, bytes]] = ()
        if isinstance(part, int):
            if len(encode_long(part + count - 1)) != len(first):
                return None
            columns = _rising_columns(part, count, len(first))
        elif not isinstance(part, bytes):
            columns = _columns(part, len(first))
        for index, column in columns:
            out[at + index :: size] = column
        at += len(first)
    return struct.unpack(f"{size}s" * count, out)


def _columns(part: Sequence[bytes], size: int) -> Iterator[tuple[int, bytes]]:
    """Index → that byte of each text, where it is not the same in all."""
    joined, first, last = b"".join(part), part[0], part[-1]
    alike = next((index for index in range(size) if first[index] != last[index]), size)
    for index in range(alike, size):
        yield index, joined[index::size]


def _rising_columns(first: int, count: int, size: int) -> Iterator[tuple[int, bytes]]:
    """The same of numbers that rise by one. The lowest byte rises by two, as its lowest bit is the sign."""
    end, more = first + count, 0x80 if size > 1 else 0
    yield 0, (_LOW[more] * (count // 64 + 2))[first & 63 : (first & 63) + count]
    for index in range(1, size):
        shift, more = 7 * index - 1, 0x80 if index < size - 1 else 0
        if first >> shift == (end - 1) >> shift:
            return
        pieces = [
            bytes([value & 0x7F | more]) * (min(end, value + 1 << shift) - max(first, value << shift))
            for value in range(first >> shift, ((end - 1) >> shift) + 1)
        ]
        yield index, b"".join(pieces)


_LOW = {more: bytes(range(more, more + 0x80, 2)) for more in (0, 0x80)}
"""Every lowest byte, of numbers of one byte and of those of more."""
