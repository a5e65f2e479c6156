"""HTTP/1.1 as a client speaks it, in bytes: a request made whole, an answer read as its bytes come in. Pure: it opens no socket.

A shell of threads or of asyncio sends what :func:`request_bytes` makes and feeds what arrives to :class:`Incoming`. However it
arrives in pieces, the same bytes are the same answer; one that breaks off is none; and where anything came that was not asked
for, no other request follows on the connection, since it would take that for its answer.

Parsed by httptools (llhttp), which refuses what could be read in two ways: two lengths, a length beside chunks, a bare line feed.
What it does not bound is bounded here: heads, trailers and extensions of chunks.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import SplitResult, quote, unquote

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from oncelog.http.credentials import Secret

MAX_HEAD_BYTES = 1 << 16
"""Of what comes without a byte of body between: a head and those before it (1xx), trailers, extensions of chunks."""

_USUAL = "content-length content-security-policy content-type date x-content-type-options x-frame-options"
_NAMES = {name.encode(): name for name in _USUAL.split()}
"""Those of each answer, as the service writes them."""
_STEADY = {"accept", "authorization", "content-type", "proxy-authorization"}
"""Headers that are the same for many requests of a client."""
_CLEAN = re.compile("[!-~]+")
_SAFE = "!#$%&'()*+,/:;=?@[]~"
"""What a target may hold as it is; the rest is escaped."""
_BROKEN = re.compile("[\r\n\0]")


class Head(bytes):
    """The head of a request, whose secrets no traceback shows."""

    def __repr__(self) -> str:
        return f"<head of {len(self)} bytes>"


class BadAnswer(OSError):
    """What came is no answer in HTTP, or not all of one."""


def request_bytes(method: str, host: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """The head of a request.

    ``body``: only its length is in it. Raises UnicodeError: a header is not in Latin-1; ValueError: it would be several lines.
    """
    # What differs from request to request, the context of a trace, would push the others out.
    head_of = _head if headers.keys() <= _STEADY else _head.__wrapped__
    head = head_of(method, host, target, tuple(headers.items()))
    if body is not None or method not in ("GET", "HEAD"):
        return Head(b"%bcontent-length: %d\r\n\r\n" % (head, len(body or b"")))
    return Head(head + b"\r\n")


@lru_cache(maxsize=256)  # a client asks the same again and again
def _head(method: str, host: str, target: str, headers: tuple[tuple[str, str], ...]) -> Head:
    """The lines of a head that do not depend on the body."""
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}", "user-agent: oncelog", "accept-encoding: identity"]
    lines += [f"{name}: {value}" for name, value in headers]
    if not any(name == "accept" for name, _ in headers):
        lines.append("accept: */*")
    if any(map(_BROKEN.search, lines)):
        raise ValueError("a header of the request has a line break in it")
    return Head("\r\n".join([*lines, ""]).encode("latin-1"))


def target_of(url: SplitResult) -> str:
    """What is asked for at the host: path and query, escaped where they are not."""
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    return target if _CLEAN.fullmatch(target) else quote(target, safe=_SAFE)


def basic(url: SplitResult) -> str | None:
    """The user and password in a URL as a header says them; None where there are none."""
    if url.username is None:
        return None
    named = f"{unquote(url.username)}:{unquote(url.password or '')}"
    return Secret("Basic " + b64encode(named.encode()).decode())


class Incoming:
    """The answers of one connection, one after the other: :meth:`begin`, then :meth:`feed` until ``complete``."""

    def __init__(self) -> None:
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self.begin()

    def begin(self) -> None:
        """Expect the next answer."""
        self.status = 0
        self.headers: dict[str, str] = {}
        """Names in lower case; what comes twice is joined by commas."""
        self.has_head = False
        self.complete = False
        self.reusable = False
        """Whether, once it is complete, another request may follow on the connection."""
        self._ends_with_connection = False
        self._parts: list[bytes] = []
        self._skin = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Take what arrived, ``b""`` for the end of the connection, and return what it holds of the body.

        Raises BadAnswer: this is no answer, or breaks off in the middle.
        """
        if not data:
            if not self._ends_with_connection:
                raise BadAnswer("the connection was closed before the whole answer came")
            self.complete = True
            return []
        if self._parser is None:
            raise BadAnswer("the connection is closed")
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self.reusable = False
            if not self.complete:
                raise BadAnswer(f"this is no answer in HTTP: {error}") from error
        parts, self._parts = self._parts, []
        self._skin = 0 if parts else self._skin + len(data)
        if self._skin > MAX_HEAD_BYTES and not self.complete:
            raise BadAnswer(f"the answer has more than {MAX_HEAD_BYTES} bytes of headers")
        return parts

    def close(self) -> None:
        """Let go of the parser, which holds this."""
        self._parser = None

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self.complete:  # more than was asked for: whoever asks next would take it for an answer
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.has_head:
            return  # a trailer
        key, text = _NAMES.get(name) or name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        if self.complete or self._parser is None:
            return
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.headers = {}  # one of those that come before the answer
            return
        self.has_head = True
        self.reusable = self._parser.should_keep_alive()
        coding = self.headers.get("transfer-encoding", "")
        self._ends_with_connection = "content-length" not in self.headers and not coding.lower().endswith("chunked")

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        self.complete = self.has_head
