"""One request and its answer as bytes; no I/O."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from types import coroutine
from typing import Any, NamedTuple, Protocol, TypeVar

from oncelog.errors import NotAllowed, OncelogError, Unauthorized
from oncelog_service.bounds.shares import Shares
from oncelog_service.logs import Asking
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.foreign import CLOSED, CSP, GUARD, READING
from oncelog_service.rest.packing import is_packed
from oncelog_service.traffic import Times

T = TypeVar("T")

REQUEST_ID = b"x-request-id"
PIPELINE = b"oncelog-pipeline"
"""``1``: this request and those behind it on its connection may be under way together; and behind one that is refused, none is
obeyed."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}

_OK = HTTPStatus.OK.value
_GUARDED = GUARD + CLOSED
_NO_PATH: Mapping[str, str] = {}


@lru_cache(8)
def _plain_head(date: str, media: str) -> bytes:
    """Of an answer that has nothing to say beside its body, up to the length of that."""
    return f"{_STATUS_LINES[_OK]}{date}content-type: {media}\r\n{_GUARDED}content-length: ".encode("latin-1")


class Head(NamedTuple):
    """A request's line and headers."""

    method: str
    path: str
    """Decoded."""
    query: bytes
    target: str
    """Path and query as they were sent."""
    headers: dict[bytes, bytes]
    """Names in lower case; of several with one name, the first."""
    peer: str = ""
    """The address it comes from."""
    certificate: str | None = None
    """The name in the client certificate, if there is one and it was verified."""
    certificate_ends_ms: float = math.inf
    nameless: Unauthorized | None = None
    """Why the certificate that was shown is nobody's."""
    request_id: str = ""
    """Under which the log speaks of it; empty: of what could not be read as a request."""
    takes_chunks: bool = True
    """Its client knows chunks: HTTP/1.0 has none, and there nobody could tell an answer that broke off from a whole one."""

    def __repr__(self) -> str:
        return f"<{self.method} {self.path}>"  # the headers hold secrets

    @property
    def is_packed(self) -> bool:
        """Whether its body is, where it can have one."""
        return self.method not in READING and is_packed(self.headers)

    def header(self, name: bytes) -> bytes:
        """Its value, empty if it was not sent."""
        return self.headers.get(name, b"")


def _unnoted(error: OncelogError) -> None:
    pass


