"""How values are written on the command line. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from oncelog.message_id import MessageId

if TYPE_CHECKING:
    from oncelog.values.start import Start


class Switch(StrEnum):
    """On or off."""

    ON = "on"
    OFF = "off"


class Policy(StrEnum):
    """On, off, or what holds one level up."""

    ON = "on"
    OFF = "off"
    INHERIT = "inherit"

    @property
    def value_on_wire(self) -> bool | None:
        """True, False, or None to inherit."""
        return None if self is Policy.INHERIT else self is Policy.ON


class Full(StrEnum):
    """What a topic does that has as many bytes as it may have."""

    REFUSE = "refuse"
    TRIM = "trim"


def parse_properties(texts: Sequence[str]) -> dict[str, str]:
    """``name=value`` each. Raises BadParameter."""
    return parse_pairs(texts, "a property is name=value", "--property")


def parse_pairs(texts: Sequence[str], rule: str, option: str) -> dict[str, str]:
    """Names and values with a = between them. Raises BadParameter, which begins with the ``rule``."""
    pairs = [text.partition("=") for text in texts]
    for text, (name, equals, _) in zip(texts, pairs, strict=True):
        if not name or not equals:
            raise typer.BadParameter(f"{rule}, not {text!r}", param_hint=option)
    return {name: value for name, _, value in pairs}


def parse_start(text: str, inclusive: bool, option: str = "--from") -> Start:
    """``earliest``, ``latest``, a message id of 40 hex digits, an offset, or an ISO time. Raises BadParameter."""
    start = _start(text, option)
    if inclusive and not isinstance(start, MessageId):
        raise typer.BadParameter(
            "goes with a message id; an offset or a time includes the message there", param_hint="--inclusive"
        )
    return start


def _start(text: str, option: str) -> Start:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if re.fullmatch(r"[0-9a-fA-F]{40}", text):
        return MessageId.parse(text)
    if re.fullmatch(r"[0-9]{1,19}", text) and int(text) < 2**63:
        return int(text)
    return parse_time(text, option, "neither earliest, latest, a message id of 40 hex digits, an offset, nor")


def parse_bound(text: str, option: str) -> int | datetime:
    """An offset, or an ISO time. Raises BadParameter."""
    if re.fullmatch(r"[0-9]{1,19}", text) and int(text) < 2**63:
        return int(text)
    return parse_time(text, option, "neither an offset nor")


def parse_message_id(text: str, option: str) -> MessageId:
    """A message id of 40 hex digits. Raises BadParameter."""
    if not re.fullmatch(r"[0-9a-fA-F]{40}", text):
        raise typer.BadParameter(f"{text!r} is no message id of 40 hex digits", param_hint=option)
    return MessageId.parse(text)


def parse_time(text: str, option: str, instead: str = "not") -> datetime:
    """An ISO time, without a zone this machine's. Raises BadParameter; ``instead`` completes its sentence."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is {instead} an ISO time such as 2026-01-31T12:00:00Z", param_hint=option) from None
