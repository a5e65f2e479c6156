"""HTTP/1.1 on one connection: requests in, answers out, in their order.

framing.py makes requests of the bytes; here are turns, deadlines and answers. A request is judged by its head, and a handler sees
it when its body is there as a whole: then one task, and one write, is what it costs.

The invariants:

* Answers leave in the order of their requests; one request at a time is answered. What comes behind it waits as bytes, and while
  it does, nothing more is read.
* Where the client asks for it (exchange.PIPELINE), what can be done in a step is under way together with the requests before it.
  The effect is that of one after the other: each is begun in its order, behind one that waits for anything nothing is begun, and
  none is begun that could be on disk while one before it is not (:meth:`exchange.Step.begin`).
* There an answer that is not 2xx is the last one, says so, and from the moment it is known nothing behind it is begun. What was
  begun before goes on, and its answer does not leave: what its client sends again comes after all of it.
* What breaks HTTP is told so only where that cannot be taken for the answer to another request; those before it are answered.
* A request that has waited since its head came is judged anew before it is obeyed: what let it in may have ended meanwhile.
* A request whose client has gone before it was begun, or while it waits for its turn (bounds/turns.py), is not obeyed. One that
  only reads ends with its client; others go on.
* The bytes of a body count from when they arrive until the answer is written, or the connection is gone. Where there is no room
  for more, those that come slowest give way, and what arrives in one piece has a quarter of the room for itself.
* A body that comes packed is unpacked within the same bounds (packing.py), once its turn has come, and before it is judged anew.
* What one turn of the event loop costs is bounded, too: of chunks of a few bytes each, and of requests, thousands of which may be
  in a read, so many are looked at, and the rest waits until others have had their turns (bounds/rounds.py).
* Of answers that are not read no more is held than fits (bounds/unread.py): none is begun before what was written is read, nor
  the next piece of one that comes in pieces.
* No answer is cut silently: one that is given up ends before its length, or its last chunk, is there; what fails under way is
  said in the log.
* A client that is waited for – for a head, a body, the next request, to read – has a deadline. One that we keep waiting has none.
* A connection has a place among all and among those of its address, from before its first byte until it ends (bounds/places.py).
  It gives the place up for another's sake only while its client is waited for, and by one that sends a body or takes an answer
  only where that is too slow; who is told so is given time to read it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict, deque
from collections.abc import Hashable
from concurrent.futures import Executor
from contextlib import aclosing
from email.utils import formatdate
from functools import partial
from typing import Protocol, cast

from oncelog.errors import (
    InternalError,
    OncelogError,
    Overloaded,
    RequestTimeout,
    StorageUnavailable,
    Unauthorized,
)
from oncelog_service.bounds.shares import Shares
from oncelog_service.bounds.turns import STOPPING
from oncelog_service.clock import Clock
from oncelog_service.config import Settings
from oncelog_service.logs import as_said, asking
from oncelog_service.rest.answer import Answer, refusal
from oncelog_service.rest.bounds.places import Awaited, Places, Waits
from oncelog_service.rest.bounds.rounds import HELD_BYTES, TAKEN_AT_ONCE, Rounds
from oncelog_service.rest.bounds.unread import BUFFER_BYTES, Unread
from oncelog_service.rest.exchange import CONTINUE, PIPELINE, Admitted, Exchange, Head, Step
from oncelog_service.rest.framing import Framing, Request
from oncelog_service.rest.heads import Heads, Known
from oncelog_service.rest.limits import MAX_TOGETHER, PARTS_AT_ONCE, PARTS_OF_A_REQUEST, Bodies, larger_bodies
from oncelog_service.rest.request_log import RequestLog
from oncelog_service.traffic import Traffic

_log = logging.getLogger(__name__)

_IDLE_SECONDS = 75
"""How long a connection may wait for its next request; nginx's keepalive_timeout."""

_JOINED_BYTES = 16 * 2**10
"""A body up to here goes out in one piece with its head; copying a larger one costs more than a second write."""

_FAREWELL_SECONDS = 2
"""How long who was refused may take to read it and to hang up; nginx's lingering_timeout is 5."""

_FIRST_BYTES_SECONDS = 0.5
"""How long a connection that was taken last may be silent when the service stops: its request is on its way."""

_HEAD, _BODY, _BETWEEN, _FAREWELL = range(4)
"""What the next bytes of a connection are of; between two requests they begin a head, at a farewell they are dropped."""

