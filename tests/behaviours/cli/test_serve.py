"""`oncelog serve` and `tx-serve`: they say where they are, end cleanly, and say in one sentence why they cannot begin."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from oncelog import Client
from oncelog_service.cli.serve import ALONE
from oncelog_service.config import Settings, TransactionServiceSettings
from oncelog_service.rest.table import STATUS_ROUTES, TOKEN_ROUTES, TRANSACTION_ROUTES
from tests.behaviours.cli.support import process, run, value
from tests.patience import PATIENCE
from tests.rest.talk import Topic
from tests.world.house import told
from tests.world.service import running_service


def _ready(service: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert service.stdout is not None
    line: dict[str, Any] = json.loads(service.stdout.readline())
    return line


@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_cleanly_and_what_was_stored_is_known_to_the_next_one(tmp_path: Path, number: signal.Signals) -> None:
    with process("serve", "--port", "0", "--json", cwd=tmp_path) as service:
        ready = _ready(service)
        assert ready["data"] == str(tmp_path / "oncelog-data")
        assert ready["store"] == f"leveldb://{tmp_path}/oncelog-data"
        assert requests.get(ready["url"] + "/healthz", timeout=PATIENCE).status_code == 200
        assert told(Topic(ready["url"]).send("p", 0, 1)) == "ss"
        service.send_signal(number)
        out, err = service.communicate(timeout=PATIENCE)
    assert (service.returncode, out) == (0, b"")
    assert b"Traceback" not in err
    with running_service(ready["store"]) as again:
        topic = Topic(again.url)
        assert told(topic.send("p", 0, 1, 2)) == "dds", "deduplication goes on where it was"
        assert topic.payloads() == ["m0", "m1", "m2"]


@pytest.mark.real
def test_what_is_loaded_when_it_is_ready_is_looked_at_by_no_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """That was 75,000 objects, and nobody was served for as long as it took."""
    looked_at = len(gc.get_objects())

    async def is_ready(_: object, on_ready: Callable[[str], None], given: object) -> None:
        nonlocal looked_at
        on_ready("http://127.0.0.1:1")
        looked_at = len(gc.get_objects())

    monkeypatch.setattr("oncelog_service.app.serve", is_ready)
    before = looked_at
    try:
        assert run("serve", "--port", "0", "--store", "memory://").exit_code == 0
    finally:
        gc.unfreeze()
    assert looked_at < before / 10


@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_server_listens_to_signals_ends_it_cleanly_too(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Also where a shell has begun it in the background, which has it ignore Ctrl-C."""

    async def starts(*_: object) -> None:
        signal.raise_signal(number)
        await asyncio.sleep(0)
        raise AssertionError("it goes on")

    monkeypatch.setattr("oncelog_service.app.serve", starts)
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run("serve", "--port", "0", "--store", "memory://").exit_code == 0
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@pytest.mark.real
def test_a_signal_right_behind_the_handler_that_passes_it_on_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    install, served = signal.signal, list[object]()

    async def starts(*given: object) -> None:
        served.append(given)

    def struck(number: signal.Signals, handler: Any) -> Any:
        replaced = install(number, handler)
        if number == signal.SIGTERM:
            signal.raise_signal(number)
        return replaced

    monkeypatch.setattr("oncelog_service.app.serve", starts)
    install(signal.SIGINT, signal.SIG_IGN)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(signal, "signal", struck)
            run("serve", "--port", "0", "--store", "memory://")
        assert not served, "it goes on"
    finally:
        for each, handler in before.items():
            install(each, handler)


@pytest.mark.real
def test_options_and_environment_reach_the_service_and_people_get_one_line(tmp_path: Path) -> None:
    arguments = ("serve", "--port", "0", "--store", "memory://", "--deduplication", "off", "--token", "s3cret")
    with process(*arguments, cwd=tmp_path, ONCELOG_DEDUPLICATION="on", ONCELOG_MAX_REQUEST_BYTES="1024") as service:
        assert service.stdout is not None
        line = service.stdout.readline().decode()
        url = line.removeprefix("oncelog serves ").partition(",")[0]
        assert line == f"oncelog serves {url}, data in memory://\n"
        assert run("topic", "create", "t", url=url).exit_code == 5
        assert run("topic", "create", "t", "--token", "s3cret", url=url).exit_code == 0
        with Client(url, token="s3cret") as client:
            assert client.stats("t").deduplication is False
        refused = run("publish", "t", "x" * 2_000, "--json", url=url, env={"ONCELOG_TOKEN": "s3cret"})
        assert (refused.exit_code, json.loads(refused.stderr)["code"]) == (1, "request_too_large")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