class Standing:
    """How far the one who answers a request has come with it."""

    __slots__ = ("_shares", "idle", "waited", "who")

    def __init__(self, shares: Shares) -> None:
        """``shares``: is told for how long the event loop was kept."""
        self._shares = shares
        self.who: Hashable = None
        """As one of whose requests it counts."""
        self.idle = False
        """Nothing has been done for it yet: it waits for its turn, and ends with its client."""
        self.waited = False
        """It has waited for something since it was judged who asks."""

    @coroutine
    def follow(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Does the work, and notes whenever that has waited: one who waits a millisecond can be overtaken as one who waits a
        minute."""
        failure: BaseException | None = None
        shares = self._shares
        while True:
            began = shares.now()
            try:
                awaited = work.send(None) if failure is None else work.throw(failure)
            except StopIteration as end:
                done: T = end.value
                return done
            finally:
                shares.charge(self.who, shares.now() - began)
                failure = None  # its traceback holds this frame: a request that failed would keep its body until a collection
            try:
                yield awaited
            except BaseException as thrown:
                failure = thrown
            awaited = None  # a future keeps what it failed with
            self.waited = True


class Answers(Protocol):
    """A connection, as far as a step needs it."""

    def give(self, exchange: Exchange, answer: Answer) -> None:
        """Sends the answer; the next request's turn."""


class Step(Protocol):
    """A request that is done in one step of the event loop, as far as that goes without waiting."""

    def begin(self, behind: Step | None = None) -> bool:
        """Does all of it, and has its answer given later; False: nothing was done, since something has to be waited for, or the
        exchange is refused.

        ``behind``: this one is under way, and should it come to nothing, so must this step: what is handed over may be on disk
        only if that is.
        """


class Admitted(NamedTuple):
    """Who answers a request, as its head says."""

    answer: Callable[[bytes], Awaitable[Answer]]
    """Is given the whole body. Raises OncelogError."""
    reads: bool
    """It changes nothing, and ends when its client has hung up."""
    who: Hashable = None
    """As one of whose requests it counts; None: of the client's address."""
    refused: Callable[[OncelogError], None] = _unnoted
    """Is told why it is refused all the same, before ``answer`` is asked."""
    waits: bool = False
    """It may be held until there is something to answer."""
    principal: str = ""
    """Who asks, as the log says it."""
    path: Mapping[str, str] = _NO_PATH
    """The names in its address, likewise."""
    times: Times | None = None
    """Where it counts how long it takes; None: among those that no address has taken."""
    standing: Standing | None = None
    checking: asyncio.Future[None] | None = None
    """Is done when it is known who asks, or raises why nobody is: then the request is judged anew."""
    step: Callable[[Exchange, Answers], Step] | None = None
    """Where the request may be answered in one step, once its body is there."""
    address: object = None
    """Who answers there, whoever asks; for :meth:`Application.admit` when the same head comes again."""

    @property
    def ends_with_client(self) -> bool:
        """Whether it is of no use any more when its client has gone."""
        return self.reads or (self.standing is not None and self.standing.idle)


class Arriving:
    """A body that comes in more than one piece."""

    __slots__ = ("gives_way", "good_until", "noted")

    def __init__(self, gives_way: Callable[[OncelogError], None], good_until: float) -> None:
        self.gives_way = gives_way
        """Refuses its request, which gives back what has come."""
        self.good_until = good_until
        self.noted = 0
        """Bytes that the pace has been told of."""


@dataclass(slots=True, eq=False)
class Exchange:
    """One request, and how far it has come."""

    head: Head
    keep_alive: bool
    """Another request may follow on the connection."""
    admitted: Admitted | None = None
    refused: OncelogError | None = None
    """Why it is not answered by a handler; what is still to come of its body is dropped."""
    parts: list[bytes | bytearray] = field(default_factory=list)
    size: int = 0
    """Of the parts."""
    complete: bool = False
    """The whole body is there."""
    answering: asyncio.Task[None] | None = None
    begun: bool = False
    """The task has run."""
    pipelined: bool = False
    """Its client has asked for PIPELINE, with this request or with one before it on the connection."""
    handed_over: Step | None = None
    """What has done it, and gives its answer later."""
    answer: Answer | None = None
    """What that has given."""
    began: float = 0.0
    """When its answer did."""
    arriving: Arriving | None = None
    """Set while its body comes in more than one piece."""
    unpacking: bool = False
    """Its body is there, and is being unpacked."""
    waited: bool = False
    """Since it was judged: for the answers before it, for the rest of its body, or for room."""
    who: Hashable = None
    """As one of whose requests it is counted, while it is."""
    is_long: bool = False
    """It is not done in a step, or its client is waited for."""

    @property
    def asking(self) -> Asking:
        """What the log says of it."""
        if self.admitted is not None:
            return Asking(self.head.request_id, self.admitted.principal, self.admitted.path)
        return Asking(self.head.request_id, self.refused.principal if isinstance(self.refused, NotAllowed) else "", {})

    def told(self, answer: Answer) -> None:
        """It has come to this answer."""
        if self.pipelined and not 200 <= answer.status < 300:
            self.keep_alive = False

    @property
    def is_under_way(self) -> bool:
        """Whether it is being answered."""
        return self.answering is not None or self.handed_over is not None

    @property
    def asks_to_continue(self) -> bool:
        """It sends its body only when it has been told to."""
        return self.head.header(b"expect").lower() == b"100-continue"

    @property
    def ends_with_client(self) -> bool:
        """Whether it is of no use any more when its client has gone."""
        return self.unpacking or (self.admitted is not None and self.admitted.ends_with_client)

    @property
    def body(self) -> bytes:
        """What has arrived of it; from then on that is held as one."""
        body = bytes(self.parts[0]) if len(self.parts) == 1 else b"".join(self.parts)  # bytes of bytes are no copy
        self.parts[:] = [body]
        return body

    def head_of(self, answer: Answer, date: str) -> bytes:
        """The bytes before the answer's body."""
        is_plain = self.keep_alive and answer.status == _OK and not answer.headers
        if is_plain and isinstance(answer.body, bytes) and REQUEST_ID not in self.head.headers:
            return b"%b%d\r\n\r\n" % (_plain_head(date, answer.media), len(answer.body))
        lines = [_STATUS_LINES.get(answer.status) or f"HTTP/1.1 {answer.status} \r\n", date, f"content-type: {answer.media}\r\n"]
        lines.append(_GUARDED if CSP not in answer.headers else GUARD)
        lines += [f"{name}: {value}\r\n" for name, value in answer.headers.items()]
        if isinstance(answer.body, bytes) and answer.status != HTTPStatus.NOT_MODIFIED:  # where it would be that of a 200
            lines.append(f"content-length: {len(answer.body)}\r\n")
        head = self.head
        if head.request_id and (answer.status >= HTTPStatus.BAD_REQUEST or REQUEST_ID in head.headers):
            lines.append(f"x-request-id: {head.request_id}\r\n")
        if not self.keep_alive:
            lines.append("connection: close\r\n")
        if not isinstance(answer.body, bytes):
            lines.append("transfer-encoding: chunked\r\n")
        lines.append("\r\n")
        return "".join(lines).encode("latin-1")
