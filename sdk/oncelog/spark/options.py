"""What options of a source and of a sink have in common: reading them, and refusing one that is not known."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches

from oncelog.http.credentials import Secret
from oncelog.http.trust import Trust
from oncelog.spark.connection import Connection

SHARED = ("url", "namespace", "token", "tokenFile", "topic", "retryTimeoutMs", "ca", "cert", "key", "proxy")
_SPARKS = frozenset({"path", "paths", "checkpointlocation", "queryname", "outputmode"})
"""Options of Spark's own that come along with ours."""

logger = logging.getLogger("oncelog.spark")


_SECRETS = frozenset({"token", "url", "proxy"})
"""A URL may hold a password."""


def shaded(name: str, value: str, known: Collection[str]) -> str:
    """An option's value as text that no traceback shows, where it may be a secret: also under a name that is not known."""
    lower = name.lower()
    is_plain = lower not in _SECRETS and (lower in _SPARKS or any(lower == each.lower() for each in known))
    return value if is_plain else Secret(value)


def lower_cased(given: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """Names as Spark hands them over, whatever they were typed like; secrets :func:`shaded`."""
    return {name.lower(): shaded(name, value, known) for name, value in given.items()}


def warn(text: str) -> None:
    """Tell a user, who sees warnings, and an operator, who sees logs."""
    warnings.warn(text, stacklevel=2)
    logger.warning(text)


def refuse_unknown(given: Mapping[str, str], known: Sequence[str], of: str) -> None:
    """An option that is dropped changes what a job does. Raises ValueError, which says which one was meant.

    ``of``: "source" or "sink". No value is shown, one may be a token.
    """
    unknown = sorted(given.keys() - {name.lower() for name in known} - _SPARKS)
    if unknown:
        said = "; ".join(f"{name} ({_meant(name, known)})" for name in unknown)
        raise ValueError(f"oncelog {of}: unknown option{'s' * (len(unknown) > 1)} {said}. Known are {', '.join(known)}")


def _meant(name: str, known: Sequence[str]) -> str:
    """What to write instead."""
    if name.startswith("kafka."):
        return "there is no Kafka here; option url says where the service is"
    if name in _KAFKAS:
        return _KAFKAS[name]
    close = get_close_matches(name, {each.lower(): each for each in known}, 1)
    return f"did you mean {next(each for each in known if each.lower() == close[0])}?" if close else "there is none like it"


_KAFKAS = {
    "minoffsetspertrigger": "not supported: give the query a longer trigger",
    "maxtriggerdelay": "not supported: give the query a longer trigger",
    "maxrecordsperpartition": "not supported: minPartitions makes ranges smaller",
    "groupidprefix": "not supported: option subscription names where the position is shown",
    "kafkaconsumer.polltimeoutms": "retryTimeoutMs says how long a call is tried again",
    "fetchoffset.numretries": "retryTimeoutMs says how long a call is tried again",
    "fetchoffset.retryintervalms": "retryTimeoutMs says how long a call is tried again",
}
"""Options of Kafka's source that have no like here, and what to do."""


def boolean(given: Mapping[str, str], name: str, default: bool) -> bool:
    """``true`` or ``false``. Raises ValueError."""
    return choice(given, name, ("true", "false"), "true" if default else "false") == "true"


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


def choice(given: Mapping[str, str], name: str, words: Sequence[str], default: str | None = None) -> str | None:
    """One of these words, or ``default`` where the option is not given. Raises ValueError."""
    text = given.get(name.lower())
    if text is None:
        return default
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
    """What url, namespace, token, tokenFile, retryTimeoutMs, ca, cert, key and proxy say. Raises ValueError."""
    retry_ms = whole_number(given, "retryTimeoutMs", 0)
    seconds = None if retry_ms is None else retry_ms / 1000
    cert, key = given.get("cert"), given.get("key")
    trust = Trust.chosen(given.get("ca"), (cert, key) if cert is not None and key is not None else cert, given.get("proxy"))
    one_of(given, ("token", "tokenFile"))
    token, file = given.get("token"), given.get("tokenfile")
    return Connection.chosen(given.get("url"), given.get("namespace"), token, seconds, trust, file)


def service_options(url: str | None, namespace: str | None, token: str | None, token_file: str | None = None) -> dict[str, str]:
    """Of the data source; what is None is left to its defaults (ONCELOG_URL, ONCELOG_TOKEN)."""
    given = {"url": url, "namespace": namespace, "token": token, "tokenFile": token_file}
    return {name: value for name, value in given.items() if value is not None}


def topic_names(topics: str | Sequence[str]) -> list[str]:
    """One name or several. Raises ValueError where there is none."""
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names or not all(names):
        raise ValueError("a job needs the name of a topic")
    return names
