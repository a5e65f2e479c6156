"""A topic of CDAP's messaging server, read over HTTP as the TMS page has it: whatever is torn, each message once and in order.

The invariants:

* An answer is read as it comes. What breaks off is gone on with behind its last whole message, and never passes for the end.
* Ids rise from message to message, also from one answer to the next.
* An answer that begins at an id begins with that very message, so nothing is missing between. One that does not is put aside, and
  all from that moment on is asked for: behind an id that has expired CDAP's server leaves messages out. So it does behind one
  that it is to leave out itself, before a group, and it counts a limit wrongly: neither is asked of it.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from math import inf
from operator import lt
from typing import NamedTuple, TypeVar

import typer

from oncelog.api.retry import pause
from oncelog.errors import InvalidResponse, OncelogError, TopicNotFound
from oncelog.http.answers import refusal
from oncelog.http.connections import FAILURES, Connections, Response, connection_error
from oncelog.http.credentials import shown
from oncelog.http.sockets import Blocking, Deadline
from oncelog.http.transport import MAX_PROBLEM_BYTES, READ_SECONDS
from oncelog.http.trust import Trust
from oncelog.message_id import SIZE, MessageId
from oncelog.process.procedures import Procedure, drive
from oncelog.wire.avro_strict import NotAvro, read_long
from oncelog.wire.codec import encode
from oncelog.wire.media import AVRO, JSON
from oncelog_service.cli.messages.interrupts import Interrupts

T = TypeVar("T")

_ADDRESS = re.compile(r"https?://.+/v1/namespaces/([A-Za-z0-9_]+)/topics/([A-Za-z0-9_.-]+)/?")
_MAX_PAYLOAD = 64 * 2**20
"""No server of CDAP's takes so much in one message: what claims it is no message."""
_ALL = 2**31 - 1
"""As a limit, and as none, to CDAP's server; to oncelog as many as it gives at once."""
_LATER = (429, 500, 502, 503, 504)
"""What a server answers that begins, or ends."""
PATIENCE_SECONDS = 120.0
"""How long a server may be away that was there: as long as a producer waits for its own."""


class Message(NamedTuple):
    """What the server says of one."""

    id: bytes
    """20 bytes."""
    payload: bytes


class Torn(Exception):
    """An answer broke off, or none came; ``__cause__`` is the error that is raised if that lasts."""


class Incoming:
    """Messages out of an Avro array whose bytes come in any pieces."""

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0
        """Messages of the block that are still to come."""
        self.is_whole = False
        """The array's end is there."""

    def feed(self, piece: bytes) -> list[Message]:
        """The messages that this piece completes. Raises NotAvro."""
        data, at, found = self._rest + piece, 0, list[Message]()
        with suppress(IndexError):  # the rest is still to come
            while not self.is_whole:
                if self._left:
                    message, at = _message(data, at)
                    found.append(message)
                    self._left -= 1
                else:
                    self._left, at = _count(data, at)
                    self.is_whole = not self._left
        self._rest = data[at:]
        if self.is_whole and self._rest:
            raise NotAvro("something follows the messages")
        return found


def _count(data: bytes, at: int) -> tuple[int, int]:
    """How many messages a block has, and where they begin. Raises IndexError: that is still to come; NotAvro."""
    count, at = read_long(data, at)
    if count >= 0:
        return count, at
    _, at = read_long(data, at)  # its bytes
    return -count, at


def _message(data: bytes, at: int) -> tuple[Message, int]:
    """The message there, and where it ends. Raises IndexError: it is still to come; NotAvro."""
    id_, at = _span(data, at)
    payload, at = _span(data, at)
    if len(id_) != SIZE:
        raise NotAvro(f"an id has {len(id_)} bytes")
    return Message(id_, payload), at


