"""Bodies in and out of the handlers. No body keeps the event loop: what is large is decoded and encoded on a thread.

What one may hold is counted before it is decoded. So much of Avro is decoded at once as takes no more than some milliseconds;
where there is more, a thread begins anew. It is Python, so the event loop has its turns. A parser of JSON has none to give:
hence the bound on values.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from oncelog.errors import InvalidRequest, RequestTooLarge, UnsupportedMediaType
from oncelog.wire.codec import decode_json
from oncelog.wire.media import AVRO, JSON, essence
from oncelog.wire.models import Resource
from oncelog_service.bounds import cdap
from oncelog_service.bounds.slices import slices
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.routes import Call

M = TypeVar("M", bound=BaseModel)

_TEXTS = TypeAdapter(dict[str, str], config=ConfigDict(strict=True))
_LARGEST_INT = 19
"""Digits of 2^63 - 1."""

AT_ONCE_ITEMS = 4_000
"""Of arrays and maps in Avro: the properties of 2,000 messages, 8 ms."""
AT_ONCE_BYTES = 16 * 2**10
"""Of JSON: at worst as many empty objects as take 10 ms."""
MAX_JSON_VALUES = 100_000
"""In a JSON body; as many as a parser takes 20 ms for."""
_ITEMS_A_MESSAGE = 20
"""In an Avro body, on the average: an entry in each column, and properties."""

P = ParamSpec("P")
R = TypeVar("R")

_MAX_PROBLEMS = 1_000
_SAID, _NAMED, _DEEP = 300, 50, 5
"""Characters of what is wrong with a value, and of each name on the way to it, and how many of these are said."""
MAX_LISTED = 2_000
"""In one page of a list: 20 ms."""
_LISTED = 1_000


def json_answer(value: object) -> Answer:
    """A model, or what may hold models, as a JSON body."""
    return Answer(_dumped(value).encode() + b"\n", JSON)


_ENCODED_AT_ONCE = 50
"""Models of a list: half a millisecond."""


async def json_in_slices(call: Call, value: object) -> Answer:
    """The same; of a long list, or a long object, some entries at a time, and others have their turns in between."""
    if not isinstance(value, list | dict) or len(value) <= _ENCODED_AT_ONCE:
        return json_answer(value)
    texts = []
    async with call.service.shares.alone(call.standing.who):
        for part in slices(value.items() if isinstance(value, dict) else value, _ENCODED_AT_ONCE):
            texts.append(_dumped(dict(part) if isinstance(value, dict) else part)[1:-1])
            await asyncio.sleep(0)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return Answer(f"{opening}{', '.join(texts)}{closing}\n".encode(), JSON)


def _dumped(value: object) -> str:
    return json.dumps(value, default=Resource.to_wire)


async def off_loop(call: Call, large: bool, holds: bool, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """``work(...)``, on a thread if it is ``large`` (bounds/shares.py). ``holds``: others wait for what this request holds."""
    return await call.service.shares.apart(call.standing.who, holds, work, *args, **kwargs) if large else work(*args, **kwargs)


async def taken_in(call: Call, large: bool, holds: bool, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """The same of what a request has brought: what is done with that next may be large, too. Raises as :meth:`Call.still`."""
    found = await off_loop(call, large, holds, work, *args, **kwargs)
    if large:
        await call.service.shares.turn(call.standing.who, holds=holds)
    call.still()
    return found


async def decoded(call: Call, decode: Callable[[str, bytes, int], R], *, holds: bool = False) -> R:
    """The body by one of the codec's functions. ``holds``: as above. Raises as it does, and as :meth:`Call.still`."""
    if essence(call.content_type) == JSON:
        large = len(call.body) > AT_ONCE_BYTES
        return await taken_in(call, large, holds, decode, call.content_type, call.body, MAX_JSON_VALUES)
    try:
        found = decode(call.content_type, call.body, AT_ONCE_ITEMS)
    except RequestTooLarge:
        settings = call.service.settings
        most = _ITEMS_A_MESSAGE * max(settings.max_messages, AT_ONCE_ITEMS)
        if settings.cdap_clients and essence(call.content_type) == AVRO:
            most = max(most, cdap.MESSAGES)
        return await taken_in(call, True, holds, decode, call.content_type, call.body, most)
    call.still()
    return found


async def read_json(call: Call, what: str) -> Any:
    """The body as JSON; an empty body is an empty object. Raises UnsupportedMediaType, InvalidRequest, RequestTooLarge; and as
    :meth:`Call.still`."""
    return await taken_in(call, len(call.body) > AT_ONCE_BYTES, False, _json, call, what)


def _json(call: Call, what: str) -> Any:
    if not call.body:
        return {}
    media = essence(call.content_type)
    if media != JSON:
        raise UnsupportedMediaType(f"Content-Type {media[:100] or '(none)'} is not read here; use {JSON}")
    return decode_json(call.body, what, MAX_JSON_VALUES)


async def read_model(call: Call, kind: type[M]) -> M:
    """The body as a model. Raises UnsupportedMediaType, InvalidRequest, RequestTooLarge; and as :meth:`Call.still`."""
    return await taken_in(call, len(call.body) > AT_ONCE_BYTES, False, _model, call, kind)


def _model(call: Call, kind: type[M]) -> M:
    value = _json(call, kind.__name__)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise InvalidRequest(f"the body is not a {kind.__name__}: {_problems(error)}") from error


def _problems(error: ValidationError) -> str:
    """Names the first ones; of very many none, since pydantic would make all of them without letting others have a turn."""
    if error.error_count() > _MAX_PROBLEMS:
        return f"{error.error_count()} of its values are wrong, too many to name one"
    return "; ".join(f"{_place(problem['loc'])}: {problem['msg'][:_SAID]}" for problem in error.errors()[:5])


def _place(names: tuple[int | str, ...]) -> str:
    """Where in the body it is: a client chooses the names of what no model has."""
    return ".".join(str(name)[:_NAMED] for name in names[:_DEEP]) or "the body"


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


def query_optional_int(call: Call, name: str) -> int | None:
    """The same, or None. Raises InvalidRequest."""
    return query_int(call, name) if name in call.query else None


def query_texts(call: Call, name: str) -> dict[str, str] | None:
    """A JSON object of strings in the query, or None. Raises InvalidRequest."""
    if name not in call.query:
        return None
    try:
        return _TEXTS.validate_json(call.query[name])
    except ValidationError as error:
        raise InvalidRequest(f"{name} is a JSON object of strings, not {call.query[name][:100]!r}") from error


def query_limit(call: Call) -> int:
    """How many a list is to hold at most. Raises InvalidRequest."""
    limit = query_int(call, "limit", _LISTED)
    if not 1 <= limit <= MAX_LISTED:
        raise InvalidRequest(f"limit is 1 to {MAX_LISTED}, not {limit}")
    return limit
