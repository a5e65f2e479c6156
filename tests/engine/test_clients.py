"""Clients that open a store in this process: whose engine is whose, when it ends, and what is said where it cannot be."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from oncelog import AsyncClient, Client, Consumer, Producer, Reader
from oncelog.errors import ClientClosed, ConnectionFailed, OncelogError, StoreInUse, StoreNotOpened
from oncelog.http.engines import InProcess
from oncelog_service.engine import Engine, engines
from oncelog_service.engine.address import Address
from oncelog_service.engine.engine import _Run as Run
from oncelog_service.engine.shared import Engines
from oncelog_service.rest.bounds import descriptors
from oncelog_service.storage.files import directory
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import StoreInUse as PortStoreInUse
from oncelog_service.storage.port import Table
from oncelog_service.threads import Threads
from tests.patience import PATIENCE, until
from tests.world.certificates import Authority

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def _all_end() -> Iterator[None]:
    yield
    gc.collect()
    until(lambda: not [each for each in threading.enumerate() if each.name.startswith("oncelog-engine")], "engines end")


def wrote(client: Client, topic: str = "t") -> None:
    client.create_topic(topic)
    with Producer(topic, name="p", client=client) as producer:
        producer.send(b"one")


def topics(url: str) -> list[str]:
    with Client(url, retry=0) as client:
        return client.topics()


def test_everything_that_takes_a_url_takes_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    with Client("memory://all") as client:
        assert client.url == "memory://all"
        client.create_topic("t")
        with Producer("t", name="p", url="memory://all") as producer:
            producer.send(b"one")
        with Reader("t", start="earliest", url="memory://all") as reader:
            assert next(iter(reader)).payload == b"one"
        monkeypatch.setenv("ONCELOG_URL", "memory://all")
        with Consumer("t", "s", start="earliest") as consumer:
            assert next(iter(consumer)).payload == b"one"


def test_a_store_in_memory_with_a_name_is_there_as_long_as_somebody_uses_it() -> None:
    with Client("memory://shared") as one, Client("memory://") as alone:
        wrote(one)
        assert alone.topics() == []
        with Client("memory://shared") as other:
            assert other.topics() == ["t"]
        assert topics("memory://other") == []
        assert one.topics() == ["t"]
    assert topics("memory://shared") == []


def test_whoever_comes_while_the_last_client_leaves_keeps_the_engine() -> None:
    with Client("memory://late") as client:
        wrote(client)
        engines._shared[Address.of("memory://late")].close(engines)  # as one that has left does, behind this one's coming
        assert client.topics() == ["t"]


def test_a_client_whose_store_cannot_be_opened_has_no_share_of_it(tmp_path: Path) -> None:
    url = f"leveldb://{tmp_path}/store"
    with closing(store_opener(url)()), Client(url, retry=0) as client:
        with pytest.raises(StoreInUse, match="in this process already") as failure:
            client.topics()
        assert failure.value.pid == os.getpid()
        assert Address.of(url) not in engines._shared


def test_each_way_to_a_store_leads_to_the_same_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "real data")
    with Client(f"leveldb://{tmp_path}/real%20data") as client:
        wrote(client)
        for url in ("leveldb://real data", "leveldb://./link", f"LevelDB:///{tmp_path}/link/../real%20data"):
            assert topics(url) == ["t"]
        monkeypatch.chdir("/")
        assert topics(f"leveldb://{tmp_path}/link") == ["t"]
        assert client.topics() == ["t"]


def test_a_relative_path_is_one_from_where_its_client_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, elsewhere = tmp_path / "100% [é]", tmp_path / "elsewhere"
    for each in (home, elsewhere):
        each.mkdir()
    monkeypatch.chdir(home)
    with Client("leveldb://store") as client, Client("sqlite://./a file") as other:
        monkeypatch.chdir(elsewhere)
        wrote(client)
        wrote(other)
        assert client.url == "leveldb://store"
    assert sorted(each.name for each in home.iterdir()) == ["a file", "a file.end", "a file.lock", "store"]
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("scheme", ["leveldb", "sqlite"])
def test_the_last_client_that_closes_closes_the_store_and_leaves_a_snapshot(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}://{tmp_path}/store"
    one, other = Client(url), Client(url)
    wrote(one)
    assert other.topics() == ["t"]
    one.close()
    wrote(other, "u")
    other.close()
    with closing(store_opener(url)()) as store:
        assert list(store.scan(Table.SNAPSHOT, b"", b"\xff" * 64))
    with pytest.raises(ClientClosed):
        one.topics()


def test_a_client_that_is_collected_gives_its_share_back(tmp_path: Path) -> None:
    url = f"leveldb://{tmp_path}/store"
    client = Client(url)
    wrote(client)
    del client
    gc.collect()
    address = Address.of(url)
    until(lambda: directory.holder_of(Path(address.name)) is None, "the store is closed")


def test_threads_and_event_loops_share_one_engine() -> None:
    seen: list[list[str]] = []

    async def ask() -> None:
        async with AsyncClient("memory://crowd") as client:
            await client.create_topic(f"a{threading.get_ident()}")
            seen.append(await client.topics())

    with Client("memory://crowd") as client:
        assert client.topics() == []
        threads = [threading.Thread(target=lambda: asyncio.run(ask())) for _ in range(3)]
        threads += [threading.Thread(target=lambda: seen.append(topics("memory://crowd"))) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(PATIENCE)
        assert len(seen) == 6
        assert len(client.topics()) == 3
        assert [each.name for each in threading.enumerate()].count("oncelog-engine") == 1


async def test_a_client_of_asyncio_holds_up_its_loop_neither_at_the_beginning_nor_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine neither begins nor ends before this loop has had another turn: one that is held up has none."""
    turned, had_one = threading.Event(), list[bool]()
    main = Run._main

    def wait_for_a_turn() -> None:
        turned.clear()
        had_one.append(turned.wait(PATIENCE))

    def held(run: Run) -> None:
        wait_for_a_turn()
        main(run)
        wait_for_a_turn()

    async def turn() -> None:
        while True:
            turned.set()
            await asyncio.sleep(0.001)

    monkeypatch.setattr(Run, "_main", held)
    turning = asyncio.ensure_future(turn())
    client = AsyncClient(f"leveldb://{tmp_path}/store")
    await client.create_topic("t")
    assert had_one == [True]
    await client.close()
    assert had_one == [True, True]
    await client.close()
    turning.cancel()
    monkeypatch.undo()
    assert topics(f"leveldb://{tmp_path}/store") == ["t"]


