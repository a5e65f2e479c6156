"""A program with a database beside it, whose outbox is relayed, in a simulated world."""

from __future__ import annotations

import sqlite3

from greenlet import getcurrent  # type: ignore[import-untyped]
from sqlalchemy import Engine, NullPool, create_engine

from oncelog import Client as BlockingClient
from oncelog import Outbox, OutboxRelay
from oncelog.api.api import clock_of
from oncelog.errors import OutboxBusy
from tests.simulation.worlds import ROOT, TOPICS, Client, World
from tests.world.on_loop import clients_on_loop, on_loop
from tests.world.virtual.loop import PROCESS


class Shop(Client):
    """Adds rows in transactions, some of which are rolled back: what is committed is stored once, and all else never."""

    mean_life = 5.0

    def __init__(self, world: World, name: str, sales: int) -> None:
        super().__init__(world, name)
        self._sales, self._at = sales, 0
        self._address = f"file:{name}-{id(self)}?mode=memory&cache=shared"
        self._disk = sqlite3.connect(self._address, uri=True)
        """Keeps the database, whatever becomes of the processes."""
        self._connections: list[sqlite3.Connection] = []

    async def life(self) -> None:
        process = PROCESS.get()
        assert process is not None
        world = self.world
        clients = clients_on_loop(world.network.reach(process), world.loop.clock)
        engine = create_engine("sqlite://", creator=self._connect, poolclass=NullPool)
        await on_loop(lambda: self._work(engine, clients(world.url, token=ROOT, retry=1.0, timeout=10.0)))

    def died(self) -> None:
        for each in self._connections:
            each.close()  # which rolls back
        self._connections.clear()

    def _connect(self) -> sqlite3.Connection:
        self._connections.append(sqlite3.connect(self._address, uri=True, check_same_thread=False))
        return self._connections[-1]

    def _work(self, engine: Engine, client: BlockingClient) -> None:
        self.world.remains.append(getcurrent())
        outbox = Outbox(self.name)
        outbox.create_tables(engine)
        relay = OutboxRelay(outbox, engine, client=client, takeover_seconds=3.0)
        clock = clock_of(client)
        while True:
            for _ in range(min(self.random.choice([1, 2]), self._sales - self._at)):
                self._sell(outbox, engine)
            try:
                relay.run_once()
            except OutboxBusy:
                clock.sleep(1.0)  # one that was killed has it
                continue
            if self._at == self._sales:
                return
            clock.sleep(self.random.expovariate(1))

    def _sell(self, outbox: Outbox, engine: Engine) -> None:
        history, name, undone = self.world.history, f"{self.name} {self._at}", self.random.random() < 0.2
        self._at += 1
        with engine.connect() as connection:
            for number in range(self.random.choice([1, 3])):
                said = f"{name} {number}"
                sent = history.message(self.random.choice(TOPICS), said.encode(), self.name)
                history.decided(history.begin(said, [sent]), "gone" if undone else "there")
                outbox.add(connection, sent.topic, sent.payload)
            connection.rollback() if undone else connection.commit()
