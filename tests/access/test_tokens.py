"""Tokens: the first one locks the service, the last one stays; what is known of them, and where."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from oncelog.errors import Unauthorized
from oncelog_service.access.access import Access
from oncelog_service.access.grants import Right
from oncelog_service.access.tokens import draw
from oncelog_service.service import Service
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, StoreError
from tests.access.carrying import Carrying
from tests.patience import PATIENCE, until
from tests.rest.talk import assert_problem
from tests.world.clock import ManualClock
from tests.world.disk import HeldStore, crashed, disarm
from tests.world.service import RunningService, running_service

TOPIC = "/v1/namespaces/default/topics/t"


@pytest.fixture
def service(clock: ManualClock) -> Iterator[RunningService]:
    with running_service(clock=clock) as found:
        yield found


@pytest.fixture
def anyone(service: RunningService) -> Carrying:
    return Carrying(service.url)


def test_the_first_token_locks_what_was_open_to_everybody(anyone: Carrying) -> None:
    anyone.good("PUT", TOPIC, json={})
    ada = anyone.holding("ada", "admin")
    assert not anyone.is_let_in
    assert_problem(anyone.request("POST", TOPIC + "/publish", json={"messages": ["a"]}), 401, "unauthorized")
    assert not anyone.carrying("oncelog_" + "A" * 43).is_let_in
    ada.good("POST", TOPIC + "/publish", json={"messages": ["a"]})


@pytest.mark.parametrize("grants", [["read:*/*"], ["operate"], ["write:default/t", "manage:*/*"]])
def test_the_first_token_must_be_able_to_make_others(anyone: Carrying, grants: list[str]) -> None:
    assert "first token" in assert_problem(anyone.create("ada", *grants), 400, "invalid_request")["detail"]
    assert_problem(anyone.create("ada", "admin", expiresInMs=1_000), 400, "invalid_request")
    assert_problem(anyone.create("cert:ada", "admin"), 400, "invalid_request")  # has no secret: nobody may hold the certificate
    assert anyone.is_let_in, "nothing was made"


NO_TOKENS: list[tuple[str, list[str], dict[str, object]]] = [
    ("", ["admin"], {}),
    ("a b", ["admin"], {}),
    ("ada\n", ["admin"], {}),
    ("other:ada", ["admin"], {}),
    ("oidc:ada", ["admin"], {}),
    ("cert:", ["admin"], {}),
    ("cert:a b", ["admin"], {}),
    ("a:b", ["admin"], {}),
    ("anonymous", ["admin"], {}),
    ("oncelog", ["admin"], {}),
    ("settings", ["admin"], {}),
    ("å", ["admin"], {}),
    ("a" * 201, ["admin"], {}),
    ("ada", [], {}),
    ("ada", ["reads:*/*"], {}),
    ("ada", ["admin", "root"], {}),
    ("ada", ["admin"], {"expiresInMs": 0}),
    ("ada", ["admin"], {"expiresInMs": -1}),
    ("ada", ["admin"], {"expiresInMs": 2**63}),
    ("ada", ["admin"], {"expiresInMs": True}),
    ("ada", ["admin"], {"secret": "mine"}),
    ("ada", ["admin"], {"id": "mine"}),
]


def test_what_is_no_token_is_not_made(anyone: Carrying) -> None:
    for name, grants, fields in NO_TOKENS:
        assert_problem(anyone.create(name, *grants, **fields), 400, "invalid_request")
        assert anyone.is_let_in, (name, grants, fields)


def test_the_last_token_with_admin_and_no_end_is_not_revoked(anyone: Carrying) -> None:
    made = anyone.make("ada", "admin")
    ada = anyone.carrying(made["secret"])
    ada.make("for-a-day", "admin", expiresInMs=86_400_000)
    ada.make("cert:ops", "admin")  # has no secret: whether there is such a certificate is not known here
    reader = ada.make("reader", "read:*/*")
    assert "last token" in assert_problem(ada.revoke(made["id"]), 400, "invalid_request")["detail"]
    assert ada.revoke(reader["id"]).status_code == 200
    second = ada.make("grace", "admin")
    assert ada.revoke(made["id"]).status_code == 200
    assert not ada.is_let_in
    grace = ada.carrying(second["secret"])
    assert_problem(grace.revoke(made["id"]), 404, "token_not_found")
    assert_problem(grace.revoke(second["id"]), 400, "invalid_request")
    assert grace.is_let_in


def test_with_a_token_in_the_settings_all_others_can_be_revoked() -> None:
    with running_service(token="of-the-settings") as service:
        settings = Carrying(service.url, "of-the-settings")
        made = settings.make("reader", "read:*/*")  # nor need the first one have admin
        assert settings.carrying(made["secret"]).is_let_in
        assert settings.revoke(made["id"]).status_code == 200
        assert not settings.carrying(made["secret"]).is_let_in
        assert not Carrying(service.url).is_let_in


def test_where_no_token_keeps_admin_the_others_can_be_revoked_but_not_all(clock: ManualClock) -> None:
    disk = Disk()
    with running_service(token="of-the-settings", clock=clock, open_store=lambda: MemoryStore(disk)) as service:
        settings = Carrying(service.url, "of-the-settings")
        reader = settings.make("reader", "read:*/*")
        passing = settings.make("passing", "admin", expiresInMs=1_000)
    with running_service(clock=clock, open_store=lambda: MemoryStore(disk)) as service:  # which has lost its own
        who = Carrying(service.url, passing["secret"])
        assert who.revoke(reader["id"]).status_code == 200
        assert_problem(who.revoke(passing["id"]), 400, "invalid_request")
        clock.advance(1_001)
        assert not who.is_let_in
        assert not Carrying(service.url).is_let_in, "what was locked does not open by itself"


def test_a_token_of_the_store_in_the_settings_is_what_the_store_says(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    with running_service(clock=clock, open_store=lambda: MemoryStore(disk)) as service:
        made = Carrying(service.url).make("ada", "admin")
        shop = Carrying(service.url, made["secret"]).make("shop", "write:default/t")
    with running_service(token=shop["secret"], clock=clock, open_store=lambda: MemoryStore(disk)) as service:
        who = Carrying(service.url, shop["secret"])
        assert assert_problem(who.create("more", "admin"), 403, "not_allowed")["principal"] == "shop"
        assert_problem(who.request("GET", "/metrics"), 403, "not_allowed")
        ada = Carrying(service.url, made["secret"])
        assert_problem(ada.revoke(made["id"]), 400, "invalid_request")
        assert ada.revoke(shop["id"]).status_code == 200
        assert not who.is_let_in, "what the store has ended does not become more by that"
        assert "that of shop in the store" in caplog.text
        assert shop["secret"] not in caplog.text


async def test_a_token_of_the_store_that_comes_into_the_settings_later_is_what_the_store_says() -> None:
    store = MemoryStore(Disk())
    batch = Batch()
    token, secret = draw("shop", ["write:default/t"], 0, None)
    token.put(batch)
    store.write([batch])
    access = Access("of-the-settings", lambda: 1, locked=False)
    await access.open(store, cast(Any, None), cast(Any, None), None)
    access.configure(secret)
    assert access.principal_of(secret.encode()).name == "shop"
    with pytest.raises(Unauthorized):
        access.principal_of(b"of-the-settings")


def test_a_token_holds_until_it_expires(anyone: Carrying, clock: ManualClock) -> None:
    ada = anyone.holding("ada", "admin")
    brief = ada.holding("brief", "admin", expiresInMs=1_000)
    clock.advance(999)
    assert brief.is_let_in
    clock.advance(1)
    assert not brief.is_let_in
    assert [each["name"] for each in ada.good("GET", "/v1/tokens")] == ["ada", "brief"]


def test_two_tokens_of_one_name_hold_at_once_each_with_its_grants(anyone: Carrying) -> None:
    ada = anyone.holding("ada", "admin")
    old, new = ada.make("loader", "read:default/a", "operate"), ada.make("loader", "read:default/b", "operate")
    assert old["id"] != new["id"]
    before, after = ada.carrying(old["secret"]), ada.carrying(new["secret"])
    assert before.is_let_in
    assert after.is_let_in
    assert_problem(before.request("POST", "/v1/namespaces/default/topics/b/poll", json={}), 403, "not_allowed")
    assert_problem(after.request("POST", "/v1/namespaces/default/topics/b/poll", json={}), 404, "topic_not_found")
    assert ada.revoke(old["id"]).status_code == 200
    assert not before.is_let_in
    assert after.is_let_in


def test_a_list_tells_everything_but_secrets(anyone: Carrying, clock: ManualClock) -> None:
    made = anyone.make("ada", "admin", "admin", "operate")
    ada = anyone.carrying(made["secret"])
    (listed,) = ada.good("GET", "/v1/tokens")
    assert listed == {
        "id": made["id"], "name": "ada", "grants": ["admin", "operate"], "createdMs": clock.now_ms(), "expiresMs": None
    }  # fmt: skip
    assert made["secret"].startswith("oncelog_")
    assert len(made["secret"]) == len("oncelog_") + 43
    assert made["id"] not in made["secret"]
    assert ada.make("cert:ops.example", "read:*/*")["secret"] is None


# --- principals, where the connection and other instances say who asks


def asked(service: RunningService, *credentials: object) -> tuple[str, bool]:
    """Name and whether it is an admin, as the service sees it."""

    async def ask(each: object) -> tuple[str, bool]:
        who = service.service.access.principal_of(*credentials)
        return who.name, who.may(Right.ADMIN)

    return service.on_loop(ask)


def test_a_certificate_is_a_principal_with_the_grants_of_its_rows(
    service: RunningService, anyone: Carrying, clock: ManualClock
) -> None:
    ada = anyone.holding("ada", "admin")
    with pytest.raises(Unauthorized, match="nothing is granted to 'cert:ops'"):
        asked(service, None, "ops")
    ada.make("cert:ops", "read:default/a")
    row = ada.make("cert:ops", "admin", expiresInMs=1_000)
    assert asked(service, None, "ops") == ("cert:ops", True)
    clock.advance(1_000)
    assert asked(service, None, "ops") == ("cert:ops", False)
    with pytest.raises(Unauthorized):
        asked(service, None, "OPS")
    with pytest.raises(Unauthorized):
        asked(service, b"", "ops")  # no secret is no token
    with pytest.raises(Unauthorized):
        asked(service, b"cert:ops", None)
    assert ada.revoke(row["id"]).status_code == 200
    bearer = ada.make("loader", "read:*/*")["secret"].encode()
    assert asked(service, bearer, "ops") == ("loader", False), "a token says more than the connection"


def test_only_instances_ask_for_others(service: RunningService, anyone: Carrying) -> None:
    made = anyone.make("ada", "admin")
    ada = anyone.carrying(made["secret"])
    ada.make("cert:ops", "read:default/a")
    assert asked(service, made["secret"].encode(), None, b"cert:ops") == ("ada", True)
    with pytest.raises(Unauthorized):
        asked(service, None, None, b"cert:ops")
    with pytest.raises(Unauthorized):
        asked(service, b"wrong", None, b"ada")
    asks = ada.carrying(made["secret"], **{"oncelog-principal": "cert:ops"})
    assert asks.is_let_in
    assert len(asks.good("GET", "/v1/tokens")) == 2  # as itself
    for name in ("cert:ops", "ops", "ada", "oncelog", "settings", "anonymous"):
        assert not Carrying(service.url, **{"oncelog-principal": name}).is_let_in


async def test_an_instance_asks_with_the_rights_of_whom_it_asks_for() -> None:
    access = Access("of-the-settings", lambda: 0, locked=True)
    assert access.principal_of(b"of-the-settings").name == "settings"
    with pytest.raises(Unauthorized):
        access.principal_of(b"of-the-settings", None, b"cert:nobody")
    with pytest.raises(Unauthorized):
        access.principal_of(b"of-the-settings", None, b"settings")  # which is nobody's row


# --- what becomes of them


def test_tokens_are_known_again_after_a_crash_at_any_moment(clock: ManualClock) -> None:
    disk = Disk()
    with running_service(clock=clock, open_store=lambda: MemoryStore(disk)) as service:
        made = Carrying(service.url).make("ada", "admin")
        reader = Carrying(service.url, made["secret"]).make("reader", "read:*/*")
        before = crashed(disk)
        Carrying(service.url, made["secret"]).revoke(reader["id"])
        after = crashed(disk)
    for secret in (made["secret"], reader["secret"]):
        bare = secret.removeprefix("oncelog_").encode()
        assert [row for table in disk.tables.values() for row in table.values() if bare in row] == []
    for found, holds in ((before, True), (after, False)):
        with running_service(clock=clock, open_store=lambda: MemoryStore(found)) as service:  # noqa: B023
            assert Carrying(service.url, made["secret"]).is_let_in
            assert Carrying(service.url, reader["secret"]).is_let_in is holds
            assert not Carrying(service.url).is_let_in


def test_what_was_handed_over_by_a_caller_who_has_gone_is_known_beside_the_next(clock: ManualClock) -> None:
    store = HeldStore(Disk())

    async def two(service: Service) -> None:
        store.may.clear()
        store.asked.clear()
        gone = asyncio.ensure_future(service.access.create("gone", ["read:*/*"], None))
        assert await asyncio.to_thread(store.asked.wait, PATIENCE)
        gone.cancel()
        await asyncio.wait([gone])
        following = asyncio.ensure_future(service.access.revoke(old["id"]))
        for _ in range(50):
            await asyncio.sleep(0.001)
        store.may.set()
        await following

    with running_service(clock=clock, open_store=lambda: store) as service:
        ada = Carrying(service.url).holding("ada", "admin")
        old = ada.make("old", "read:*/*")
        service.on_loop(two)
        assert [each["name"] for each in ada.good("GET", "/v1/tokens")] == ["ada", "gone"]


def test_while_the_store_is_closed_nothing_is_changed_and_tokens_hold(clock: ManualClock) -> None:
    disk, closed = Disk(), [False]

    def open_store() -> MemoryStore:
        if closed[0]:
            raise StoreError("No space left on device")
        return MemoryStore(disk)

    def fail(_: object) -> None:
        raise OSError(28, "No space left on device")

    with running_service(clock=clock, open_store=open_store) as service:
        ada = Carrying(service.url).holding("ada", "admin")
        closed[0], disk.before_sync = True, fail
        assert_problem(ada.create("failed", "read:*/*"), 503, "storage_failed", definite=False)
        for _ in range(2):
            problem = assert_problem(ada.create("refused", "read:*/*"), 503, "storage_unavailable")
            assert problem["definite"]
        assert [each["name"] for each in ada.good("GET", "/v1/tokens")] == ["ada"]
        closed[0] = False
        disarm(disk)
        until(lambda: ada.request("GET", "/healthz").status_code == 200)
        ada.make("later", "read:*/*")
