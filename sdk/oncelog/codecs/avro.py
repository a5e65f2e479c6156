"""Avro's single-object encoding."""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import fastavro.schema
import fastavro.validation

from oncelog.codecs.guarded import ACCEPTED, Guarded, short
from oncelog.codecs.rules import rule_of

_SINGLE_OBJECT = b"\xc3\x01"
"""What Avro's single-object encoding begins with; the fingerprint of the writer's schema follows, then the datum."""
_HEAD = len(_SINGLE_OBJECT) + 8

AvroSchema = dict[str, Any] | list[Any] | Path


class AvroCodec(Guarded[Any]):
    """Avro's single-object encoding: each payload names the schema it was written with, and is resolved to this codec's own.

    So fields that moved, came or went are found by their names, as Avro's schema resolution says, and are never mistaken for each
    other. A schema that is not named here is a CodecError with its fingerprint.

    A value must fit the schema exactly: the long 1.5 is a CodecError. Unless its types alone tell that it is read back equal, it
    is also read back before it is sent, and is a CodecError if it is not equal then, save for the defaults of fields that were
    not given: times without a zone where the schema has one, microseconds where it has milliseconds, numbers that a double or
    a float rounds, text or numbers where a logical type reads as something else, tuples.
    """

    name = "Avro"
    read_back = True
    fills_in = True

    def __init__(self, schema: AvroSchema, known: Iterable[AvroSchema] = (), *, read_back: bool = True) -> None:
        """``schema``: to write with, and to read as; ``known``: further ones that may have been written with.

        ``read_back=False`` leaves out the reading back.

        Raises TypeError for what is no Avro schema; OSError for a file that cannot be read.
        """
        self.read_back = read_back
        self._schema = _parsed(schema)
        self._own = _fingerprint(self._schema)
        self._writers = {_fingerprint(each): each for each in map(_parsed, known)} | {self._own: self._schema}
        self._keeps = rule_of(self._schema)

    def __getstate__(self) -> dict[str, Any]:
        return {name: each for name, each in self.__dict__.items() if name != "_keeps"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._keeps = rule_of(self._schema)

    @property
    def fingerprint(self) -> str:
        """CRC-64-AVRO of the schema in Parsing Canonical Form, as it stands in each payload: 16 hex digits."""
        return self._own.hex()

    def _encode(self, value: Any) -> bytes:
        # The writer alone would store 1.5 as the long 1 and "no" as true, and drop fields the schema does not have.
        fastavro.validation.validate(value, self._schema)
        return self._write(value)

    def _encode_checked(self, value: Any) -> bytes:
        # To validate and to read back takes five times as long as to write.
        return self._write(value) if self._keeps(value) else super()._encode_checked(value)

    def _write(self, value: Any) -> bytes:
        stream = BytesIO()
        stream.write(_SINGLE_OBJECT + self._own)
        fastavro.schemaless_writer(stream, self._schema, value, strict_allow_default=True)
        return stream.getvalue()

    def _decode(self, data: bytes) -> Any:
        if not data.startswith(_SINGLE_OBJECT) or len(data) < _HEAD:
            raise ValueError("they do not begin as Avro's single-object encoding does, with c3 01 and a schema's fingerprint")
        written = data[len(_SINGLE_OBJECT) : _HEAD]
        if written not in self._writers:
            raise ValueError(
                f"they were written with the schema of fingerprint {written.hex()}, which is not known here; "
                f"give it too: codec=AvroCodec(schema, known=[that one])"
            )
        stream = BytesIO(data)
        stream.seek(_HEAD)
        value = fastavro.schemaless_reader(stream, self._writers[written], None if written == self._own else self._schema)
        if stream.tell() != len(data):
            raise ValueError(f"{len(data) - stream.tell()} bytes follow the datum")
        return value


def _fingerprint(schema: Any) -> bytes:
    """The fingerprint as it travels: fastavro's hex digits are those of its bytes, the lowest first."""
    return bytes.fromhex(fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(schema), "CRC-64-AVRO"))


def _parsed(spec: AvroSchema) -> Any:
    if not isinstance(spec, dict | list | Path):
        raise TypeError(f"an Avro schema is a dict, a list or the pathlib.Path of an .avsc file, not {short(repr(spec))}")
    if isinstance(spec, Path):
        spec.read_bytes()  # so that a missing file is an OSError, as everywhere
    try:
        # load_schema also finds the named types that the file refers to, in the files beside it
        return fastavro.schema.load_schema(str(spec)) if isinstance(spec, Path) else fastavro.parse_schema(spec)
    except Exception as error:
        raise TypeError(f"codec= takes {ACCEPTED}; this is no Avro schema: {type(error).__name__} {short(str(error))}") from error
