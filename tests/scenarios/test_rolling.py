"""Restarts under load: nobody is left without an answer, nothing is lost or doubled."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from oncelog import Client
from tests.cluster.instances import LEASE_SECONDS, Instance, instances
from tests.patience import PATIENCE, until
from tests.postgres import postgres_server
from tests.rest.talk import TIMEOUT
from tests.scenarios.writing import MIXED, Load
from tests.world.crash import seeded
from tests.world.service import ServiceProcess

pytestmark = pytest.mark.real

TOPIC = "t"


def test_senders_and_readers_go_on_through_restarts_of_their_only_service(tmp_path: Path) -> None:
    with seeded() as rng, ServiceProcess(tmp_path / "log", drain_seconds=rng.choice([0.0, 0.3])) as service:
        with Client(service.url) as client:
            client.create_topic(TOPIC)
        load = Load([service.url], TOPIC, rng, writers=MIXED[:4], followers=1, back=lambda: None)
        with load.running():
            for _ in range(3):
                load.allow(300)
                load.wait_for_receipts(rng.randrange(20, 60))
                assert service.stop() == 0
                acknowledged = load.acknowledged()
                service.start()
                load.check_so_far(acknowledged)
            until(lambda: load.goes_on([0] * 4, 10))
        load.check_at_the_end()


class Balancer:
    """Passes connections on to instances that are ready, as it has heard last; one that refuses a connection is passed over."""

    def __init__(self, behind: list[Instance]) -> None:
        self._behind = behind
        self.ready: list[Instance] = []
        self._turn = itertools.count()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._over = threading.Event()
        self.to: dict[Instance, int] = dict.fromkeys(behind, 0)
        """Connections that are passed on to each."""
        self._lock = threading.Lock()
        for run in (self._ask, self._listen):
            threading.Thread(target=run, daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._listener.close()

    def _ask(self) -> None:
        while not self._over.wait(0.05):
            self.ready = [each for each in self._behind if self._is_ready(each)]

    @staticmethod
    def _is_ready(instance: Instance) -> bool:
        with suppress(requests.RequestException):
            return requests.get(instance.url + "/readyz", timeout=TIMEOUT).status_code == 200
        return False

    def _listen(self) -> None:
        while not self._over.is_set():
            with suppress(OSError):
                accepted, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(accepted,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client:
            while not self._over.is_set():
                ready = self.ready
                if ready:
                    chosen = ready[next(self._turn) % len(ready)]
                    with suppress(ConnectionRefusedError), self._counted(chosen):
                        with socket.create_connection(("127.0.0.1", chosen.port)) as backend:
                            other = threading.Thread(target=_pump, args=(client, backend), daemon=True)
                            other.start()
                            _pump(backend, client)
                            other.join(PATIENCE)
                        return

    @contextmanager
    def _counted(self, instance: Instance) -> Iterator[None]:
        with self._lock:
            self.to[instance] += 1
        try:
            yield
        finally:
            with self._lock:
                self.to[instance] -= 1


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


class Sender(threading.Thread):
    """Sends by hand and tries nothing again that has no answer. A 503 is an answer: it asks again then."""

    def __init__(self, url: str, name: str, alive: bool) -> None:
        super().__init__(name=name)
        self._url, self._alive = f"{url}/v1/namespaces/default/topics/{TOPIC}/publish", alive
        self.sent = 0
        self.answers: dict[int, int] = {}
        self.failure: BaseException | None = None
        self.enough = threading.Event()

    def run(self) -> None:
        try:
            with requests.Session() as session:
                session.trust_env = False
                while not self.enough.is_set():
                    self._send(session)
        except BaseException as error:
            self.failure = error

    def _send(self, session: requests.Session) -> None:
        body = {"messages": [f"{self.name}-{self.sent}"], "producer": self.name, "sequenceIds": [self.sent]}
        headers = {"oncelog-route": "proxy"} | ({} if self._alive else {"connection": "close"})
        answer = session.post(self._url, json=body, headers=headers, timeout=PATIENCE)
        self.answers[answer.status_code] = self.answers.get(answer.status_code, 0) + 1
        assert answer.status_code in (200, 503), answer.text
        self.sent += answer.status_code == 200


@pytest.mark.real
@pytest.mark.timeout(600)
def test_a_rolling_restart_behind_a_load_balancer_leaves_no_request_without_an_answer(tmp_path: Path) -> None:
    store = postgres_server().fresh_schema()
    settings: dict[str, Any] = {"lease_seconds": LEASE_SECONDS, "drain_seconds": 3_600}
    with instances(store, tmp_path, 2, **settings) as both:
        balancer = Balancer(both.all)
        with both.client(retry=PATIENCE) as client:
            client.create_topic(TOPIC)
        until(lambda: len(balancer.ready) == 2)
        senders = [Sender(balancer.url, f"s{each}", alive=each % 2 == 0) for each in range(4)]
        for sender in senders:
            sender.start()
        try:
            for instance in [*both.all, both.all[0]]:
                _restarted(instance, balancer, senders)
        finally:
            for sender in senders:
                sender.enough.set()
            for sender in senders:
                sender.join(PATIENCE)
            balancer.close()
        assert [sender.failure for sender in senders] == [None] * 4
        found: dict[str, list[str]] = {sender.name: [] for sender in senders}
        with both.client(retry=PATIENCE) as client:
            for payload in _payloads(client):
                found[payload.partition("-")[0]].append(payload)
        assert found == {each.name: [f"{each.name}-{number}" for number in range(each.sent)] for each in senders}


def _restarted(instance: Instance, balancer: Balancer, senders: list[Sender]) -> None:
    """SIGTERM; when the load balancer has noticed and sends nothing there any more, the pause ends; and begun again."""
    instance.end()
    until(lambda: instance not in balancer.ready, "the load balancer has noticed")
    until(lambda: balancer.to[instance] == 0, "each connection has ended with an answer")
    _all_go_on(senders)
    instance.end()
    until(lambda: not instance.running)
    _all_go_on(senders)
    instance.start()
    until(lambda: instance in balancer.ready)
    _all_go_on(senders)


def _all_go_on(senders: list[Sender]) -> None:
    before = [sender.sent for sender in senders]
    until(
        lambda: all(sender.sent > sent + 5 or sender.failure for sender, sent in zip(senders, before, strict=True)),
        "everybody is answered",
    )


def _payloads(client: Client) -> list[str]:
    from oncelog import Reader

    with Reader(TOPIC, client=client, timeout=0) as reader:
        return [message.payload.decode() for message in reader]
