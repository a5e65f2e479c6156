"""Requests and answers as bytes, and back: three media types, fixed schemas, strict.

Only the schemas of this package are ever used, never the caller's (a recursive one crashes a decoder). Whatever cannot be
decoded to the last byte raises :class:`~oncelog.errors.InvalidRequest`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from importlib.resources import files
from io import BytesIO
from itertools import chain
from typing import Any, TypeVar

import fastavro
from pydantic.alias_generators import to_camel

from oncelog.errors import InvalidMessageId, InvalidRequest, RequestTooLarge, UnsupportedMediaType
from oncelog.message_id import SIZE
from oncelog.wire.avro_parts import (
    NULL_BRANCH,
    VALUE_BRANCH,
    encode_array,
    encode_bytes,
    encode_length,
    encode_long,
    encode_optional_long,
    encode_string,
    encode_tails,
)
from oncelog.wire.avro_strict import (
    MAX_ITEMS,
    NotAvro,
    Reader,
    TooManyItems,
    bytes_items,
    compile_reader,
    read_long,
    read_whole,
)
from oncelog.wire.json_encoding import AT_ONCE_BYTES, JsonMismatch, from_json, holds_more_values, to_json
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO, essence
from oncelog.wire.names import check_atomic_id, check_group, check_namespace, check_producer, check_short, check_topic
from oncelog.wire.pages import read_page
from oncelog.wire.requests import (
    DUPLICATE,
    STORED,
    CommitRequest,
    ConsumeRequest,
    Part,
    Polled,
    PublishRequest,
    PublishResponse,
    ReceiptRun,
    Rollback,
)

T = TypeVar("T")


def _load(flavour: str, names: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
    """Name → schema and parsed schema. A schema may use those before it by name, once each."""
    sources: dict[str, Any] = {}
    for name in names:
        text = files("oncelog.wire").joinpath("schemas", flavour, f"{name}.avsc").read_text()
        sources[name] = _whole(json.loads(text), sources)
    return {name: (source, fastavro.parse_schema(source)) for name, source in sources.items()}


def _whole(schema: Any, known: Mapping[str, Any]) -> Any:
    """``schema`` with the definition itself in the place of each known name, so that it can be read alone."""
    if isinstance(schema, dict):
        return {
            word: known[part] if word == "type" and isinstance(part, str) and part in known else _whole(part, known)
            for word, part in schema.items()
        }
    return [_whole(part, known) for part in schema] if isinstance(schema, list) else schema


_NAMES = ("PublishRequest", "PublishResponse", "ConsumeRequest", "ConsumeResponse")
_TMS = _load("tms", _NAMES)
_ONCELOG = _load("oncelog", (*_NAMES, "CommitRequest", "MessageColumns"))
_SCHEMAS = {AVRO: _TMS, ONCELOG_AVRO: _ONCELOG, JSON: _ONCELOG}


_READERS = {
    media: {name: compile_reader(parsed) for name, (_, parsed) in schemas.items()}
    for media, schemas in ((AVRO, _TMS), (ONCELOG_AVRO, _ONCELOG))
}


def media_types_of(name: str) -> tuple[str, ...]:
    """The media types that have a record ``name``."""
    return tuple(media for media, schemas in _SCHEMAS.items() if name in schemas)


def avro_source(media: str, name: str) -> Any:
    """The schema of the record ``name`` in a media type, whole: a record of another file stands where it is named."""
    return _SCHEMAS[media][name][0]


def decode(name: str, content_type: str, body: bytes, items: int = MAX_ITEMS) -> Any:
    """The record ``name`` from a body of one of its media types.

    ``items``: of arrays and maps together, at the most; of a JSON body so many values. They are counted before they are made.

    Raises:
        UnsupportedMediaType: another content type.
        InvalidRequest: the body is not exactly one such record. RequestTooLarge: it holds more than ``items``.
    """
    media = essence(content_type)
    if name not in _SCHEMAS.get(media, ()):
        read = ", ".join(media_types_of(name))
        raise UnsupportedMediaType(f"Content-Type {media[:100] or '(none)'} is not read here; use {read}")
    if media == JSON:
        return _decode_json(name, _SCHEMAS[media][name][0], body, items)
    return _decode_avro(name, _READERS[media][name], body, items)


def _decode_avro(name: str, reader: Reader, body: bytes, items: int) -> Any:
    try:
        return read_whole(reader, body, items)
    except NotAvro as error:
        raise InvalidRequest(f"the body is not an Avro {name}: {error}") from error
    except TooManyItems as error:
        raise _too_many(items) from error


def _too_many(items: int) -> RequestTooLarge:
    return RequestTooLarge(f"the body holds more than {items} values; send less at once", limit=items)


def decode_json(body: bytes, what: str, items: int = MAX_ITEMS) -> Any:
    """Parse JSON. Raises InvalidRequest for whatever is wrong with it, its nesting included; RequestTooLarge for more than
    ``items`` values: a parser that has begun to make them lets nobody else have a turn."""
    if items < len(body) and holds_more_values(body, items):
        raise _too_many(items)
    strictly: dict[str, Any] = {"parse_int": _whole_number, "parse_float": _number} if _has_long_run(body) else {}
    try:
        # As UTF-8, which JSON is: json.loads would guess UTF-16, in which no digit stands beside another.
        return json.loads(body.decode("utf-8-sig"), parse_constant=_refuse_constant, **strictly)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON for a {what}: {str(error)[:200]}") from error


_LONGEST_NUMBER = 40
"""Digits: as many as those of an integer of 128 bits, and twice as many as ours have. To read a number of n digits takes n²."""
_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)


def _has_long_run(text: bytes) -> bool:
    """Tell whether more digits stand side by side, in a number or in a string: only then each number is looked at, which
    takes six times as long."""
    run = b"0" * (_LONGEST_NUMBER + 1)
    return any(run in text[at : at + AT_ONCE_BYTES + len(run) - 1].translate(_ZEROS) for at in range(0, len(text), AT_ONCE_BYTES))


def _whole_number(text: str) -> int:
    return int(_not_long(text))


def _number(text: str) -> float:
    return float(_not_long(text))


def _not_long(text: str) -> str:
    if _has_long_run(text.encode()):
        raise ValueError(f"a number has more than {_LONGEST_NUMBER} digits")
    return text


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _decode_json(name: str, schema: Any, body: bytes, items: int) -> Any:
    try:
        return from_json(decode_json(body, name, items), schema)
    except JsonMismatch as mismatch:
        raise InvalidRequest(f"the body is not a {name}: {mismatch}") from mismatch


def encode(name: str, media: str, record: Any) -> bytes:
    """The record ``name`` as a body of media type ``media``."""
    source, parsed = _SCHEMAS[media][name]
    if media == JSON:
        return json.dumps(to_json(record, source), ensure_ascii=True).encode()
    return _encode_avro(parsed, record)


def _encode_avro(schema: Any, record: Any) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, schema, record)
    return stream.getvalue()


# --- publish ------------------------------------------------------------------------------------------------------------

_OTHERWISE = {"payloads": "messages", "write_pointer": "transactionWritePointer"}
"""Fields whose names in the schemas are other ones than in Python, besides their case."""


def _fields_of(kind: type[Any]) -> dict[str, str]:
    """Of a dataclass that travels: how the schema calls a field → the field. What is not compared, or stands in the address, does
    not travel in the body."""
    within = (each.name for each in fields(kind) if each.compare and "in" not in each.metadata)
    return {_OTHERWISE.get(name) or to_camel(name): name for name in within}


def _record_of(value: Any, names: Mapping[str, str]) -> dict[str, Any]:
    return {name: getattr(value, field) for name, field in names.items()}


def _made_of(kind: type[T], record: Mapping[str, Any], names: Mapping[str, str]) -> T:
    return kind(**{names[name]: value for name, value in record.items()})


_PUBLISH, _PUBLISHED, _COMMIT, _CONSUME = map(_fields_of, (PublishRequest, PublishResponse, CommitRequest, ConsumeRequest))

_COLUMNS = ("sequenceIds", "keys", "properties", "ttls")


def decode_publish_request(content_type: str, body: bytes, items: int = MAX_ITEMS) -> PublishRequest:
    """A publish body. The columns' lengths agree, a producer's name is one, and an expected message id has its 20 bytes (in JSON,
    its 40 hex digits do too); nothing else about the values is checked yet.

    Raises:
        UnsupportedMediaType: another content type.
        InvalidRequest: the body is no such request; InvalidMessageId for an id that is none. RequestTooLarge: see :func:`decode`.
    """
    if content_type == ONCELOG_AVRO and (plain := decode_plain(body, items)) is not None:
        return plain
    return _publish_request(decode("PublishRequest", content_type, body, items), essence(content_type), "")


def decode_plain(body: bytes, items: int) -> PublishRequest | None:
    """A publish body in :data:`~oncelog.wire.media.ONCELOG_AVRO` that says nothing but its producer, its first sequence id and
    its payloads, as most do: at a fifth of the calls that its schema takes. None: it is another one, or none at all."""
    producer = epoch = first = None
    try:
        if body[0]:
            return None
        if body[1] == _VALUE:
            size, begin = read_long(body, 2)
            at = begin + size
            check_producer(producer := body[begin:at].decode())
            if body[at] == _VALUE:  # as _optional_long, without its call
                epoch, at = read_long(body, at + 1)
            elif body[at]:
                return None
            else:
                at += 1
            if size < 0 or body[at] != _A_LONG:
                return None
            first, at = read_long(body, at + 1)
        elif body[1:4] != bytes(3):
            return None
        else:
            at = 4
        if body[at : at + 6] != _NO_COLUMNS:
            return None
        count, at = read_long(body, at + 6)
        if not 0 < count <= min(items, len(body) - at):
            return None
        payloads: list[bytes] = []
        at = bytes_items(body, at, count, None, payloads)
        if body[at] or at + 1 != len(body):
            return None
    except (IndexError, NotAvro, UnicodeDecodeError, InvalidRequest):
        return None
    size = len(payloads[0]) if count == 1 else sum(map(len, payloads))
    return PublishRequest(payloads, producer, epoch, None if first is None else range(first, first + count), counted=size)


def _optional_long(body: bytes, at: int) -> tuple[int | None, int]:
    """The number there, or null. Raises NotAvro, IndexError."""
    if body[at] == _VALUE:
        return read_long(body, at + 1)
    if body[at]:
        raise NotAvro("a union in it takes a branch that there is not")
    return None, at + 1


_VALUE = VALUE_BRANCH[0]
_A_LONG = 4
"""The branch of sequenceIds that is the first of ids that rise by one."""
_NO_COLUMNS = NULL_BRANCH * 6
"""From the keys to the expectations."""


def _publish_request(record: dict[str, Any], media: str, where: str) -> PublishRequest:
    """From the record, which is used up. ``where``: of the request in its body, for the message."""
    payloads = record["messages"]
    if isinstance(record.get("sequenceIds"), int):
        record["sequenceIds"] = range(record["sequenceIds"], record["sequenceIds"] + len(payloads))
    for name in _COLUMNS:
        column = record.get(name)
        if column is not None and len(column) != len(payloads):
            raise InvalidRequest(f"{where}{name} has {len(column)} entries for {len(payloads)} messages")
    request = _made_of(PublishRequest, record, _PUBLISH)
    if request.producer is not None:
        check_producer(request.producer)
    if request.expected_last_message_id is not None:
        name = f"{where}expectedLastMessageId"
        request.expected_last_message_id = _message_id(request.expected_last_message_id, media, name)
    if request.properties is not None:  # as much work as to decode them, so it is done where that is, on a thread if it is much
        request.tails = encode_tails(len(payloads), request.keys, request.properties, request.ttls)
    request.counted = request.size
    return request


_MANY = 32
"""Messages from which on their bytes are joined here: fastavro takes five times as long, which a bulk load feels."""


def encode_publish_request(request: PublishRequest) -> bytes:
    """The body in :data:`~oncelog.wire.media.ONCELOG_AVRO`."""
    payloads = request.payloads
    if len(payloads) < _MANY and (plain := _encode_plain(request)) is not None:
        return plain
    record = _publish_record(request)
    if len(payloads) < _MANY:
        return encode("PublishRequest", ONCELOG_AVRO, record)
    keys: Sequence[bytes] = (NULL_BRANCH,)
    if request.keys is not None:
        items = [NULL_BRANCH if key is None else VALUE_BRANCH + encode_length(len(key)) + key for key in request.keys]
        keys = (VALUE_BRANCH, *encode_array(items, len(items)))
    messages = chain.from_iterable(zip(map(encode_length, map(len, payloads)), payloads, strict=True))
    before, behind = (_encode_avro(part, record) for part in _AROUND_KEYS)
    return b"".join((before, *keys, behind, *encode_array(messages, len(payloads))))


def _encode_plain(request: PublishRequest) -> bytes | None:
    """Joins the body that :func:`decode_plain` reads, to the bytes that fastavro would write, at a fifth of its time; None: the
    request says more, or has no messages."""
    payloads, ids, producer = request.payloads, request.sequence_ids, request.producer
    if request.write_pointer is not None or request.keys is not None or request.properties is not None:
        return None
    if request.ttls is not None or request.conditional or not payloads or (ids is None) is not (producer is None):
        return None
    if ids is None or producer is None:
        head = NULL_BRANCH * 4
    else:
        first, count = ids[0], len(payloads)
        if len(ids) != count or (count > 1 and list(ids) != list(range(first, first + count))):
            return None
        epoch = encode_optional_long(request.epoch)
        head = b"\x00\x02%b%b\x04%b" % (encode_string(producer), epoch, encode_long(first))
    return b"".join((head, _NO_COLUMNS, *encode_array(map(encode_bytes, payloads), len(payloads))))


_FIELDS = avro_source(ONCELOG_AVRO, "PublishRequest")["fields"]
_KEYS_AT = [field["name"] for field in _FIELDS].index("keys")
_AROUND_KEYS = [
    fastavro.parse_schema({"type": "record", "name": name, "fields": part})
    for name, part in (("BeforeKeys", _FIELDS[:_KEYS_AT]), ("BehindKeys", _FIELDS[_KEYS_AT + 1 : -1]))
]
"""The fields of a PublishRequest before its keys, and those between them and its messages, as records of their own."""


def _publish_record(request: PublishRequest) -> dict[str, Any]:
    record = _record_of(request, _PUBLISH)
    ids = request.sequence_ids
    if ids and len(ids) == len(request.payloads) and list(ids) == list(range(ids[0], ids[0] + len(ids))):
        record["sequenceIds"] = ids[0]
    return record


_RECEIPT = ("status", "count", "sequenceId", "messageId", "offset")


def encode_publish_response(media: str, response: PublishResponse) -> bytes:
    """The answer in the media type of the request."""
    if media == ONCELOG_AVRO:
        return _join_publish_response(response)
    record = _record_of(response, _PUBLISHED)
    record["receipts"] = [dict(zip(_RECEIPT, run, strict=True)) for run in response.receipts]
    return encode("PublishResponse", media, record)


def encode_stored(timestamp: int, seq_id: int, count: int, sequence_id: int | None, message_id: bytes, offset: int) -> bytes:
    """The answer in :data:`~oncelog.wire.media.ONCELOG_AVRO` to a request without a write pointer, all of whose messages were
    stored just now, within one millisecond: by far the most of the answers."""
    at = _timestamp(timestamp)
    return b"".join(
        (
            NULL_BRANCH, at, encode_long(seq_id), at, encode_long(seq_id + count - 1), _ONE_STORED, encode_long(count),
            NULL_BRANCH if sequence_id is None else VALUE_BRANCH + encode_long(sequence_id),
            _MESSAGE_ID, message_id, VALUE_BRANCH, encode_long(offset), b"\x00",
        )
    )  # fmt: skip


_timestamp = lru_cache(64)(encode_long)
_ONE_STORED = b"\x02\x00"
"""A block of one receipt, and its status."""
_MESSAGE_ID = VALUE_BRANCH + encode_length(SIZE)


def _join_publish_response(response: PublishResponse) -> bytes:
    """Join the answer from parts, to the bytes that fastavro would write, at a third of its time."""
    receipts = [
        (b"\x00" if run.status == STORED else b"\x02")
        + encode_long(run.count)
        + encode_optional_long(run.sequence_id)
        + (NULL_BRANCH if run.message_id is None else VALUE_BRANCH + encode_bytes(run.message_id))
        + encode_optional_long(run.offset)
        for run in response.receipts
    ]
    head = (
        encode_optional_long(response.write_pointer),
        encode_long(response.start_timestamp),
        encode_long(response.start_sequence_id),
        encode_long(response.end_timestamp),
        encode_long(response.end_sequence_id),
    )
    return b"".join((*head, *encode_array(receipts, len(receipts))))


def decode_published(body: bytes) -> PublishResponse:
    """The answer in :data:`~oncelog.wire.media.ONCELOG_AVRO`. Raises InvalidRequest if it is none."""
    if (response := _decode_one_run(body)) is not None:
        return response
    record = decode("PublishResponse", ONCELOG_AVRO, body)
    record["receipts"] = [ReceiptRun(*run.values()) for run in record["receipts"]]
    return _made_of(PublishResponse, record, _PUBLISHED)


def _decode_one_run(body: bytes) -> PublishResponse | None:
    """An answer without a write pointer that has one run of receipts, as nearly all have, at a fifth of the calls that its schema
    takes. None: it is another one, or none at all."""
    try:
        if body[0]:
            return None
        start_timestamp, at = read_long(body, 1)
        start, at = read_long(body, at)
        end_timestamp, at = read_long(body, at)
        end, at = read_long(body, at)
        status = _STATUSES.get(body[at : at + 2])
        if status is None or not 0 <= start <= _MAX_SEQ_ID or not 0 <= end <= _MAX_SEQ_ID:
            return None
        count, at = read_long(body, at + 2)
        sequence_id, at = _optional_long(body, at)
        message_id = None
        if body[at : at + 2] == _MESSAGE_ID:
            message_id, at = body[at + 2 : at + 2 + SIZE], at + 2 + SIZE
        elif body[at]:
            return None
        else:
            at += 1
        offset, at = _optional_long(body, at)
        if body[at] or at + 1 != len(body):
            return None
    except (IndexError, NotAvro):
        return None
    run = ReceiptRun(status, count, sequence_id, message_id, offset)
    return PublishResponse([run], None, start_timestamp, start, end_timestamp, end)


_STATUSES = {_ONE_STORED: STORED, b"\x02\x02": DUPLICATE}
"""A block of one receipt, and its status."""


# --- rollback -----------------------------------------------------------------------------------------------------------

_MAX_SEQ_ID = 0xFFFF


def decode_rollback(content_type: str, body: bytes, items: int = MAX_ITEMS) -> Rollback:
    """A rollback body: a publish answer, sent back. Receipts are not looked at; in JSON they may be left out.

    Raises:
        InvalidRequest: also for a write pointer that is none and a range that cannot be one. Whether the pointer published
            exactly these messages is for the topic to say.
    """
    record = decode("PublishResponse", content_type, body, items)
    pointer = record["transactionWritePointer"]
    if pointer is None or pointer <= 0:
        raise InvalidRequest(f"transactionWritePointer must be a write pointer, above 0, not {pointer}")
    start = _row_id(record, "start")
    end = _row_id(record, "end")
    if start > end:
        raise InvalidRequest(f"the start {start} lies after the end {end}")
    return Rollback(pointer, start, end)


def _row_id(record: Any, which: str) -> tuple[int, int]:
    timestamp, seq_id = record[f"{which}Timestamp"], record[f"{which}SequenceId"]
    if timestamp < 0:
        raise InvalidRequest(f"{which}Timestamp must not be below 0, as {timestamp} is")
    if not 0 <= seq_id <= _MAX_SEQ_ID:
        raise InvalidRequest(f"{which}SequenceId must be 0 to {_MAX_SEQ_ID}, not {seq_id}")
    return timestamp, seq_id


# --- atomic commit ------------------------------------------------------------------------------------------------------


def decode_commit_request(content_type: str, body: bytes, items: int = MAX_ITEMS) -> CommitRequest:
    """The body of an atomic commit: :data:`~oncelog.wire.media.ONCELOG_AVRO` or JSON. Its names are names; of each part, what
    :func:`decode_publish_request` says holds.

    Raises:
        UnsupportedMediaType: another content type; TMS's has no such record.
        InvalidRequest: the body is no such request; InvalidMessageId for an id that is none.
    """
    record = decode("CommitRequest", content_type, body, items)
    media = essence(content_type)
    if record["group"] is not None:
        check_group(record["group"])
    if record["producer"] is not None:
        check_producer(record["producer"])
    for name in ("incarnation", "checksum"):
        if record[name] is not None:
            check_short(record[name], name)
    record["branches"] = tuple(check_atomic_id(branch, "the id of a branch") for branch in record["branches"])
    record["parts"] = [_part(part, media, index) for index, part in enumerate(record["parts"])]
    return _made_of(CommitRequest, record, _COMMIT)


def _part(part: dict[str, Any], media: str, index: int) -> Part:
    where = f"parts[{index}]: "
    try:
        namespace, topic = check_namespace(part["namespace"]), check_topic(part["topic"])
        return Part(namespace, topic, _publish_request(part["request"], media, where))
    except InvalidRequest as error:
        said = error.detail if error.detail.startswith(where) else where + error.detail
        raise type(error)(said) from error


def encode_commit_request(request: CommitRequest) -> bytes:
    """The body in :data:`~oncelog.wire.media.ONCELOG_AVRO`."""
    record = _record_of(request, _COMMIT)
    record["parts"] = [{**part._asdict(), "request": _publish_record(part.request)} for part in request.parts]
    return encode("CommitRequest", ONCELOG_AVRO, record)


# --- consume ------------------------------------------------------------------------------------------------------------


def decode_consume_request(content_type: str, body: bytes, items: int = MAX_ITEMS) -> ConsumeRequest:
    """A poll body. A message id has 20 bytes; in JSON its 40 hex digits do too."""
    record = decode("ConsumeRequest", content_type, body, items)
    if isinstance(record["startFrom"], bytes):
        record["startFrom"] = _message_id(record["startFrom"], essence(content_type), "startFrom")
    return _made_of(ConsumeRequest, record, _CONSUME)


def _message_id(value: bytes, media: str, name: str) -> bytes:
    """The 20 bytes of a message id, in JSON from its 40 hex digits too. Raises InvalidMessageId."""
    if media == JSON and len(value) == 2 * SIZE:
        try:
            return bytes.fromhex(value.decode("ascii"))
        except ValueError as error:
            raise InvalidMessageId(f"{name}: of 40 characters it must be the hex digits of a message id") from error
    if len(value) != SIZE:
        raise InvalidMessageId(f"{name}: a message id has {SIZE} bytes, not {len(value)}")
    return value


def encode_consume_request(request: ConsumeRequest) -> bytes:
    """The body in :data:`~oncelog.wire.media.ONCELOG_AVRO`."""
    return encode("ConsumeRequest", ONCELOG_AVRO, _record_of(request, _CONSUME))


def encode_consume_response(
    media: str,
    messages: Sequence[bytes],
    position: bytes | None,
    more: Sequence[Mapping[str, object]] | None = None,
    polled: Polled | None = None,
    count: int | None = None,
) -> bytes:
    """The answer from messages that are already encoded in ``media`` (for JSON: as for ONCELOG_AVRO).

    ``more``: what each of them says besides, in JSON alone. ``polled``: what else the answer says, its own messages and position
    apart. ``count``: of the messages, where several stand in one piece.
    """
    array = encode_array(messages, len(messages) if count is None else count)
    if media == AVRO:
        return b"".join(array)
    end = NULL_BRANCH if position is None else VALUE_BRANCH + encode_bytes(position)
    said = (None,) * 4 if polled is None else polled[2:6]
    body = b"".join([*array, end, *map(encode_optional_long, said)])
    if media == ONCELOG_AVRO:
        return body
    record = decode("ConsumeResponse", ONCELOG_AVRO, body)
    # The TMS answer is a bare array, so JSON is one too; the position is needed only by readers that speak Avro.
    shown = to_json(record["messages"], _MESSAGES["type"])
    if more is not None:
        shown = [_with_more(message, each) for message, each in zip(shown, more, strict=True)]
    texts = map(_message_json, shown)
    return f"[{', '.join(texts)}]".encode()


def _with_more(message: dict[str, Any], more: Mapping[str, object]) -> dict[str, Any]:
    if not more:
        return message
    payload = message.pop("payload")
    return {**message, **more, "payload": payload}


_PRINTED_AT_ONCE = 2**18
"""Characters of a payload: json prints a string as a whole, and nobody else has a turn."""


def _message_json(message: dict[str, Any]) -> str:
    payload = message["payload"]
    if len(payload) <= _PRINTED_AT_ONCE:
        return json.dumps(message)
    around = json.dumps({**message, "payload": ""})
    assert around.endswith('""}')  # the payload is the last field
    parts = (payload[at : at + _PRINTED_AT_ONCE] for at in range(0, len(payload), _PRINTED_AT_ONCE))
    return "".join((around[:-2], *(json.dumps(part)[1:-1] for part in parts), '"}'))


def decode_polled(body: bytes, most: int | None = None) -> Polled:
    """An answer in :data:`~oncelog.wire.media.ONCELOG_AVRO`.

    Raises InvalidRequest if it is none, or has more than ``most`` messages: before more are made of it.
    """
    page, at = read_page(body, most)
    said = _decode_avro("ConsumeResponse", _SAID, body[at:], MAX_ITEMS)
    for name, value in said.items():
        if isinstance(value, int) and value < 0:
            raise InvalidRequest(f"{name} is out of range in the Avro ConsumeResponse")
    return Polled(page, *said.values())


_MESSAGES, *_BEHIND = avro_source(ONCELOG_AVRO, "ConsumeResponse")["fields"]
_SAID = compile_reader({"type": "record", "fields": _BEHIND})
"""What an answer says behind its messages."""