# --- engines that somebody has made


def test_clients_use_the_engine_that_somebody_has_started(tmp_path: Path) -> None:
    url = f"leveldb://{tmp_path}/store"
    with Engine(url, max_messages=7) as engine:
        assert engine.url == url
        with Client(url) as client:
            wrote(client)
            assert engine.on_loop(_messages) == 7
        assert topics(url) == ["t"]
    with Client(engine.url) as client:  # which ends: this one is opened for the client
        assert client.topics() == ["t"]


async def _messages(service) -> int:  # type: ignore[no-untyped-def]
    return service.settings.max_messages


def test_a_second_engine_over_a_store_is_refused_and_clients_go_on_with_the_first(tmp_path: Path) -> None:
    for url in ("memory://one", f"leveldb://{tmp_path}/store"):
        with Engine(url), Client(url) as client:
            wrote(client)
            with pytest.raises(PortStoreInUse, match="another engine of this process"):
                Engine(url).start()
            assert topics(url) == ["t"]
        with Client(url) as client:
            assert client.topics() == ([] if url == "memory://one" else ["t"])
            with pytest.raises(PortStoreInUse, match="another engine of this process"):
                Engine(url).start()
        with Engine(url):
            pass


def test_a_client_whose_engine_was_ended_says_so_and_goes_on_when_it_is_started_again() -> None:
    engine = Engine().start()
    with Client(engine.url, retry=0) as client, Client(engine.url, retry=PATIENCE) as patient:
        wrote(client)
        assert patient.topics() == ["t"]
        engine.abandon()
        with pytest.raises(ConnectionFailed, match=f"^{engine.url} cannot be reached: .* does not run") as failure:
            client.topics()
        assert failure.value.definite
        found: list[list[str]] = []
        asking = threading.Thread(target=lambda: found.append(patient.topics()))
        asking.start()
        engine.start()
        asking.join(PATIENCE)
        assert found == [["t"]]
        engine.stop()
        with pytest.raises(ConnectionFailed):
            client.topics()


