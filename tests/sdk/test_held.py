"""Waiting is not trying: which tries of a call are held by the service, and until when there are some. By tables and in a world
with a clock of its own; over real connections in test_waiting.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import Client
from oncelog.api.api import surrounded
from oncelog.api.retry import LONGEST_SECONDS, Held, Holds, Outage, Tries
from oncelog.errors import (
    ConnectionFailed,
    GatewayUnavailable,
    OncelogError,
    Overloaded,
    ResponseTimeout,
    StorageUnavailable,
)
from oncelog.process.clock import Clock
from oncelog.process.procedures import drive

WAIT, TIMEOUT, RETRY = 20.0, 30.0, 15.0
"""Of a reader, and of its client, as they are by default."""


# --- the parts, in tables

CUT, AWAY, LATE, GATE, UNSENT = (
    ConnectionFailed(),
    StorageUnavailable(),
    ResponseTimeout(),
    GatewayUnavailable(),
    ConnectionFailed(definite=True),
)


@pytest.mark.parametrize(
    ("held", "failures", "left"),
    [
        (False, [(AWAY, 20.0)], RETRY),  # it was stuck in a service that stood still
        (False, [(CUT, 20.0)], RETRY),
        (False, [(GATE, 20.0)], RETRY),
        (False, [(LATE, 30.0)], None),  # that has taken all the time there was
        (True, [(LATE, 50.0)], RETRY),  # but most of it was for waiting
        (False, [(AWAY, 0.0)], RETRY),
        (False, [(AWAY, 0.0), (AWAY, 14.0)], 1.0),  # what follows the first failure is trying
        (True, [(AWAY, 20.0), (AWAY, 34.0)], 1.0),
        (True, [(AWAY, 20.0), (AWAY, 36.0)], None),
        (True, [(AWAY, 20.0), (LATE, 60.0)], None),
    ],
)
def test_a_call_is_tried_from_its_first_failure_on_unless_nobody_was_there(
    held: bool, failures: list[tuple[OncelogError, float]], left: float | None
) -> None:
    tries = Tries(RETRY, seconds=RETRY, held=held)
    waits = [tries.wait_after(error, now, 0.5) for error, now in failures]
    assert (waits[-1] is not None) == (left is not None)
    if left is not None:
        assert tries._ends - failures[-1][1] == left


def test_who_was_answered_has_all_the_time_anew() -> None:
    tries = Tries(1.0, seconds=1.0, held=True)
    assert tries.wait_after(AWAY, 5.0, 0.5) is not None
    tries.heard()
    assert tries.wait_after(AWAY, 50.0, 0.5) is not None
    assert tries.wait_after(AWAY, 52.0, 0.5) is None


@pytest.mark.parametrize(
    ("error", "after", "next_one"),
    [
        (CUT, 5.0, 3.75),
        (GATE, 15.0, 11.25),
        (CUT, 0.5, WAIT),  # too soon to be a bound on waiting
        (AWAY, 5.0, WAIT),  # the service's own word
        (LATE, 5.0, WAIT),  # our own time was over
        (UNSENT, 5.0, WAIT),
    ],
)
def test_what_was_broken_off_is_followed_by_a_question_and_by_shorter_waits(
    error: OncelogError, after: float, next_one: float
) -> None:
    holds = Holds()
    held = Held(holds, WAIT, 100.0)
    assert held.asks(100.0) == WAIT
    held.failed(error, 100.0 + after)
    assert held.asks(100.0 + after) == 0.0, "whether somebody is there is known at once"
    assert not held.answered(True, 100.0 + after), "nothing had come: it waits on"
    assert held.asks(100.0 + after) == min(WAIT - after, next_one)
    assert held.answered(True, 100.0 + WAIT)
    assert Held(holds, WAIT, 200.0).asks(200.0) == next_one, "and so does the next one"
    assert Held(holds, WAIT, 1_000.0).asks(1_000.0) == WAIT, "what was a process that was killed is no bound for ever"


def test_a_service_that_does_not_answer_behind_a_break_was_away_and_bounds_no_wait() -> None:
    held = Held(holds := Holds(), WAIT, 0.0)
    held.asks(0.0)
    held.failed(CUT, 5.0)
    held.failed(UNSENT, 5.1)
    assert not held.answered(True, 7.0)
    assert held.asks(7.0) == WAIT - 7.0
    assert holds.longest(WAIT, 7.0) == WAIT


def test_what_brings_something_is_the_answer_whatever_came_before() -> None:
    held = Held(Holds(), WAIT, 0.0)
    held.asks(0.0)
    held.failed(CUT, 5.0)
    assert held.answered(False, 5.1)
    assert Held(Holds(), 0.0, 0.0).answered(True, 0.0), "what does not wait has its answer"


# --- all of it, under a clock of its own


@dataclass
class World:
    """A service, or several at one address, and a gateway before them; requests pass the time."""

    stops: list[tuple[float, float, float]] = field(default_factory=list)
    """When the service stood still, since when it went on, and until when it was away after that."""
    cut: float = 1e9
    """The gateway breaks a request off that had no answer for so long."""
    now: float = 0.0
    cuts: int = 0

    async def ask(self, held: float) -> None:
        """Returns when the wait is over, for which nothing comes."""
        begun, end = self.now, self.now + held
        for stop, awake, there in self.stops:
            if begun < there and stop <= end:  # it was there when the time stood still, or came while nobody answered
                end = max(begun, awake)
                if end - begun > TIMEOUT + held:
                    self._pass(TIMEOUT + held)
                    raise ResponseTimeout
                self._pass(end - begun)
                raise StorageUnavailable
        self._pass(held)

    def _pass(self, seconds: float) -> None:
        if seconds > self.cut:
            self.now += self.cut
            self.cuts += 1
            raise ConnectionFailed
        self.now += seconds


def waiting_in(world: World) -> Callable[[], None]:
    """Return what waits once for something that does not come."""

    def sleep(seconds: float) -> None:
        world.now += seconds

    client = surrounded(Client, clock=Clock(lambda: world.now, lambda: world.now, sleep))("http://127.0.0.1:1")._calls
    return lambda: drive(client._held(WAIT, world.ask, lambda _: True))


stops = st.lists(
    st.tuples(st.floats(2 * LONGEST_SECONDS, 100), st.floats(0.001, TIMEOUT), st.floats(0, RETRY - LONGEST_SECONDS - 0.1)),
    max_size=8,
)


@given(rests=stops, cut=st.sampled_from([1.0, 5.0, 15.0, 1e9]))
def test_who_waits_outlives_every_stop_and_every_cut(rests: list[tuple[float, float, float]], cut: float) -> None:
    """However long a service stands still, as long as it is back within ``retry`` once it goes on, and is heard of between."""
    world, at = World(cut=cut), 0.0
    for rest, stands, away in rests:
        # A gateway does not wait for who stands still: to its clients that is away all the time.
        stood, gone = (stands, away) if cut > WAIT + TIMEOUT else (stands / 4, away / 3)
        stop = at + rest
        world.stops.append((stop, stop + stood, at := stop + stood + gone))
    wait = waiting_in(world)
    while world.now < at + 100:
        before = world.now
        wait()
        assert world.now > before, "a loop that does not wait spins"


@pytest.mark.parametrize("begun", [0.0, 0.5, 3.9])
def test_who_waits_outlives_a_stop_that_is_longer_than_a_call_has(begun: float) -> None:
    wait = waiting_in(world := World(stops=[(begun, begun + 45.0, begun + 46.0)]))
    while world.now < 100:
        wait()


@pytest.mark.parametrize("cut", [1.0, 5.0, 15.0])
def test_a_quiet_topic_behind_a_gateway_that_cuts_is_cut_once(cut: float) -> None:
    wait = waiting_in(world := World(cut=cut))
    while world.now < 500:
        wait()
    assert world.cuts == 1


@pytest.mark.parametrize(("cut", "most"), [(1e9, WAIT + 2 * TIMEOUT), (5.0, WAIT + RETRY)])
def test_who_is_never_answered_again_gives_up_in_a_bounded_time(cut: float, most: float) -> None:
    wait = waiting_in(world := World(stops=[(0.0, 1e6, 1e6)], cut=cut))
    with pytest.raises(ConnectionFailed):
        wait()
    assert world.now <= most + 2 * LONGEST_SECONDS


def test_an_outage_is_told_of_once_when_it_takes_long() -> None:
    outage, refused, broken = Outage(), ConnectionFailed(definite=True), ConnectionFailed(definite=False)

    def told(error: OncelogError, *tries: tuple[float, float]) -> list[float | None]:
        return [outage.failed(error, began, now) for began, now in tries]

    assert told(refused, (0.0, 0.1), (1.0, 1.9)) == [None, None]
    assert told(refused, (2.0, 2.1), (3.0, 3.1)) == [2.1, None]
    outage.heard()
    assert told(broken, (10.0, 30.0), (30.5, 31.0), (32.0, 32.0)) == [None, None, 2.0], "it was there while it held the first"
    outage.heard()
    assert told(refused, (40.0, 45.0)) == [5.0], "nobody has taken the connection all the time"
    assert told(Overloaded(), (46.0, 47.0)) == [None], "who refuses is there"
    assert told(refused, (50.0, 51.0), (90.0, 91.0), (91.5, 92.0)) == [None, None, 2.0], "nobody knows what was between"
