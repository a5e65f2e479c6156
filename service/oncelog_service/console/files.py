"""The console's files, read into memory once. A name that is none of theirs is not looked for on the disk."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

_MEDIA = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
"""Browsers take a module for a script, and a style sheet for a style, by its type alone (nosniff)."""

PAGE = "index.html"


class Vendored(NamedTuple):
    """A library that others keep: the file as its package has it."""

    package: str
    """In the npm registry."""
    version: str
    path: str
    """Of the file in the package."""
    licence: str
    sha256: str


VENDORED: Mapping[str, Vendored] = {
    "vendor/htm-preact.js": Vendored(
        "htm", "3.1.1", "preact/standalone.module.js", "Apache-2.0 (Preact, which it holds: MIT)",
        "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7",
    ),
    "vendor/uplot.js": Vendored(
        "uplot", "1.6.32", "dist/uPlot.esm.js", "MIT",
        "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
    ),
    "vendor/uplot.css": Vendored(
        "uplot", "1.6.32", "dist/uPlot.min.css", "MIT",
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    ),
}  # fmt: skip
"""Files under ``static/vendor/``. To renew one, take it from the package and change its line; its licence is in ``licences/``."""


class File(NamedTuple):
    """One file, as it is sent."""

    body: bytes
    media: str
    etag: str
    """A weak one: the file may be sent packed, which are other bytes."""


@cache
def console_files() -> Mapping[str, File]:
    """Every file by its name behind ``/console/``; reads the disk the first time."""
    return dict(_read(files(__package__) / "static", ""))


def _read(folder: Traversable, before: str) -> list[tuple[str, File]]:
    found = []
    for each in folder.iterdir():
        if each.is_dir():
            found += _read(each, f"{before}{each.name}/")
        elif (media := _MEDIA.get(each.name.rpartition(".")[2])) is not None:
            body = each.read_bytes()
            found.append((before + each.name, File(body, media, f'W/"{sha256(body).hexdigest()[:32]}"')))
    return found
