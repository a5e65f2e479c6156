"""The pytest plugin: a service for each test that asks for one. What it needs is loaded then, and nothing before."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from oncelog_service.testing.service import OncelogService

_OF_CLIENTS = ("ONCELOG_TOKEN", "ONCELOG_TOKEN_FILE", "ONCELOG_CA", "ONCELOG_CERT", "ONCELOG_PROXY")
_SERVICE = pytest.StashKey["OncelogService"]()


@pytest.fixture
def oncelog_settings() -> dict[str, Any]:
    """Settings of the service that a test is given, by name; a test's own fixture of this name returns others."""
    return {}


@pytest.fixture
def oncelog_service(request: pytest.FixtureRequest, oncelog_settings: dict[str, Any]) -> Iterator[OncelogService]:
    """A service in memory for this test, where clients go by themselves meanwhile (ONCELOG_URL); see `oncelog.testing`."""
    from oncelog.testing import service

    if pytest_runtest_call is None:
        pytest.fail("oncelog_service needs pytest 8", pytrace=False)
    made = service(**oncelog_settings)
    with pytest.MonkeyPatch.context() as environment:  # of its own: a test may undo what it has patched
        try:
            made.start()
            request.node.stash[_SERVICE] = made
            for name in _OF_CLIENTS:
                environment.delenv(name, raising=False)
            environment.setenv("ONCELOG_URL", made.url)
            yield made
        finally:
            made.close()


def _around_all(hook: Callable[..., Any]) -> Callable[..., Any] | None:
    """None: a pytest so old that its hooks are no wrappers. It loads this as every other does, and must not end by it."""
    try:
        return pytest.hookimpl(wrapper=True, tryfirst=True)(hook)
    except TypeError:
        return None


@_around_all
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test has failed, too, where what it planned did not happen, or what it recorded is wrong."""
    try:
        result = yield
    except BaseException as error:
        service = item.stash.get(_SERVICE, None)
        if service is not None:
            service.explain(error)
        raise
    service = item.stash.get(_SERVICE, None)
    wrong = None if service is None else _wrong(service)
    if wrong is not None:  # its traceback would show nothing of the test
        pytest.fail(wrong, pytrace=False)
    return result


def _wrong(service: OncelogService) -> str | None:
    try:
        service.verify()
    except AssertionError as error:
        return f"{type(error).__name__}: {error}"
    return None
