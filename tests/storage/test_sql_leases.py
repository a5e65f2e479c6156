"""The lease table of a real PostgreSQL: one holder at a time, by the database's clock alone, and no write under a lost lease."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier

import pytest
from sqlalchemy import select

from oncelog_service.storage.port import Dead, Fence, Instance, LeaseTable, Store, StoreError, StoreFenced
from oncelog_service.storage.sql.tables import INSTANCE, LEASE
from tests.storage.stores import Place, run
from tests.world.shared import SharedDatabase

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


def test_any_history_of_leases_and_of_writes_under_them_is_as_in_memory(shared: Place) -> None:
    database, chance = SharedDatabase(), random.Random(0)
    stores: tuple[Store, Store] = database.open(), shared.open()
    ids, fences = [""], [Fence(b"r0", 0)]

    def both(call: Callable[[LeaseTable], object]) -> object:
        first, second = (said(lambda each=each: call(each.lease_table())) for each in stores)  # type: ignore[misc]
        assert first == second
        return first

    def lost(store: Store, fence: Fence) -> frozenset[Fence]:
        try:
            store.write([run((b"k", b"v"), fence=fence)])
        except StoreFenced as error:
            return error.lost
        return frozenset()

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
                database.leases.expire(id)
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
                first, second = (lost(store, fence) for store in stores)
                assert first == second
        both(lambda each: each.instances())
        both(lambda each: list(each.held().items()))
        both(lambda each: list(each.held(resource, 1)))  # noqa: B023
        both(lambda each: each.holder(resource))  # noqa: B023
    for store in stores:
        assert all(0 < each.expires_in_ms <= LONG for each in store.lease_table().instances())  # type: ignore[union-attr]


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
