"""What a process does around the SDK: it forks, is signalled, ends. It is one of its own, since what goes wrong there would take
the tests with it: `python -m tests.sdk.processes <url> <topic> <function>…`. Each function has a topic of its own, and what it
returns is printed behind its name."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import util
from types import SimpleNamespace
from typing import Any

from oncelog import Client, Consumer, Producer, Reader, errors
from oncelog.process import exits
from oncelog.reading import acknowledging
from oncelog.spark.connection import Connection as SparkConnection

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


def named_producer(url: str, topic: str) -> int | None:
    """While threads send through it, children are forked; each tries to use it."""
    client = Client(url)
    producer = Producer(topic, name="p", client=client, linger=0.001)
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            producer.send_async(b"parent")
            client.topic(topic)

    threads = [threading.Thread(target=busy, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    lingering = Producer(topic, name="q", client=client, linger=3_600)
    queued = lingering.send_async(b"queued")

    def child() -> None:
        for use in (lambda: producer.send(b"child"), lambda: producer.send_async(b"child"), lambda: producer.send_batch([b"x"])):
            error = raises(errors.Forked, use)
            assert isinstance(error, errors.OncelogError)
            assert error.definite
        assert queued.done()
        error = queued.exception()
        assert isinstance(error, errors.Forked)
        assert not error.definite
        producer.flush()
        producer.close()
        lingering.close()
        assert client.topic(topic).name == topic
        with Producer(topic, name=f"child-{os.getpid()}", client=client) as own:
            own.send(b"child")

    all_ended_well([in_child(child) for _ in range(4)])
    stop.set()
    for thread in threads:
        thread.join()
    producer.send(b"parent")
    producer.close()
    lingering.close()
    return producer.last_sequence_id


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


unsent: list[Producer[bytes]] = []


def send_without_flushing(url: str, topic: str) -> None:
    """With so long a linger nothing is sent before the end."""
    producer = Producer(topic, url=url, linger=3_600)
    unsent.append(producer)
    for _ in range(200):
        producer.send_async(b"child")


def billiards_process(url: str, topic: str) -> None:
    """Billiard has processes of its own, which are none to multiprocessing. They end by the same finalizers, and `os._exit`."""

    def child() -> None:
        sys.modules["billiard.process"] = SimpleNamespace(current_process=lambda: SimpleNamespace(_parent_pid=os.getppid()))
        own: Any = util
        own._finalizer_registry.clear()
        own._run_after_forkers()
        send_without_flushing(url, topic)
        own._exit_function()

    all_ended_well([in_child(child)])


class Signal:
    """A signal of Celery's, as far as what is connected there goes."""

    def __init__(self) -> None:
        self.receivers: dict[str, Callable[..., None]] = {}

    def connect(self, receiver: Callable[..., None], *, weak: bool, dispatch_uid: str) -> None:
        assert not weak, "it would be gone"
        self.receivers.setdefault(dispatch_uid, receiver)

    def send(self, **named: Any) -> None:
        for receiver in self.receivers.values():
            receiver(signal=self, **named)


def celerys_worker(url: str, topic: str) -> None:
    """A child of prefork is left by `os._exit`, in the middle of its process; before that it sends a signal."""
    signals = sys.modules["celery.signals"] = SimpleNamespace(worker_process_shutdown=Signal())  # type: ignore[assignment]
    Producer(topic, url=url).close()  # it is known to the parent, too

    def child() -> None:
        send_without_flushing(url, topic)
        send_without_flushing(url, topic)
        signals.worker_process_shutdown.send(sender="w", pid=os.getpid(), exitcode=0)

    all_ended_well([in_child(child)])


