"""The console: a page for people, and the scripts and styles that it loads. What it shows it asks for as every client does."""

from __future__ import annotations

import asyncio

from oncelog.errors import NotFound
from oncelog_service.console.files import PAGE, console_files
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.foreign import CSP, SHUT
from oncelog_service.rest.routes import Call

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; font-src 'self'; " + SHUT
)
"""The package's own files and this service's answers, and nothing else: no script in the page, none made of text."""


async def show(call: Call) -> Answer:
    """The page, and what it loads. It holds no data: whoever asks for that needs a right."""
    files = await asyncio.to_thread(console_files)
    name = call.path.get("file", PAGE)
    file = files.get(name)
    if file is None:
        raise NotFound(f"the console has no file {name[:200]!r}")
    # Asked again each time, so that after an upgrade no old script meets a new page.
    headers = {"etag": file.etag, "cache-control": "no-cache", CSP: POLICY}
    if file.etag.removeprefix("W/") in (each.strip().removeprefix("W/") for each in call.known.split(",")):
        return Answer(b"", file.media, 304, headers)
    return Answer(file.body, file.media, headers=headers)
