"""Whose turn it is to be written: no topic's flood holds up what others send. Pure: who waits is told by a call.

All that is handed over is one synced write, in the order in which it was handed over (group_commit.py). So how long a small
request waits depends on how much is handed over before it; and that is bounded here, before a request is decoded, judged or
stamped. What is handed over is never put into another order.

* **Light.** A topic that has little under way – its requests together no more than ``light`` bytes – waits for nobody.
* **Heavy.** Whatever goes beyond that shares ``ahead`` bytes, over all topics. Where they are taken, requests wait, each in the
  queue of its topic, and the queues are served in turn by bytes (deficit round robin, Shreedhar and Varghese).

A turn lasts from its beginning until its request is answered, refused or given up. The invariants:

* Requests that wait in one queue go in the order in which they came, and nothing of their topic passes them.
* Heavy requests that are under way, and not overdue, have at most ``ahead`` bytes together, or there is one of them.
* Of each topic, light ones have at most ``light`` bytes.
* Nobody waits without a reason: while anybody waits, heavy requests are under way, or the store has asked for a pause.
* Pauses that follow on each other for ever, since light requests alone are as much as the store can take, hold nobody up for
  ever: every PAUSED_SECONDS as many begin as fit.
* Of two queues in which somebody waits all the time, neither gets more heavy bytes than the other one but for a quantum and what
  the largest request of each has.
* When the service stops nobody is left waiting: who does is refused, while there is time to tell, and so is who would have to.
* What waits has at most ``waiting`` bytes, and one topic's, the newest of them apart, at most half of that: else it is refused.

Nobody waits here while it holds what another one waits for: a request takes all of its turn in one step, before anything else is
done for it. What it waits for from then on is the writer, as a rule; but it may be a transaction service that does not answer. So
a heavy request counts for OVERDUE_SECONDS and no longer, and whatever holds it up holds up the others for no longer than that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial

from oncelog.errors import Overloaded, StorageUnavailable

AHEAD_BYTES = 3 * 2**19
"""One request of 1 MB, and not two: while it is written no other one is made ready, so whoever comes meanwhile is in the next
write, which has none in it. Of smaller ones there are some, so that the writer need not wait for them."""
LIGHT_BYTES = 128 * 2**10
QUANTUM_BYTES = 256 * 2**10
OVERDUE_SECONDS = 2.0
PAUSED_SECONDS = 2.0
"""At most 1 MiB a second more than the store has asked for: it slows down what is written by itself, then."""

STOPPING = "the service is stopping; nothing was done, try again"

Sizes = Sequence[tuple[Hashable, int]]
"""Topic → bytes that a request brings it."""


def _nothing() -> None:
    pass


class Turn:
    """One request, from when it is asked for until it has ended."""

    __slots__ = ("_heavy", "_sizes", "_topic", "go", "is_light", "refused", "size", "waits")

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._topic, self.size = sizes[0]
        if len(sizes) > 1:
            self._topic = max(sizes, key=lambda each: each[1])[0]
            self.size = sum(size for _, size in sizes)
        self.is_light = False
        self._heavy = 0
        """Bytes as which it counts."""
        self.waits = False
        """It has not begun."""
        self.refused = False
        """It will not begin."""
        self.go: Callable[[], None] = _nothing
        """Called when it begins, if it had to wait, or will not. It must not raise."""


class _Queue:
    """What waits for one topic."""

    __slots__ = ("deficit", "size", "turns")

    def __init__(self) -> None:
        self.turns: deque[Turn] = deque()
        self.size = 0
        self.deficit = QUANTUM_BYTES
        """So many bytes may go before the next queue has its turn."""


class Turns:
    """Belongs to one event loop."""

    def __init__(
        self,
        waiting: int,
        later: Callable[[float, Callable[[], None]], object],
        ahead: int = AHEAD_BYTES,
        light: int = LIGHT_BYTES,
    ) -> None:
        """``later``: calls after so many seconds."""
        self.ahead, self.light = ahead, light
        self._most_waiting = waiting
        self._later = later
        self._pauses = 0
        self._will_insist = False
        self._heavy = 0
        self._lights: dict[Hashable, int] = {}
        """Topic → bytes of its light requests under way."""
        self._queues: dict[Hashable, _Queue] = {}
        self._order: deque[Hashable] = deque()
        """Topics with a queue; the first one is being served."""
        self.waiting = 0
        """Bytes that wait."""
        self._released = False

    @property
    def waiting_requests(self) -> int:
        """Counts those that wait."""
        return sum(len(queue.turns) for queue in self._queues.values())

    def begin(self, sizes: Sizes) -> Turn:
        """Begins a turn, or queues it. A turn that was begun or queued has to end. Raises Overloaded, StorageUnavailable: it is
        neither.

        An atomic commit waits in the queue of the topic to which it brings most, and is counted for each.
        """
        turn = Turn(sizes)
        if self.begin_light(sizes):
            turn.is_light = True
        elif not self._queues and not self._pauses and self._fits(turn):
            self._begin_heavy(turn)
        else:
            self._queue(turn)
        return turn

    def begin_light(self, sizes: Sizes, *, first: bool = False) -> bool:
        """Begins a turn of one who waits for nobody, if it is light; False: it would have to wait, or is heavy. Ends with
        :meth:`end_light`. ``first``: it is the first of those who wait."""
        lights = self._lights
        for topic, size in sizes:
            if lights.get(topic, 0) + size > self.light or (topic in self._queues and not first):
                return False
        for topic, size in sizes:
            lights[topic] = lights.get(topic, 0) + size
        return True

    def end_light(self, sizes: Sizes) -> None:
        """Its request is answered, or given up."""
        for topic, size in sizes:
            if left := self._lights.get(topic, 0) - size:
                self._lights[topic] = left
            else:
                self._lights.pop(topic, None)  # a request of no bytes has put nothing in
        if self._queues:
            for topic, _ in sizes:
                self._serve_light(topic)
            self._serve()

    def end(self, turn: Turn) -> None:
        """Its request is answered, or has been given up while it waited. Once for each turn."""
        if turn.waits:
            queue = self._queues[turn._topic]
            queue.turns.remove(turn)
            self._has_left(turn._topic, queue, turn)
            self._serve_light(turn._topic)
        elif turn.is_light:
            self.end_light(turn._sizes)
            return
        self._forget_heavy(turn)

    def release(self) -> None:
        """The service stops: who waits, or would have to from now on, is refused. They have to end as others do."""
        self._released = True
        for queue in self._queues.values():
            for turn in queue.turns:
                turn.refused = True
                turn.go()

    def pause(self, seconds: float) -> None:
        """The store has fallen behind: no heavy request begins for so long."""
        self._pauses += 1
        self._later(seconds, self._go_on)
        if not self._will_insist:
            self._will_insist = True
            self._later(PAUSED_SECONDS, self._insist)

    def _go_on(self) -> None:
        self._pauses -= 1
        self._serve()

    def _insist(self) -> None:
        """What waits goes on, paused or not."""
        if not self._pauses:
            self._will_insist = False
            return
        self._later(PAUSED_SECONDS, self._insist)
        self._serve(paused=False)

    def _begin_heavy(self, turn: Turn) -> None:
        turn._heavy = turn.size
        self._heavy += turn.size
        self._later(OVERDUE_SECONDS, partial(self._forget_heavy, turn))

    def _forget_heavy(self, turn: Turn) -> None:
        self._heavy -= turn._heavy
        turn._heavy = 0
        self._serve()

    def _fits(self, turn: Turn) -> bool:
        return not self._heavy or self._heavy + turn.size <= self.ahead

    def _queue(self, turn: Turn) -> None:
        if self._released:
            raise StorageUnavailable(STOPPING)
        queue = self._queues.get(turn._topic)
        # As a switch shares its memory: a queue may take as much as is left, so there is always some for another one.
        if (0 if queue is None else queue.size) + turn.size > self._most_waiting - self.waiting:
            raise Overloaded("as many bytes wait to be written to this topic as the service lets wait; try again in a moment")
        if queue is None:
            queue = self._queues[turn._topic] = _Queue()
            self._order.append(turn._topic)
        queue.turns.append(turn)
        queue.size += turn.size
        self.waiting += turn.size
        turn.waits = True

    def _has_left(self, topic: Hashable, queue: _Queue, turn: Turn) -> None:
        """The turn is not in the queue any more, which goes with its last one."""
        turn.waits = False
        queue.size -= turn.size
        self.waiting -= turn.size
        if not queue.turns:
            del self._queues[topic]
            self._order.remove(topic)

    def _serve_light(self, topic: Hashable) -> None:
        """What waits first for a topic may have become light."""
        while (queue := self._queues.get(topic)) is not None:
            turn = queue.turns[0]
            if not self.begin_light(turn._sizes, first=True):
                return
            queue.turns.popleft()
            self._has_left(topic, queue, turn)
            turn.is_light = True
            turn.go()

    def _serve(self, paused: bool | None = None) -> None:
        """``paused``: as the store has asked for, unless it is said."""
        paused = self._pauses > 0 if paused is None else paused
        while self._order and not paused:
            topic = self._order[0]
            queue = self._queues[topic]
            turn = queue.turns[0]
            if queue.deficit < turn.size:
                queue.deficit += QUANTUM_BYTES
                self._order.rotate(-1)
                continue
            if not self._fits(turn):
                return
            queue.turns.popleft()
            queue.deficit -= turn.size
            self._has_left(topic, queue, turn)
            self._begin_heavy(turn)
            turn.go()
            self._serve_light(topic)
