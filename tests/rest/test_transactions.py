"""The addresses of the transaction service: what they answer, and that whatever is wrong with a request is a definite 4xx."""

from __future__ import annotations

import asyncio
import re
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from oncelog.wire.media import JSON, THRIFT
from oncelog.wire.transaction import Transaction, TransactionType
from oncelog_service.rest.table import TRANSACTION_ROUTES
from oncelog_service.service import Service
from oncelog_service.transactions.manager import TransactionManager
from tests.patience import until
from tests.rest.talk import TIMEOUT, assert_problem
from tests.support import ManualClock, RunningService, running_service

HERE = "0123456789abcdef"
TOPIC = f"{HERE}:default/t/1"


class Transactions:
    """The transaction service of a running one."""

    def __init__(self, url: str) -> None:
        self.root = url + "/v1/transactions"
        self.session = requests.Session()
        self.session.trust_env = False

    def request(self, method: str, path: str = "", **options: Any) -> requests.Response:
        return self.session.request(method, self.root + path, timeout=TIMEOUT, **options)

    def post(self, path: str = "", **body: Any) -> requests.Response:
        return self.request("POST", path, **({"json": body} if body else {}))

    def good(self, method: str, path: str, **options: Any) -> Any:
        answer = self.request(method, path, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def start(self, **asked: Any) -> int:
        answer = self.post(**asked)
        assert answer.status_code == 200, answer.text
        pointer: int = answer.json()["writePointer"]
        return pointer

    def end(self, pointer: int, how: str) -> dict[str, Any]:
        status: dict[str, Any] = self.good("POST", f"/{pointer}/{how}")
        return status

    def state(self, pointer: int) -> str:
        found: str = self.good("GET", f"/{pointer}")["state"]
        return found

    def listed(self, **query: Any) -> list[int]:
        return [each["writePointer"] for each in self.good("GET", "", params=query)]


@pytest.fixture(params=["in the service", "behind a URL"])
def running(request: pytest.FixtureRequest) -> Iterator[RunningService]:
    """Whoever asks cannot tell where the transaction service runs."""
    with running_service() as service:
        if request.param == "in the service":
            yield service
        else:
            with running_service(transactions_url=service.url) as beside:
                yield beside


@pytest.fixture
def transactions(running: RunningService) -> Transactions:
    return Transactions(running.url)


@pytest.fixture(scope="module")
def refusing(shared: RunningService) -> Iterator[Transactions]:
    """Of one service for all refusals, none of which leaves a transaction behind."""
    transactions = Transactions(shared.url)
    yield transactions
    assert transactions.listed() == []
    assert transactions.session.get(shared.url + "/healthz", timeout=TIMEOUT).status_code == 200


# --- the life of a transaction ------------------------------------------------------------------------------------------


def test_a_start_answers_what_the_transaction_sees(transactions: Transactions) -> None:
    first = transactions.post().json()
    second = transactions.post(type="long").json()
    assert first["transactionId"] == first["writePointer"]
    assert (first["type"], second["type"]) == ("short", "long")
    assert second["inProgress"] == [first["writePointer"]]
    assert second["firstShort"] == first["writePointer"]
    assert second["writePointer"] > first["writePointer"] >= time.time_ns() // 10**6 * 10**6 - 60 * 10**9
    assert second["visibilityLevel"] == "snapshot"
    assert (second["invalids"], second["checkpointWritePointers"]) == ([], [])
    seen = Transaction.from_bytes(bytes.fromhex(second["transaction"]))
    assert (seen.transaction_id, seen.read_pointer) == (second["transactionId"], second["readPointer"])
    assert (list(seen.in_progress), seen.first_short, seen.type) == (second["inProgress"], second["firstShort"], 2)


@pytest.mark.parametrize("accept", [THRIFT, f"{JSON}, {THRIFT};q=0.5", THRIFT.upper()])
def test_a_start_answers_thrift_where_that_is_accepted(transactions: Transactions, accept: str) -> None:
    before = transactions.start()
    for path in ("", f"/{transactions.start()}/checkpoint"):
        answer = transactions.request("POST", path, headers={"accept": accept})
        assert answer.headers["content-type"] == THRIFT
        transaction = Transaction.from_bytes(answer.content)
        assert before in transaction.in_progress
        assert transaction.type is TransactionType.SHORT
        assert transaction.to_bytes() == answer.content


def test_the_thrift_answer_is_the_one_that_tephra_writes(transactions: Transactions) -> None:
    """CONTRACT §8.4, its golden example with the pointers of this service put in."""
    before = transactions.start()
    answer = transactions.request("POST", headers={"accept": THRIFT}).content
    golden = bytes.fromhex(
        "0a000100000000000000030a000200000000000000030f00030a000000000f00040a0000000100000000000000020a0005000000000000000208"
        "0006000000010a000700000000000000030f00080a000000000800090000000100"
    )
    (pointer,) = struct.unpack_from(">q", answer, 3)
    (reads,) = struct.unpack_from(">q", answer, 14)
    expected = bytearray(golden)
    for at, value in ((3, pointer), (14, reads), (38, before), (49, before), (67, pointer)):
        struct.pack_into(">q", expected, at, value)
    assert answer == bytes(expected)
    assert pointer > before > reads


@pytest.mark.parametrize("accept", ["", "*/*", JSON, "application/vnd.apache.thrift.json"])
def test_a_start_answers_json_otherwise(transactions: Transactions, accept: str) -> None:
    assert transactions.request("POST", headers={"accept": accept}).headers["content-type"] == JSON


def test_a_transaction_is_committed_once_however_often_it_is_asked_for(transactions: Transactions) -> None:
    pointer = transactions.start(timeoutMs=60_000)
    shown = transactions.good("GET", f"/{pointer}")
    assert (shown["state"], shown["type"]) == ("in_progress", "short")
    assert abs(shown["expiresMs"] - shown["startedMs"] - 60_000) < 30_000
    answered = transactions.good("POST", f"/{pointer}/can-commit", json={"changes": ["k"]})
    assert answered["storeId"] == transactions.good("GET", f"/{pointer}")["storeId"] != ""
    for _ in range(2):
        committed = transactions.end(pointer, "commit")
        assert (committed["writePointer"], committed["state"], committed["expiresMs"]) == (pointer, "committed", None)
    assert transactions.state(pointer) == "committed"
    for how in ("abort", "invalidate", "can-commit", "checkpoint"):
        problem = assert_problem(transactions.post(f"/{pointer}/{how}"), 409, "transaction_not_in_progress")
        assert (problem["write_pointer"], problem["state"]) == (pointer, "committed")


@pytest.mark.parametrize(("how", "state"), [("abort", "aborted"), ("invalidate", "invalid")])
def test_a_transaction_is_undone_once_however_often_it_is_asked_for(transactions: Transactions, how: str, state: str) -> None:
    pointer = transactions.start()
    for _ in range(2):
        assert transactions.end(pointer, how)["state"] == state
    problem = assert_problem(transactions.post(f"/{pointer}/commit"), 409, "transaction_not_in_progress")
    assert problem["state"] == transactions.state(pointer) == state
    assert transactions.listed() == []


def test_of_two_that_changed_the_same_key_exactly_one_commits(transactions: Transactions) -> None:
    first, second, third = (transactions.start() for _ in range(3))
    keys = ["\x00\xff", "b"]
    transactions.good("POST", f"/{first}/can-commit", json={"changes": keys})
    transactions.good("POST", f"/{third}/can-commit", json={"changes": ["c"]})
    transactions.end(first, "commit")
    for how in ("can-commit", "commit"):
        problem = assert_problem(transactions.post(f"/{second}/{how}", changes=["\x00\xff"]), 409, "transaction_conflict")
        assert (problem["write_pointer"], problem["conflicts_with"]) == (second, first)
    transactions.end(second, "abort")
    transactions.end(third, "commit")
    again = transactions.start()
    assert transactions.good("POST", f"/{again}/commit", json={"changes": keys})["state"] == "committed"


def test_a_prepared_transaction_names_the_database_that_decides(transactions: Transactions) -> None:
    pointer = transactions.start(timeoutMs=1_000)
    transactions.good("POST", f"/{pointer}/can-commit", json={"changes": ["k"], "resource": "postgresql://bank"})
    shown = transactions.good("GET", f"/{pointer}")
    assert (shown["resource"], shown["state"]) == ("postgresql://bank", "in_progress")
    assert abs(shown["expiresMs"] - shown["startedMs"] - 90_000_000) < 500_000, "the maximum lifetime"
    assert transactions.end(pointer, "commit")["state"] == "committed"


def test_an_abort_unless_prepared_leaves_a_prepared_one_to_its_database_and_an_invalid_one_invalid(
    transactions: Transactions,
) -> None:
    open_, prepared, invalid = (transactions.start() for _ in range(3))
    transactions.good("POST", f"/{prepared}/can-commit", json={"resource": "bank"})
    transactions.end(invalid, "invalidate")
    asked = {"unlessPrepared": True}
    assert transactions.good("POST", f"/{open_}/abort", json=asked)["state"] == "aborted"
    assert transactions.good("POST", f"/{invalid}/abort", json=asked)["state"] == "invalid"
    problem = assert_problem(transactions.post(f"/{prepared}/abort", **asked), 409, "transaction_prepared")
    assert (problem["write_pointer"], problem["definite"]) == (prepared, True)
    assert transactions.end(prepared, "commit")["state"] == "committed"
    assert_problem(transactions.post(f"/{prepared}/abort", unlessCommitted=True), 400, "invalid_request")


def test_a_checkpoint_is_a_further_pointer_of_the_same_transaction(transactions: Transactions) -> None:
    pointer = transactions.start()
    answer = transactions.post(f"/{pointer}/checkpoint").json()
    further = answer["writePointer"]
    assert further > pointer == answer["transactionId"]
    assert answer["checkpointWritePointers"] == [further]
    shown = transactions.good("GET", f"/{further}")
    assert (shown["writePointer"], shown["checkpoints"]) == (pointer, [further])
    transactions.end(pointer, "commit")
    assert transactions.state(further) == "committed"


def test_a_transaction_that_times_out_is_invalid() -> None:
    clock = ManualClock()
    with running_service(clock=clock) as service:
        transactions = Transactions(service.url)
        short, default, long = transactions.start(timeoutMs=1_000), transactions.start(), transactions.start(type="long")
        clock.advance(1_000)
        until(lambda: transactions.state(short) == "invalid")
        assert (transactions.state(default), transactions.state(long)) == ("in_progress", "in_progress")
        clock.advance(29_000)
        expire_now(service)
        assert transactions.state(default) == "invalid"
        assert transactions.state(long) == "in_progress"
        assert transactions.listed(state="invalid") == [short, default]
        clock.advance(90_000_000)
        expire_now(service)
        assert transactions.state(long) == "invalid"


def expire_now(running: RunningService) -> None:
    async def expire(service: Service) -> int:
        assert isinstance(service.transactions, TransactionManager)
        return await service.transactions.expire_due()

    running.on_loop(expire)


def test_transactions_are_counted() -> None:
    clock = ManualClock()
    with running_service(clock=clock) as service:
        transactions = Transactions(service.url)
        pointers = [transactions.start() for _ in range(6)]
        transactions.end(pointers[0], "commit")
        for pointer in pointers[1:3]:
            transactions.end(pointer, "abort")
        transactions.end(pointers[3], "invalidate")
        clock.advance(30_000)
        expire_now(service)
        transactions.start()
        text = transactions.session.get(service.url + "/metrics", timeout=TIMEOUT).text
        values = dict(re.findall(r"^oncelog_transactions_(\w+) ([\d.]+)$", text, re.MULTILINE))
        assert {name: float(value) for name, value in values.items()} == {
            "reachable": 1,
            "in_progress": 1,
            "invalid": 3,
            "started_total": 7,
            "committed_total": 1,
            "aborted_total": 2,
            "timed_out_total": 2,
        }


# --- lists --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 1000])
def test_paging_lists_every_transaction_once(transactions: Transactions, limit: int) -> None:
    started = [transactions.start() for _ in range(5)]
    transactions.end(started[2], "invalidate")
    transactions.end(started[3], "commit")
    found: list[int] = []
    while page := transactions.listed(after=found[-1] if found else 0, limit=limit):
        assert len(page) <= limit
        found += page
    assert found == [started[0], started[1], started[4]]
    assert transactions.listed(state="invalid") == [started[2]]


def test_invalid_ones_are_handed_to_new_transactions_until_they_are_pruned(transactions: Transactions) -> None:
    invalid = [transactions.start() for _ in range(3)]
    for pointer in invalid:
        transactions.end(pointer, "invalidate")
    assert transactions.post().json()["invalids"] == invalid
    assert transactions.good("POST", "/prune", json={"writePointers": [invalid[1], 17]}) == {"pruned": 1}
    assert transactions.post().json()["invalids"] == [invalid[0], invalid[2]]
    assert transactions.good("POST", "/prune", json={"beforeMs": 0}) == {"pruned": 0}
    assert transactions.good("POST", "/prune", json={"beforeMs": int(time.time() * 1000) + 60_000}) == {"pruned": 2}
    assert transactions.post().json()["invalids"] == []
    assert transactions.state(invalid[0]) == "invalid", "its outcome is not forgotten"


def test_the_states_of_many_are_answered_at_once_and_foreign_ones_left_out(transactions: Transactions) -> None:
    committed, aborted, open_ = (transactions.start() for _ in range(3))
    transactions.end(committed, "commit")
    transactions.end(aborted, "abort")
    found = transactions.good("POST", "/states", json={"writePointers": [committed, aborted, open_, 5, 5]})
    assert found == {str(committed): "committed", str(aborted): "aborted", str(open_): "in_progress"}
    assert transactions.good("POST", "/states", json={"writePointers": []}) == {}


def test_a_start_with_ten_thousand_invalid_ones_answers_them_all() -> None:
    async def make_invalid(service: Service) -> list[int]:
        pointers: list[int] = []
        for _ in range(100):
            begun = await asyncio.gather(*(service.transactions.start(TransactionType.SHORT) for _ in range(100)))
            pointers += [each.write_pointer for each in begun]
            await asyncio.gather(*(service.transactions.invalidate(pointer) for pointer in pointers[-100:]))
        return pointers

    with running_service() as service, running_service(transactions_url=service.url) as beside:
        pointers = sorted(service.on_loop(make_invalid))
        for url in (service.url, beside.url):
            answer = Transactions(url).request("POST", headers={"accept": THRIFT})
            assert list(Transaction.from_bytes(answer.content).invalids) == pointers
            assert Transactions(url).post().json()["invalids"] == pointers


# --- participants -------------------------------------------------------------------------------------------------------


def test_a_participant_is_told_of_the_end_until_it_has_settled(transactions: Transactions) -> None:
    pointer = transactions.start()
    for _ in range(2):
        assert transactions.good("POST", f"/{pointer}/participants", json={"participant": TOPIC}) == {"enlisted": True}
    assert transactions.good("GET", f"/{pointer}")["participants"] == [TOPIC]
    assert transactions.good("GET", "/unsettled", params={"instance": HERE}) == []
    transactions.end(pointer, "abort")
    waiting = [{"writePointer": pointer, "state": "aborted", "participant": TOPIC}]
    assert transactions.good("GET", "/unsettled", params={"instance": HERE, "wait": 1_000}) == waiting
    assert transactions.good("GET", "/unsettled", params={"instance": "another"}) == []
    assert transactions.post().json()["invalids"] == [pointer], "nobody sees it before it is marked"
    for _ in range(2):
        settle(transactions, pointer, TOPIC)
    until(lambda: transactions.good("GET", "/unsettled", params={"instance": HERE}) == [])
    assert transactions.post().json()["invalids"] == []
    assert transactions.state(pointer) == "aborted"


def settle(transactions: Transactions, pointer: int, participant: str) -> None:
    name = requests.utils.quote(participant, safe="")  # type: ignore[attr-defined]
    assert transactions.good("DELETE", f"/{pointer}/participants/{name}") is None


def test_a_participant_that_is_no_topic_has_nothing_to_settle_and_stops_nobody(
    transactions: Transactions, running: RunningService
) -> None:
    """Anybody may enlist under the service's own name: the task that tells topics how transactions ended died of it for good."""
    own = running.service.transactions._instance  # type: ignore[union-attr]
    pointers = [transactions.start() for _ in range(4)]
    for pointer, name in zip(pointers, ("x", "a/b", "a/b/c", "a/b/1"), strict=True):
        transactions.good("POST", f"/{pointer}/participants", json={"participant": f"{own}:{name}"})
        transactions.end(pointer, "invalidate")
    for pointer in pointers:
        until(lambda: not transactions.good("GET", f"/{pointer}").get("participants"), "it is settled")  # noqa: B023


def test_a_wait_for_unsettled_ones_ends_when_there_is_one(transactions: Transactions, running: RunningService) -> None:
    pointer = transactions.start()
    transactions.good("POST", f"/{pointer}/participants", json={"participant": TOPIC})
    running.loop.call_soon_threadsafe(
        running.loop.call_later, 0.1, lambda: asyncio.ensure_future(running.service.transactions.abort(pointer))
    )
    began = time.monotonic()
    found = transactions.good("GET", "/unsettled", params={"instance": HERE, "wait": 60_000})
    assert [each["writePointer"] for each in found] == [pointer]
    assert time.monotonic() - began < 30


def test_nobody_joins_what_has_ended_and_foreign_pointers_are_said_to_be_so(transactions: Transactions) -> None:
    pointer = transactions.start()
    transactions.end(pointer, "commit")
    problem = assert_problem(transactions.post(f"/{pointer}/participants", participant=TOPIC), 409, "transaction_not_in_progress")
    assert problem["state"] == "committed"
    assert transactions.good("POST", "/12345/participants", json={"participant": TOPIC}) == {"enlisted": False}


# --- refusals -----------------------------------------------------------------------------------------------------------

OF_ONE = [route for route in TRANSACTION_ROUTES if "{writePointer}" in route.path]


def send(transactions: Transactions, method: str, path: str, body: Any = None) -> requests.Response:
    return transactions.request(method, path.removeprefix("/v1/transactions"), json=body)


@pytest.mark.parametrize(
    "pointer", ["0", "-1", "x", "1.5", "1e3", "0x10", "%D9%A1", "9223372036854775808", "9" * 30, "%20", "+5"]
)
@pytest.mark.parametrize("route", OF_ONE, ids=lambda route: f"{route.method} {route.path}")
def test_a_write_pointer_that_is_none_is_refused_on_every_address(refusing: Transactions, route: Any, pointer: str) -> None:
    body = {"participant": TOPIC} if route.path.endswith("/participants") else {}
    path = route.path.format(writePointer=pointer, participant=TOPIC)
    assert_problem(send(refusing, route.method, path, body), 400, "invalid_request")


@pytest.mark.parametrize("how", ["", "/can-commit", "/commit", "/abort", "/invalidate", "/checkpoint"])
def test_a_transaction_that_nobody_knows_is_not_found(refusing: Transactions, how: str) -> None:
    problem = assert_problem(refusing.request("POST" if how else "GET", "/12345" + how), 404, "transaction_not_found")
    assert problem["write_pointer"] == 12345


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("", {"type": "medium"}),
        ("", {"type": None}),
        ("", {"type": 1}),
        ("", {"timeoutMs": 0}),
        ("", {"timeoutMs": -1}),
        ("", {"timeoutMs": 1.5}),
        ("", {"timeoutMs": True}),
        ("", {"timeoutMs": "5"}),
        ("", {"timeoutMs": 3_600_001}),
        ("", {"timeoutMs": 10**30}),
        ("", {"timeout": 5}),
        ("", {"type": "long", "timeoutMs": 5}),
        ("/5/can-commit", {"changes": "k"}),
        ("/5/can-commit", {"changes": None}),
        ("/5/can-commit", {"changes": [1]}),
        ("/5/can-commit", {"changes": [None]}),
        ("/5/can-commit", {"changes": ["\u0100"]}),
        ("/5/can-commit", {"changes": ["\ud800"]}),
        ("/5/can-commit", {"resource": ""}),
        ("/5/can-commit", {"resource": "x" * 250}),
        ("/5/can-commit", {"resource": 5}),
        ("/5/commit", {"changes": ["\u0100"]}),
        ("/5/commit", {"resource": "db"}),
        ("/5/commit", []),
        ("/prune", {}),
        ("/prune", {"writePointers": [5], "beforeMs": 5}),
        ("/prune", {"writePointers": None, "beforeMs": None}),
        ("/prune", {"writePointers": [0]}),
        ("/prune", {"writePointers": [-5]}),
        ("/prune", {"writePointers": [2**63]}),
        ("/prune", {"writePointers": ["5"]}),
        ("/prune", {"writePointers": 5}),
        ("/prune", {"beforeMs": -1}),
        ("/prune", {"beforeMs": 1.5}),
        ("/prune", {"beforeMs": "2026-01-31"}),
        ("/states", {}),
        ("/states", {"writePointers": None}),
        ("/states", {"writePointers": [0]}),
        ("/states", {"writePointers": [True]}),
        ("/states", {"writePointers": [10**30]}),
        ("/5/participants", {}),
        ("/5/participants", {"participant": ""}),
        ("/5/participants", {"participant": "no instance"}),
        ("/5/participants", {"participant": ":default/t/1"}),
        ("/5/participants", {"participant": f"{HERE}:"}),
        ("/5/participants", {"participant": f"{HERE}:a b"}),
        ("/5/participants", {"participant": f"{HERE}:t\n"}),
        ("/5/participants", {"participant": f"{HERE}:caf\u00e9"}),
        ("/5/participants", {"participant": f"{HERE}:{'x' * 601}"}),
        ("/5/participants", {"participant": 5}),
    ],
    ids=ascii,
)
def test_a_body_that_makes_no_sense_is_refused(refusing: Transactions, path: str, body: Any) -> None:
    assert_problem(refusing.request("POST", path, json=body), 400, "invalid_request")