def pools(url: str, topic: str) -> None:
    """Each way to begin a process, with one to end it: a pool is closed and joined, or its `with` ends them by SIGTERM."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.starmap(send_without_flushing, [(url, topic)])
        pool.close()
        pool.join()
    with multiprocessing.get_context("forkserver").Pool(1, end_at_sigterm) as pool:
        pool.starmap(send_without_flushing, [(url, topic)])
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        executor.submit(send_without_flushing, url, topic).result()


def end_at_sigterm() -> None:
    signal.signal(signal.SIGTERM, end)


def end(*_: object) -> None:
    """It closes before it raises: the process may be ending by itself, and waits for what is sent there."""
    for each in unsent:
        each.close(timeout=PATIENCE)
    sys.exit()


def shared_client(url: str, topic: str) -> None:
    """Both sides ask different things at the same time; each gets its own answers."""
    client = Client(url)
    client.create_topic("mine", {"ttl": 1_000}, exist_ok=True)
    client.create_topic("theirs", {"ttl": 2_000}, exist_ok=True)
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
    """A reader goes on on both sides."""
    with Client(url) as client:
        with Producer(topic, client=client) as producer:
            producer.send_batch([b"%d" % number for number in range(10)])
        reader = Reader(topic, client=client, timeout=0, page_size=4)
        assert [message.payload for message in reader.read(3)] == [b"0", b"1", b"2"]

        def go_on() -> None:
            assert [message.payload for message in reader] == [b"%d" % number for number in range(3, 10)]

        children = [in_child(go_on) for _ in range(2)]
        go_on()
        all_ended_well(children)


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


def sends_in_handlers(url: str, topic: str) -> str:
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
    return f"{number} {handled}"


def close_in_handler(url: str, topic: str) -> None:
    """Once each at a random moment, while the same thread sends."""
    chance = random.Random(3)
    for turn in range(12):
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
        last: list[Any] = [consumer.read(1)[0]]
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
    producer = Producer(topic, url=url, name="p", linger=3_600, exit_timeout=60)
    for number in range(100):
        producer.send_async(b"%d" % number)
    threading.Thread(target=lambda: (time.sleep(0.3), producer.send_async(b"100"), sys.exit(3))).start()


def cannot_flush(url: str, topic: str) -> None:
    for name in ("a", "b", "c"):
        cannot = Producer(topic, url=url, name=name, linger=0.001, exit_timeout=0.5)
        for number in range(3, 10):
            cannot.send_async(b"%d" % number, sequence_id=number)


def after_the_end(handler: Callable[[], object]) -> None:
    """Have it called at the exit as if it had been registered before oncelog was imported: behind oncelog's own handler."""
    atexit.unregister(exits.at_exit)
    atexit.register(handler)
    atexit.register(exits.at_exit)


def sends_late(url: str, topic: str) -> None:
    producer = Producer(topic, url=url, name="p", linger=3_600, exit_timeout=60)
    producer.send_async(b"in time")
    after_the_end(lambda: producer.send_async(b"late"))


def acknowledges_late(url: str, topic: str) -> None:
    with Producer(topic, url=url) as producer:
        producer.send(b"x")
    consumer = Consumer(topic, "s", url=url, ack_interval=3_600)
    message = consumer.read(1)[0]
    after_the_end(lambda: consumer.ack_async(message))


def begins_late(url: str, topic: str) -> None:
    """As from Python 3.12 on, no thread begins any more."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    def handler() -> None:
        threading.Thread.start = refuse  # type: ignore[method-assign]
        producer = Producer(topic, url=url.replace("127.0.0.1", "localhost"), linger=3_600, exit_timeout=60)
        for number in range(3):
            producer.send_async(b"%d" % number)

    after_the_end(handler)


def cannot_acknowledge(url: str, topic: str) -> None:
    """It prints how long the exit took."""
    acknowledging.EXIT_SECONDS = 0.5  # type: ignore[attr-defined]
    for name in ("a", "b", "c"):
        consumer = Consumer(topic.removesuffix("-cannot_acknowledge"), name, url=url, ack_interval=3_600)
        consumer.ack_async(consumer.read(1)[0])
    begun = time.monotonic()
    after_the_end(lambda: print("exit", time.monotonic() - begun, flush=True))


def logs_last(_: str, __: str) -> None:
    """What it says just before it ends is with a handler that takes its time."""

    class Slow(logging.StreamHandler[Any]):
        def emit(self, record: logging.LogRecord) -> None:
            time.sleep(0.4)
            super().emit(record)

    logging.basicConfig(level=logging.INFO, handlers=[Slow()])
    with Client("http://127.0.0.1:9", retry=0.5) as client:
        raises(errors.ConnectionFailed, lambda: client.stats("t"))


def sends_late_in_vain(url: str, topic: str) -> None:
    producer = Producer(topic, url=url, name="late", linger=3_600, exit_timeout=0.5)
    after_the_end(lambda: producer.send_async(b"late"))


def interrupted(url: str, topic: str) -> None:
    with Producer(topic, url=url, name="p", exit_timeout=0.5) as producer:
        producer.send_async(b"0")
        print("ready", flush=True)
        producer.send(b"1")


if __name__ == "__main__":
    _, url, topic, *names = sys.argv
    for name in names:
        own = f"{topic}-{name}"
        with Client(url) as client:
            client.create_topic(own, exist_ok=True)
        print(name, globals()[name](url, own), flush=True)
