"""JSON in and out of the handlers that are not on the hot path."""

from __future__ import annotations

import json
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from oncelog.errors import InvalidRequest, UnsupportedMediaType
from oncelog.wire.codec import decode_json
from oncelog.wire.media import JSON, essence
from oncelog.wire.models import AbortTransaction, Changes, StartTransaction
from oncelog_service.rest.routes import Answer, Call

M = TypeVar("M", bound=BaseModel)

_DEFAULTS: dict[type[BaseModel], BaseModel] = {kind: kind() for kind in (StartTransaction, Changes, AbortTransaction)}
"""What the frequent ones among the small requests mean when they say nothing; models are immutable."""

_LARGEST_INT = 19
"""Digits of 2^63 - 1."""

MAX_LISTED = 10_000
_LISTED = 1_000


def json_answer(value: Any, status: int = 200) -> Answer:
    """A JSON body."""
    return Answer(json.dumps(value).encode() + b"\n", JSON, status)


def read_json(call: Call, what: str) -> Any:
    """The body as JSON; an empty body is an empty object. Raises UnsupportedMediaType, InvalidRequest."""
    if not call.body:
        return {}
    media = essence(call.content_type)
    if media not in (JSON, ""):
        raise UnsupportedMediaType(f"Content-Type {media} is not read here; use {JSON}")
    return decode_json(call.body, what)


def read_model(call: Call, kind: type[M]) -> M:
    """The body as a model; an empty one where everything has a default. Raises UnsupportedMediaType, InvalidRequest."""
    if not call.body and kind in _DEFAULTS:
        return cast(M, _DEFAULTS[kind])
    value = read_json(call, kind.__name__)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'the body'}: {problem['msg']}" for problem in error.errors()[:5]
        )
        raise InvalidRequest(f"the body is not a {kind.__name__}: {problems}") from error


def query_int(call: Call, name: str, default: int | None = None) -> int:
    """A whole number from the query. Raises InvalidRequest."""
    text = call.query.get(name)
    if text is None:
        if default is None:
            raise InvalidRequest(f"the query parameter {name} is missing")
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _LARGEST_INT):
        raise InvalidRequest(f"the query parameter {name} must be a whole number, not {text[:50]!r}")
    return int(text)


def query_limit(call: Call) -> int:
    """How many a list is to hold at most. Raises InvalidRequest."""
    limit = query_int(call, "limit", _LISTED)
    if not 1 <= limit <= MAX_LISTED:
        raise InvalidRequest(f"limit is 1 to {MAX_LISTED}, not {limit}")
    return limit
