"""Names as they travel: what a text must look like to be one.

The invariant: a text is refused in the step that reads it, or is a name. What is no name is the key of nothing, neither of a map
nor of a counter nor of a cache, and a refusal says its first hundred characters again, no more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from oncelog.errors import InvalidRequest

LONGEST = 249
"""Characters of a name, as in Kafka: with a suffix of its own each still is the name of a file."""

NAMESPACE_PATTERN = re.compile(r"[A-Za-z0-9_]{1,249}", re.ASCII)
TOPIC_PATTERN = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9_.-]{1,249}", re.ASCII)
"""As those that follow not ``.`` or ``..``, which clients take out of an address."""
SUBSCRIPTION_PATTERN = TOPIC_PATTERN
PRODUCER_PATTERN = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9_.:@=-]{1,249}", re.ASCII)
ATOMIC_ID_PATTERN = PRODUCER_PATTERN
"""Ids of atomic commits, and names of groups."""
PARTICIPANT_PATTERN = re.compile(r"[0-9A-Za-z-]{1,64}:[!-~]{1,600}", re.ASCII)
"""``<store id>:<namespace>/<topic>/<generation>``."""

_SHOWN = 100
"""Characters of what is no name that its refusal repeats."""


def check_namespace(text: str) -> str:
    """Return the text if it names a namespace. Raises InvalidRequest, as all of these do, and TypeError for what is no text."""
    try:
        is_one = NAMESPACE_PATTERN.fullmatch(text)
    except TypeError:
        raise no_text(text, "a namespace") from None
    if not is_one:
        raise InvalidRequest(f"a namespace is 1 to {LONGEST} of the characters A-Z a-z 0-9 _, not {text[:_SHOWN]!r}")
    return text


def check_topic(text: str) -> str:
    """Return the text if it names a topic within its namespace."""
    return _checked(TOPIC_PATTERN, text, "a topic", "_ . -")


def check_subscription(text: str) -> str:
    """Return the text if it names a subscription."""
    return _checked(SUBSCRIPTION_PATTERN, text, "a subscription", "_ . -")


def check_producer(text: str) -> str:
    """Return the text if it names a producer."""
    return _checked(PRODUCER_PATTERN, text, "a producer's name", "_ . : @ = -")


def check_atomic_id(text: str, what: str = "the id of a transaction") -> str:
    """Return the text if it names an atomic commit, or a branch of one."""
    return _checked(ATOMIC_ID_PATTERN, text, what, "_ . : @ = -")


def check_group(text: str) -> str:
    """Return the text if it names a group of atomic commits."""
    return check_atomic_id(text, "the name of a group")


def check_participant(text: str) -> str:
    """Return the text if it names a participant of a transaction."""
    if not PARTICIPANT_PATTERN.fullmatch(text):
        raise InvalidRequest(f"that is no participant: {text[:_SHOWN]!r}")
    return text


def check_short(text: str, what: str) -> str:
    """Return the text if it is as short as a name, whatever its characters."""
    if not 1 <= len(text) <= LONGEST:
        raise InvalidRequest(f"{what} is 1 to {LONGEST} characters, not {len(text)}")
    return text


def no_text(text: object, what: str) -> TypeError:
    """Make the error for a name that is no text; ``what`` it names, in words."""
    return TypeError(f"{what} is a str, not {type(text).__name__}")


def _checked(pattern: re.Pattern[str], text: str, what: str, besides: str) -> str:
    try:
        is_one = pattern.fullmatch(text)
    except TypeError:
        raise no_text(text, what) from None
    if not is_one:
        raise InvalidRequest(
            f"{what} is 1 to {LONGEST} of the characters A-Z a-z 0-9 {besides}, but not . or .., not {text[:_SHOWN]!r}"
        )
    return text


IN_ADDRESSES: Mapping[str, Callable[[str], str]] = {
    "namespace": check_namespace,
    "topic": check_topic,
    "producer": check_producer,
    "subscription": check_subscription,
    "transaction": check_atomic_id,
    "group": check_group,
    "participant": check_participant,
    "writePointer": lambda text: check_short(text, "a write pointer"),
    "chunk": lambda text: check_short(text, "the number of a chunk"),
    "token": lambda text: check_short(text, "the id of a token"),
    "file": lambda text: check_short(text, "the name of a file"),
}
"""What stands in braces in the table of addresses, and its check."""
