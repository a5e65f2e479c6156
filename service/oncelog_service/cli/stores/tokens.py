"""`oncelog token … --store`: tokens of a store on the machine itself, so that a service may begin with one.

A store in files is opened as a service does, which nobody else can meanwhile. One that several share is changed beside them,
under the lease that any of them would take for it; others see this process as one that serves nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from oncelog_service.access.access import Access
from oncelog_service.access.tokens import Token, read_tokens
from oncelog_service.cli.output import Output
from oncelog_service.cli.serve import IN_USE
from oncelog_service.cli.stores.opening import CannotOpen, check_store, ending, opened, opening
from oncelog_service.clock import SystemClock
from oncelog_service.cluster.leases import Leases
from oncelog_service.cluster.membership import Membership
from oncelog_service.cluster.unserved import this_process
from oncelog_service.group_commit import Writer
from oncelog_service.storage.copying import check_whole
from oncelog_service.storage.port import Store
from oncelog_service.workers import ThreadWorkers

T = TypeVar("T")

_TTL_SECONDS = 5.0


def changing(out: Output, url: str, verb: str, change: Callable[[Access], Awaitable[T]], *, there: bool = False) -> T:
    """Returns what ``change`` does with the tokens of a store. Ends the command with a sentence where it cannot be done.

    ``there``: the store must be there; else it is made.
    """
    check_store(url, "--store", there=there)
    with ending(out, verb):
        try:
            with opened(url) as store:
                return asyncio.run(_changed(url, store, change))
        except CannotOpen as error:
            raise _in_use(error) from error


def listed(out: Output, url: str) -> list[Token]:
    """Returns the tokens of a store, by name. Ends the command with a sentence where it cannot be opened."""
    check_store(url, "--store", there=True)
    with ending(out, "list tokens"):
        try:
            with opened(url) as store:
                return sorted(read_tokens(store), key=lambda token: (token.name, token.created_ms, token.id))
        except CannotOpen as error:
            raise _in_use(error) from error


def _in_use(error: CannotOpen) -> CannotOpen:
    return CannotOpen(f"{error}; ask the service that runs: --url" if str(error).endswith(IN_USE) else str(error))


async def _changed(url: str, store: Store, change: Callable[[Access], Awaitable[T]]) -> T:
    clock, workers = SystemClock(), ThreadWorkers()
    table = store.lease_table()
    leases = Leases()
    if table is not None:
        told = (lambda error: None), (lambda resource: None)
        leases = Membership(table, this_process(), lambda: None, _TTL_SECONDS, clock, *told, workers=workers)
        await leases.join()
    writer = Writer(store, lambda error: None, leases.lost, clock=clock, workers=workers)
    try:
        with opening(url):
            check_whole(store)  # after joining, as a service does
        access = Access(None, clock.now_ms, locked=False)
        await access.open(store, writer, leases, None)
        return await change(access)
    finally:
        await writer.close()
        await leases.leave()
