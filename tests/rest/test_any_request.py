"""Whatever is asked by /openapi.json, and whatever is made of that: no 5xx, no hang, bounded memory, a log that is whole.

Schemathesis makes requests of the service's own description, good ones and ones that break it. Each is sent a second time with
some bytes changed, wherever they are: what goes out then need not be HTTP. The service is a process of its own; who asks has one
right or none, all in one namespace, so that another one must be found as it was.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.core.result import Ok

from oncelog import Client, Producer, Reader
from tests.rest.talk import TIMEOUT
from tests.world.service import ServiceProcess

MESSAGES = [b"%d" % number for number in range(1_000)]
RIGHTS = ["read:default/*", "write:default/*", "manage:default/*", "operate"]
LARGEST_KB = 500_000
"""What the service may hold in memory at the end."""
SEED = 20_261_124
IMPATIENT = {"header_timeout_seconds": 1, "body_timeout_seconds": 1, "max_wait_ms": 200}


class Fuzzed:
    """The service, and what it must still have at the end."""

    def __init__(self, service: ServiceProcess) -> None:
        self.service = service
        self.session = requests.Session()
        self.session.trust_env = False
        with Client(service.url) as client:
            self.admin = client.create_token("root", ["admin"]).secret
        with Client(service.url, token=self.admin) as client:
            client.create_topic("whole", namespace="kept")
            with Producer("whole", name="p", client=client, namespace="kept") as producer:
                producer.send_batch(MESSAGES)
            self.secrets = [client.create_token(f"one{at}", [right]).secret for at, right in enumerate(RIGHTS)]
        self.asked = 0

    def operations(self) -> list[Any]:
        headers = {"authorization": f"Bearer {self.admin}"}
        schema = schemathesis.openapi.from_url(self.service.url + "/openapi.json", headers=headers)
        found = [each.ok() for each in schema.get_all_operations() if isinstance(each, Ok)]
        assert len(found) > 50
        return found

    def ask(self, case: Any, chance: random.Random) -> None:
        """The request, and then what some changed bytes make of it."""
        secret = chance.choice([*self.secrets, None])
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        sent = requests.Request(**case.as_transport_kwargs(base_url=self.service.url, headers=headers)).prepare()
        answer = self.session.send(sent, timeout=TIMEOUT, allow_redirects=False)
        assert answer.status_code < 500, (sent.method, sent.url, sent.body, answer.text)
        self._send(damaged(raw(sent), chance))
        self.asked += 2

    def _send(self, data: bytes) -> None:
        with socket.create_connection(("127.0.0.1", self.service.port), TIMEOUT) as connection:
            try:
                connection.sendall(data)
                with suppress(OSError):  # it is reset: the next line says so
                    connection.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda: connection.recv(65_536), b""))
            except (ConnectionResetError, BrokenPipeError):
                return
        for part in answer.split(b"HTTP/1.1 ")[1:]:
            assert not part[:3].startswith(b"5"), (data, answer)

    def check(self) -> None:
        """It still serves, its logs are whole, and what nobody had a right on is as it was."""
        with Client(self.service.url, token=self.admin) as client:
            assert client.healthy()
            for namespace in client.namespaces():
                for topic in client.topics(namespace):
                    *_, last = client.verify(topic, namespace)
                    assert last.ok, (namespace, topic, last)
            with Reader("whole", client=client, namespace="kept") as reader:
                found: list[bytes] = []
                while page := reader.read(timeout=0):
                    found += [message.value for message in page]
                assert found == MESSAGES
            assert client.topics("kept") == ["whole"]
            assert {each.name for each in client.tokens()} == {"root", *(f"one{at}" for at in range(len(RIGHTS)))}
        status = Path(f"/proc/{self.service.pid}/status").read_text()
        held = next(line for line in status.splitlines() if line.startswith("RssAnon"))  # its own: no mapped tables
        assert int(held.split()[1]) < LARGEST_KB, held


def raw(sent: requests.PreparedRequest) -> bytes:
    """The request as it goes over the wire."""
    url = urlsplit(str(sent.url))
    target = url.path + (f"?{url.query}" if url.query else "")
    body = sent.body.encode("utf-8", "surrogateescape") if isinstance(sent.body, str) else sent.body or b""
    lines = [
        f"{sent.method} {target} HTTP/1.1",
        f"host: {url.netloc}",
        *(f"{name}: {value}" for name, value in sent.headers.items()),
    ]
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + (body if isinstance(body, bytes) else b"")


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Some bytes of it changed, left out or said again."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(changed))
        kind = chance.randrange(4)
        if kind == 0:
            changed[at] = chance.randrange(256)
        elif kind == 1:
            del changed[at : at + chance.randint(1, 20)]
        elif kind == 2:
            changed[at:at] = changed[chance.randrange(len(changed)) :][: chance.randint(1, 200)]
        else:
            changed[at:at] = chance.choice(
                [b"\r\n", b"\0", b"\r\n\r\n", b"transfer-encoding: chunked\r\n", b"9" * 30, b"\xff\xfe"]
            )
        changed = changed or bytearray(b"x")
    return bytes(changed)


@pytest.fixture
def fuzzed(tmp_path: Path) -> Iterator[Fuzzed]:
    service = ServiceProcess(tmp_path / "data", **IMPATIENT)
    service.log_to = tmp_path / "log"
    with service:
        yield Fuzzed(service)
    assert "Traceback" not in service.log_to.read_text("utf-8", "replace")


def fuzz(fuzzed: Fuzzed, examples: int) -> None:
    for number, operation in enumerate(fuzzed.operations()):

        @seed(SEED + number)
        @settings(
            max_examples=examples, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
        )
        @given(operation.as_strategy(), st.integers(0, 2**32))
        def ask(case: Any, chance: int) -> None:
            fuzzed.ask(case, random.Random(chance))

        ask()
    fuzzed.check()


@pytest.mark.real
def test_no_request_breaks_anything(fuzzed: Fuzzed) -> None:
    fuzz(fuzzed, 3)


@pytest.mark.slow
def test_100_000_requests_break_nothing(fuzzed: Fuzzed) -> None:
    fuzz(fuzzed, 900)
    assert fuzzed.asked >= 100_000
