"""kill -9 of the service and of a durable consumer at random moments: each message delivered, in order, none again that was
acknowledged.

A failing run names its seed; ``KILL_SEED=… pytest …`` begins again with the same decisions (not the same instants).
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from oncelog import Client, Producer
from tests.patience import PATIENCE, until
from tests.scenarios.consuming import END
from tests.world.crash import process, seeded
from tests.world.service import ServiceProcess

pytestmark = pytest.mark.real

TOPIC, SUBSCRIPTION = "t", "s"
AHEAD = 500
"""Messages that are published before they are delivered, at most: so that kills hit while there is something to do."""


class Heard:
    """What all consumer processes said, in the order in which they did."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str, int]] = []
        """(number of the process, word, offset)."""
        self.highest = {"d": -1, "a": -1}
        """Word → the highest offset."""

    def hear(self, number: int, word: str, offset: int) -> None:
        self.lines.append((number, word, offset))
        self.highest[word] = max(self.highest[word], offset)

    def check(self, end: int) -> None:
        """``end``: the offset of the last message."""
        acknowledged, last, of = -1, -1, -1
        for number, word, offset in self.lines:
            if word == "a":
                acknowledged = max(acknowledged, offset)
                continue
            assert offset > acknowledged, f"{offset} was delivered again, although {acknowledged} was acknowledged"
            if number == of:
                assert offset == last + 1, f"{offset} came behind {last}"
            else:
                assert offset <= last + 1, f"the next consumer began at {offset}, although only {last} was delivered"
            last, of = offset, number
        assert {offset for _, word, offset in self.lines if word == "d"} == set(range(end + 1))


class Consuming:
    """The process of the moment, and the thread that listens to it."""

    def __init__(self, url: str, heard: Heard) -> None:
        self._url = url
        self._heard = heard
        self._started = 0
        self._life = ExitStack()

    def start(self, seed: int) -> None:
        self._started += 1
        self._process = self._life.enter_context(process("tests.scenarios.consuming", self._url, TOPIC, SUBSCRIPTION, seed))
        self._listener = threading.Thread(target=self._listen, args=(self._started,))
        self._listener.start()

    def _listen(self, number: int) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # not cut by the kill
                word, _, offset = line.partition(" ")
                self._heard.hear(number, word, int(offset))

    def kill(self) -> None:
        """SIGKILL; all that it had said is heard when this returns."""
        self._process.kill()
        self.ended()
        self._life.close()

    def ended(self) -> int:
        """Wait for its end; its exit code."""
        code = self._process.wait(PATIENCE)
        self._listener.join(PATIENCE)
        return code


class Publishing(threading.Thread):
    """Numbers, up to :data:`AHEAD` more than were delivered."""

    def __init__(self, url: str, heard: Heard) -> None:
        super().__init__(name="publishing")
        self._url = url
        self._heard = heard
        self.enough = threading.Event()
        self.last = -1
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with (
                Client(self._url, retry=PATIENCE) as client,
                Producer[bytes](TOPIC, name="p", client=client, delivery_timeout=PATIENCE) as producer,
            ):
                sent = 0
                while not self.enough.is_set():
                    if sent < self._heard.highest["d"] + AHEAD:
                        producer.send_batch([b"%d" % number for number in range(sent, sent + 20)])
                        sent += 20
                    else:
                        self.enough.wait(0.005)
                self.last = producer.send(END).offset
        except BaseException as error:
            self.failure = error


@pytest.mark.parametrize(("service_kills", "consumer_kills"), [(1, 1), pytest.param(25, 25, marks=pytest.mark.slow)])
def test_kills_of_service_and_consumer_lose_and_reorder_nothing_and_deliver_nothing_acknowledged(
    tmp_path: Path, service_kills: int, consumer_kills: int
) -> None:
    with seeded() as rng, ServiceProcess(tmp_path / "log") as service, Client(service.url) as client:
        client.create_topic(TOPIC)
        heard = Heard()
        consuming, publishing = Consuming(service.url, heard), Publishing(service.url, heard)
        consuming.start(rng.getrandbits(32))
        publishing.start()
        try:
            kills = ["service"] * service_kills + ["consumer"] * consumer_kills
            for kill in rng.sample(kills, len(kills)):
                goal = heard.highest["d"] + rng.randint(50, 400)
                until(lambda goal=goal: heard.highest["d"] >= goal, "more is delivered", every=0.002)  # type: ignore[misc]
                if kill == "consumer":
                    consuming.kill()
                    consuming.start(rng.getrandbits(32))
                else:
                    service.kill()
                    service.start()
            publishing.enough.set()
            publishing.join(PATIENCE)
            assert publishing.failure is None
            assert consuming.ended() == 0
        finally:
            publishing.enough.set()
            consuming.kill()
        heard.check(publishing.last)
        shown = client.subscription(TOPIC, SUBSCRIPTION)
        assert (shown.cursor, shown.lag, shown.epoch) == (publishing.last + 1, 0, 1 + consumer_kills)
        assert heard.highest["a"] == publishing.last
