"""TLS on one connection: what arrives is decrypted for the protocol above, what that writes is encrypted. Over any transport.

asyncio has TLS of its own, and uvloop another. Neither knows of what a service needs here: another certificate from one handshake
to the next; a word for who speaks plain HTTP; and a protocol above that has the connection from its first byte, so that its
deadlines, its counts and its stop hold while hands are shaken, and so that it sees how much its client leaves unread. Closing
waits for nobody. OpenSSL does the work; this hands bytes from one side to the other.

The invariants:

* The protocol above is told of the connection before the first byte, and of the end after the last. It sees no byte before the
  handshake is done, and what it writes before goes out after.
* Each byte that OpenSSL wants sent is sent in the same step: also those with which a handshake is refused.
* In one turn of the event loop no more is looked at than bounds/records.py lets; the rest waits, and nothing more is read
  meanwhile. Who sends what brings nothing, again and again, is cut off.
* A handshake that fails, plain HTTP and garbage are no errors of the service: nothing is raised, nothing logged as one.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from typing import Any, Protocol, cast

from oncelog.errors import InvalidRequest, Unauthorized
from oncelog_service.rest.answer import refusal
from oncelog_service.rest.bounds.records import Records
from oncelog_service.rest.certificates import end_of, name_in
from oncelog_service.rest.exchange import Exchange, Head

_log = logging.getLogger(__name__)

_RECORD_BYTES = 16 * 2**10
"""Most that one record of TLS holds."""
_SLICE_BYTES = 256 * 2**10
"""Encrypted in one go: 0.2 ms, and so much memory beside what waits to be sent."""
_HANDSHAKE = 0x16
"""The first byte of whoever speaks TLS: the type of the record that begins a handshake."""
_FAREWELL_SECONDS = 10.0
"""How long who is refused before the handshake may take to read it."""


class Above(Protocol):
    """What a connection under TLS is to the protocol above, besides one: it has a name."""

    certificate: str | None
    """Name in the client's certificate, which was verified; None: it showed none."""
    certificate_ends_ms: float
    nameless: Unauthorized | None
    """Why the certificate that was shown is nobody's, which every request is told."""


