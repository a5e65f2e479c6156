"""Who has a place among the connections, and who gives way: decided without a connection."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_service.rest.bounds.pace import Pace
from oncelog_service.rest.bounds.places import Awaited, Places, Waits, address_of, places_for, told_for
from oncelog_service.traffic import Traffic


@dataclass(eq=False)
class Held:
    """A connection that waits as it is told."""

    address: str
    state: Waits | None

    def waits(self) -> Waits | None:
        return self.state


def idle(address: str, due: float) -> Held:
    return Held(address, Waits(Awaited.REQUEST, due))


def in_a_head(address: str, due: float) -> Held:
    return Held(address, Waits(Awaited.HEAD, due))


def places(held: list[Held], all_of_them: int = 100, of_one: int = 50) -> Places:
    found = Places(all_of_them, of_one, Traffic())
    for each in held:
        found.take(each.address)
    return found


def gone(found: Places, held: list[Held], address: str | None = None) -> list[Held]:
    """Who gives way, one after another, until nobody does."""
    left, order = list(held), []
    while (next_one := found.gives_way(left, address, float(len(order)))) is not None:
        assert isinstance(next_one, Held)
        order.append(next_one)
        found.leave(next_one.address)
        left.remove(next_one)
        next_one.state = None
    return order


def test_the_longest_idle_goes_first_who_is_slow_last_and_never_one_with_something_under_way() -> None:
    busy, young, old = Held("a", None), idle("a", 9), idle("a", 7)
    half, older_half = in_a_head("a", 2), in_a_head("a", 1)
    body, reading = Held("a", Waits(Awaited.BODY, 1)), Held("a", Waits(Awaited.READING, 0))
    held = [reading, busy, half, body, young, older_half, old]
    assert gone(places(held), held) == [old, young, older_half, half, body, reading]


def test_who_holds_most_goes_before_who_holds_few() -> None:
    few = [idle("few", 0)]
    many = [in_a_head("many", 10 + each) for each in range(3)]
    assert gone(places(few + many), few + many)[0] is many[0]


def test_an_address_at_its_own_limit_takes_from_itself_alone() -> None:
    mine, others = [idle("mine", 5)], [idle("other", 1)]
    assert gone(places(mine + others), mine + others, "mine") == mine


def test_who_has_asked_for_something_since_it_was_found_stays() -> None:
    held = [idle("a", each) for each in range(4)]
    found = places(held)
    assert found.gives_way(held, None, 0) is held[0]
    held[1].state, held[2].state = None, Waits(Awaited.REQUEST, 50)
    assert found.gives_way(held, None, 0) is held[3]
    assert found.gives_way(held, None, 0) is held[2] or held[2].state == Waits(Awaited.REQUEST, 50)


def test_where_nobody_can_go_nobody_is_looked_for_at_each_arrival() -> None:
    looked = 0

    class Busy(Held):
        def waits(self) -> Waits | None:
            nonlocal looked
            looked += 1
            return None

    held: list[Held] = [Busy("a", None) for _ in range(10)]
    found = places(held)
    for now in range(1_000):
        assert found.gives_way(held, None, now / 100_000) is None
    assert looked == 10
    held[0] = idle("a", 1)
    assert found.gives_way(held, None, 1.0) is held[0]


def test_one_search_serves_many_arrivals() -> None:
    looked = 0

    class Counted(Held):
        def waits(self) -> Waits | None:
            nonlocal looked
            looked += 1
            return self.state

    held: list[Held] = [Counted("a", Waits(Awaited.HEAD, due)) for due in range(4_096)]
    assert len(gone(places(held, 5_000, 5_000), held)) == 4_096
    assert looked < 4_096 * (4_096 // 64 + 3)


@given(st.lists(st.sampled_from("abc")), st.data())
def test_places_are_what_was_taken_and_not_left(taken: list[str], data: st.DataObject) -> None:
    found, held = Places(9, 3, Traffic()), Counter[str]()
    for address in taken:
        if held[address] and data.draw(st.booleans()):
            found.leave(address)
            held[address] -= 1
        else:
            found.take(address)
            held[address] += 1
        assert found.is_full == (held.total() >= 9)
        assert [found.is_full_for(each) for each in "abc"] == [held[each] >= 3 for each in "abc"]
    assert set(found.held) == {each for each in held if held[each]}, "no address is remembered that has left"


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.2", "127.0.0.2"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_whose_connections_are_counted_together(host: str, address: str) -> None:
    assert address_of(host) == address


@given(st.integers(1, 70_000), st.integers(0, 500), st.integers(1, 10_000))
def test_a_reserve_of_descriptors_is_left(descriptors: int, used: int, wanted: int) -> None:
    found = places_for(descriptors, used, wanted)
    room = descriptors - used
    assert 1 <= found <= wanted
    assert found == 1 or room - found >= min(256, room // 2), "the store has its reserve"
    if room >= 64:
        assert found + told_for(found) < room, "and those that are being refused have theirs"
    if room >= 2 * 256 + wanted:
        assert found == wanted


PACE = Pace(100, 2)


def test_a_client_is_fast_enough_for_its_grace_and_as_long_as_bytes_come_at_the_rate() -> None:
    good_until = PACE.begun(10)
    assert good_until == 12
    for second in range(11, 100):
        good_until = PACE.after(good_until, 100, second)
        assert good_until >= second + 1


def test_what_came_in_a_moment_buys_no_more_than_the_grace() -> None:
    assert PACE.after(PACE.begun(10), 10**9, 10.1) == 12.1


def test_a_trickle_buys_next_to_nothing() -> None:
    good_until, second = PACE.begun(0), 0
    while good_until > second:
        second += 1
        good_until = PACE.after(good_until, 1, second)
    assert second == 3
