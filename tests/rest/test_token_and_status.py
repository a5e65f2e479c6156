"""The token, and what the service says of itself."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import nullcontext

import pytest
import requests

from oncelog_service.app import check_exposure
from oncelog_service.config import Settings
from oncelog_service.failures import _HELD_SECONDS
from oncelog_service.rest.table import ROUTES
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, StoreDamaged, StoreError
from tests.patience import until
from tests.rest.talk import TIMEOUT, Topic, assert_problem
from tests.world.clock import ManualClock
from tests.world.service import RunningService, running_service

METHODS = {"get", "put", "post", "delete"}


def get(url: str, **headers: str) -> requests.Response:
    session = requests.Session()
    session.trust_env = False
    return session.get(url, headers=headers, timeout=TIMEOUT)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "127.0.0.1", "::1", "localhost"])
def test_others_are_let_in_only_with_a_token(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = host in ("127.0.0.1", "::1", "localhost")
    with nullcontext() if here else pytest.raises(ValueError, match="token"):
        check_exposure(Settings(host=host, store="memory://"))
    check_exposure(Settings(host=host, store="memory://", token="t"))
    monkeypatch.setenv("ONCELOG_TOKEN", "")
    with pytest.raises(ValueError, match="token"):
        Settings(host=host, store="memory://")


def test_openapi_lists_every_address_with_all_that_it_needs(shared: RunningService) -> None:
    described = get(shared.url + "/openapi.json").json()
    assert re.fullmatch(r"3\.1\.\d+", described["openapi"])
    assert {"title", "version"} <= described["info"].keys()
    schemas = described["components"]["schemas"]
    operations = {(method.upper(), path) for path, each in described["paths"].items() for method in each}
    assert operations == {(route.method, route.path) for route in ROUTES}
    ids = [operation["operationId"] for each in described["paths"].values() for operation in each.values()]
    assert len(ids) == len(set(ids))
    for path, each in described["paths"].items():
        assert each.keys() <= METHODS
        for operation in each.values():
            assert operation["summary"]
            assert operation["description"]
            in_path = {parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path))
            assert all(re.fullmatch(r"[1-5]\d\d", status) for status in operation["responses"])
            assert not in_path or "400" in operation["responses"], f"{path}: a name may be no name at all"
            assert all(response["description"] for response in operation["responses"].values())
    listing = described["paths"]["/v1/atomic"]["get"]["parameters"]
    assert [each["name"] for each in listing] == ["group", "after", "limit"]
    references = set(re.findall(r'"#/components/schemas/(\w+)"', get(shared.url + "/openapi.json").text))
    assert references
    assert references <= schemas.keys()


def test_the_docs_show_every_address(shared: RunningService) -> None:
    answer = get(shared.url + "/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    for route in ROUTES:
        assert route.path in answer.text, route.path
        assert route.summary in answer.text.replace("&#x27;", "'"), route.summary
    assert "<script" not in answer.text
    assert not re.findall(r'(?:src|href)="https?://', answer.text), "nothing is loaded from elsewhere"


def test_health_is_bad_while_the_store_is_failed_and_good_after() -> None:
    disk = Disk()
    allowed = [True]

    def open_store() -> MemoryStore:
        if not allowed[0]:
            raise StoreError("No space left on device")
        return MemoryStore(disk)

    with running_service(open_store=open_store) as service:
        topic = Topic(service.url)
        allowed[0] = False
        disk.before_sync = no_space
        assert_problem(topic.publish("x"), 503, "storage_failed", definite=False)
        for path in ("/healthz", "/readyz"):
            answer = get(service.url + path)
            assert "No space left" in assert_problem(answer, 503, "storage_unavailable")["detail"]
            assert answer.headers["retry-after"] == "1"
        assert requests.head(service.url + "/readyz", timeout=TIMEOUT).status_code == 503
        assert get(service.url + "/livez").json() == {"status": "ok"}
        assert_problem(topic.publish("x"), 503, "storage_unavailable")
        assert_problem(topic.poll(), 503, "storage_unavailable")
        assert "oncelog_store_open 0.0" in get(service.url + "/metrics").text
        disk.before_sync = None
        allowed[0] = True
        until(lambda: get(service.url + "/readyz").status_code == 200)
        assert topic.publish("x").status_code == 200
        assert "oncelog_store_failures_total 1.0" in get(service.url + "/metrics").text


class DamagedStore(MemoryStore):
    """Every write of a message fails, as LevelDB's do once it has met a damaged table while merging."""

    def write(self, batches: Sequence[Batch]) -> None:
        if any(batch.laid for batch in batches):
            raise StoreDamaged("a table is damaged")
        super().write(batches)


def test_a_store_whose_writes_fail_again_and_again_is_reopened_ever_more_rarely_and_said_to_be_damaged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk, openings = Disk(), list[MemoryStore]()

    def open_store() -> MemoryStore:
        openings.append(DamagedStore(disk))
        return openings[-1]

    def metric(name: str) -> float:
        values = dict(line.split(" ") for line in get(service.url + "/metrics").text.splitlines() if not line.startswith("#"))
        return float(values[name])

    with running_service(open_store=open_store) as service:
        topic = Topic(service.url)
        assert metric("oncelog_store_damaged") == 0
        began = time.monotonic()
        for failure in (1, 2, 3):
            assert get(service.url + "/healthz").json()["status"] == ("ok" if failure == 1 else "damaged")
            assert_problem(topic.publish("x"), 503, "storage_failed", definite=False)
            assert metric("oncelog_store_damaged") == 1
            if failure < 3:
                until(lambda: get(service.url + "/healthz").status_code == 200)
        problem = assert_problem(get(service.url + "/healthz"), 503, "storage_unavailable")
        assert "reopened in 4 s" in problem["detail"]
        assert time.monotonic() - began >= 1 + 2
        assert "oncelog salvage" in caplog.text
        assert len(openings) == 3


def test_a_store_that_has_held_for_long_is_not_said_to_be_damaged_any_more(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    disk, kinds = Disk(), iter([DamagedStore, MemoryStore])
    with running_service(open_store=lambda: next(kinds)(disk), clock=clock) as service:
        topic = Topic(service.url)
        topic.publish("x")
        until(lambda: get(service.url + "/healthz").status_code == 200)
        assert topic.publish("x").status_code == 200
        assert get(service.url + "/healthz").json()["status"] == "damaged"
        clock.advance(int(_HELD_SECONDS * 1000) + 1)
        assert get(service.url + "/healthz").json()["status"] == "ok"


def no_space(_: object) -> None:
    raise OSError(28, "No space left on device")
