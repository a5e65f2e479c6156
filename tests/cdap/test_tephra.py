"""Transactions of a Tephra beside the service's own, on one topic, while the service is killed: each message is seen once.

A failing run names its seed; ``KILL_SEED=… pytest …`` begins again with the same decisions (not the same instants).
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncelog import Client, Reader
from oncelog.wire.transaction import Transaction
from tests.cdap.java import MISSING, compiled, jvm
from tests.model.log import check_verified
from tests.model.transactions import Attempt, check_whole
from tests.patience import PATIENCE, until
from tests.scenarios.transacting import attempts_of, states_of, transacting
from tests.world.crash import seeded, wait_for_attempts
from tests.world.service import ServiceProcess

pytestmark = [pytest.mark.real, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

TOPIC = "t"


class Flow:
    """What the program in Java says."""

    def __init__(self, java: subprocess.Popen[str]) -> None:
        self._java = java
        self.lines: dict[str, list[list[str]]] = {name: [] for name in ("ended", "stopped", "consumed", "whole", "snapshot")}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._java.stdout is not None
        for line in self._java.stdout:
            name, *values = line.split()
            self.lines[name].append(values)

    def wait(self, name: str, more: int = 1) -> None:
        """Return when it has said so many more of these lines."""
        wanted = len(self.lines[name]) + more
        until(lambda: len(self.lines[name]) >= wanted or self._java.poll() is not None, f"{name} from Java")
        assert len(self.lines[name]) >= wanted, f"Java has ended with {self._java.poll()}"

    def go_on(self, until: str) -> None:
        """Tell it to do what comes next, and return when it says so."""
        assert self._java.stdin is not None
        self._java.stdin.write("\n")
        self._java.stdin.flush()
        self.wait(until)


@contextmanager
def flow(path: str, *arguments: object) -> Iterator[Flow]:
    command = jvm(path, "oncelog.TephraFlow", *map(str, arguments))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as java:
        try:
            yield Flow(java)
        finally:
            java.kill()


@pytest.mark.parametrize("kills", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_each_message_of_tephras_transactions_is_seen_once_over_kills_and_beside_others(kills: int, tmp_path: Path) -> None:
    path = compiled("6.10.0", tmp_path / "classes", "oncelog/TephraFlow.java")
    with (
        seeded() as rng,
        ServiceProcess(tmp_path / "log", cdap_clients=True) as service,
        Client(service.url, retry=PATIENCE) as client,
    ):
        client.create_topic(TOPIC)
        with flow(path, service.port, TOPIC, rng.getrandbits(32)) as java:
            with transacting(service.url, TOPIC, rng.getrandbits(32)) as clients:
                for _ in range(kills):
                    java.wait("ended", 30)
                    wait_for_attempts(clients, 1)
                    time.sleep(rng.uniform(0, 0.2))
                    service.kill()
                    service.start()
                java.wait("ended", 30)
                java.go_on("stopped")
            java.go_on("snapshot")
        own = attempts_of(clients)
        attempts, states = [*own], states_of(client, own)
        for state, pointer, writer, *payloads in java.lines["ended"]:
            attempts.append(Attempt(int(pointer), TOPIC, writer, payloads, complete=True))
            states[int(pointer)] = state
        assert {state for state, *_ in java.lines["ended"]} == {"committed", "aborted"}, "what is compared does not happen"
        seen = [payload for _, payload in java.lines["whole"]]
        check_whole(attempts, seen, states)
        check_in_order(attempts, seen, states)
        consumed = [payload for (payload,) in java.lines["consumed"] if payload.startswith("tephra")]
        assert consumed == [payload for payload in seen if payload.startswith("tephra")]
        snapshot = Transaction.from_bytes(bytes.fromhex(java.lines["snapshot"][0][0]))
        assert read(client, transaction=snapshot) == java.lines["whole"]
        while held := client.held_on(TOPIC):
            for each in held:
                client.settle_topic(TOPIC, each.write_pointer, committed=states[each.write_pointer] == "committed")
        assert read(client) == java.lines["whole"]
        check_verified(service.url, [TOPIC])


def check_in_order(attempts: list[Attempt], seen: list[str], states: dict[int, str]) -> None:
    """Each writer's messages are there in the order in which it wrote them."""
    for writer in {each.producer for each in attempts}:
        committed = [each for each in attempts if each.producer == writer and states[each.pointer] == "committed"]
        expected = [payload for each in committed for payload in each.payloads]
        assert [payload for payload in seen if payload.startswith(writer + ":")] == expected, writer


def read(client: Client, transaction: Transaction | None = None) -> list[list[str]]:
    """What a reader is given: message id and payload of each."""
    with Reader(TOPIC, client=client, timeout=0, transaction=transaction) as reader:
        return [[str(message.message_id), message.payload.decode()] for message in reader]