_HEAD_OF_A_PART, _BYTES_OF_A_PART = 256, 2_048
"""Bytes of a head, and of whatever comes, that cost as much to look at as a part does (limits.py)."""

_AWAITED = {_HEAD: Awaited.HEAD, _BODY: Awaited.HEAD, _BETWEEN: Awaited.REQUEST}
"""Of whom, where nothing is asked; the rest of the body of a request that was answered early is as good as a head."""


class Application(Protocol):
    """Who answers the requests of a server."""

    def admit(self, head: Head, address: object = None) -> Admitted:
        """Judges a request by its head. ``address``: what :attr:`Admitted.address` said of the same head. Raises OncelogError."""


class Shared:
    """What the connections of a server share."""

    def __init__(
        self,
        application: Application,
        settings: Settings,
        clock: Clock,
        traffic: Traffic | None = None,
        unpacking: Executor | None = None,
        shares: Shares | None = None,
    ) -> None:
        """``unpacking``: the thread that does so; None: the event loop's own. ``shares``: are told who has small work under
        way."""
        self.application = application
        self.unpacking = unpacking
        self._clock = clock
        self.patience = {
            _HEAD: settings.header_timeout_seconds,
            _BODY: settings.body_timeout_seconds,
            _BETWEEN: _IDLE_SECONDS,
            _FAREWELL: _FAREWELL_SECONDS,
        }
        self.traffic = traffic or Traffic()
        sizes = settings.max_request_bytes, settings.max_inflight_bytes
        self.bodies = Bodies(*sizes, self.traffic, clock.elapsed, larger_bodies(settings))
        self.places = Places(settings.max_connections, settings.max_connections_per_address, self.traffic)
        self.unread = Unread(settings.max_unread_bytes, self.traffic)
        self.requests = RequestLog(settings)
        self.heads = Heads()
        self.rounds = Rounds(asyncio.get_running_loop().call_soon)
        self.connections: dict[HttpConnection, None] = {}
        """In the order in which they came."""
        self.told: dict[HttpConnection, None] = {}
        """Those that have no place and are being told so, the oldest first."""
        self.most_told = 64
        self._most_of_one = settings.max_requests_per_principal
        self._of_one: defaultdict[Hashable, int] = defaultdict(int)
        """Who asks → requests under way."""
        self._under_way = 0
        """All of them: whose turn it is, and which were not refused."""
        self._long_of_one: defaultdict[Hashable, int] = defaultdict(int)
        """Those of them that are not done in a step, or not there yet: these may wait for the next message, or a client."""
        self._long = 0
        if shares is not None:
            shares.others = self._has_others
        self.exchanges: dict[Exchange, None] = {}
        """Requests whose turn it is on their connection."""
        self.all_gone = asyncio.Event()
        """Set when a connection ends and was the last one."""
        self.draining = False
        """The service is about to stop: each answer is the last one of its connection."""
        self._date = (0, "")

    def date(self) -> str:
        """The header of an answer that is sent now."""
        now = self._clock.now_ms() // 1000
        if now != self._date[0]:
            self._date = (now, f"date: {formatdate(now, usegmt=True)}\r\n")
        return self._date[1]

    def judge(self, exchange: Exchange, address: object = None) -> None:
        """Finds who answers it, or why nobody does. ``address``: its head is known."""
        exchange.admitted = None
        try:
            exchange.admitted = self.application.admit(exchange.head, address)
            if address is None:
                self.bodies.check_declared(exchange.head)
        except OncelogError as error:
            exchange.refused = error.with_traceback(None)  # its frames hold the exchange: until a collection

    def begin(self, exchange: Exchange, address: str, *, waits: bool = False) -> bool:
        """Its turn has come: it counts as one of whoever asks, or is refused where that one has as many under way as one may.
        ``waits``: instead of being refused it waits, and False is returned."""
        if exchange.refused is not None:
            self.exchanges[exchange] = None
            return True  # else a flood of those who are refused would have others refused
        admitted = exchange.admitted
        who = address if admitted is None or admitted.who is None else admitted.who
        fits = self._under_way < self.places.all and (who not in self._of_one or self._of_one[who] < self._most_of_one)
        if waits and not fits:
            return False
        self.exchanges[exchange] = None
        if fits:
            exchange.who = who
            self._of_one[who] += 1
            self._under_way += 1
            return True
        exchange.keep_alive = False
        self.traffic.refused["requests"] += 1
        exchange.refused = Overloaded(
            "as many requests are under way as the service takes of one or of all; try again in a moment"
        )
        return True

    def _has_others(self, who: Hashable) -> bool:
        """Tells whether somebody else has requests under way that are done in a step."""
        own = self._of_one.get(who, 0) - self._long_of_one.get(who, 0)
        return self._under_way - self._long > own

    def goes_long(self, exchange: Exchange) -> None:
        """It is not done in a step, or its client is waited for: to send it, or to read what it has come to."""
        if exchange.who is not None and not exchange.is_long:
            exchange.is_long = True
            self._long_of_one[exchange.who] += 1
            self._long += 1

    def is_there(self, exchange: Exchange) -> None:
        """Its client is waited for no more, and it may be done in a step."""
        if exchange.who is not None and exchange.is_long:
            exchange.is_long = False
            self._long -= 1
            if (left := self._long_of_one[exchange.who] - 1) > 0:
                self._long_of_one[exchange.who] = left
            else:
                del self._long_of_one[exchange.who]

    def forget(self, exchange: Exchange, *, waits: bool = False) -> None:
        """It is answered, or nobody waits for that. Twice is as once. ``waits``: it has its turn later, and keeps its body."""
        self.exchanges.pop(exchange, None)
        if (who := exchange.who) is not None:
            self.is_there(exchange)
            exchange.who = None
            self._under_way -= 1
            if (left := self._of_one[who] - 1) > 0:
                self._of_one[who] = left
            else:
                del self._of_one[who]
        if not waits:
            self.bodies.give_back(exchange)

    def note_time(self, exchange: Exchange, status: int, seconds: float) -> None:
        """It is answered; its body was there so long ago, and all before it on its connection was answered."""
        times = None if exchange.admitted is None else exchange.admitted.times
        (times or self.traffic.unrouted).took(status, seconds)
        self.requests.note(exchange, status, seconds)

    def broke_off(self, exchange: Exchange, failure: Exception) -> None:
        """Its answer had begun, and ends before its last chunk: its client is not told why."""
        said = "%s %s: the answer broke off", exchange.head.method, as_said(exchange.head.path)
        if isinstance(failure, OncelogError):
            self.traffic.broken_off[failure.code] += 1
            _log.warning(f"{said[0]}: %s", *said[1:], failure.detail)
        else:
            self.traffic.broken_off[InternalError.code] += 1
            _log.error(*said, exc_info=failure)

    def tell(self, connection: HttpConnection) -> None:
        """It has no place, and may stay a moment; of too many who may, the one that was told first goes."""
        self.told[connection] = None
        if len(self.told) > self.most_told:
            oldest = next(iter(self.told))
            del self.told[oldest]  # it ends in the next turn of the event loop; until then another one may come
            oldest.abort()


