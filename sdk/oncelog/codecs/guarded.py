"""What all codecs have in common: their failures are CodecErrors, and what would not be read back equal is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from oncelog.codecs.equality import difference
from oncelog.errors import CodecError

T = TypeVar("T")

ACCEPTED = (
    'None, "bytes", "str", "json", a pydantic model class, an Avro schema (a dict, a list, or the pathlib.Path of an .avsc file) '
    "or an object with encode(value) and decode(bytes)"
)
"""What :func:`oncelog.codecs.codec_for` takes, in words."""


def short(text: str) -> str:
    """As much of a text as an error may say."""
    return text if len(text) <= 200 else text[:197] + "..."


class Guarded(Generic[T]):
    """Base of all: whatever goes wrong inside becomes a CodecError that says with what."""

    name: str
    read_back: bool = False
    """Whether each value is read back before it is sent, and refused unless it is equal."""
    fills_in: bool = False
    """Whether what is read back may have keys that were not given: a schema's defaults."""

    def encode(self, value: T) -> bytes:
        """The bytes that are published. Raises CodecError."""
        try:
            return self._encode_checked(value) if self.read_back else self._encode(value)
        except Exception as error:
            raise CodecError(f"cannot encode this {type(value).__name__} as {self.name}: {short(str(error))}") from error

    def decode(self, data: bytes) -> T:
        """The value that a payload stands for. Raises CodecError."""
        try:
            return self._decode(data)
        except Exception as error:
            raise CodecError(f"cannot decode these {len(data)} bytes as {self.name}: {short(str(error))}") from error

    def _encode_checked(self, value: T) -> bytes:
        """Encode a value that is read back equal; raises for another one."""
        data = self._encode(value)
        try:
            read = self._decode(data)
        except Exception as error:
            raise ValueError(f"it could not be read back: {error}") from error
        if not self._equal(value, read) and (found := difference(value, read, fills_in=self.fills_in)):
            raise ValueError(found)
        return data

    def _equal(self, value: T, read: T) -> bool:
        """Tell soon whether they are equal; where they are not, :func:`difference` has the last word."""
        return bool(read == value)

    def _encode(self, value: Any) -> bytes:
        raise NotImplementedError

    def _decode(self, data: bytes) -> T:
        raise NotImplementedError


@dataclass(frozen=True)
class OwnCodec(Guarded[Any]):
    """A codec of the user's own, which answers for itself: its values are not read back."""

    inner: Any

    @property
    def name(self) -> str:  # type: ignore[override]
        """Its class."""
        return type(self.inner).__name__

    def _encode(self, value: Any) -> bytes:
        data = self.inner.encode(value)
        if not isinstance(data, bytes):
            raise TypeError(f"encode returned {type(data).__name__}, not bytes")
        return data

    def _decode(self, data: bytes) -> Any:
        return self.inner.decode(data)
