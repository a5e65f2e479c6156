"""Messages of a transaction that no producer sends are numbered within its write pointer, and each is stored once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from tests.behaviours.conftest import Machine
from tests.behaviours.test_durability import Gate, no_space, wait_until_healthy
from tests.behaviours.test_transactions import House
from tests.rest.talk import TIMEOUT, assert_problem, receipts, without_status

WAYS = pytest.mark.parametrize("way", ["publish", "store"])
Send = Callable[..., requests.Response]


def sender(house: House, way: str, pointer: int) -> Send:
    """Sends messages without a producer under the pointer, the first one with this number."""

    def send(first: int | None, *messages: str) -> requests.Response:
        fields = {} if first is None else {"sequenceIds": first}
        if way == "store":
            return house.topic.store(pointer, *messages, **fields)
        return house.topic.publish(*messages, transactionWritePointer=pointer, **fields)

    return send


def statuses(answer: requests.Response) -> list[str]:
    return [each["status"] for each in receipts(answer)]


def committed(house: House, way: str, pointer: int) -> list[str]:
    """What is delivered once the transaction has committed."""
    if way == "store":
        house.topic.publish_under(pointer)
    house.end(pointer, "commit")
    return house.now()


@pytest.fixture
def house(machine: Machine) -> Iterator[House]:
    with machine.run() as service:
        house = House(service, machine)
        yield house
        assert house.topic.verify()["ok"], house.topic.verify()


@WAYS
@pytest.mark.parametrize("deduplication", ["true", "false"])
@pytest.mark.parametrize("crash", [False, True])
def test_a_request_that_comes_again_is_answered_as_it_was_and_stored_once(
    machine: Machine, way: str, deduplication: str, crash: bool
) -> None:
    """After the service was killed, too: as if another instance had taken the topic over."""
    with machine.run() as service:
        house = House(service, machine)
        house.topic.request("PUT", "/properties", json={"deduplication": deduplication})
        pointer = house.start()
        send = sender(house, way, pointer)
        house.topic.publish("plain")
        first, second = send(0, "a", "a"), send(2, "b")
        after = machine.crash()
        if not crash:
            check_repeats(house, way, pointer, first, second)
    if crash:
        with after.run() as service:
            check_repeats(House(service, after), way, pointer, first, second)


def check_repeats(house: House, way: str, pointer: int, first: requests.Response, second: requests.Response) -> None:
    send = sender(house, way, pointer)
    for _ in range(2):
        for answer, before in ((send(2, "b"), second), (send(0, "a", "a"), first)):
            assert set(statuses(answer)) == {"duplicate"}
            assert without_status(receipts(answer)) == without_status(receipts(before))
            for field in ("startTimestamp", "startSequenceId", "endTimestamp", "endSequenceId"):
                assert answer.json()[field] == before.json()[field], "what rolls it back is the same"
    assert statuses(send(3, "c")) == ["stored"]
    assert committed(house, way, pointer) == ["plain", "a", "a", "b", "c"]
    assert house.topic.verify()["ok"]


@WAYS
def test_other_messages_under_numbers_that_are_taken_are_refused(house: House, way: str) -> None:
    pointer = house.start()
    send = sender(house, way, pointer)
    send(5, "a", "b")
    assert assert_problem(send(5, "a", "x"), 422, "sequence_reused")["sequence_id"] == 6
    for first, messages in ((4, "xa"), (6, "bx"), (4, "xabx")):
        assert_problem(send(first, *messages), 400, "invalid_request")
    assert statuses(send(6, "b")) == ["duplicate"]
    assert committed(house, way, pointer) == ["a", "b"]


@WAYS
def test_other_messages_are_refused_however_much_was_stored_behind_those_whose_numbers_they_have(house: House, way: str) -> None:
    pointer = house.start()
    send = sender(house, way, pointer)
    send(0, "a", "b")
    for first in (10, 1_010):
        send(first, *map(str, range(1_000)))
    assert assert_problem(send(0, "a", "x"), 422, "sequence_reused")["sequence_id"] == 1
    assert set(statuses(send(0, "a", "b"))) == {"duplicate"}


@WAYS
def test_processes_that_share_a_write_pointer_have_numbers_of_their_own_or_none(house: House, way: str) -> None:
    pointer, other = house.start(), house.start()
    send = sender(house, way, pointer)
    for first, message in ((100, "a"), (0, "b"), (None, "b"), (None, "b"), (101, "a"), (1, "b")):
        assert statuses(send(first, message)) == ["stored"], (first, message)
    assert statuses(sender(house, way, other)(0, "b")) == ["stored"], "another transaction"
    assert [statuses(send(first, message)) for first, message in ((0, "b"), (100, "a"), (1, "b"))] == [["duplicate"]] * 3
    house.end(other, "abort")
    assert committed(house, way, pointer) == ["a", "b", "b", "b", "a", "b"]


@pytest.mark.parametrize("crash", [False, True])
def test_numbers_of_what_was_rolled_back_are_usable_again(machine: Machine, crash: bool) -> None:
    with machine.run() as service:
        house = House(service, machine)
        pointer = house.start()
        send = sender(house, "publish", pointer)
        send(0, "a")
        assert house.topic.roll_back(send(1, "b", "c")).status_code == 200
        after = machine.crash()
        if not crash:
            check_again(house, pointer)
    if crash:
        with after.run() as service:
            check_again(House(service, after), pointer)


def check_again(house: House, pointer: int) -> None:
    send = sender(house, "publish", pointer)
    assert [statuses(send(first, message)) for first, message in ((0, "a"), (1, "x"), (2, "y"), (1, "x"))] == [
        ["duplicate"],
        ["stored"],
        ["stored"],
        ["duplicate"],
    ]
    assert committed(house, "publish", pointer) == ["a", "x", "y"]


@WAYS
@pytest.mark.parametrize("how", ["commit", "abort"])
def test_what_comes_after_the_end_is_refused(house: House, way: str, how: str) -> None:
    pointer = house.start()
    send = sender(house, way, pointer)
    send(0, "a")
    house.end(pointer, how)
    house.settled()
    for first in (0, 1):
        assert_problem(send(first, "a"), 409, "transaction_not_in_progress")


@WAYS
@pytest.mark.parametrize("outcome", ["written", "not written", "written all the same"])
def test_a_request_that_comes_again_while_it_is_being_written_is_answered_when_that_has_an_end(
    machine: Machine, way: str, outcome: str
) -> None:
    with machine.run() as service, ThreadPoolExecutor(2) as pool:
        house = House(service, machine)
        pointer = house.start()
        send = sender(house, way, pointer)
        send(0, "a")
        one, other = (sender(House(service, machine), way, pointer) for _ in range(2))
        machine.disk.fail_after_apply = outcome == "written all the same"
        machine.disk.before_sync = gate = Gate(None if outcome == "written" else no_space())
        under_way = pool.submit(one, 1, "b")
        assert gate.entered.wait(TIMEOUT)
        repeated = pool.submit(other, 1, "b")
        service.arrived(2)
        gate.opened.set()
        answers = [each.result(TIMEOUT) for each in (under_way, repeated)]
        machine.disk.before_sync = None
        if outcome == "written":
            assert [statuses(answer) for answer in answers] == [["stored"], ["duplicate"]]
        else:
            for answer in answers:
                assert_problem(answer, 503, "storage_failed", definite=False)
            wait_until_healthy(house.topic)
            assert statuses(send(1, "b")) == ["stored" if outcome == "not written" else "duplicate"]
        assert statuses(send(1, "b")) == statuses(send(0, "a")) == ["duplicate"]
        assert committed(house, way, pointer) == ["a", "b"]


def test_without_a_write_pointer_numbers_need_a_producer_and_without_a_producer_they_leave_nothing_out(house: House) -> None:
    assert_problem(house.topic.publish("a", sequenceIds=0), 400, "invalid_request")
    pointer = house.start()
    for way in ("publish", "store"):
        for ids in ([0, 2], [1, 0], [-1, 0]):
            answer = house.topic.request(
                "POST", f"/{way}", json={"transactionWritePointer": pointer, "messages": ["a", "b"], "sequenceIds": ids}
            )
            assert_problem(answer, 400, "invalid_request")
    assert committed(house, "publish", pointer) == []
