"""`oncelog renew`: another incarnation of a store that something else than this command line has put back in time."""

from __future__ import annotations

import time

from oncelog_service.access.tokens import read_tokens
from oncelog_service.cli.output import Output, iso_time
from oncelog_service.cli.session import confirm
from oncelog_service.cli.stores.opening import CannotOpen, check_store, ending, opened
from oncelog_service.cluster.unserved import Kept
from oncelog_service.renewal import LIVES_AGAIN, further_incarnation
from oncelog_service.storage.copying import check_finished
from oncelog_service.storage.incarnation import Incarnation, found_behind
from oncelog_service.storage.open import shown
from oncelog_service.storage.port import Store
from oncelog_service.transactions.store_id import find_store_id


def renew_store(out: Output, url: str, yes: bool) -> None:
    """Begins it, and prints which it is. Asks first, unless ``yes``. Exits with a sentence if that cannot be."""
    check_store(url, "STORE", there=True)
    confirm(out, f"was {shown(url)} put back to an earlier state? Every client of before is refused until it begins anew:", yes)
    with ending(out, "renew"), opened(url) as store:
        begun = _renewed(store)
        tokens = sorted({token.name for token in read_tokens(store)})
    value = {"store": shown(url), "incarnation": begun.number, "tokens": tokens, **begun._asdict()}
    del value["number"]
    out.result(value, f"{shown(url)} is incarnation {begun.number}; its messages begin at {iso_time(begun.messages_ms)}")
    out.note("clients of before are told, as after a restore (docs/operating.md); start the services now")
    out.note(f"{LIVES_AGAIN}. Tokens are those of {', '.join(tokens) or 'nobody'}")


def _renewed(store: Store) -> Incarnation:
    """Raises Served: a process serves it; CannotOpen: there is none, or half a copy; StoreError."""
    check_finished(store)
    if find_store_id(store) is None and found_behind(store) is None:  # what was emptied is as far behind as can be
        raise CannotOpen("there is no store there: no service has ever opened it")
    with Kept(store) as kept:
        begun, batch = further_incarnation(store, time.time_ns() // 1_000_000)
        kept.check()
        # What is in the memory of a process that was stopped, and wakes, would go on in the former incarnation.
        kept.raise_leases(begun.number)
        if kept.fence is not None:
            batch.fences.add(kept.fence)
        store.write([batch])
        kept.check()
    return begun
