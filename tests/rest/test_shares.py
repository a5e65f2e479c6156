"""Who has used more than a share of the last second waits while another one's small request is under way, and for nobody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import MethodType
from typing import cast

import pytest
import requests

from oncelog.wire.codec import encode_publish_request
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import PublishRequest
from oncelog_service.bounds.turns import OVERDUE_SECONDS
from oncelog_service.rest.protocol import Shared
from oncelog_service.service import Service
from oncelog_service.storage.memory import Disk
from tests.access.carrying import Carrying
from tests.patience import PATIENCE, until
from tests.rest.talk import connected, head, read_answer
from tests.world.disk import HeldStore
from tests.world.service import RunningService, running_service

TOPIC = "/v1/namespaces/default/topics/t"
SMALL = encode_publish_request(PublishRequest([b"small"]))


class House:
    """A service on which one has used a lot, and another one has small requests."""

    def __init__(self, service: RunningService, store: HeldStore, pool: ThreadPoolExecutor) -> None:
        self.service, self.store, self.pool = service, store, pool
        self._shared: Shared = cast(MethodType, service.service.shares.others).__self__
        self.admin = Carrying(service.url, "admin")
        self.admin.good("PUT", TOPIC, json={})
        made = self.admin.make("loud", "read:default/t", "write:default/t")
        self.id, self.secret = made["id"], made["secret"]
        self.loud = self.admin.carrying(self.secret)
        self.quiet = self.admin.holding("quiet", "write:default/t", "read:default/t")
        self.publish(self.quiet)  # its topic is open
        service.on_loop(partial(_charge, "loud"))

    def publish(self, who: Carrying) -> requests.Response:
        return who.request("POST", TOPIC + "/publish", data=SMALL, headers={"content-type": ONCELOG_AVRO})

    def hold(self, who: Carrying) -> Future[requests.Response]:
        """Its publish is under way until the store may write."""
        self.store.may.clear()
        self.store.asked.clear()
        held = self.pool.submit(self.publish, who)
        until(self.store.asked.is_set, "it is being written")
        return held

    def waits(self) -> int:
        async def waiting(service: Service) -> int:
            return sum(map(len, service.shares._waiting.values()))

        return self.service.on_loop(waiting)

    def enter(self) -> None:
        """Somebody's large work is under way."""

        async def enter(service: Service) -> None:
            await service.shares._enter("somebody")

        self.service.on_loop(enter)

    def leave(self) -> None:
        async def leave(service: Service) -> None:
            service.shares._leave()

        self.service.on_loop(leave)

    def arriving(self) -> int:
        """Bodies that are not there as a whole."""

        async def found(service: Service) -> int:
            return len(self._shared.bodies._arriving)

        return self.service.on_loop(found)

    def has_others(self, has: bool, who: str = "loud") -> None:
        async def say(service: Service) -> None:
            service.shares.others = lambda asks: has and asks == who

        self.service.on_loop(say)

    @property
    def messages(self) -> int:
        found: int = self.admin.good("GET", TOPIC + "/stats")["upcomingOffset"]
        return found


@pytest.fixture
def house() -> Iterator[House]:
    store = HeldStore(Disk())
    with running_service(open_store=lambda: store, token="admin") as service, ThreadPoolExecutor(4) as pool:
        try:
            yield House(service, store, pool)
        finally:
            store.may.set()


def test_a_request_of_one_who_has_used_a_lot_waits_while_anothers_small_one_is_under_way(house: House) -> None:
    held = house.hold(house.quiet)
    loud = house.pool.submit(house.loud.request, "GET", "/v1/namespaces")
    until(lambda: house.waits() == 1, "it waits")
    assert house.quiet.request("GET", "/v1/namespaces").status_code == 200, "who has not does not"
    assert not loud.done()
    house.store.may.set()
    assert held.result(PATIENCE).status_code == 200
    assert loud.result(PATIENCE).status_code == 200


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz"])
def test_who_watches_over_the_process_is_told_at_once(house: House, path: str) -> None:
    house.service.on_loop(partial(_charge, "127.0.0.1"))
    house.has_others(True, "127.0.0.1")
    before = house.service.on_loop(_time)
    assert house.admin.request("GET", path).status_code == 200
    assert house.service.on_loop(_time) < before + 1


