"""What a process does around the SDK: it forks, is signalled, ends. Each function is run in a process of its own, since what goes
wrong there would take the tests with it: `python -m tests.sdk.processes <function> <url> <topic>`."""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import pickle
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from sqlalchemy import create_engine, text

from oncelog import Client, Consumer, Producer, Reader, errors
from oncelog.process import exits
from oncelog.reading import consumer as consumer_module
from oncelog.spark.connection import Connection as SparkConnection
from oncelog.sql.outbox import Outbox
from oncelog.sql.outbox_relay import OutboxRelay
from oncelog.sql.participant import SqlParticipant

PATIENCE = 120.0


def in_child(do: Callable[[], object]) -> int:
    """Fork, do it in the child; the child's pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        do()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def all_ended_well(children: list[int]) -> None:
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * len(children)


def raises(kind: type[BaseException], call: Callable[[], object]) -> BaseException:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


# --- forks


def named_producer(url: str, topic: str) -> None:
    """While threads send through it, children are forked; each tries to use it."""
    client = Client(url)
    producer = Producer(topic, name="p", client=client, linger=0.001)
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            producer.send_async(b"parent")
            client.topic(topic)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    lingering = Producer(topic, name="q", client=client, linger=3_600)
    queued = lingering.send_async(b"queued")

    def child() -> None:
        for use in (lambda: producer.send(b"child"), lambda: producer.send_async(b"child"), lambda: producer.send_batch([b"x"])):
            error = raises(errors.Forked, use)
            assert isinstance(error, errors.OncelogError)
            assert error.definite
        error = queued.exception(PATIENCE)
        assert isinstance(error, errors.Forked)
        assert not error.definite
        producer.flush()
        producer.close()
        lingering.close()
        assert client.topic(topic).name == topic
        with Producer(topic, name=f"child-{os.getpid()}", client=client) as own:
            own.send(b"child")

    all_ended_well([in_child(child) for _ in range(12)])
    stop.set()
    for thread in threads:
        thread.join()
    producer.send(b"parent")
    producer.close()
    lingering.close()
    print(producer.last_sequence_id)


def unnamed_producer(url: str, topic: str) -> None:
    """Made before the fork, as under gunicorn's preload; each child sends through it as if it were its own."""
    producer = Producer(topic, url=url)
    producer.send(b"parent 0")
    before = producer.name
    waiting = producer.send_async(b"parent 1")

    def child() -> None:
        receipts = producer.send_batch([b"%d" % number for number in range(300)])
        assert [receipt.status for receipt in receipts] == ["stored"] * 300
        assert producer.name != before
        producer.close()

    all_ended_well([in_child(child) for _ in range(3)])
    all_ended_well([in_child(producer.close)])  # ends nothing of its parent's
    assert waiting.result().status == "stored"
    assert producer.send(b"parent 2").status == "stored"
    assert producer.name == before
    producer.close()


def pool(url: str, topic: str) -> None:
    """Processes of multiprocessing send and end, and nobody flushes."""
    producer = Producer(topic, url=url, linger=0.05)
    producer.send(b"parent")

    def work() -> None:
        for _ in range(200):
            producer.send_async(b"child")

    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]


def shared_client(url: str, topic: str) -> None:
    """Both sides ask different things at the same time; each gets its own answers."""
    client = Client(url)
    client.create_topic("mine", {"ttl": 1_000})
    client.create_topic("theirs", {"ttl": 2_000})
    assert client.topic("mine").properties["ttl"] == "1000"

    def ask(name: str, ttl: str) -> None:
        for _ in range(150):
            assert client.topic(name).properties["ttl"] == ttl

    children = [in_child(lambda: ask("theirs", "2000")) for _ in range(3)]
    ask("mine", "1000")
    all_ended_well(children)
    client.close()
    in_closed = in_child(lambda: raises(errors.ClientClosed, lambda: client.topic("mine")))
    all_ended_well([in_closed])


def readers(url: str, topic: str) -> None:
    """A reader goes on on both sides; what moves something on the service stays where it was."""
    with Client(url) as client:
        with Producer(topic, client=client) as producer:
            producer.send_batch([b"%d" % number for number in range(10)])
        reader = Reader(topic, client=client, timeout=0, page_size=4)
        assert [message.payload for message in reader.read(3)] == [b"0", b"1", b"2"]
        consumer = Consumer(topic, "s", client=client, timeout=0)
        consumer.ack(consumer.receive(2)[-1])
        consumer.ack_async(consumer.receive(1)[-1])

        def child() -> None:
            assert [message.payload for message in reader] == [b"%d" % number for number in range(3, 10)]
            for use in (consumer.receive, consumer.flush, lambda: consumer.seek(0)):
                raises(errors.Forked, use)
            consumer.close()

        all_ended_well([in_child(child) for _ in range(2)])
        assert [message.payload for message in reader] == [b"%d" % number for number in range(3, 10)]
        assert consumer.receive(1)[0].payload == b"3"
        consumer.close()
        assert client.subscription(topic, "s").cursor == 3


