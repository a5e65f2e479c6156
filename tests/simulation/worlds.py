"""A world with a service, its clients and what goes wrong, all of it from one seed; and what must hold at its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from traceback import clear_frames
from typing import Any, NamedTuple

from oncelog import AsyncClient, AsyncReader, Message
from oncelog.api.api import surrounded
from oncelog.errors import InternalError, InvalidRequest, InvalidResponse, OncelogError, SequenceReused, TopicDamaged
from oncelog.wire.models import Verification
from tests.model.history import Found, History
from tests.world.disk import FAULTS, Database, arm, disarm
from tests.world.shared import SharedDatabase
from tests.world.virtual.chance import seeded
from tests.world.virtual.instance import Instance, Machine
from tests.world.virtual.loop import BEGAN_MS, PROCESS, Process, VirtualLoop
from tests.world.virtual.network import CALM, Network, Weather
from tests.world.virtual.outside import Outside
from tests.world.virtual.trace import Trace

TOPICS = ("orders", "payments")
LEDGER = "ledger"
"""A topic whose offsets are expected."""
RECORDS = "records"
"""A topic of which messages are removed."""
TTL_SECONDS = 40
ROOT = "s3cret"
"""The token of who may do everything."""
RETRY_SECONDS = 60.0
NEVER = (InternalError, InvalidRequest, InvalidResponse, TopicDamaged, SequenceReused)
"""What no client is answered here, whatever fails."""


class World:
    """What all of one seed share."""

    def __init__(self, loop: VirtualLoop, network: Network, instances: Sequence[Instance]) -> None:
        self.loop, self.network, self.instances = loop, network, instances
        self.url = ",".join(each.url for each in instances)
        self.random, self.trace = loop.random, loop.trace
        self.history = History(loop.time)
        self.answered: Counter[str] = Counter()
        """Name of an error → how often a client met it."""
        self.given: dict[str, Message[bytes]] = {}
        """Topic → what a consumer of it was given last."""
        self.remains: list[object] = []
        """Of processes that were killed: what would do something while it is collected."""
        self._clients = 0

    def client(self, retry: float = RETRY_SECONDS, timeout: float = 10.0, token: str = ROOT) -> AsyncClient:
        """One of the process that calls this."""
        process = PROCESS.get()
        assert process is not None
        clients = surrounded(AsyncClient, network=self.network.reach(process), clock=self.loop.clock)
        return clients(self.url, token=token, retry=retry, timeout=timeout)

    def host(self) -> str:
        """An address that nobody has yet."""
        self._clients += 1
        return f"10.0.1.{self._clients}"

    def met(self, who: str, error: OncelogError) -> None:
        """A client was answered an error."""
        self.trace.note("met", who, type(error).__name__, str(error)[:120])
        self.answered[type(error).__name__] += 1
        if isinstance(error, NEVER):
            raise AssertionError(f"{who} was answered {type(error).__name__}: {error}") from error


class Client:
    """A program that is killed and begun anew until its work is done. What it knows of what it did is in the history."""

    mean_life = 30.0
    """Seconds."""
    lives_at_most = 40
    """After so many it is left alone."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.random = world, name, world.random
        self.host = world.host()
        self.lives = 0

    async def life(self) -> None:
        """What one process does; it returns when all is done."""
        raise NotImplementedError

    def died(self) -> None:
        """A process of it was killed."""

    async def run(self) -> None:
        """One process after the other."""
        while True:
            self.lives += 1
            process = Process(self.name, self.host)
            loop, trace = self.world.loop, self.world.trace
            trace.note("begin", self.name, self.lives)
            working = loop.begin(process, self.life())
            process.ended = loop.create_future()
            limit = self.random.expovariate(1 / self.mean_life) if self.lives < self.lives_at_most else None
            done, _ = await asyncio.wait([working], timeout=limit)
            if not done:
                if self.random.random() < 0.3:
                    trace.note("cancel", self.name)
                    loop.call_soon(working.cancel, context=process.context.copy())
                    await asyncio.wait([working])
                else:
                    trace.note("die", self.name)
                    process.kill()
                    self.world.network.kill(process)
                    self.died()
                    await asyncio.sleep(self.random.choice([0.0, 0.1, 3.0]))
                    continue
            try:
                working.result()
            except asyncio.CancelledError:
                continue
            except OncelogError as error:
                self.world.met(self.name, error)
                await asyncio.sleep(0.2)
            else:
                trace.note("done", self.name)
                return