def test_why_it_cannot_begin_is_one_sentence(tmp_path: Path) -> None:
    def refused(store: str, *more: str) -> str:
        result = run("serve", "--port", "0", "--store", store, *more)
        assert (result.exit_code, result.stdout) == (1, "")
        return "\n".join(line for line in result.stderr.splitlines() if line.startswith(("error: ", "{")))

    data = f"leveldb://{tmp_path}/d"
    with running_service(data), socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        taken = f"error: 127.0.0.1:{port} is taken by another process; choose another --port"
        assert refused("memory://", "--port", str(port)) == taken
        assert refused(data) == f"error: the store {tmp_path}/d is in use by another process"
    lines = f"{tmp_path}/nowhere/audit.jsonl"
    assert refused("memory://", "--audit-log", lines) == f"error: {lines} cannot be written: No such file or directory"
    (tmp_path / "d" / "CURRENT").write_bytes(b"nonsense")
    assert json.loads(refused(data, "--json"))["detail"].startswith(f"the store {tmp_path}/d is damaged: ")
    (tmp_path / "file").touch()
    begin = f"error: the store {tmp_path}/file/d cannot be opened: "
    assert refused(f"leveldb://{tmp_path}/file/d").startswith(begin)


@pytest.mark.parametrize(
    ("arguments", "env", "named"),
    [
        (("--port", "70000"), {}, "--port"),
        (("--port", "x"), {}, "--port"),
        (("--store", "mysql://x"), {}, "--store"),
        (("--deduplication", "maybe"), {}, "--deduplication"),
        pytest.param(("--host", "0.0.0.0", "--port", "0", "--store", "memory://"), {}, "--token", marks=pytest.mark.real),
        (("--jwt-issuer", "https://login.example.org"), {}, "--jwt-audience"),
        (("--jwt-issuer", "i", "--jwt-audience", "a", "--jwt-keys", "http://login.example.org/keys"), {}, "--jwt-keys"),
        ((), {"ONCELOG_MAX_MESSAGES": "none"}, "ONCELOG_MAX_MESSAGES"),
        *(
            (("--transactions-url", url), {}, "--transactions-url")
            for url in ("127.0.0.1:7071", "ftp://x", "http://", "http://x/?q", "x")
        ),
    ],
)
def test_a_setting_that_is_none_is_a_usage_error(arguments: tuple[str, ...], env: dict[str, str], named: str) -> None:
    result = run("serve", *arguments, env=env)
    assert result.exit_code == 2
    assert named in result.stderr


# --- tx-serve


@pytest.mark.real
def test_the_transaction_service_alone_answers_for_transactions_and_nothing_else(tmp_path: Path) -> None:
    arguments = ("tx-serve", "--port", "0", "--json", "--transaction-timeout-seconds", "5")
    env = {"ONCELOG_MAX_TRANSACTION_TIMEOUT_SECONDS": "7", "ONCELOG_TRANSACTIONS_URL": "http://127.0.0.1:1"}
    with process(*arguments, cwd=tmp_path, **env) as service:
        ready = _ready(service)
        url = ready["url"]
        assert ready["data"] == str(tmp_path / "oncelog-transactions")
        paths = requests.get(url + "/openapi.json", timeout=PATIENCE).json()["paths"]
        assert set(paths) == {route.path for route in (*TRANSACTION_ROUTES, *TOKEN_ROUTES, *STATUS_ROUTES)}
        for path in ("/healthz", "/livez", "/readyz", "/metrics", "/docs", "/v1/transactions"):
            assert requests.get(url + path, timeout=PATIENCE).status_code == 200
        for path in ("/v1/namespaces", "/console", "/console/app.js"):
            assert requests.get(url + path, timeout=PATIENCE).status_code == 404
        with Client(url) as client:
            pointer = client.start_transaction().write_pointer
            status = client.transaction_status(pointer)
            assert status.expires_ms is not None
            assert status.started_ms is not None
            assert 4_900 <= status.expires_ms - status.started_ms < 30_000, "the setting, not the default; two clocks told of it"
            assert [each["write_pointer"] for each in value(run("tx", "list", "--json", url=url))] == [pointer]
            answer = requests.post(url + "/v1/transactions", json={"timeoutMs": 7_001}, timeout=PATIENCE)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
        service.terminate()
        out, err = service.communicate(timeout=PATIENCE)
    assert (service.returncode, out) == (0, b"")
    assert b"Traceback" not in err


def test_only_its_port_and_its_store_have_other_defaults() -> None:
    alone, beside = TransactionServiceSettings(), Settings()
    differing = {name for name in Settings.model_fields if getattr(alone, name) != getattr(beside, name)}
    assert differing == {"port", "store"}
    assert alone.port == 7071
    assert set(ALONE) <= TransactionServiceSettings.model_fields.keys()
