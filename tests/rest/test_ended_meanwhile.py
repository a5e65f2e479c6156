"""A credential that ends while what was asked with it waits: for the answers before it, or for the rest of its body."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.access.carrying import Carrying
from tests.patience import until
from tests.rest.talk import TIMEOUT, connected, head, read_answer
from tests.world.service import RunningService, running_service

pytestmark = pytest.mark.usefixtures("patient_audit")

TOPIC = "/v1/namespaces/default/topics/t"
WAITING = json.dumps({"startOffset": 0, "wait": 60_000}).encode()
PUBLISHED = json.dumps({"messages": ["m"]}).encode()


def asking(path: str, secret: str, body: bytes, method: str = "POST") -> bytes:
    declared = "content-type: application/json", f"content-length: {len(body)}"
    return head(method, path, f"authorization: Bearer {secret}", *declared) + body


class House:
    """A locked service with a topic, and somebody who may read and write there until told otherwise."""

    def __init__(self, service: RunningService) -> None:
        self.service = service
        self.ada = Carrying(service.url).holding("ada", "admin")
        self.ada.good("PUT", TOPIC, json={})
        made = self.ada.make("bob", "read:default/t", "write:default/t", "manage:default/t")
        self.id, self.secret = made["id"], made["secret"]

    def revoke(self) -> None:
        assert self.ada.revoke(self.id).status_code == 200

    @property
    def messages(self) -> int:
        found: int = self.ada.good("GET", TOPIC + "/stats")["upcomingOffset"]
        return found


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with running_service(max_wait_ms=60_000, audit_log=tmp_path / "audit.jsonl") as service:
        yield House(service)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (TOPIC + "/poll", {"startOffset": 0, "wait": 60_000}),
        (TOPIC + "/subscriptions/s/receive", {"epoch": 1, "wait": 60_000}),
        ("/v1/namespaces/default/offsets", {"topics": {"t": {"after": 0}}, "wait": 60_000}),
    ],
)
def test_what_is_published_behind_the_end_of_a_token_reaches_nobody_who_waits_with_it(
    path: str, asked: dict[str, object], house: House
) -> None:
    house.ada.good("POST", TOPIC + "/subscriptions", json={"name": "s", "nonce": "n"})
    with connected(house.service.url) as connection:
        connection.sendall(asking(path, house.secret, json.dumps(asked).encode()))
        house.service.arrived(1)
        house.revoke()
        house.ada.good("POST", TOPIC + "/publish", json={"messages": ["not for bob"]})
        status, _, body = read_answer(connection.makefile("rb"))
    assert (status, json.loads(body)["code"], b"not for bob" in body) == (401, "unauthorized", False)


def test_what_waits_behind_a_poll_is_refused_once_its_token_is_revoked(house: House, tmp_path: Path) -> None:
    """Else one who foresees the end asks for some hundred polls in one go, and goes on reading for hours."""
    with connected(house.service.url) as connection:
        behind = [(TOPIC + "/publish", PUBLISHED, "POST"), (TOPIC + "/poll", WAITING, "POST"), (TOPIC, b"", "DELETE")]
        connection.sendall(b"".join(asking(path, house.secret, body, method) for path, body, method in [
            (TOPIC + "/poll", WAITING, "POST"), *behind,
        ]))  # fmt: skip
        house.service.arrived(1)
        house.revoke()
        assert house.ada.request("POST", TOPIC + "/publish", json={"messages": ["seen"]}).status_code == 200
        stream = connection.makefile("rb")
        assert [read_answer(stream)[0] for _ in range(1 + len(behind))] == [401] * 4
    assert house.messages == 1
    last = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[-1])
    assert (last["method"], last["path"], last["principal"], last["status"]) == ("DELETE", TOPIC, None, 401)


def test_a_body_that_comes_after_its_token_was_revoked_is_not_obeyed(house: House) -> None:
    request = asking(TOPIC + "/publish", house.secret, PUBLISHED)
    with connected(house.service.url) as connection:
        connection.sendall(request[:-1])
        until(lambda: house.service.server.under_way == 1, "its head has arrived")
        house.revoke()
        connection.sendall(request[-1:])
        status, _, body = read_answer(connection.makefile("rb"))
    assert (status, json.loads(body)["code"]) == (401, "unauthorized")
    assert house.messages == 0


def test_a_credential_that_holds_on_lets_in_what_has_waited(house: House) -> None:
    request = asking(TOPIC + "/publish", house.secret, PUBLISHED)
    with connected(house.service.url) as connection:
        connection.sendall(request[:-1])
        until(lambda: house.service.server.under_way == 1, "its head has arrived")
        connection.sendall(request[-1:] + head("GET", TOPIC + "/stats", f"authorization: Bearer {house.secret}"))
        stream = connection.makefile("rb")
        assert [read_answer(stream)[0] for _ in range(2)] == [200, 200]
    assert house.messages == 1


def test_what_waits_until_its_client_reads_is_refused_once_its_token_is_revoked(house: House) -> None:
    large = json.dumps({"messages": ["x" * 7_000_000]}).encode()
    headers = {"content-type": "application/json"}
    assert house.ada.request("POST", TOPIC + "/publish", data=large, headers=headers).status_code == 200
    parts = urlsplit(house.service.url)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(TIMEOUT)
        connection.connect((parts.hostname, parts.port))
        request = asking(TOPIC + "/poll", house.secret, b"{}")
        connection.sendall(request)
        shared = house.service.server._shared
        until(lambda: any(each.unread() for each in shared.connections), "its answer is not read")
        until(lambda: house.service.server.under_way == 0, "it is handed over")
        connection.sendall(request)
        until(lambda: house.service.server.under_way == 1, "the next one waits")
        house.revoke()
        stream = connection.makefile("rb")
        assert [read_answer(stream)[0] for _ in range(2)] == [200, 401]
