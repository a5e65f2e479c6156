"""Decodes Avro, strictly and within bounds: for bytes that anybody may have sent.

fastavro decodes first and leaves it to the caller to count; 8 MiB of empty maps are 4 million objects by then, made without
letting any other thread run. It also takes branch -1 for the last one and a number of 20 bytes. Here the count of each block is
held against what is left of the bytes and of the items allowed, before one of them is decoded; numbers have at most 64 bits,
branches one form; and other threads get their turns. It costs what fastavro does: what there is for each message has a loop of
its own.

A schema is compiled once, into functions from (bytes, place, allowance) to (value, next place).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

_LONG_BITS = 64
_INT = 2**31
MAX_ITEMS = 2**63
"""No bound but the bytes."""


class NotAvro(ValueError):
    """The bytes are not of the schema."""


class TooManyItems(Exception):
    """A body holds more items, in arrays and maps together, than it may."""


class Allowance:
    """Counts how many items of arrays and maps may still be decoded."""

    __slots__ = ("left",)

    def __init__(self, items: int = MAX_ITEMS) -> None:
        self.left = items

    def take(self, count: int) -> None:
        """Use up so many. Raises TooManyItems."""
        self.left -= count
        if self.left < 0:
            raise TooManyItems


Reader: TypeAlias = Callable[[bytes, int, Allowance], tuple[Any, int]]


def read_whole(reader: Reader, data: bytes, items: int) -> Any:
    """The value that is exactly these bytes. Raises NotAvro, TooManyItems."""
    try:
        value, at = reader(data, 0, Allowance(items))
    except IndexError as error:
        raise NotAvro("it is cut short") from error
    except UnicodeDecodeError as error:
        raise NotAvro("a string in it is not UTF-8") from error
    if at != len(data):
        raise NotAvro(f"{len(data) - at} bytes follow it")
    return value


def compile_reader(schema: Any, named: dict[str, Reader] | None = None) -> Reader:
    """Compile what decodes the schema. ``named``: what decodes the records that it has defined before."""
    known = {} if named is None else named
    if isinstance(schema, list):
        return _union([compile_reader(branch, known) for branch in schema])
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        reader = _record([(field["name"], compile_reader(field["type"], known)) for field in schema["fields"]])
        known[schema.get("name", "")] = reader
        return reader
    if kind == "enum":
        return _enum(schema["symbols"])
    if kind == "array":
        return _array(_HOT_ITEMS.get(str(schema["items"])) or _any_items(compile_reader(schema["items"], known)))
    if kind == "map":
        return _string_map if schema["values"] == "string" else _map(compile_reader(schema["values"], known))
    return _SIMPLE.get(kind) or known[kind]


# --- numbers


def read_long(data: bytes, at: int, _: Allowance | None = None) -> tuple[int, int]:
    """The number there, of at most 64 bits and in no more bytes than it takes. Raises NotAvro, IndexError."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value, shift = byte & 0x7F, 7
    at += 1
    while (byte := data[at]) >= 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift >= _LONG_BITS:
            raise NotAvro("a number in it has more than 64 bits")
    value |= byte << shift
    if value >> _LONG_BITS or not byte:
        raise NotAvro("a number in it is not encoded as Avro does")
    return (value >> 1) ^ -(value & 1), at + 1


def _int(data: bytes, at: int, _: Allowance) -> tuple[int, int]:
    value, at = read_long(data, at)
    if not -_INT <= value < _INT:
        raise NotAvro(f"{value} is no int")
    return value, at


def _boolean(data: bytes, at: int, _: Allowance) -> tuple[bool, int]:
    if data[at] > 1:
        raise NotAvro("a boolean in it is neither 0 nor 1")
    return data[at] == 1, at + 1


def _null(_: bytes, at: int, __: Allowance) -> tuple[None, int]:
    return None, at


# --- bytes


def _span(data: bytes, at: int) -> tuple[int, int]:
    """Find where bytes begin and end whose length is at ``at``. Raises NotAvro, IndexError."""
    size, at = read_long(data, at)
    if not 0 <= size <= len(data) - at:
        raise NotAvro("it is cut short")
    return at, at + size


def _bytes(data: bytes, at: int, _: Allowance) -> tuple[bytes, int]:
    start, end = _span(data, at)
    return data[start:end], end


def _string(data: bytes, at: int, _: Allowance) -> tuple[str, int]:
    start, end = _span(data, at)
    return data[start:end].decode(), end


# --- what holds others


def _block(data: bytes, at: int, allowance: Allowance) -> tuple[int, int]:
    """Read how many items a block has; 0 ends the array or the map. None of them is smaller than a byte."""
    count, at = read_long(data, at)
    if count < 0:  # its size in bytes follows, for whoever skips it
        count = -count
        size, at = read_long(data, at)
        if not 0 <= size <= len(data) - at:
            raise NotAvro("it is cut short")
    if count > len(data) - at:  # before one of them is made: a count is a few bytes of a stranger's
        raise NotAvro(f"{count} items cannot be in {len(data) - at} bytes")
    allowance.take(count)
    return count, at


Items: TypeAlias = Callable[[bytes, int, int, Allowance, list[Any]], int]
"""From (bytes, place, count, allowance), so many items into the list; the next place. One more byte follows them at least."""


def _array(items: Items) -> Reader:
    def read(data: bytes, at: int, allowance: Allowance) -> tuple[list[Any], int]:
        out: list[Any] = []
        while True:
            count, at = _block(data, at, allowance)
            if not count:
                return out, at
            at = items(data, at, count, allowance, out)

    return read


