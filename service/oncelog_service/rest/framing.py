"""HTTP/1.1 as it comes on one connection: bytes in, requests out, one at a time. Pure: it knows no transport, and nobody who
answers.

httptools reads the bytes: llhttp is strict, where with h11 a smuggled second request was answered. It does not bound what lies
around bodies, so that is done here.

The invariants:

* However the bytes are cut, the same requests come out of them, in their order.
* What breaks HTTP is raised when all before it was handed out, and nothing behind it is read; nor behind a request that is the
  last one of its connection.
* No more is looked at than is asked for. Where a head has come as a whole, and says how long its body is, what lies behind that
  stays bytes; else what is looked at in one go is bounded.
* A head that came before (heads.py), byte for byte, with its whole body, is handed out as it was, and not parsed again.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

import httptools

from oncelog.errors import InvalidRequest, OncelogError
from oncelog_service.rest.heads import Heads

MAX_HEAD_BYTES = 64 * 2**10
"""Request line and headers; nginx and Apache refuse at 8 to 32 KiB."""
MAX_HEADERS = 100
"""Of one request, as Apache takes; a browser sends 20. In 64 KiB there is room for 15,000, of some objects each."""
_PIECE_BYTES = 24 * 2**10
"""So much is parsed in one go: 4,096 chunks of one byte."""

_HOST = b"host"
_CODING = b"transfer-encoding"
_LENGTH = b"content-length"
_ONCE = (_HOST, b"authorization", b"content-type", b"content-encoding", b"origin", b"sec-fetch-site")
"""Headers by which a request is judged before anything is done for it."""


class Request(NamedTuple):
    """A request's line and headers."""

    method: str
    path: str
    """Decoded."""
    query: bytes
    target: str
    """Path and query as they were sent."""
    headers: dict[bytes, bytes]
    """Names in lower case; of several with one name, the first."""
    keep_alive: bool = True
    """Another one may follow on the connection."""
    takes_chunks: bool = True
    """It is not of HTTP/1.0."""
    raw: bytes = b""
    """The head as it came, if it came as a whole and says all of it."""
    body: bytes | None = None
    """The whole body of one whose head came before; else parts of it follow, and its end."""
    address: object = None
    """Who answers there, as it was remembered with the head; None: it was not."""


class End(NamedTuple):
    """The body is there."""

    keep_alive: bool
    """As above; what follows a chunked body has the last word."""


Event: TypeAlias = Request | bytes | End
"""A head, a part of its body, the body's end."""


