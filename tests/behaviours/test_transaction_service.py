"""The transaction service apart from the service that holds the messages: killed, hanging, shared; and inside it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests

from oncelog import Client
from oncelog.errors import OncelogError, TransactionsUnavailable
from oncelog.wire.transaction import Transaction
from oncelog_service.storage.port import Table
from oncelog_service.transactions import remote
from tests.behaviours.conftest import Machine
from tests.patience import until
from tests.rest.talk import TIMEOUT, Topic, assert_problem
from tests.support import RunningService, ServiceProcess, free_port, running_service


def answered(call: Callable[[], object]) -> bool:
    """Whether the transaction service is there again."""
    try:
        call()
    except TransactionsUnavailable:
        return False
    return True


def begin(client: Client) -> Transaction:
    """One that does not time out while a loaded machine starts processes."""
    return client.start_transaction(timeout=600)


def seen(topic: Topic, transaction: Transaction) -> list[str]:
    """What a poll in the transaction delivers."""
    return topic.payloads(transaction=transaction.to_bytes().decode("latin-1"))


def publish(topic: Topic, transaction: Transaction, *messages: str) -> requests.Response:
    return topic.publish(*messages, transactionWritePointer=transaction.write_pointer)


class Two(NamedTuple):
    """A transaction service alone, and a service that uses it."""

    alone: ServiceProcess
    beside: ServiceProcess

    def start(self) -> None:
        """Both at the same time: the one does not need the other to start."""
        with ThreadPoolExecutor(2) as pool, Client(self.beside.url) as client:
            list(pool.map(ServiceProcess.start, self))
            until(lambda: answered(lambda: client.transaction_states([1])))

    def kill(self) -> None:
        for process in self:
            process.kill()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    alone = ServiceProcess(tmp_path / "transactions", "tx-serve")
    both = Two(alone, ServiceProcess(tmp_path / "messages", transactions_url=alone.url))
    try:
        both.start()
        yield both
    finally:
        both.kill()


# --- two processes ------------------------------------------------------------------------------------------------------


def test_with_the_transaction_service_killed_everything_that_is_not_transactional_goes_on(two: Two) -> None:
    alone, beside = two
    topic = Topic(beside.url)
    with Client(beside.url, retry=0) as client:
        first, second = begin(client), begin(client)
        assert publish(topic, first, "in the first").status_code == 200
        alone.kill()
        assert topic.publish("plain").status_code == 200
        topic.send("p", 0)
        assert topic.payloads() == ["in the first", "plain", "m0"]
        assert Topic(beside.url, "another").publish("x").status_code == 200
        problem = assert_problem(publish(topic, second, "in the second"), 503, "transactions_unavailable")
        assert "what is not transactional goes on" in problem["detail"]
        with pytest.raises(TransactionsUnavailable):
            begin(client)
        assert requests.get(beside.url + "/healthz", timeout=TIMEOUT).status_code == 200
        assert "oncelog_transactions_reachable 0.0" in requests.get(beside.url + "/metrics", timeout=TIMEOUT).text
        alone.start()
        until(lambda: answered(lambda: client.transaction_status(first.write_pointer)))
        for transaction in (first, second):
            assert client.transaction_status(transaction.write_pointer).state == "in_progress"
        assert publish(topic, second, "in the second").status_code == 200
        assert seen(topic, begin(client)) == [], "nothing of it is decided"
        for transaction in (first, second):
            client.commit_transaction(transaction.write_pointer)
        assert seen(topic, begin(client)) == ["in the first", "plain", "m0", "in the second"]
        assert "oncelog_transactions_reachable 1.0" in requests.get(beside.url + "/metrics", timeout=TIMEOUT).text


def test_outcomes_survive_the_death_of_both(two: Two) -> None:
    topic = Topic(two.beside.url)
    with Client(two.beside.url, retry=5) as client:
        committed, aborted, invalid, open_ = (begin(client) for _ in range(4))
        for name, transaction in (("committed", committed), ("aborted", aborted), ("invalid", invalid)):
            assert publish(topic, transaction, name).status_code == 200
        client.commit_transaction(committed.write_pointer)
        client.abort_transaction(aborted.write_pointer)
        client.invalidate_transaction(invalid.write_pointer)
        two.kill()
        two.start()
        states = client.transaction_states([each.write_pointer for each in (committed, aborted, invalid, open_)])
        assert list(states.values()) == ["committed", "aborted", "invalid", "in_progress"]
        assert seen(topic, begin(client)) == ["committed"]


def test_the_service_learns_of_what_ended_while_it_was_down(two: Two) -> None:
    alone, beside = two
    topic = Topic(beside.url)
    with Client(alone.url) as client:
        kept, undone = begin(client), begin(client)
        assert publish(topic, kept, "kept").status_code == 200
        assert publish(topic, undone, "undone").status_code == 200
        beside.kill()
        client.commit_transaction(kept.write_pointer)
        client.abort_transaction(undone.write_pointer)
        assert undone.write_pointer in begin(client).invalids, "nobody sees it before it is marked"
        beside.start()
        until(lambda: undone.write_pointer not in begin(client).invalids)
        assert seen(topic, begin(client)) == ["kept"]
        assert topic.payloads() == ["kept", "undone"], "without a transaction a poll returns everything"


# --- in this process ----------------------------------------------------------------------------------------------------


@contextmanager
def two_services(**settings: Any) -> Iterator[tuple[RunningService, RunningService]]:
    """One with a transaction service, and one that uses it."""
    with running_service() as first, running_service(transactions_url=first.url, **settings) as second:
        yield first, second


def test_services_that_share_a_transaction_service_each_settle_their_own() -> None:
    with two_services() as (first, second), Client(first.url) as client:
        topics = [Topic(service.url) for service in (first, second)]
        kept, undone = client.start_transaction(), client.start_transaction()
        for topic in topics:
            assert publish(topic, kept, "kept").status_code == 200
            assert publish(topic, undone, "undone").status_code == 200
        assert len(client.transaction_status(undone.write_pointer).participants) == 2
        client.commit_transaction(kept.write_pointer)
        client.abort_transaction(undone.write_pointer)
        for topic in topics:
            assert seen(topic, client.start_transaction()) == ["kept"]
        until(lambda: client.start_transaction().invalids == ())


def test_a_service_asks_with_the_token_of_the_transaction_service() -> None:
    with running_service(token="right") as first:
        for settings, works in (
            ({"transactions_token": "right"}, True),
            ({"transactions_token": "wrong"}, False),
            ({}, False),
        ):
            with running_service(transactions_url=first.url, **settings) as second, Client(second.url, retry=0) as client:
                assert answered(client.start_transaction) is works
        with running_service(transactions_url=first.url, token="right") as second, Client(second.url, token="right") as client:
            assert answered(client.start_transaction), "without one of its own, its token is sent"


def test_a_transaction_service_that_hangs_holds_up_only_what_is_transactional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        url = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        with running_service(transactions_url=url) as service:
            topic = Topic(service.url)
            began = time.monotonic()
            for number in range(20):
                assert topic.publish(f"m{number}").status_code == 200
                assert len(topic.payloads()) == number + 1
            assert time.monotonic() - began < TIMEOUT / 2
            problem = assert_problem(topic.publish("x", transactionWritePointer=time.time_ns()), 503, "transactions_unavailable")
            assert problem["definite"] is True
            assert len(topic.payloads()) == 20


def test_whether_a_commit_that_got_no_answer_happened_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "ANSWER_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        url = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        with running_service(transactions_url=url) as service:
            # Right after another call failed it is refused at once, and that is definite.
            until(lambda: assert_unavailable(service.url)["definite"] is False)
    with running_service(transactions_url=f"http://127.0.0.1:{free_port()}") as service:
        assert assert_unavailable(service.url)["definite"] is True


def assert_unavailable(url: str) -> dict[str, Any]:
    answer = requests.post(url + "/v1/transactions/5/commit", timeout=TIMEOUT)
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["code"]) == (503, "transactions_unavailable")
    return problem


def test_what_answers_but_is_no_transaction_service_is_unavailable() -> None:
    with running_service() as first, running_service(transactions_url=first.url + "/") as second:
        assert requests.post(second.url + "/v1/transactions", timeout=TIMEOUT).status_code == 200
        first.service.settings = first.service.settings.model_copy(update={"token": "changed"})
        answer = requests.post(second.url + "/v1/transactions", timeout=TIMEOUT)
        assert_problem(answer, 503, "transactions_unavailable")


# --- inside the service, over one store ---------------------------------------------------------------------------------


def test_after_a_failed_write_transactions_are_what_is_on_disk(machine: Machine) -> None:
    with machine.run() as service, Client(service.url, retry=0) as client:
        pointer = client.start_transaction().write_pointer
        machine.disk.before_sync = no_space
        with pytest.raises(OncelogError) as refused:
            client.commit_transaction(pointer)
        assert (refused.value.code, refused.value.definite) == ("storage_failed", False)
        machine.disk.before_sync = None
        until(client.healthy)
        assert client.transaction_status(pointer).state == "in_progress"
        assert client.commit_transaction(pointer).state == "committed"


def no_space(_: object) -> None:
    raise OSError(28, "No space left on device")


def test_transactions_go_on_over_a_stop_and_over_a_crash(machine: Machine) -> None:
    with machine.run() as service, Client(service.url) as client:
        open_ = client.start_transaction().write_pointer
        ended = client.abort_transaction(client.start_transaction().write_pointer).write_pointer
        crashed = machine.crash()
    for after in (machine, crashed):
        with after.run() as service, Client(service.url) as client:
            states = client.transaction_states([open_, ended])
            assert states == {open_: "in_progress", ended: "aborted"}
            assert client.start_transaction().write_pointer > ended


def test_a_store_keeps_its_name_among_the_participants(machine: Machine) -> None:
    def name() -> dict[bytes, bytes]:
        with machine.run() as service:
            assert Topic(service.url).publish("a").status_code == 200
        return dict(machine.disk.tables[Table.INSTANCE])

    first = name()
    assert len(first) == 1
    assert name() == first


def test_the_service_stops_at_once_while_somebody_waits_for_unsettled_transactions(machine: Machine) -> None:
    with machine.run() as service:
        waiting = requests.Session()
        service.loop.call_soon_threadsafe(service.loop.call_later, 0.2, service.stop)
        began = time.monotonic()
        answer = waiting.get(service.url + "/v1/transactions/unsettled?instance=x&wait=60000", timeout=TIMEOUT)
        assert_problem(answer, 503, "storage_unavailable")
    assert time.monotonic() - began < TIMEOUT / 2