def test_it_waits_for_none_of_its_own_and_for_none_that_waits_for_a_message(house: House) -> None:
    poll = house.pool.submit(house.quiet.request, "POST", TOPIC + "/poll", json={"startOffset": 1, "wait": 10_000})
    until(lambda: house.service.on_loop(_waiting_for_a_message), "it waits for a message")
    held = house.hold(house.loud)
    assert house.loud.request("GET", "/v1/namespaces").status_code == 200
    assert house.waits() == 0
    house.store.may.set()
    assert held.result(PATIENCE).status_code == poll.result(PATIENCE).status_code == 200


def test_a_request_whose_body_comes_in_pieces_waits_as_others_do(house: House) -> None:
    """It is judged anew when it is there, and counts as before."""
    house.has_others(True)
    body = b'{"startOffset": 0}'
    declared = "content-type: application/json", f"content-length: {len(body)}", f"authorization: Bearer {house.secret}"
    with connected(house.service.url) as connection:
        connection.sendall(head("POST", TOPIC + "/poll", *declared) + body[:5])
        until(lambda: house.arriving() == 1, "a part is there")
        connection.sendall(body[5:])
        until(lambda: house.waits() == 1, "it waits")
        house.has_others(False)
        assert read_answer(connection.makefile("rb"))[0] == 200


def test_a_small_publish_whose_body_does_not_come_holds_nobody_up(house: House) -> None:
    declared = f"content-type: {ONCELOG_AVRO}", f"content-length: {len(SMALL)}", "authorization: Bearer admin"
    with connected(house.service.url) as connection:
        connection.sendall(head("POST", TOPIC + "/publish", *declared) + SMALL[:1])
        until(lambda: house.arriving() == 1, "a part is there")
        assert house.loud.request("GET", "/v1/namespaces").status_code == 200
        house.store.may.clear()
        house.store.asked.clear()
        connection.sendall(SMALL[1:])
        until(house.store.asked.is_set, "it is being written")
        loud = house.pool.submit(house.loud.request, "GET", "/v1/namespaces")
        until(lambda: house.waits() == 1, "now it waits for it")
        house.store.may.set()
        assert read_answer(connection.makefile("rb"))[0] == loud.result(PATIENCE).status_code == 200


@pytest.mark.parametrize("large", [{"messages": ["x" * 100_000]}, {"messages": ["x"] * 5_000}], ids=["decoded", "encoded"])
def test_large_bodies_are_decoded_and_pages_encoded_one_at_a_time_and_small_ones_meanwhile(
    house: House, large: dict[str, object]
) -> None:
    house.quiet.good("POST", TOPIC + "/publish", json=large)

    house.enter()
    publish = house.pool.submit(house.quiet.request, "POST", TOPIC + "/publish", json=large)
    poll = house.pool.submit(house.quiet.request, "POST", TOPIC + "/poll", json={"startOffset": 1})
    until(lambda: house.waits() == 2, "both wait")
    assert house.publish(house.quiet).status_code == 200
    house.leave()
    assert publish.result(PATIENCE).status_code == poll.result(PATIENCE).status_code == 200


LARGE = "x" * 2**20
HOLDS = {"page": ("/poll", {"startOffset": 1, "limit": 5_000}), "turn": ("/publish", {"messages": [LARGE]})}


@pytest.mark.parametrize("held", HOLDS)
def test_who_is_held_up_has_nothing_that_others_wait_for(house: House, held: str) -> None:
    """The one place of large pages, the bytes of large requests that are under way."""
    house.quiet.good("POST", TOPIC + "/publish", json={"messages": ["x" * 100] * 1_000})
    house.service.on_loop(partial(_forget, "loud"))
    path, body = HOLDS[held]

    def ask(who: Carrying) -> Future[requests.Response]:
        return house.pool.submit(who.request, "POST", TOPIC + path, json=body)

    house.enter()
    first = ask(house.quiet)
    until(lambda: house.waits() == 1, "it has that, and waits")
    loud = ask(house.loud)
    until(lambda: house.service.on_loop(_waiting_for_what_is_held) == 1, "it waits for that")
    house.service.on_loop(partial(_charge, "loud"))
    house.has_others(True)
    house.leave()
    assert first.result(PATIENCE).status_code == 200
    until(lambda: house.waits() == 1, "it is held up")
    before = house.service.on_loop(_time)
    assert ask(house.quiet).result(PATIENCE).status_code == 200
    assert house.service.on_loop(_time) < before + OVERDUE_SECONDS
    assert not loud.done()
    house.has_others(False)
    assert loud.result(PATIENCE).status_code == 200


