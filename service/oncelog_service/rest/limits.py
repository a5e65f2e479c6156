"""What a request may cost before a handler sees it: size, and all of them together. Its time is bounded in ``protocol.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor

from oncelog.errors import OncelogError, Overloaded, RequestTooLarge
from oncelog.wire.media import AVRO, essence
from oncelog_service.bounds import cdap
from oncelog_service.config import Settings
from oncelog_service.rest.bounds.pace import Pace
from oncelog_service.rest.exchange import Arriving, Exchange, Head
from oncelog_service.rest.packing import is_unpacked_at_once, unpack, unpacked_on, unpacked_size
from oncelog_service.traffic import Traffic

MAX_TOGETHER = 512
"""Requests under way together behind another one on their connection."""

PARTS_AT_ONCE = 4_096
"""Parts of a body, beyond which what else has come has the next turn of the event loop: each costs 1 to 2 µs, whatever it holds,
and a read of 256 kB has 43,000 chunks of one byte. Nobody is refused for them: who streams what json's iterencode yields sends
such, and a byte of small requests costs the processor more."""
PARTS_OF_A_REQUEST = 32
"""A request costs as much as so many: its head is judged, and it may be done at once."""

_SMALL_BYTES = 512
"""Parts of a body that are joined as they arrive: an object for each of two bytes would be twenty times the body."""


def larger_bodies(settings: Settings) -> Callable[[Head], int] | None:
    """How large the body of a request may be by its head; None: all may be as large."""
    if not settings.cdap_clients:
        return None
    most, of_cdap = settings.max_request_bytes, max(settings.max_request_bytes, cdap.BODY_BYTES)

    def of(head: Head) -> int:
        is_of_cdap = head.path.endswith(_OF_CDAP) and essence(head.header(b"content-type").decode("latin-1")) == AVRO
        return of_cdap if is_of_cdap else most

    return of


_OF_CDAP = ("/publish", "/store")

_PACE = Pace(64 * 2**10, 2.0)
"""How fast a body must come to keep its room when others have none: a quarter of what the largest needs to be there in time."""


def slow_ones(arriving: Mapping[Exchange, Arriving], besides: Exchange, now: float) -> list[Exchange]:
    """Those whose bytes come too slowly, or not at all, the slowest first."""
    slow = [each for each, body in arriving.items() if body.good_until < now and each is not besides]
    return sorted(slow, key=lambda each: arriving[each].good_until)


class Bodies:
    """Bounds the body of each request, and the bytes of all that are held at the same time.

    Those that come piece by piece have three quarters of the room: what arrives in one piece finds some. Where there is none, the
    slowest gives way, and only then is anybody refused.
    """

    def __init__(
        self,
        max_bytes: int,
        max_inflight_bytes: int,
        traffic: Traffic,
        clock: Callable[[], float],
        more: Callable[[Head], int] | None = None,
    ) -> None:
        """``max_bytes``: of one; ``more``: of a request with this head, where it is not the same for all."""
        self._of = more or (lambda head: max_bytes)
        self._least = max_bytes
        """All may be as large."""
        self._all = max_inflight_bytes
        self._share = max(max_bytes, max_inflight_bytes * 3 // 4)
        self._traffic = traffic
        self._clock = clock
        self._arriving: dict[Exchange, Arriving] = {}
        self._arriving_bytes = 0

    def check_declared(self, head: Head) -> None:
        """Raises RequestTooLarge, before a byte of the body is read, where its length is declared."""
        declared = head.header(b"content-length")
        # Cut before it is converted: Python refuses to convert thousands of digits, with an error that would be a 500.
        if declared.isdigit() and int(declared[:20]) > self._of(head):
            raise self._too_large(head)

    def take(self, exchange: Exchange, part: bytes) -> None:
        """Counts a part as it arrives: a declared length costs its sender nothing, and would reserve all.

        Raises RequestTooLarge, Overloaded: it does not count.
        """
        size = len(part)
        whole = exchange.size + size
        if whole > self._least and whole > self._of(exchange.head):
            raise self._too_large(exchange.head)
        self._count(exchange, size)
        parts = exchange.parts
        if not parts or size >= _SMALL_BYTES:
            parts.append(part)
        elif isinstance(last := parts[-1], bytearray):
            last += part
        else:
            parts.append(bytearray(part))

    async def unpack(self, exchange: Exchange, thread: Executor | None) -> None:
        """Unpacks the body of a request, all of which is here. What it takes counts before it takes it.

        Raises InvalidRequest, Overloaded.
        """
        packed = exchange.body
        size = unpacked_size(packed, self._of(exchange.head))
        self._count(exchange, size)
        if is_unpacked_at_once(packed, size):
            unpacked = unpack(packed, size)
        else:
            exchange.waited = True
            unpacked = await unpacked_on(thread, packed, size)
        exchange.parts[:] = [unpacked]
        self._discount(exchange, len(packed))

    def is_still_arriving(self, exchange: Exchange, gives_way: Callable[[OncelogError], None]) -> None:
        """All that has come is taken, and there is more to come. ``gives_way``: refuses the request, and gives back its body.

        One that has sent its head alone holds nothing yet: what follows may still come in one piece.
        """
        if not exchange.size:
            return
        now = self._clock()
        arriving = exchange.arriving
        if arriving is None:
            arriving = exchange.arriving = self._arriving[exchange] = Arriving(gives_way, _PACE.begun(now))
            self._arriving_bytes += exchange.size
        else:
            arriving.good_until = _PACE.after(arriving.good_until, exchange.size - arriving.noted, now)
        arriving.noted = exchange.size

    def is_slow(self, exchange: Exchange, due: float, patience: float) -> bool:
        """Tells whether it has come too slowly to keep what others have not. ``due``: when all of it must be here, ``patience``
        seconds after its head."""
        good_until = due - patience + _PACE.grace_seconds if exchange.arriving is None else exchange.arriving.good_until
        return good_until < self._clock()

    def goes_on(self, exchange: Exchange) -> None:
        """We have kept it waiting, and it may go on now."""
        if exchange.arriving is not None:
            exchange.arriving.good_until = _PACE.begun(self._clock())

    def has_arrived(self, exchange: Exchange) -> None:
        """Nothing more comes of it. Twice is as once."""
        if exchange.arriving is not None:
            exchange.arriving = None
            del self._arriving[exchange]
            self._arriving_bytes -= exchange.size

    def give_back(self, exchange: Exchange) -> None:
        """Forgets the body. Twice is as once."""
        if exchange.arriving is not None:
            self.has_arrived(exchange)
        self._traffic.body_bytes -= exchange.size
        exchange.size = 0
        exchange.parts = []

    def _count(self, exchange: Exchange, size: int) -> None:
        """Raises Overloaded: there is no room."""
        is_arriving = exchange.arriving is not None
        is_much = is_arriving or size > self._all - self._traffic.body_bytes
        if is_much and size > self._room(exchange) and not self._make_room(exchange, size):
            self._traffic.refused["bodies"] += 1
            raise Overloaded("the service holds as many request bodies as it may; try again in a moment")
        self._traffic.body_bytes += size
        if is_arriving:
            self._arriving_bytes += size
        exchange.size += size

    def _discount(self, exchange: Exchange, size: int) -> None:
        self._traffic.body_bytes -= size
        exchange.size -= size

    def _room(self, exchange: Exchange) -> int:
        left = self._all - self._traffic.body_bytes
        return left if exchange.arriving is None else min(left, self._share - self._arriving_bytes)

    def _make_room(self, exchange: Exchange, size: int) -> bool:
        for slow in slow_ones(self._arriving, exchange, self._clock()):
            self._traffic.refused["slow_body"] += 1
            self._arriving[slow].gives_way(Overloaded("the body came too slowly for a service without room; try again"))
            if size <= self._room(exchange):
                return True
        return False

    def _too_large(self, head: Head) -> RequestTooLarge:
        limit = self._of(head)
        return RequestTooLarge(f"the body is larger than {limit} bytes; send fewer messages at once", limit=limit)
