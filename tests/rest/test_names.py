"""A text that is no name is refused in the step that reads it: it is the key of nothing, and its refusal is short.

What is asked here is made from the table of addresses, the models and the schemas, so that a new field is asked for as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin
from urllib.parse import clear_cache, quote  # type: ignore[attr-defined]

import pytest
from pydantic import BaseModel

from oncelog.wire.codec import avro_source, encode
from oncelog.wire.media import JSON, ONCELOG_AVRO
from oncelog_service.rest.routes import Route
from oncelog_service.rest.table import ROUTES
from tests.access.carrying import Carrying
from tests.rest.talk import ANY, TIMEOUT
from tests.world.memory import texts_as_long_as
from tests.world.service import RunningService, running_service

LONG, LONG_IN_A_HEAD = 2**18, 40_000
MARK = "no-name"
"""Begins each of these texts."""
SHORT = 1_500
"""Bytes of a refusal: what it repeats of a name, what names are, and what an error is."""

DATA = {
    "Changes.changes": "keys of the client's own, bounded in number and bytes by the transaction service",
    "PublishRequest.properties": "of messages, and stored with them",
}
"""Texts that are no names: what they are."""


class Asked(NamedTuple):
    """A request with a text in one place that must be short there."""

    route: Route
    place: str
    body: Any = None
    schema: str = ""
    """Of a body that has one."""
    query: str = ""
    path: Mapping[str, str] = ANY
    media: str = ""
    """Instead of those that it has."""


def long(place: str, size: int = LONG) -> str:
    return f"{MARK}-{place}-".ljust(size, "x")


# --- bodies that are models


def bodies_of(model: type[BaseModel]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A body for each place in it that holds a text: with a long one there."""
    good = {field.alias or name: example(field.annotation) for name, field in model.model_fields.items() if field.is_required()}
    yield f"{model.__name__}.(unknown)", {**good, long(f"{model.__name__}.(unknown)"): 1}
    for name, field in model.model_fields.items():
        place = f"{model.__name__}.{name}"
        for value in longs_of(field.annotation, place):
            yield place, {**good, field.alias or name: value}


def longs_of(kind: Any, place: str) -> Iterator[Any]:
    """Values of a type, each with one long text."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is str or origin is Literal:
        yield long(place)
    elif origin is Annotated:
        yield from longs_of(inner[0] if inner[0] is not Any else str, place)
        if inner[0].__name__ == "MessageId":
            yield long(place)
    elif origin in (Union, UnionType):
        for each in inner:
            yield from longs_of(each, place)
    elif origin is list:
        yield from ([each] for each in longs_of(inner[0], place))
    elif origin is dict:
        yield from ({each: example(inner[1])} for each in longs_of(inner[0], place))
        yield from ({"t": each} for each in longs_of(inner[1], place))
    elif isinstance(kind, type) and kind.__name__ == "MessageId":
        yield long(place)
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        yield from (body for _, body in bodies_of(kind))
    else:
        assert kind in (int, bool, type(None)), f"{place}: {kind} may hold a text"


def example(kind: Any) -> Any:
    """A value of a type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return example(inner[0])
    if origin in (Union, UnionType):
        return example(inner[0])
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {
            field.alias or name: example(field.annotation) for name, field in kind.model_fields.items() if field.is_required()
        }
    return {str: "t", int: 1, bool: True, list: [], dict: {}}[origin or kind]


# --- bodies that have a schema

_GOOD: dict[str, dict[str, Any]] = {
    "PublishRequest": {"messages": [b"x"]},
    "CommitRequest": {"group": "g", "parts": [], "branches": []},
    "ConsumeRequest": {},
    "PublishResponse": {"receipts": [], "transactionWritePointer": 5}
    | dict.fromkeys(("startTimestamp", "startSequenceId", "endTimestamp", "endSequenceId"), 0),
}


