"""Pydantic's models as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from oncelog.codecs.guarded import Guarded

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class PydanticCodec(Guarded[M]):
    """A model's JSON, validated on the way back.

    Each model is read back before it is sent, and one whose fields are not equal then is a CodecError: NaN and infinities where
    the model's configuration writes them as null, secrets, excluded fields, a field that is written under another alias than it
    is read by, a subclass of the model. ``read_back=False`` leaves that out.
    """

    model: type[M]
    read_back: bool = True

    @property
    def name(self) -> str:  # type: ignore[override]
        """The model's."""
        return self.model.__name__

    def _encode(self, value: Any) -> bytes:
        if not isinstance(value, self.model):
            raise TypeError(f"not a {self.name}")
        # round_trip leaves computed fields out, which a strict model would refuse to read back; aliases as validation wants them.
        by_alias = bool(self.model.model_config.get("validate_by_alias", True))
        return value.model_dump_json(by_alias=by_alias, round_trip=True, warnings="error").encode("utf-8")

    def _decode(self, data: bytes) -> M:
        return self.model.model_validate_json(data)

    def _equal(self, value: M, read: M) -> bool:
        # What a model's own == looks at in a quarter of its time; private attributes are no part of a message.
        return (
            type(value) is type(read)
            and value.__dict__ == read.__dict__
            and (value.__pydantic_extra__ or None) == (read.__pydantic_extra__ or None)
        )
