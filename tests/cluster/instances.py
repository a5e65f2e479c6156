"""Several instances of the service as processes of their own over one PostgreSQL, to be killed, stopped and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import requests

from oncelog import Client
from oncelog.errors import ConnectionFailed, OncelogError
from oncelog.wire.models import Cluster
from oncelog_service.cluster.leases import topic_resource
from oncelog_service.cluster.placement import preferred
from oncelog_service.storage.keys import topic_key
from tests import patience
from tests.patience import PATIENCE
from tests.world.service import ServiceProcess

T = TypeVar("T")

TIMEOUT = 30.0
LEASE_SECONDS = 6.0
"""Twice as long as by default, so that who is held up for a while has not lost its topics when nobody struck it."""

until = partial(patience.until, despite=(OncelogError, requests.RequestException))
"""Errors of the service mean not yet."""


class Instance(ServiceProcess):
    """One of them. What it logs is kept."""

    def __init__(self, store: str, folder: Path, name: str, **settings: Any) -> None:
        super().__init__(folder / name, **settings)
        self.store = store
        self.name = name
        self.stopped = False
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
    def healthy(self) -> bool:
        return requests.get(self.url + "/healthz", timeout=10, verify=self.verify).status_code == 200

    @property
    def running(self) -> bool:
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

    # --- requests by hand

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


def address(topic: str) -> str:
    """Begins every address of a topic."""
    return f"/v1/namespaces/default/topics/{topic}"


class Instances:
    """All of them."""

    def __init__(self, store: str, folder: Path, number: int, **settings: Any) -> None:
        self.store = store
        self.all = [Instance(store, folder, f"instance-{each}", **settings) for each in range(number)]
        self._names = count()
        self._token = settings.get("token")

    @property
    def url(self) -> str:
        """Of all of them, for a client."""
        return ",".join(each.url for each in self.all)

    def client(self, **options: Any) -> Client:
        return Client(self.url, token=self._token, **options)

    def make_whole(self, seconds: float = PATIENCE) -> None:
        """Have all of them running, and known to each other."""
        for each in self.all:
            if each.stopped:
                each.thaw()
        until(self._is_whole, seconds=seconds)

    def _is_whole(self) -> bool:
        for each in self.all:
            if not each.running:
                each.begin()
        if not all(each.healthy for each in self.all):
            return False
        urls = sorted(each.url for each in self.all)
        # One after the other, since each has its own picture: that of its latest heartbeat.
        return all(sorted(found.url for found in self.seen_by(each).instances) == urls for each in self.all)

    def seen_by(self, instance: Instance) -> Cluster:
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

    def running(self) -> list[Instance]:
        """Those that are not killed, nor stopped."""
        return [each for each in self.all if each.running and not each.stopped]

    def others(self, but: Instance) -> list[Instance]:
        """The same, without this one."""
        return [each for each in self.running() if each is not but]

    def at(self, url: str) -> Instance:
        return next(each for each in self.all if each.url == url)

    def holder(self, resource: str) -> Instance | None:
        """Who has a topic, the "transactions" or the "atomic", and is alive."""
        for lease in self.seen().leases:
            if lease.url is not None and (lease.topic or lease.resource) == resource:
                return self.at(lease.url)
        return None

    def owner(self, resource: str) -> Instance:
        """The same, who must be there or come: of a topic, once somebody asks for it."""
        found = until(lambda: self.holder(resource) or self._asked_for(resource))
        assert found is not None
        return found

    def _asked_for(self, resource: str) -> None:
        if resource not in ("atomic", "transactions"):
            with self.client(retry=0) as client:
                client.stats(resource)

    def preferred(self, topic: str) -> Instance:
        """Where a topic belongs, as long as these are there."""
        ids = {each.id: each.url for each in self.seen().instances}
        return self.at(ids[preferred(topic_resource(topic_key("default", topic)), ids) or ""])

    def topic_at(self, instance: Instance, client: Client, **properties: str) -> str:
        """A new topic that is served by this one, as long as all are there."""
        while True:
            name = f"t{next(self._names)}"
            if self.preferred(name) is instance:
                client.create_topic(name, properties)
                # Whoever has not heard of it yet may have taken the topic, and hands it over.
                with suppress(AssertionError):  # one of them was cut off for a while, and has another id since
                    until(lambda: self.holder(name) is instance, seconds=20)  # noqa: B023
                    return name


@contextmanager
def instances(store: str, folder: Path, number: int = 3, **settings: Any) -> Iterator[Instances]:
    """Start them side by side; kill what is left of them at the end."""
    found = Instances(store, folder, number, **settings)
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


def side_by_side(calls: Sequence[Callable[[], T]]) -> list[T]:
    """What the calls answer, all made at the same time."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [each.result(PATIENCE) for each in [threads.submit(call) for call in calls]]