class Framing:
    """Of one connection."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._parser: httptools.HttpRequestParser | None = _parser(self)
        self._data = b""
        self._at = 0
        """Up to here it was looked at."""
        self._events: deque[Event] = deque()
        self.has_more = False
        """Something has come that was not handed out."""
        self.is_within = False
        """Between the first byte of a request and its last."""
        self._left: int | None = None
        """Bytes of the body still to come; None: it does not say, or this is none."""
        self.head_bytes = 0
        """At most so many bytes have come without one of a body between: of a head, of trailers, of extensions of chunks."""
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] | None = None
        """Of the head that it is in."""
        self._raw = b""
        self._without_upgrade = b""
        """A head that asks for another protocol, to be parsed again without the question."""
        self._keeps_alive = True
        self._error: OncelogError | None = None

    def close(self) -> None:
        """Lets go of the parser, which holds this."""
        self._parser = None

    def hold(self, data: bytes) -> None:
        """This has come, and waits."""
        self._data = self._data[self._at :] + data if self.has_more else data
        self._at = 0
        self.has_more = True

    def next(self, data: bytes = b"") -> Event | None:
        """Returns the next of what has come, ``data`` at last; None: more has to come.

        Raises OncelogError: it cannot be read, and nothing more is.
        """
        if data:
            if self.has_more:
                self.hold(data)
            else:
                self._data, self._at = data, 0
        while not self._events:
            at, data = self._at, self._data
            size = len(data)
            if at >= size or self._parser is None:
                error, self._error = self._error, None
                self._let_go()
                if error is not None:
                    raise error
                return None
            if self.is_within:
                self._parse(min(self._left or _PIECE_BYTES, _PIECE_BYTES))
                continue
            end = data.find(b"\r\n\r\n", at, at + MAX_HEAD_BYTES) + 4
            if end < 4:
                self._parse(_PIECE_BYTES)
                continue
            raw = data[at:end]
            known = self._heads.known.get(raw)
            if known is not None and (upto := end + known.length) <= size:
                self._at = upto
                self._let_go()
                method, path, query, target, headers, _, address = known
                return Request(method, path, query, target, headers, body=data[end:upto], address=address)
            self._raw = raw
            self._parse(end - at)
            self._raw = b""  # empty lines before a head look as if they were one
        event = self._events.popleft()
        self._let_go()
        return event

    def _let_go(self) -> None:
        """Keeps nothing of what was looked at, or never will be: the next bytes may be long in coming."""
        left = self._parser is not None and self._at < len(self._data)
        if not left:
            self._data, self._at = b"", 0
        self.has_more = left or self._error is not None or bool(self._events)

    def _parse(self, size: int) -> None:
        """Parses so many of the bytes that have come.

        Who asks for another protocol is answered in this one: Java's client does so in its first request. The parser would leave
        the body out, and end; so another one is given the same head without the question.
        """
        piece = self._data[self._at : self._at + size]
        self._at += len(piece)
        self.head_bytes += len(piece)
        try:
            while piece and self._parser is not None:
                try:
                    self._parser.feed_data(piece)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    self._parser = _parser(self)
                    head, self._without_upgrade = self._without_upgrade, b""
                    piece = head + piece[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            told = error.__context__  # what was raised in a call of the parser's
            self._fail(told if isinstance(told, OncelogError) else InvalidRequest("Invalid HTTP request received."))
        else:
            if self.is_within and self.head_bytes > MAX_HEAD_BYTES:
                self._fail(_head_too_large())
            elif not (self.is_within or self._keeps_alive):
                self._parser = None  # what follows is dropped

    def _fail(self, error: OncelogError) -> None:
        self._error = error.with_traceback(None)
        self._parser = None

    # --- what the parser calls

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        self.is_within = True
        self._url, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        """The request's target, or a part of it."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or what is sent as one behind a chunked body and is nothing to us."""
        if self._headers is not None:
            if len(self._headers) >= MAX_HEADERS:
                raise InvalidRequest(f"the request has more than {MAX_HEADERS} headers")
            self._headers.append((name.lower(), value.rstrip(b" \t")))  # no part of it, and the parser takes off the leading one

    def on_headers_complete(self) -> None:
        """The head is there."""
        parser, headers = self._parser, self._headers
        assert parser is not None
        assert headers is not None
        if self.head_bytes > MAX_HEAD_BYTES and _size(self._url, headers) > MAX_HEAD_BYTES:
            raise _head_too_large()
        raw, self._raw = self._raw, b""
        request = self._request(parser, headers, raw)
        if parser.should_upgrade():
            self._without_upgrade = self._head_without_upgrade(parser, headers, request.method)
            return
        self._headers, self.head_bytes = None, 0
        length = None if _CODING in request.headers else request.headers.get(_LENGTH)
        self._left = None if length is None else int(length)
        self._events.append(request)

    def on_body(self, part: bytes) -> None:
        """A part of a body."""
        self.head_bytes = 0
        if self._left is not None:
            self._left -= len(part)
        self._events.append(part)

    def on_message_complete(self) -> None:
        """The body is there."""
        if self._without_upgrade:
            return
        assert self._parser is not None
        self.is_within, self._left, self.head_bytes = False, None, 0
        self._keeps_alive = self._keeps_alive and self._parser.should_keep_alive()
        self._events.append(End(self._keeps_alive))

    def _request(self, parser: httptools.HttpRequestParser, listed: list[tuple[bytes, bytes]], raw: bytes) -> Request:
        method = parser.get_method().decode("ascii")
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        target = path if not url.query else f"{path}?{url.query.decode('latin-1')}"
        headers = dict(reversed(listed))
        is_old = parser.get_http_version() == "1.0"
        if _HOST not in headers and not is_old:
            raise InvalidRequest("the request has no Host header")
        if len(headers) < len(listed):
            _check_once(listed)
        if _CODING in headers and [value.strip().lower() for name, value in listed if name == _CODING] != [b"chunked"]:
            # Whoever stands between may undo what it knows, and find another end of the body (RFC 9112, 6.1).
            raise InvalidRequest("transfer-encoding may be chunked, and no other coding is read")
        if url.host is not None:  # who names it in the target means that (RFC 9112, 3.2.2)
            headers[_HOST] = _authority(url)
        self._keeps_alive = not is_old and parser.should_keep_alive()
        path = unquote(path) if "%" in path else path
        return Request(method, path, url.query or b"", target, headers, self._keeps_alive, not is_old, raw)

    def _head_without_upgrade(
        self, parser: httptools.HttpRequestParser, headers: list[tuple[bytes, bytes]], method: str
    ) -> bytes:
        if method == "CONNECT":
            raise InvalidRequest("this is no proxy")
        lines = [f"{method} ".encode(), self._url, f" HTTP/{parser.get_http_version()}\r\n".encode()]
        lines += [b"%b: %b\r\n" % header for header in headers if header[0] != b"upgrade"]
        return b"".join(lines) + b"\r\n"


def _head_too_large() -> InvalidRequest:
    return InvalidRequest(f"the request's head is larger than {MAX_HEAD_BYTES} bytes")


def _size(url: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    return len(url) + sum(len(name) + len(value) for name, value in headers)


def _check_once(headers: list[tuple[bytes, bytes]]) -> None:
    """Raises InvalidRequest: of two headers, whoever stands between may look at the other one."""
    names = [name for name, _ in headers]
    for name in _ONCE:
        if names.count(name) > 1:
            raise InvalidRequest(f"the request has more than one {name.decode()} header")


def _authority(url: Any) -> bytes:
    host: bytes = b"[%b]" % url.host if b":" in url.host else url.host
    return host if url.port is None else b"%b:%d" % (host, url.port)


def _parser(framing: Framing) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(framing)
    # What follows the last request of a connection is dropped, and the request before it answered.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