def _span(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_long(data, at)
    if not 0 <= size <= _MAX_PAYLOAD:
        raise NotAvro(f"a message has {size} bytes")
    if size > len(data) - at:
        raise IndexError
    return data[at : at + size], at + size


class CdapTopic:
    """One topic, by the address that the TMS page gives it."""

    def __init__(self, address: str, transaction: bytes | None, interrupts: Interrupts) -> None:
        """``transaction``: whose view of it is read; None: everything, what is undecided or rolled back too.

        Raises BadParameter.
        """
        named = _ADDRESS.fullmatch(address)
        if named is None:
            like = "http://host:port/v1/namespaces/default/topics/orders"
            raise typer.BadParameter(
                f"not the address of a topic: {shown(address)!r}; it looks like {like}", param_hint="ADDRESS"
            )
        self.namespace, self.name = named.groups()
        self.shown = shown(address)
        self._url = address.rstrip("/")
        self.transaction = transaction
        self._interrupts = interrupts
        self._connections = Connections(Trust.chosen(), Blocking())

    def close(self) -> None:
        """Close what is open."""
        self._connections.close()

    def generation(self) -> str | None:
        """Which of all the topics that have had this name it is; None: the server does not say so. Raises TopicNotFound;
        ConnectionFailed, or what is answered: it is away."""
        try:
            response = self._answer("GET", "", None, {"accept": JSON}, Deadline(READ_SECONDS))
            try:
                said = self._heard(lambda: response.content(MAX_PROBLEM_BYTES))
            finally:
                response.let_go()
        except Torn as torn:
            raise torn.__cause__ or torn from None
        except TopicNotFound:
            raise
        except OncelogError:
            return None  # a poll is what has to be answered, and says why it is not
        return _generation_in(said)

    def messages(self, position: MessageId | None, is_gone: Callable[[], None]) -> Iterator[list[Message]]:
        """All behind a position, or all, the one at the position before them; until no more come.

        ``is_gone``: is called where that one is not there any more. Raises what the server answers; ConnectionFailed: it is away,
        at once, or for long; InvalidResponse: also where it is another topic.
        """
        last, again, came = None if position is None else bytes(position), position is not None, True
        heard, attempt = -inf, 0
        while came:
            try:
                came = False
                for found in self._from(last, again, is_gone):
                    if found:
                        _check_rising(found, None if again else last)
                        last, again, came = found[-1].id, False, True
                        yield found
                    heard, attempt = time.monotonic(), 0  # by now: whoever takes them may take long
            except Torn as torn:
                if time.monotonic() - heard > PATIENCE_SECONDS and torn.__cause__ is not None:
                    raise torn.__cause__ from None
                with self._interrupts.let_through():
                    time.sleep(pause(attempt, random.random()))
                came, attempt = True, attempt + 1

    def _from(self, last: bytes | None, again: bool, is_gone: Callable[[], None]) -> Iterator[list[Message]]:
        """The messages of an answer behind the last one; ``again``: with it. Raises as :meth:`_polled`."""
        if last is None:
            yield from self._polled(None)
            return
        with closing(self._polled(last)) as answer:
            first = next(answer, [])
            if first and first[0].id == last:
                yield first if again else first[1:]
                yield from answer
                return
        self._check_oldest(last)
        is_gone()
        for found in self._polled(MessageId.from_bytes(last).publish_timestamp):
            yield [each for each in found if each.id > last]

    def _check_oldest(self, last: bytes) -> None:
        """Raises InvalidResponse if there is an older message than one that is not there: that one has not expired."""
        oldest = [each for found in self._polled(None, limit=1) for each in found][:1]
        if oldest and oldest[0].id < last:
            raise InvalidResponse(
                f"{self.shown} has older messages than {last.hex()}, behind which the import goes on, and not that one: it is "
                "another topic, or the transaction does not see it"
            )

    def _polled(self, start: bytes | int | None, limit: int = _ALL) -> Generator[list[Message], None, None]:
        """Messages of one answer as they come, from an id or a moment on; no list is empty. Raises Torn, or what is answered."""
        request = {"startFrom": start, "inclusive": True, "limit": limit, "transaction": self.transaction}
        deadline, incoming = Deadline(READ_SECONDS), Incoming()
        body = encode("ConsumeRequest", AVRO, request)
        response = self._answer("POST", "/poll", body, {"content-type": AVRO}, deadline)
        try:
            while (piece := self._heard(response.more)) is not None:
                if found := incoming.feed(b"".join(piece)):
                    yield found
                deadline.begin_anew()
        except NotAvro as error:
            raise InvalidResponse(f"{self.shown} answers a poll with what are no messages: {error}") from None
        finally:
            response.let_go()
        if not incoming.is_whole:
            raise Torn from InvalidResponse(f"{self.shown} answers a poll with messages that are cut off")

    def _answer(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], deadline: Deadline) -> Response:
        """The answer to a request, its body still to be read. Raises Torn, or what is answered."""
        response = self._heard(lambda: self._connections.ask(method, self._url + path, body, headers, deadline))
        if response.status == 200:
            return response
        try:
            said = self._heard(lambda: response.content(MAX_PROBLEM_BYTES, whole=False))
        finally:
            response.let_go()
        refused = refusal(self.shown, response.status, response.headers, said, datetime.now(UTC))
        if response.status in _LATER:
            raise Torn from refused
        if response.status == 404:
            raise TopicNotFound(f"the source is not there: {self.shown} answers 404")
        raise refused

    def _heard(self, ask: Callable[[], Procedure[T]]) -> T:
        """What comes. Raises Torn: nothing does."""
        try:
            with self._interrupts.let_through():
                return drive(ask())
        except FAILURES as error:
            raise Torn from connection_error(self.shown, error)


def _generation_in(said: bytes) -> str | None:
    """The generation in what GET of a topic answers: CDAP's server its properties alone, the TMS page its name beside them."""
    with suppress(ValueError, RecursionError, AttributeError):
        found = json.loads(said)
        generation = str(found.get("properties", found).get("generation"))
        return generation if re.fullmatch(r"[0-9]{1,19}", generation) else None
    return None


def _check_rising(found: list[Message], last: bytes | None) -> None:
    ids = [each.id for each in found] if last is None else [last, *(each.id for each in found)]
    if not all(map(lt, ids, ids[1:])):
        raise InvalidResponse("ids of the messages do not rise")
