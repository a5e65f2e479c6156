"""Which messages `oncelog read` prints. Pure. The service sends all of them; they are chosen here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import typer

from oncelog import Message

_NOTHING = object()


class Filter(NamedTuple):
    """What a message must have, all of it."""

    key: bytes | None = None
    properties: Mapping[str, str] = {}
    fields: Sequence[tuple[str, str]] = ()
    """Paths into a payload of JSON, and the values there."""

    @property
    def is_empty(self) -> bool:
        """Whether it lets everything through."""
        return self.key is None and not self.properties and not self.fields

    def matches(self, message: Message[bytes]) -> bool:
        """Whether the message has it."""
        if self.key is not None and message.key != self.key:
            return False
        if self.properties and not self.properties.items() <= message.properties.items():
            return False
        if not self.fields:
            return True
        value = json_of(message.payload)
        return all(_equals(at(value, path), text) for path, text in self.fields)


def parse_fields(texts: Sequence[str]) -> list[tuple[str, str]]:
    """``path=value`` each. Raises BadParameter."""
    pairs = [text.partition("=") for text in texts]
    for text, (path, equals, _) in zip(texts, pairs, strict=True):
        if not path or not equals:
            raise typer.BadParameter(f"a field is path=value, such as order.id=17, not {text!r}", param_hint="--field")
    return [(path, value) for path, _, value in pairs]


def json_of(payload: bytes) -> Any:
    """The value of a payload; something that has no fields where it is no JSON."""
    try:
        return json.loads(payload.decode())
    except (ValueError, RecursionError):
        return _NOTHING


def at(value: Any, path: str) -> Any:
    """What stands there: names of members and places in arrays, with dots between. If nothing does: what equals nothing."""
    for step in path.split("."):
        if isinstance(value, dict):
            value = value.get(step, _NOTHING)
        elif isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return _NOTHING
    return value


def text_of(value: Any) -> bytes:
    """A value as it is printed: a text as it is, anything else as JSON, and nothing where it is not there."""
    if value is _NOTHING:
        return b""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def _equals(value: Any, text: str) -> bool:
    """A text equals what is written; anything else, what that is as JSON. A truth value is no number."""
    if value is _NOTHING:
        return False
    if isinstance(value, str):
        return value == text
    try:
        wanted = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)
