"""The transaction service apart from the service that holds the messages: gone, hanging, shared; and inside it.

What is prepared is ended by its database, whatever anybody else does at the same time (CONTRACT §4)."""

from __future__ import annotations

import inspect
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
import requests

from oncelog import Client
from oncelog.errors import ProducerInTransaction, TransactionConflict, TransactionNotInProgress, TransactionsUnavailable
from oncelog.wire.models import OpenedProducer
from oncelog.wire.requests import PublishRequest
from oncelog.wire.transaction import Transaction, TransactionType
from oncelog_service.clock import SystemClock
from oncelog_service.service import Service
from oncelog_service.storage.keys import generation_key, pointer_key, topic_key
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Table
from oncelog_service.storage.records import EndedRow, encode_record
from oncelog_service.transactions.port import Transactions
from oncelog_service.transactions.remote import RemoteTransactions
from tests.access.carrying import Carrying
from tests.patience import until
from tests.rest.talk import TIMEOUT, Topic, assert_problem
from tests.sdk.fakes import fake_server, problem
from tests.world.clock import ManualClock
from tests.world.disk import Gate
from tests.world.house import House
from tests.world.service import RunningService, free_port, running_service


def answered(call: Callable[[], object]) -> bool:
    """Whether the transaction service is there again."""
    try:
        call()
    except TransactionsUnavailable:
        return False
    return True


def publish(topic: Topic, transaction: Transaction, *messages: str) -> requests.Response:
    return topic.publish(*messages, transactionWritePointer=transaction.write_pointer)


