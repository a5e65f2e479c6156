"""What a request may cost before a handler sees it: size, and all of them together. Its time is bounded in ``protocol.py``."""

from __future__ import annotations

from oncelog.errors import InvalidRequest, Overloaded, RequestTooLarge
from oncelog_service.rest.exchange import Exchange, Head

MAX_HEAD_BYTES = 64 * 2**10
"""Request line and headers; nginx and Apache refuse at 8 to 32 KiB."""

MAX_BEHIND = 512
"""Requests that wait behind another one on their connection. All that arrive together are judged in one go, 10 ms of these."""

_SMALL_BYTES = 512
"""Parts of a body that are joined as they arrive: an object for each of two bytes would be twenty times the body."""


def head_too_large() -> InvalidRequest:
    """What a head beyond MAX_HEAD_BYTES is told."""
    return InvalidRequest(f"the request's head is larger than {MAX_HEAD_BYTES} bytes")


class Bodies:
    """Bounds the body of each request, and the bytes of all that are held at the same time."""

    def __init__(self, max_bytes: int, max_inflight_bytes: int) -> None:
        self._max = max_bytes
        self._left = max_inflight_bytes

    def check_declared(self, head: Head) -> None:
        """Raises RequestTooLarge, before a byte of the body is read, where its length is declared."""
        declared = head.header(b"content-length")
        # Cut before it is converted: Python refuses to convert thousands of digits, with an error that would be a 500.
        if declared.isdigit() and int(declared[:20]) > self._max:
            raise self._too_large()

    def take(self, exchange: Exchange, part: bytes) -> None:
        """Counts a part as it arrives: a declared length costs its sender nothing, and would reserve all.

        Raises RequestTooLarge, Overloaded: it does not count.
        """
        if exchange.size + len(part) > self._max:
            raise self._too_large()
        if len(part) > self._left:
            raise Overloaded("the service holds as many request bodies as it may; try again in a moment")
        self._left -= len(part)
        exchange.size += len(part)
        parts = exchange.parts
        if not parts or len(part) >= _SMALL_BYTES:
            parts.append(part)
        elif isinstance(last := parts[-1], bytearray):
            last += part
        else:
            parts.append(bytearray(part))

    def give_back(self, exchange: Exchange) -> None:
        """Forgets the body. Twice is as once."""
        self._left += exchange.size
        exchange.size = 0
        exchange.parts.clear()

    def _too_large(self) -> RequestTooLarge:
        return RequestTooLarge(f"the body is larger than {self._max} bytes; send fewer messages at once", limit=self._max)
