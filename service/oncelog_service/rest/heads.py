"""Heads of requests that came before, byte for byte: what comes again is not parsed again.

The invariants:

* What is remembered of a head says nothing of who asks: that is found out each time.
* Only heads are remembered of requests that may be answered in one step, with a body of a declared length, and nothing that makes
  a request another one than its head says (Expect, chunks, a coding).
* A head is remembered when it comes for the second time: one with a number in it that is another one each time never is.
* They are bounded in number and bytes, and beyond that forgotten, all of them. None is ever logged: tokens stand in them.
"""

from __future__ import annotations

from typing import NamedTuple

_MOST = 4_096
_MOST_BYTES = 4 * 2**20
_HEADER_BYTES = 200
"""That a header takes beside its text, as two objects in a dict."""
_LONGEST = 2_048
"""Bytes of a head that is remembered; those of clients have 200 to 1,000."""
_LARGEST = 16 * 2**10
"""Bytes of a body behind it: a larger one costs so much that nobody notices its head."""
_UNLIKE = frozenset((b"transfer-encoding", b"expect", b"content-encoding", b"x-request-id", b"traceparent"))
"""Headers by which a request is another one than its like, or is answered otherwise."""


class Known(NamedTuple):
    """A head that came before."""

    method: str
    path: str
    query: bytes
    target: str
    headers: dict[bytes, bytes]
    length: int
    """Bytes of the body."""
    address: object
    """Who answers there, as the application has found it."""


class Heads:
    """Those that a server remembers."""

    def __init__(self) -> None:
        self.known: dict[bytes, Known] = {}
        """By their bytes, up to and with the empty line."""
        self._bytes = 0
        self._once: set[int] = set()
        """Hashes of those that have come once."""

    def came(self, raw: bytes, known: Known) -> None:
        """One has come that is not known, with its whole body, and was let in."""
        if len(raw) > _LONGEST or known.length > _LARGEST or not _UNLIKE.isdisjoint(known.headers):
            return
        if raw in self.known:
            return
        name = hash(raw)
        if name not in self._once:
            if len(self._once) >= _MOST:
                self._once.clear()
            self._once.add(name)
            return
        size = 2 * len(raw) + _HEADER_BYTES * len(known.headers)
        if len(self.known) >= _MOST or self._bytes + size > _MOST_BYTES:
            self.known.clear()
            self._bytes = 0
        self.known[raw] = known
        self._bytes += size
