"""Topic properties and namespace policies: what they are called, what they may be, which one holds. Pure.

Values are answered as strings, as in the TMS page; a number and a truth are taken as JSON has them, too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import NamedTuple

from oncelog.errors import InvalidRequest, TransactionalMismatch
from oncelog.wire.models import MAX_QUOTA, NamespacePolicies
from oncelog_service.bounds.quotas import UNLIMITED, Rates
from oncelog_service.bounds.size import MaxBytes
from oncelog_service.storage.records import TopicRow

TTL = "ttl"
"""Seconds that messages live, a whole number from 1; default a week, as in the TMS page."""
GENERATION = "generation"
"""Answered, never set."""
DEDUPLICATION = "deduplication"
"""`true` or `false`; left out, the namespace's policy holds, and without one the service's setting."""
CHECK_EXPECTED_OFFSETS = "check.expected.offsets"
"""`true` or `false`: whether a publish may carry expectations (conditional publish); left out, the service's setting holds."""

MAX_MESSAGES_PER_SECOND, MAX_BYTES_PER_SECOND = "max.messages.per.second", "max.bytes.per.second"
"""Whole numbers from 1: more is refused for a while; left out, the namespace's policies hold, else there is no limit."""

MAX_BYTES, MAX_BYTES_POLICY = "max.bytes", "max.bytes.policy"
"""What the messages of a topic may take, a whole number from 1, and whether one that is full refuses more (`refuse`, the default)
or trims its oldest messages (`trim`); left out, the namespace's policies hold, each by itself."""

TRANSACTIONAL = "transactional"
"""`both` (the default), `only` or `none`: whether messages may be published within transactions, must be, or must not be."""


class Rules(NamedTuple):
    """What holds for the messages of a topic."""

    deduplicates: bool = True
    rates: Rates = UNLIMITED
    """What it takes in a second."""
    max_bytes: MaxBytes | None = None
    """What its messages may take; None: there is no limit."""


