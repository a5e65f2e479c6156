"""Whose a transaction is, over several instances: whichever is asked, and whoever leads the transactions by then."""

from __future__ import annotations

import requests

from tests.access.carrying import Carrying
from tests.cluster.instances import InPlace, Instances, address, in_place
from tests.patience import until
from tests.rest.talk import assert_problem

TX = "/v1/transactions"
TOPICS = [f"t{number}" for number in range(6)]
"""Of both instances, most likely; which leads the transactions serves some of them."""


class Everywhere:
    """Somebody, at each of the instances in turn."""

    def __init__(self, twins: Instances, secret: str) -> None:
        self.twins = twins
        self.secret = secret

    @property
    def places(self) -> list[Carrying]:
        return [Carrying(each.url, self.secret, **{"oncelog-route": "proxy"}) for each in self.twins.all if each.running]

    def asks(self, method: str, path: str, json: object) -> list[requests.Response]:
        return [each.request(method, path, json=json) for each in self.places]

    def refused(self, method: str, path: str, json: object) -> None:
        for answer in self.asks(method, path, json):
            assert_problem(answer, 403, "not_allowed")

    def good(self, method: str, path: str, json: object) -> list[requests.Response]:
        answers = self.asks(method, path, json)
        assert {each.status_code for each in answers} == {200}, [each.text for each in answers]
        return answers


def check_owned(ada: Everywhere, bob: Everywhere, pointer: int, name: str) -> None:
    """Nobody but ada does anything with these, wherever it is asked for."""
    for how in ("commit", "can-commit", "abort", "invalidate", "checkpoint"):
        bob.refused("POST", f"{TX}/{pointer}/{how}", {})
    bob.refused("GET", f"{TX}/{pointer}", None)
    bob.refused("GET", f"/v1/atomic/{name}", None)
    for how in ("commit", "abort"):
        bob.refused("POST", f"/v1/atomic/{name}/{how}", {"parts": []} if how == "commit" else None)
    for topic in TOPICS:
        bob.refused("POST", f"{address(topic)}/publish", {"messages": ["bob's"], "transactionWritePointer": pointer})
        bob.refused("POST", f"{address(topic)}/store", {"messages": ["bob's"], "transactionWritePointer": pointer})
        bob.refused("PUT", f"{address(topic)}/stage/{name}/0", {"messages": ["bob's"]})
        ada.good("POST", f"{address(topic)}/publish", {"messages": ["ada's"], "transactionWritePointer": pointer})
    assert {each.json()["owner"] for each in ada.good("GET", f"{TX}/{pointer}", None)} == {"ada"}


def test_only_its_owner_ends_it_or_writes_under_it_also_when_another_instance_leads() -> None:
    with in_place(2) as twins:
        check_both_lives(twins)


def check_both_lives(twins: Instances[InPlace]) -> None:
    here, there = twins.all
    root = Everywhere(twins, Carrying(here.url).make("root", "admin")["secret"])
    until(lambda: all(each.is_let_in for each in root.places))
    for topic in TOPICS:
        until(lambda: root.places[0].request("PUT", address(topic), json={}).status_code in (200, 409))  # noqa: B023
    ada, bob = (Everywhere(twins, root.places[0].make(name, "write:default/*")["secret"]) for name in ("ada", "bob"))
    until(lambda: all(each.is_let_in for who in (ada, bob) for each in who.places))
    pointers = [each.json()["writePointer"] for each in ada.good("POST", TX, {})]
    names = [each.json()["id"] for each in ada.good("POST", "/v1/atomic", {"group": "g"})]
    check_owned(ada, bob, pointers[0], names[0])

    leases = root.places[0].good("GET", "/v1/cluster")["leases"]
    (url,) = (each["url"] for each in leases if each["resource"] == "transactions")
    leader = here if url == here.url else there
    leader.stop()
    until(lambda: {each.status_code for each in ada.asks("GET", f"{TX}/{pointers[1]}", None)} == {200}, "another one leads")
    until(lambda: {each.status_code for each in ada.asks("GET", f"/v1/atomic/{names[1]}", None)} == {200})
    for topic in TOPICS:
        until(lambda: ada.asks("GET", address(topic), None)[0].status_code == 200)  # noqa: B023
    check_owned(ada, bob, pointers[1], names[1])
    for pointer in pointers:
        ada.good("POST", f"{TX}/{pointer}/commit", {})
        bob.refused("GET", f"{TX}/{pointer}", None)
    leader.begin()
    until(lambda: {each.status_code for each in ada.asks("GET", f"{TX}/{pointers[1]}", None)} == {200})
    bob.refused("GET", f"{TX}/{pointers[1]}", None)
