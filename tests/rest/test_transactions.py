"""The addresses of the transaction service: what they answer. Its rules are those of tests/transactions."""

from __future__ import annotations

import asyncio
import re
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any
from urllib.parse import quote

import pytest
import requests

from oncelog.wire.media import JSON, THRIFT
from oncelog.wire.transaction import Transaction, TransactionType
from oncelog_service.service import Service
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.transactions.manager import TransactionManager
from tests.patience import until
from tests.rest.talk import GOLDEN, TIMEOUT, Calls, assert_problem
from tests.world.clock import ManualClock
from tests.world.disk import Gate
from tests.world.service import RunningService, running_service

HERE = "0123456789abcdef"
TOPIC = f"{HERE}:default/t/1"


class Transactions(Calls):
    """The transaction service of a running one."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "/v1/transactions")

    def post(self, path: str = "", **body: Any) -> requests.Response:
        return self.request("POST", path, **({"json": body} if body else {}))

    def start(self, **asked: Any) -> int:
        pointer: int = self.good("POST", "", json=asked)["writePointer"]
        return pointer

    def end(self, pointer: int, how: str, **body: Any) -> dict[str, Any]:
        status: dict[str, Any] = self.good("POST", f"/{pointer}/{how}", json=body)
        return status

    def state(self, pointer: int) -> str:
        found: str = self.good("GET", f"/{pointer}")["state"]
        return found

    def listed(self, **query: Any) -> list[int]:
        return [each["writePointer"] for each in self.good("GET", "", params=query)]

    def unacknowledged(self, **query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.good("GET", "/unacknowledged", params={"storeId": HERE, **query})
        return found


@pytest.fixture(params=["in the service", "behind a URL"])
def running(request: pytest.FixtureRequest) -> Iterator[RunningService]:
    """Nobody can tell where the transaction service runs."""
    with running_service() as service:
        if request.param == "in the service":
            yield service
        else:
            with running_service(transactions_url=service.url) as beside:
                yield beside


@pytest.fixture
def transactions(running: RunningService) -> Transactions:
    return Transactions(running.url)


def test_a_start_answers_what_the_transaction_sees(transactions: Transactions) -> None:
    first = transactions.post().json()
    second = transactions.post(type="long").json()
    pointer, own = first["writePointer"], second["writePointer"]
    assert (first["transactionId"], second["transactionId"]) == (pointer, own)
    assert own > pointer >= time.time_ns() // 10**6 * 10**6 - 60 * 10**9
    said = {"type": "long", "inProgress": [pointer], "firstShort": pointer, "visibilityLevel": "snapshot", "invalids": []}
    assert {name: second[name] for name in (*said, "checkpointWritePointers")} == {**said, "checkpointWritePointers": []}
    seen = Transaction.from_bytes(bytes.fromhex(second["transaction"]))
    assert seen == Transaction(own, second["readPointer"], (), (pointer,), pointer, TransactionType.LONG, own)


def test_a_start_answers_the_thrift_that_tephra_writes_where_that_is_accepted(transactions: Transactions) -> None:
    """The golden example of Tephra's bytes, with the pointers of this service put in."""
    before = transactions.start()
    answer = transactions.request("POST", headers={"accept": THRIFT})
    assert answer.headers["content-type"] == THRIFT
    (pointer,) = struct.unpack_from(">q", answer.content, 3)
    (reads,) = struct.unpack_from(">q", answer.content, 14)
    expected = bytearray(GOLDEN)
    for at, value in ((3, pointer), (14, reads), (38, before), (49, before), (67, pointer)):
        struct.pack_into(">q", expected, at, value)
    assert answer.content == bytes(expected)
    assert pointer > before > reads
    for media, accepts in {THRIFT: (f"{JSON}, {THRIFT};q=0.5", THRIFT.upper()), JSON: ("", "*/*", f"{THRIFT}.json")}.items():
        for accept in accepts:
            for path in ("", f"/{before}/checkpoint"):
                assert transactions.request("POST", path, headers={"accept": accept}).headers["content-type"] == media


