"""Every call of the service, for callers who wait in their thread: the procedures of the asyncio twin, driven."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial, update_wrapper
from itertools import islice
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from oncelog.api import calls
from oncelog.api.calls import RETRY_SECONDS
from oncelog.api.retry import Outage
from oncelog.api.topics import AsyncApi
from oncelog.errors import OncelogError, TransactionNotFound, TransactionNotInProgress
from oncelog.http.credentials import shown
from oncelog.http.sockets import Network
from oncelog.http.transport import READ_SECONDS, Transport
from oncelog.http.trust import Certificate, Verify
from oncelog.process import forks
from oncelog.process.clock import REAL, Clock
from oncelog.process.procedures import Procedure, begun, called, drive, drive_all, got
from oncelog.wire.media import DEFAULT_NAMESPACE

P = ParamSpec("P")
T = TypeVar("T")

_SHOWN = 1_001
"""Entries that a notebook is given: IPython shows a thousand of them, and that there are more."""


class _Driven(AsyncApi):
    """The calls over a transport that blocks."""

    _shell = Transport


def _waits(call: Callable[Concatenate[AsyncApi, P], Procedure[T]]) -> Callable[Concatenate[Api, P], T]:
    """Make the method that waits for a call."""

    def method(self: Api, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return drive(begun(call, self, self._calls, *args, **kwargs))

    update_wrapper(method, call)
    return method


def _each(call: Callable[Concatenate[AsyncApi, P], AsyncIterator[T]]) -> Callable[Concatenate[Api, P], Iterator[T]]:
    """Make the method that waits for each item of a call."""

    def method(self: Api, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return drive_all(begun(call, self, self._calls, *args, **kwargs))

    update_wrapper(method, call)
    return method


def _listed(call: Callable[Concatenate[AsyncApi, P], AsyncIterator[T]]) -> Callable[Concatenate[Api, P], Iterator[T]]:
    """Make the method that waits for each entry of a listing."""

    def method(self: Api, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _Listing(lambda: drive_all(begun(call, self, self._calls, *args, **kwargs)))

    update_wrapper(method, call)
    return method


class _Listing(Iterator[T]):
    """The entries of a listing, fetched page by page. A notebook shows the list that they are."""

    def __init__(self, anew: Callable[[], Iterator[T]]) -> None:
        self._anew, self._entries = anew, anew()

    def __next__(self) -> T:
        return next(self._entries)

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        printer.pretty([*islice(self._anew(), _SHOWN)])


class Api(forks.MadeHere):
    """Every call of the service's REST interface, one method a call; :class:`oncelog.Client` adds what is made of several."""

    _asynchronous: type[AsyncApi] = _Driven

    @called("Client")
    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout: float = READ_SECONDS,
        retry: float = RETRY_SECONDS,
        verify: Verify = None,
        cert: Certificate = None,
        proxy: str | None = None,
    ) -> None:
        """The arguments are those of :class:`oncelog.AsyncClient`."""
        self._calls = self._asynchronous(url, token=token, timeout=timeout, retry=retry, verify=verify, cert=cert, proxy=proxy)
        self._unconfirmed = self._calls._unconfirmed
        self._outage = self._calls._outage
        self._clock = self._calls._clock

    @property
    def url(self) -> str:
        """URL of the service."""
        return self._calls.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown(self.url)!r})"

    create_topic = _waits(AsyncApi.create_topic)
    update_topic = _waits(AsyncApi.update_topic)
    topic = _waits(AsyncApi.topic)
    topics = _waits(AsyncApi.topics)
    delete_topic = _waits(AsyncApi.delete_topic)
    trim_topic = _waits(AsyncApi.trim_topic)
    erase_message = _waits(AsyncApi.erase_message)
    stats = _waits(AsyncApi.stats)
    all_stats = _listed(AsyncApi.all_stats)
    verify = _each(AsyncApi.verify)
    backup = _each(AsyncApi.backup)
    cluster = _waits(AsyncApi.cluster)
    namespaces = _waits(AsyncApi.namespaces)
    policies = _waits(AsyncApi.policies)
    set_policies = _waits(AsyncApi.set_policies)
    open_producer = _waits(AsyncApi.open_producer)
    producers = _listed(AsyncApi.producers)
    producer = _waits(AsyncApi.producer)
    forget_producer = _waits(AsyncApi.forget_producer)
    end_producer = _waits(AsyncApi.end_producer)
    why = _waits(AsyncApi.why)
    publish = _waits(AsyncApi.publish)
    poll = _waits(AsyncApi.poll)
    alarms = _waits(AsyncApi.alarms)
    overview = _waits(AsyncApi.overview)
    healthy = _waits(AsyncApi.healthy)
    close = _waits(AsyncApi.close)

    open_subscription = _waits(AsyncApi.open_subscription)
    subscriptions = _listed(AsyncApi.subscriptions)
    all_subscriptions = _listed(AsyncApi.all_subscriptions)
    subscription = _waits(AsyncApi.subscription)
    receive = _waits(AsyncApi.receive)
    acknowledge = _waits(AsyncApi.acknowledge)
    seek_subscription = _waits(AsyncApi.seek_subscription)
    delete_subscription = _waits(AsyncApi.delete_subscription)

    create_token = _waits(AsyncApi.create_token)
    tokens = _waits(AsyncApi.tokens)
    revoke_token = _waits(AsyncApi.revoke_token)

    offsets = _waits(AsyncApi.offsets)
    read_columns = _waits(AsyncApi.read_columns)
    inspect_rows = _waits(AsyncApi.inspect_rows)
    inspect_groups = _waits(AsyncApi.inspect_groups)
    inspect_payloads = _waits(AsyncApi.inspect_payloads)

    begin_atomic = _waits(AsyncApi.begin_atomic)
    stage = _waits(AsyncApi.stage)
    commit_atomic = _waits(AsyncApi.commit_atomic)
    abort_atomic = _waits(AsyncApi.abort_atomic)
    free_atomic = _waits(AsyncApi.free_atomic)
    atomic_outcome = _waits(AsyncApi.atomic_outcome)
    atomic_transactions = _listed(AsyncApi.atomic_transactions)
    group_producer = _waits(AsyncApi.group_producer)
    forget_group_producer = _waits(AsyncApi.forget_group_producer)

    start_transaction = _waits(AsyncApi.start_transaction)
    can_commit = _waits(AsyncApi.can_commit)
    commit_transaction = _waits(AsyncApi.commit_transaction)
    abort_transaction = _waits(AsyncApi.abort_transaction)
    invalidate_transaction = _waits(AsyncApi.invalidate_transaction)
    checkpoint_transaction = _waits(AsyncApi.checkpoint_transaction)
    transaction_status = _waits(AsyncApi.transaction_status)
    transactions = _listed(AsyncApi.transactions)
    transaction_states = _waits(AsyncApi.transaction_states)
    held = _waits(AsyncApi.held)
    held_on = _waits(AsyncApi.held_on)
    end_held = _waits(AsyncApi.end_held)
    prune_transactions = _waits(AsyncApi.prune_transactions)
    publish_transactional = _waits(AsyncApi.publish_transactional)
    store = _waits(AsyncApi.store)
    rollback = _waits(AsyncApi.rollback)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