def test_an_engine_that_has_died_is_begun_again_over_the_same_store(tmp_path: Path) -> None:
    for url in ("memory://mortal", f"leveldb://{tmp_path}/store"):
        with Client(url, retry=PATIENCE) as client:
            wrote(client)
            (thread,) = [each for each in threading.enumerate() if each.name == "oncelog-engine"]
            held = engines.hold(url)
            held.open(PATIENCE)

            def die() -> None:
                raise SystemExit("as if the memory were full")

            held._engine._run.call(die)
            thread.join(PATIENCE)
            assert not thread.is_alive()
            assert client.topics() == ["t"]
            held.close()


def test_who_comes_while_an_engine_dies_waits_for_its_end_and_begins_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, shutdown = threading.Event(), Threads.shutdown

    def slow(threads: Threads, wait: bool = True) -> None:
        assert ends.wait(PATIENCE)
        shutdown(threads, wait)

    def die() -> None:
        raise SystemExit("as if the memory were full")

    with Client("memory://dying") as opener:
        opener.topics()
        run = engines._shared[Address.of("memory://dying")].engine._run
        with monkeypatch.context() as patch:
            patch.setattr(Threads, "shutdown", slow)
            run.call(die)
            until(lambda: run.server is None, "it dies")
            with Client("memory://dying", timeout=0.05, retry=0) as client:
                with pytest.raises(ConnectionFailed, match="still being closed") as failure:
                    client.topics()
                assert failure.value.definite
            threading.Timer(0.2, ends.set).start()
            assert Client("memory://dying", retry=PATIENCE).topics() == []


@contextmanager
def starting(url: str) -> Iterator[threading.Event]:
    """While an engine starts; it goes on when the event is set, and is stopped at the end."""
    opened, asked = threading.Event(), threading.Event()
    engine = Engine(url, open_store=_slow(store_opener(Address.of(url).store), opened, asked))

    def start() -> None:
        with suppress(PortStoreInUse):
            engine.start()

    thread = threading.Thread(target=start)
    thread.start()
    try:
        assert asked.wait(PATIENCE)
        yield opened
    finally:
        opened.set()
        thread.join(PATIENCE)
        engine.stop()


def test_a_client_that_comes_while_an_engine_starts_waits_for_it(tmp_path: Path) -> None:
    url, found = f"leveldb://{tmp_path}/store", list[object]()
    asking = threading.Thread(target=lambda: found.append(topics(url)))
    with starting(url) as opened:
        asking.start()
        with Client(url, timeout=0.05, retry=0) as client, pytest.raises(ConnectionFailed, match="still being opened") as failure:
            client.topics()
        assert failure.value.definite
        opened.set()
        asking.join(PATIENCE)
        assert found == [[]]
        assert Address.of(url) not in engines._shared


def test_a_client_that_waits_for_an_engine_is_told_why_it_does_not_start(tmp_path: Path) -> None:
    url = f"leveldb://{tmp_path}/store"
    with closing(store_opener(url)()), Client(url, retry=0) as client, starting(url) as opened:
        threading.Timer(0.1, opened.set).start()
        with pytest.raises(StoreInUse, match="in this process already"):
            client.topics()
    assert topics(url) == []


def test_a_client_uses_the_engine_that_is_started_in_the_moment_in_which_it_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    use, engine = Engines.use, Engine("memory://moment")

    def overtaken(all_of_them: Engines, address: Address) -> object:
        engine.start()
        return use(all_of_them, address)

    monkeypatch.setattr(Engines, "use", overtaken)
    try:
        assert topics("memory://moment") == []
        assert engine.address not in engines._shared
    finally:
        engine.stop()


def test_of_engines_that_are_begun_at_once_over_a_store_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, second = Run.begun, threading.Event()
    entered, failures = list[Engine](), list[str]()

    def slow(engine: Engine) -> Run:
        entered.append(engine)
        if len(entered) > 1:
            second.set()
        second.wait(0.2)
        return begun(engine)

    def begin(engine: Engine) -> None:
        try:
            engine.begin()
        except PortStoreInUse as error:
            failures.append(str(error))

    monkeypatch.setattr(Run, "begun", slow)
    both = [Engine("memory://both") for _ in range(2)]
    threads = [threading.Thread(target=begin, args=(each,)) for each in both]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
    for engine in both:
        engine.stop()
    assert failures == ["memory://both is in use by another engine of this process"]


