"""Instances of the service on machines of virtual time: started, stopped, killed, held up; their disks and clocks go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from oncelog_service.app import build_server, build_service
from oncelog_service.clock import SystemClock
from oncelog_service.config import Settings
from oncelog_service.rest.server import Server
from oncelog_service.service import Service
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch
from oncelog_service.workers import Step
from tests.world.disk import Database, Twin
from tests.world.shared import SharedDatabase
from tests.world.virtual.loop import BEGAN_MS, Process, VirtualLoop
from tests.world.virtual.network import Network
from tests.world.workers import LoopWorker, LoopWorkers

PORT = 7070
_LOOK_SECONDS = 0.05
"""Between two looks whether a disk that hangs still does."""
_IN_THE_WAY = 0.05
"""How likely a write finds somebody in its way."""


class Machine:
    """What outlives the processes on it: its address, its disk, and what its clock says."""

    def __init__(self, loop: VirtualLoop, host: str, beside: Database | None = None) -> None:
        """``beside``: where an empty database is, which is asked beside the disk."""
        self.beside = beside
        self.loop = loop
        self.host = host
        self.disk = Disk()
        self.disk_hangs = False
        self.ahead_ms = 0
        """How far its clock was set."""


class MachineClock(SystemClock):
    """The clock of a machine, as a process on it reads it."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def monotonic(self) -> float:
        return self._machine.loop.time()

    def elapsed(self) -> float:
        return self._machine.loop.time()

    def _machine_ms(self) -> int:
        return BEGAN_MS + self._machine.ahead_ms + int(self._machine.loop.time() * 1000)


class Workers(LoopWorkers):
    """Workers that take their time; while the disk of their machine hangs they stand still."""

    def __init__(self, machine: Machine) -> None:
        loop = machine.loop
        super().__init__(lambda seconds, call: loop.call_later(seconds + loop.delay(), call))
        self._machine = machine

    def begin(self, name: str, step: Step, every: float | None = None) -> LoopWorker:
        return super().begin(name, lambda worker: _LOOK_SECONDS if self._machine.disk_hangs else step(worker), every)


class Store(MemoryStore):
    """Has each write seen, and at times somebody in its way."""

    def __init__(self, machine: Machine, name: str, *opened: Any) -> None:
        super().__init__(machine.disk, *opened)
        self._machine, self._name = machine, name

    def write(self, batches: Sequence[Batch]) -> None:
        self._machine.loop.trace.note("sync", self._name, len(batches))
        super().write(batches)

    def write_at_once(self, batches: Sequence[Batch]) -> bool:
        if self._machine.disk_hangs or self._machine.loop.random.random() < _IN_THE_WAY:
            return False  # a disk may hang in such a write, too: then the whole process stands still, which it does by itself
        self._machine.loop.trace.note("written by the loop", self._name, len(batches))
        return super().write_at_once(batches)


class TwinStore(Store, Twin):
    """Asks a database beside the disk."""


class Instance:
    """The service on one machine, one process after the other."""

    service: Service
    server: Server
    process: Process

    def __init__(
        self,
        name: str,
        machine: Machine,
        network: Network,
        settings: Mapping[str, Any],
        database: SharedDatabase | None = None,
    ) -> None:
        """``database``: shared with others, instead of the machine's disk."""
        self.name = name
        self.database = database
        self.machine = machine
        self.network = network
        self.loop = machine.loop
        self.url = f"http://{machine.host}:{PORT}"
        self.settings = Settings(store="memory://", allowed_hosts=machine.host, advertised_url=self.url, **settings)
        self._serving: asyncio.Task[None] | None = None
        self._lives = 0
        self._stops = False

    async def start(self) -> None:
        """Begin a process over what is on the disk, and return when it takes connections, or was killed before."""
        assert self._serving is None
        self._stops = False
        self._lives += 1
        process = self.process = Process(self.name, self.machine.host)
        ready = self.loop.create_future()
        self._serving = self.loop.begin(process, self._serve(process, ready))
        process.ended = self.loop.create_future()
        await asyncio.wait([ready, self._serving, process.ended], return_when=asyncio.FIRST_COMPLETED)
        if self._serving is not None and self._serving.done():
            self._serving.result()
        self.loop.trace.note("up", self.name, self._lives)

    async def _serve(self, process: Process, ready: asyncio.Future[None]) -> None:
        workers = Workers(self.machine)
        network = self.network.reach(process)
        clock = MachineClock(self.machine)
        service = build_service(self.settings, clock, self._opener(), self.url, workers, network)
        process.remains.append(service)
        await service.start()
        server = build_server(service)
        self.service, self.server = service, server

        def listening() -> None:
            self.network.listening[self.machine.host, PORT] = process, server.connection
            ready.set_result(None)

        await server.run(None, listening, service.release, service.drain)
        self.network.listening.pop((self.machine.host, PORT), None)
        await service.stop()

    async def restore(self) -> None:
        """Have it up, whatever was being done with it."""
        if self._serving is not None:
            self.loop.resume(self.process)
            if self._stops:
                await self.loop.until_ended(self.process, self._serving)
                self._serving = None
        if self._serving is None:
            await self.start()

    @property
    def disk(self) -> Disk:
        """What it writes to."""
        return self.machine.disk if self.database is None else self.database.disk

    def _opener(self) -> Callable[[], MemoryStore]:
        if self.database is not None:
            return partial(self.database.open, self.name)
        beside = self.machine.beside
        if beside is not None:
            return lambda: TwinStore(self.machine, self.name, beside())
        return partial(Store, self.machine, self.name)

    def kill(self) -> None:
        """End the process at this moment. What it has synced is on the disk."""
        self.loop.trace.note("kill", self.name)
        self.process.kill()
        self.network.kill(self.process)
        self._serving = None

    async def stop(self) -> None:
        """Have it end in good order, unless it is killed meanwhile."""
        self.loop.trace.note("stop", self.name)
        self._stops = True
        process, serving = self.process, self._serving
        assert serving is not None
        self.loop.call_soon(self.server.stop, context=process.context.copy())
        await self.loop.until_ended(process, serving)
        self.network.kill(process)
        if self._serving is serving:
            self._serving = None
        self.loop.trace.note("stopped", self.name)

    async def hang(self, seconds: float) -> None:
        """Have it stand still for so long, as a machine that is paused does."""
        process = self.process
        self.loop.trace.note("hang", self.name, f"{seconds:.3f}")
        process.runs = False
        await asyncio.sleep(seconds)
        if process.alive:
            self.loop.trace.note("wake", self.name)
            self.loop.resume(process)

    def set_clock(self, ms: int) -> None:
        """Set the clock of its machine forward, or back."""
        self.loop.trace.note("clock", self.machine.host, ms)
        self.machine.ahead_ms += ms
