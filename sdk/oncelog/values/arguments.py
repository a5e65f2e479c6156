"""Judges what callers give that is no number, where it is given: see :mod:`oncelog.values.numbers`. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def check_flag(name: str, flag: object) -> None:
    """Raises TypeError for what is no bool: ``"no"`` would be taken for True."""
    if not isinstance(flag, bool):
        raise TypeError(f"{name} is True or False, not {flag!r}")


def check_mapping(name: str, given: object) -> None:
    """Raises TypeError for what has no entries by name; None is none at all."""
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"{name} is a dict, not {_article(given)}")


def check_call(name: str, given: object) -> None:
    """Raises TypeError for what cannot be called."""
    if not callable(given):
        raise TypeError(f"{name} is a function, not {given!r}")


def check_kind(name: str, given: object, kind: type | tuple[type, ...], what: str) -> None:
    """Raises TypeError for what is not of the kind, in words ``what``. It shows no value, which may be a URL with a password."""
    if not isinstance(given, kind):
        raise TypeError(f"{name} is {what}, not {_article(given)}")


def _article(given: object) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else f"of type {type(given).__name__}"
