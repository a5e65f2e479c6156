"""Format strings of `oncelog read`: ``{offset} {key} {payload}\\n``. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial

import typer

from oncelog import Message
from oncelog_service.cli.messages.filters import at, json_of, text_of
from oncelog_service.cli.output import iso_time

Form = Callable[[Message[bytes]], bytes]

_PART = re.compile(r"(?s)\{\{|\}\}|\{([^{}]*)\}|\\(x[0-9a-fA-F]{2}|.)|([^{}\\]+)|(.)")
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

FIELDS: Mapping[str, Form] = {
    "offset": lambda message: b"%d" % message.offset,
    "message_id": lambda message: str(message.message_id).encode(),
    "publish_timestamp": lambda message: b"%d" % message.publish_timestamp,
    "publish_time": lambda message: (iso_time(message.publish_timestamp) or "").encode(),
    "producer": lambda message: (message.producer or "").encode(),
    "sequence_id": lambda message: b"" if message.sequence_id is None else b"%d" % message.sequence_id,
    "key": lambda message: message.key or b"",
    "payload": lambda message: message.payload,
    "bytes": lambda message: b"%d" % len(message.payload),
    "properties": lambda message: json.dumps(message.properties, ensure_ascii=False).encode("utf-8", "backslashreplace"),
}
"""What may stand in braces; and ``property.NAME``, ``field.PATH``."""


def parse(text: str) -> Form:
    """What makes the bytes of a message. Nothing is added to them. Raises BadParameter."""
    parts: list[bytes | Form] = []
    for found in _PART.finditer(text):
        field, escape, plain, stray = found.groups()
        if field is not None:
            parts.append(_field(field))
        elif escape is not None:
            parts.append(_escaped(escape))
        elif stray is not None:
            raise typer.BadParameter(f"{stray!r} alone; write {stray * 2} for it", param_hint="--format")
        else:
            parts.append((plain or found[0][0]).encode("utf-8", "surrogateescape"))
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


def _field(name: str) -> Form:
    kind, dot, rest = name.partition(".")
    if dot and rest and kind == "property":
        return partial(_property, rest)
    if dot and rest and kind == "field":
        return partial(_member, rest)
    if name not in FIELDS:
        there = ", ".join([*FIELDS, "property.NAME", "field.PATH"])
        raise typer.BadParameter(f"there is no {{{name}}}; there are {there}", param_hint="--format")
    return FIELDS[name]


def _property(name: str, message: Message[bytes]) -> bytes:
    return message.properties.get(name, "").encode()


def _member(path: str, message: Message[bytes]) -> bytes:
    return text_of(at(json_of(message.payload), path))


def _escaped(escape: str) -> bytes:
    if escape.startswith("x") and len(escape) == 3:
        return bytes.fromhex(escape[1:])
    if escape not in _ESCAPES:
        raise typer.BadParameter(f"\\{escape} is none of \\n \\t \\r \\0 \\\\ \\xHH", param_hint="--format")
    return _ESCAPES[escape]
