"""Where change sets come to their bound the oldest are dropped, and what is old changes nothing more; no conflict is missed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import combinations
from random import Random

import pytest

from oncelog.errors import InvalidRequest, OncelogError, Overloaded, QuotaExceeded, TransactionConflict, TransactionNotInProgress
from oncelog_service.transactions import decisions
from oncelog_service.transactions.manager import TransactionManager
from oncelog_service.transactions.state import TransactionsState, weight
from tests.transactions.house import SHORT
from tests.transactions.test_bounds import KEYS, ONE, House, committed

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


async def slow(manager: TransactionManager, owner: str | None = "bob") -> int:
    """One that may take an hour."""
    return (await manager.start(SHORT, HOUR_MS, owner)).transaction_id


async def too_old(call: Awaitable[object], pointer: int) -> None:
    with pytest.raises(TransactionConflict, match="too old to change anything") as refused:
        await call
    error = refused.value
    assert (error.definite, error.write_pointer, error.conflicts_with) == (True, pointer, None)


@pytest.mark.parametrize("owner", ["ada", None])
async def test_who_keeps_a_reader_open_for_hours_has_no_commit_of_others_refused(owner: str | None) -> None:
    """A reader that is begun anew every 10 minutes, and a commit a minute, a quarter of the bound each: 108 of 180 were refused
    before any was dropped."""
    house = House(max_kept_of_one=4 * ONE, max_kept=4 * ONE)
    async with house.life() as manager:
        reader = await slow(manager)
        for minute in range(180):
            if minute % 10 == 0:
                another = await slow(manager)
                await manager.commit(reader)
                reader = another
            await committed(manager, KEYS[minute % 10], owner)
            assert manager.state.changed.total <= 4 * ONE
            house.clock.advance(MINUTE_MS)


@pytest.mark.parametrize("clean", [True, False])
async def test_who_began_before_what_was_dropped_commits_what_it_read_and_nothing_that_it_changed(clean: bool) -> None:
    house = House(max_kept_of_one=2 * ONE)
    async with house.life(clean) as manager:
        reader, writer, handed_in, prepared = [await slow(manager) for _ in range(4)]
        await manager.can_commit(handed_in, [b"mine"])
        await manager.can_commit(prepared, [b"the database's"], "db")
        house.clock.advance(MINUTE_MS)
        await committed(manager, KEYS[0])
        younger = await slow(manager)
        house.clock.advance(MINUTE_MS)
        await committed(manager, KEYS[1])
        await committed(manager, KEYS[2])
    async with house.life(clean) as manager:
        for pointer in (writer, handed_in):
            await too_old(manager.can_commit(pointer, [b"k"]), pointer)
            await too_old(manager.can_commit(pointer, [b"k"], "db"), pointer)
        await too_old(manager.commit(writer, [b"k"]), writer)
        await too_old(manager.commit(handed_in), handed_in)
        for keys in KEYS[1:3]:
            with pytest.raises(TransactionConflict, match="and was first"):
                await manager.can_commit(younger, keys[:1])
        await manager.can_commit(younger, [b"k"])
        await manager.can_commit(reader, [], "db")
        for pointer in (reader, prepared, younger):
            await manager.commit(pointer)
        await manager.can_commit(handed_in, [])  # it has changed nothing after all
        await manager.commit(handed_in)
        await manager.abort(writer)
        assert not manager.state.unjudged
        await committed(manager, [b"k"], "bob")


async def test_who_is_as_young_as_most_transactions_become_is_judged_however_much_others_commit() -> None:
    house = House(max_kept_of_one=3 * ONE)
    async with house.life() as manager:
        old = await slow(manager)
        house.clock.advance(1)
        young = await slow(manager)
        for keys in KEYS[:3]:
            await committed(manager, keys, "eve")
        house.clock.advance(29_999)
        with pytest.raises(QuotaExceeded):
            await committed(manager, KEYS[3], "eve")
        await manager.can_commit(old, [b"old"])
        await committed(manager, KEYS[4], "ada")
        with pytest.raises(TransactionConflict, match="and was first"):
            await manager.can_commit(young, KEYS[0])
        house.clock.advance(1)
        await committed(manager, KEYS[3], "eve")
        await too_old(manager.can_commit(young, KEYS[8]), young)


@pytest.mark.parametrize(
    ("limits", "refusal"), [({"max_kept_of_one": 2 * ONE}, QuotaExceeded), ({"max_kept": 2 * ONE}, Overloaded)]
)
async def test_nothing_is_dropped_for_what_finds_no_room_all_the_same(
    limits: dict[str, int], refusal: type[OncelogError]
) -> None:
    house = House(**limits)
    async with house.life() as manager:
        old = await slow(manager)
        await committed(manager, KEYS[0][:1])
        for keys in (KEYS[1], KEYS[2][:5]):
            await manager.can_commit(await slow(manager, "ada"), keys)
        house.clock.advance(MINUTE_MS)
        with pytest.raises(refusal):
            await committed(manager, KEYS[3])
        await manager.commit(old, [b"k"])


async def test_who_conflicts_or_has_nothing_to_do_with_it_drops_nothing() -> None:
    house = House(max_kept_of_one=2 * ONE)
    async with house.life() as manager:
        old, conflicting = [await slow(manager, owner) for owner in ("bob", "ada")]
        for keys in KEYS[:2]:
            await committed(manager, keys)
        house.clock.advance(MINUTE_MS)
        with pytest.raises(TransactionConflict, match="and was first"):
            await manager.commit(conflicting, [*KEYS[0], *KEYS[2]])
        with pytest.raises(OncelogError):
            await manager.commit(conflicting, KEYS[2], by="eve")
        await manager.commit(old, KEYS[3])


# --- no conflict is missed


@dataclass
class Lived:
    """A transaction: the step in which it began, and that in which it committed what."""

    began: int
    ended: int | None = None
    changes: frozenset[bytes] = frozenset()


def verdicts(state: TransactionsState) -> dict[tuple[int, bytes], str]:
    """What becomes of each transaction in progress that changes one key."""
    said: dict[tuple[int, bytes], str] = {}
    for pointer in state.open:
        for key in ALPHABET:
            try:
                decisions.commit(state, pointer, frozenset({key}))
                said[pointer, key] = "ok"
            except OncelogError as refused:
                said[pointer, key] = refused.detail
    return said


ALPHABET = [b"%d" % number for number in range(8)]
BOUNDS = {"max_kept_of_one": 3 * weight(ALPHABET[:1]), "max_kept": 5 * weight(ALPHABET[:1]), "snapshot_edits": 5}


async def history(seed: int) -> int:
    """Lives at random, with little room and many ends of the process; returns how many were too old to change anything."""
    random, house, lived, step, old = Random(seed), House(**BOUNDS), dict[int, Lived](), 0, 0
    handed_in: dict[int, frozenset[bytes]] = {}
    before: dict[tuple[int, bytes], str] | None = None
    for _ in range(6):
        clean = random.random() < 0.5
        async with house.life(clean) as manager:
            assert before in (None, verdicts(manager.state)), "who begins anew decides as it did"
            for _ in range(30):
                step += 1
                house.clock.advance(random.choice([0, 1_000, 31_000]))
                in_progress = [*manager.state.open]
                if not in_progress or random.random() < 0.3:
                    lived[await slow(manager, random.choice(["ada", "bob", None]))] = Lived(step)
                    continue
                pointer = random.choice(in_progress)
                keys = frozenset(random.sample(ALPHABET, random.randint(0, 2)))
                resource = random.choice([None, None, "db"])
                moves: dict[str, Callable[[], Awaitable[object]]] = {
                    "can": lambda pointer=pointer, keys=keys, resource=resource: manager.can_commit(pointer, keys, resource),
                    "commit": lambda pointer=pointer, keys=keys: manager.commit(pointer, keys),
                    "abort": lambda pointer=pointer: manager.abort(pointer),
                }
                (move,) = random.choices([*moves], [4, 5, 1])
                try:
                    await moves[move]()
                except TransactionConflict as refused:
                    old += refused.conflicts_with is None
                except (QuotaExceeded, Overloaded, InvalidRequest, TransactionNotInProgress):
                    pass
                else:
                    changes = handed_in.get(pointer, frozenset())
                    if move == "can" and pointer in manager.state.open:
                        handed_in[pointer] = manager.state.open[pointer].changes
                    elif move == "commit":
                        lived[pointer].ended, lived[pointer].changes = step, changes | keys
            before = verdicts(manager.state)
    ended = [each for each in lived.values() if each.ended is not None]
    for one, other in combinations(ended, 2):
        if one.began < (other.ended or 0) and other.began < (one.ended or 0):
            assert not one.changes & other.changes, (seed, one, other)
    return old


SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
async def test_two_that_overlap_never_commit_the_same_change_and_a_restart_decides_nothing_anew(seed: int) -> None:
    assert await history(seed) > 0, "nobody was too old: then this proves nothing"


async def test_a_set_that_is_dropped_while_nobody_is_told_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgotten(state: TransactionsState, pointers: list[int]) -> None:
        for pointer in pointers:
            del state.judged[pointer]

    monkeypatch.setattr(TransactionsState, "leave_unjudged", forgotten)
    with pytest.raises(AssertionError, match="Lived"):
        await history(SEEDS[-1])
