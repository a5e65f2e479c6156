"""Decodes requests in Avro, strictly and within bounds: for bytes that anybody may have sent.

fastavro decodes first and leaves it to the caller to count; 8 MiB of empty maps are 4 million objects by then, made without
letting any other thread run. It also takes branch -1 for the last one and a number of 20 bytes. Here the count of each block is
held against what is left of the bytes and of the items allowed, before one of them is decoded; numbers have at most 64 bits,
branches one form; and other threads get their turns. It costs what fastavro does: runs of bytes, which is what messages are, have
a loop of their own.

A schema is compiled once, into functions from (bytes, place, allowance) to (value, next place).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

_LONG_BITS = 64
_INT = 2**31


class NotAvro(ValueError):
    """The bytes are not of the schema."""


class TooManyItems(Exception):
    """A body holds more items, in arrays and maps together, than it may."""


class Allowance:
    """How many items of arrays and maps may still be decoded."""

    __slots__ = ("left",)

    def __init__(self, items: int) -> None:
        self.left = items

    def take(self, count: int) -> None:
        """Raises TooManyItems."""
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


def compile_reader(schema: Any) -> Reader:
    """What decodes the schema; definitions stand in the place of names."""
    if isinstance(schema, list):
        return _union(schema)
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(kind, dict | list):
        return compile_reader(kind)
    if kind == "record":
        return _record([(field["name"], compile_reader(field["type"])) for field in schema["fields"]])
    if kind == "enum":
        return _enum(schema["symbols"])
    if kind == "array":
        if schema["items"] in ("bytes", ["null", "bytes"]):
            return _byte_runs(schema["items"] != "bytes")
        return _array(compile_reader(schema["items"]))
    return _map(compile_reader(schema["values"])) if kind == "map" else _SIMPLE[kind]


# --- numbers


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """The number there, of at most 64 bits and in no more bytes than it takes. Raises NotAvro, IndexError."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= _LONG_BITS:
            raise NotAvro("a number in it has more than 64 bits")
    if value >> _LONG_BITS or not byte:
        raise NotAvro("a number in it is not encoded as Avro does")
    return (value >> 1) ^ -(value & 1), at + 1


def _long(data: bytes, at: int, _: Allowance) -> tuple[int, int]:
    return read_long(data, at)


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


def _bytes(data: bytes, at: int, _: Allowance) -> tuple[bytes, int]:
    size, at = read_long(data, at)
    end = at + size
    if not size >= 0 or end > len(data):
        raise NotAvro("it is cut short")
    return data[at:end], end


def _string(data: bytes, at: int, allowance: Allowance) -> tuple[str, int]:
    value, at = _bytes(data, at, allowance)
    return value.decode(), at


def _byte_runs(optional: bool) -> Reader:
    """Arrays of bytes, or of bytes and nulls: the hot loop. Lengths below 8 KiB are read here, which saves a call for each."""

    def read(data: bytes, at: int, allowance: Allowance) -> tuple[list[bytes | None], int]:
        out: list[bytes | None] = []
        append, length = out.append, len(data)
        while True:
            count, at = _block(data, at, allowance)
            if not count:
                return out, at
            for _ in range(count):
                if optional:
                    branch = data[at]
                    at += 1
                    if branch != 2:
                        if branch:
                            raise _no_branch()
                        append(None)
                        continue
                size = data[at]
                if size < 0x80:
                    at += 1
                elif data[at + 1] < 0x80 and data[at + 1]:
                    size = size & 0x7F | data[at + 1] << 7
                    at += 2
                else:
                    size, at = read_long(data, at)
                    size = size << 1 if size >= 0 else 1
                end = at + (size >> 1)
                if size & 1 or end > length:
                    raise NotAvro("it is cut short")
                append(data[at:end])
                at = end

    return read


# --- what holds others


def _block(data: bytes, at: int, allowance: Allowance) -> tuple[int, int]:
    """How many items a block has; 0 ends the array or the map. None of them is smaller than a byte."""
    count, at = read_long(data, at)
    if count < 0:  # its size in bytes follows, for whoever skips it
        count = -count
        size, at = read_long(data, at)
        if not 0 <= size <= len(data) - at:
            raise NotAvro("it is cut short")
    if count > len(data) - at:
        raise NotAvro(f"{count} items cannot be in {len(data) - at} bytes")
    allowance.take(count)
    return count, at


def _array(item: Reader) -> Reader:
    def read(data: bytes, at: int, allowance: Allowance) -> tuple[list[Any], int]:
        out: list[Any] = []
        while True:
            count, at = _block(data, at, allowance)
            if not count:
                return out, at
            for _ in range(count):
                value, at = item(data, at, allowance)
                out.append(value)

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


def _union(branches: list[Any]) -> Reader:
    readers = [compile_reader(branch) for branch in branches]
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


_SIMPLE: dict[str, Reader] = {
    "long": _long,
    "int": _int,
    "boolean": _boolean,
    "null": _null,
    "bytes": _bytes,
    "string": _string,
}