class TlsConnection(asyncio.Protocol, asyncio.Transport):
    """One connection: a protocol to the transport below, a transport to the protocol above."""

    def __init__(self, context: Callable[[], ssl.SSLContext], above: asyncio.Protocol) -> None:
        """``context``: asked when the handshake begins; ``above``: has what :class:`Above` has."""
        self._choose = context
        self._above = above
        self._come, self._to_go = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        """None until the first byte has come."""
        self._is_up = False
        """The handshake is done."""
        self._records = Records()
        self._pending = b""
        """What has come and waits for the next turn."""
        self._turn: asyncio.Handle | None = None
        """The next one, where something waits for it."""
        self._held = False
        """The protocol above wants nothing more for now."""
        self._reads = True
        """The transport below is not paused."""
        self._over = False
        """Nothing that comes is looked at any more."""
        self._waiting: list[bytes] = []
        """Written by the protocol above before the handshake was done."""
        self._ending = False
        """The protocol above has nothing more to say."""
        self._closing = False
        self._alarm: asyncio.TimerHandle | None = None

    # --- what the transport below calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)
        self._above.connection_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        for waiting in (self._alarm, self._turn):
            if waiting is not None:
                waiting.cancel()
        self._pending = b""
        self._above.connection_lost(exc)

    def pause_writing(self) -> None:
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._above.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if self._tls is None:
            if data[0] != _HANDSHAKE:
                self._refuse_plain(data)
                return
            self._tls = self._choose().wrap_bio(self._come, self._to_go, server_side=True)
        self._pending += data
        if self._turn is None:
            self._take_turn()

    def _take_turn(self) -> None:
        """Looks at as much of what has come as one turn of the event loop may; the rest has the next one."""
        self._turn = None
        if not (self._over or (self._held and self._is_up)):
            size, ended = self._records.cut(self._pending)
            data, self._pending = self._pending[:size], self._pending[size:]
            self._look_at(data, ended)
        self._read_on()

    def _look_at(self, data: bytes, ended: int) -> None:
        """``ended``: so many records do in these bytes."""
        self._come.write(data)
        try:
            if self._is_up:
                self._read(ended)
            elif self._shake_hands():
                self._read(0)  # what may lie behind the handshake in this turn
            elif self._records.count(ended, 0, 0):
                self._cut_off()
        except ssl.SSLError as error:
            self._fail(error)

    def _read_on(self) -> None:
        """Has what waits have its turn, and reads from the transport where nothing waits that came before."""
        if self._over:
            self._pending, self._held = b"", False
        if self._below.is_closing():
            return
        if self._pending and not self._held and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._take_turn)
        reads = not (self._pending or self._held)
        if reads != self._reads:
            self._reads = reads
            (self._below.resume_reading if reads else self._below.pause_reading)()

    def _cut_off(self) -> None:
        """It sends for nothing what costs us something."""
        _log.info("cut off %s: too many records of TLS that bring nothing", self.get_extra_info("peername"))
        self._over = True
        self._below.abort()

    # --- the handshake, and what comes behind it

    def _shake_hands(self) -> bool:
        """Goes on with it; tells whether it is done."""
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        self._flush()
        self._is_up = True
        self._records.begins_anew()
        self._learn_name(self._tls)
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            self._encrypt(data)
        if self._closing:
            self._say_goodbye()
        elif self._ending:
            self._say_end()
        return not (self._closing or self._ending)

    def _learn_name(self, tls: ssl.SSLObject) -> None:
        above, shown = cast(Above, self._above), tls.getpeercert()
        if shown:
            try:
                above.certificate, above.certificate_ends_ms = name_in(shown), end_of(shown) * 1000
            except ValueError as error:
                above.nameless = Unauthorized(f"the client's certificate is nobody's: {error}")

    def _read(self, ended: int) -> None:
        """Hands on all that can be decrypted, in one piece, as it came. ``ended``: so many records may bring something."""
        assert self._tls is not None
        parts, is_last = list[bytes](), False
        try:
            while part := self._tls.read(_RECORD_BYTES):
                parts.append(part)
            is_last = True  # the client has said so
        except ssl.SSLWantReadError:
            pass
        finally:
            self._flush()
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            if self._records.count(ended, len(parts), len(data)):
                self._cut_off()
            elif parts:
                self._above.data_received(data)
        if is_last:
            self._below.close()

    def _fail(self, error: ssl.SSLError) -> None:
        """Tells the client why, as TLS does, and leaves it time to read that; or ends what can no longer be read."""
        self._flush()
        if self._is_up:
            self._below.abort()
            return
        _log.info("no TLS with %s: %s", self.get_extra_info("peername"), error.reason or error)
        self._let_it_read()

    def _refuse_plain(self, data: bytes) -> None:
        if data[:1].isupper():  # a method: GET, POST
            told = refusal(InvalidRequest("this port speaks TLS; the address begins with https://"), "")
            head = Exchange(Head("", "", b"", "", {}), False).head_of(told, f"date: {formatdate(usegmt=True)}\r\n")
            self._below.write(head + cast(bytes, told.body))
        self._let_it_read()

    def _let_it_read(self) -> None:
        """Sends what there is and no more; a connection closed with something unread on it would be reset, and take that along.
        The protocol above gives the client its time, and closes."""
        self._over = True
        if self._below.can_write_eof():
            self._below.write_eof()
        self._read_on()

    def _flush(self) -> None:
        if self._to_go.pending and not self._below.is_closing():
            self._below.write(self._to_go.read())

    # --- what the protocol above calls

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._ending or self.is_closing():
            return
        if self._is_up:
            self._encrypt(data)
        else:
            self._waiting.append(bytes(data))

    def _encrypt(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert self._tls is not None
        view = memoryview(data)
        try:
            for at in range(0, len(view), _SLICE_BYTES):
                self._tls.write(view[at : at + _SLICE_BYTES])
                self._flush()
        except ssl.SSLError:  # it was closed by the client, or is broken
            self._below.abort()

    def close(self) -> None:
        """Ends the connection when what was written is sent; what was written before the handshake, when that is done, unless
        the client has had its time for it, which who writes its end before holds."""
        if self._closing:
            return
        self._closing = True
        if self._waiting and not self._over and not self._ending:
            self._alarm = asyncio.get_running_loop().call_later(_FAREWELL_SECONDS, self._below.abort)
        else:
            self._say_goodbye()

    def can_write_eof(self) -> bool:
        return self._below.can_write_eof()

    def write_eof(self) -> None:
        """Tells the client that this was all, and drops what it still sends."""
        if self._ending or self._closing:
            return
        self._ending = True
        if not self._waiting or self._over:
            self._say_end()

    def _say_end(self) -> None:
        self._say_last_word()
        self._let_it_read()

    def _say_goodbye(self) -> None:
        self._say_last_word()
        self._over = True
        self._below.close()

    def _say_last_word(self) -> None:
        if self._tls is not None and self._is_up and not self._over:
            with suppress(ssl.SSLError):  # it wants the client to say the same, which nobody waits for
                self._tls.unwrap()
            self._flush()

    def abort(self) -> None:
        self._over = self._closing = True
        self._below.abort()

    def is_closing(self) -> bool:
        return self._closing or self._below.is_closing()

    def pause_reading(self) -> None:
        self._held = True
        self._read_on()

    def resume_reading(self) -> None:
        self._held = False
        self._read_on()

    def is_reading(self) -> bool:
        return not self._held

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size() + sum(map(len, self._waiting))

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._below.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._below.get_extra_info(name, default)