def records_of(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A record for each place in it that holds a text: with a long one there."""
    yield from _within(avro_source(ONCELOG_AVRO, name), _GOOD[name])


def _within(schema: Any, good: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for field in schema["fields"]:
        place = f"{schema['name']}.{field['name']}"
        for inner, value in _texts(field["type"], place):
            yield inner, {**good, field["name"]: value}


def _texts(schema: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Values of a type, each with one long text, and where that stands."""
    if isinstance(schema, list):
        for each in schema:
            yield from _texts(each, place)
    elif schema == "string":
        yield place, long(place)
    elif isinstance(schema, dict):
        match schema["type"]:
            case "array":
                yield from ((inner, [each]) for inner, each in _texts(schema["items"], place))
            case "map":
                yield place, {long(place): "x" if schema["values"] == "string" else 7}
            case "record":
                name = schema["name"]
                good = _GOOD.get(name) or {"namespace": "default", "topic": "t", "request": _GOOD["PublishRequest"]}
                if name != "Receipt" and "Message" not in name:
                    yield from _within(schema, good)


# --- everything that is asked


def asked() -> Iterator[Asked]:
    """A request for each place of each address that takes a text."""
    for route in ROUTES:
        for kind in (each for each in ANY if f"{{{each}}}" in route.path):
            yield Asked(route, kind, path={**ANY, kind: long(kind, LONG_IN_A_HEAD)})
        for parameter in route.query:
            yield Asked(route, parameter, query=f"{parameter}={long(parameter, LONG_IN_A_HEAD)}")
        if route.request:
            yield Asked(route, "content-type", {}, media=long("content-type", LONG_IN_A_HEAD))
        if route.model is not None:
            for place, body in bodies_of(route.model):
                yield Asked(route, place, body)
        for schema in {each for each in route.request.values() if isinstance(each, str)}:
            for place, record in records_of(schema):
                yield Asked(route, place, record, schema)


def sendings(request: Asked) -> Iterator[tuple[bytes, str]]:
    """The body in each encoding that it has here; of data none."""
    if request.place in DATA:
        return
    if not request.schema:
        yield json.dumps(request.body).encode() if request.body is not None else b"", request.media or JSON
        return
    for media in (JSON, ONCELOG_AVRO):
        yield encode(request.schema, media, request.body), media


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with running_service() as service:
        yield service


def test_every_name_of_every_address_is_refused_where_it_is_read_and_nothing_keeps_it(service: RunningService) -> None:
    admin = Carrying(service.url)
    admin = admin.carrying(admin.make("ada", "admin")["secret"])
    admin.good("PUT", "/v1/namespaces/default/topics/t", json={"check.expected.offsets": True})
    wrong: list[str] = []
    places = 0
    for request in asked():
        path = request.route.path
        for name, value in request.path.items():
            path = path.replace(f"{{{name}}}", quote(value, safe="/:"))
        for body, media in sendings(request):
            places += 1
            answer = admin.session.request(
                request.route.method,
                f"{service.url}{path}?{request.query}",
                data=body,
                headers={"content-type": media},
                timeout=TIMEOUT,
            )
            told = f"{request.route.method} {request.route.path}, {request.place} in {media[:40]}: {answer.status_code}"
            if not (400 <= answer.status_code < 500 or request.query):
                wrong.append(f"{told} {answer.text[:200]}")
            elif len(answer.content) > SHORT and answer.status_code >= 400:
                wrong.append(f"{told} is answered with {len(answer.content)} bytes: {answer.text[:200]}")
    assert not wrong, "\n".join(wrong)
    assert places > 100
    admin.good("GET", "/v1/namespaces")  # a connection has the head of its last request
    admin.session.close()
    del request, body, answer
    clear_cache()  # of the client's own
    kept = sorted({each for each in texts_as_long_as(LONG_IN_A_HEAD // 2) if MARK in each})
    assert not kept


def test_what_is_kept_is_found() -> None:
    class Holder:
        counts: Mapping[str, int]

    holder = Holder()
    holder.counts = {long("planted"): 1}
    assert [each for each in texts_as_long_as(LONG) if f"{MARK}-planted" in each] == [long("planted")[:40]]
