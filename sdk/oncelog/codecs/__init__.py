"""What turns a value into the bytes of a payload and back: the ``codec=`` of producers and readers.

A codec that fails raises :class:`~oncelog.errors.CodecError` with the cause behind it; that is always definite, because a value
is encoded before anything is sent. A value that would not be read back equal fails so, too, save with codecs of the user's own.
All codecs here can be pickled, so messages that carry one can be too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from pydantic import BaseModel

from oncelog.codecs.avro import AvroCodec
from oncelog.codecs.guarded import ACCEPTED, Guarded, OwnCodec, short
from oncelog.codecs.models import PydanticCodec
from oncelog.codecs.named import BytesCodec, JsonCodec, StrCodec

__all__ = ["AvroCodec", "Codec", "JsonCodec", "ModelClass", "PydanticCodec", "Text", "Typed", "Untyped", "V", "codec_for"]

if TYPE_CHECKING:  # type checkers know the module; whoever runs this need not have it
    from typing_extensions import TypeVar as WithDefault

    V = WithDefault("V", default=bytes)
else:
    V = TypeVar("V")
    """The type of a producer's, reader's or consumer's values: that of its codec; bytes where it has none."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Codec(Protocol[T]):
    """Turns values into bytes and back: ``decode(encode(value)) == value``."""

    def encode(self, value: T, /) -> bytes:
        """The bytes that are published."""
        ...

    def decode(self, data: bytes, /) -> T:
        """The value that a payload stands for."""
        ...


class ModelClass(Protocol[T_co]):
    """A class of pydantic models."""

    def model_validate_json(self, json_data: bytes, /) -> T_co:
        """The model that this JSON stands for."""
        ...


Typed = Codec[V] | ModelClass[V] | Literal["bytes"] | None
"""Codecs that say of which type their values are, and none, with which they are bytes."""
Text = Literal["str"]
"""The codec of text."""
Untyped = Literal["json"] | dict[str, Any] | list[Any] | Path
"""Codecs that say nothing about the type of their values: JSON, and schemas of Avro."""


def codec_for(spec: object) -> Codec[Any] | None:
    """The codec that a ``codec=`` argument means.

    ========================  =====================================================================================
    ``None``                  None: payloads stay bytes and a message's value is its payload
    ``"bytes"``               the same, as a codec: bytes, bytearray or memoryview in, bytes out
    ``"str"``                 UTF-8
    ``"json"``                compact JSON in UTF-8; NaN and infinities are refused, being no JSON: :class:`JsonCodec`
    a pydantic model class    its JSON, validated on the way back: :class:`PydanticCodec`
    an Avro schema            Avro's single-object encoding: dict, list, or ``Path("flight.avsc")``. Values must fit the schema
                              exactly (1.5 is no long) and nothing may follow the datum; see :class:`AvroCodec`, which
                              knows further schemas to read
    any other object          its own ``encode`` and ``decode``; what they raise becomes the cause of a CodecError
    ========================  =====================================================================================

    JSON, models and Avro refuse a value that would not be read back equal (NaN equals NaN here); the classes that are named above
    take ``read_back=False``.

    An Avro schema that refers to itself, or an array of null, lets a few hostile bytes cost a reader its stack or its time:
    use such schemas only on topics whose producers you trust.

    Raises:
        TypeError: ``spec`` is none of these.
        OSError: the .avsc file cannot be read.
    """
    if spec is None or isinstance(spec, Guarded):
        return spec
    if isinstance(spec, str) and spec in _NAMED:
        return _NAMED[spec]
    if isinstance(spec, type):
        if issubclass(spec, BaseModel):
            return PydanticCodec(spec)
        raise TypeError(f"codec= takes {ACCEPTED}; {spec.__name__} is a class, give an instance")
    if isinstance(spec, dict | list | Path):
        return AvroCodec(spec)
    if callable(getattr(spec, "encode", None)) and callable(getattr(spec, "decode", None)):
        return OwnCodec(spec)
    raise TypeError(f"codec= takes {ACCEPTED}; not {short(repr(spec))}")


_NAMED: dict[str, Codec[Any]] = {"bytes": BytesCodec(), "str": StrCodec(), "json": JsonCodec()}

_Bytes, _Str, _Json, _Pydantic, _Custom = BytesCodec, StrCodec, JsonCodec, PydanticCodec, OwnCodec
"""As messages call them that earlier versions pickled."""
