"""What is administrative leaves a line also where no handler saw it, or where nobody waited for its end."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests

from oncelog.errors import NotServedHere
from oncelog_service.access import audit
from oncelog_service.access.audit import ADDRESSES, NAMELESS_LINES, NAMELESS_SECONDS, Asked, Audit
from tests.access.carrying import Carrying
from tests.patience import PATIENCE, until
from tests.rest.talk import assert_problem, connected, head, read_answer
from tests.world.certificates import Authority
from tests.world.clock import ManualClock
from tests.world.service import RunningService, free_port, running_service

TOKENS = "/v1/tokens"


class House:
    """A locked service that keeps an audit log."""

    def __init__(self, service: RunningService, path: Path) -> None:
        self.service, self.path = service, path
        made = Carrying(service.url).make("ada", "admin")
        self.secret = made["secret"]
        self.ada = Carrying(service.url, self.secret)

    @property
    def last(self) -> tuple[Any, ...]:
        """Of the newest line: who asked what, and what came of it."""
        line = json.loads(self.path.read_text().splitlines()[-1])
        return tuple(line.get(name) for name in ("principal", "method", "path", "status", "code"))


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with running_service(audit_log=tmp_path / "audit.jsonl", max_request_bytes=2_000, body_timeout_seconds=0.5) as service:
        yield House(service, tmp_path / "audit.jsonl")


@pytest.mark.parametrize(
    ("headers", "code"), [({"origin": "https://evil.example"}, "foreign_origin"), ({"host": "evil.example"}, "host_not_allowed")]
)
def test_what_a_page_of_another_site_tried_leaves_a_line(house: House, headers: dict[str, str], code: str) -> None:
    answer = house.ada.request("POST", TOKENS, json={"name": "eve", "grants": ["admin"]}, headers=headers)
    assert_problem(answer, answer.status_code, code)
    assert house.last == (None, "POST", TOKENS, answer.status_code, code)


def test_a_query_that_cannot_be_read_leaves_a_line(house: House) -> None:
    path = "/v1/namespaces/default/topics/t"
    assert_problem(house.ada.request("DELETE", path + "?" + "a=1&" * 30), 400, "invalid_request")
    assert house.last == ("ada", "DELETE", path, 400, "invalid_request")


def test_a_line_is_no_longer_than_an_address_may_be(house: House) -> None:
    before = house.path.stat().st_size
    for name in ("\x01" * 20_000, "eyJ" * 20_000):
        requests.delete(f"{house.service.url}/v1/namespaces/default/topics/{quote(name)}", timeout=60)
    assert house.last[0] is None
    assert house.last[2].endswith("... (60030 characters)")
    assert house.path.stat().st_size - before < 20_000, "nor is the disk filled by whoever reaches the port"


class Kept:
    """An audit log whose minutes end when it is told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.audit = Audit(path, lambda seconds, call: self.later.append((seconds, call)))

    def note(self, peer: str, principal: str | None = None, code: str | None = "unauthorized", times: int = 1) -> None:
        for _ in range(times):
            self.audit.note(Asked(1_000, principal, peer, "POST", TOKENS), 401 if code else 200, code)

    def minute_ends(self) -> None:
        [(seconds, call)] = self.later
        assert seconds == NAMELESS_SECONDS
        self.later.clear()
        call()

    def lines(self) -> list[tuple[str | None, str | None, int | None]]:
        """(principal, from, refused) of those since this was asked last."""
        found = [json.loads(line) for line in self.path.read_text().splitlines()]
        self.path.write_text("")
        return [(each["principal"], each["from"], each.get("refused")) for each in found]


def test_who_asks_again_and_again_without_a_credential_fills_no_disk_and_hides_nobody(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "audit.jsonl")
    kept.note("a", times=1_000)
    kept.note("b", times=2)
    kept.note("a", "ada", times=100)
    kept.note("a", "ada", None, times=100)
    assert Counter(kept.lines()) == {(None, "a", None): NAMELESS_LINES, (None, "b", None): 2, ("ada", "a", None): 200}
    kept.minute_ends()
    assert kept.lines() == [(None, "a", 1_000 - NAMELESS_LINES)]
    kept.note("a", times=NAMELESS_LINES + 1)
    assert kept.lines() == [(None, "a", None)] * NAMELESS_LINES
    kept.audit.close()
    assert kept.lines() == [(None, "a", 1)], "a stop says what has not been said"
    kept.minute_ends()
    assert kept.lines() == []


