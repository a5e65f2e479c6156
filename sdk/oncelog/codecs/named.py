"""The codecs that have a name: bytes, text, JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from oncelog.codecs.guarded import Guarded


@dataclass(frozen=True)
class BytesCodec(Guarded[bytes]):
    """bytes, bytearray or memoryview in, bytes out."""

    name = "bytes"

    def _encode(self, value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):  # bytes(5) would be five zero bytes
            raise TypeError("not bytes")
        return bytes(value)

    def _decode(self, data: bytes) -> bytes:
        return data


@dataclass(frozen=True)
class StrCodec(Guarded[str]):
    """UTF-8."""

    name = "str"

    def _encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise TypeError("not a str")
        return value.encode("utf-8")

    def _decode(self, data: bytes) -> str:
        return data.decode("utf-8")


@dataclass(frozen=True)
class JsonCodec(Guarded[Any]):
    """Compact JSON in UTF-8; NaN and infinities are refused, being no JSON.

    Each value is read back before it is sent, and one that is not equal then is a CodecError: keys that are no text and tuples
    are what JSON changes. ``read_back=False`` leaves that out.
    """

    read_back: bool = True
    name = "json"

    def _encode(self, value: Any) -> bytes:
        return _ENCODER.encode(value).encode("utf-8")

    def _decode(self, data: bytes) -> Any:
        # Decoded here because json.loads would guess UTF-16 and let half surrogates pass.
        return _DECODER.decode(data.decode("utf-8"))


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""Made once: json.loads would make one for each payload, which takes as long as a small one."""
