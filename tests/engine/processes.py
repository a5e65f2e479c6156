"""What a process does around a store that it has opened: `python -m tests.engine.processes <url> <function>`. It prints a line
for each thing that is to be known of it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from weakref import finalize

from oncelog import Client, Producer, errors
from oncelog.http.engines import InProcess
from oncelog_service.engine import Engine, engines
from oncelog_service.engine.address import Address
from oncelog_service.storage.port import Store


def in_child(do: Callable[[], object], leave: Callable[[int], object] = os._exit) -> None:
    """Fork, do it in the child, which ends by ``leave``, and wait for its good end."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(120)
        do()
        leave(0)
    assert os.waitpid(pid, 0)[1] == 0


def refused(client: Client) -> None:
    try:
        client.topics()
    except errors.Forked as error:
        print(f"{error.definite} {error.detail}", flush=True)


def lets_go(share: InProcess) -> None:
    """As the collector, while a thread of the parent, which is not here, has a lock on the way to the engine."""
    share._held._lock.acquire()
    share.let_go()
    assert len(os.listdir("/proc/self/task")) == 1, "nobody waits for it"


def says_whether_it_is_destroyed(store: Store) -> None:
    finalize(store, print, "destroyed", flush=True).atexit = False


def asks(url: str) -> None:
    with Client(url, retry=0) as client:
        try:
            client.topics()
        except errors.StoreInUse as error:
            print(error.pid, flush=True)


def forks(url: str) -> None:
    """Forks while the engine is at work: in the child the client is refused, also one of its own, and its end changes nothing."""
    client = Client(url)
    client.create_topic("t")
    producer = Producer("t", name="p", client=client)
    at_work = threading.Thread(target=lambda: [producer.send(b"%d" % number) for number in range(300)])
    at_work.start()
    print(os.getpid(), flush=True)
    engine, share = Engine().start(), InProcess(url)
    share.open(10)
    in_child(lambda: refused(client))
    in_child(lambda: lets_go(share))
    in_child(lambda: asks(url))
    in_child(lambda: (client.close(), engine.stop(), engine.abandon()))
    store = engines._shared[Address.of(url)].engine.service.opening.store
    in_child(partial(says_whether_it_is_destroyed, store), leave=sys.exit)  # which runs every destructor
    del store
    at_work.join()
    engine.stop()
    producer.close()
    print(client.stats("t").upcoming_offset, flush=True)
    client.close()


def cut(url: str) -> None:
    """A forked child lives on, and its parent's clients hear at once that their engine has ended, and use it when it is back."""
    engine = Engine(url).start()
    client, other = (Client(url, retry=0, timeout=10) for _ in range(2))
    for each in (client, other):
        assert each.topics() == []
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        engine.abandon()
        try:
            client.topics()
        except errors.ConnectionFailed as error:
            print(error.definite, flush=True)
        with engine:
            print(other.topics(), flush=True)
    finally:
        os.kill(pid, signal.SIGKILL)


def outlived(url: str) -> None:
    """Leaves a forked child behind, which lives on."""
    client = Client(url)
    client.create_topic("t")
    pid = os.fork()
    if pid == 0:
        signal.pause()
    print(pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def exits(url: str) -> None:
    """Ends without closing anything, with messages that wait."""
    producer = Producer("t", name="p", client=_made(url), linger=60)
    for number in range(300):
        producer.send_async(b"%d" % number)


def exits_with_an_engine(url: str) -> None:
    """As :func:`exits`, with an engine that it has made."""
    _kept.append(Engine(url).start())
    exits(url)


def exits_elsewhere(url: str) -> None:
    """As :func:`exits`, in a child of multiprocessing."""
    child = multiprocessing.get_context("spawn").Process(target=exits, args=(url,))
    child.start()
    child.join()
    assert child.exitcode == 0


_kept: list[Client | Engine] = []


def _made(url: str) -> Client:
    client = Client(url)
    if "t" not in client.topics():
        client.create_topic("t")
    _kept.append(client)  # so that nobody collects it before the end
    return client


def counts(url: str) -> None:
    """Counts for ever; each number is printed when it was acknowledged."""
    client = _made(url)
    producer = Producer("t", name="p", client=client)
    number = client.stats("t").upcoming_offset
    while True:
        producer.send(b"%d" % number, sequence_id=number)
        print(number, flush=True)
        number += 1


if __name__ == "__main__":
    globals()[sys.argv[2]](sys.argv[1])
