"""The URL of a store that one process owns, and when two of them name the same store."""

from __future__ import annotations

import os
import re
import secrets
from typing import NamedTuple, Self
from urllib.parse import quote

from oncelog_service.storage.open import path_of, shown

_MEMORY = re.compile(r"memory://([A-Za-z0-9._-]*)/?")


class Address(NamedTuple):
    """Where a store lies. Equal for the same store: a path is absolute, and no part of it is a link."""

    scheme: str
    name: str
    """A path; of a store in memory a name."""

    @classmethod
    def of(cls, url: str) -> Self:
        """Reads a URL. ``memory://`` without a name is a new store, with a name of its own. Raises ValueError."""
        if found := _MEMORY.fullmatch(url):
            return cls("memory", found[1] or f"engine-{secrets.token_hex(8)}")
        path = path_of(url)
        if path is None:
            raise ValueError(
                f"{shown(url)!r} is no store of one process: memory://, memory://name, leveldb:///path or sqlite:///path; "
                "PostgreSQL is shared by services (oncelog serve --store …)"
            )
        return cls(url.partition(":")[0].lower(), os.path.realpath(path))

    @property
    def store(self) -> str:
        """URL of the store, as the service takes it."""
        return "memory://" if self.scheme == "memory" else str(self)

    def __str__(self) -> str:
        return f"{self.scheme}://{quote(self.name)}"
