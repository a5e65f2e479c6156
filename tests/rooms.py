"""Count what a reader of one call has to know: its rooms, its stays, its mechanisms, and how often its method is written down.

A *room* is a module of the product. A *stay* is a stretch of calls within one room, thread by thread; a stay in a room that was
visited before is a *return*. A *mechanism* is a means by which a room waits, wakes, guards or is called back: a lock, a future, a
thread, a task, a hook. ``make rooms`` measures the calls that people make most; ``ARGS=--long`` names what was counted.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from oncelog import AsyncClient, AsyncProducer, Client, Producer
from oncelog.wire.requests import ConsumeRequest, PublishRequest
from oncelog_service.storage.memory import Disk
from tests.service.house import opened
from tests.world.service import running_service

ROOT = Path(__file__).resolve().parents[1]
SDK = ROOT / "sdk" / "oncelog"
PRODUCT = (SDK, ROOT / "service" / "oncelog_service", ROOT / "dedup" / "oncelog_dedup")

MODULES = {
    "_thread",
    "asyncio",
    "atexit",
    "concurrent.futures",
    "contextvars",
    "queue",
    "select",
    "signal",
    "threading",
    "weakref",
}
"""Their members are mechanisms, but for constants, errors and these questions:"""
QUESTIONS = {"AbstractEventLoop", "current_task", "current_thread", "get_ident", "get_running_loop", "main_thread"}
MECHANISMS = {"os.register_at_fork"}
"""What other modules have of them."""


MADE = "# Made from "
"""With which files begin that a script has made (sdk/faces.py)."""


class Walk(NamedTuple):
    """What one call went through."""

    rooms: set[Path]
    stays: int
    calls: int
    depth: int
    """The most functions of the product that were open at once, on one thread."""

    @property
    def returns(self) -> int:
        return self.stays - len(self.rooms)


class Walking:
    """Notes each call into a room. Threads are followed that were started after :meth:`followed` began."""

    def __init__(self, *where: Path) -> None:
        """``where``: folders whose modules are rooms."""
        self._where = tuple(f"{folder}/" for folder in where)
        self._on = False
        self._ways: dict[int, list[tuple[str, int]]] = {}
        """Of each thread: the rooms in their order, with how deep each call was."""
        self._open: dict[int, int] = {}

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        room = frame.f_code.co_filename
        if not self._on or event not in ("call", "return") or not room.startswith(self._where):
            return
        thread = threading.get_ident()
        depth = self._open[thread] = max(0, self._open.get(thread, 0) + (1 if event == "call" else -1))
        if event == "call":
            self._ways.setdefault(thread, []).append((room, depth))

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow this thread, and every one that is started meanwhile; nothing is noted yet."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]  # which is how it is taken away

    def of(self, call: Callable[[], object]) -> Walk:
        """Make the call, and return what it went through."""
        with self._noted():
            call()
        return self._walk()

    async def awaited(self, call: Awaitable[object]) -> Walk:
        """The same of what is awaited."""
        with self._noted():
            await call
        return self._walk()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        self._ways, self._open, self._on = {}, {}, True
        try:
            yield
        finally:
            self._on = False

    def _walk(self) -> Walk:
        ways = list(self._ways.values())
        stays = sum(1 for way in ways for at, (room, _) in enumerate(way) if not at or way[at - 1][0] != room)
        every = [call for way in ways for call in way]
        return Walk({Path(room) for room, _ in every}, stays, len(every), max((depth for _, depth in every), default=0))


@cache
def mechanisms(path: Path) -> set[str]:
    """Name the mechanisms that a room uses. What is only said of types does not count."""
    tree, known, found = ast.parse(path.read_text("utf-8")), dict[str, str](), set[str]()
    notes = [getattr(node, each, None) for node in ast.walk(tree) for each in ("annotation", "returns")]
    passed_over = {id(inner) for note in notes if isinstance(note, ast.AST) for inner in ast.walk(note)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known.update((each.asname or each.name, each.name) for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            known.update((each.asname or each.name, f"{node.module}.{each.name}") for each in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and id(node) not in passed_over:
            begin, *rest = ast.unparse(node).split(".")
            name = ".".join([known.get(begin, ""), *rest])
            module, _, member = name.rpartition(".")
            is_one = module in MODULES and name not in MODULES and member not in QUESTIONS
            if name in MECHANISMS or (is_one and not member.isupper() and not member.endswith("Error")):
                found.add(name)
    return found


def signatures(method: str, *twins: type) -> int:
    """Count how often a method is written down in the classes of the twins and in their bases; overloads, too. Not where a script
    has made the class from another one."""
    count = 0
    for kind in {base for twin in twins for base in twin.__mro__ if base.__module__ in sys.modules and base is not object}:
        if Path(inspect.getfile(kind)).read_text("utf-8").startswith(MADE):
            continue
        found = ast.parse(textwrap.dedent(inspect.getsource(kind)))
        count += sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == method for node in ast.walk(found))
    return count


# --- what is measured


def of_the_sdk() -> dict[str, Walk]:
    """Measure a send of a named producer and a poll, of both twins, in the rooms of the SDK."""
    walks: dict[str, Walk] = {}
    with running_service() as service, Client(service.url) as client:
        client.create_topic("t")
        client.publish("t", PublishRequest([b"0"]))  # what the service starts for the first one goes on unseen
        walking = Walking(SDK)
        with walking.followed(), Client(service.url) as client, Producer("t", name="a", client=client) as producer:
            for _ in range(2):  # some things are done for the first one alone
                walks["Producer.send"] = walking.of(lambda: producer.send(b"1"))
                walks["Client.poll"] = walking.of(lambda: client.poll("t", ConsumeRequest()))

        async def alike() -> None:
            async with AsyncClient(service.url) as client, AsyncProducer("t", name="b", client=client) as producer:
                for _ in range(2):
                    walks["AsyncProducer.send"] = await walking.awaited(producer.send(b"1"))
                    walks["AsyncClient.poll"] = await walking.awaited(client.poll("t", ConsumeRequest()))

        with walking.followed():
            asyncio.run(alike())
    return walks


def of_the_log() -> dict[str, Walk]:
    """Measure the publish of a named producer to an open topic, with the writer's part, in all rooms of the product."""
    walking = Walking(*PRODUCT)

    async def published() -> Walk:
        async with opened(Disk()) as house:
            epoch = (await house.log.producers.open("p", "n", "allow")).epoch
            for number in range(2):
                walk = await walking.awaited(house.log.publish(PublishRequest([b"1"], "p", epoch, [number])))
            return walk

    with walking.followed():
        return {"TopicLog.publish": asyncio.run(published())}


TWINS = {"send": (Producer, AsyncProducer), "poll": (Client, AsyncClient)}


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    walks = of_the_sdk() | of_the_log()
    used = {name: set[str]().union(*map(mechanisms, walk.rooms)) for name, walk in walks.items()}
    print(f"{'call':20} rooms stays returns calls depth mechanisms")
    for name, walk in walks.items():
        print(f"{name:20} {len(walk.rooms):5} {walk.stays:5} {walk.returns:7} {walk.calls:5} {walk.depth:5} {len(used[name]):10}")
    for method, twins in TWINS.items():
        names = [f"{twin.__name__}.{method}" for twin in twins]
        both = set[str]().union(*(used[name] for name in names))
        print(f"{' and '.join(names)}: {len(both)} mechanisms, {signatures(method, *twins)} signatures")
    if "--long" in arguments:
        for name, walk in walks.items():
            print(f"\n{name}:", *(f"  {room.relative_to(ROOT)}" for room in sorted(walk.rooms)), sep="\n")
            print("  mechanisms:", ", ".join(sorted(used[name])))


if __name__ == "__main__":
    main(sys.argv[1:])
