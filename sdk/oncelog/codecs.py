"""From values to payloads and back: str, JSON, pydantic models, Avro. Payloads themselves are bytes.

A codec is what ``codec=`` of Producer and Reader takes; :func:`codec_for` says what may be given.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import fastavro
from pydantic import BaseModel

from oncelog.errors import CodecError

T = TypeVar("T")


@runtime_checkable
class Codec(Protocol[T]):
    """Turns values into bytes and back. Both raise CodecError for what they cannot turn."""

    def encode(self, value: T) -> bytes:
        """The payload of a value."""
        ...

    def decode(self, data: bytes) -> T:
        """The value of a payload."""
        ...


class _Functions:
    """A codec of two functions, their failures turned into CodecError."""

    def __init__(self, name: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
        self._name = name
        self._encode = encode
        self._decode = decode

    def encode(self, value: Any) -> bytes:
        try:
            return self._encode(value)
        except Exception as error:
            raise CodecError(f"{type(value).__name__} cannot be encoded as {self._name}: {error}") from error

    def decode(self, data: bytes) -> Any:
        try:
            return self._decode(data)
        except Exception as error:
            raise CodecError(f"the payload cannot be decoded as {self._name}: {error}") from error


def codec_for(spec: Any) -> Codec[Any] | None:
    """The codec that ``spec`` names.

    Args:
        spec: None or "bytes" (payloads as they are), "str" (UTF-8), "json", a pydantic model class, an Avro schema (a dict, a
            list, or the Path of an .avsc file), or an object with ``encode`` and ``decode``.

    Raises:
        TypeError: anything else.
    """
    if spec is None or spec == "bytes":
        return None
    if spec == "str":
        return _Functions("str", _encode_str, lambda data: data.decode())
    if spec == "json":
        return _Functions("json", lambda value: json.dumps(value, separators=(",", ":")).encode(), json.loads)
    if isinstance(spec, type) and issubclass(spec, BaseModel):
        return _model_codec(spec)
    if isinstance(spec, Path):
        return _avro_codec(json.loads(spec.read_text()))
    if isinstance(spec, dict | list):
        return _avro_codec(spec)
    if not isinstance(spec, type | str) and isinstance(spec, Codec):
        return spec
    raise TypeError(
        f"codec= takes None, 'bytes', 'str', 'json', a pydantic model class, an Avro schema (dict, list, Path of an .avsc file) "
        f"or an object with encode and decode, not {spec!r}"
    )


def _encode_str(value: str) -> bytes:
    if not isinstance(value, str):
        raise TypeError("not a str")
    return value.encode()


def _model_codec(model: type[BaseModel]) -> Codec[Any]:
    def encode(value: BaseModel) -> bytes:
        if not isinstance(value, model):
            raise TypeError(f"not a {model.__name__}")
        return value.model_dump_json().encode()

    return _Functions(model.__name__, encode, model.model_validate_json)


def _avro_codec(schema: Any) -> Codec[Any]:
    parsed = fastavro.parse_schema(schema)

    def encode(value: Any) -> bytes:
        out = BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        return out.getvalue()

    def decode(data: bytes) -> Any:
        stream = BytesIO(data)
        value = fastavro.schemaless_reader(stream, parsed, None)
        if stream.tell() != len(data):
            raise ValueError(f"{len(data) - stream.tell()} bytes are left over")
        return value

    return _Functions("Avro", encode, decode)
