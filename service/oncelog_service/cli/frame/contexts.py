"""Contexts: services by name, each with its address and how one gets in, in a file of the user's.

The file may hold tokens. So it is made and kept for its owner alone (mode 0600, in a directory of mode 0700), it is replaced as a
whole or not at all, and one process at a time changes it. Only the command line reads it: the SDK and `oncelog serve` never do.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from oncelog.http.credentials import BROKEN

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


class BadContexts(Exception):
    """A sentence that says what is wrong with the file, or with what was to stand in it. Shows no secret."""


@dataclass(frozen=True, slots=True)
class Context:
    """One service."""

    url: str
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    ca: str | None = None
    cert: str | None = None
    cert_key: str | None = None
    namespace: str | None = None


KEYS = tuple(each.name for each in fields(Context))


@dataclass(frozen=True, slots=True)
class Contexts:
    """All that the file says."""

    known: Mapping[str, Context] = field(default_factory=dict)
    current: str | None = None
    """The one that counts where none is named."""

    def named(self, name: str) -> Context:
        """The context of this name. Raises BadContexts."""
        if name not in self.known:
            from difflib import get_close_matches

            close = get_close_matches(name, self.known, 1)
            meant = f"; did you mean {close[0]!r}?" if close else "; `oncelog context list` lists those that there are"
            raise BadContexts(f"there is no context {name!r}{meant}")
        return self.known[name]

    def added(self, name: str, context: Context) -> Contexts:
        """With one more, or another one under that name."""
        return replace(self, known={**self.known, name: context})

    def removed(self, name: str) -> Contexts:
        """Without one. Raises BadContexts."""
        self.named(name)
        current = None if self.current == name else self.current
        return Contexts({each: context for each, context in self.known.items() if each != name}, current)

    def using(self, name: str | None) -> Contexts:
        """With another one that counts. Raises BadContexts."""
        if name is not None:
            self.named(name)
        return replace(self, current=name)


def path_of(environment: Mapping[str, str]) -> Path:
    """Where the file lies: below XDG_CONFIG_HOME where that is an absolute path, else below ~/.config."""
    base = environment.get("XDG_CONFIG_HOME") or ""
    root = Path(base) if base.startswith("/") else Path(environment.get("HOME") or "~").expanduser() / ".config"
    return root / "oncelog" / "contexts.toml"


def load(path: Path) -> Contexts:
    """What the file says; nothing where there is none. Raises BadContexts."""
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as error:
        raise BadContexts(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadContexts(f"{path} holds no text in UTF-8") from None
    try:
        return _read(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise BadContexts(f"{path} is no TOML: {error}") from None
    except BadContexts as error:
        raise BadContexts(f"{path}: {error}") from None


def change(path: Path, changed: Callable[[Contexts], Contexts]) -> Contexts:
    """Read, change and write the file while no other command does. Raises BadContexts."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(path.parent):
            contexts = changed(load(path))
            _write(path, _text(contexts))
    except OSError as error:
        raise BadContexts(f"{error.filename or path} cannot be written: {error.strerror}") from None
    return contexts


def checked(name: str, context: Context) -> Context:
    """The context, if it is one that can be written and read back. Raises BadContexts."""
    if not NAME.fullmatch(name):
        raise BadContexts(f"a context's name is 1 to 64 of the characters A-Z a-z 0-9 _ . -, not {name!r}")
    for key in KEYS:
        value = getattr(context, key)
        if value is not None and (not value or BROKEN.search(value)):
            raise BadContexts(f"{key} of context {name} is {'no single line of text' if value else 'empty'}")
    if context.token is not None and context.token_file is not None:
        raise BadContexts(f"context {name} has a token and a token_file; one is enough")
    if context.cert_key is not None and context.cert is None:
        raise BadContexts(f"context {name} has a cert_key without its cert")
    return context


def open_to_others(path: Path, contexts: Contexts) -> bool:
    """Whether others on this machine can read a token in it."""
    try:
        return bool(path.stat().st_mode & 0o077) and any(each.token for each in contexts.known.values())
    except OSError:
        return False


# --- bytes


def _read(found: Mapping[str, Any]) -> Contexts:
    unknown = found.keys() - {"current", "contexts"}
    if unknown:
        raise BadContexts(f"{sorted(unknown)[0]!r} is nothing that it may say")
    tables, current = found.get("contexts", {}), found.get("current")
    if not isinstance(tables, dict) or not isinstance(current, str | None):
        raise BadContexts('it says current = "NAME", and [contexts.NAME] of each')
    known = {}
    for name, table in tables.items():
        if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
            raise BadContexts(f"context {name} has values that are no text")
        wrong = table.keys() - set(KEYS)
        if wrong:
            raise BadContexts(f"{sorted(wrong)[0]!r} is no key of a context, as context {name} has it")
        if "url" not in table:
            raise BadContexts(f"context {name} has no url")
        known[name] = checked(name, Context(**table))
    return Contexts(known, current)


def _text(contexts: Contexts) -> str:
    """As TOML: a basic string there is what JSON calls a string, where no character is a control character."""
    lines = ["# Written by `oncelog context`; comments are not kept.\n"]
    if contexts.current is not None:
        lines.append(f"current = {_quoted(contexts.current)}\n")
    for name, context in sorted(contexts.known.items()):
        lines.append(f"\n[contexts.{_quoted(name)}]\n")
        lines += [f"{key} = {_quoted(getattr(context, key))}\n" for key in KEYS if getattr(context, key) is not None]
    return "".join(lines)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    held = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _write(path: Path, text: str) -> None:
    """All of it or nothing. Where the file is a link to another one, that other one is replaced."""
    from oncelog_service.storage.files.directory import sync  # who only reads contexts needs none of a store

    path = path.resolve()
    number, made = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # of mode 0600
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            sync(number)
        os.replace(made, path)
    except BaseException:
        Path(made).unlink(missing_ok=True)
        raise
