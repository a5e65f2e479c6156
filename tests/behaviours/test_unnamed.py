"""Messages of a transaction that no producer sends are numbered within its write pointer, and each is stored once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from tests.rest.talk import TIMEOUT, Topic, assert_problem, receipts, without_status
from tests.world.disk import Gate, no_space
from tests.world.house import House, told

WAYS = pytest.mark.parametrize("way", ["publish", "store"])
RANGE = ("startTimestamp", "startSequenceId", "endTimestamp", "endSequenceId")


def sender(topic: Topic, way: str, pointer: int) -> Callable[..., requests.Response]:
    """Sends messages without a producer under the pointer, the first one with this number."""

    def send(first: int | None, *messages: str) -> requests.Response:
        fields = {} if first is None else {"sequenceIds": first}
        if way == "store":
            return topic.store(pointer, *messages, **fields)
        return topic.publish(*messages, transactionWritePointer=pointer, **fields)

    return send


def committed(house: House, way: str, pointer: int) -> list[str]:
    """What is delivered once the transaction has committed."""
    if way == "store":
        house.topic.publish_under(pointer)
    house.end(pointer, "commit")
    return house.now()


@WAYS
@pytest.mark.parametrize("deduplication", ["true", "false"])
def test_a_request_that_comes_again_is_answered_as_it_was_and_stored_once(house: House, way: str, deduplication: str) -> None:
    house.make(deduplication=deduplication).publish("plain")
    pointer = house.start("long")
    send = sender(house.topic, way, pointer)
    sent = {(0, "a", "a"): send(0, "a", "a"), (2, "b"): send(2, "b")}
    for life in house.lives():
        for request, before in reversed(sent.items()):
            again = send(*request)
            assert set(told(receipts(again))) == {"d"}, life
            assert without_status(receipts(again)) == without_status(receipts(before))
            assert [again.json()[field] for field in RANGE] == [before.json()[field] for field in RANGE], "what rolls it back"
    assert told(receipts(send(3, "c"))) == "s"
    other = house.start()
    assert told(receipts(sender(house.topic, way, other)(3, "c"))) == "s", "another transaction has numbers of its own"
    house.end(other, "abort")
    assert committed(house, way, pointer) == ["plain", "a", "a", "b", "c"]


@WAYS
def test_other_messages_under_numbers_that_are_taken_are_refused_however_much_was_stored_behind_them(
    house: House, way: str
) -> None:
    pointer = house.start()
    send = sender(house.topic, way, pointer)
    send(5, "a", "b")
    send(10, *map(str, range(1_500)))
    assert assert_problem(send(5, "a", "x"), 422, "sequence_reused")["sequence_id"] == 6
    for first, messages in ((4, "xa"), (6, "bx"), (4, "xabx")):
        assert_problem(send(first, *messages), 400, "invalid_request")
    assert told(receipts(send(6, "b"))) + told(receipts(send(5, "a", "b"))) == "ddd"
    assert committed(house, way, pointer)[:3] == ["a", "b", "0"]


@pytest.mark.parametrize("how", ["goes on", "crashed"])
def test_numbers_of_what_was_rolled_back_are_usable_again(house: House, how: str) -> None:
    pointer = house.start()
    send = sender(house.topic, "publish", pointer)
    send(0, "a")
    assert house.topic.roll_back(send(1, "b", "c")).status_code == 200
    house.comes_back(how)
    assert [told(receipts(send(*each))) for each in ((0, "a"), (1, "x"), (2, "y"), (1, "x"), (2, "y"))] == [*"dssdd"]
    assert committed(house, "publish", pointer) == ["a", "x", "y"]


@WAYS
@pytest.mark.parametrize("outcome", ["written", "not written", "written all the same"])
def test_a_request_that_comes_again_while_it_is_being_written_is_answered_when_that_has_an_end(
    house: House, pool: ThreadPoolExecutor, way: str, outcome: str
) -> None:
    pointer = house.start()
    send = sender(house.topic, way, pointer)
    send(0, "a")
    house.disk.fail_after_apply = outcome == "written all the same"
    house.disk.before_sync = gate = Gate(None if outcome == "written" else no_space())
    under_way = pool.submit(sender(house.aside(), way, pointer), 1, "b")
    assert gate.entered.wait(TIMEOUT)
    repeated = pool.submit(sender(house.aside(), way, pointer), 1, "b")
    house.service.arrived(2)
    gate.opened.set()
    answers = [each.result(TIMEOUT) for each in (under_way, repeated)]
    house.healthy()
    if outcome == "written":
        assert [told(receipts(answer)) for answer in answers] == ["s", "d"]
    else:
        for answer in answers:
            assert_problem(answer, 503, "storage_failed", definite=False)
        assert told(receipts(send(1, "b"))) == ("s" if outcome == "not written" else "d")
    assert told(receipts(send(1, "b"))) + told(receipts(send(0, "a"))) == "dd"
    assert committed(house, way, pointer) == ["a", "b"]