DEFAULT_TTL = 604_800
MAX_TTL = 2**31 - 1
"""68 years: clients of the TMS page read it as an int."""
_TTL = re.compile(r"\+?[0-9]{1,15}", re.ASCII)
"""As Java reads a whole number: with a plus or without."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_NONE: Mapping[str, str] = {}

_QUOTAS = (MAX_MESSAGES_PER_SECOND, MAX_BYTES_PER_SECOND, MAX_BYTES)
_SETTABLE = (TTL, DEDUPLICATION, TRANSACTIONAL, CHECK_EXPECTED_OFFSETS, *_QUOTAS, MAX_BYTES_POLICY)
_MAX_UNKNOWN, _MAX_UNKNOWN_CHARACTERS = 32, 4_096
"""Properties that are kept for their clients without a meaning here, and the characters of all their names and values."""
_WORDS = {TRANSACTIONAL: ("both", "only", "none"), MAX_BYTES_POLICY: ("refuse", "trim")}


def check_properties(
    properties: object, generation: int | None = None, stored: Mapping[str, str] = _NONE, *, lenient: bool = False
) -> dict[str, str]:
    """The properties to keep of a topic. A ``generation`` equal to the present one is accepted and dropped.

    What is ``stored`` already, with the same value, may stay, whatever it is. ``lenient``: unknown names are kept, but for those
    that are nearly one of ours, and any ``generation`` is dropped, as CDAP's own service does.

    Raises:
        InvalidRequest: an unknown name, a value of another type (3600.0, null, a list), or one out of range.
    """
    if not isinstance(properties, Mapping):
        raise InvalidRequest('the properties of a topic are a JSON object, such as {"ttl": 3600}')
    kept: dict[str, str] = {}
    for name, given in properties.items():
        value = _as_text(name, given)
        if name == GENERATION:
            if not lenient and (generation is None or value != str(generation)):
                raise InvalidRequest("generation is counted by the service and cannot be set")
        elif stored.get(name) == value or (lenient and name not in _SETTABLE):
            kept[name] = value
        else:
            kept[name] = _check_property(name, value)
    unknown = {name: value for name, value in kept.items() if name not in _SETTABLE}
    _check_unknown(unknown)
    for name, value in unknown.items():  # behind the bounds: each name costs a comparison with all of ours
        if stored.get(name) != value and _is_slip(name):
            _check_property(name, value)
    return kept


def _check_unknown(properties: Mapping[str, str]) -> None:
    """Raises InvalidRequest: they are too many, or too long, or no text."""
    characters = sum(len(name) + len(value) for name, value in properties.items())
    if len(properties) > _MAX_UNKNOWN or characters > _MAX_UNKNOWN_CHARACTERS:
        raise InvalidRequest(
            f"{len(properties)} properties with {characters} characters have no meaning here; {_MAX_UNKNOWN} with "
            f"{_MAX_UNKNOWN_CHARACTERS} are the most that are kept"
        )
    if any(_SURROGATE.search(name + value) for name, value in properties.items()):
        raise InvalidRequest("half of a surrogate pair in a property is no text")


def told_properties(properties: Mapping[str, object]) -> dict[str, object]:
    """What may be told of properties in a log: the values of those alone that have a meaning, since another may be a secret."""
    return {name: value if name in (*_SETTABLE, GENERATION) else "…" for name, value in properties.items()}


def _as_text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raise InvalidRequest(f"property {name!r} is a string, a whole number, true or false, not {value!r}"[:300])


def _check_property(name: str, value: str) -> str:
    if name == TTL:
        if not (_TTL.fullmatch(value) and 0 < int(value) <= MAX_TTL):
            raise InvalidRequest(f"ttl is a whole number of seconds from 1 to {MAX_TTL}, not {value[:50]!r}")
    elif name in (DEDUPLICATION, CHECK_EXPECTED_OFFSETS):
        if value not in ("true", "false"):
            raise InvalidRequest(f"{name} is 'true' or 'false', not {value[:50]!r}")
    elif name in _QUOTAS:
        if not (value.isascii() and value.isdigit() and len(value) <= 15 and 0 < int(value) <= MAX_QUOTA):
            raise InvalidRequest(f"{name} is a whole number from 1 to {MAX_QUOTA}, not {value[:50]!r}")
    elif name in _WORDS:
        if value not in _WORDS[name]:
            raise InvalidRequest(f"{name} is one of {', '.join(_WORDS[name])}, not {value[:50]!r}")
    else:
        near = _near(name)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InvalidRequest(f"{name[:50]!r} is not a property of a topic ({', '.join(_SETTABLE)}){hint}")
    return value


def _near(name: str) -> list[str]:
    """The one of ours that somebody who writes this means, if there is one."""
    return difflib.get_close_matches(name.lower(), _SETTABLE, 1)


def _is_slip(name: str) -> bool:
    """Whether it is one of ours but for a letter or two, and as long within one: ``tll``, and not ``title``."""
    return any(abs(len(name) - len(near)) <= 1 for near in _near(name))


def shown_properties(properties: Mapping[str, str], generation: int) -> dict[str, str]:
    """What a GET answers: the ones that were set, and those that always have a value."""
    return {TTL: str(DEFAULT_TTL), **properties, GENERATION: str(generation)}


def ttl_ms(properties: Mapping[str, str]) -> int:
    """How long messages live, in milliseconds."""
    return int(properties.get(TTL, DEFAULT_TTL)) * 1000


def expired_before(row: TopicRow, now_ms: int, last_timestamp: int) -> int:
    """What must be remembered of expiry before the ttl is changed. What is published from now on, after ``last_timestamp``, has
    not expired, however far ahead the clock may have been."""
    return max(row.expired_before, min(now_ms - ttl_ms(row.properties) + 1, last_timestamp + 1))


def live_from(row: TopicRow, now_ms: int) -> int:
    """The first millisecond whose messages are young enough: published at t, a message lives before t + ttl.

    And what had expired under an earlier, shorter ttl does not come back.
    """
    return max(0, row.expired_before, now_ms - ttl_ms(row.properties) + 1)


def check_mode(properties: Mapping[str, str], transactional: bool) -> None:
    """Raises TransactionalMismatch where the topic does not take such messages."""
    mode = properties.get(TRANSACTIONAL, "both")
    if mode == ("none" if transactional else "only"):
        wants = "takes no transactional messages" if transactional else "takes transactional messages only: name a write pointer"
        raise TransactionalMismatch(f"the topic {wants} (its property transactional is {mode!r})", transactional=mode)


def deduplicates(topic: Mapping[str, str], namespace: bool | None, service: bool) -> bool:
    """Topic before namespace before service; null inherits."""
    if DEDUPLICATION in topic:
        return topic[DEDUPLICATION] == "true"
    return service if namespace is None else namespace


def checks_expectations(topic: Mapping[str, str], service: bool) -> bool:
    """Topic before service."""
    return topic[CHECK_EXPECTED_OFFSETS] == "true" if CHECK_EXPECTED_OFFSETS in topic else service


def rates(topic: Mapping[str, str], namespace: NamespacePolicies) -> Rates:
    """What a topic takes in a second. Topic before namespace, each by itself."""
    messages, size = topic.get(MAX_MESSAGES_PER_SECOND), topic.get(MAX_BYTES_PER_SECOND)
    found = Rates(
        namespace.max_messages_per_second if messages is None else int(messages),
        namespace.max_bytes_per_second if size is None else int(size),
    )
    return UNLIMITED if found == UNLIMITED else found


def max_bytes(topic: Mapping[str, str], namespace: NamespacePolicies) -> MaxBytes | None:
    """What a topic's messages may take, and what becomes of more; None: there is no limit. Topic before namespace, each by
    itself."""
    size = topic.get(MAX_BYTES)
    limit = namespace.max_bytes if size is None else int(size)
    if limit is None:
        return None
    return MaxBytes(limit, trims=topic.get(MAX_BYTES_POLICY, namespace.max_bytes_policy) == "trim")
