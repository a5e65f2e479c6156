"""Tokens over several instances: what one of them does, all know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from oncelog_service.cli.stores import opening
from tests.access.carrying import Carrying
from tests.behaviours.cli.support import run, value
from tests.cluster.instances import InPlace, Instances, address, in_place, side_by_side
from tests.patience import until


@pytest.fixture
def twins() -> Iterator[Instances[InPlace]]:
    with in_place(2) as found:
        yield found


@pytest.fixture
def admin(twins: Instances) -> Carrying:
    """Somebody with every right, made at the first one and known to both."""
    here, there = twins.all
    made = Carrying(here.url).make("ada", "admin")
    until(lambda: not Carrying(there.url).is_let_in, "the other one is locked by the first token")
    assert Carrying(there.url, made["secret"]).is_let_in, "and knows it"
    return Carrying(here.url, made["secret"])


def at(url: str, who: Carrying) -> Carrying:
    """The same one, elsewhere."""
    return Carrying(url, str(who.session.headers["authorization"]).removeprefix("Bearer "))


def test_what_is_made_and_revoked_at_one_instance_holds_at_the_other(twins: Instances[InPlace], admin: Carrying) -> None:
    _, there = twins.all
    made = admin.make("reader", "read:*/*")
    elsewhere = Carrying(there.url, made["secret"])
    until(lambda: elsewhere.is_let_in, "a token made here is known there")
    assert at(there.url, admin).revoke(made["id"]).status_code == 200  # which must know it, whenever it read them
    assert not elsewhere.is_let_in, "at once where it was revoked"
    until(lambda: not Carrying(admin.base, made["secret"]).is_let_in, "and soon elsewhere")


def test_a_token_is_revoked_at_once_by_an_instance_that_has_not_heard_of_it(twins: Instances[InPlace], admin: Carrying) -> None:
    _, there = twins.all
    for number in range(5):
        made = admin.make(f"brief{number}", "read:*/*")
        assert at(there.url, admin).revoke(made["id"]).status_code == 200


def test_of_the_last_two_admins_that_are_revoked_at_once_one_stays(twins: Instances[InPlace], admin: Carrying) -> None:
    here, there = twins.all
    (first,) = (each for each in admin.good("GET", "/v1/tokens") if each["name"] == "ada")
    for _ in range(5):
        made = admin.make("grace", "admin")
        grace = Carrying(there.url, made["secret"])
        until(lambda: grace.is_let_in)  # noqa: B023
        answers = side_by_side(
            [lambda: admin.revoke(made["id"]), lambda: grace.revoke(first["id"])]  # noqa: B023
        )
        codes = sorted(each.status_code for each in answers)
        assert codes[0] == 200
        assert codes[1] in (400, 401), [each.text for each in answers]  # 401: who was revoked asks no more
        if answers[0].status_code != 200:
            admin.session.headers["authorization"] = f"Bearer {made['secret']}"
            first = made
        until(lambda: admin.is_let_in)
        until(lambda: len(at(there.url, admin).good("GET", "/v1/tokens")) == 1, despite=(AssertionError,))
        assert not Carrying(here.url).is_let_in


def test_a_request_that_another_instance_answers_has_the_rights_of_who_asked(twins: Instances[InPlace], admin: Carrying) -> None:
    topics = [f"t{number}" for number in range(8)]
    admin.session.headers["oncelog-route"] = "proxy"
    for topic in topics:
        until(lambda: admin.request("PUT", address(topic), json={}).status_code in (200, 409))  # noqa: B023
    secret = admin.make("reader", "read:default/t*")["secret"]
    who = {each.url: Carrying(each.url, secret, **{"oncelog-route": "proxy"}) for each in twins.all}
    until(lambda: all(each.is_let_in for each in who.values()))
    for each in who.values():
        for topic in topics:
            assert each.good("POST", address(topic) + "/poll", json={}) == []
            assert each.request("POST", address(topic) + "/publish", json={"messages": ["m"]}).status_code == 403
        assert set(each.good("POST", "/v1/namespaces/default/offsets", json={"topics": {name: {} for name in topics}})) == set(
            topics
        )
        assert each.request("GET", "/v1/held").status_code == 403


STORE = "postgresql:///of-the-twins"


@pytest.fixture
def _beside(twins: Instances[InPlace], monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands open the database of the instances."""
    monkeypatch.setattr(opening, "store_opener", lambda _: twins.all[0].database.open)


def token(*arguments: str) -> Any:
    """`oncelog token … --store` beside the instances."""
    return value(run("token", *arguments, "--store", STORE, "--json"))


@pytest.mark.usefixtures("_beside")
def test_tokens_are_made_and_revoked_in_the_store_beside_instances_that_go_on(twins: Instances[InPlace], admin: Carrying) -> None:
    secrets = []
    for number in range(3):
        made = token("create", f"beside{number}", "--grant", "read:*/*")
        secrets.append((made["id"], made["secret"]))
        assert made["id"] in [each["id"] for each in token("list")]
    for each in twins.all:
        for _, secret in secrets:
            until(lambda: Carrying(each.url, secret).is_let_in)  # noqa: B023
    for token_id, _ in secrets:
        token("revoke", token_id, "--yes")
    for each in twins.all:
        for _, secret in secrets:
            until(lambda: not Carrying(each.url, secret).is_let_in)  # noqa: B023
    assert len(admin.good("GET", "/v1/cluster")["instances"]) == 2, "the command is none of them"


@pytest.mark.usefixtures("_beside")
def test_the_last_admin_is_kept_when_one_is_revoked_in_the_store_and_the_other_over_http(
    twins: Instances, admin: Carrying
) -> None:
    (first,) = (each for each in admin.good("GET", "/v1/tokens") if "admin" in each["grants"])
    other = admin.make("hopper", "admin")
    revoked = side_by_side(
        [
            lambda: run("token", "revoke", other["id"], "--yes", "--store", STORE).exit_code == 0,
            lambda: admin.revoke(first["id"]).status_code == 200,
        ]
    )
    assert sorted(revoked) == [False, True]
    left = [each["id"] for each in token("list") if "admin" in each["grants"]]
    assert left == ([first["id"]] if revoked[0] else [other["id"]])
    if revoked[1]:
        admin.session.headers["authorization"] = f"Bearer {other['secret']}"