class Nemesis:
    """What happens to the service meanwhile."""

    def __init__(self, world: World, mean_pause: float) -> None:
        self.world, self.random = world, world.random
        self.instance = world.instances[0]
        """To whom it happens next."""
        self._mean_pause = mean_pause

    async def run(self) -> None:
        """Until it is cancelled."""
        deeds = [self.kill, self.stop, self.disk, self.hang, self.clock, self.part, self.stall]
        await self.kill()
        while True:
            await asyncio.sleep(self.random.expovariate(1 / self._mean_pause))
            if self.random.random() < 0.7:
                await self._moment(self.random.choice(["sync", "send", "answer"]))
            self.instance = self.random.choice(self.world.instances)
            await self.random.choices(deeds, [16, 2, 4, 2, 1, 2, 1])[0]()

    async def _moment(self, kind: str) -> None:
        """Return right behind the next event of a kind, or some steps later, or after a second without one."""
        loop, trace = self.world.loop, self.world.trace
        came = loop.create_future()

        def told(of: str) -> None:
            if of == kind and not came.done():
                came.set_result(None)
            elif not came.done():
                trace.told = told

        trace.told = told
        await asyncio.wait([came], timeout=1)
        came.cancel()
        for _ in range(self.random.choice([0, 0, 1, 3])):
            await asyncio.sleep(self.random.expovariate(2_000))

    async def kill(self) -> None:
        instance = self.instance
        instance.kill()
        await asyncio.sleep(self.random.choice([0.0, 0.3, 5.0]))
        await instance.start()
        while self.random.random() < 0.3:  # and again, while it recovers
            await asyncio.sleep(self.random.expovariate(50))
            instance.kill()
            await instance.start()

    async def stop(self) -> None:
        await self.instance.stop()
        await self.instance.start()

    async def disk(self) -> None:
        disk, fault = self.instance.disk, self.random.choice(FAULTS[:2])
        self.world.trace.note("disk", fault)
        arm(disk, fault, self.random.randrange(3))
        await asyncio.sleep(self.random.uniform(0, 3))
        disarm(disk)

    async def stall(self) -> None:
        machine = self.instance.machine
        self.world.trace.note("disk", "hangs")
        machine.disk_hangs = True
        try:
            await asyncio.sleep(self.random.choice([0.3, 4.0, 15.0]))
        finally:
            machine.disk_hangs = False

    async def hang(self) -> None:
        await self.instance.hang(self.random.choice([0.2, 3.0, 20.0]))

    async def clock(self) -> None:
        self.instance.set_clock(self.random.choice([-3_600_000, -500, 1, 2_000, 3_600_000]))

    async def part(self) -> None:
        """A client does not reach it; or it does not reach what it shares with the others."""
        network, database, name = self.world.network, self.instance.database, self.instance.name
        seconds = self.random.choice([0.5, 4.0, 25.0])
        if database is not None and self.random.random() < 0.7:
            self.world.trace.note("part", name, "database")
            database.cut.add(name)
            try:
                await asyncio.sleep(seconds)
            finally:
                database.cut.discard(name)
        else:
            network.part(f"10.0.1.{self.random.randrange(1, 10)}", self.instance.machine.host)
            await asyncio.sleep(seconds)
            network.heal()


class Outcome(NamedTuple):
    """What a seed came to."""

    seed: int
    digest: str
    counts: Counter[str]
    messages: int
    answered: Counter[str]
    seconds: float
    """Of virtual time."""
    turns: int


def found(message: Message[Any]) -> Found:
    """A message, as the model has it."""
    return Found(message.offset, bytes(message.message_id), message.producer, message.sequence_id, message.payload)


async def read_all(client: AsyncClient, topic: str) -> list[Found]:
    """What is committed, to the end."""
    async with AsyncReader(topic, client=client, start="earliest", timeout=0) as reader:
        return [found(message) async for message in reader]


async def _main(
    world: World, clients: Callable[[World], Sequence[Client]], followers: Callable[[World], Sequence[Client]]
) -> int:
    network = world.network
    rough, network.weather = network.weather, CALM
    for instance in world.instances:
        await instance.start()
    setting_up = Process("setup", world.host())
    await world.loop.begin(setting_up, _set_up(world))
    network.weather = rough
    reading = [asyncio.ensure_future(each.run()) for each in followers(world)]
    working = [asyncio.ensure_future(each.run()) for each in clients(world)]
    evil = asyncio.ensure_future(Nemesis(world, 0.5).run())
    await _all(working, [evil, *reading])
    evil.cancel()
    with suppress(asyncio.CancelledError):
        await evil
    network.weather = CALM
    network.heal()
    for instance in world.instances:
        disarm(instance.disk)
        await instance.restore()
    await asyncio.sleep(30)
    for each in reading:
        each.cancel()
        with suppress(asyncio.CancelledError):
            await each
    judging = Process("judge", world.host())
    messages = await world.loop.begin(judging, _judge(world))
    for instance in world.instances:
        await instance.stop()
    return messages


