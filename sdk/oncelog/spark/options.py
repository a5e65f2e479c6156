"""What options of a source and of a sink have in common: reading them, and saying so when one is not known."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence

from oncelog.spark.connection import Connection

SHARED = ("url", "namespace", "token", "topic", "retryTimeoutMs")
_SPARKS = frozenset({"path", "paths", "checkpointlocation", "queryname", "outputmode"})
"""Options of Spark's own that come along with ours."""

logger = logging.getLogger("oncelog.spark")


def lower_cased(given: Mapping[str, str]) -> dict[str, str]:
    """Names as Spark hands them over, whatever they were typed like."""
    return {name.lower(): value for name, value in given.items()}


def warn(text: str) -> None:
    """Tell a user, who sees warnings, and an operator, who sees logs."""
    warnings.warn(text, stacklevel=2)
    logger.warning(text)


def warn_of_unknown(given: Mapping[str, str], known: Iterable[str], of: str) -> None:
    """A misspelt option would else be silent. ``of``: "source" or "sink"; no value is shown, one may be a token.

    Logged once in a process: Spark makes reader and writer anew for every micro-batch.
    """
    unknown = given.keys() - {name.lower() for name in known} - _SPARKS
    if not unknown:
        return
    text = f"oncelog {of}: unknown option{'s' * (len(unknown) > 1)} {', '.join(sorted(unknown))}; known: {', '.join(known)}"
    warnings.warn(text, stacklevel=2)
    if text not in _logged:
        _logged.add(text)
        logger.warning(text)


_logged: set[str] = set()


def boolean(given: Mapping[str, str], name: str, default: bool) -> bool:
    """``true`` or ``false``. Raises ValueError."""
    text = given.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(f"option {name} is true or false, not {text!r}")
    return text.strip().lower() == "true"


def whole_number(given: Mapping[str, str], name: str, least: int) -> int | None:
    """A whole number, or None where the option is not given. Raises ValueError for another text and below ``least``."""
    text = given.get(name.lower())
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"option {name} is a whole number, not {text!r}") from None
    if number < least:
        raise ValueError(f"option {name} is at least {least}, not {number}")
    return number


def choice(given: Mapping[str, str], name: str, words: Sequence[str]) -> str:
    """One of these words, the first where the option is not given. Raises ValueError."""
    text = given.get(name.lower())
    if text is None:
        return words[0]
    if text.strip().lower() not in words:
        raise ValueError(f"option {name} is {' or '.join(words)}, not {text!r}")
    return text.strip().lower()


def one_of(given: Mapping[str, str], names: Collection[str]) -> str | None:
    """Which one of options that exclude each other is given. Raises ValueError for two."""
    there = [name for name in names if name.lower() in given]
    if len(there) > 1:
        raise ValueError(f"options {' and '.join(there)} exclude each other")
    return there[0] if there else None


def connection(given: Mapping[str, str]) -> Connection:
    """What url, namespace, token and retryTimeoutMs say."""
    retry_ms = whole_number(given, "retryTimeoutMs", 0)
    seconds = None if retry_ms is None else retry_ms / 1000
    return Connection.chosen(given.get("url"), given.get("namespace"), given.get("token"), seconds)
