"""Avro's smallest encodings, for where a record is put together from parts that are already encoded, or cut into them.

A poll answers rows whose bytes were encoded once, when they were published; fastavro would build a dict per message and cost
three times as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

NULL_BRANCH = b"\x00"
VALUE_BRANCH = b"\x02"
"""The branch of ``["null", X]`` that is taken, before the value itself."""


def encode_long(value: int) -> bytes:
    """Avro's ``long``: zigzag, then 7 bits a byte, the lowest first."""
    return _LONGS[value] if 0 <= value < _KNOWN else encode_varint((value << 1) ^ (value >> 63))


def encode_varint(rest: int) -> bytes:
    """Seven bits a byte, the lowest first, the high bit set on all but the last."""
    if 0x4000 <= rest < 0x200000:  # places in a log of some length
        return bytes((rest & 0x7F | 0x80, rest >> 7 & 0x7F | 0x80, rest >> 14))
    if 0x200000 <= rest < 0x10000000:
        return bytes((rest & 0x7F | 0x80, rest >> 7 & 0x7F | 0x80, rest >> 14 & 0x7F | 0x80, rest >> 21))
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_KNOWN = 4_096
_LONGS = [encode_varint(value << 1) for value in range(_KNOWN)]
"""The smallest: lengths and counts, mostly."""


def encode_optional_long(value: int | None) -> bytes:
    """Avro's ``["null", "long"]``."""
    return NULL_BRANCH if value is None else VALUE_BRANCH + encode_long(value)


def decode_long(data: bytes, at: int) -> tuple[int, int]:
    """The ``long`` that begins at ``at``, and where it ends. Raises IndexError when the bytes end first."""
    shift = value = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


_LOW = [bytes([value * 2 | 0x80]) for value in range(64)]


def encode_long_run(start: int, count: int) -> list[bytes]:
    """``start, start + 1, …`` (all ≥ 0), each as a ``long``.

    64 neighbours share all but their first byte, so this costs a third of encoding each one.
    """
    if count == 1:
        return [encode_long(start)]
    if start + count <= 64:
        return [bytes([value * 2]) for value in range(start, start + count)]
    out: list[bytes] = []
    value, stop = start, start + count
    while value < stop:
        upto = min(stop, (value | 63) + 1)
        if value < 64:
            out += [bytes([low * 2]) for low in range(value, upto)]
        else:
            high = encode_varint(value >> 6)
            out += [low + high for low in _LOW[value & 63 : (upto - 1 & 63) + 1]]
        value = upto
    return out


def encode_longs(values: Iterable[int]) -> list[bytes]:
    """Each as a ``long``. Neighbours share all but their first byte, so this costs a fifth of encoding each one."""
    highs: dict[int, bytes] = {}
    out: list[bytes] = []
    for value in values:
        if value < 64:
            out.append(encode_long(value))
            continue
        high = highs.get(value >> 6)
        if high is None:
            high = highs[value >> 6] = encode_varint(value >> 6)
        out.append(_LOW[value & 63] + high)
    return out


def encode_length(size: int) -> bytes:
    """The length before ``bytes`` and ``string``."""
    return _LONGS[size] if size < _KNOWN else encode_long(size)


def encode_bytes(value: bytes) -> bytes:
    """Avro's ``bytes``."""
    return encode_length(len(value)) + value


def encode_string(value: str) -> bytes:
    """Avro's ``string``."""
    return encode_bytes(value.encode())


def encode_map(value: Mapping[str, str]) -> bytes:
    """Avro's ``map`` of strings, as one block."""
    if not value:
        return b"\x00"
    items = b"".join(encode_string(key) + encode_string(text) for key, text in value.items())
    return encode_long(len(value)) + items + b"\x00"


def encode_tails(
    count: int,
    keys: Iterable[bytes | None] | None,
    properties: Iterable[Mapping[str, str] | None] | None,
    ttls: Iterable[int | None] | None,
) -> list[bytes]:
    """The fields of a ``Message`` between its sequence id and its payload, of ``count`` messages."""
    nothing = [None] * count
    return [
        (NULL_BRANCH if key is None else VALUE_BRANCH + encode_bytes(key))
        + (NULL_BRANCH if each is None else VALUE_BRANCH + encode_map(each))
        + (NULL_BRANCH if ttl is None else VALUE_BRANCH + encode_long(ttl))
        for key, each, ttl in zip(keys or nothing, properties or nothing, ttls or nothing, strict=False)
    ]


def encode_array(items: Iterable[bytes], count: int) -> list[bytes]:
    """The parts of an Avro ``array`` of ``count`` items that are already encoded, as one block; join them."""
    return [encode_long(count), *items, b"\x00"] if count else [b"\x00"]
