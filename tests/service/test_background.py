"""What runs in the background goes on after an error that nobody foresaw: else its work waits for a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import requests

from oncelog.errors import StorageUnavailable
from oncelog.wire.models import Settlement
from oncelog_service.atomic.upkeep import Upkeep
from oncelog_service.background import RECENT_SECONDS, Background
from oncelog_service.retention import Retention
from oncelog_service.settlement import SettlementTask
from oncelog_service.transactions.manager import TransactionManager
from tests.patience import until
from tests.world.clock import ManualClock
from tests.world.service import running_service

TASKS = {
    "retention": (Retention, "once"),
    "settlement": (SettlementTask, "once"),
    "atomic": (Upkeep, "once"),
    "transactions": (TransactionManager, "expire_due"),
    "forgetting old outcomes": (Upkeep, "forget_outcomes"),
}


def failing_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[object]:
    """Have a method fail at its first call; the calls that it got."""
    calls: list[object] = []
    real: Callable[..., Any] = getattr(owner, name)

    async def method(*given: object, **named: object) -> object:
        calls.append(given[0])
        if len(calls) == 1:
            raise ValueError("nobody thought of this")
        return await real(*given, **named)

    monkeypatch.setattr(owner, name, method)
    return calls


@pytest.mark.parametrize("task", TASKS)
def test_a_task_that_fails_goes_on_and_is_named(
    task: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running_service(retention_seconds=0.01) as service:
        calls = failing_once(monkeypatch, *TASKS[task])
        until(lambda: len(calls) > 1, f"{task} goes on")
        health = requests.get(service.url + "/healthz", timeout=30).json()
        assert (health["status"], health["failing"]) == ("failing", [task])
        assert "oncelog_background_failures_total 1.0" in requests.get(service.url + "/metrics", timeout=30).text
    told = [record for record in caplog.records if record.message.startswith(f"{task} failed")]
    assert [record.exc_info is not None for record in told] == [True]


class Ends:
    """Ends of transactions, two of them for one participant, and topics of which two cannot be told now."""

    def __init__(self) -> None:
        found = [("a", 1), ("a", 2), ("b", 3), ("c", 4)]
        self.found = [Settlement(write_pointer=pointer, participant=name, state="committed") for name, pointer in found]
        self.errors = {1: StorageUnavailable("not now"), 4: ValueError("nobody thought of this")}
        self.told: list[int] = []
        self.heard: list[int] = []
        self.without: frozenset[str] = frozenset()

    def unsettled(self) -> dict[str, list[int]]:
        return {}

    def wanted(self, without: frozenset[str]) -> None:
        self.without = without

    async def settle(self, _: str, pointer: int, committed: bool) -> None:
        self.told.append(pointer)
        if pointer in self.errors:
            raise self.errors[pointer]

    async def unacknowledged(self, *_: object, **__: object) -> list[Settlement]:
        return [each for each in self.found if each.participant not in self.without]

    async def acknowledge(self, pointer: int, _: str) -> None:
        self.heard.append(pointer)


async def test_a_participant_is_told_of_ends_in_their_order_and_not_asked_for_again_at_once_nor_holds_up_others() -> None:
    ends, clock = Ends(), ManualClock()
    task = SettlementTask(ends, ends, clock)  # type: ignore[arg-type]
    for after_ms, told in ((0, [1, 3, 4]), (0, [3]), (1_001, [1, 3]), (29_000, [1, 3, 4])):
        clock.advance(after_ms)
        assert await task.once() == 1
        assert sorted(ends.told) == told
        ends.told.clear()
    assert ends.heard == [3] * 4


def test_the_same_error_is_told_once_with_its_traceback_and_forgotten_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    background = Background(clock)
    errors = [ValueError("a"), ValueError("a"), ValueError("b")]

    async def run() -> None:
        if errors:
            raise errors.pop(0)

    asyncio.run(background.keep("some work", run))
    assert [record.exc_info is not None for record in caplog.records] == [True, False, True]
    assert (background.failures, background.failing) == (3, ["some work"])
    clock.advance(int(RECENT_SECONDS * 1000))
    assert background.failing == []