async def _all(working: list[asyncio.Task[None]], beside: list[asyncio.Task[None]]) -> None:
    """Wait for them; what fails first, of those beside them too, is raised."""
    pending = list(working)
    while pending:
        await asyncio.wait([*pending, *beside], return_when=asyncio.FIRST_COMPLETED)
        for each in [*pending, *beside]:
            if each.done():
                each.result()
        pending = [each for each in pending if not each.done()]


async def _set_up(world: World) -> None:
    async with world.client() as client:
        for topic in TOPICS:
            await client.create_topic(topic)
        await client.create_topic(LEDGER, {"check.expected.offsets": True})
        expires = world.random.random() < 0.3
        await client.create_topic(RECORDS, {"ttl": TTL_SECONDS} if expires else {})
        if expires:
            world.history.expires(RECORDS)


async def _judge(world: World) -> int:
    async with world.client() as client:
        for pointer, group in world.history.pointers.items():
            state = (await client.transaction_status(pointer)).state
            assert state in ("committed", "aborted", "invalid"), f"transaction {pointer} is {state} after half a minute"
            world.history.decided(group, "there" if state == "committed" else "gone")
        for held in await client.held():
            await client.settle_topic(held.topic, held.write_pointer, committed=False)
        logs = {topic: await read_all(client, topic) for topic in (*TOPICS, LEDGER, RECORDS)}
        world.history.check(logs)
        for topic in logs:
            *_, verification = [each async for each in client.verify(topic)]
            assert isinstance(verification, Verification)
            assert verification.ok, verification.problems
    return sum(map(len, logs.values()))


def _instances(
    loop: VirtualLoop, network: Network, settings: Mapping[str, Any], count: int, beside: Database | None
) -> list[Instance]:
    database = None if count == 1 else SharedDatabase(lambda: BEGAN_MS + int(loop.now * 1000))
    machines = [Machine(loop, f"10.0.0.{number}", beside) for number in range(1, count + 1)]
    return [Instance(f"s{at + 1}", machine, network, settings, database) for at, machine in enumerate(machines)]


def simulate(
    seed: int,
    clients: Callable[[World], Sequence[Client]],
    followers: Callable[[World], Sequence[Client]],
    say: Callable[[str], None] | None = None,
    instances: int = 1,
    beside: Database | None = None,
) -> Outcome:
    """Run a seed, with so many instances; several share a database. What fails has the last events in its notes, and the seed.

    ``beside``: where an empty database is, which one instance's store asks beside its memory.
    """
    outside = Outside()
    with outside.quiet():
        outcome = _simulated(seed, clients, followers, Trace(say), outside, instances, beside)
    assert not outside.unraised, outside.unraised
    return outcome


def _simulated(
    seed: int,
    clients: Callable[[World], Sequence[Client]],
    followers: Callable[[World], Sequence[Client]],
    trace: Trace,
    outside: Outside,
    instances: int,
    beside: Database | None,
) -> Outcome:
    random = Random(seed)
    loop = VirtualLoop(random, trace)
    network = Network(loop, Weather())
    settings = {
        "snapshot_messages": random.choice([3, 20, 200]),
        "cache_bytes": random.choice([0, 2**16, 2**20]),
        "retention_seconds": 30,
        "token": ROOT,
        "foreign_write_pointers": True,
        "quick_writes": seed % 2 == 1,
    }
    with seeded(random):
        world = World(loop, network, _instances(loop, network, settings, instances, beside))
        try:
            messages = loop.run_until_complete(_main(world, clients, followers))
            outcome = Outcome(seed, trace.digest, trace.counts.copy(), messages, world.answered, loop.now, loop.turns)
        except BaseException as error:
            error.add_note("\n".join(["the last of what happened:", *trace.last, f"python -m tests.world {seed}"]))
            clear_frames(error.__traceback__)  # else they hold what is left of the world
            raise
        finally:
            outside.end(loop)
    return outcome
