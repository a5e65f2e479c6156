"""Settings that change while the service runs: on SIGHUP all that was read when it began is read again.

The invariants:

* All or nothing: what is read is looked at as a whole before anything changes. Settings that are none, a certificate that does
  not go with its key, a token's file that is not there: then everything stays as it was, and the log says why.
* What cannot change while the service runs is named, and stays as it was: nothing is half in effect.
* What was locked does not open by it: a token may come and be another one, and does not go.

A further setting that may change has its line in :data:`CHANGES`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from oncelog_service import logs
from oncelog_service.background import Background
from oncelog_service.config import SECRETS, Settings
from oncelog_service.process.supervisor import Supervisor
from oncelog_service.rest.certificates import BadCertificate
from oncelog_service.rest.server import Server
from oncelog_service.service import Service
from oncelog_service.sources import BadConfigFile, problems_of

_log = logging.getLogger(__name__)


class Running(NamedTuple):
    """What a change reaches."""

    service: Service
    server: Server


def set_log_level(settings: Settings) -> None:
    """Has all be logged that is as bad as the settings say, or worse."""
    logging.getLogger().setLevel(settings.log_level.upper())


def _token(running: Running, settings: Settings) -> None:
    assert settings.token is not None  # it does not go
    running.service.access.configure(settings.token)


def _transactions_token(running: Running, settings: Settings) -> None:
    if running.service.present is not None:
        running.service.present.carry(settings.transactions_token or settings.token)


CHANGES: Mapping[str, Callable[[Running, Settings], None]] = {
    "token": _token,
    "transactions_token": _transactions_token,
    "drain_seconds": lambda running, settings: running.server.pause_for(settings.drain_seconds),
    "log_level": lambda _, settings: set_log_level(settings),
    "log_format": lambda _, settings: logs.begin(settings.log_level, settings.log_format),
    "log_requests": lambda running, settings: running.server.say_requests(settings),
    "slow_request_seconds": lambda running, settings: running.server.say_requests(settings),
}
"""Setting that may change while the service runs → what has it change."""
_NAMES_OF_FILES = {f"{name}_file" for name in SECRETS}
"""What these hold counts."""


class Reloading:
    """Reads the settings again when it is told to. Belongs to one event loop."""

    def __init__(self, running: Running, given: Mapping[str, Any], supervisor: Supervisor, asked: asyncio.Event) -> None:
        """``given``: the options, which stay what they are. ``asked``: set by who wants all to be read again, also before."""
        self._running = running
        self._given = given
        self._supervisor = supervisor
        self._asked = asked

    async def run(self, background: Background) -> None:
        """Does so whenever it was asked, until cancelled."""
        await background.keep("reading the settings again", self._run)

    async def _run(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            self._supervisor.reloading()
            try:
                await self.reload()
            finally:
                self._supervisor.ready(f"serves {self._running.service.url}")

    async def reload(self) -> bool:
        """Reads all again; what may change has changed when this returns True, or nothing has."""
        service, server = self._running
        try:
            settings = await asyncio.to_thread(lambda: type(service.settings)(**self._given))
            context = None if server.certificates is None else await server.certificates.read()
        except (BadConfigFile, ValidationError) as error:
            problems = problems_of(error, type(service.settings), self._given)
            _log.error("the settings are of no use, so everything stays as it was: %s", "; ".join(map(str, problems)))
            return False
        except BadCertificate as error:
            _log.error("the certificate's files are of no use, so everything stays as it was: %s", error)
            return False
        if context is not None and server.certificates is not None:
            server.certificates.use(context)
        if service.access.issuer is not None:
            service.access.issuer.look()
        changed = self._apply(settings)
        _log.info("the settings were read again; %s", f"changed: {', '.join(changed)}" if changed else "none has changed")
        return True

    def _apply(self, settings: Settings) -> list[str]:
        """Changes what may change, and names the rest."""
        before = self._running.service.settings
        differing = [name for name in type(settings).model_fields if getattr(settings, name) != getattr(before, name)]
        kept = [name for name in differing if name not in CHANGES and name not in _NAMES_OF_FILES]
        if "token" in differing and settings.token is None:
            _log.warning("the token is not taken away while the service runs: what was locked would open; begin it anew for that")
            differing.remove("token")
        if kept:
            _log.warning("these settings do not change while the service runs, begin it anew for them: %s", ", ".join(kept))
        changed = [name for name in CHANGES if name in differing]
        self._running.service.settings = now = before.model_copy(update={name: getattr(settings, name) for name in changed})
        for name in changed:
            CHANGES[name](self._running, now)
        if "token" in changed and now.transactions_token is None:
            _transactions_token(self._running, now)
        return changed
