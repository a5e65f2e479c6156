"""What is said to systemd (sd_notify(3)), or to whoever else listens on NOTIFY_SOCKET: a datagram of lines, each a variable.

The protocol is stable, and so short that a library would be more. Who does not listen is not waited for: a service runs on when
its supervisor is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping

_log = logging.getLogger(__name__)


class Supervisor:
    """Whoever has started this process and wants to know how it does; perhaps nobody."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        asked = environment.get("WATCHDOG_USEC", "")
        is_meant = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_seconds = int(asked) / 1e6 if asked.isdecimal() and is_meant and int(asked) else None
        """A sign of life is wanted at least so often; None: none is."""

    def ready(self, status: str) -> None:
        """Requests are answered; again, after :meth:`reloading`, what was read again is in effect."""
        self._say("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Settings are being read again."""
        self._say("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000}")

    def stopping(self, status: str) -> None:
        """It has begun to stop."""
        self._say("STOPPING=1", f"STATUS={status}")

    async def keep_alive(self) -> None:
        """Says that the event loop turns, twice as often as is asked for, until cancelled; returns if nobody asks."""
        while self.watchdog_seconds is not None:
            self._say("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_seconds / 2)

    def _say(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as told:
                told.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            _log.warning("the supervisor cannot be told %s: %s", lines[0], error)