def test_whoever_reaches_the_engine_may_do_everything_whatever_tokens_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite://{tmp_path}/store"
    with Client(url) as client:
        client.create_token("somebody", ["admin"])
        client.create_topic("t")
    monkeypatch.setenv("ONCELOG_TOKEN", "of another service")
    monkeypatch.setenv("ONCELOG_PROXY", "http://127.0.0.1:9")
    assert topics(url) == ["t"]
    monkeypatch.delenv("ONCELOG_PROXY")
    with Engine(url, listen=True) as engine, pytest.raises(OncelogError, match="token"):
        topics(engine.url)


def test_clients_in_the_process_of_one_that_speaks_tls_need_no_certificate(tmp_path: Path, ca: Authority) -> None:
    with Engine(f"leveldb://{tmp_path}/store", listen=True, **ca.service().tls) as engine:
        with Client(str(engine.address), retry=0) as client:
            wrote(client)
        with Client(engine.url, retry=0, verify=ca.file) as client:
            assert client.topics() == ["t"]
        with pytest.raises(OncelogError, match="this port speaks TLS"):
            topics(engine.url.replace("https", "http"))


def test_the_process_is_left_as_it_is() -> None:
    def state() -> object:
        mask = os.umask(0)
        os.umask(mask)
        signals = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        root = logging.getLogger()
        return mask, signals, sys.getswitchinterval(), descriptors.limit(), root.level, list(root.handlers)

    before = state()
    with Client("memory://") as client:
        wrote(client)
        assert state() == before
    assert state() == before


# --- signals


@pytest.mark.timeout(60)
@pytest.mark.parametrize("handler", ["closes", "calls", "calls another"])
def test_a_handler_may_call_and_close_while_the_store_is_opened(monkeypatch: pytest.MonkeyPatch, handler: str) -> None:
    asked, opened, found = threading.Event(), threading.Event(), list[object]()
    monkeypatch.setattr("oncelog_service.engine.engine.store_opener", lambda url: _slow(store_opener(url), opened, asked))
    client, other = Client("memory://handled"), Client("memory://handled")

    def handle(*_: object) -> None:
        opened.set()
        call = {"closes": client.close, "calls": client.topics, "calls another": other.topics}[handler]
        found.append(call())

    before = signal.signal(signal.SIGUSR1, handle)
    interrupting = threading.Thread(target=lambda: asked.wait(PATIENCE) and os.kill(os.getpid(), signal.SIGUSR1))
    interrupting.start()
    try:
        if handler == "closes":
            with pytest.raises(ClientClosed):
                client.topics()
        else:
            assert client.topics() == []
    finally:
        interrupting.join(PATIENCE)
        signal.signal(signal.SIGUSR1, before)
        client.close()
        other.close()
    assert found == [None if handler == "closes" else []]


@pytest.mark.timeout(60)
def test_a_handler_may_call_and_stop_while_the_store_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, engine, found = Run.stop, Engine("memory://made"), list[object]()

    def interrupting(run: Run) -> None:
        monkeypatch.setattr(Run, "stop", stop)
        os.kill(os.getpid(), signal.SIGUSR1)
        stop(run)

    before = signal.signal(signal.SIGUSR1, lambda *_: found.append((topics("memory://closing"), engine.stop())))
    try:
        with engine, Client("memory://closing") as client:
            client.create_topic("t")
            monkeypatch.setattr(Run, "stop", interrupting)
            client.close()
            assert found == [([], None)]
            engine.start()
            monkeypatch.setattr(Run, "stop", interrupting)
            engine.stop()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert found == 2 * [([], None)]


# --- what cannot be


@pytest.mark.parametrize(
    "url", ["memory:", "memory://a/b", "memory://a b", "leveldb://", "sqlite:///p?x=1", "leveldb:///p#x", "MEMORY://a?b"]
)
def test_what_names_no_store_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="not the URL of a store"):
        Client(url)


@contextmanager
def another_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """One that has the lock of a store."""
    code = "import fcntl,os,sys\nfcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)\nprint(1,flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code, path], text=True, stdin=-1, stdout=-1) as process:
        assert process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("scheme", ["leveldb", "sqlite"])
def test_who_has_a_store_is_said_to_who_wants_it(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}://{tmp_path}/store"
    with Client(url) as client:
        client.create_topic("t")
    with another_process(tmp_path / ("store" if scheme == "leveldb" else "store.lock")) as process:
        with Client(url, retry=PATIENCE) as client, pytest.raises(StoreInUse) as failure:
            client.topics()
        assert failure.value.definite
        assert failure.value.pid == process.pid
        assert failure.value.holder.startswith(f"{sys.executable} -c import fcntl")
        assert f"in use by process {process.pid} ({sys.executable} -c" in failure.value.detail
        assert "oncelog serve" in failure.value.detail
    assert topics(url) == ["t"]