@pytest.mark.parametrize(
    "query",
    ["state=committed", "state=", "after=-1", "after=x", "after=" + "9" * 19, "limit=0", "limit=2001", "limit=x", "limit="],
)
def test_a_list_that_makes_no_sense_is_refused(refusing: Transactions, query: str) -> None:
    assert_problem(refusing.request("GET", "?" + query), 400, "invalid_request")


@pytest.mark.parametrize("query", ["", "instance=", f"instance={HERE}&wait=-1", f"instance={HERE}&wait=x"])
def test_a_wait_that_makes_no_sense_is_refused(refusing: Transactions, query: str) -> None:
    assert_problem(refusing.request("GET", "/unsettled?" + query), 400, "invalid_request")


@pytest.mark.parametrize("participant", ["", "x", "a%20b:t", f"{HERE}:a%09b", f"{HERE}:%ff"])
def test_a_participant_that_is_none_cannot_settle(refusing: Transactions, participant: str) -> None:
    assert_problem(refusing.request("DELETE", f"/5/participants/{participant}"), 400, "invalid_request")


def test_of_very_many_wrong_values_none_is_named(transactions: Transactions) -> None:
    """pydantic would make a dict of each of them, in one go."""
    pointer = transactions.start()
    for wrong, said in ((1_000, "changes.0: Input should be a valid string"), (1_001, "1001 of its values are wrong")):
        problem = assert_problem(transactions.post(f"/{pointer}/commit", changes=[1] * wrong), 400, "invalid_request")
        assert said in problem["detail"]
        assert len(problem["detail"]) < 500


def test_more_than_one_call_may_hold_is_refused(transactions: Transactions) -> None:
    pointer = transactions.start()
    for how in ("can-commit", "commit"):
        problem = assert_problem(transactions.post(f"/{pointer}/{how}", changes=["k"] * 20_001), 413, "request_too_large")
        assert problem["limit"] == 20_000
    for path in ("/states", "/prune"):
        problem = assert_problem(transactions.post(path, writePointers=[5] * 10_001), 413, "request_too_large")
        assert problem["limit"] == 10_000
    assert transactions.state(pointer) == "in_progress"
