"""The lease table of a real PostgreSQL: one holder at a time, by the database's clock alone, and no write under a lost lease."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from threading import Barrier

import pytest
from sqlalchemy import select

from oncelog_service.storage.port import Dead, Fence, Instance, LeaseTable, StoreError, StoreFenced
from oncelog_service.storage.sql.tables import INSTANCE, LEASE
from tests.storage.stores import Place, run
from tests.world.leases import LeasesInMemory

LONG = 60_000


def said(call: Callable[[], object]) -> object:
    """What is answered, without how long an instance lives; or that it is dead."""
    try:
        found = call()
    except Dead:
        return "dead"
    if isinstance(found, Instance):
        return found.id
    return sorted(each[:2] for each in found) if isinstance(found, list) else found


@pytest.mark.parametrize("seed", range(2))
def test_any_history_of_a_lease_table_is_as_in_memory(shared: Place, seed: int) -> None:
    store, chance, model = shared.open(), random.Random(seed), LeasesInMemory()
    table = store.lease_table()
    assert table is not None
    ids, fences = [""], [Fence(b"r0", 0)]

    def both(call: Callable[[LeaseTable], object]) -> object:
        answers = [said(lambda each=each: call(each)) for each in (model, table)]  # type: ignore[misc]
        assert answers[0] == answers[1]
        return answers[0]

    for step in range(100):
        resource, fence = chance.choice((b"r0", b"r1", b"r2")), chance.choice(fences[-6:])
        id, to, url = chance.choice(ids[-5:]), chance.choice((None, *ids[-5:])), f"http://{chance.randrange(3)}"  # noqa: A001
        match chance.choice(("join", "leave", "expire", "renew", *["take"] * 5, "give up", "raise", "write")) if step else "join":
            case "join":
                ids.append(new := f"{step:032}")
                both(lambda each: each.join(new, url, LONG))  # noqa: B023
            case "leave":
                both(lambda each: each.leave(id))  # noqa: B023
            case "expire":
                shared.execute("UPDATE oncelog_instance SET expires_ms = expires_ms - 90000 WHERE id = ?", (id,))
                model.expired.add(id)
            case "renew":
                both(lambda each: each.renew(id, LONG))  # noqa: B023
            case "take":
                taken = both(lambda each: each.take(id, resource))  # noqa: B023
                fences += [taken] if isinstance(taken, Fence) else []
            case "give up":
                both(lambda each: each.give_up(id, fence, to))  # noqa: B023
            case "raise":
                both(lambda each: each.raise_all(step // 10))  # noqa: B023
            case "write":
                epoch, holder = model.leases.get(fence.resource, (-1, None))
                with nullcontext() if fence.epoch == epoch and holder else pytest.raises(StoreFenced):  # type: ignore[attr-defined]
                    store.write([run((b"k", b"v"), fence=fence)])
        both(lambda each: each.instances())
        both(lambda each: list(each.held().items()))
        both(lambda each: list(each.held(resource, 1)))  # noqa: B023
        both(lambda each: each.holder(resource))  # noqa: B023
    assert all(0 < each.expires_in_ms <= LONG for each in table.instances())


@pytest.fixture
def table(shared: Place) -> LeaseTable:
    table = shared.open().lease_table()
    assert table is not None
    for each in "ab":
        table.join(each, f"http://{each}", LONG)
    return table


def test_of_many_who_want_it_at_once_one_gets_it(table: LeaseTable) -> None:
    names, together = [f"{number:032}" for number in range(8)], Barrier(8)
    for name in names:
        table.join(name, f"http://{name}", LONG)

    def take(name: str) -> object:
        together.wait()
        return said(lambda: table.take(name, b"r"))

    with ThreadPoolExecutor(len(names)) as threads:
        found = dict(zip(names, threads.map(take, names), strict=True))
    (winner,) = (name for name, each in found.items() if isinstance(each, Fence))
    assert {each for name, each in found.items() if name != winner} == {winner}


def test_a_process_stopped_while_it_has_locked_a_lease_does_not_hold_up_the_others(table: LeaseTable) -> None:
    assert isinstance(table.take("a", b"r"), Fence)
    with ExitStack() as ends:
        stopped = ends.enter_context(table._transaction())  # type: ignore[attr-defined]
        for each in (LEASE, INSTANCE):
            stopped.execute(select(each).with_for_update()).all()
        assert said(lambda: table.take("b", b"r")) == "a"  # while it is stopped here
        with pytest.raises(StoreError):
            ends.close()
