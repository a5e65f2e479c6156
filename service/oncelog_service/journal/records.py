"""What happened to journaled transactions, as values and as the checksummed bytes of the journal.

What is known of the transactions of a partition is the fold of its records (plan.py). A record on disk, version 1, big-endian;
its key is partition and position::

    offset  size  field
    0       1     version = 1
    1       1     kind: 1 begin … 7 abort, as listed in `KINDS`
    2       8     position of the record in its partition, i64: the same as in its key
    10      ...   JSON array, without spaces, UTF-8: the fields of the value in their order
    end-4   4     CRC-32 of everything before it, little-endian

    topic   [namespace, topic, generation]
    part    [topic, [number, …]]

A record says what was decided, never what was asked for: replaying it needs no clock and no setting.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

from pydantic_core import to_json


class TopicRef(NamedTuple):
    """One generation of a topic."""

    namespace: str
    topic: str
    generation: int


class TopicPart(NamedTuple):
    """What a commit puts on one topic."""

    topic: TopicRef
    branches: tuple[int, ...]
    """Numbers of what is to be copied there, in order: the transaction's own, those of its branches, or a new one for all of them
    where the topic has some of the messages already."""


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
    """Its client asked for the commit; from here on it does not time out."""

    number: int
    branches: tuple[int, ...]
    """Numbers of the other transactions that become part of it, in their order."""
    producer: str | None
    sequence_id: int | None
    incarnation: str | None
    checksum: str | None


@dataclass(frozen=True, slots=True)
class PrepareCommit:
    """It was judged and will be committed, whatever happens."""

    number: int
    order: int
    """Rises over the whole partition: in this order they are applied on every topic."""
    parts: tuple[TopicPart, ...]


@dataclass(frozen=True, slots=True)
class ApplyCommit:
    """One topic has its messages. In the same batch as they are."""

    number: int
    topic: TopicRef
    messages: int
    first_offset: int
    first_id: str


@dataclass(frozen=True, slots=True)
class Applied:
    """All its topics have its messages: it has ended, and its branches with it."""

    number: int


@dataclass(frozen=True, slots=True)
class Abort:
    """It has ended and nothing of it is to be seen."""

    number: int
    reason: str
    detail: str
    problem: Mapping[str, Any] | None
    """The refusal that ended it, as JSON; it is the answer to a repeated commit, too."""


Record: TypeAlias = Begin | Enlist | Commit | PrepareCommit | ApplyCommit | Applied | Abort

KINDS: tuple[type[Record], ...] = (Begin, Enlist, Commit, PrepareCommit, ApplyCommit, Applied, Abort)
"""The kinds in the order of their numbers on disk, from 1. Only ever add at the end."""

VERSION = 1
_HEAD = struct.Struct(">BBq")
_RESIDUE = 0x2144DF1C
"""The CRC-32 of any bytes followed by their own CRC-32, little-endian."""


class RecordDamaged(ValueError):
    """The bytes are not what this version wrote: cut, flipped, misplaced, or of another layout."""


def encode(position: int, record: Record) -> bytes:
    """The record in the layout above.

    Raises:
        ValueError, TypeError: a problem is not made of JSON values.
    """
    kind, fields = _ENCODE[type(record)]
    body = _HEAD.pack(VERSION, kind, position) + to_json(fields(record))
    return body + crc32(body).to_bytes(4, "little")


def decode(position: int, data: bytes) -> Record:
    """Read a record back.

    Raises:
        RecordDamaged: whatever is wrong with the bytes, also when they belong to another position.
    """
    if len(data) < _HEAD.size + 4 or crc32(data) != _RESIDUE:
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


def _checked(problem: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Raises ValueError, TypeError for what JSON has no form for; the encoder would make something up."""
    if problem is None:
        return None
    json.dumps(problem, allow_nan=False)
    return dict(problem)


# Plain tuples, not named ones: the encoder takes a third of the time for them, and an atomic commit takes eight records.
_ENCODE: dict[type[Record], tuple[int, Callable[[Any], tuple[Any, ...]]]] = {
    Begin: (1, lambda it: (it.number, it.id, it.group, it.began, it.expires, it.of)),
    Enlist: (2, lambda it: (it.number, tuple(it.topic))),
    Commit: (3, lambda it: (it.number, it.branches, it.producer, it.sequence_id, it.incarnation, it.checksum)),
    PrepareCommit: (4, lambda it: (it.number, it.order, [(tuple(part.topic), part.branches) for part in it.parts])),
    ApplyCommit: (5, lambda it: (it.number, tuple(it.topic), it.messages, it.first_offset, it.first_id)),
    Applied: (6, lambda it: (it.number,)),
    Abort: (7, lambda it: (it.number, it.reason, it.detail, _checked(it.problem))),
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


def _part(value: Any) -> TopicPart:
    topic, branches = _typed(value, list)
    return TopicPart(_topic(topic), _numbers(branches))


def _begin(body: Any) -> Begin:
    number, id_, group, began, expires, of = _typed(body, list)
    return Begin(_number(number), _text(id_), _text(group), _number(began), _number(expires), _optional_text(of))


def _enlist(body: Any) -> Enlist:
    number, topic = _typed(body, list)
    return Enlist(_number(number), _topic(topic))


def _commit(body: Any) -> Commit:
    number, branches, producer, sequence_id, incarnation, checksum = _typed(body, list)
    return Commit(
        _number(number),
        _numbers(branches),
        _optional_text(producer),
        _typed(sequence_id, int, _NONE),
        _optional_text(incarnation),
        _optional_text(checksum),
    )


def _prepare_commit(body: Any) -> PrepareCommit:
    number, order, parts = _typed(body, list)
    return PrepareCommit(_number(number), _number(order), tuple(map(_part, _typed(parts, list))))


def _apply_commit(body: Any) -> ApplyCommit:
    number, topic, messages, first_offset, first_id = _typed(body, list)
    return ApplyCommit(_number(number), _topic(topic), _number(messages), _number(first_offset), _text(first_id))


def _applied(body: Any) -> Applied:
    (number,) = _typed(body, list)
    return Applied(_number(number))


def _abort(body: Any) -> Abort:
    number, reason, detail, problem = _typed(body, list)
    return Abort(_number(number), _text(reason), _text(detail), _typed(problem, dict, _NONE))


_DECODE: tuple[Callable[[Any], Record], ...] = (
    _begin,
    _enlist,
    _commit,
    _prepare_commit,
    _apply_commit,
    _applied,
    _abort,
)
