"""The process around the SDK: after a fork everything works anew or refuses, handlers may use what they interrupt, and what is
unsent at the end is sent or named."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from oncelog import Client, Consumer, Producer, Reader
from oncelog.errors import ClientClosed, ConsumerClosed, OncelogError, ProducerStopped, ReaderClosed
from tests.patience import PATIENCE, until
from tests.sdk.fakes import Answer, Request, fake_server, forward
from tests.support import RunningService


def start(what: str, url: str, topic: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, *options, "-m", "tests.sdk.processes", what, url, topic]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(what: str, url: str, topic: str, *options: str) -> tuple[str, str]:
    """What it prints, and what it complains of. It must end, and well."""
    process = start(what, url, topic, *options)
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"{what} hangs: {process.communicate()[1]}") from None
    assert process.returncode == 0, err
    return out, err


def payloads(client: Client, topic: str) -> list[bytes]:
    with Reader(topic, client=client, timeout=0) as reader:
        return [message.payload for message in reader]


def holding(house: RunningService, path: str, gate: threading.Event) -> Callable[[Request], Answer]:
    """A service that answers requests to such a path when the gate is open."""

    def handle(request: Request) -> Answer:
        if request.path.endswith(path):
            gate.wait(PATIENCE)
        return forward(house.url, request)

    return handle


# --- forks


def test_a_named_producer_refuses_in_a_child_and_its_parent_is_not_disturbed(
    house: RunningService, client: Client, topic: str
) -> None:
    out, _ = run("named_producer", house.url, topic)
    stored = payloads(client, topic)
    assert stored.count(b"child") == 12
    assert stored.count(b"queued") == 1
    assert stored.count(b"parent") == int(out) + 1


def test_a_producer_without_a_name_begins_anew_in_each_child(house: RunningService, client: Client, topic: str) -> None:
    run("unnamed_producer", house.url, topic)
    stored = payloads(client, topic)
    assert sorted(stored) == sorted(
        [
            b"parent 0",
            b"parent 1",
            b"parent 2",
            *(b"%d" % number for number in range(300)),
            *(b"%d" % number for number in range(300)),
            *(b"%d" % number for number in range(300)),
        ]
    )


def test_what_processes_of_multiprocessing_leave_unsent_is_sent(house: RunningService, client: Client, topic: str) -> None:
    run("pool", house.url, topic)
    assert payloads(client, topic).count(b"child") == 600


@pytest.mark.parametrize("what", ["shared_client", "readers", "transactions", "relay", "sql_participant", "spark_connection"])
def test_what_was_made_before_a_fork_works_anew_or_refuses(house: RunningService, topic: str, what: str) -> None:
    run(what, house.url, topic)


# --- signals


def test_handlers_send_through_the_producer_that_they_interrupt(house: RunningService, client: Client, topic: str) -> None:
    out, _ = run("sends_in_handlers", house.url, topic)
    sent, handled = map(int, out.split())
    with Reader(topic, client=client, timeout=0) as reader:
        messages = list(reader)
    assert [message.sequence_id for message in messages] == list(range(sent + handled))
    for side, count in ((b"main", sent), (b"handler", handled)):
        assert [m.payload for m in messages if m.payload.startswith(side)] == [b"%s %d" % (side, n) for n in range(count)]
    assert handled > 20


def test_ids_that_the_application_gives_in_handlers_are_stored_or_refused(
    house: RunningService, client: Client, topic: str
) -> None:
    out, _ = run("numbers_in_handlers", house.url, topic)
    assert payloads(client, topic) == [number.encode() for number in out.split()]


def test_a_handler_flushes_what_it_interrupts_the_queueing_of(house: RunningService, client: Client, topic: str) -> None:
    run("flush_in_handler", house.url, topic)
    assert payloads(client, topic) == [b"0", b"1"]


def test_a_handler_closes_the_producer_that_it_interrupts(house: RunningService, topic: str) -> None:
    run("close_in_handler", house.url, topic)


def test_handlers_call_the_client_the_consumer_and_the_reader_that_they_interrupt(house: RunningService, topic: str) -> None:
    run("calls_in_handlers", house.url, topic)


# --- the end


def test_what_is_unsent_when_the_interpreter_exits_is_sent(house: RunningService, client: Client, topic: str) -> None:
    _, err = run("forgets_to_flush", house.url, topic, "-W", "always")
    assert payloads(client, topic) == [b"%d" % number for number in range(101)]
    assert "no outcome" not in err


def test_what_cannot_be_sent_at_the_exit_is_named_and_does_not_hold_it_up(house: RunningService, topic: str) -> None:
    gate = threading.Event()
    with fake_server(holding(house, "/publish", gate)) as fake:
        _, err = run("cannot_flush", fake.url, topic, "-W", "always::ResourceWarning")
        gate.set()
    said = f"producer 'p' of default/{topic}: 7 messages have no outcome and are given up, sequence ids 3 to 9"
    assert err.count(said) == 2  # the log and the warning
    assert "ResourceWarning" in err


def test_what_cannot_be_sent_is_named_by_each_producer_even_where_a_warning_is_an_error(
    house: RunningService, topic: str
) -> None:
    gate = threading.Event()
    with fake_server(holding(house, "/publish", gate)) as fake:
        _, err = run("many_cannot_flush", fake.url, topic, "-W", "error")
        gate.set()
    assert sorted(re.findall("^producer '(.)' of .* 1 messages have no outcome", err, re.MULTILINE)) == ["a", "b", "c"]


def test_what_a_handler_sends_after_the_end_is_sent(house: RunningService, client: Client, topic: str) -> None:
    run("sends_late", house.url, topic)
    assert payloads(client, topic) == [b"in time", b"late"]
    run("begins_late", house.url, topic)
    assert payloads(client, topic)[2:] == [b"0", b"1", b"2"]


def test_what_a_handler_acknowledges_after_the_end_is_on_disk(house: RunningService, client: Client, topic: str) -> None:
    run("acknowledges_late", house.url, topic)
    assert client.subscription(topic, "s").cursor == 1


def test_what_a_handler_sends_after_the_end_in_vain_is_named(house: RunningService, topic: str) -> None:
    gate, published = threading.Event(), list[Request]()

    def handle(request: Request) -> Answer:
        if request.path.endswith("/publish"):
            published.append(request)
            if len(published) > 1:
                gate.wait(PATIENCE)
        return forward(house.url, request)

    with fake_server(handle) as fake:
        _, err = run("sends_late", fake.url, topic)
        gate.set()
    assert "1 messages have no outcome and are given up, sequence ids 1 to 1" in err


def test_consumers_that_cannot_acknowledge_hold_the_exit_up_once_and_are_named(house: RunningService, topic: str) -> None:
    gate = threading.Event()
    with fake_server(holding(house, "/ack", gate)) as fake:
        out, err = run("cannot_acknowledge", fake.url, topic)
        gate.set()
    assert float(out) < 30.0, "without a bound it is as long as a client tries, 45 s, for each"
    assert sorted(re.findall("^consumer of .* subscription '(.)' of ", err, re.MULTILINE)) == ["a", "b", "c"]


def test_one_ctrl_c_is_enough(house: RunningService, topic: str) -> None:
    gate = threading.Event()
    with fake_server(holding(house, "/publish", gate)) as fake:
        process = start("interrupted", fake.url, topic)
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
        with fake_server(holding(house, path, gate)) as fake, Client(fake.url) as client:
            stream = Reader(topic, client=client) if path == "/poll" else Consumer(topic, "s", client=client)
            found: list[object] = []
            thread = threading.Thread(target=lambda stream=stream, found=found: found.append(list(stream)))  # type: ignore[misc]
            thread.start()
            while not any(request.path.endswith(path) for request in fake.requests):
                threading.Event().wait(0.01)
            stream.close()
            thread.join(PATIENCE)  # the answer does not come before
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


def test_closing_a_producer_gives_up_after_its_timeout(house: RunningService, topic: str) -> None:
    gate = threading.Event()
    with fake_server(holding(house, "/publish", gate)) as fake:
        producer = Producer(topic, url=fake.url, name="p", linger=0, batch_max_messages=1)
        futures = [producer.send_async(b"x") for _ in range(3)]
        with pytest.raises(TimeoutError, match="3 messages have no outcome"):
            producer.close(timeout=0.2)
        gate.set()
        found = [future.exception(PATIENCE) for future in futures]
        assert [error.definite for error in found if isinstance(error, OncelogError)] == [False, True, True]
        assert isinstance(found[2], ProducerStopped)
        producer.close()


def test_closing_a_consumer_gives_up_after_its_timeout(house: RunningService, client: Client, topic: str) -> None:
    client.create_topic(topic, exist_ok=True)
    with Producer(topic, client=client) as producer:
        producer.send(b"x")
    gate = threading.Event()
    with fake_server(holding(house, "/ack", gate)) as fake:
        for busy in (False, True):
            consumer = Consumer(topic, "s", url=fake.url, ack_interval=3_600)
            consumer.ack_async(consumer.receive(1)[0])
            if busy:  # another thread is at it
                consumer._begin_exit()
                until(lambda: sum(request.path.endswith("/ack") for request in fake.requests) == 2)
            with pytest.raises(TimeoutError, match="may be delivered again"):
                consumer.close(timeout=0.2)
            consumer.close()
        gate.set()
