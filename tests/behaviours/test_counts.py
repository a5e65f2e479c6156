"""CONTRACT §10: what one may hold at the same time is bounded, never by one too many; what goes makes room."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from oncelog import Client, errors
from tests.access.carrying import Carrying
from tests.rest.talk import assert_problem
from tests.world.house import House

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
    house.restart(max_transactions_per_principal=3)
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
            assert_full(who.request("POST", TX, json={"type": "long"}), "transactions", 3)
        if life == "now":
            others = [begun(carrying(house, bob)) for _ in range(3)]
            assert_full(carrying(house, bob).request("POST", TX, json={}), "transactions", 3)
        assert {each["writePointer"] for each in who.good("GET", TX)} >= {short, long, prepared, *others}
    for pointer, how in ((short, "commit"), (long, "abort"), (prepared, "commit")):
        who.good("POST", f"{TX}/{pointer}/{how}", json={})
        another = begun(who)
        assert_full(who.request("POST", TX, json={}), "transactions", 3)
        who.good("POST", f"{TX}/{another}/invalidate")
        begun(who)  # what is invalid has ended
    assert_full(carrying(house, bob).request("POST", TX, json={}), "transactions", 3)


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


def test_many_at_once_begin_no_more_than_there_may_be(house: House) -> None:
    house.restart(max_transactions_per_principal=5)
    ada = Carrying(house.service.url).make("ada", "admin")["secret"]

    def start(_: int) -> requests.Response:
        return carrying(house, ada).request("POST", TX, json={})

    with ThreadPoolExecutor(16) as pool:
        assert statuses(list(pool.map(start, range(32)))) == {200: 5, 429: 27}
    assert len(carrying(house, ada).good("GET", TX)) == 5


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


def test_the_sdk_says_what_there_is_too_much_of_and_when_to_come_again(house: House) -> None:
    house.restart(max_transactions_per_principal=1)
    ada = Carrying(house.service.url).make("ada", "admin")["secret"]
    with Client(house.service.url, token=ada, retry=0) as client:
        first = client.start_transaction()
        with pytest.raises(errors.QuotaExceeded) as refused:
            client.start_transaction()
        assert (refused.value.definite, refused.value.quota, refused.value.retry_after) == (True, "transactions", 1.0)
        client.abort_transaction(first.write_pointer)
        client.start_transaction()
