"""What happened to journaled transactions, as values and as the checksummed bytes of the journal.

What is known of the transactions of a partition is the fold of its records (plan.py). A record on disk, version 1, big-endian;
its key is partition and position::

    offset  size  field
    0       1     version = 1
    1       1     kind: 1 begin … 4 abort, as listed in `KINDS`
    2       8     position of the record in its partition, i64: the same as in its key
    10      ...   JSON array, without spaces, UTF-8: the fields of the value in their order
    end-4   4     CRC-32 of everything before it, little-endian

    topic   [namespace, topic, generation]

A record says what was decided, never what was asked for: replaying it needs no clock and no setting.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from pydantic_core import to_json

from oncelog_service.storage.checksum import SIZE, matches, with_checksum


class TopicRef(NamedTuple):
    """One generation of a topic."""

    namespace: str
    topic: str
    generation: int


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction began."""

    number: int
    id: str
    group: str
    began: int
    """Milliseconds."""
    expires: int
    """Milliseconds: when it is given up unless it is committing by then."""
    of: str | None
    """Of a branch: the id of the transaction that it is for, which need not have begun."""


@dataclass(frozen=True, slots=True)
class Enlist:
    """A topic holds chunks of it. Durable no later than the first of them."""

    number: int
    topic: TopicRef


@dataclass(frozen=True, slots=True)
class Commit:
    """It is committed: it has ended, and its branches with it. In one write with the rows of all its topics and the outcome."""

    number: int
    branches: tuple[int, ...]
    """Numbers of the other transactions that became part of it, in their order."""


@dataclass(frozen=True, slots=True)
class Abort:
    """It has ended and nothing of it is to be seen. In one write with the outcome, which says why."""

    number: int


Record: TypeAlias = Begin | Enlist | Commit | Abort

KINDS: tuple[type[Record], ...] = (Begin, Enlist, Commit, Abort)
"""The kinds in the order of their numbers on disk, from 1. Only ever add at the end."""

VERSION = 1
_HEAD = struct.Struct(">BBq")


class RecordDamaged(ValueError):
    """The bytes are not what this version wrote: cut, flipped, misplaced, or of another layout."""


def encode(position: int, record: Record) -> bytes:
    """The record in the layout above."""
    kind, fields = _ENCODE[type(record)]
    body = _HEAD.pack(VERSION, kind, position) + to_json(fields(record))
    return with_checksum(body)


def decode(position: int, data: bytes) -> Record:
    """Read a record back.

    Raises:
        RecordDamaged: whatever is wrong with the bytes, also when they belong to another position.
    """
    if len(data) < _HEAD.size + SIZE or not matches(data):
        raise RecordDamaged(f"the checksum of {len(data)} bytes does not match them")
    version, kind, belongs_to = _HEAD.unpack_from(data)
    if version != VERSION or not 1 <= kind <= len(KINDS):
        raise RecordDamaged(f"a record of version {version} and kind {kind} is not known here")
    if belongs_to != position:
        raise RecordDamaged(f"the record at position {position} says that it is at {belongs_to}")
    try:
        record: Record = _DECODE[kind - 1](json.loads(data[_HEAD.size : -4]))
    except (ValueError, TypeError) as error:
        raise RecordDamaged(f"the record at position {position} cannot be read: {error}") from error
    return record


# Plain tuples, not named ones: the encoder takes a third of the time for them.
_ENCODE: dict[type[Record], tuple[int, Callable[[Any], tuple[Any, ...]]]] = {
    Begin: (1, lambda it: (it.number, it.id, it.group, it.began, it.expires, it.of)),
    Enlist: (2, lambda it: (it.number, tuple(it.topic))),
    Commit: (3, lambda it: (it.number, it.branches)),
    Abort: (4, lambda it: (it.number,)),
}


# --- the parts of bodies; each raises ValueError or TypeError at any other shape


def _typed(value: Any, *kinds: type) -> Any:
    """The value, if it is exactly of one of these types (True is no number)."""
    if type(value) not in kinds:
        raise TypeError(f"{value!r} stands where {' or '.join(kind.__name__ for kind in kinds)} should")
    return value


def _number(value: Any) -> int:
    number: int = _typed(value, int)
    return number


def _text(value: Any) -> str:
    text: str = _typed(value, str)
    return text


_NONE = type(None)


def _optional_text(value: Any) -> str | None:
    text: str | None = _typed(value, str, _NONE)
    return text


def _numbers(value: Any) -> tuple[int, ...]:
    return tuple(map(_number, _typed(value, list)))


def _topic(value: Any) -> TopicRef:
    namespace, topic, generation = _typed(value, list)
    return TopicRef(_text(namespace), _text(topic), _number(generation))


def _begin(body: Any) -> Begin:
    number, id_, group, began, expires, of = _typed(body, list)
    return Begin(_number(number), _text(id_), _text(group), _number(began), _number(expires), _optional_text(of))


def _enlist(body: Any) -> Enlist:
    number, topic = _typed(body, list)
    return Enlist(_number(number), _topic(topic))


def _commit(body: Any) -> Commit:
    number, branches = _typed(body, list)
    return Commit(_number(number), _numbers(branches))


def _abort(body: Any) -> Abort:
    (number,) = _typed(body, list)
    return Abort(_number(number))


_DECODE: tuple[Callable[[Any], Record], ...] = (_begin, _enlist, _commit, _abort)