@pytest.mark.parametrize("held", HOLDS)
def test_who_has_what_others_wait_for_when_its_share_is_used_up_goes_on(house: House, held: str) -> None:
    house.quiet.good("POST", TOPIC + "/publish", json={"messages": ["x" * 100] * 1_000})
    house.service.on_loop(partial(_forget, "loud"))
    path, body = HOLDS[held]
    house.enter()
    loud = house.pool.submit(house.loud.request, "POST", TOPIC + path, json=body)
    until(lambda: house.waits() == 1, "it has that, and waits")
    house.service.on_loop(partial(_charge, "loud"))
    house.has_others(True)
    house.leave()
    before = house.service.on_loop(_time)
    assert loud.result(PATIENCE).status_code == 200
    assert house.service.on_loop(_time) < before + OVERDUE_SECONDS


def test_what_has_waited_so_is_not_obeyed_when_its_token_is_revoked_meanwhile(house: House) -> None:
    house.has_others(True)
    large = house.pool.submit(house.loud.request, "POST", TOPIC + "/publish", json={"messages": ["large"]})
    until(lambda: house.waits() == 1, "it waits")
    assert house.admin.revoke(house.id).status_code == 200
    house.has_others(False)
    assert large.result(PATIENCE).status_code == 401
    assert house.messages == 1


def test_nor_is_what_brings_no_body(house: House) -> None:
    made = house.admin.make("chief", "manage:default/t")
    chief = house.admin.carrying(made["secret"])
    house.service.on_loop(partial(_charge, "chief"))
    house.has_others(True, "chief")
    deletes = house.pool.submit(chief.request, "DELETE", TOPIC)
    until(lambda: house.waits() == 1, "it waits")
    assert house.admin.revoke(made["id"]).status_code == 200
    house.has_others(False)
    assert deletes.result(PATIENCE).status_code == 401
    assert house.messages == 1


def test_what_has_waited_so_is_not_obeyed_when_its_client_has_gone(house: House) -> None:
    house.has_others(True)
    body = json.dumps({"messages": ["large"]}).encode()
    declared = "content-type: application/json", f"content-length: {len(body)}", f"authorization: Bearer {house.secret}"
    with connected(house.service.url) as connection:
        connection.sendall(head("POST", TOPIC + "/publish", *declared) + body)
        until(lambda: house.waits() == 1, "it waits")
    until(lambda: house.waits() == 0, "it has gone")
    house.has_others(False)
    assert house.messages == 1


async def _charge(who: str, service: Service) -> None:
    service.shares.charge(who, 1e200)


async def _forget(who: str, service: Service) -> None:
    service.shares._used.pop(who)


async def _time(service: Service) -> float:
    return service.clock.elapsed()


async def _waiting_for_what_is_held(service: Service) -> int:
    return service.turns.waiting_requests + len(service.scans._large_pages._waiters or ())


async def _waiting_for_a_message(service: Service) -> bool:
    return bool(service.opening.topics.logs.opened["default", "t"].topic.arrivals._waiting)


async def _lists(service: Service) -> tuple[int, int]:
    """How many may begin to read rows of many topics, and how many wait to."""
    lists = service.scans._lists
    return lists._value, len(lists._waiters or ())


@pytest.mark.parametrize("path", ["/v1/namespaces", "/v1/namespaces/default/topics", "/v1/namespaces/default/stats"])
def test_rows_of_many_topics_are_read_for_one_request_at_a_time(house: House, path: str) -> None:
    async def take(service: Service) -> None:
        await service.scans._lists.acquire()

    async def give_back(service: Service) -> None:
        service.scans._lists.release()

    house.service.on_loop(take)
    asked = house.pool.submit(house.quiet.request, "GET", path)
    until(lambda: house.service.on_loop(_lists) == (0, 1), "it waits")
    assert house.publish(house.quiet).status_code == 200
    house.service.on_loop(give_back)
    assert asked.result(PATIENCE).status_code == 200
    assert house.service.on_loop(_lists) == (1, 0)