def transactions(url: str, topic: str) -> None:
    """A child that leaves the block ends nothing of its parent's."""
    with Client(url) as client:
        with client.transaction() as tx:
            tx.send(topic, b"of a transaction")

            def child() -> None:
                raises(errors.Forked, lambda: tx.send(topic, b"child"))
                raises(errors.Forked, tx.finish)
                raises(errors.Forked, tx.abort)
                tx.__exit__(SystemExit, SystemExit(), None)
                raises(errors.Forked, lambda: tx.__exit__(None, None, None))

            all_ended_well([in_child(child)])
        assert tx.state == "committed"
        with client.atomic(buffer_bytes=0) as batch:
            batch.send(topic, b"of an atomic commit")

            def other_child() -> None:
                raises(errors.Forked, lambda: batch.send(topic, b"child"))
                raises(errors.Forked, batch.commit)
                raises(errors.Forked, batch.abort)
                batch.__exit__(SystemExit, SystemExit(), None)
                raises(errors.Forked, lambda: batch.__exit__(None, None, None))

            all_ended_well([in_child(other_child)])
        assert batch.outcome is not None
        assert batch.outcome.state == "committed"


def tls(url: str, certificates: str) -> None:
    """The connections are encrypted and each side has a certificate; whose turn it is would end in garbage if two shared one."""
    trusted = {"verify": f"{certificates}/ca.pem", "cert": (f"{certificates}/client.pem", f"{certificates}/client.key")}
    client, topic = Client(url, retry=0, **trusted), f"t-{os.getpid()}"
    client.create_topic(topic)
    with Producer(topic, client=client) as producer:
        producer.send(b"parent")
        reader = Reader(topic, client=client, timeout=0)

        def use() -> None:
            for _ in range(20):
                assert client.topic(topic).name == topic
            producer.send(b"x")
            assert reader.read(1)[0].payload == b"parent"

        children = [in_child(use) for _ in range(3)]
        use()
        all_ended_well(children)
    client.close()


def relay(url: str, topic: str) -> None:
    """A child neither relays nor ends what its parent relays."""
    with tempfile.TemporaryDirectory() as place, Client(url) as client:
        engine, outbox = create_engine(f"sqlite:///{place}/shop.db", connect_args={"timeout": PATIENCE}), Outbox(f"o-{topic}")

        def add(payload: bytes) -> None:
            with engine.begin() as connection:
                outbox.add(connection, topic, payload)

        running = OutboxRelay(outbox, f"sqlite:///{place}/shop.db", url=url, poll_seconds=0.01)
        with running, Reader(topic, client=client, timeout=PATIENCE) as reader:
            add(b"0")
            assert reader.read(1)[0].payload == b"0"

            def child() -> None:
                for use in (running.run_once, running.run, running.start, running.renumber):
                    raises(errors.Forked, use)
                running.__exit__(SystemExit, SystemExit(), None)
                gc.collect()

            all_ended_well([in_child(child) for _ in range(3)])
            add(b"1")
            assert reader.read(1)[0].payload == b"1"
            assert running.status.state == "relaying"
        engine.dispose()


def sql_participant(url: str, topic: str) -> None:
    """The database's transaction is the parent's: a child is not handed its connection, and decides nothing."""
    with tempfile.TemporaryDirectory() as place, Client(url) as client:
        engine = create_engine(f"sqlite:///{place}/shop.db", connect_args={"timeout": PATIENCE})
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (n INTEGER)"))
        database, other = SqlParticipant(engine, f"r-{topic}"), SqlParticipant(engine, f"r-{topic}")
        with client.transaction(database) as tx:
            database.connection.execute(text("INSERT INTO orders VALUES (1)"))
            tx.send(topic, b"1")

            def child() -> None:
                for use in (
                    lambda: database.connection,
                    lambda: database.recover(client),
                    lambda: other.recover(client),
                    database.commit_tx,
                    database.decide,
                    database.rollback_tx,
                    tx.finish,
                    tx.abort,
                    client.transaction(other).start,
                ):
                    raises(errors.Forked, use)
                tx.__exit__(SystemExit, SystemExit(), None)

            all_ended_well([in_child(child) for _ in range(2)])
        assert tx.state == "committed"
        with engine.begin() as connection:
            assert connection.execute(text("SELECT n FROM orders")).all() == [(1,)]
        with Reader(topic, client=client, timeout=0) as reader:
            assert [message.payload for message in reader] == [b"1"]
        engine.dispose()


