"""CONTRACT §10: what one may hold at the same time is bounded, never by one too many; what goes makes room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
import requests

from oncelog_dedup import Deduplicator
from oncelog_service.bounds import holding
from oncelog_service.log.read import subscriptions
from oncelog_service.service import Service
from tests.access.carrying import Carrying
from tests.rest.talk import Topic, assert_problem, done
from tests.world.house import House, told
from tests.world.service import running_service

TX, ATOMIC = "/v1/transactions", "/v1/atomic"


def assert_full(answer: requests.Response, quota: str, limit: int, soon: bool = True) -> None:
    problem = assert_problem(answer, 429, "quota_exceeded", definite=True)
    assert (problem["quota"], problem["limit"], problem.get("retry_after_ms")) == (quota, limit, 1000 if soon else None)
    assert answer.headers.get("retry-after") == ("1" if soon else None)
    assert "ratelimit" not in answer.headers, "it is not of a second"


def statuses(answers: list[requests.Response]) -> dict[int, int]:
    found = [answer.status_code for answer in answers]
    return {status: found.count(status) for status in found}


# --- transactions of a principal


def carrying(house: House, secret: str) -> Carrying:
    return Carrying(house.service.url, secret)


def begun(who: Carrying, kind: str = "short") -> int:
    pointer: int = who.good("POST", TX, json={"type": kind})["writePointer"]
    return pointer


def test_a_principal_has_so_many_transactions_in_progress_whatever_their_phase_and_over_restarts(house: House) -> None:
    house.restart(max_transactions_per_principal=4)
    admin = Carrying(house.service.url)
    root = admin.make("root", "admin")["secret"]
    ada, bob = (
        carrying(house, root).make(name, *grants)["secret"] for name, grants in (("ada", ["admin"]), ("bob", ["write:*/*"]))
    )
    who = carrying(house, ada)
    short, long, prepared = begun(who), begun(who, "long"), begun(who)
    who.good("POST", f"{TX}/{short}/checkpoint")
    who.good("POST", f"{TX}/{prepared}/can-commit", json={"changes": ["k"], "resource": "postgresql://bank"})
    for life in house.lives():
        who = carrying(house, ada)
        for _ in range(2):
            assert_full(who.request("POST", TX, json={"type": "long"}), "transactions", 4)
        if life == "now":
            others = [begun(carrying(house, bob)) for _ in range(4)]
            assert_full(carrying(house, bob).request("POST", TX, json={}), "transactions", 4)
        assert {each["writePointer"] for each in who.good("GET", TX)} >= {short, long, prepared, *others}
    for pointer, how, room in ((short, "commit", 2), (long, "abort", 1), (prepared, "commit", 1)):
        who.good("POST", f"{TX}/{pointer}/{how}", json={})
        another, *_ = [begun(who) for _ in range(room)]  # its checkpoint was one, too
        assert_full(who.request("POST", TX, json={}), "transactions", 4)
        who.good("POST", f"{TX}/{another}/invalidate")
        begun(who)  # what is invalid has ended
    assert_full(carrying(house, bob).request("POST", TX, json={}), "transactions", 4)


def test_who_has_no_name_of_its_own_is_not_counted(house: House) -> None:
    house.restart(max_transactions_per_principal=2)
    anybody = Carrying(house.service.url)
    assert len({begun(anybody) for _ in range(5)}) == 5
    for number in range(5):
        anybody.good("POST", ATOMIC, json={"id": f"a{number}", "group": "g"})
    house.restart(token="of the settings")
    named = carrying(house, "of the settings")
    assert [begun(named) for _ in range(2)], "that one is a principal as any other"
    assert_full(named.request("POST", TX, json={}), "transactions", 2)


def test_a_principal_has_so_many_atomic_commits_in_progress(house: House) -> None:
    house.restart(max_transactions_per_principal=2)
    house.make()
    ada = Carrying(house.service.url).make("ada", "admin")["secret"]
    part = {"namespace": "default", "topic": "t", "request": {"messages": ["x"]}}
    whole: dict[str, Any] = {"group": "g", "parts": [part]}
    who = carrying(house, ada)
    who.good("POST", ATOMIC, json={"id": "a", "group": "g"})
    who.good("POST", ATOMIC, json={"id": "b", "group": "g"})
    for _ in house.lives():
        who = carrying(house, ada)
        assert_full(who.request("POST", ATOMIC, json={"id": "c", "group": "g"}), "transactions", 2)
        assert who.good("POST", ATOMIC, json={"id": "a", "group": "g"})["state"] == "in_progress", "the same again is none more"
    assert who.good("POST", f"{ATOMIC}/whole/commit", json=whole)["state"] == "committed", "it is in progress at no moment"
    begun(who)  # of another kind
    for id_, how in (("a", "abort"), ("b", "commit")):
        who.good("POST", f"{ATOMIC}/{id_}/{how}", json={"group": "g"} if how == "commit" else {})
        who.good("POST", ATOMIC, json={"id": f"after-{id_}", "group": "g"})
        assert_full(who.request("POST", ATOMIC, json={"id": "c", "group": "g"}), "transactions", 2)


def test_a_transaction_service_that_runs_alone_counts_for_the_clients_of_those_that_use_it() -> None:
    with (
        running_service(token="shared", max_transactions_per_principal=2) as alone,
        running_service(transactions_url=alone.url, transactions_token="shared") as first,
        running_service(transactions_url=alone.url, transactions_token="shared") as second,
    ):
        one, other = (Carrying(each.url).holding("ada", "admin") for each in (first, second))
        pointers = [begun(one), begun(other)]
        for who in (one, other):
            assert_full(who.request("POST", TX, json={}), "transactions", 2)
        other.good("POST", f"{TX}/{pointers[0]}/abort")
        begun(one)
        begun(Carrying(alone.url, "shared"))  # it is another principal there


# --- topics of a namespace


def make(house: House, name: str, namespace: str = "default", secret: str | None = None) -> requests.Response:
    return Carrying(house.service.url, secret or None).request("PUT", f"/v1/namespaces/{namespace}/topics/{name}", json={})


def delete(house: House, name: str) -> requests.Response:
    return Carrying(house.service.url).request("DELETE", f"/v1/namespaces/default/topics/{name}")


def test_a_namespace_has_so_many_topics_and_deleting_makes_room(house: House) -> None:
    house.make("a")
    house.make("b")
    house.make("c")
    house.restart(max_topics_per_namespace=2)
    assert told(house.make("c").send("p", 0)) == "s", "those that are there go on"
    for name in ("d", "e"):
        assert_full(make(house, name), "topics", 2, soon=False)
    assert_problem(make(house, "a"), 409, "topic_exists")
    assert [make(house, name, "other").status_code for name in "ab"] == [200, 200]
    assert_full(make(house, "c", "other"), "topics", 2, soon=False)
    done(delete(house, "a"))
    assert_full(make(house, "d"), "topics", 2, soon=False)
    done(delete(house, "b"))
    for life in house.lives():
        if life == "now":
            done(make(house, "a"))  # again
        assert_full(make(house, "b"), "topics", 2, soon=False)
        assert Carrying(house.service.url).good("GET", "/v1/namespaces/default/topics") == ["a", "c"]


def test_a_namespace_has_a_bound_that_nobody_has_set_and_one_that_is_beyond_it_goes_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        house.make(name)
    monkeypatch.setattr("oncelog_service.topics.changes.MOST_UNSET", 2)
    house.restart()
    for number, _ in enumerate(house.lives()):
        assert told(house.make("c").send("p", number)) == "s"
        assert_full(make(house, "d"), "topics", 2, soon=False)
    for name in "ab":
        done(delete(house, name))
    done(make(house, "d"))
    assert_full(make(house, "e"), "topics", 2, soon=False)


def test_of_topics_that_are_made_at_the_same_moment_as_many_are_there_as_may_be(house: House) -> None:
    house.restart(max_topics_per_namespace=3)

    async def make_all(service: Service) -> list[bool]:
        made = (service.opening.topics.changes.create("at_once", f"t{number}", {}) for number in range(8))
        return [found is None for found in await asyncio.gather(*made, return_exceptions=True)]

    assert sum(house.service.on_loop(make_all)) == 3
    assert len(Carrying(house.service.url).good("GET", "/v1/namespaces/at_once/topics")) == 3


# --- producers of a topic


def opening(topic: Topic, name: str | None = None) -> requests.Response:
    return topic.request("POST", "/producers", json={"name": name, "nonce": uuid4().hex})


def test_a_topic_has_so_many_producers_however_they_came_and_forgetting_makes_room(house: House) -> None:
    house.restart(max_producers_per_topic=3)
    topic = house.topic
    done(opening(topic, "opened"))
    assigned = done(opening(topic)).json()
    assert told(topic.send("sends", 0)) == "s"
    for _ in house.lives():
        assert_full(opening(topic, "new"), "producers", 3, soon=False)
        assert_full(opening(topic), "producers", 3, soon=False)
        assert_full(topic.publish("x", producer="new", sequenceIds=[0]), "producers", 3, soon=False)
        for known in ("opened", "sends"):
            done(opening(topic, known))
        assert told(topic.send("sends", 0)) == "d"
        done(topic.publish("without a name"))
        names = sorted(each["name"] for each in topic.good("GET", "/producers"))
        assert names == sorted(["opened", "sends", assigned["name"]])
    done(topic.request("DELETE", "/producers/opened"))
    assert told(topic.send("new", 0)) == "s"
    assert_full(opening(topic, "opened"), "producers", 3, soon=False)
    epoch = done(opening(topic, assigned["name"])).json()["epoch"]
    done(topic.request("DELETE", f"/producers/{assigned['name']}", params={"epoch": epoch}))
    done(opening(topic, "opened"))
    assert_full(opening(topic), "producers", 3, soon=False)


def test_what_is_stored_or_staged_counts_when_it_appears(house: House) -> None:
    house.restart(max_producers_per_topic=2)
    topic, pointer = house.topic, house.start()
    anybody = Carrying(house.service.url)
    done(topic.store(pointer, "x", producer="stored", sequenceIds=[0]))
    anybody.good("POST", ATOMIC, json={"id": "a", "group": "g"})
    chunk: dict[str, Any] = {"messages": ["x"], "producer": "staged", "sequenceIds": [0]}
    done(topic.request("PUT", "/stage/a/0", json=chunk))
    assert told(topic.send("p", 0)) == "s"
    assert told(topic.send("q", 0)) == "s"
    assert_full(topic.publish(transactionWritePointer=pointer), "producers", 2, soon=False)
    assert_full(anybody.request("POST", f"{ATOMIC}/a/commit", json={}), "producers", 2, soon=False)
    assert_full(topic.store(pointer, "x", producer="more", sequenceIds=[0]), "producers", 2, soon=False)
    assert_full(topic.request("PUT", "/stage/a/1", json={**chunk, "producer": "more"}), "producers", 2, soon=False)
    done(topic.request("DELETE", "/producers/q"))
    assert anybody.good("POST", f"{ATOMIC}/a/commit", json={})["state"] == "committed", "it was in progress as before"
    assert_full(topic.publish(transactionWritePointer=pointer), "producers", 2, soon=False)
    done(topic.request("DELETE", "/producers/p"))
    done(topic.publish(transactionWritePointer=pointer))
    assert_full(topic.publish("x", producer="p", sequenceIds=[1]), "producers", 2, soon=False)


def test_what_a_transaction_brings_counts_until_it_is_rolled_back(house: House) -> None:
    house.restart(max_producers_per_topic=1)
    topic, pointer = house.topic, house.start()
    topic.publish_under(pointer, "x", producer="p", sequenceIds=[0])
    assert_full(topic.publish("x", producer="q", sequenceIds=[0]), "producers", 1, soon=False)
    house.end(pointer, "abort")
    house.settle()
    assert told(topic.send("q", 0)) == "s"
    assert_full(topic.publish("x", producer="p", sequenceIds=[0]), "producers", 1, soon=False)


# --- subscriptions of a topic


def subscribing(topic: Topic, name: str) -> requests.Response:
    return topic.request("POST", "/subscriptions", json={"name": name, "nonce": uuid4().hex})


def test_a_topic_has_so_many_subscriptions_and_deleting_makes_room(house: House) -> None:
    topic = house.topic
    for name in ("a", "b", "c"):
        done(subscribing(topic, name))
    house.restart(max_subscriptions_per_topic=2)
    for _ in house.lives():
        assert_full(subscribing(topic, "new"), "subscriptions", 2, soon=False)
        for known in ("a", "b", "c"):
            epoch = done(subscribing(topic, known)).json()["epoch"]
            done(topic.request("POST", f"/subscriptions/{known}/receive", json={"epoch": epoch}))
    done(topic.request("DELETE", "/subscriptions/a"))
    assert_full(subscribing(topic, "new"), "subscriptions", 2, soon=False)
    done(topic.request("DELETE", "/subscriptions/b"))
    done(subscribing(topic, "new"))
    assert_full(subscribing(topic, "a"), "subscriptions", 2, soon=False)


def test_names_of_producers_that_were_forgotten_and_still_fence_who_had_them_are_bounded_too(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "GONE", 2)
    house.restart(max_producers_per_topic=2)
    topic = house.topic
    for name in "abcd":
        done(opening(topic, name))
        done(topic.request("DELETE", f"/producers/{name}"))
    for _ in house.lives():
        full = opening(topic, "e")
        assert_full(full, "producers", 2, soon=False)
        assert "4 names" in full.json()["detail"]
    done(opening(topic, "a"))
    house.again()
    done(opening(topic, "e"))


def test_names_of_deleted_subscriptions_are_given_back_the_oldest_first_and_who_had_them_stays_fenced(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "GONE", 2)
    monkeypatch.setattr(subscriptions, "_GIVEN_BACK_AT_ONCE", 2)
    house.restart(max_subscriptions_per_topic=2)
    topic = house.topic

    def receiving(name: str, epoch: int) -> requests.Response:
        return topic.request("POST", f"/subscriptions/{name}/receive", json={"epoch": epoch})

    highest = {
        name: [done(subscribing(topic, name)).json()["epoch"] for _ in range(opens)][-1] for name, opens in (("z", 3), ("y", 1))
    }
    for name in "zy":
        done(topic.request("DELETE", f"/subscriptions/{name}"))
    for number in range(9):
        done(subscribing(topic, f"n{number}"))
        done(topic.request("DELETE", f"/subscriptions/n{number}"))
    for name, epoch in highest.items():
        assert_problem(receiving(name, epoch), 404, "subscription_not_found")
    assert_problem(receiving("n8", 1), 403, "consumer_fenced")
    assert topic.good("GET", "/subscriptions") == []
    for _ in house.lives():
        for name, epoch in highest.items():
            begun = done(subscribing(topic, name)).json()["epoch"]
            assert begun > epoch + 1
            for older in range(1, epoch + 2):  # its delete has begun one, too
                assert_problem(receiving(name, older), 403, "consumer_fenced")
            done(receiving(name, begun))
            done(topic.request("DELETE", f"/subscriptions/{name}"))


def test_a_topic_that_is_full_is_not_counted_for_each_that_is_refused(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.restart(max_producers_per_topic=3)
    topic = house.topic
    for number in range(3):
        done(opening(topic, f"p{number}"))
        topic.send(f"p{number}", 0)
    counted: list[int] = []
    producers = Deduplicator.producers

    def noted(dedup: Deduplicator) -> set[str]:
        counted.append(1)
        return producers(dedup)

    monkeypatch.setattr(Deduplicator, "producers", noted)
    for number in range(20):
        assert_full(topic.publish("x", producer=f"new{number}", sequenceIds=[0]), "producers", 3, soon=False)
        topic.send("p0", number + 1)
    assert len(counted) <= 1
    done(topic.request("DELETE", "/producers/p1"))
    done(topic.publish("x", producer="new", sequenceIds=[0]))


# --- keys of a topic that checks expectations


def test_a_topic_that_checks_expectations_has_so_many_keys_however_they_came(house: House) -> None:
    topic = house.make("t", **{"check.expected.offsets": "true"})
    done(topic.publish("x", "y", "z", keys=["a", "b", "c"]))
    house.restart(max_keys_per_topic=2)
    for _ in house.lives():
        assert_full(topic.publish("x", "x", keys=["a", "new"]), "keys", 2, soon=False)
        done(topic.publish("x", "y", "z", "w", keys=["a", "b", "c", None]))
        done(topic.publish("without a key"))
    house.again(**{"check.expected.offsets": "true"})
    done(topic.publish("x", "x", keys=["a", "a"], producer="p", sequenceIds=[0, 1]))
    pointer, whole = house.start(), {"group": "g", "parts": [{"namespace": "default", "topic": "t"}]}
    done(topic.store(pointer, "x", "y", keys=["b", "c"]))
    assert_full(topic.publish(transactionWritePointer=pointer), "keys", 2, soon=False)
    whole["parts"][0]["request"] = {"messages": ["x", "y"], "keys": ["b", "c"]}  # type: ignore[index]
    anybody = Carrying(house.service.url)
    assert_full(anybody.request("POST", f"{ATOMIC}/a/commit", json=whole), "keys", 2, soon=False)
    done(topic.publish("x", keys=["b"], transactionWritePointer=pointer))
    assert_full(topic.publish("x", keys=["d"]), "keys", 2, soon=False)
    done(topic.publish("x", "x", "y", keys=["a", "a", "b"], producer="p", sequenceIds=[0, 1, 2]))
    topic.publish_under(other := house.start(), "x", keys=["a"])
    for each in (pointer, other):
        house.end(each, "abort")
    house.settle()
    assert_full(topic.publish("x", keys=["c"]), "keys", 2, soon=False)


def test_a_key_that_was_rolled_back_makes_room(house: House) -> None:
    house.restart(max_keys_per_topic=1)
    topic, pointer = house.make("t", **{"check.expected.offsets": "true"}), house.start()
    topic.publish_under(pointer, "x", keys=["a"])
    assert_full(topic.publish("x", keys=["b"]), "keys", 1, soon=False)
    house.end(pointer, "abort")
    house.settle()
    done(topic.publish("x", keys=["b"]))


# --- many at once


def begin(house: House, number: int, secret: str) -> requests.Response:
    return carrying(house, secret).request("POST", TX, json={})


def come(house: House, number: int, _: str) -> requests.Response:
    topic = house.aside()
    return opening(topic, f"p{number}") if number % 2 else topic.publish("x", producer=f"p{number}", sequenceIds=[0])


@pytest.mark.parametrize(
    ("setting", "ask"),
    [
        ("max_transactions_per_principal", begin),
        ("max_topics_per_namespace", lambda house, number, secret: make(house, f"t{number}", "other", secret)),
        ("max_producers_per_topic", come),
        ("max_keys_per_topic", lambda house, number, secret: house.aside().publish("x", keys=[f"k{number}"])),
        ("max_subscriptions_per_topic", lambda house, number, secret: subscribing(house.aside(), f"s{number}")),
    ],
)
def test_many_at_once_are_no_more_than_there_may_be(
    house: House, setting: str, ask: Callable[[House, int, str], requests.Response]
) -> None:
    house.restart(**{setting: 5})
    house.make(**{"check.expected.offsets": "true"})
    secret = Carrying(house.service.url).make("ada", "admin")["secret"] if ask is begin else ""
    with ThreadPoolExecutor(16) as pool:
        assert statuses(list(pool.map(lambda number: ask(house, number, secret), range(30)))) == {200: 5, 429: 25}