def test_the_calls_of_a_transaction(transactions: Transactions) -> None:
    pointer, other, third = transactions.start(timeoutMs=60_000), transactions.start(), transactions.start()
    shown = transactions.good("GET", f"/{pointer}")
    assert (shown["state"], shown["type"]) == ("in_progress", "short")
    assert abs(shown["expiresMs"] - shown["startedMs"] - 60_000) < 30_000
    further = transactions.post(f"/{pointer}/checkpoint").json()
    assert further["checkpointWritePointers"] == [further["writePointer"]]
    assert transactions.good("GET", f"/{further['writePointer']}")["checkpoints"] == [further["writePointer"]]
    keys = {"changes": ["\x00\xff", "k"]}
    assert transactions.end(pointer, "can-commit", **keys)["storeId"] == shown["storeId"] != ""
    for _ in range(2):
        committed = transactions.end(pointer, "commit")
        assert (committed["writePointer"], committed["state"], committed["expiresMs"]) == (pointer, "committed", None)
    for how in ("abort", "invalidate", "can-commit", "checkpoint"):
        problem = assert_problem(transactions.post(f"/{pointer}/{how}"), 409, "transaction_not_in_progress")
        assert (problem["write_pointer"], problem["state"]) == (pointer, "committed")
    for how in ("can-commit", "commit"):
        problem = assert_problem(transactions.post(f"/{other}/{how}", changes=["\x00\xff"]), 409, "transaction_conflict")
        assert (problem["write_pointer"], problem["conflicts_with"]) == (other, pointer)
    for ended, how, state in ((other, "abort", "aborted"), (third, "invalidate", "invalid")):
        for _ in range(2):
            assert transactions.end(ended, how)["state"] == state == transactions.state(ended)
    states = transactions.good("POST", "/states", json={"writePointers": [pointer, other, third, 5, 5]})
    assert states == {str(pointer): "committed", str(other): "aborted", str(third): "invalid"}


def test_a_prepared_transaction_is_left_to_the_database_that_decides(transactions: Transactions) -> None:
    open_, prepared, invalid = (transactions.start() for _ in range(3))
    transactions.end(prepared, "can-commit", resource="postgresql://bank")
    shown = transactions.good("GET", f"/{prepared}")
    assert (shown["resource"], shown["state"]) == ("postgresql://bank", "in_progress")
    assert abs(shown["expiresMs"] - shown["startedMs"] - 90_000_000) < 500_000, "the maximum lifetime"
    transactions.end(invalid, "invalidate")
    assert transactions.end(open_, "abort", unlessPrepared=True)["state"] == "aborted"
    assert transactions.end(invalid, "abort", unlessPrepared=True)["state"] == "invalid"
    problem = assert_problem(transactions.post(f"/{prepared}/abort", unlessPrepared=True), 409, "transaction_prepared")
    assert problem["write_pointer"] == prepared
    assert transactions.end(prepared, "commit")["state"] == "committed"


def test_transactions_time_out_and_are_counted(clock: ManualClock) -> None:
    async def expire(service: Service) -> int:
        assert isinstance(service.opening.transactions, TransactionManager)
        return await service.opening.transactions.expire_due()

    with running_service(clock=clock) as service:
        transactions = Transactions(service.url)
        short, default, long = transactions.start(timeoutMs=1_000), transactions.start(), transactions.start(type="long")
        committed, *aborted = (transactions.start(timeoutMs=60_000) for _ in range(4))
        transactions.end(committed, "commit")
        for pointer in aborted:
            transactions.end(pointer, "abort")
        clock.advance(30_000)
        service.on_loop(expire)
        assert transactions.listed(state="invalid") == [short, default]
        assert transactions.listed() == [long]
        text = transactions.session.get(service.url + "/metrics", timeout=TIMEOUT).text
        values = dict(re.findall(r"^oncelog_transactions_(\w+) ([\d.]+)$", text, re.MULTILINE))
        assert {name: float(value) for name, value in values.items()} == {
            "reachable": 1,
            "in_progress": 1,
            "invalid": 2,
            "started_total": 7,
            "committed_total": 1,
            "aborted_total": 3,
            "timed_out_total": 2,
        }


