"""Load on a service that is killed meanwhile: producers on threads or as a process of their own, and a reader that follows."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from oncelog import AsyncClient, AsyncProducer, Client, Message, Producer, Reader, Receipt
from oncelog.errors import OncelogError
from tests.model.log import check_acknowledged, check_maps, check_order, check_prefix, check_receipts, payload_of, read_log
from tests.patience import PATIENCE, until


class Writer(threading.Thread):
    """A named producer on a thread of its own. Publishes until told to stop; notes every receipt."""

    patience = PATIENCE
    """Seconds for which a batch is tried again."""

    def __init__(self, url: str, topic: str, name: str, seed: int) -> None:
        super().__init__(name=f"writer-{name}")
        self.producer_name = name
        self.acknowledged: dict[int, Receipt] = {}
        """By sequence id, the first receipt of each message."""
        self.repeated: list[Receipt] = []
        """Receipts of messages that were acknowledged before and sent again."""
        self.failure: BaseException | None = None
        self._url = url
        self._topic = topic
        self._random = random.Random(f"{seed}-{name}")
        self._enough = threading.Event()
        self._next = 0
        """The sequence id that has not been sent yet."""
        self._allowed = 0
        self._size = self._random.choice([1, 7, 100, 1_000])
        """How many messages of it travel together at most."""

    def allow(self, more: int) -> None:
        """Go on up to so many sequence ids further: load for the kills, but not more than can be read and compared."""
        self._allowed = self._next + more

    def enough(self) -> None:
        """Finish what is under way and end."""
        self._enough.set()

    def run(self) -> None:
        try:
            with (
                Client(self._url, retry=self.patience) as client,
                Producer(
                    self._topic,
                    name=self.producer_name,
                    client=client,
                    batch_max_messages=self._size,
                    linger=0.002,
                    delivery_timeout=self.patience,
                ) as producer,
            ):
                while not self._enough.is_set():
                    if self._next < self._allowed:
                        self.publish(producer)
                    time.sleep(0.005)
                self.finish(producer)
        except BaseException as error:
            self.failure = error

    def publish(self, producer: Producer[bytes]) -> None:
        """A little more."""
        raise NotImplementedError

    def finish(self, producer: Producer[bytes]) -> None:
        """Take what is outstanding."""

    def _payload(self, sequence_id: int) -> bytes:
        return payload_of(self.producer_name, sequence_id)

    def _note(self, receipt: Receipt) -> None:
        self.acknowledged[receipt.sequence_id] = receipt


class OneByOne(Writer):
    """Blocking sends under ids of its own that leave gaps; now and then the same message again."""

    LONGEST_STEP = 5
    """From one id to the next."""

    def publish(self, producer: Producer[bytes]) -> None:
        number = self._next
        self._note(producer.send(self._payload(number), sequence_id=number, key=b"one"))
        if self._random.random() < 0.1:
            self.repeated.append(producer.send(self._payload(number), sequence_id=number, key=b"one"))
        self._next = number + self._step()

    def _step(self) -> int:
        return self._random.choice([1, 1, 1, self.LONGEST_STEP])


class Awaiting(OneByOne):
    """The same with the twin for asyncio, on an event loop of its own."""

    def run(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self.failure = error

    async def _run(self) -> None:
        async with (
            AsyncClient(self._url, retry=self.patience) as client,
            AsyncProducer(self._topic, name=self.producer_name, client=client, delivery_timeout=self.patience) as producer,
        ):
            while not self._enough.is_set():
                if self._next < self._allowed:
                    number = self._next
                    self._note(await producer.send(self._payload(number), sequence_id=number, key=b"one"))
                    if self._random.random() < 0.1:
                        self.repeated.append(await producer.send(self._payload(number), sequence_id=number, key=b"one"))
                    self._next = number + self._step()
                await asyncio.sleep(0.005)


class Streaming(Writer):
    """send_async far ahead of the receipts; the SDK numbers the messages from 0."""

    def __init__(self, url: str, topic: str, name: str, seed: int) -> None:
        super().__init__(url, topic, name, seed)
        self._waiting: deque[Future[Receipt]] = deque()
        self.ahead = min(50 * self._size, 1_000)
        """How many receipts it waits for before it sends more."""

    def publish(self, producer: Producer[bytes]) -> None:
        for _ in range(self._random.choice([1, 10, 50])):
            self._waiting.append(producer.send_async(self._payload(self._next)))
            self._next += 1
        while self._waiting and (self._waiting[0].done() or len(self._waiting) > self.ahead):
            self._note(self._waiting.popleft().result())

    def finish(self, producer: Producer[bytes]) -> None:
        producer.flush()
        while self._waiting:
            self._note(self._waiting.popleft().result())


class InBatches(Writer):
    """Batches of all sizes; each begins with some messages that the batch before it had, so that part of it is a duplicate."""

    def publish(self, producer: Producer[bytes]) -> None:
        again = min(self._next, self._random.choice([0, 0, 1, 10]))
        numbers = range(self._next - again, self._next + self._random.choice([1, 20, 300]))
        receipts = producer.send_batch([self._payload(number) for number in numbers], sequence_ids=numbers)
        self.repeated += receipts[:again]
        for receipt in receipts[again:]:
            self._note(receipt)
        self._next = numbers.stop


MIXED: Sequence[type[Writer]] = [OneByOne, Streaming, Streaming, InBatches, InBatches, InBatches, OneByOne, Streaming]
"""Kinds of writers for a load of all of them."""


def check_finished(log: Sequence[Message], writers: Sequence[Writer]) -> None:
    """When every send has been answered: the log holds exactly what was answered, and what was sent again was refused."""
    for writer in writers:
        found = [message.sequence_id for message in log if message.producer == writer.producer_name]
        assert found == sorted(writer.acknowledged), f"{writer.producer_name}: log and receipts differ"
        assert {receipt.status for receipt in writer.repeated} <= {"duplicate"}
        check_receipts(log, writer.producer_name, writer.repeated)


class Follower(threading.Thread):
    """A reader that is there all the time. Keeps everything it was given."""

    patience = PATIENCE
    """Seconds for which a poll is tried again."""

    def __init__(self, url: str, topic: str) -> None:
        super().__init__(name="follower")
        self.messages: list[Message] = []
        self.failure: BaseException | None = None
        self._url = url
        self._topic = topic
        self._until: Callable[[int], bool] = lambda _: False

    def read_until(self, count: int) -> None:
        """End once so many messages were read and no more come."""
        self._until = lambda read: read >= count

    def run(self) -> None:
        try:
            with Client(self._url, retry=self.patience) as client, Reader(self._topic, client=client) as reader:
                while True:
                    found = reader.read(700, timeout=0.2)
                    self.messages += found
                    if not found and self._until(len(self.messages)):
                        return
        except BaseException as error:
            self.failure = error


class Load:
    """Named producers of every kind and readers that follow, over one or several services, and what they were told."""

    def __init__(
        self,
        urls: Sequence[str],
        topic: str,
        rng: random.Random,
        writers: Sequence[type[Writer]],
        followers: int,
        back: Callable[[], None],
    ) -> None:
        """``writers``: the kind of each. ``back``: has every service running again, so that what is under way ends."""
        self._topic, self._back = topic, back
        # Each knows of all services, and asks another one first.
        asked = [",".join([*urls[at:], *urls[:at]]) for at in range(len(urls))]
        self.url = asked[0]
        self.writers: list[Writer] = [
            kind(asked[number % len(urls)], topic, f"{kind.__name__}-{number}", rng.getrandbits(32))
            for number, kind in enumerate(writers)
        ]
        self.followers = [Follower(asked[number % len(urls)], topic) for number in range(followers)]
        for thread in (*self.writers, *self.followers):
            thread.patience = len(urls) * PATIENCE  # type: ignore[attr-defined]
        self._log: list[Message] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """On leaving, the writers have ended; the followers go on unless something failed."""
        for thread in (*self.writers, *self.followers):
            thread.start()
        try:
            yield
        except BaseException:
            for follower in self.followers:
                follower.read_until(0)
            raise
        finally:
            for writer in self.writers:
                writer.enough()
            self._back()
            for writer in self.writers:
                writer.join(PATIENCE)

    def allow(self, more: int) -> None:
        for writer in self.writers:
            writer.allow(more)

    def wait_for_receipts(self, more: int) -> None:
        """Return when so many more messages have been acknowledged, whoever sent them. Raises what ended a writer."""
        wanted = sum(self.counts) + more
        until(lambda: self.goes_on([0] * len(self.writers), 0) and sum(self.counts) >= wanted, every=0.001)

    @property
    def counts(self) -> list[int]:
        """How many messages each writer has been told are stored."""
        return [len(writer.acknowledged) for writer in self.writers]

    def goes_on(self, before: list[int], more: int = 5) -> bool:
        """Whether each writer has got that many acknowledged since. Raises what ended one."""
        for writer in self.writers:
            if writer.failure is not None:
                raise writer.failure
        return all(count >= earlier + more for earlier, count in zip(before, self.counts, strict=True))

    def acknowledged(self) -> dict[str, dict[int, Receipt]]:
        return {writer.producer_name: dict(writer.acknowledged) for writer in self.writers}

    def check_so_far(self, acknowledged: dict[str, dict[int, Receipt]]) -> None:
        """What had been acknowledged is there; what was read before is where it was."""
        log = until(lambda: read_log(self.url, self._topic), despite=(OncelogError,))
        check_prefix(self._log, log)
        check_order(log)
        for producer, receipts in acknowledged.items():
            check_acknowledged(log, producer, receipts)
        self._log = log

    def check_at_the_end(self) -> None:
        """What was answered is what is there, for everybody; the maps are its fold."""
        for writer in self.writers:
            assert writer.failure is None, writer.failure
        self.check_so_far(self.acknowledged())
        check_finished(self._log, self.writers)
        with Client(self.url, retry=PATIENCE) as client:
            check_maps(client, self._topic, self._log)
        for follower in self.followers:
            follower.read_until(len(self._log))
        for follower in self.followers:
            follower.join(PATIENCE)
            assert follower.failure is None, follower.failure
            assert follower.messages == self._log, "somebody was given something else"


def _tell(receipt: Receipt) -> None:
    sys.stdout.write(f"{receipt.sequence_id}\n")
    sys.stdout.flush()


def publish_rows(url: str, topic: str, name: str, rows: int) -> None:
    """Publish rows 0 … rows - 1, but for those that are there already; a line on stdout for each acknowledged row."""
    waiting: deque[Future[Receipt]] = deque()
    with Client(url, retry=PATIENCE) as client, Producer(topic, name=name, client=client, batch_max_messages=20) as producer:
        for row in producer.resume(range(rows), sequence_id=lambda row: row):
            waiting.append(producer.send_async(payload_of(name, row), sequence_id=row))
            while waiting and (waiting[0].done() or len(waiting) > 100):
                _tell(waiting.popleft().result())
        while waiting:
            _tell(waiting.popleft().result())


async def publish_rows_in_tasks(url: str, topic: str, name: str, rows: int) -> None:
    """The same by tasks of one event loop, each of which awaits its own message."""
    waiting: deque[asyncio.Task[Receipt]] = deque()
    async with (
        AsyncClient(url, retry=PATIENCE) as client,
        AsyncProducer(topic, name=name, client=client, batch_max_messages=4, delivery_timeout=PATIENCE) as producer,
    ):
        for row in producer.resume(range(rows), sequence_id=lambda row: row):
            # Tasks that begin in one order take their numbers in it.
            waiting.append(asyncio.create_task(producer.send(payload_of(name, row), sequence_id=row)))
            if len(waiting) == 64:
                _tell(await waiting.popleft())
        while waiting:
            _tell(await waiting.popleft())


if __name__ == "__main__":
    kind, *given, count = sys.argv[1:]
    if kind == "tasks":
        asyncio.run(publish_rows_in_tasks(*given, int(count)))  # type: ignore[call-arg]
    else:
        publish_rows(*given, int(count))  # type: ignore[call-arg]
