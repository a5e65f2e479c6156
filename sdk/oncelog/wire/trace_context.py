"""What travels of a trace, as the W3C writes it: `traceparent`, and `tracestate` as far as it is by the book."""

from __future__ import annotations

import re
from collections.abc import Mapping

from oncelog.wire.media import TRACEPARENT, TRACESTATE

_LONGEST_PARENT, _LONGEST_STATE = 512, 8_192
_MOST_MEMBERS = 32
_MEMBER = re.compile(
    r"(?:[a-z][-_0-9a-z*/]{0,255}|[a-z0-9][-_0-9a-z*/]{0,240}@[a-z][-_0-9a-z*/]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


def carried(given: Mapping[str, str]) -> dict[str, str]:
    """Of headers or properties, in lower case, what says which trace they are part of.

    Anybody writes these, in every request and message, and OpenTelemetry logs a warning for each that it cannot read: such a
    `traceparent` counts as none, and such a `tracestate` is left out, as the recommendation has it.
    """
    parent, state = given.get(TRACEPARENT), given.get(TRACESTATE)
    if parent is None or len(parent) > _LONGEST_PARENT:
        return {}
    return {TRACEPARENT: parent} if state is None or not _is_state(state) else {TRACEPARENT: parent, TRACESTATE: state}


def _is_state(text: str) -> bool:
    if len(text) > _LONGEST_STATE:
        return False
    members = [member for each in text.split(",") if (member := each.strip(" \t"))]
    return len(members) <= _MOST_MEMBERS and all(map(_MEMBER.fullmatch, members))