def _any_items(item: Reader) -> Items:
    def read(data: bytes, at: int, count: int, allowance: Allowance, out: list[Any]) -> int:
        for _ in range(count):
            value, at = item(data, at, allowance)
            out.append(value)
        return at

    return read


def _map(values: Reader) -> Reader:
    def read(data: bytes, at: int, allowance: Allowance) -> tuple[dict[str, Any], int]:
        out: dict[str, Any] = {}
        while True:
            count, at = _block(data, at, allowance)
            if not count:
                return out, at
            for _ in range(count):
                key, at = _string(data, at, allowance)
                out[key], at = values(data, at, allowance)

    return read


def _record(fields: list[tuple[str, Reader]]) -> Reader:
    def read(data: bytes, at: int, allowance: Allowance) -> tuple[dict[str, Any], int]:
        out = {}
        for name, field in fields:
            out[name], at = field(data, at, allowance)
        return out, at

    return read


def _union(readers: list[Reader]) -> Reader:
    by_byte = {number * 2: reader for number, reader in enumerate(readers)}

    def read(data: bytes, at: int, allowance: Allowance) -> tuple[Any, int]:
        reader = by_byte.get(data[at])
        if reader is None:
            raise _no_branch()
        return reader(data, at + 1, allowance)

    return read


def _enum(symbols: list[str]) -> Reader:
    def read(data: bytes, at: int, _: Allowance) -> tuple[str, int]:
        number, at = read_long(data, at)
        if not 0 <= number < len(symbols):
            raise NotAvro("a choice in it is none of those there are")
        return symbols[number], at

    return read


def _no_branch() -> NotAvro:
    return NotAvro("a union in it takes a branch that there is not")


# --- the hot loops: what a message brings. They read the numbers of one and two bytes themselves, which saves a call for each.
#
# A length that is negative, or too long, leads to a place behind the end. Another byte is always read after it, and is not there.

_BEYOND = 2**62
_HALF = tuple(_BEYOND if byte & 1 else (byte & 0x7F) >> 1 for byte in range(256))
"""The lower six bits of a length, by the first byte of it."""


def bytes_items(data: bytes, at: int, count: int, __: Allowance | None, out: list[bytes]) -> int:
    """So many ``bytes`` into the list; the next place. Raises NotAvro, IndexError."""
    append, half = out.append, _HALF
    for _ in range(count):
        first = data[at]
        if first < 0x80:
            start = at + 1
            at = start + half[first]
        elif 0 < (second := data[at + 1]) < 0x80:
            start = at + 2
            at = start + half[first] + (second << 6)
        else:
            start, at = _span(data, at)
        append(data[start:at])
    return at


def _optional_bytes_items(data: bytes, at: int, count: int, __: Allowance, out: list[bytes | None]) -> int:
    append, half = out.append, _HALF
    for _ in range(count):
        if data[at] == _VALUE:
            first = data[at + 1]
            if first < 0x80:
                start = at + 2
                at = start + half[first]
            else:
                start, at = _span(data, at + 1)
            append(data[start:at])
        else:
            at = _after_null(data, at)
            append(None)
    return at


def _long_items(data: bytes, at: int, count: int, __: Allowance, out: list[int]) -> int:
    append = out.append
    for _ in range(count):
        first = data[at]
        if first < 0x80:
            at += 1
            append((first >> 1) ^ -(first & 1))
        elif 0 < (second := data[at + 1]) < 0x80:
            at += 2
            append(((first & 0x7F | second << 7) >> 1) ^ -(first & 1))
        else:
            value, at = read_long(data, at)
            append(value)
    return at


def _string_map(data: bytes, at: int, allowance: Allowance) -> tuple[dict[str, str], int]:
    out: dict[str, str] = {}
    half = _HALF
    while data[at]:
        count, at = _block(data, at, allowance)
        for _ in range(count):
            first = data[at]
            if first < 0x80:
                start = at + 1
                at = start + half[first]
            else:
                start, at = _span(data, at)
            key = data[start:at].decode()
            first = data[at]
            if first < 0x80:
                start = at + 1
                at = start + half[first]
            else:
                start, at = _span(data, at)
            out[key] = data[start:at].decode()
    return out, at + 1


def _optional_items(item: Reader) -> Items:
    def read(data: bytes, at: int, count: int, allowance: Allowance, out: list[Any]) -> int:
        for _ in range(count):
            if data[at] == _VALUE:
                value, at = item(data, at + 1, allowance)
                out.append(value)
            else:
                at = _after_null(data, at)
                out.append(None)
        return at

    return read


_VALUE = 2
"""The branch of ``["null", X]`` that is no null."""


def _after_null(data: bytes, at: int) -> int:
    """Step over a null. Raises NotAvro where there is none."""
    if data[at]:
        raise _no_branch()
    return at + 1


_HOT_ITEMS: dict[str, Items] = {
    str(items): read
    for items, read in (
        ("bytes", bytes_items),
        (["null", "bytes"], _optional_bytes_items),
        ("long", _long_items),
        (["null", "long"], _optional_items(read_long)),
        (["null", {"type": "map", "values": "string"}], _optional_items(_string_map)),
    )
}
"""By the schema of an array's items."""
_SIMPLE: dict[str, Reader] = {
    "long": read_long,
    "int": _int,
    "boolean": _boolean,
    "null": _null,
    "bytes": _bytes,
    "string": _string,
}
