"""What a handler sends back: a value that knows nothing of addresses or servers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple


class Answer(NamedTuple):
    """What to send back. A body of bytes is there as a whole before the first of them leaves; only work that shows progress, line
    by line, is an iterator, and there the last line alone is the answer."""

    body: bytes | AsyncGenerator[bytes, None]
    media: str
    status: int = 200
