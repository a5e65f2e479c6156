"""The disk of the simulated world: a write is not there before it is completed, and never in part; an older one comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from oncelog_service.group_commit import Writer
from oncelog_service.storage.memory import MemoryStore
from oncelog_service.storage.port import Batch, Table
from tests.world.clock import ManualClock
from tests.world.disk import LateDisk, LateStore
from tests.world.workers import LoopWorkers


def batch(*names: str) -> Batch:
    one = Batch()
    for name in names:
        one.put(Table.MESSAGE, name.encode(), b"")
    return one


def there(disk: LateDisk) -> str:
    rows = MemoryStore(disk).scan(Table.MESSAGE, b"", b"~")
    return "".join(key.decode() for key, _ in rows)


async def test_between_a_write_and_its_report_nobody_reads_it_and_a_cut_leaves_all_of_it_or_nothing() -> None:
    disk, events = LateDisk(), list[Callable[[], None]]()

    def after(seconds: float, call: Callable[[], None]) -> asyncio.Handle:
        events.append(call)
        return asyncio.get_running_loop().call_soon(lambda: None)

    writer = Writer(LateStore(disk), lambda _: None, clock=ManualClock(), workers=LoopWorkers(after, disk.complete))
    first = writer.submit(batch("a", "b"))
    events.pop(0)()  # the step
    assert (there(disk), there(disk.cut(False)), there(disk.cut(True)), first.done()) == ("", "", "ab", False)
    second = writer.submit(batch("c"))
    events.pop(0)()  # the report
    assert (there(disk), there(disk.cut(False)), first.done()) == ("ab", "ab", True)
    events.pop(0)()
    assert (there(disk), second.done()) == ("ab", False)
    events.pop(0)()
    assert (there(disk), second.done()) == ("abc", True)
    assert [there(disk.older(writes)) for writes in range(4)] == ["abc", "ab", "", ""]