class HttpConnection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, shared: Shared, address: str = "", *, placed: bool = False, refused: OncelogError | None = None) -> None:
        """``placed``: it has a place; ``refused``: why it has none."""
        self._shared = shared
        self.address = address
        self._placed = placed
        self._refused = refused
        self._has_cut = False
        """What the client sends is not read to the end."""
        if placed:
            shared.places.take(address)
        self._loop = asyncio.get_running_loop()
        self._framing: Framing | None = Framing(shared.heads)
        """None: nothing more is read of what comes."""
        self._is_paused = False
        """Nothing is read from the transport."""
        self._lost = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._is_full = False
        """What was written is to be read before there is more."""
        self.certificate: str | None = None
        """Name in the certificate that the client showed and that was verified (tls.py); it is that of each request."""
        self.certificate_ends_ms = math.inf
        self.nameless: Unauthorized | None = None
        """Why its certificate is nobody's, which each request is told."""

        self._current: Exchange | None = None
        """The request whose turn it is; it may still be arriving."""
        self._together: deque[Exchange] = deque()
        """Those that are under way behind it, in a step each."""
        self._next: Exchange | None = None
        """The one behind all of these, which waits until they are answered."""
        self._newest: Exchange | None = None
        """The one whose body comes, or came last."""
        self._raw = b""
        """Its head as it came."""
        self._pipelines = False
        """The client has asked for it with a request, and with all that follow."""
        self._will_look = False
        """Something of that waits for the next turn of the event loop."""
        self._held = 0
        """Bytes of what does, where it was not looked at when it came."""
        self._ends_soon = False
        """The answer to the last request that has come is the last one."""

        self._phase = _HEAD

        self._due: float | None = None
        """When the client must have sent what it is waited for; None: nothing has begun to be waited for."""
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0

    # --- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(BUFFER_BYTES)
        self._shared.connections[self] = None
        self._peer = (transport.get_extra_info("peername") or ("",))[0]
        if self._refused is not None:
            self._shared.tell(self)
            self._refuse(self._refused)
        self._watch()

    def leave(self) -> None:
        """Gives its place to others. Twice is as once."""
        if self._placed:
            self._placed = False
            self._shared.places.leave(self.address)

    def waits(self) -> Waits | None:
        """For what its client is waited for; None: something is under way as it should be, or it has no place."""
        exchange = self._current
        if not self._placed or self._phase == _FAREWELL:
            return None
        if exchange is not None and exchange.is_under_way:
            until = self._shared.unread.enough_until(self)
            return None if until is None else Waits(Awaited.READING, until)
        if self._due is None or self._will_look:
            return None
        if exchange is None:
            return Waits(_AWAITED[self._phase], self._due)
        is_slow = self._shared.bodies.is_slow(exchange, self._due, self._shared.patience[_BODY])
        return Waits(Awaited.BODY, self._due) if is_slow else None

    def give_way(self) -> str:
        """Ends for another's sake while its client is waited for: one that has begun to ask, or is about to, is told. Returns the
        reason that counts."""
        self.leave()
        if self._current is not None and self._current.is_under_way:
            self.abort()
            return "slow_reader"
        if self._phase == _BETWEEN:
            self._close()
            return "idle"
        reason = "idle" if self._current is None else "slow_body"
        self._shared.tell(self)
        self._refuse(Overloaded("the service has as many connections as it takes; try again in a moment"))
        return reason

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self.leave()
        self._shared.told.pop(self, None)
        self._read_no_more()
        self._is_full = False
        self._writable.set()
        self._shared.unread.ends(self)
        if self._alarm is not None:
            self._alarm.cancel()
        if (exchange := self._current) is not None:
            if not exchange.is_under_way:
                self._shared.forget(exchange)
            elif exchange.answering is not None and exchange.begun and exchange.ends_with_client:
                exchange.answering.cancel()
        self._let_go()
        self._shared.connections.pop(self, None)
        if not self._shared.connections:
            self._shared.all_gone.set()

    def pause_writing(self) -> None:
        self._is_full = True
        self._writable.clear()
        for exchange in (self._current, *self._together):
            if exchange is not None:
                self._shared.goes_long(exchange)
        self._shared.unread.begins(self)

    def resume_writing(self) -> None:
        self._is_full = False
        self._writable.set()
        if not self._transport.is_closing():
            self._shared.unread.ends(self)
            self._look_soon()

    def data_received(self, data: bytes) -> None:
        rounds = self._shared.rounds
        if self._framing is None or rounds.taken < TAKEN_AT_ONCE or rounds.held + len(data) > HELD_BYTES:
            rounds.taken += self._look_at(data, PARTS_AT_ONCE) + len(data) // _BYTES_OF_A_PART
            if rounds.taken > TAKEN_AT_ONCE // 2:
                rounds.turn_soon()
        else:
            rounds.held += len(data)
            self._held += len(data)
            self._framing.hold(data)
            if not self._is_paused:
                self._read_on(self._framing)
            self._look_soon()

    def _look_at(self, data: bytes, most: int) -> int:
        """Looks at what has come as far as its turn is, and at about so many parts of it; the rest waits. Returns how many."""
        framing, parts = self._framing, 0
        if framing is None:
            return parts
        of_head = framing.head_bytes
        try:
            while self._current is None or self._phase == _BODY or (self._pipelines and self._next is None):
                event = framing.next(data)
                if event is None:
                    break
                data = b""
                if isinstance(event, Request):
                    parts += PARTS_OF_A_REQUEST
                    self._arrives(event, framing)
                elif isinstance(event, bytes):
                    parts += 1
                    self._takes(event)
                else:
                    self._is_there(event.keep_alive)
                if not framing.has_more or parts > most or self._framing is None:
                    break
            else:
                if data:
                    framing.hold(data)
        except OncelogError as error:
            self._refuse(error)
        except Exception:
            _log.exception("a request could not be looked at")
            self._refuse(InternalError())
        if self._framing is None:
            return parts
        if self._phase == _BETWEEN and framing.is_within:
            self._phase, self._due = _HEAD, None
        if self._phase == _HEAD:
            parts += max(0, framing.head_bytes - of_head) // _HEAD_OF_A_PART
        elif self._phase == _BODY and self._newest is not None and self._newest.refused is None:
            self._newest.waited = True
            self._shared.bodies.is_still_arriving(self._newest, self._refuse)
        if framing.has_more != self._is_paused:
            self._read_on(framing)
        if parts > most and framing.has_more:
            self._look_soon()
        if (exchange := self._current) is None or exchange.handed_over is None:
            self._watch()
        return parts

    def _read_on(self, framing: Framing) -> None:
        """Reads from the transport from now on, or does not, since something waits."""
        self._is_paused = framing.has_more
        (self._transport.pause_reading if self._is_paused else self._transport.resume_reading)()

    def _look_soon(self) -> None:
        """What waits has its turn when others have had theirs (bounds/rounds.py)."""
        if not self._will_look:
            self._will_look = True
            self._shared.rounds.add(self)

    def look_on(self, most: int) -> int:
        """Looks at about so many parts of what waits; returns how many it was."""
        self._will_look = False
        self._shared.rounds.held -= self._held
        self._held = 0
        if self._is_over:
            self._read_no_more()
            return 0
        if self._next is not None:
            self._go_ahead()
        if self._framing is None or not self._framing.has_more:
            if self._ends_soon:
                self.shut_down()
            self._watch()  # what was due meanwhile was left to this
            return 0
        return self._look_at(b"", most)

    def _read_no_more(self) -> None:
        """What still comes is dropped."""
        if self._framing is not None:
            self._framing.close()
            self._framing = None
        if self._is_paused and not (self._lost or self._transport.is_closing()):
            self._is_paused = False
            self._transport.resume_reading()

    def _arrives(self, request: Request, framing: Framing) -> None:
        """The head is there, of one that came before the body, too: who answers is known now, or that nobody does."""
        shared, headers, body = self._shared, request.headers, request.body
        method, path, query, target = request[:4]
        shown = self.certificate, self.certificate_ends_ms, self.nameless, shared.requests.id_of(headers)
        head = Head(method, path, query, target, headers, self._peer, *shown, request.takes_chunks)
        exchange = self._newest = Exchange(head, request.keep_alive)
        exchange.pipelined = self._pipelines = self._pipelines or (PIPELINE in headers and headers[PIPELINE] == b"1")
        shared.judge(exchange, request.address)
        if (self._ends_soon or shared.draining) and (exchange.refused is not None or not framing.has_more):
            exchange.keep_alive = False
        self._due = None
        if body is None:
            self._phase, self._raw = _BODY, request.raw
            if exchange.admitted is not None and exchange.admitted.checking is not None:
                exchange.admitted.checking.add_done_callback(partial(self._has_checked, exchange))
        else:
            self._phase = _BETWEEN
            exchange.complete = True
            if exchange.refused is None:
                try:
                    shared.bodies.take(exchange, body)
                except OncelogError as error:
                    exchange.refused = error.with_traceback(None)
        if self._current is not None:
            self._next = exchange
            if body is not None:
                self._go_ahead()
        elif body is None:
            self._current = exchange
            self._take_turn(exchange)
        else:
            self._current = exchange
            shared.begin(exchange, self.address)
            self._begin(exchange)

    def _has_checked(self, exchange: Exchange, checking: asyncio.Future[None]) -> None:
        """Nobody is known to ask: what is still to come of the body is not taken."""
        error = checking.exception()
        arrives = exchange is self._newest and not exchange.complete and exchange.refused is None and not self._lost
        if arrives and isinstance(error, OncelogError):
            self._shared.bodies.give_back(exchange)
            self._refuse_one(exchange, error)

    def _takes(self, part: bytes) -> None:
        """A part of the newest one's body is there."""
        exchange = self._newest
        if exchange is None or exchange.refused is not None:
            return
        try:
            self._shared.bodies.take(exchange, part)
        except OncelogError as error:
            self._shared.bodies.give_back(exchange)
            self._refuse_one(exchange, error)

    def _is_there(self, keep_alive: bool) -> None:
        """The newest one's body is there as a whole."""
        self._phase, self._due = _BETWEEN, None
        exchange = self._newest
        if exchange is None or exchange.refused is not None:
            return
        exchange.complete = True
        if exchange.arriving is not None:
            exchange.waited = True
            self._shared.bodies.has_arrived(exchange)
        exchange.keep_alive = exchange.keep_alive and keep_alive
        if self._raw:
            self._note_head(exchange)
            self._raw = b""
        if self._ends_soon or self._shared.draining:
            self.ends_soon()
        if exchange is self._current:
            self._shared.is_there(exchange)
            self._begin(exchange)
        elif exchange is self._next:
            self._go_ahead()

    def _note_head(self, exchange: Exchange) -> None:
        """Remembers the head of one that may be done in a step, with a body of the length that it has declared."""
        admitted, head, size = exchange.admitted, exchange.head, exchange.size
        if admitted is None or admitted.step is None or not exchange.keep_alive:
            return
        if head.header(b"content-length") == b"%d" % size:
            known = Known(head.method, head.path, head.query, head.target, head.headers, size, admitted.address)
            self._shared.heads.came(self._raw, known)

    # --- one request after another

    def _take_turn(self, exchange: Exchange) -> None:
        """All before it are answered."""
        self._shared.begin(exchange, self.address)
        if exchange.arriving is not None:
            self._shared.bodies.goes_on(exchange)
        if exchange.refused is None and exchange.asks_to_continue:
            self._transport.write(CONTINUE)
        if exchange.refused is not None or exchange.complete:
            self._begin(exchange)
        else:
            self._shared.goes_long(exchange)

    def _begin(self, exchange: Exchange, behind: Step | None = None) -> bool:
        """Has it answered: in one step, where nothing has to be waited for, else by a task. ``behind``: this step is under way;
        what cannot be done in one then is not begun, and False is returned."""
        admitted = exchange.admitted
        if exchange.waited and not self._is_full and admitted is not None and admitted.step is not None:
            exchange.waited = False
            self._shared.judge(exchange)
            admitted = exchange.admitted
        if admitted is not None and admitted.step is not None and exchange.refused is None and not self._is_full:
            exchange.began = self._loop.time()
            step = exchange.handed_over = admitted.step(exchange, self)
            try:
                if step.begin(behind):
                    return True
            except Exception:
                _log.exception("%s %s failed", exchange.head.method, as_said(exchange.head.path))
                exchange.refused = InternalError()
            exchange.handed_over = None
        if behind is None:
            self._shared.goes_long(exchange)
            exchange.answering = self._loop.create_task(self._answer(exchange))
        return False

    def _go_ahead(self) -> None:
        """Begins the next one, if it may be under way together with what is."""
        exchange, before = self._next, self._together[-1] if self._together else self._current
        if exchange is None or before is None:
            return
        if self._goes_along(exchange, before):
            self._together.append(exchange)
            self._next = None
        else:
            exchange.waited = True

    def _goes_along(self, exchange: Exchange, before: Exchange) -> bool:
        """Begins it while the one before it is under way; False: it was not."""
        step, shared = before.handed_over, self._shared
        if step is None or not (before.pipelined and before.keep_alive and exchange.complete) or exchange.asks_to_continue:
            return False
        if len(self._together) >= MAX_TOGETHER or not shared.begin(exchange, self.address, waits=True):
            return False
        if not self._begin(exchange, step):
            shared.forget(exchange, waits=True)
            return False
        return True

    def give(self, exchange: Exchange, answer: Answer) -> None:
        """Sends what a step has come to, when all before it is answered, and what those behind it have; the next one's turn."""
        if exchange.handed_over is None:
            return  # it has failed since it was handed over, and is answered so
        exchange.answer = answer
        if exchange.pipelined:
            exchange.told(answer)
        if exchange is not self._current:
            if self._together:
                self._together[-1].keep_alive &= exchange.keep_alive  # nothing is begun behind what is known to be refused
            elif self._lost or self._current is None:
                self._note(exchange, answer)
            return
        following: Exchange | None = exchange
        while following is not None and (found := following.answer) is not None:
            if self._is_full:
                following.answering = self._loop.create_task(self._answer(following, found))
                return
            try:
                if not (self._lost or self._transport.is_closing()):
                    assert isinstance(found.body, bytes)
                    self._transport.write(following.head_of(found, self._shared.date()) + found.body)
                self._shared.note_time(following, found.status, self._loop.time() - following.began)
            except Exception as failure:
                self._shared.broke_off(following, failure)
                following.keep_alive = False
            following = self._end(following)

    def _note(self, exchange: Exchange, answer: Answer) -> None:
        """It has come to something that is told nobody any more."""
        self._shared.note_time(exchange, answer.status, self._loop.time() - exchange.began)
        self._shared.forget(exchange)

    def _let_go(self) -> None:
        """Nothing behind what was answered last is answered; what is not begun is not obeyed."""
        for exchange in self._together:
            if exchange.answer is not None:
                self._note(exchange, exchange.answer)
        if self._next is not None:
            self._shared.forget(self._next)
        self._together.clear()
        self._next = None

    @property
    def _is_over(self) -> bool:
        """No answer leaves any more."""
        return self._phase == _FAREWELL or self._transport.is_closing()

    def _refuse_one(self, exchange: Exchange, error: OncelogError) -> None:
        """It is answered so when its turn has come, whatever else comes of its body."""
        exchange.refused = error.with_traceback(None)
        if exchange is self._current:
            self._begin(exchange)

    def _refuse(self, error: OncelogError) -> None:
        """What came cannot be read, and no more is read. It is told where no other request waits for its answer, and where it is
        not the rest of one that has been answered."""
        error = error.with_traceback(None)
        self._read_no_more()
        self._has_cut = True
        if self._current is None and self._phase == _BODY:
            self._close()
            return
        exchange = self._newest
        if exchange is None or self._current is None:
            self._newest = self._current = exchange = Exchange(Head("", "", b"", "", {}, self._peer), False, refused=error)
            self._shared.begin(exchange, self.address)
            self._begin(exchange)
        exchange.keep_alive = False
        if exchange.refused is None and not exchange.complete:
            self._shared.bodies.give_back(exchange)
            self._refuse_one(exchange, error)

    async def _answer(self, exchange: Exchange, answer: Answer | None = None) -> None:
        """Has it answered, once its client has read what was written before. ``answer``: what a step has come to."""
        exchange.begun = True
        try:
            await self._room(exchange)
            if answer is None and (answer := await self._found(exchange)) is not None:
                exchange.told(answer)
            if answer is not None:
                await self._send(exchange, answer)
                self._shared.note_time(exchange, answer.status, self._loop.time() - exchange.began)
        except asyncio.CancelledError:
            # Its client has gone, or the service stops and has waited long enough: half an answer must pass for none.
            self._transport.abort()
        except Exception as failure:
            self._shared.broke_off(exchange, failure)
            exchange.keep_alive = False
        finally:
            following = self._end(exchange)
            if following is not None and following.answer is not None:
                self.give(following, following.answer)

    async def _found(self, exchange: Exchange) -> Answer | None:
        """Returns what it is answered; None: its client has gone, and nothing was done."""
        exchange.began = self._loop.time()
        await self._check(exchange)
        if exchange.refused is None and not self._lost and exchange.head.is_packed:
            await self._unpack(exchange)
        if self._lost:
            return None
        if exchange.waited and exchange.refused is None:
            self._shared.judge(exchange)
        asking.set(exchange.asking)
        return await self._outcome(exchange)

    async def _room(self, exchange: Exchange) -> None:
        """Returns when more may be made: one answer, or one piece of it, at a time is held for a client that does not read."""
        if self._is_full:
            exchange.waited = True
            await self._writable.wait()
        if exchange.admitted is not None and exchange.admitted.reads and self._shared.unread.is_pressed:
            exchange.waited = True
            await self._shared.unread.wait_for_room()

    async def _check(self, exchange: Exchange) -> None:
        """Returns when it is known who asks, or that nobody does."""
        if exchange.refused is None and exchange.admitted is not None and exchange.admitted.checking is not None:
            exchange.waited = True
            try:
                await asyncio.shield(exchange.admitted.checking)  # others may wait for the same one
            except OncelogError as error:
                exchange.refused = error.with_traceback(None)
            except Exception:
                _log.exception("a signed token could not be checked")
                exchange.refused = InternalError()

    async def _unpack(self, exchange: Exchange) -> None:
        exchange.unpacking = True
        try:
            await self._shared.bodies.unpack(exchange, self._shared.unpacking)
        except OncelogError as error:
            exchange.refused = error.with_traceback(None)
        finally:
            exchange.unpacking = False

    async def _outcome(self, exchange: Exchange) -> Answer:
        error = exchange.refused
        if error is None:
            assert exchange.admitted is not None
            if exchange.admitted.standing is not None:
                exchange.admitted.standing.who = exchange.who
            try:
                return await exchange.admitted.answer(exchange.body)
            except OncelogError as refused:
                error = refused.with_traceback(None)  # its frames hold the body, and this one it: until a collection
            except Exception:
                _log.exception("%s %s failed", exchange.head.method, as_said(exchange.head.path))
                error = InternalError()
        elif exchange.admitted is not None:
            exchange.admitted.refused(error)
        self._shared.traffic.problems[error.code] += 1
        return refusal(error, exchange.head.target)

    async def _send(self, exchange: Exchange, answer: Answer) -> None:
        body = answer.body
        head = exchange.head_of(answer, self._shared.date())
        if isinstance(body, bytes):
            await self._write(head, b"" if exchange.head.method == "HEAD" else body)
            return
        async with aclosing(body) as pieces:
            try:
                await self._write(head)
                async for piece in pieces:
                    if piece:  # an empty one would be the last chunk
                        await self._write(b"%x\r\n" % len(piece), piece)
                        self._transport.write(b"\r\n")
                    del piece  # from here on the transport alone holds what its client has not read
                    await self._room(exchange)
            except asyncio.CancelledError:
                if not self._lost:
                    self._shared.broke_off(exchange, StorageUnavailable(STOPPING))
                raise
        await self._write(b"0\r\n\r\n")

    async def _write(self, head: bytes, body: bytes = b"") -> None:
        """Hands over, once a client that does not read has read what was written before."""
        if self._is_full:
            await self._writable.wait()
        if self._transport.is_closing():
            return
        if len(body) <= _JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    def _end(self, exchange: Exchange) -> Exchange | None:
        """It is answered. Returns the next one, whose turn it is."""
        self._shared.forget(exchange)
        if self._lost:
            return None
        self._current = None
        if not exchange.keep_alive:
            if exchange.pipelined:
                self._read_no_more()
                self._has_cut = True  # there may be more to come than was looked at
            self._let_go()
            self._close()
            return None
        if self._together:
            self._current = self._together.popleft()
        elif self._next is not None and not self._is_over:
            self._current, self._next = self._next, None
            self._take_turn(self._current)
        if self._next is not None or (self._framing is not None and self._framing.has_more):
            self._look_soon()
        self._watch()
        return self._current

    def ends_soon(self) -> None:
        """Has the connection end with the answer that is under way; where more has come, with the answer to the last of it."""
        self._ends_soon = True
        last = self._next or (self._together[-1] if self._together else self._current)
        if last is not None and not (last.complete and self._framing is not None and self._framing.has_more):
            last.keep_alive = False

    def shut_down(self) -> None:
        """Ends the connection once what its client has begun to ask is answered.

        Who has just connected, and has not asked yet, is given a moment to do so.
        """
        self.ends_soon()
        if self._current is not None or self._will_look:
            return
        if self._phase == _BETWEEN:
            self._close()
        elif self._phase == _HEAD and self._framing is not None and not self._framing.head_bytes:
            self._due = self._loop.time() + _FIRST_BYTES_SECONDS
            self._watch()

    def _close(self) -> None:
        """Ends the connection when its client has read what was written.

        One that is closed while bytes of its client wait to be read is reset, and takes along what the client has not read: who
        was refused while sending is told that this was all, and what still comes is dropped for a moment.
        """
        if self._has_cut and not self._transport.is_closing() and self._transport.can_write_eof():
            self._has_cut = False
            self._transport.write_eof()
            self._phase, self._due = _FAREWELL, None
            self._watch()
            return
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._shared.unread.begins(self)

    def unread(self) -> int:
        """Bytes that were written and have not left."""
        return self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Ends the connection at once."""
        self._transport.abort()

    # --- deadlines

    def _watch(self) -> None:
        """Gives the client its time for what it has to send next, if that is waited for and nothing has been given yet.

        A request that arrives as a whole costs no timer: the alarm that is set stays, finds that it is early, and is set anew.
        """
        if self._lost or (self._current is not None and self._current.is_under_way):
            return
        if self._due is None:
            self._due = self._loop.time() + self._shared.patience[self._phase]
        if self._alarm is None or self._alarm_at > self._due:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_at = self._due
            self._alarm = self._loop.call_at(self._due, self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        self._alarm = None
        if self._due is None or self._will_look or self._transport.is_closing():
            return  # an answer is under way, or more has come, and sets it then
        if self._loop.time() < self._due:
            self._watch()
        elif self._current is None:
            self._close()
        else:
            self._refuse(RequestTimeout(f"the body did not arrive within {self._shared.patience[_BODY]:g} s"))
