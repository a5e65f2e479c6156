"""Secrets of a client: where they come from, how they are sent, and that no text shows them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

BROKEN = re.compile(r"[\x00-\x1f\x7f]")
"""What no single line of text has in it."""


class Secret(str):
    """Text that no traceback shows which shows variables; what is made of it is plain text again."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'"


class Address(SplitResult):
    """A URL in parts, of which no traceback shows user and password."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(shown(self.geturl()))


def chosen_token(token: str | None = None, environment: Mapping[str, str] = os.environ) -> Secret | None:
    """The token that is given, else ONCELOG_TOKEN, else what the file that ONCELOG_TOKEN_FILE names holds; None: there is none.

    A line's end behind it does not count. Raises ValueError, which does not show it: it cannot be one, or the file is of no use.
    """
    if token is not None and not isinstance(token, str):
        raise TypeError(f"token is a str, not of type {type(token).__name__}")
    found = Secret(token or environment.get("ONCELOG_TOKEN") or "")
    if found:
        return checked(found, "the token")
    path = environment.get("ONCELOG_TOKEN_FILE")
    return secret_in(path, "ONCELOG_TOKEN_FILE") if path else None


def secret_in(path: str | Path, named: str) -> Secret:
    """The one line that a file holds. Raises ValueError, which shows the path alone; ``named``: what names the file."""
    try:
        text = Secret(Path(path).read_bytes().decode())
    except UnicodeDecodeError:
        raise ValueError(f"{named}: {path} holds no text in UTF-8") from None  # the error would show what it holds
    except OSError as error:
        raise ValueError(f"{named}: {path} cannot be read: {error.strerror}") from None
    return checked(text, f"{named}: what {path} holds")


def checked(secret: str, what: str) -> Secret:
    """The secret without the line's end behind it. Raises ValueError: it is empty, or more than one line."""
    secret = Secret(secret.rstrip("\r\n"))
    if not secret or BROKEN.search(secret):
        raise ValueError(f"{what} is empty" if not secret else f"{what} is no single line of text")
    return secret


def authorization(token: str) -> Secret:
    """The header's value: the token in UTF-8, each byte a character, since heads are written in Latin-1."""
    return Secret("Bearer " + token.encode().decode("latin-1"))


def shown(url: str) -> str:
    """A URL as it may be printed: without user, password and query, also where it is none that can be read."""
    url = _without_user(url)
    address = re.split("[?#]", url, maxsplit=1)[0]
    return url if address == url else f"{address}…"


def _without_user(url: str) -> str:
    if "@" not in url:
        return url
    try:
        parts = urlsplit(url)
        readable = bool(parts.hostname) and (parts.port is None or parts.port >= 0)
    except ValueError:
        readable = False
    if not readable:
        return f"…@{url.rpartition('@')[2]}"
    user, at, _ = parts.netloc.rpartition("@")
    return url.replace(f"{user}{at}", "…@", 1) if at else url