def spark_connection(url: str, topic: str) -> None:
    """Python workers of Spark are forked: each has a client of its own, however it came by the connection."""
    connection = SparkConnection.chosen(url, None, None, retry_seconds=0)
    client = connection.client()
    assert pickle.loads(pickle.dumps(connection)).client() is client
    assert client.topic(topic).name == topic

    def child() -> None:
        own = connection.client()
        assert own is not client
        assert connection.client() is own
        for _ in range(50):
            assert own.topic(topic).name == client.topic(topic).name == topic

    children = [in_child(child) for _ in range(3)]
    for _ in range(50):
        assert connection.client().topic(topic).name == topic
    all_ended_well(children)


# --- signals


def storm(seed: int, handler: Callable[[], None]) -> Callable[[], None]:
    """Call ``handler`` from a real signal again and again, at random moments; what ends that."""
    chance = random.Random(seed)

    def handle(*_: object) -> None:
        handler()
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.004))

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001)

    def end() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)

    return end


def sends_in_handlers(url: str, topic: str) -> None:
    """Each side numbers its messages in their payload; the SDK numbers them all."""
    chance, handled, calls = random.Random(1), 0, {"send": 0, "send_async": 0, "flush": 0}
    futures: list[Future[Any]] = []
    with Producer(topic, url=url, name="p", batch_max_messages=7, max_pending=50, linger=0.001) as producer:

        def handle() -> None:
            nonlocal handled
            do = chance.choice(["send", "send_async", "send_async", "send_async", "flush"])
            calls[do] += 1
            if do == "flush":
                producer.flush()
            elif do == "send":
                handled += 1
                assert producer.send(b"handler %d" % (handled - 1)).status == "stored"
            else:
                handled += 1
                futures.append(producer.send_async(b"handler %d" % (handled - 1)))

        end = storm(1, handle)
        number, until = 0, time.monotonic() + 4
        while number < 3_000 or (time.monotonic() < until and min(calls.values()) < 30):
            if number % 50 == 0:
                producer.send(b"main %d" % number)
            elif number % 333 == 0:
                producer.flush()
                futures.append(producer.send_async(b"main %d" % number))
            else:
                futures.append(producer.send_async(b"main %d" % number))
            number += 1
        end()
    assert all(future.result().status == "stored" for future in futures)
    print(number, handled)


def numbers_in_handlers(url: str, topic: str) -> None:
    """The application numbers: whichever of two is queued first, an id that comes too late is refused and never lost silently."""
    given, refused = iter(range(10**9)), 0
    accepted: list[int] = []
    with Producer(topic, url=url, name="p", batch_max_messages=7, linger=0.001) as producer:

        def send() -> None:
            nonlocal refused
            number = next(given)
            try:
                producer.send_async(b"%d" % number, sequence_id=number)
            except errors.SequenceIdNotRising:
                refused += 1
            else:
                accepted.append(number)

        end = storm(2, send)
        for _ in range(5_000):
            send()
        end()
    print(*sorted(accepted))


def flush_in_handler(url: str, topic: str) -> None:
    """The signal comes when a message is queued and nobody has noted yet how long it may linger."""
    with Producer(topic, url=url, name="p", linger=0.001) as producer:
        put, signals = producer._put, [signal.SIGUSR1]
        signal.signal(signal.SIGUSR1, lambda *_: producer.flush())

        def interrupted(*given: Any) -> bool:
            done = put(*given)
            while signals:
                signal.raise_signal(signals.pop())
            return done

        producer._put = interrupted  # type: ignore[method-assign]
        assert producer.send_async(b"0").done()
        lingered = threading.Event()
        time.sleep(0.1)  # what went wrong did so after the linger
        producer.send_async(b"1").add_done_callback(lambda _: lingered.set())
        assert lingered.wait(PATIENCE)


