"""Whether CHANGELOG.md is ready for a version: its section is the first one, dated, and says something. Pure."""

from __future__ import annotations

import re
from datetime import date
from itertools import pairwise
from typing import NamedTuple

_HEADING = re.compile(r"^## +(.*?) *$", re.MULTILINE)
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_ENTRY = re.compile(r"^- \S.*$", re.MULTILINE)


class NotReady(Exception):
    """A sentence that says what is to be done first."""


class Section(NamedTuple):
    """One version of the changelog."""

    version: str
    date: str
    """As it stands there: a day in ISO form, or something like "unreleased"."""
    text: str

    @property
    def number(self) -> tuple[int, ...]:
        """What versions are ordered by. Raises NotReady."""
        return number_of(self.version)


def number_of(version: str) -> tuple[int, ...]:
    """Reads ``X.Y.Z``. Raises NotReady."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise NotReady(f"{version!r} is no version; it looks like 1.2.3")
    return tuple(map(int, found.groups()))


def sections(text: str) -> list[Section]:
    """Cuts a changelog into its versions, in the order in which they stand there."""
    cut = _HEADING.split(text)[1:]
    found = []
    for heading, body in zip(cut[::2], cut[1::2], strict=True):
        version, _, day = heading.partition(" – ")
        found.append(Section(version, day, body.strip()))
    return found


def ready_section(text: str, version: str, today: date) -> Section:
    """Returns the section of a version that is to be released today, or on the day that it says.

    Raises NotReady: it is not the first one, has no date or one to come, says nothing, or versions do not fall.
    """
    number_of(version)
    found = sections(text)
    if not found:
        raise NotReady("CHANGELOG.md has no section: ## X.Y.Z – YYYY-MM-DD")
    newest = found[0]
    if newest.version != version:
        raise NotReady(f"the first section of CHANGELOG.md is {newest.version}, not {version}")
    for later, earlier in pairwise(found):
        if later.number <= earlier.number:
            raise NotReady(f"CHANGELOG.md: {later.version} stands above {earlier.version}")
    for each in found:
        try:
            day = date.fromisoformat(each.date)
        except ValueError:
            raise NotReady(f"CHANGELOG.md: {each.version} says {each.date!r} where its day should stand: YYYY-MM-DD") from None
        if day > today:
            raise NotReady(f"CHANGELOG.md: {each.version} is dated {day}, which is still to come")
    if not _ENTRY.search(newest.text):
        raise NotReady(f"CHANGELOG.md says nothing of {version}: it needs a line that begins with '- '")
    return newest
