"""A service in this process over a disk and a clock, with a topic on it; it stops, crashes and starts again within a test."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import requests

from oncelog import Client
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Table
from tests.patience import PATIENCE, until
from tests.rest.talk import Topic
from tests.world.clock import ManualClock
from tests.world.disk import Database, crashed, disarm, opened
from tests.world.service import RunningService, running_service

SECOND = 1_000
HOUR = 3_600 * SECOND
Told = list[dict[str, Any]]


class House:
    """A machine, the service on it and the topics that a test made there, which stay usable over a restart."""

    service: RunningService
    client: Client

    def __init__(self, clock: ManualClock | None = None, database: Database | None = None, **settings: Any) -> None:
        """``database``: the URL of an empty database, which is asked beside the memory; another one each time."""
        self.clock = clock or ManualClock()
        self._database = database
        self.disk = Disk()
        self.damaged = False
        """Whether the topics need not agree with their logs at the end."""
        self._settings = settings
        self._topics: dict[tuple[str, str], Topic] = {}
        self._life = ExitStack()

    def __enter__(self) -> House:
        self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and not self.damaged:
                self.verify()
        finally:
            disarm(self.disk)
            self._life.close()

    # --- lives

    def restart(self, **settings: Any) -> None:
        """Stop cleanly and start again."""
        self._life.close()
        self._start(**settings)

    def crash(self, **settings: Any) -> None:
        """Go on as if the power had been cut at this moment."""
        survivor = crashed(self.disk)
        disarm(self.disk)
        self._life.close()
        self.disk = survivor
        self._start(**settings)

    def lives(self) -> Iterator[str]:
        """As it is now, as it comes back after a crash, and as it does after a clean stop."""
        yield "now"
        self.crash()
        yield "crashed"
        self.restart()
        yield "restarted"

    def comes_back(self, how: str) -> None:
        """``how``: "goes on", "stopped" or "crashed"."""
        if how != "goes on":
            (self.crash if how == "crashed" else self.restart)()

    @contextmanager
    def off(self) -> Iterator[Disk]:
        """Stop cleanly, have the disk changed, and start again on what is there then."""
        self._life.close()
        yield self.disk
        self._start()

    def _start(self, **settings: Any) -> None:
        self._settings |= settings
        disk, database = self.disk, self._database
        self.service = self._life.enter_context(
            running_service(clock=self.clock, open_store=lambda: opened(disk, database), **self._settings)
        )
        self._rounds = self.service.service.opening.retention()  # one remembers from round to round
        self.client = self._life.enter_context(Client(self.service.url, retry=0))
        for (namespace, name), topic in self._topics.items():
            topic.base, topic.url = self.service.url, Topic(self.service.url, name, namespace, create=False).url

    # --- topics

    @property
    def topic(self) -> Topic:
        """The topic "t", made when it is first used."""
        return self.make()

    def make(self, name: str = "t", namespace: str = "default", **properties: str) -> Topic:
        """The topic of this name; it is created, or created again if it was deleted."""
        known = self._topics.get((namespace, name))
        if known is None or properties:
            known = self._topics.setdefault((namespace, name), Topic(self.service.url, name, namespace, create=False))
            answer = known.request("PUT", "", json=properties)
            assert answer.status_code in (200, 409), answer.text
        return known

    def again(self, **properties: str) -> None:
        """Delete the topic "t" and make it anew."""
        assert self.topic.request("DELETE", "").status_code == self.topic.request("PUT", "", json=properties).status_code == 200

    def verify(self) -> None:
        """The live maps of every topic are the fold of its log."""
        for topic in self._topics.values():
            if topic.request("GET", "").status_code == 200:
                found = topic.verify()
                assert found["ok"], found

    def aside(self) -> Topic:
        """The topic "t" over a connection of its own, for another thread."""
        return Topic(self.service.url, create=False)

    def at_once(self, pool: ThreadPoolExecutor, method: str, *arguments: Any, **fields: Any) -> Future[Any]:
        """Call a method of the topic "t" on another thread."""
        return pool.submit(getattr(self.aside(), method), *arguments, **fields)

    def rows(self, *tables: Table) -> tuple[int, ...]:
        """How many rows are on disk; by default of the Message Table, the Payload Table and the table of groups."""
        return tuple(len(self.disk.tables[table]) for table in tables or (Table.MESSAGE, Table.PAYLOAD, Table.GROUP))

    # --- what the service does by itself

    def retain(self) -> int:
        """A round of retention; how many rows it deleted."""
        return self.service.on_loop(lambda _: self._rounds.once())

    def healthy(self) -> None:
        """Have the disk work again, and return when the store was reopened."""
        disarm(self.disk)
        url = self.service.url + "/healthz"
        until(lambda: requests.get(url, timeout=PATIENCE).status_code == 200, "the store is reopened")

    # --- transactions

    def start(self, *kind: Literal["short", "long"]) -> int:
        """The write pointer of a new transaction."""
        return self.client.start_transaction(*kind).write_pointer

    def end(self, pointer: int, how: str) -> None:
        """``how``: "commit", "abort", "invalidate", or "time out"."""
        if how == "time out":
            self.clock.advance(30_000)
            self.service.on_loop(lambda service: service.opening.transactions.expire_due())  # type: ignore[union-attr]
            assert self.client.transaction_status(pointer).state == "invalid"
        else:
            getattr(self.client, f"{how}_transaction")(pointer)

    def settle(self) -> None:
        """Return when the service has told its topics of every transaction that has ended."""
        self.service.settled()

    def now(self) -> list[str]:
        """The payloads that a transaction which begins now is delivered."""
        return self.topic.seen(self.client.start_transaction())


def told(found: Told) -> str:
    """The statuses of receipts, a letter each: "s" for stored, "d" for duplicate."""
    return "".join(each["status"][0] for each in found)
