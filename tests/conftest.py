"""Fixtures shared by all tests."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from oncelog_service.storage.open import has_leveldb
from tests.gate.guard import armed, check, gate, hangs
from tests.gate.loop import Loop
from tests.patience import PATIENCE
from tests.world.clock import ManualClock
from tests.world.service import RunningService, running_service

if TYPE_CHECKING:
    from tests.postgres import PostgresServer
    from tests.world.certificates import Authority

settings.register_profile(
    "gate",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize=True,
    database=None,
    max_examples=25,  # the same ones each time: what more of them find, chance finds at night
)
settings.register_profile("chance", settings.get_profile("gate"), derandomize=False, max_examples=2_000)
settings.load_profile("chance" if os.environ.get("SEEDS") == "random" else "gate")

for _name in [name for name in os.environ if name.startswith("ONCELOG_")]:
    del os.environ[_name]
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="oncelog-tests-")  # nobody's contexts; browsers write there, too
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Begun in the background of a shell; what is started here would not hear Ctrl-C either.
    signal.signal(signal.SIGINT, signal.default_int_handler)


HAS_LEVELDB = has_leveldb()
_PASSED_OVER = "Skipped: LevelDB needs plyvel, which is not installed here"
T = TypeVar("T")
_Report = TypeVar("_Report", pytest.CollectReport, pytest.TestReport)

SPARK = "tests/spark/"
FIRST = (
    SPARK,
    "tests/scenarios/test_spark",
    "tests/test_coverage",
    "tests/simulation/",
    "tests/scenarios/",
    "tests/cdap/",
    "tests/docs/",
    "tests/behaviours/",
)
"""How the addresses of those begin that are run first: files that take long, so that none is left over for the end.
xdist gives each worker two files to begin with, so the third is a short one: it lies behind all of Spark."""


class _SparkOnOneWorker(LoadFileScheduling):
    """File by file to whoever is free, but all that share the Spark session to one: it starts once."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return _SparkOnOneWorker(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a coroutine test on an event loop of its own; a fixture that is an asynchronous context is entered there."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    values = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def run() -> None:
        async with AsyncExitStack() as stack:
            for name, value in values.items():
                if isinstance(value, AbstractAsyncContextManager):
                    values[name] = await stack.enter_async_context(value)
            await pyfuncitem.obj(**values)

    if not armed():
        asyncio.run(asyncio.wait_for(run(), PATIENCE))
        return True
    loop = Loop()
    try:
        loop.done(loop.create_task(run()), PATIENCE)
    finally:
        loop.end()
    return True


LONGEST = 120.0
"""Seconds, of the real ones, that a test of the gate may take."""
REAL_FIXTURES = {"postgres", "spark"}
"""What they stand for is real, and so is whatever asks for them."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)
    for item in items:
        if REAL_FIXTURES.intersection(getattr(item, "fixturenames", ())) or "postgresql" in item.nodeid:
            item.add_marker(pytest.mark.real)  # before pytest chooses by markers


def _turn(item: pytest.Item) -> int:
    return next((turn for turn, begin in enumerate(FIRST) if item.nodeid.startswith(begin)), len(FIRST))


# --- where plyvel is not installed, which is where it has no wheel: all that it takes is said to be passed over, in one place


def _without_leveldb(report: _Report) -> _Report:
    said = "" if HAS_LEVELDB or report.outcome != "failed" else str(report.longrepr)
    if "needs plyvel" in said or "No module named 'plyvel'" in said:
        report.outcome, report.longrepr = "skipped", (report.nodeid, 0, _PASSED_OVER)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _without_leveldb((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _without_leveldb((yield))


@pytest.fixture(scope="session", autouse=True)
def _killed_jvms_leave_nothing_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a JVM deletes when it ends (unpacked libraries, blocks of a shuffle) stays where it is killed: in a folder of ours."""
    folder = tmp_path_factory.mktemp("jvm")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-Djava.io.tmpdir={folder}"
    yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA that signs whatever it is asked to."""
    from tests.world.certificates import Authority

    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """The PostgreSQL server of this process; a test may kill it, or start it with other settings."""
    from tests.postgres import postgres_server

    server = postgres_server()
    yield server
    server.restore()


@pytest.fixture
def running() -> Iterator[RunningService]:
    """A service in this process over a memory store."""
    with running_service() as service:
        yield service


# --- the gate (tests/gate/)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    """A test that is not about the real world has nothing of it."""
    with nullcontext() if item.get_closest_marker("real") else gate():
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Ends a test of the gate that hangs, with its process; what pytest-timeout does itself is for all others."""
    if not armed():
        return None
    signal.signal(signal.SIGALRM, hangs)
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    """Takes that back."""
    if not armed():
        return None
    signal.setitimer(signal.ITIMER_REAL, 0)
    return True


def _passed(item: pytest.Item) -> Generator[None, T, T]:
    """Whoever was stopped on the way to the real world fails, also where that was swallowed."""
    result = yield
    check()
    return result


pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = pytest.hookimpl(wrapper=True)(_passed)
