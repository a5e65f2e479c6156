"""Several instances of the service: in this process over a database in memory, or as processes of their own over one PostgreSQL,
to be killed, stopped and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeVar

import requests

from oncelog import Client, Producer, Reader
from oncelog.errors import ConnectionFailed, OncelogError
from oncelog.wire.models import Cluster
from oncelog_service.cluster.leases import topic_resource
from oncelog_service.cluster.placement import preferred
from oncelog_service.storage.keys import topic_key
from tests import patience
from tests.patience import PATIENCE
from tests.world.service import RunningService, ServiceProcess, free_port, running_service
from tests.world.shared import SharedDatabase

T = TypeVar("T")

TIMEOUT = 30.0
LEASE_SECONDS = 6.0
"""Twice as long as by default, so that who is held up for a while has not lost its topics when nobody struck it."""

until = partial(patience.until, despite=(OncelogError, requests.RequestException))
"""Errors of the service mean not yet."""


class Asked:
    """Whoever answers below a URL, asked by hand."""

    url: str
    verify: str | bool = True
    running: bool
    stopped = False
    """SIGSTOP has come, and no SIGCONT."""

    def begin(self) -> None:
        """Start, without waiting."""
        raise NotImplementedError

    @property
    def healthy(self) -> bool:
        return requests.get(self.url + "/healthz", timeout=10, verify=self.verify).status_code == 200

    def ask(self, method: str, path: str, **options: Any) -> requests.Response:
        """A request to it; what it answers, redirects too. ``proxy``: it should answer by itself."""
        headers = options.pop("headers", {}) | ({"oncelog-route": "proxy"} if options.pop("proxy", False) else {})
        options = {"timeout": TIMEOUT, "verify": self.verify, **options}
        with requests.Session() as session:
            session.trust_env = False
            return session.request(method, self.url + path, headers=headers, allow_redirects=False, **options)

    def publish(
        self, topic: str, *messages: str, proxy: bool = False, timeout: float = TIMEOUT, **fields: Any
    ) -> requests.Response:
        body = {"messages": list(messages), **fields}
        return self.ask("POST", f"{address(topic)}/publish", json=body, proxy=proxy, timeout=timeout)

    def poll(self, topic: str, proxy: bool = False, timeout: float = TIMEOUT, **fields: Any) -> requests.Response:
        return self.ask("POST", f"{address(topic)}/poll", json=fields, proxy=proxy, timeout=timeout)

    def client(self, **options: Any) -> Client:
        """A client that knows only of this one to begin with."""
        return Client(self.url, **options)


class InPlace(Asked):
    """One in this process."""

    service: RunningService

    def __init__(self, database: SharedDatabase, name: str, **settings: Any) -> None:
        port = free_port()
        self.name, self.url = name, f"http://127.0.0.1:{port}"
        self.database, self._settings = database, {"port": port, "lease_seconds": LEASE_SECONDS, **settings}
        self._life = ExitStack()
        self.running = False

    def begin(self) -> None:
        running = running_service(open_store=lambda: self.database.open(self.name), **self._settings)
        self.service, self.running = self._life.enter_context(running), True

    def cut_off(self) -> None:
        """It does not reach the database, until it is put back."""
        self.database.cut.add(self.name)

    def put_back(self) -> None:
        self.database.cut.discard(self.name)

    def stop(self) -> None:
        """In good order."""
        self.running = False
        self._life.close()


class Instance(Asked, ServiceProcess):
    """One as a process. What it logs is kept."""

    def __init__(self, store: str, folder: Path, name: str, **settings: Any) -> None:
        super().__init__(folder / name, **settings)
        self.store = store
        self.name = name
        self._log = folder / f"{name}.log"

    def begin(self) -> None:
        """Start, without waiting."""
        environment = {**os.environ, **{f"ONCELOG_{name.upper()}": str(value) for name, value in self._settings.items()}}
        command = [sys.executable, "-m", "oncelog_service", "serve", "--port", str(self.port), "--store", self.store]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log)

    def start(self, timeout: float = PATIENCE) -> None:
        self.begin()
        until(lambda: self.healthy, seconds=timeout)

    @property
    def running(self) -> bool:  # type: ignore[override]
        return self._process is not None and self._process.poll() is None

    def freeze(self) -> None:
        """SIGSTOP: not one instruction more, until thawed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        until(lambda: Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        self.stopped = True

    def thaw(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self.stopped = False
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """SIGTERM, without waiting."""
        assert self._process is not None
        self._process.terminate()

    def kill(self) -> None:
        super().kill()
        self.stopped = False

    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""


def address(topic: str) -> str:
    """Begins every address of a topic."""
    return f"/v1/namespaces/default/topics/{topic}"


Of = TypeVar("Of", bound=Asked)


class Instances(Generic[Of]):
    """All of them."""

    def __init__(self, all_of_them: Sequence[Of], token: str | None = None) -> None:
        self.all = list(all_of_them)
        self._names = count()
        self._token = token

    @property
    def url(self) -> str:
        """Of all of them, for a client."""
        return ",".join(each.url for each in self.all)

    def client(self, **options: Any) -> Client:
        return Client(self.url, token=self._token, **options)

    def make_whole(self, seconds: float = PATIENCE) -> None:
        """Have all of them running, and known to each other."""
        for each in self.all:
            if isinstance(each, Instance) and each.stopped:
                each.thaw()
        until(self._is_whole, seconds=seconds, every=0.1)

    def _is_whole(self) -> bool:
        for each in self.all:
            if not each.running:
                each.begin()
        if not all(each.healthy for each in self.all):
            return False
        urls = sorted(each.url for each in self.all)
        # One after the other, since each has its own picture: that of its latest heartbeat.
        return all(sorted(found.url for found in self.seen_by(each).instances) == urls for each in self.all)

    def seen_by(self, instance: Of) -> Cluster:
        """Who is there and who has what, as this one says."""
        with Client(instance.url, token=self._token, retry=0) as client:
            return client.cluster()

    def seen(self) -> Cluster:
        """The same, as the first one that answers says."""
        for each in self.running():
            try:
                return self.seen_by(each)
            except OncelogError:
                continue  # it is starting, or ending, or finding back
        raise ConnectionFailed("nobody answers")

    def running(self) -> list[Of]:
        """Those that are not killed, nor stopped."""
        return [each for each in self.all if each.running and not each.stopped]

    def at(self, url: str) -> Of:
        return next(each for each in self.all if each.url == url)

    def holder(self, resource: str) -> Of | None:
        """Who has a topic, the "transactions" or the "atomic", and is alive."""
        for lease in self.seen().leases:
            if lease.url is not None and (lease.topic or lease.resource) == resource:
                return self.at(lease.url)
        return None

    def owner(self, resource: str) -> Of:
        """The same, who must be there or come: of a topic, once somebody asks for it."""
        found = until(lambda: self.holder(resource) or self._asked_for(resource), every=0.2)
        assert found is not None
        return found

    def _asked_for(self, resource: str) -> None:
        if resource not in ("atomic", "transactions"):
            with self.client(retry=0) as client:
                client.stats(resource)

    def preferred(self, topic: str) -> Of:
        """Where a topic belongs, as long as these are there."""
        ids = {each.id: each.url for each in self.seen().instances}
        return self.at(ids[preferred(topic_resource(topic_key("default", topic)), ids) or ""])

    def topic_at(self, instance: Of, client: Client, **properties: str) -> str:
        """A new topic that is served by this one, as long as all are there."""
        while True:
            name = f"t{next(self._names)}"
            if self.preferred(name) is instance:
                client.create_topic(name, properties)
                # Whoever has not heard of it yet may have taken the topic, and hands it over.
                with suppress(AssertionError):  # one of them was cut off for a while, and has another id since
                    until(lambda: self.holder(name) is instance, seconds=20, every=0.2)  # noqa: B023
                    return name


@contextmanager
def in_place(number: int = 3, **settings: Any) -> Iterator[Instances[InPlace]]:
    """In this process, over a database in memory."""
    database = SharedDatabase(lambda: int(time.monotonic() * 1000))
    found = Instances([InPlace(database, f"instance-{each}", **settings) for each in range(number)], settings.get("token"))
    try:
        found.make_whole()
        yield found
    finally:
        for each in found.all:
            each.put_back()
            each.stop()


@contextmanager
def instances(store: str, folder: Path, number: int = 3, **settings: Any) -> Iterator[Instances[Instance]]:
    """Start them side by side as processes over a store; kill what is left of them at the end."""
    every = [Instance(store, folder, f"instance-{each}", **settings) for each in range(number)]
    found = Instances(every, settings.get("token"))
    try:
        found.make_whole()
        yield found
    except BaseException as error:
        for each in found.all:
            error.add_note(f"--- {each.name} {each.url}\n{each.log()[-3000:]}")
        raise
    finally:
        for each in found.all:
            each.kill()


def send(client: Client, topic: str, payload: bytes) -> None:
    with Producer(topic, name="p", client=client, delivery_timeout=PATIENCE) as producer:
        producer.send(payload)


def payloads(client: Client, topic: str) -> list[bytes]:
    with Reader(topic, client=client, timeout=0) as reader:
        return [message.payload for message in reader]


def side_by_side(calls: Sequence[Callable[[], T]]) -> list[T]:
    """What the calls answer, all made at the same time."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [each.result(PATIENCE) for each in [threads.submit(call) for call in calls]]