def test_a_line_is_written_also_where_no_thread_begins_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from Python 3.12 on while the process ends: what is done then is kept as what was done before."""
    kept = Kept(tmp_path / "audit.jsonl")

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    kept.note("a", "ada", None)
    assert kept.lines() == [("ada", "a", None)]


def test_who_has_many_addresses_fills_no_disk_either(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "audit.jsonl")
    for number in range(ADDRESSES + 500):
        kept.note(str(number))
    assert len(kept.lines()) == ADDRESSES + NAMELESS_LINES
    kept.note("0")
    assert kept.lines() == [(None, "0", None)]
    kept.minute_ends()
    assert kept.lines() == [(None, None, 500 - NAMELESS_LINES)]


def test_refusals_without_a_credential_are_bounded_where_they_are_answered(house: House) -> None:
    with requests.Session() as session:
        for _ in range(NAMELESS_LINES + 5):
            assert session.delete(house.service.url + TOKENS + "/x", timeout=60).status_code == 401
    assert house.ada.request("DELETE", TOKENS + "/x").status_code == 404
    house.service.stop()
    until(lambda: house.path.read_text().count("refused") == 1, "the count is there")
    lines = [json.loads(line) for line in house.path.read_text().splitlines()]
    assert [each.get("refused") for each in lines[-2:]] == [None, 5]
    assert lines[-2]["principal"] == "ada"
    assert sum(each["principal"] is None for each in lines) == NAMELESS_LINES + 1


@pytest.mark.parametrize(
    ("declared", "status", "code"), [(10**6, 413, "request_too_large"), (5, 408, "request_timeout")]
)  # fmt: skip
def test_a_body_that_is_too_large_or_does_not_come_leaves_a_line(house: House, declared: int, status: int, code: str) -> None:
    headers = f"authorization: Bearer {house.secret}", "content-type: application/json", f"content-length: {declared}"
    with connected(house.service.url) as connection:
        connection.sendall(head("POST", TOKENS, *headers))
        assert read_answer(connection.makefile("rb"))[0] == status
    assert house.last == ("ada", "POST", TOKENS, status, code)


def test_what_a_stop_did_not_wait_for_leaves_a_line(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    async def never(*_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(house.service.service.access, "revoke", never)
    with connected(house.service.url) as connection:
        connection.sendall(head("DELETE", TOKENS + "/ab12", f"authorization: Bearer {house.secret}"))
        assert begun.wait(60)
        house.service.stop()
        until(lambda: house.last[1] == "DELETE", "the line is there")
    assert house.last == ("ada", "DELETE", TOKENS + "/ab12", 500, "internal_error")


def test_what_could_not_be_passed_on_leaves_a_line(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def elsewhere(*_: str) -> None:
        raise NotServedHere(url=f"http://127.0.0.1:{free_port()}")

    monkeypatch.setattr(house.service.service.opening.topics.changes, "delete", elsewhere)
    path = "/v1/namespaces/default/topics/t"
    answer = house.ada.request("DELETE", path, headers={"oncelog-route": "proxy"})
    assert_problem(answer, 503, "storage_unavailable", definite=True)
    assert house.last == ("ada", "DELETE", path, 503, "storage_unavailable")


@pytest.mark.real
def test_certificates_that_are_nobodys_or_have_expired_let_nobody_in_and_leave_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a connection that was begun while the certificate held."""
    monkeypatch.setattr(audit, "_HELD_UP_SECONDS", PATIENCE)  # a line is there before its answer also on a slow machine
    ca, clock = Authority(tmp_path), ManualClock()
    issued, alice = ca.service(), ca.issue("alice", common_names=["alice"])
    several = ca.issue("several", dns=["a.example", "b.example"])
    settings = {**issued.tls, "tls_client_ca": ca.file, "token": "s3cret", "audit_log": tmp_path / "audit.jsonl"}
    with running_service(clock=clock, **settings) as service, requests.Session() as session:
        session.trust_env = False
        ask = {"verify": ca.file, "timeout": 60}
        granted = {"name": "cert:alice", "grants": ["admin"]}
        made = session.post(service.url + TOKENS, json=granted, headers={"authorization": "Bearer s3cret"}, **ask)  # type: ignore[arg-type]
        assert made.status_code == 200
        session.close()

        def last() -> tuple[Any, ...]:
            line = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[-1])
            return line["principal"], line["method"], line["status"]

        session.cert = several.pair
        assert_problem(session.delete(service.url + TOKENS + "/x", **ask), 401, "unauthorized")  # type: ignore[arg-type]
        assert last() == (None, "DELETE", 401)
        session.close()
        session.cert = alice.pair
        assert session.post(service.url + TOKENS, json=granted, **ask).status_code == 200  # type: ignore[arg-type]
        assert last() == ("cert:alice", "POST", 200)
        connections = len(service.server._shared.connections)
        clock.advance(10 * 365 * 86_400_000)
        refused = session.post(service.url + TOKENS, json=granted, **ask)  # type: ignore[arg-type]
        assert "expired" in assert_problem(refused, 401, "unauthorized")["detail"]
        assert last() == (None, "POST", 401)
        assert len(service.server._shared.connections) == connections, "it was asked on the same connection"


@pytest.mark.real
def test_a_log_that_cannot_be_written_to_holds_up_nobody_and_has_its_lines_once_it_can(tmp_path: Path) -> None:
    """As on a disk that hangs: what holds the event loop would keep the probes from being answered, too."""
    os.mkfifo(tmp_path / "audit")
    read = os.open(tmp_path / "audit", os.O_RDWR | os.O_NONBLOCK)
    try:
        with running_service(audit_log=tmp_path / "audit") as service:
            ada = Carrying(service.url).holding("ada", "admin")
            nobody = Carrying(service.url)
            with suppress(BlockingIOError):
                while True:
                    os.write(read, b"x" * 4_095 + b"\n")
            for name in "abc":
                ada.good("PUT", f"/v1/namespaces/default/topics/{name}", json={})
                ada.good("DELETE", f"/v1/namespaces/default/topics/{name}")
                assert_problem(nobody.request("DELETE", f"/v1/namespaces/default/topics/{name}"), 401, "unauthorized")
            assert nobody.request("GET", "/livez").status_code == 200
            lines = list[bytes]()

            def drained() -> bool:
                with suppress(BlockingIOError):
                    lines.append(os.read(read, 2**20))
                return service.service.audit._last is not None and not service.service.audit._is_behind

            until(drained)
            service.service.audit._tell()
            drained()
    finally:
        os.close(read)
    said = [json.loads(line) for line in b"".join(lines).splitlines() if line.startswith(b"{")]
    deleted = [each["path"][-1] for each in said if each.get("method") == "DELETE" and each["principal"] == "ada"]
    assert deleted == ["a", "b", "c"]
    assert [each["refused"] for each in said if "refused" in each] == [3]
