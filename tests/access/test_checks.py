"""Forged signed tokens cost whoever sends them, and nobody else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jwt", reason="the extra jwt is not installed")

from oncelog.errors import Overloaded, Unauthorized
from oncelog_service.access import checks as checks_module
from oncelog_service.access.checks import FAILURES, WAITING, Checks, Unchecked
from oncelog_service.access.issuer import Issuer
from oncelog_service.access.tokens import digest_of
from oncelog_service.traffic import Traffic
from tests.access.carrying import Carrying
from tests.access.signing import jwk, key_set
from tests.access.test_issuer import KEY, NOW_MS, OTHER, issuer_of, keys, settings, token
from tests.patience import until
from tests.rest.talk import assert_problem, connected, head, read_answer
from tests.world.clock import ManualClock
from tests.world.service import running_service
from tests.world.turns import counted

__all__ = ["keys"]


class ByHand(Executor):
    """Does what it is asked when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.asked.append((future, lambda: fn(*args, **kwargs)))
        return future

    async def one(self) -> None:
        """Do the oldest."""
        future, call = self.asked.pop(0)
        try:
            future.set_result(call())
        except Exception as failure:
            future.set_exception(failure)
        for _ in range(5):
            await asyncio.sleep(0)


class World:
    """Checks by an issuer, over a thread and a clock that the test moves."""

    def __init__(self, issuer: Issuer) -> None:
        self.now, self.hand, self.issuer, self.traffic = 0.0, ByHand(), issuer, Traffic()
        self.checks = Checks(issuer, self.hand, lambda: NOW_MS, lambda: self.now, self.traffic)

    def begin(self, text: str, address: str = "a") -> asyncio.Future[None]:
        return self.checks.begin(Unchecked(text.encode(), digest_of(text.encode())), address)

    def is_known(self, text: str) -> bool:
        return self.issuer.known(digest_of(text.encode()), NOW_MS) is not None


async def world(path: Path) -> World:
    return World(await issuer_of(path / "keys"))


async def test_a_token_that_many_carry_is_checked_once_and_is_known_then(tmp_path: Path) -> None:
    it, text = await world(tmp_path), token()
    assert it.begin(text) is it.begin(text, "b")
    assert not it.is_known(text)
    assert len(it.hand.asked) == 1
    checked = it.begin(text)
    await it.hand.one()
    assert checked.result() is None
    assert it.is_known(text)


async def test_addresses_take_turns_and_a_flood_of_one_holds_up_another_by_one_check(tmp_path: Path) -> None:
    it = await world(tmp_path)
    flood = [it.begin(token(sub=f"s{number}")) for number in range(50)]
    other = it.begin(token(sub="other"), "b")
    for _ in range(3):
        await it.hand.one()
    assert other.done()
    assert sum(each.done() for each in flood) == 2


async def test_what_waits_is_bounded_and_one_address_leaves_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks_module, "WAITING", 8)
    it = await world(tmp_path)
    for number in range(5):
        it.begin(token(sub=f"s{number}"))
    with pytest.raises(Overloaded):
        it.begin(token(sub="one more"))
    it.begin(token(sub="other"), "b")
    assert it.traffic.refused["tokens"] == 1


async def test_an_address_whose_tokens_did_not_hold_is_refused_without_a_check_until_one_more_may_fail(tmp_path: Path) -> None:
    it = await world(tmp_path)
    forged = [it.begin(token(OTHER, sub=f"s{number}")) for number in range(FAILURES + 3)]
    for _ in range(FAILURES):
        await it.hand.one()
    assert not it.hand.asked, "those that wait are not checked either"
    assert [type(each.exception()) for each in forged] == [Unauthorized] * FAILURES + [Overloaded] * 3
    with pytest.raises(Overloaded):
        it.begin(token(sub="good"))
    other = it.begin(token(sub="other"), "b")
    await it.hand.one()
    assert other.exception() is None
    it.now += 1 / FAILURES
    good = it.begin(token(sub="good"))
    await it.hand.one()
    assert good.exception() is None
    for number in range(3 * FAILURES):  # what holds costs nothing
        it.begin(token(sub=f"good{number}"))
        await it.hand.one()


