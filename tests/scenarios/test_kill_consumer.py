"""kill -9 of the service and of a durable consumer at random moments: each message delivered, in order, none again that was
acknowledged.

A failing run names its seed; ``KILL_SEED=… pytest …`` begins again with the same decisions (not the same instants).
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from oncelog import Client, Producer
from tests.patience import PATIENCE, until
from tests.scenarios.consuming import END
from tests.scenarios.seed import seeded
from tests.support import ServiceProcess

TOPIC, SUBSCRIPTION = "t", "s"
AHEAD = 500
"""Messages that are published before they are delivered, at most: so that kills hit while there is something to do."""


class Heard:
    """What all consumer processes said, in the order in which they did."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str, int]] = []
        """(number of the process, word, offset)."""
        self.delivered = -1
        """The highest offset."""
        self.acknowledged = -1

    def hear(self, process: int, line: str) -> None:
        word, _, offset = line.partition(" ")
        if not line.endswith("\n"):
            return  # cut by the kill
        self.lines.append((process, word, int(offset)))
        if word == "d":
            self.delivered = max(self.delivered, int(offset))
        else:
            self.acknowledged = max(self.acknowledged, int(offset))

    def check(self, end: int) -> None:
        """``end``: the offset of the last message."""
        acknowledged, last, of = -1, -1, -1
        for process, word, offset in self.lines:
            if word == "a":
                acknowledged = max(acknowledged, offset)
                continue
            assert offset > acknowledged, f"{offset} was delivered again, although {acknowledged} was acknowledged"
            if process == of:
                assert offset == last + 1, f"{offset} came behind {last}"
            else:
                assert offset <= last + 1, f"the next consumer began at {offset}, although only {last} was delivered"
            last, of = offset, process
        assert {offset for _, word, offset in self.lines if word == "d"} == set(range(end + 1))


class Consuming:
    """The process of the moment, and who listens to it."""

    def __init__(self, url: str, heard: Heard) -> None:
        self._url = url
        self._heard = heard
        self.started = 0

    def start(self, seed: int) -> None:
        self.started += 1
        command = [sys.executable, "-m", "tests.scenarios.consuming", self._url, TOPIC, SUBSCRIPTION, str(seed)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        self._listener = threading.Thread(target=self._listen, args=(self._process, self.started))
        self._listener.start()

    def _listen(self, process: subprocess.Popen[str], number: int) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._heard.hear(number, line)

    def kill(self) -> None:
        """SIGKILL; all that it had said is heard when this returns."""
        self._process.kill()
        self._process.wait(PATIENCE)
        self._listener.join(PATIENCE)

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
        self._enough = threading.Event()
        self.last = -1
        self.failure: BaseException | None = None

    def enough(self) -> None:
        self._enough.set()

    def run(self) -> None:
        try:
            with (
                Client(self._url, retry=PATIENCE) as client,
                Producer[bytes](TOPIC, name="p", client=client, delivery_timeout=PATIENCE) as producer,
            ):
                sent = 0
                while not self._enough.is_set():
                    if sent < self._heard.delivered + AHEAD:
                        producer.send_batch([b"%d" % number for number in range(sent, sent + 20)])
                        sent += 20
                    else:
                        self._enough.wait(0.005)
                self.last = producer.send(END).offset
        except BaseException as error:
            self.failure = error


@pytest.mark.parametrize(
    ("service_kills", "consumer_kills"), [(2, 2), pytest.param(25, 25, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_kills_of_service_and_consumer_lose_and_reorder_nothing_and_deliver_nothing_acknowledged(
    tmp_path: Path, service_kills: int, consumer_kills: int
) -> None:
    with seeded() as rng, ServiceProcess(tmp_path / "log") as service:
        with Client(service.url) as client:
            client.create_topic(TOPIC)
        heard = Heard()
        consuming, publishing = Consuming(service.url, heard), Publishing(service.url, heard)
        consuming.start(rng.getrandbits(32))
        publishing.start()
        try:
            kills = ["service"] * service_kills + ["consumer"] * consumer_kills
            rng.shuffle(kills)
            for kill in kills:
                goal = heard.delivered + rng.randint(50, 400)
                until(lambda goal=goal: heard.delivered >= goal, "more is delivered", every=0.002)  # type: ignore[misc]
                if kill == "consumer":
                    consuming.kill()
                    consuming.start(rng.getrandbits(32))
                else:
                    service.kill()
                    service.start()
            publishing.enough()
            publishing.join(PATIENCE)
            assert publishing.failure is None
            assert consuming.ended() == 0
        finally:
            publishing.enough()
            consuming.kill()
        heard.check(publishing.last)
        with Client(service.url) as client:
            shown = client.subscription(TOPIC, SUBSCRIPTION)
            assert (shown.cursor, shown.lag, shown.epoch) == (publishing.last + 1, 0, 1 + consumer_kills)
        assert heard.acknowledged == publishing.last