def test_a_store_that_cannot_be_opened_says_why_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for url in (f"leveldb://{tmp_path}/file", f"sqlite://{tmp_path}/file/x", "leveldb:///proc/nothing"):
        with Client(url, retry=PATIENCE) as client, pytest.raises(StoreNotOpened, match=r"cannot be opened: .*another path"):
            client.topics()
    (tmp_path / "damaged").write_bytes(b"no database of SQLite")
    with pytest.raises(StoreNotOpened, match=r"is damaged: .*oncelog salvage"):
        topics(f"sqlite://{tmp_path}/damaged")


def test_an_engine_for_which_there_is_no_thread_leaves_none_and_begins_when_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    begins = threading.Thread.start
    limit, ends = "can't start new thread", "can't create new thread at interpreter shutdown"
    for missing, why, what in [
        ("oncelog-engine", limit, "end some threads"),
        ("oncelog-engine-2", ends, "the process ends: open it before"),
    ]:

        def start(thread: threading.Thread, missing: str = missing, why: str = why) -> None:
            if thread.name == missing:
                raise RuntimeError(why)
            begins(thread)

        with Client("memory://threads", retry=0) as client:
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", start)
                for _ in range(2):
                    with pytest.raises(StoreNotOpened, match=f"cannot be opened: {why}; {what}") as failure:
                        client.topics()
                    assert failure.value.definite
            until(lambda: not [each for each in threading.enumerate() if each.name.startswith("oncelog-engine")], "they end")
            assert client.topics() == []


def test_what_is_not_installed_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "oncelog_service.engine")
    for name in [name for name in sys.modules if name.startswith("oncelog_service.engine.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pydantic_settings", None)
    with pytest.raises(StoreNotOpened, match=r'pydantic_settings is not installed: pip install "oncelog\[service\]"$'):
        topics("memory://")


def test_a_call_ends_in_time_while_a_store_is_opened_and_the_next_one_waits_on(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = threading.Event()
    monkeypatch.setattr("oncelog_service.engine.engine.store_opener", lambda url: _slow(store_opener(url), opened))
    with Client("memory://slow", timeout=0.05, retry=0) as client:
        with pytest.raises(ConnectionFailed, match="still being opened") as failure:
            client.topics()
        assert failure.value.definite
        opened.set()
        with Client("memory://slow") as patient:
            patient.create_topic("t")


def _slow(opener, opened: threading.Event, asked: threading.Event | None = None):  # type: ignore[no-untyped-def]
    def open_slowly():  # type: ignore[no-untyped-def]
        if asked is not None:
            asked.set()
        assert opened.wait(PATIENCE)
        return opener()

    return open_slowly


@pytest.mark.parametrize(("seconds", "error"), [(PATIENCE, ClientClosed), (0.05, TimeoutError)])
def test_a_client_that_is_closed_while_it_opens_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, error: type[Exception]
) -> None:
    asked, closed, opened = threading.Event(), threading.Event(), threading.Event()
    use = Engines.use

    def used_late(all_of_them: Engines, address: Address) -> object:
        asked.set()
        assert closed.wait(PATIENCE)
        return use(all_of_them, address)

    monkeypatch.setattr(Engines, "use", used_late)
    monkeypatch.setattr("oncelog_service.engine.engine.store_opener", lambda url: _slow(store_opener(url), opened))
    share = InProcess(f"sqlite://{tmp_path}/store")
    failures: list[Exception] = []

    def ask() -> None:
        try:
            share.open(seconds)
        except Exception as failure:
            failures.append(failure)

    asking, ending = threading.Thread(target=ask), threading.Thread(target=share.close)
    asking.start()
    assert asked.wait(PATIENCE)
    ending.start()
    until(lambda: share._closed, "it is being closed")
    closed.set()
    if error is TimeoutError:
        asking.join(PATIENCE)
    opened.set()
    asking.join(PATIENCE)
    ending.join(PATIENCE)
    assert [type(each) for each in failures] == [error]
    until(lambda: directory.holder_of(tmp_path / "store") is None, "the store is closed")
    share.close()
    with pytest.raises(ClientClosed):
        share.connect()