AnyApi = Api | AsyncApi
"""One that blocks or one that is awaited: what stands on both asks ``await got(client.call(…))``."""
C = TypeVar("C", bound=AnyApi)


S = TypeVar("S", bound=Api | calls.Calls)


def surrounded(clients: type[S], *, network: Network | None = None, clock: Clock = REAL) -> type[S]:
    """Make the class of such clients over another network than sockets, or under another clock: a test's. Whatever works through
    one of them goes by its clock, too."""
    if issubclass(clients, Api):
        own: dict[str, object] = {"_asynchronous": surrounded(clients._asynchronous, network=network, clock=clock)}
    else:
        own = {"_shell": staticmethod(partial(clients._shell, network=network, clock=clock))}
    made: type[S] = type(clients.__name__, (clients,), own)
    return made


def clock_of(client: AnyApi) -> Clock:
    """What whoever works through this client asks for the time."""
    return client._clock


def outage_of(client: AnyApi) -> Outage:
    """Return what whoever tries by itself through this client tells of failures and answers."""
    return client._outage


class OfTopic(forks.MadeHere, Generic[C]):
    """Works on one topic, through a client that it was given or through one of its own."""

    _clients: type[C]

    def _connect(
        self, topic: str, namespace: str, client: C | None, url: str | None, verify: Verify, cert: Certificate, proxy: str | None
    ) -> None:
        if not isinstance(topic, str):
            raise TypeError(f"{type(self).__name__}(topic, …) takes the name of one topic, not a {type(topic).__name__}")
        self._topic = topic
        self._namespace = namespace
        self._owns_client = client is None
        self._client: C = self._clients(url, verify=verify, cert=cert, proxy=proxy) if client is None else client
        self._clock = clock_of(self._client)

    def _shown(self, *names: str | None, **state: object) -> str:
        """It as text: how it was made, and its state."""
        space = {} if self._namespace == DEFAULT_NAMESPACE else {"namespace": self._namespace}
        parts = [*map(repr, (self._topic, *names)), *(f"{name}={each!r}" for name, each in {**space, **state}.items())]
        return f"{type(self).__name__}({', '.join(parts)})"

    async def _let_go(self) -> None:
        if self._owns_client:
            await got(self._client.close())


async def tried(client: AnyApi, call: Callable[[], T | Awaitable[T]]) -> T:
    """As :func:`oncelog.api.calls.tried`."""
    return await calls.tried(client._calls if isinstance(client, Api) else client, call)


async def paused(client: AnyApi, seconds: float) -> None:
    """Return when so many seconds are over, or the client is closed."""
    await calls.paused(client._calls if isinstance(client, Api) else client, seconds)


async def end_rolled_back(client: AnyApi, write_pointer: int, invalid: bool) -> None:
    """Abort a transaction whose participants are rolled back; invalidate it where they could not be.

    Raises the OncelogError of a service that does not say that it has ended so; then :func:`end_unconfirmed` repeats it.
    """
    client._unconfirmed[write_pointer] = invalid  # before the call: Ctrl-C may interrupt it
    try:
        await got(client.invalidate_transaction(write_pointer) if invalid else client.abort_transaction(write_pointer))
    except TransactionNotInProgress as error:
        if error.state not in ("aborted", "invalid"):
            raise
    client._unconfirmed.pop(write_pointer, None)


async def end_unconfirmed(client: AnyApi) -> None:
    """End once more what was rolled back here and may be in progress there: an abort got lost. Each new transaction does.

    One that was prepared would hold up everybody for up to 25 hours, and a long one, too.
    """
    for pointer, invalid in list(client._unconfirmed.items()):
        try:
            await end_rolled_back(client, pointer, invalid)
        except (TransactionNotInProgress, TransactionNotFound):
            client._unconfirmed.pop(pointer, None)  # it has ended
        except OncelogError:
            return  # the next one will
