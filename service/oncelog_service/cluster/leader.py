"""What the whole store has once – the transaction service, atomic commits – and serves where its lease is held."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from oncelog.errors import NotServedHere, OncelogError, StorageUnavailable
from oncelog_service.background import Background
from oncelog_service.cluster.leases import Lease, Leases
from oncelog_service.storage.port import StoreError

_log = logging.getLogger(__name__)


class Component(Protocol):
    """Does something that the whole store has once."""

    async def run(self) -> None:
        """Works in the background, until cancelled."""
        ...

    def release(self) -> None:
        """Tells callers that wait to ask again; takes nothing more."""
        ...


C = TypeVar("C", bound=Component)


class Leader(Generic[C]):
    """Serves a component while its lease is held here, and knows its URL otherwise."""

    def __init__(
        self,
        resource: bytes,
        leases: Leases,
        recover: Callable[[Lease], Awaitable[C]],
        background: Background,
        every_seconds: float = 0.5,
    ) -> None:
        """``recover`` reads it back from the store; ``every_seconds``: how often to see if its lease can be had, or is lost."""
        self._resource = resource
        self._leases = leases
        self._recover = recover
        self._background = background
        self._every = every_seconds
        self._lease: Lease | None = None
        self._component: C | None = None
        self.url: str | None = None
        """Of who served it when it was last looked for; None: it was here, or nowhere."""

    @property
    def present(self) -> C | None:
        """Returns the component, if it is served here."""
        return self._component if self._lease is not None and self._lease.is_valid else None

    @property
    def here(self) -> C:
        """Returns the component. Raises NotServedHere, StorageUnavailable."""
        component = self.present
        if component is not None:
            return component
        if self.url is not None:
            raise NotServedHere(url=self.url)
        raise StorageUnavailable(f"no instance serves the {self._resource.decode()} at this moment; nothing was done, try again")

    async def begin(self) -> None:
        """Serves it here, unless another process does. Raises StorageUnavailable, StoreError, StoreDamaged."""
        self.end()
        try:
            lease = await self._leases.take(self._resource)
        except NotServedHere as elsewhere:
            self.url = elsewhere.url
            return
        self._lease = lease  # from here on: what is not read back to its end may have handed something over, see `end`
        self._component, self.url = await self._recover(lease), None

    async def run(self) -> None:
        """Serves it whenever its lease can be had, until cancelled."""
        while True:
            component = self.present
            if component is None:
                try:
                    await self.begin()
                except (OncelogError, StoreError) as error:
                    self.url = None
                    _log.warning("the %s cannot be served now: %s", self._resource.decode(), error)
                if self.present is None:
                    await asyncio.sleep(self._every)
                continue
            running = asyncio.ensure_future(self._background.keep(self._resource.decode(), component.run))
            try:
                while self.present is component:
                    await asyncio.sleep(self._every)
            finally:
                running.cancel()
                await asyncio.wait([running])
                if self.present is None:
                    self.end()

    def release(self) -> None:
        """Prepares a stop: callers that wait are told to ask again."""
        if self._component is not None:
            self._component.release()

    def end(self) -> None:
        """Ends serving it here. What it has handed over and is not written by now may never be.

        Its lease is not used again, even if it is valid: who reads back under the same one could miss what is still on its way.
        """
        self.release()
        if self._lease is not None:
            self._lease.lost = True
        self._component = self._lease = None
