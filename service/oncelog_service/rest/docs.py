"""/openapi.json and /docs, both made from the table of addresses."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from typing import Any, Literal

from pydantic import TypeAdapter

import oncelog
from oncelog.errors import all_errors
from oncelog.wire.codec import avro_source
from oncelog.wire.media import AVRO, JSON, PROBLEM
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.foreign import CSP, SHUT
from oncelog_service.rest.routes import Route
from oncelog_service.rest.table import ROUTES

_MAY_BE_PACKED = "May come packed, and says so then: `Content-Encoding: gzip`."
_PACKED_ANSWERS = "Answers are packed where the request asks for it (`Accept-Encoding: gzip`) and where that makes them smaller."

_PROBLEM_SCHEMA = {
    "type": "object",
    "description": "RFC 9457, and the values one needs to go on as further members.",
    "required": ["title", "status", "code", "detail", "definite"],
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "enum": sorted({kind.code for kind in all_errors() if kind.status is not None})},
        "detail": {"type": "string"},
        "definite": {"type": "boolean", "description": "true: certainly not done; false: may have been done, repeat it"},
    },
}


def openapi(routes: Sequence[Route] = ROUTES) -> dict[str, Any]:
    """The OpenAPI 3.1 description of these addresses."""
    paths: dict[str, dict[str, Any]] = {}
    schemas, models = _schemas(routes)
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "oncelog",
            "version": oncelog.__version__,
            "description": f"A log where every message lands once. {_PACKED_ANSWERS}",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM_SCHEMA, **models},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def openapi_answer(routes: Sequence[Route] = ROUTES) -> Answer:
    """/openapi.json."""
    return Answer(json.dumps(openapi(routes), indent=1).encode(), JSON)


def _schemas(routes: Sequence[Route]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON schema of each type that is taken or given, by its name, and those of the models in them."""
    inputs: list[tuple[str, Literal["serialization"], TypeAdapter[Any]]] = [
        (str(kind), "serialization", TypeAdapter(kind))
        for route in routes
        for kind in (*route.request.values(), *route.response.values())
        if not isinstance(kind, str)
    ]
    found, shared = TypeAdapter.json_schemas(inputs, ref_template="#/components/schemas/{model}")
    return {str(name): schema for (name, _), schema in found.items()}, shared["$defs"]


def _operation(route: Route, schemas: Mapping[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{route.handler.__module__.rsplit('.', 1)[-1]}.{route.handler.__name__.rstrip('_')}",
        "tags": [route.handler.__module__.rsplit(".", 1)[-1]],
        "summary": route.summary,
        "description": re.sub(r"\s*\n\s*", " ", (route.handler.__doc__ or "").strip()),
        "responses": {"200": {"description": "Done.", "content": _content(route.response, schemas)}},
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    parameters += [
        {"name": name, "in": "query", "description": meaning, "schema": {"type": "string"}}
        for name, meaning in route.query.items()
    ]
    if parameters:
        operation["parameters"] = parameters
    if route.request:
        operation["requestBody"] = {"description": _MAY_BE_PACKED, "content": _content(route.request, schemas)}
    for error in route.errors:
        entry = operation["responses"].setdefault(
            str(error.status),
            {"description": "", "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}},
        )
        entry["description"] = f"{entry['description']} `{error.code}`: {(error.__doc__ or '').strip()}".strip()
    return operation


def _content(bodies: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    return {
        media: {"schema": _avro(media, kind) if isinstance(kind, str) else schemas[str(kind)]} for media, kind in bodies.items()
    }


def _avro(media: str, name: str) -> dict[str, Any]:
    source = avro_source(media, name)
    if media == JSON:
        return {"description": f"Avro's JSON encoding of {name} (see the other media types)", "x-avro-schema": source}
    return {"type": "string", "format": "binary", "x-avro-schema": source}


# --- the page -----------------------------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 14px/1.45 ui-monospace, monospace; }
pre { background: var(--soft); padding: .8rem; overflow: auto; border-radius: .4rem; }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .4rem 0; }
summary { cursor: pointer; padding: .5rem .8rem; display: flex; gap: .8rem; flex-wrap: wrap; align-items: baseline; }
details > div { padding: 0 1rem 1rem; }
.method { font-weight: 600; min-width: 4.2rem; }
.GET { color: #27c; } .POST { color: #293; } .PUT { color: #b60; } .DELETE { color: #c33; }
.what { color: GrayText; } td, th { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top; }
"""


_POLICY = f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'; {SHUT}"
"""The page's own style, and nothing else."""


def docs_answer(routes: Sequence[Route] = ROUTES) -> Answer:
    """/docs: one page, no script, nothing loaded from elsewhere."""
    sections = "".join(
        _section(path, method, operation) for path, each in openapi(routes)["paths"].items() for method, operation in each.items()
    )
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>oncelog {oncelog.__version__}</title><style>{_STYLE}</style>"
        f"<h1>oncelog {oncelog.__version__}</h1><p>A log where every message lands once. Everything this service answers; for "
        f'programs, as <a href="/openapi.json">/openapi.json</a>.</p>{sections}</html>'
    )
    return Answer(page.encode(), "text/html; charset=utf-8", headers={CSP: _POLICY})


def _section(path: str, method: str, operation: dict[str, Any]) -> str:
    verb = method.upper()
    rows = "".join(
        f"<tr><td><code>{status}</code><td>{_inline(response['description'])}"
        for status, response in operation["responses"].items()
    )
    query = "".join(
        f"<p><code>?{escape(each['name'])}=</code> {escape(each['description'])}</p>"
        for each in operation.get("parameters", ())
        if each["in"] == "query"
    )
    return (
        f'<details id="{operation["operationId"]}"><summary><code class="method {verb}">{verb}</code><code>{escape(path)}</code>'
        f'<span class="what">{escape(operation["summary"])}</span></summary><div><p>{_inline(operation["description"])}</p>'
        f"{query}{_bodies('Request', operation.get('requestBody', {}))}<table>{rows}</table>"
        f"{_bodies('Answer', operation['responses']['200'])}</div></details>"
    )


def _bodies(what: str, holder: dict[str, Any]) -> str:
    parts = []
    for media, body in holder.get("content", {}).items():
        schema = body["schema"].get("x-avro-schema", body["schema"])
        if media == JSON and "x-avro-schema" in body["schema"]:
            parts.append(f"<h4>{what} <code>{media}</code></h4><p>{escape(body['schema']['description'])}</p>")
        else:
            kind = "Avro schema" if media == AVRO or media.endswith("avro") else "schema"
            parts.append(
                f"<h4>{what} <code>{escape(media)}</code> ({kind})</h4><pre>{escape(json.dumps(schema, indent=1))}</pre>"
            )
    return "".join(parts)


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