def close_in_handler(url: str, topic: str) -> None:
    """Once each at a random moment, while the same thread sends."""
    chance = random.Random(3)
    for turn in range(40):
        producer = Producer(topic, url=url, name=f"p{turn}", batch_max_messages=5, linger=0.0005)
        sent = 0

        def close(*_: object, producer: Producer[bytes] = producer) -> None:
            producer.close()

        signal.signal(signal.SIGALRM, close)
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.02))
        futures = []
        try:
            while True:
                if turn % 2 and sent % 10 == 9:
                    producer.send(b"%d" % sent)
                else:
                    futures.append(producer.send_async(b"%d" % sent))
                sent += 1
        except errors.ProducerClosed:
            pass
        assert all(future.result(PATIENCE).status == "stored" for future in futures)
        last = producer.last_sequence_id
        assert last in (sent, sent - 1, None), (last, sent)  # the last one may be stored though its call said closed


def calls_in_handlers(url: str, topic: str) -> None:
    """A client, a consumer and a reader that are interrupted by calls of their own."""
    with Client(url) as client, Producer(topic, client=client) as producer:
        producer.send_batch([b"%d" % number for number in range(3_000)])
        consumer = Consumer(topic, "s", client=client, timeout=0, page_size=10)
        last: list[Any] = [consumer.receive(1)[0]]
        calls = 0

        def handle() -> None:
            nonlocal calls
            calls += 1
            assert client.topic(topic).name == topic
            (consumer.ack, consumer.ack_async)[calls % 2](last[0])
            if calls % 7 == 0:
                consumer.flush()

        end = storm(4, handle)
        for message in consumer:
            last[0] = message
            if message.offset % 10 == 0:
                consumer.ack_async(message)
                assert client.stats(topic).upcoming_offset == 3_000
        end()
        consumer.ack_async(last[0])
        consumer.close()
        assert client.subscription(topic, "s").cursor == 3_000
        assert calls > 10

        reader = Reader(topic, client=client)
        signal.signal(signal.SIGALRM, lambda *_: reader.close())
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        assert len(list(reader)) <= 3_000  # which ends although the topic goes on
        raises(errors.ReaderClosed, reader.read)


# --- ends


def forgets_to_flush(url: str, topic: str) -> None:
    producer = Producer(topic, url=url, name="p", linger=3_600)
    for number in range(100):
        producer.send_async(b"%d" % number)
    threading.Thread(target=lambda: (time.sleep(0.3), producer.send_async(b"100"), sys.exit(3))).start()


def cannot_flush(url: str, topic: str) -> None:
    producer = Producer(topic, url=url, name="p", linger=0.001, exit_timeout=0.5)
    for number in range(3, 10):
        producer.send_async(b"%d" % number, sequence_id=number)


def many_cannot_flush(url: str, topic: str) -> None:
    for name in ("a", "b", "c"):
        cannot = Producer(topic, url=url, name=name, linger=0.001, exit_timeout=0.5)
        cannot.send_async(b"0")


def after_the_end(handler: Callable[[], object]) -> None:
    """Have it called at the exit as if it had been registered before oncelog was imported: behind oncelog's own handler."""
    atexit.unregister(exits.at_exit)
    atexit.register(handler)
    atexit.register(exits.at_exit)


def sends_late(url: str, topic: str) -> None:
    producer = Producer(topic, url=url, name="p", linger=3_600, exit_timeout=0.5)
    producer.send_async(b"in time")
    after_the_end(lambda: producer.send_async(b"late"))


def acknowledges_late(url: str, topic: str) -> None:
    with Producer(topic, url=url) as producer:
        producer.send(b"x")
    consumer = Consumer(topic, "s", url=url, ack_interval=3_600)
    message = consumer.receive(1)[0]
    after_the_end(lambda: consumer.ack_async(message))


def begins_late(url: str, topic: str) -> None:
    """As from Python 3.12 on, no thread begins any more."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    def handler() -> None:
        threading.Thread.start = refuse  # type: ignore[method-assign]
        producer = Producer(topic, url=url.replace("127.0.0.1", "localhost"), linger=3_600)
        for number in range(3):
            producer.send_async(b"%d" % number)

    after_the_end(handler)


def cannot_acknowledge(url: str, topic: str) -> None:
    """It prints how long the exit took."""
    consumer_module.EXIT_SECONDS = 0.5
    with Producer(topic, url=url) as producer:
        producer.send(b"x")
    for name in ("a", "b", "c"):
        consumer = Consumer(topic, name, url=url, ack_interval=3_600)
        consumer.ack_async(consumer.receive(1)[0])
    begun = time.monotonic()
    after_the_end(lambda: print(time.monotonic() - begun))


def interrupted(url: str, topic: str) -> None:
    with Producer(topic, url=url, name="p", exit_timeout=0.5) as producer:
        producer.send_async(b"0")
        print("ready", flush=True)
        producer.send(b"1")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
