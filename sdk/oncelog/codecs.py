"""What turns a value into the bytes of a payload and back: the ``codec=`` of producers and readers.

A codec that fails raises :class:`~oncelog.errors.CodecError` with the cause behind it; that is always definite, because a value
is encoded before anything is sent. All codecs here can be pickled, so messages that carry one can be too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, TypeVar

import fastavro
import fastavro.schema
import fastavro.validation
from pydantic import BaseModel

from oncelog.errors import CodecError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

ACCEPTED = (
    'None, "bytes", "str", "json", a pydantic model class, an Avro schema (a dict, a list, or the pathlib.Path of an .avsc file) '
    "or an object with encode(value) and decode(bytes)"
)
"""What :func:`codec_for` takes, in words."""


class Codec(Protocol[T]):
    """Turns values into bytes and back: ``decode(encode(value)) == value``."""

    def encode(self, value: T) -> bytes:
        """The bytes that are published."""
        ...

    def decode(self, data: bytes) -> T:
        """The value that a payload stands for."""
        ...


class ModelClass(Protocol[T_co]):
    """A class of pydantic models."""

    def model_validate_json(self, json_data: bytes) -> T_co:
        """The model that this JSON stands for."""
        ...


Typed = Codec[T] | ModelClass[T]
"""What says of which type its values are."""


def codec_for(spec: object) -> Codec[Any] | None:
    """The codec that a ``codec=`` argument means.

    ========================  =====================================================================================
    ``None``                  None: payloads stay bytes and a message's value is its payload
    ``"bytes"``               the same, as a codec: bytes, bytearray or memoryview in, bytes out
    ``"str"``                 UTF-8
    ``"json"``                compact JSON in UTF-8; NaN and infinities are refused, being no JSON
    a pydantic model class    its JSON, validated on the way back
    an Avro schema            Avro's single-object encoding: dict, list, or ``Path("flight.avsc")``. Values must fit the schema
                              exactly (1.5 is no long) and nothing may follow the datum; see :class:`AvroCodec`, which
                              knows further schemas to read
    any other object          its own ``encode`` and ``decode``; what they raise becomes the cause of a CodecError
    ========================  =====================================================================================

    An Avro schema that refers to itself, or an array of null, lets a few hostile bytes cost a reader its stack or its time:
    use such schemas only on topics whose producers you trust.

    Raises:
        TypeError: ``spec`` is none of these.
        OSError: the .avsc file cannot be read.
    """
    if spec is None or isinstance(spec, _Guarded):
        return spec
    if isinstance(spec, str) and spec in _NAMED:
        return _NAMED[spec]
    if isinstance(spec, type):
        if issubclass(spec, BaseModel):
            return _Pydantic(spec)
        raise TypeError(f"codec= takes {ACCEPTED}; {spec.__name__} is a class, give an instance")
    if isinstance(spec, dict | list | Path):
        return AvroCodec(spec)
    if callable(getattr(spec, "encode", None)) and callable(getattr(spec, "decode", None)):
        return _Custom(spec)
    raise TypeError(f"codec= takes {ACCEPTED}; not {_short(repr(spec))}")


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."


class _Guarded:
    """Base of all: whatever goes wrong inside becomes a CodecError that says with what."""

    name: str

    def encode(self, value: Any) -> bytes:
        try:
            return self._encode(value)
        except Exception as error:
            raise CodecError(f"cannot encode this {type(value).__name__} as {self.name}: {_short(str(error))}") from error

    def decode(self, data: bytes) -> Any:
        try:
            return self._decode(data)
        except Exception as error:
            raise CodecError(f"cannot decode these {len(data)} bytes as {self.name}: {_short(str(error))}") from error

    def _encode(self, value: Any) -> bytes:
        raise NotImplementedError

    def _decode(self, data: bytes) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class _Bytes(_Guarded):
    name = "bytes"

    def _encode(self, value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):  # bytes(5) would be five zero bytes
            raise TypeError("not bytes")
        return bytes(value)

    def _decode(self, data: bytes) -> bytes:
        return data


@dataclass(frozen=True)
class _Str(_Guarded):
    name = "str"

    def _encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise TypeError("not a str")
        return value.encode("utf-8")

    def _decode(self, data: bytes) -> str:
        return data.decode("utf-8")


@dataclass(frozen=True)
class _Json(_Guarded):
    name = "json"

    def _encode(self, value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")

    def _decode(self, data: bytes) -> Any:
        # Decoded here because json.loads would guess UTF-16 and let half surrogates pass.
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


@dataclass(frozen=True)
class _Pydantic(_Guarded):
    model: type[BaseModel]

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.model.__name__

    def _encode(self, value: Any) -> bytes:
        if not isinstance(value, self.model):
            raise TypeError(f"not a {self.name}")
        # round_trip leaves computed fields out, which a strict model would refuse to read back; aliases as validation wants them.
        by_alias = bool(self.model.model_config.get("validate_by_alias", True))
        return value.model_dump_json(by_alias=by_alias, round_trip=True, warnings="error").encode("utf-8")

    def _decode(self, data: bytes) -> BaseModel:
        return self.model.model_validate_json(data)


_SINGLE_OBJECT = b"\xc3\x01"
"""What Avro's single-object encoding begins with; the fingerprint of the writer's schema follows, then the datum."""
_HEAD = len(_SINGLE_OBJECT) + 8

AvroSchema = dict[str, Any] | list[Any] | Path


class AvroCodec(_Guarded):
    """Avro's single-object encoding: each payload names the schema it was written with, and is resolved to this codec's own.

    So fields that moved, came or went are found by their names, as Avro's schema resolution says, and are never mistaken for each
    other. A schema that is not named here is a CodecError with its fingerprint.
    """

    name = "Avro"

    def __init__(self, schema: AvroSchema, known: Iterable[AvroSchema] = ()) -> None:
        """``schema``: to write with, and to read as; ``known``: further ones that may have been written with.

        Raises TypeError for what is no Avro schema; OSError for a file that cannot be read.
        """
        self._schema = _parsed(schema)
        self._own = _fingerprint(self._schema)
        self._writers = {_fingerprint(each): each for each in map(_parsed, known)} | {self._own: self._schema}

    @property
    def fingerprint(self) -> str:
        """CRC-64-AVRO of the schema in Parsing Canonical Form, as it stands in each payload: 16 hex digits."""
        return self._own.hex()

    def _encode(self, value: Any) -> bytes:
        # The writer alone would store 1.5 as the long 1 and "no" as true, and drop fields the schema does not have.
        fastavro.validation.validate(value, self._schema)
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
        raise TypeError(f"an Avro schema is a dict, a list or the pathlib.Path of an .avsc file, not {_short(repr(spec))}")
    if isinstance(spec, Path):
        spec.read_bytes()  # so that a missing file is an OSError, as everywhere
    try:
        # load_schema also finds the named types that the file refers to, in the files beside it
        return fastavro.schema.load_schema(str(spec)) if isinstance(spec, Path) else fastavro.parse_schema(spec)
    except Exception as error:
        raise TypeError(
            f"codec= takes {ACCEPTED}; this is no Avro schema: {type(error).__name__} {_short(str(error))}"
        ) from error


@dataclass(frozen=True)
class _Custom(_Guarded):
    inner: Any

    @property
    def name(self) -> str:  # type: ignore[override]
        return type(self.inner).__name__

    def _encode(self, value: Any) -> bytes:
        data = self.inner.encode(value)
        if not isinstance(data, bytes):
            raise TypeError(f"encode returned {type(data).__name__}, not bytes")
        return data

    def _decode(self, data: bytes) -> Any:
        return self.inner.decode(data)


_NAMED: dict[str, Codec[Any]] = {"bytes": _Bytes(), "str": _Str(), "json": _Json()}
