"""Says in the log which requests were slow, and, where that is asked for, all of them: one line each, `oncelog.requests`.

A request has an id, its client's own or one of this process, under which everything is said that is logged while it is
answered; an answer that refuses carries it, and every answer where the client named one.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from itertools import count

from oncelog_service.config import Settings
from oncelog_service.logs import as_said, asking
from oncelog_service.rest.exchange import REQUEST_ID, Exchange

_log = logging.getLogger("oncelog.requests")
_AN_ID = re.compile(rb"[!-~]{1,128}")


class RequestLog:
    """Of one server."""

    def __init__(self, settings: Settings) -> None:
        self.follow(settings)
        self._prefix = os.urandom(4).hex()
        self._numbers = count(1)

    def follow(self, settings: Settings) -> None:
        """Have these settings hold from now on."""
        self._says_all = settings.log_requests
        self._slow = settings.slow_request_seconds or float("inf")
        self._longest_wait = settings.max_wait_ms / 1000

    def id_of(self, headers: Mapping[bytes, bytes]) -> str:
        """The id of the request with these headers. What does not fit a line of a log, or is a token, is not taken for one."""
        given = headers.get(REQUEST_ID)
        if given is not None and _AN_ID.fullmatch(given) and as_said(named := given.decode("ascii")) == named:
            return named
        return f"{self._prefix}-{next(self._numbers)}"

    def note(self, exchange: Exchange, status: int, seconds: float) -> None:
        """It is answered. What may wait for messages is slow when it took longer than the longest wait, too."""
        is_slow = seconds > self._slow and self._worked(exchange, seconds) > self._slow
        if not is_slow and not self._says_all:
            return
        head = exchange.head
        fields = {
            "method": head.method, "path": as_said(head.path), "status": status, "ms": round(seconds * 1000, 1),
            "bytes": exchange.size, "from": head.peer,
        }  # fmt: skip
        said_of, whose = asking.get(), exchange.asking
        if said_of is None or said_of.request != whose.request:  # it was done in a step, which is no task of its own
            said_of = whose
        within = asking.set(said_of)
        level, said = (logging.WARNING, "a request was slow") if is_slow else (logging.INFO, "a request was answered")
        _log.log(level, said, extra={"fields": fields})
        asking.reset(within)

    def _worked(self, exchange: Exchange, seconds: float) -> float:
        waits = exchange.admitted is not None and exchange.admitted.waits
        return seconds - self._longest_wait if waits else seconds
