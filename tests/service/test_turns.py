"""Whose turn it is: nobody is lost, passes another of its topic, or waits without a reason; and queues share by bytes."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from oncelog.errors import Overloaded, StorageUnavailable
from oncelog_service.bounds.turns import OVERDUE_SECONDS, PAUSED_SECONDS, QUANTUM_BYTES, Sizes, Turn, Turns

AHEAD, LIGHT, WAITING = 1_000, 100, 5_000
TOPICS = st.sampled_from("abc")
SIZE = st.one_of(st.integers(0, 60), st.integers(0, 1_500))


class Later:
    """The clock of the event loop, set forward by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def __call__(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._calls, (self.now + seconds, next(self._number), call))

    def passes(self, seconds: float) -> None:
        end = self.now + seconds
        while self._calls and self._calls[0][0] <= end:
            self.now, _, call = heapq.heappop(self._calls)
            call()
        self.now = end


class Asked:
    """A request, as whoever asks sees it."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.queue = max(sizes, key=lambda each: each[1])[0]
        self.size = sum(size for _, size in sizes)
        self.turn: Turn | None = None
        self.begun: float | None = None

    @property
    def is_light(self) -> bool:
        return self.turn is not None and self.turn.is_light


class Everybody(RuleBasedStateMachine):
    """Any requests, ended and given up at any moment, against a model that knows who came when."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.later = Later()
        self.turns = Turns(WAITING, self.later, AHEAD, LIGHT)
        self.waiting: list[Asked] = []
        self.under_way: list[Asked] = []
        self.paused_until = 0.0
        self.insisted = -PAUSED_SECONDS
        """When something heavy began last although the store had asked for a pause."""

    @rule(target=requests, sizes=st.dictionaries(TOPICS, SIZE, min_size=1, max_size=2))
    def come(self, sizes: dict[str, int]) -> Asked:
        asked = Asked(tuple(sizes.items()))
        held = sum(each.size for each in self.waiting if each.queue == asked.queue)
        left = WAITING - sum(each.size for each in self.waiting)
        before = {each.queue for each in self.waiting}
        try:
            turn = asked.turn = self.turns.begin(asked.sizes)
        except Overloaded:
            assert held + asked.size > left, "there was room to wait"
            return asked
        if turn.waits:
            assert held + asked.size <= left
            self.waiting.append(asked)
            turn.go = partial(self.goes, asked)
        else:
            assert not before.intersection(sizes), "it has passed others of its topic"
            assert turn.is_light or not before, "it has passed those who wait"
            self.begins(asked)
        return asked

    def goes(self, asked: Asked) -> None:
        first = next(each for each in self.waiting if each.queue == asked.queue)
        assert first is asked, "it has passed another one of its topic"
        self.waiting.remove(asked)
        self.begins(asked)

    def begins(self, asked: Asked) -> None:
        assert asked.begun is None, "it begins twice"
        assert asked.turn is not None
        assert not asked.turn.waits
        if not asked.is_light and self.later.now < self.paused_until and self.later.now != self.insisted:
            assert self.later.now - self.insisted > PAUSED_SECONDS - 0.001, "it does not wait for the store"
            self.insisted = self.later.now
        asked.begun = self.later.now
        self.under_way.append(asked)

    @rule(asked=consumes(requests))
    def end(self, asked: Asked) -> None:
        if asked.turn is None:
            return  # it was refused
        (self.waiting if asked in self.waiting else self.under_way).remove(asked)
        self.turns.end(asked.turn)

    @rule(seconds=st.floats(0.01, 0.5))
    def fall_behind(self, seconds: float) -> None:
        self.paused_until = max(self.paused_until, self.later.now + seconds)
        self.turns.pause(seconds)

    @rule(seconds=st.floats(0.01, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.later.passes(seconds)

    def heavy(self) -> list[int]:
        recent = (each for each in self.under_way if not each.is_light)
        return [each.size for each in recent if self.later.now < (each.begun or 0.0) + OVERDUE_SECONDS]

    @invariant()
    def the_bounds_hold(self) -> None:
        heavy = [size for size in self.heavy() if size]
        assert sum(heavy) <= AHEAD or len(heavy) == 1
        light: Counter[object] = Counter()
        for each in self.under_way:
            if each.is_light:
                light.update(dict(each.sizes))
        assert all(size <= LIGHT for size in light.values())
        assert self.turns.waiting == sum(each.size for each in self.waiting) <= WAITING

    @invariant()
    def nobody_waits_without_a_reason(self) -> None:
        light: Counter[object] = Counter()
        for each in self.under_way:
            if each.is_light:
                light.update(dict(each.sizes))
        first = {each.queue: each for each in reversed(self.waiting)}
        assert (
            not first
            or self.later.now < self.paused_until
            or any(sum(self.heavy()) and sum(self.heavy()) + each.size > AHEAD for each in first.values())
        )
        assert all(each.size + light[queue] > LIGHT for queue, each in first.items() if len(each.sizes) == 1)

    def teardown(self) -> None:
        """Whoever is left has a turn as soon as those before it have ended, and then nothing is left of anybody."""
        self.later.passes(1.0)
        while self.under_way:
            self.end_one()
        assert not self.waiting
        assert self.turns.waiting == 0
        last = self.turns.begin((("a", AHEAD),))
        assert not last.waits
        self.turns.end(last)
        assert not self.turns._lights
        assert not self.turns._queues
        assert not self.turns._order

    def end_one(self) -> None:
        turn = self.under_way.pop(0).turn
        assert turn is not None
        self.turns.end(turn)


TestEverybody = Everybody.TestCase
TestEverybody.settings = settings(stateful_step_count=60)


@given(mine=st.lists(st.integers(200_000, 8_000_000), min_size=60, max_size=60), yours=st.integers(200_000, 8_000_000))
def test_queues_share_by_bytes_whatever_the_size_of_their_requests(mine: list[int], yours: int) -> None:
    turns, served, gone = Turns(10**12, Later(), ahead=1), Counter[str](), list[tuple[Turn, str]]()
    first = turns.begin((("first", 10**6),))

    def flood(topic: str, size: int) -> None:
        turn = turns.begin(((topic, size),))
        turn.go = lambda: (served.update({topic: size}), gone.append((turn, topic)))[1]  # type: ignore[assignment]

    for size in mine:
        flood("mine", size)
        flood("yours", yours)
    turns.end(first)
    while min(Counter(topic for _, topic in gone).values(), default=0) < 60 and len(gone) < 60:
        assert abs(served["mine"] - served["yours"]) <= QUANTUM_BYTES + max(mine) + yours
        turns.end(gone[-1][0])


def test_a_small_request_passes_the_flood_of_another_topic_and_not_those_of_its_own() -> None:
    turns, went = Turns(WAITING, Later(), AHEAD, LIGHT), list[str]()
    flood = [turns.begin((("loud", 960),)) for _ in range(3)]
    assert [each.waits for each in flood] == [False, True, True]
    assert not turns.begin((("quiet", 50),)).waits
    behind = turns.begin((("loud", 50),))
    assert behind.waits
    for name, turn in {"second": flood[1], "third": flood[2], "behind": behind}.items():
        turn.go = partial(went.append, name)
    turns.end(flood[0])
    assert went == ["second"]
    turns.end(flood[1])
    assert went == ["second", "third", "behind"], "what is small follows at once, and counts for little"


def test_what_is_held_up_by_others_than_the_writer_does_not_hold_up_everybody() -> None:
    later = Later()
    turns = Turns(WAITING, later, AHEAD, LIGHT)
    stuck, waits = turns.begin((("a", 1_000),)), turns.begin((("b", 1_000),))
    later.passes(OVERDUE_SECONDS - 0.1)
    assert waits.waits
    later.passes(0.1)
    assert not waits.waits
    turns.end(stuck)
    third = turns.begin((("b", 1_000),))
    assert third.waits, "one that was overdue is not counted off twice"


def test_pauses_that_never_end_hold_nobody_up_for_ever() -> None:
    later = Later()
    turns = Turns(WAITING, later, AHEAD, LIGHT)
    turns.pause(0.02)
    heavy = [turns.begin((("loud", 800),)) for _ in range(3)]

    def light_ones_go_on(seconds: float) -> None:
        for _ in range(round(seconds / 0.01)):
            turns.pause(0.02)  # each of their writes leaves the store behind
            later.passes(0.01)

    light_ones_go_on(PAUSED_SECONDS - 0.1)
    assert [each.waits for each in heavy] == [True, True, True]
    light_ones_go_on(0.2)
    assert [each.waits for each in heavy] == [False, True, True]
    turns.end(heavy[0])
    light_ones_go_on(PAUSED_SECONDS - 0.2)
    assert [each.waits for each in heavy] == [False, True, True], "no more than the store can take beside them"
    light_ones_go_on(0.2)
    assert [each.waits for each in heavy] == [False, False, True]
    turns.end(heavy[1])
    later.passes(0.02)
    assert not heavy[2].waits, "it has caught up"


def test_once_the_service_stops_nobody_waits_any_more() -> None:
    turns = Turns(WAITING, Later(), AHEAD, LIGHT)
    begun = turns.begin((("a", 1_000),))
    waiting = [turns.begin(((topic, 1_000),)) for topic in "aab"]
    told: list[int] = []
    for number, each in enumerate(waiting):
        each.go = partial(told.append, number)
    turns.release()
    assert sorted(told) == [0, 1, 2]
    assert all(each.refused for each in waiting)
    with pytest.raises(StorageUnavailable):
        turns.begin((("c", 1_000),))
    assert not turns.begin((("c", 10),)).waits, "what need not wait goes on"
    for each in (*waiting, begun):
        turns.end(each)
    assert (turns.waiting, turns.waiting_requests) == (0, 0)
    assert not turns.begin((("a", 1_000),)).waits


def test_one_topic_leaves_room_to_wait_for_others() -> None:
    turns = Turns(WAITING, Later(), AHEAD, LIGHT)
    turns.begin((("a", 1_000),))
    for _ in range(WAITING // 2 // 500):
        assert turns.begin((("a", 500),)).waits
    with pytest.raises(Overloaded):
        turns.begin((("a", 500),))
    assert turns.begin((("b", 500),)).waits
