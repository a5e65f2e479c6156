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
from oncelog.process.clock import REAL, Clock
from oncelog.process.deprecated import deprecated
from oncelog.process.frames import Face, shorten
from oncelog.process.procedures import answer_of, driven
from oncelog.values.arguments import check_kind
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.names import check_namespace, check_topic

P = ParamSpec("P")
T = TypeVar("T")

_SHOWN = 1_001
"""Entries that a notebook is given: IPython shows a thousand of them, and that there are more."""


class _Driven(AsyncApi):
    """The calls over a transport that blocks."""

    _shell = Transport


def _listed(call: Callable[Concatenate[AsyncApi, P], AsyncIterator[T]]) -> Callable[Concatenate[Api, P], Iterator[T]]:
    """Make the method that waits for each entry of a listing."""
    each = driven(call, of="_calls")

    def method(self: Api, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _Listing(partial(each, self, *args, **kwargs))

    update_wrapper(method, call)
    return method


class _Listing(Iterator[T]):
    """The entries of a listing, fetched page by page. A notebook shows the list that they are."""

    def __init__(self, anew: Callable[[], Iterator[T]]) -> None:
        self._anew, self._entries = anew, anew()

    def __next__(self) -> T:
        try:
            return next(self._entries)
        except OncelogError as error:
            shorten(error)
            raise

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        printer.pretty([*islice(self._anew(), _SHOWN)])


class Api(Face):
    """Every call of the service's REST interface, one method a call; :class:`oncelog.Client` adds what is made of several."""

    _asynchronous: type[AsyncApi] = _Driven

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
        """Make a client; it connects with the first call.

        Args:
            url: of the service, or of several of its instances, by commas; or of a store, which is opened in this process. Else
                ONCELOG_URL, else http://127.0.0.1:7070.
            token: else ONCELOG_TOKEN, or what is in ONCELOG_TOKEN_FILE.
            timeout: seconds until an answer must have come, to its last byte.
            retry: seconds that a call is tried again, from its first failure on; what waits on the service is not trying, and one
                that had no answer in ``timeout`` is given up where that was longer. Of several instances one that stands still
                takes no call with it: after three seconds without a byte what may be done twice is asked of one that serves it by
                then, and of the others for ``timeout`` each, unless ``retry`` is 0.
            verify: the certificates to trust, a file, a directory or an ssl.SSLContext, else ONCELOG_CA, REQUESTS_CA_BUNDLE,
                CURL_CA_BUNDLE, SSL_CERT_FILE or SSL_CERT_DIR, else the public ones.
            cert: the client's own, a file that has its key too, or a pair of files; else ONCELOG_CERT and ONCELOG_KEY.
            proxy: URL of the one to go through, else ONCELOG_PROXY, else none.

        Raises:
            ValueError: what is no http(s) URL, seconds that cannot be, certificates that cannot be read.
        """
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

    create_topic = driven(AsyncApi.create_topic, of="_calls")
    update_topic = driven(AsyncApi.update_topic, of="_calls")
    topic = driven(AsyncApi.topic, of="_calls")
    topics = driven(AsyncApi.topics, of="_calls")
    delete_topic = driven(AsyncApi.delete_topic, of="_calls")
    trim_topic = driven(AsyncApi.trim_topic, of="_calls")
    erase_message = driven(AsyncApi.erase_message, of="_calls")
    stats = driven(AsyncApi.stats, of="_calls")
    all_stats = _listed(AsyncApi.all_stats)
    verify = driven(AsyncApi.verify, of="_calls")
    backup = driven(AsyncApi.backup, of="_calls")
    cluster = driven(AsyncApi.cluster, of="_calls")
    namespaces = driven(AsyncApi.namespaces, of="_calls")
    policies = driven(AsyncApi.policies, of="_calls")
    set_policies = driven(AsyncApi.set_policies, of="_calls")
    open_producer = driven(AsyncApi.open_producer, of="_calls")
    producers = _listed(AsyncApi.producers)
    producer = driven(AsyncApi.producer, of="_calls")
    forget_producer = driven(AsyncApi.forget_producer, of="_calls")
    end_producer = driven(AsyncApi.end_producer, of="_calls")
    why = driven(AsyncApi.why, of="_calls")
    publish = driven(AsyncApi.publish, of="_calls")
    poll = driven(AsyncApi.poll, of="_calls")
    alarms = driven(AsyncApi.alarms, of="_calls")
    overview = driven(AsyncApi.overview, of="_calls")
    healthy = driven(AsyncApi.healthy, of="_calls")
    close = driven(AsyncApi.close, of="_calls")

    open_subscription = driven(AsyncApi.open_subscription, of="_calls")
    subscriptions = _listed(AsyncApi.subscriptions)
    all_subscriptions = _listed(AsyncApi.all_subscriptions)
    subscription = driven(AsyncApi.subscription, of="_calls")
    receive = driven(AsyncApi.receive, of="_calls")
    acknowledge = driven(AsyncApi.acknowledge, of="_calls")
    seek_subscription = driven(AsyncApi.seek_subscription, of="_calls")
    delete_subscription = driven(AsyncApi.delete_subscription, of="_calls")

    create_token = driven(AsyncApi.create_token, of="_calls")
    tokens = driven(AsyncApi.tokens, of="_calls")
    revoke_token = driven(AsyncApi.revoke_token, of="_calls")

    offsets = driven(AsyncApi.offsets, of="_calls")
    read_columns = driven(AsyncApi.read_columns, of="_calls")
    inspect_rows = driven(AsyncApi.inspect_rows, of="_calls")
    inspect_groups = driven(AsyncApi.inspect_groups, of="_calls")
    inspect_payloads = driven(AsyncApi.inspect_payloads, of="_calls")

    begin_atomic = driven(AsyncApi.begin_atomic, of="_calls")
    stage = driven(AsyncApi.stage, of="_calls")
    commit_atomic = driven(AsyncApi.commit_atomic, of="_calls")
    abort_atomic = driven(AsyncApi.abort_atomic, of="_calls")
    free_atomic = driven(AsyncApi.free_atomic, of="_calls")
    atomic_outcome = driven(AsyncApi.atomic_outcome, of="_calls")
    atomic_transactions = _listed(AsyncApi.atomic_transactions)
    group_producer = driven(AsyncApi.group_producer, of="_calls")
    forget_group_producer = driven(AsyncApi.forget_group_producer, of="_calls")

    start_transaction = driven(AsyncApi.start_transaction, of="_calls")
    can_commit = driven(AsyncApi.can_commit, of="_calls")
    commit_transaction = driven(AsyncApi.commit_transaction, of="_calls")
    abort_transaction = driven(AsyncApi.abort_transaction, of="_calls")
    invalidate_transaction = driven(AsyncApi.invalidate_transaction, of="_calls")
    checkpoint_transaction = driven(AsyncApi.checkpoint_transaction, of="_calls")
    transaction_status = driven(AsyncApi.transaction_status, of="_calls")
    transactions = _listed(AsyncApi.transactions)
    transaction_states = driven(AsyncApi.transaction_states, of="_calls")
    held = driven(AsyncApi.held, of="_calls")
    held_on = driven(AsyncApi.held_on, of="_calls")
    settle_topic = driven(AsyncApi.settle_topic, of="_calls")
    end_held = deprecated("Client.end_held is called Client.settle_topic now")(settle_topic)
    prune_transactions = driven(AsyncApi.prune_transactions, of="_calls")
    publish_transactional = driven(AsyncApi.publish_transactional, of="_calls")
    store = driven(AsyncApi.store, of="_calls")
    rollback = driven(AsyncApi.rollback, of="_calls")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


AnyApi = Api | AsyncApi
"""One that blocks or one that is awaited: what stands on both asks ``await answer_of(client.call, …)``."""
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


def check_client(clients: type[Any], client: object, **own: object) -> None:
    """Raises TypeError for a client that is none, or of the other twin, or beside ``own``, arguments for another one."""
    if client is None:
        return
    check_kind("client", client, clients, "an AsyncClient" if issubclass(clients, AsyncApi) else "a Client")
    if given := [name for name, value in own.items() if value is not None]:
        raise TypeError(f"client has its own {given[0]}; give client or {given[0]}, not both")


class OfTopic(Face, Generic[C]):
    """Works on one topic, through a client that it was given or through one of its own."""

    _clients: type[C]

    def _connect(
        self, topic: str, namespace: str, client: C | None, url: str | None, verify: Verify, cert: Certificate, proxy: str | None
    ) -> None:
        if not isinstance(topic, str):
            raise TypeError(f"{type(self).__name__}(topic, …) takes the name of one topic, not a {type(topic).__name__}")
        check_topic(topic)
        check_namespace(namespace)
        check_client(self._clients, client, url=url, verify=verify, cert=cert, proxy=proxy)
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
            await answer_of(self._client.close)


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
        await answer_of(client.invalidate_transaction if invalid else client.abort_transaction, write_pointer)
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