def test_lists_are_paged_and_invalid_ones_are_pruned(transactions: Transactions) -> None:
    started = [transactions.start() for _ in range(5)]
    for pointer in started[2:4]:
        transactions.end(pointer, "invalidate")
    assert transactions.listed() == [started[0], started[1], started[4]]
    assert transactions.listed(limit=2) == started[:2]
    assert transactions.listed(after=started[1]) == started[4:]
    assert transactions.listed(state="invalid") == transactions.post().json()["invalids"] == started[2:4]
    assert transactions.good("POST", "/prune", json={"writePointers": [started[2], 17]}) == {"pruned": 1}
    assert transactions.good("POST", "/prune", json={"beforeMs": 0}) == {"pruned": 0}
    assert transactions.good("POST", "/prune", json={"beforeMs": int(time.time() * 1000) + 60_000}) == {"pruned": 1}
    assert transactions.post().json()["invalids"] == []
    assert transactions.state(started[2]) == "invalid", "its outcome is not forgotten"


def test_an_end_waits_until_its_participants_have_acknowledged_it(transactions: Transactions, running: RunningService) -> None:
    own = transactions.good("GET", f"/{transactions.start()}")["storeId"]
    pointer, *others = (transactions.start() for _ in range(5))
    for _ in range(2):
        assert transactions.good("POST", f"/{pointer}/participants", json={"participant": TOPIC})["enlisted"] is True
    assert transactions.good("POST", "/5/participants", json={"participant": TOPIC}) == {"enlisted": False, "owner": None}
    assert transactions.good("GET", f"/{pointer}")["participants"] == [TOPIC]
    assert transactions.unacknowledged() == []
    abort = running.service.opening.transactions.abort
    running.loop.call_soon_threadsafe(running.loop.call_later, 0.1, lambda: asyncio.ensure_future(abort(pointer)))
    assert transactions.unacknowledged(wait=60_000) == [{"writePointer": pointer, "state": "aborted", "participant": TOPIC}]
    assert transactions.post().json()["invalids"] == [pointer], "nobody sees it before it is rolled back"
    for _ in range(2):
        assert transactions.good("DELETE", f"/{pointer}/participants/{quote(TOPIC, safe='')}") is None
    until(lambda: transactions.unacknowledged() == transactions.post().json()["invalids"] == [])
    # Anyone may enlist under the service's own name: the task that notifies topics once ended for good at what is no topic.
    for other, name in zip(others, ("x", "a/b", "a/b/c", "a/b/1"), strict=True):
        transactions.good("POST", f"/{other}/participants", json={"participant": f"{own}:{name}"})
        transactions.end(other, "invalidate")
    for other in others:
        until(lambda: not transactions.good("GET", f"/{other}").get("participants"), "it is acknowledged")  # noqa: B023


def test_an_enlisting_is_answered_when_it_is_on_disk() -> None:
    """A participant writes to a store of its own next, which knows nothing of the order of this one's writes."""
    disk = Disk()
    with running_service(open_store=lambda: MemoryStore(disk)) as service, ThreadPoolExecutor(1) as pool:
        transactions = Transactions(service.url)
        path = f"/{transactions.start()}/participants"
        disk.before_sync = gate = Gate(None)
        enlisting = pool.submit(transactions.good, "POST", path, json={"participant": TOPIC})
        assert gate.entered.wait(TIMEOUT)
        try:
            assert wait([enlisting], 0.2).not_done
        finally:
            gate.opened.set()
        assert enlisting.result(TIMEOUT)["enlisted"] is True
