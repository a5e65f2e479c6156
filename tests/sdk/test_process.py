"""The process around the SDK: after a fork everything works anew or refuses, handlers may use what they interrupt, and what is
unsent at the end is sent or named."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from oncelog import Client, Consumer, Producer, Reader
from oncelog.errors import ClientClosed, ConsumerClosed, Forked, ReaderClosed
from oncelog.process import exits
from oncelog.process.errands import Errands
from oncelog.sql.outbox.outbox import Outbox
from oncelog.sql.outbox.relay import OutboxRelay
from oncelog.sql.participant import SqlParticipant
from tests.patience import PATIENCE, until
from tests.sdk.fakes import Answer, Request, fake_server, forward
from tests.sdk.processes import all_ended_well, in_child, raises
from tests.sdk.topics import payloads
from tests.world.service import RunningService


def start(url: str, topic: str, *functions: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [sys.executable, *options, "-m", "tests.sdk.processes", url, topic, *functions]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(url: str, topic: str, *functions: str, options: tuple[str, ...] = ()) -> tuple[dict[str, str], str]:
    """What each function returned, and what the process complains of. It must end, and well."""
    process = start(url, topic, *functions, options=options)
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"hangs: {process.communicate()}") from None
    assert process.returncode == 0, err
    return dict(line.split(" ", 1) for line in out.splitlines()), err


def holding(house: RunningService, paths: tuple[str, ...], gate: threading.Event) -> Callable[[Request], Answer]:
    """A service that answers requests to such paths when the gate is open."""

    def handle(request: Request) -> Answer:
        if request.address.endswith(paths):
            gate.wait(PATIENCE)
        return forward(house.url, request)

    return handle


# --- forks


@pytest.mark.real
def test_what_was_made_before_a_fork_works_anew_or_refuses(house: RunningService, client: Client, topic: str) -> None:
    others = ("shared_client", "readers", "spark_connection")
    told, _ = run(house.url, topic, "named_producer", "unnamed_producer", *others)
    named = payloads(client, f"{topic}-named_producer")
    assert (named.count(b"child"), named.count(b"queued")) == (4, 1)
    assert named.count(b"parent") == int(told["named_producer"]) + 1, "the parent is not disturbed"
    each_child = 3 * [b"%d" % number for number in range(300)]
    expected = [*(b"parent %d" % number for number in range(3)), *each_child]
    assert sorted(payloads(client, f"{topic}-unnamed_producer")) == sorted(expected), "each child begins anew"


@pytest.mark.real
def test_what_moves_something_on_the_service_refuses_on_the_other_side_of_a_fork_and_goes_on_on_its_own(
    house: RunningService, client: Client, topic: str, tmp_path: Path
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db", connect_args={"timeout": PATIENCE})
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (n INTEGER)"))
    database, other = SqlParticipant(engine, f"r-{topic}"), SqlParticipant(engine, f"r-{topic}")
    with Producer(topic, client=client) as producer:
        producer.send_batch([b"%d" % number for number in range(10)])
    consumer = Consumer(topic, "s", client=client, timeout=0)
    consumer.ack_async(consumer.read(3)[-1])
    outbox = OutboxRelay(Outbox(f"o-{topic}"), f"sqlite:///{tmp_path}/shop.db", url=house.url)
    with client.transaction(database) as tx, client.atomic(buffer_bytes=0) as batch:
        database.connection.execute(text("INSERT INTO orders VALUES (1)"))
        for each in (tx, batch):
            each.send(topic, b"x")
        uses: list[Callable[[], object]] = [
            *[consumer.read, consumer.flush, lambda: consumer.seek(0)],
            *[lambda: tx.send(topic, b"child"), tx.finish, tx.abort, lambda: tx.__exit__(None, None, None)],
            *[lambda: batch.send(topic, b"child"), batch.commit, batch.abort, lambda: batch.__exit__(None, None, None)],
            *[outbox.run_once, outbox.run, outbox.start, outbox.renumber],
            *[lambda: database.connection, lambda: database.recover(client), lambda: other.recover(client)],
            *[database.commit_tx, database.decide, database.rollback_tx, client.transaction(other).start],
        ]

        def in_the_child() -> None:
            for use in uses:
                raises(Forked, use)
            for each in (tx, batch):
                each.__exit__(SystemExit, SystemExit(), None)

        all_ended_well([in_child(in_the_child)])
    assert (tx.state, batch.outcome and batch.outcome.state) == ("committed", "committed")
    with engine.begin() as connection:
        assert connection.execute(text("SELECT n FROM orders")).all() == [(1,)]
    assert consumer.read(1)[0].payload == b"3"
    consumer.close()
    assert client.subscription(topic, "s").cursor == 3
    engine.dispose()


# --- signals


@pytest.mark.real
def test_handlers_use_and_close_what_they_interrupt_in_a_storm_of_signals(
    house: RunningService, client: Client, topic: str
) -> None:
    told, _ = run(house.url, topic, "close_in_handler", "sends_in_handlers", "calls_in_handlers")
    sent, handled = map(int, told["sends_in_handlers"].split())
    with Reader(f"{topic}-sends_in_handlers", client=client, timeout=0) as reader:
        messages = list(reader)
    assert [message.sequence_id for message in messages] == list(range(sent + handled))
    for side, count in ((b"main", sent), (b"handler", handled)):
        assert [m.payload for m in messages if m.payload.startswith(side)] == [b"%s %d" % (side, n) for n in range(count)]
    assert handled > 20


# --- the end


@pytest.mark.real
def test_what_is_unsent_when_the_interpreter_exits_is_sent(house: RunningService, client: Client, topic: str) -> None:
    functions = ("begins_late", "acknowledges_late", "sends_late", "forgets_to_flush")
    _, err = run(house.url, topic, *functions, options=("-W", "always"))
    assert payloads(client, f"{topic}-forgets_to_flush") == [b"%d" % number for number in range(101)]
    assert payloads(client, f"{topic}-sends_late") == [b"in time", b"late"]
    assert payloads(client, f"{topic}-begins_late") == [b"0", b"1", b"2"]
    assert client.subscription(f"{topic}-acknowledges_late", "s").cursor == 1
    assert "no outcome" not in err


@pytest.mark.real
@pytest.mark.parametrize(("ways", "messages"), [("billiards_process", 200), ("celerys_worker", 400), ("pools", 3 * 200)])
def test_what_is_unsent_when_a_process_ends_without_pythons_exit_is_sent(
    house: RunningService, client: Client, topic: str, ways: str, messages: int
) -> None:
    run(house.url, topic, ways)
    assert payloads(client, f"{topic}-{ways}").count(b"child") == messages


@pytest.mark.real
def test_what_cannot_be_done_at_the_exit_is_named_and_does_not_hold_it_up(
    house: RunningService, client: Client, topic: str
) -> None:
    with Producer(topic, client=client) as producer:
        producer.send(b"x")
    gate = threading.Event()
    with fake_server(holding(house, ("/publish", "/ack"), gate)) as fake:
        functions = ("cannot_acknowledge", "cannot_flush", "sends_late_in_vain")
        told, err = run(fake.url, topic, *functions, options=("-W", "error"))
        gate.set()
    assert float(told["exit"]) < 30.0, "without a bound it is as long as a client tries, 45 s, for each"
    said = "^producer '(.)' of .* 7 messages have no outcome and are given up, sequence ids 3 to 9"
    assert sorted(re.findall(said, err, re.MULTILINE)) == ["a", "b", "c"], "each, even where a warning is an error"
    assert sorted(re.findall("^consumer of .* subscription '(.)' of ", err, re.MULTILINE)) == ["a", "b", "c"]
    assert re.search("^producer 'late' of .* 1 messages have no outcome and are given up, sequence ids 0 to 0", err, re.MULTILINE)


@pytest.mark.real
def test_what_was_said_just_before_the_exit_reaches_a_handler_that_takes_its_time(house: RunningService, topic: str) -> None:
    _, err = run(house.url, topic, "logs_last")
    assert err.count("a call failed and is tried again in 0.") >= 3


def test_what_is_lost_is_logged_and_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.warns(ResourceWarning, match="a message"):
        exits.say("a message")
    assert [(record.name, record.message) for record in caplog.records] == [("oncelog.exit", "a message")]


@pytest.mark.real
def test_one_ctrl_c_is_enough(house: RunningService, topic: str) -> None:
    gate = threading.Event()
    with fake_server(holding(house, ("/publish",), gate)) as fake:
        process = start(fake.url, topic, "interrupted")
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
        gate.set()
    assert "KeyboardInterrupt" in err
    assert re.search("[12] messages have no outcome and are given up, sequence ids 0 to [01]", err)
    assert process.returncode != 0


# --- closing


def test_closing_a_reader_or_a_consumer_ends_its_iteration_in_the_middle_of_waiting(house: RunningService, topic: str) -> None:
    for path in ("/poll", "/receive"):
        gate = threading.Event()
        with fake_server(holding(house, (path,), gate)) as fake, Client(fake.url) as client:
            stream = Reader(topic, client=client) if path == "/poll" else Consumer(topic, "s", client=client)
            found: list[object] = []
            collect = lambda stream=stream, found=found: found.append(list(stream))  # type: ignore[misc]  # noqa: E731
            thread = threading.Thread(target=collect, daemon=True)
            thread.start()
            while not any(request.address.endswith(path) for request in fake.requests):
                threading.Event().wait(0.01)
            stream.close()
            thread.join(PATIENCE / 2)  # the answer does not come before
            assert found == [[]]
            with pytest.raises((ReaderClosed, ConsumerClosed)):
                next(iter(stream))
            gate.set()


def test_a_closed_client_stays_closed(house: RunningService, topic: str) -> None:
    client = Client(house.url)
    client.topics()
    client.close()
    client.close()
    for call in (client.topics, lambda: client.stats(topic), lambda: Producer(topic, client=client)):
        with pytest.raises(ClientClosed) as caught:
            call()
        assert caught.value.definite
    assert not client.healthy()


@pytest.mark.real
def test_closing_a_consumer_gives_up_after_its_timeout(house: RunningService, client: Client, topic: str) -> None:
    client.create_topic(topic, exist_ok=True)
    with Producer(topic, client=client) as producer:
        producer.send(b"x")
    gate = threading.Event()
    with fake_server(holding(house, ("/ack",), gate)) as fake:
        for busy in (False, True):
            consumer = Consumer(topic, "s", url=fake.url, ack_interval=3_600)
            consumer.ack_async(consumer.read(1)[0])
            if busy:  # another thread is at it
                consumer._begin_exit()
                until(lambda: sum(request.path.endswith("/ack") for request in fake.requests) == 2)
            with pytest.raises(TimeoutError, match="may be delivered again"):
                consumer.close(timeout=0.2)
            if busy:
                gate.set()
            consumer.close()


# --- errands ------------------------------------------------------------------------------------------------------------


def test_a_call_whose_caller_was_interrupted_keeps_its_thread_and_the_next_one_has_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    errands, hold, found = Errands("errands"), threading.Event(), list[int]()
    with monkeypatch.context() as patched:
        patched.setattr(errands._changed, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            errands.run(hold.wait)
    thread = threading.Thread(target=lambda: found.append(errands.run(lambda: 5)), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found == [5]
    hold.set()