class Alone:
    """A transaction service on a port and a disk of its own, that is stopped and started."""

    def __init__(self) -> None:
        self._disk, self._port, self._life = Disk(), free_port(), ExitStack()
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._life.enter_context(running_service(open_store=lambda: MemoryStore(self._disk), port=self._port))

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Has an earlier store meanwhile, which knows of nothing; then the right one is found."""
        right = self._disk
        for disk in (Disk(), right):
            self.stop()
            self._disk = disk
            self.start()
            if disk is not right:
                yield

    def stop(self) -> None:
        self._life.close()


@pytest.fixture
def alone() -> Iterator[Alone]:
    alone = Alone()
    alone.start()
    yield alone
    alone.stop()


@pytest.fixture
def beside(alone: Alone) -> Iterator[House]:
    """A service that uses it."""
    with House(transactions_url=alone.url) as house:
        yield house


# --- over two stores


def test_with_the_transaction_service_gone_everything_that_is_not_transactional_goes_on(alone: Alone, beside: House) -> None:
    topic, client = beside.topic, beside.client
    first, second = client.start_transaction(timeout=600), client.start_transaction(timeout=600)
    assert publish(topic, first, "in the first").status_code == 200
    alone.stop()
    assert topic.publish("plain").status_code == 200
    topic.send("p", 0)
    assert topic.payloads() == ["in the first", "plain", "m0"]
    assert beside.make("another").publish("x").status_code == 200
    problem = assert_problem(publish(topic, second, "in the second"), 503, "transactions_unavailable")
    assert "what is not transactional goes on" in problem["detail"]
    with pytest.raises(TransactionsUnavailable):
        client.start_transaction()
    assert requests.get(beside.service.url + "/healthz", timeout=TIMEOUT).status_code == 200
    assert "oncelog_transactions_reachable 0.0" in requests.get(beside.service.url + "/metrics", timeout=TIMEOUT).text
    alone.start()
    until(lambda: answered(lambda: client.transaction_status(first.write_pointer)))
    for transaction in (first, second):
        assert client.transaction_status(transaction.write_pointer).state == "in_progress"
    assert publish(topic, second, "in the second").status_code == 200
    assert beside.now() == [], "nothing of it is decided"
    for transaction in (first, second):
        client.commit_transaction(transaction.write_pointer)
    assert beside.now() == ["in the first", "plain", "m0", "in the second"]
    assert "oncelog_transactions_reachable 1.0" in requests.get(beside.service.url + "/metrics", timeout=TIMEOUT).text


def test_the_service_learns_of_what_ended_while_it_was_down(alone: Alone, beside: House) -> None:
    with Client(alone.url) as client:
        kept, undone, open_ = (client.start_transaction(timeout=600) for _ in range(3))
        for name, transaction in (("kept", kept), ("undone", undone)):
            assert publish(beside.topic, transaction, name).status_code == 200
        with beside.off():
            client.commit_transaction(kept.write_pointer)
            client.abort_transaction(undone.write_pointer)
            assert undone.write_pointer in client.start_transaction().invalids, "nobody sees it before it is rolled back"
            alone.stop()
            alone.start()
        until(lambda: undone.write_pointer not in client.start_transaction().invalids)
        assert beside.now() == ["kept"]
        assert beside.topic.payloads() == ["kept", "undone"], "without a transaction a poll returns everything"
        states = beside.client.transaction_states([each.write_pointer for each in (kept, undone, open_)])
        assert list(states.values()) == ["committed", "aborted", "in_progress"]


@pytest.mark.parametrize("life", ["now", "crashed"])
@pytest.mark.parametrize("prepares", [True, False])
def test_what_an_operator_rolled_back_while_the_transaction_was_not_known_commits_on_no_topic(
    alone: Alone, beside: House, life: str, prepares: bool
) -> None:
    begun = beside.client.start_transaction(timeout=600)
    pointer = beside.client.checkpoint_transaction(begun.write_pointer).write_pointer
    for name in ("t", "other"):
        assert beside.make(name).publish_under(pointer, name).ok
    with alone.put_back():
        until(lambda: answered(lambda: beside.client.transaction_states([pointer])))
        beside.client.settle_topic("t", pointer, committed=False)
    if life == "crashed":
        beside.crash()
    until(lambda: answered(lambda: beside.client.transaction_states([pointer])))
    move = partial(beside.client.can_commit, resource="database") if prepares else beside.client.commit_transaction
    with pytest.raises(TransactionConflict, match="default/t") as refused:
        move(begun.write_pointer, ())
    assert (refused.value.definite, refused.value.write_pointer) == (True, pointer)
    beside.client.abort_transaction(begun.write_pointer)
    beside.service.settled()
    assert [beside.make(name).seen(beside.client.start_transaction()) for name in ("t", "other")] == [[], []]


def test_it_does_so_from_the_moment_on_at_which_the_operators_word_is_noted(alone: Alone, beside: House) -> None:
    pointer = beside.client.start_transaction(timeout=600).write_pointer
    for name in ("t", "other"):
        assert beside.make(name).publish_under(pointer, name).ok
    gate = Gate()
    with ThreadPoolExecutor(1) as pool, Client(beside.service.url) as operator:
        with alone.put_back():
            until(lambda: answered(lambda: beside.client.transaction_states([pointer])))
            beside.disk.before_sync = lambda batches: gate(batches) if beside.disk.tables[Table.ENDED] else None
            ending = pool.submit(operator.settle_topic, "t", pointer, committed=False)
            gate.entered.wait()  # the note is on the disk; what was published is being rolled back
        until(lambda: answered(lambda: beside.client.transaction_states([pointer])))
        with pytest.raises(TransactionConflict, match="default/t"):
            beside.client.commit_transaction(pointer)
        gate.opened.set()
        ending.result()


@pytest.mark.parametrize("committed", [True, False])
def test_an_end_that_an_operator_had_said_otherwise_on_a_topic_stays_there_and_is_said(
    alone: Alone, beside: House, committed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    begun = beside.client.start_transaction(timeout=600)
    pointer = begun.write_pointer
    assert publish(beside.topic, begun, "x").ok
    with alone.put_back():
        until(lambda: answered(lambda: beside.client.transaction_states([pointer])))
        beside.client.settle_topic("t", pointer, committed=not committed)
    with Client(alone.url) as client:  # who ends it there asks nobody who has the topic
        (client.commit_transaction if committed else client.abort_transaction)(pointer)
    until(lambda: any(str(pointer) in each.message for each in caplog.records if each.levelname == "ERROR"))
    assert beside.now() == ([] if committed else ["x"])


def test_a_service_asks_with_the_token_of_the_transaction_service(caplog: pytest.LogCaptureFixture) -> None:
    with running_service(token="right") as first:
        for settings, token, works in (
            ({"transactions_token": "right"}, None, True),
            ({"transactions_token": "wrong"}, None, False),
            ({}, None, False),
            ({"token": "right"}, "right", True),  # without one of its own, its token is sent
        ):
            caplog.clear()
            with (
                running_service(transactions_url=first.url, **settings) as second,
                Client(second.url, retry=0, token=token) as client,
            ):
                assert answered(client.start_transaction) is works, settings
                said = [each.getMessage() for each in caplog.records if each.name == "oncelog_service.transactions.remote"]
                assert [each.endswith("the setting is transactions_token") for each in said] == ([] if works else [True])


def test_a_transaction_service_that_hangs_holds_up_only_what_is_transactional(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        url = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        with running_service(transactions_url=url) as service:
            topic = Topic(service.url)
            began = time.monotonic()
            for number in range(10):
                assert topic.publish(f"m{number}").status_code == 200
                assert len(topic.payloads()) == number + 1
            assert time.monotonic() - began < TIMEOUT / 2
            problem = assert_problem(topic.publish("x", transactionWritePointer=time.time_ns()), 503, "transactions_unavailable")
            assert problem["definite"] is True
            assert len(topic.payloads()) == 10
            # Whether a commit that got no answer happened is left open; right after another call failed it is refused at once.
            until(lambda: unavailable(service.url)["definite"] is False)
    with running_service(transactions_url=f"http://127.0.0.1:{free_port()}") as service:
        assert unavailable(service.url)["definite"] is True


def unavailable(url: str) -> dict[str, Any]:
    answer = requests.post(url + "/v1/transactions/5/commit", timeout=TIMEOUT)
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["code"]) == (503, "transactions_unavailable")
    return problem


# --- inside the service, over one store


def test_transactions_and_the_name_of_the_store_go_on_over_a_stop_and_over_a_crash(house: House) -> None:
    open_ = house.start()
    ended = house.client.abort_transaction(house.start()).write_pointer
    name = {key: house.disk.tables[Table.STORE_ID][key] for key in (b"", b"secret", b"format")}
    for _ in house.lives():
        assert house.client.transaction_states([open_, ended]) == {open_: "in_progress", ended: "aborted"}
        assert house.start() > ended
        assert name.items() <= house.disk.tables[Table.STORE_ID].items()


@pytest.mark.parametrize(
    ("note", "status"), [(encode_record(EndedRow(False, 1)), 409), (encode_record(EndedRow(True, 1)), 200), (b"damaged", 409)]
)
@pytest.mark.parametrize("grant", ["admin", "write:default/t"])
def test_a_commit_is_refused_by_what_another_instance_has_noted_of_an_operators_roll_back(
    note: bytes, status: int, grant: str
) -> None:
    with running_service(token="s3cret") as service:
        operator = Carrying(service.url, "s3cret")
        operator.good("PUT", "/v1/namespaces/default/topics/t")
        ada = operator.holding("ada", grant)
        pointer = ada.good("POST", "/v1/transactions", json={})["writePointer"]
        asked = {"messages": ["x"], "transactionWritePointer": pointer}
        ada.good("POST", "/v1/namespaces/default/topics/t/publish", json=asked)
        batch = Batch()
        key = pointer_key(generation_key(topic_key("default", "t"), 1), pointer)
        batch.put(Table.ENDED, key, note)

        async def noted(service: Service) -> None:
            await service.opening.writer.submit(batch)
            await service.opening.topics.rolled_back.reread()

        service.on_loop(noted)
        answer = ada.request("POST", f"/v1/transactions/{pointer}/commit", json={})
        assert answer.status_code == status, answer.text
        assert answer.json().get("code", "committed") == ("committed" if status == 200 else "transaction_conflict")
        batch = Batch()
        batch.delete(Table.ENDED, key)
        service.on_loop(noted)
        assert not service.service.opening.topics.rolled_back.keys, "it has forgotten it since"


def test_the_service_stops_at_once_while_others_wait_for_transactions_that_are_not_settled() -> None:
    with running_service() as service, ThreadPoolExecutor(1) as pool:
        url = service.url + "/v1/transactions/unacknowledged?storeId=x&wait=60000"
        waiting = pool.submit(requests.get, url, timeout=TIMEOUT)
        service.arrived(1)
        began = time.monotonic()
        service.stop()
        assert_problem(waiting.result(TIMEOUT), 503, "storage_unavailable")
    assert time.monotonic() - began < TIMEOUT / 2


# --- prepared


class Interrupted:
    """The transaction service as a topic sees it, with something else happening before and after each call that awaits."""

    def __init__(self, port: Transactions, between: Callable[[], Awaitable[None]]) -> None:
        self._port = port
        self._between = between

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)

        async def call(*args: Any, **options: Any) -> Any:
            await self._between()
            try:
                return await method(*args, **options)
            finally:
                await self._between()

        return call if inspect.iscoroutinefunction(method) else method


async def prepared_at(service: Service, moment: int) -> bool:
    """Open a producer anew that has a message in a transaction, and prepare that at this moment; whether there was one."""
    name, transactions, prepared, passed = f"p{moment}", service.opening.transactions, False, 0
    log = await service.opening.topics.logs.open("default", "t")
    pointer = (await transactions.start(TransactionType.SHORT)).write_pointer
    await log.publish(PublishRequest([b"m"], producer=name, sequence_ids=[0], write_pointer=pointer))

    async def between() -> None:
        nonlocal prepared, passed
        passed += 1
        if passed - 1 == moment:
            try:
                await transactions.can_commit(pointer, (), "database")
                prepared = True
            except TransactionNotInProgress:
                pass

    opened: OpenedProducer | None = None
    log.settling._transactions = Interrupted(transactions, between)  # type: ignore[assignment]
    try:
        opened = await log.producers.open(name, "nonce", "allow")
    except ProducerInTransaction:
        pass
    finally:
        log.settling._transactions = transactions

    # Who prepared it and who opened the producer were told the same.
    state = (await transactions.show(pointer)).state
    if prepared:
        assert (state, opened) == ("in_progress", None), "the database may have committed: only it decides"
        await transactions.commit(pointer)
    else:
        assert state == "aborted"
        assert opened is not None
        assert opened.last_sequence_id is None
    return passed > moment


@pytest.fixture(params=["here", "elsewhere"])
def apart(clock: ManualClock, request: pytest.FixtureRequest) -> Iterator[RunningService]:
    """With its transaction service in it, and with another one behind a URL."""
    with ExitStack() as stack:
        elsewhere = stack.enter_context(running_service(clock=clock)).url if request.param == "elsewhere" else None
        house = stack.enter_context(House(clock, transactions_url=elsewhere))
        house.make()
        yield house.service


def test_opening_a_producer_never_aborts_a_transaction_that_is_prepared_at_any_moment_of_it(apart: RunningService) -> None:
    moment = 0
    while apart.on_loop(lambda service, at=moment: prepared_at(service, at)):  # type: ignore[misc]
        moment += 1
    assert moment >= 4, "the state was asked for and the transaction ended, each with a before and an after"


async def test_an_answer_that_nobody_serves_the_transactions_is_as_definite_as_what_was_asked() -> None:
    with fake_server(lambda _: problem(503, "transactions_unavailable", definite=False)) as there:
        transactions = RemoteTransactions(there.url, None, "here", SystemClock())
        with pytest.raises(TransactionsUnavailable) as caught:
            await transactions.show(1)
        assert caught.value.definite, "a question changes nothing"
        assert not transactions.reachable
        asked = len(there.requests)
        transactions.release()
        with pytest.raises(TransactionsUnavailable, match="stopping"):
            await transactions.show(1)
        assert len(there.requests) == asked
        await transactions.close()
