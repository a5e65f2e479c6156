"""What is known of many topics without opening them."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import requests

from oncelog import Client, Consumer, Producer
from oncelog_service.service import Service
from oncelog_service.storage.port import Batch, Table
from tests.rest.talk import TIMEOUT
from tests.world.service import RunningService, running_service


def listed(service: RunningService, **query: object) -> list[dict[str, object]]:
    answer = requests.get(service.url + "/v1/namespaces/default/stats", params=query, timeout=TIMEOUT)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, object]] = answer.json()
    return found


def test_topics_are_told_of_without_being_opened(tmp_path: Path) -> None:
    store = f"leveldb://{tmp_path}/data"
    with running_service(store) as service, Client(service.url) as client:
        client.create_topic("read")
        client.create_topic("empty")
        client.create_topic("gone")
        client.delete_topic("gone")
        with Producer("read", name="p", client=client) as producer:
            producer.send_batch([b"a", b"b", b"c"])
        client.trim_topic("read", 1)
        with Consumer("read", "s", client=client) as consumer:
            consumer.read()
        [empty, read] = listed(service)
        live = {"producers": 1, "subscriptions": 1, "heldMessages": 0, "largestLag": 2, "open": True}
        assert live.items() <= read.items()
        size = read["bytes"]
        assert size == client.stats("read").bytes > 0
        assert (empty["name"], empty["open"], empty["earliestOffset"], empty["upcomingOffset"]) == ("empty", False, 0, 0)
    with running_service(store) as service, Client(service.url) as client:
        told = listed(service)
        assert [(each["name"], each["open"]) for each in told] == [("empty", False), ("read", False)]
        assert (told[0]["bytes"], told[1]["bytes"]) == (0, size)
        assert {"earliestOffset": 1, "upcomingOffset": 3, "producers": None, "damage": None, "generation": 1}.items() <= told[
            1
        ].items()
        assert service.service.opening.topics.logs.opened == {}
        assert [each.name for each in client.all_stats()] == ["empty", "read"]


def test_pages_go_on_in_the_order_of_names() -> None:
    """Also where keys are in another order: a name ends with a colon there, which lies between the characters of names."""
    names = {"".join(each) for size in (1, 2, 3) for each in product("-0B", repeat=size)}
    gone = {"-", "0-", "B-0", "BB"}

    async def make(service: Service) -> None:
        for namespace in ("default", "another", "zero"):
            for name in names:
                await service.opening.topics.changes.create(namespace, name, {})
        for name in gone:
            await service.opening.topics.changes.delete("default", name)

    async def paged(service: Service, limit: int, after: str = "") -> list[str]:
        found: list[str] = []
        while page := await service.opening.topics.listing.rows_behind("default", found[-1] if found else after, limit):
            assert len(page) <= limit
            found += [name for name, _ in page]
        return found

    with running_service() as service, Client(service.url) as client:
        service.on_loop(make)
        expected = sorted(names - gone)
        for limit in (1, 2, 3, 5, 100):
            assert service.on_loop(lambda it, limit=limit: paged(it, limit)) == expected, limit
        for after in (*names, "A", "B:", "0-0-", "é"):
            behind = [name for name in expected if name > after]
            assert service.on_loop(lambda it, after=after: paged(it, 4, after)) == behind, after
        assert [each.name for each in client.all_stats()] == expected
        assert client.namespaces() == ["another", "default", "zero"]


def test_a_topic_whose_end_is_damaged_says_so_and_the_others_are_told_of(tmp_path: Path) -> None:
    with running_service(f"leveldb://{tmp_path}/data") as service, Client(service.url) as client:
        for name in ("bad", "good"):
            client.create_topic(name)
            with Producer(name, client=client) as producer:
                producer.send(b"x")
        topics = service.service.opening.topics
        log = topics.logs.opened["default", "bad"]
        batch = Batch()
        batch.put(Table.MESSAGE, log.prefix + b"\x7f" * 10, b"no row")

        async def spoil(_: object) -> None:
            await service.service.opening.writer.submit(batch)
            topics.logs.drop(("default", "bad"))

        service.on_loop(spoil)
        [bad, good] = listed(service)
        assert bad["damage"]
        assert bad["upcomingOffset"] is None
        assert (good["damage"], good["upcomingOffset"]) == (None, 1)