async def test_what_is_plainly_no_token_of_the_issuer_never_waits(tmp_path: Path) -> None:
    it = await world(tmp_path)
    for text in ("a.b.c", token(kid="b"), token(padding="a" * 16_000)):
        with pytest.raises(Unauthorized):
            it.begin(text)
    assert not it.hand.asked


async def test_a_key_that_goes_while_its_token_is_checked_verifies_nothing_and_the_others_tokens_stay_known(
    tmp_path: Path,
) -> None:
    it, before, during = await world(tmp_path), token(sub="before"), token(sub="during")
    it.begin(before)
    await it.hand.one()
    (tmp_path / "keys").write_bytes(key_set(jwk(KEY, "a"), jwk(OTHER, "new")))
    assert await it.issuer.read()
    assert it.is_known(before)
    checked = it.begin(during)
    (tmp_path / "keys").write_bytes(key_set(jwk(OTHER, "new")))
    assert await it.issuer.read()
    await it.hand.one()
    assert isinstance(checked.exception(), Unauthorized)
    assert not it.is_known(before)


async def test_who_has_nothing_that_waits_is_checked_instead_of_the_last_of_whoever_has_most(keys: Path) -> None:
    it = World(await issuer_of(keys))
    flood = list[asyncio.Future[None]]()
    for network in range(9):
        with suppress(Overloaded):
            while True:
                flood.append(it.begin(token(OTHER, jti=f"{network}-{len(flood)}"), f"net{network}"))
    assert len(flood) >= WAITING
    displaced = sum(each.done() for each in flood)
    mine = it.begin(token(sub="mine"), "mine")
    assert sum(each.done() for each in flood) == displaced + 1
    assert {type(each.exception()) for each in flood if each.done()} == {Overloaded}
    while not mine.done():
        await it.hand.one()
    assert it.is_known(token(sub="mine")) or mine.exception() is None


async def test_a_token_that_says_itself_that_it_has_expired_is_refused_without_a_check_and_counts_as_no_failure(
    keys: Path,
) -> None:
    it = World(await issuer_of(keys))
    for _ in range(2 * FAILURES):
        with pytest.raises(Unauthorized, match="expired"):
            it.begin(token(exp=NOW_MS // 1000 - 60))
    assert not it.hand.asked
    it.begin(token())
    assert it.hand.asked


def test_a_flood_of_forged_tokens_is_checked_ten_times_and_never_on_the_event_loop(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred connections with them made a victim's request of a millisecond one of 93 to 374."""
    checked_on, read = list[str](), Issuer.read_token

    def noting(*args: Any) -> Any:
        checked_on.append(threading.current_thread().name)
        return read(*args)

    with running_service(clock=ManualClock(), **settings(keys)) as service:
        known = Carrying(service.url, token(sub="known"))
        until(lambda: known.is_let_in, "the keys are read")
        monkeypatch.setattr(Issuer, "read_token", noting)
        forged = [Carrying(service.url, token(OTHER, sub=f"s{number}")) for number in range(2 * FAILURES)]
        with counted(service.loop) as turns:
            statuses = [each.request("GET", "/v1/namespaces").status_code for each in forged]
            assert known.is_let_in
        assert statuses == [401] * FAILURES + [503] * FAILURES
        assert turns.longest < 1_000, turns.where
        assert_problem(Carrying(service.url, token(sub="new")).request("GET", "/v1/namespaces"), 503, "overloaded")
    assert len(checked_on) == FAILURES
    assert all("oncelog-checking" in name for name in checked_on), checked_on


def test_the_body_of_a_request_with_a_forged_token_is_not_waited_for(keys: Path) -> None:
    with running_service(clock=ManualClock(), **settings(keys)) as service:
        until(lambda: Carrying(service.url, token()).is_let_in, "the keys are read")
        for text, status in ((token(OTHER), 401), (token(sub="other", oncelog_grants=["write:*/*"]), 404)):
            with connected(service.url) as connection, connection.makefile("rb") as stream:
                begin = head(
                    "POST", "/v1/namespaces/default/topics/none/publish", f"authorization: Bearer {text}", "content-length: 15",
                    "content-type: application/json",
                )  # fmt: skip
                connection.sendall(begin + b'{"message')
                if status == 404:
                    connection.sendall(b's":[]}')
                assert read_answer(stream)[0] == status
