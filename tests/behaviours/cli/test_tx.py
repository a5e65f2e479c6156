"""`oncelog tx …` and `oncelog tx-serve`: transactions listed, shown, ended and pruned; the service of them alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from oncelog import Client
from oncelog.wire.requests import PublishRequest
from oncelog_service.cli.tx_serve import SETTINGS
from oncelog_service.config import Settings, TransactionServiceSettings
from oncelog_service.rest.table import TRANSACTION_ROUTES
from tests.behaviours.cli.support import process, run, value
from tests.patience import PATIENCE
from tests.support import RunningService, running_service


@pytest.fixture
def url(running: RunningService) -> str:
    return running.url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


def listed(url: str, state: str = "in_progress") -> list[int]:
    return [each["write_pointer"] for each in value(run("tx", "list", "--state", state, "--json", url=url))]


def shown(url: str, pointer: int) -> dict[str, Any]:
    status: dict[str, Any] = value(run("tx", "show", str(pointer), "--json", url=url))
    return status


def test_those_in_progress_and_invalid_ones_are_listed(url: str, client: Client) -> None:
    pointers = [client.start_transaction().write_pointer for _ in range(3)]
    client.can_commit(pointers[1], [b"k"], resource="bank")
    client.invalidate_transaction(pointers[2])
    assert listed(url) == pointers[:2]
    assert listed(url, "invalid") == pointers[2:]
    lines = [line.split("\t") for line in run("tx", "list", url=url).stdout.splitlines()]
    assert lines[0] == ["write pointer", "type", "started", "expires", "resource", "checkpoints", "participants"]
    assert [line[0] for line in lines[1:]] == [str(pointer) for pointer in pointers[:2]]
    assert (lines[1][4], lines[2][4]) == ("-", "bank")
    assert lines[1][2].endswith("+00:00")
    assert run("tx", "list", "--state", "committed", url=url).exit_code == 2


def test_what_topics_hold_back_is_listed_and_an_operator_ends_it() -> None:
    with running_service(foreign_write_pointers=True) as service, Client(service.url) as client:
        url = service.url
        client.create_topic("t")
        client.open_subscription("t", "s")
        pointer = client.start_transaction().write_pointer - 1  # of nobody here
        client.publish("t", PublishRequest([b"1", b"2"], "writer", sequence_ids=[0, 1], write_pointer=pointer))
        (held,) = value(run("tx", "list", "--state", "held", "--json", url=url))
        assert (held["write_pointer"], held["topic"], held["messages"], held["producers"]) == (pointer, "t", 2, ["writer"])
        assert str(pointer) in run("tx", "list", "--state", "held", url=url).stdout
        assert f"held by {pointer}\t2 messages of writer from offset 0" in run("topic", "show", "t", url=url).stdout
        assert str(pointer) in run("subscription", "list", "t", url=url).stdout
        ended = value(run("topic", "settle", "t", str(pointer), "--rolled-back", "--yes", "--json", url=url))
        assert ended["committed"] is False
        assert listed(url, "held") == []


def test_what_became_of_a_transaction_is_shown(url: str, client: Client) -> None:
    pointer = client.start_transaction("long").write_pointer
    checkpoint = client.checkpoint_transaction(pointer).write_pointer
    status = shown(url, checkpoint)
    assert (status["write_pointer"], status["state"], status["type"]) == (pointer, "in_progress", "long")
    assert status["checkpoints"] == [checkpoint]
    client.commit_transaction(pointer)
    assert shown(url, pointer)["state"] == "committed"
    assert "state\tcommitted" in run("tx", "show", str(checkpoint), url=url).stdout
    missing = run("tx", "show", "5", "--json", url=url)
    assert (missing.exit_code, json.loads(missing.stderr)["code"]) == (1, "transaction_not_found")
    for text in ("0", "x", str(2**63)):
        assert run("tx", "show", text, url=url).exit_code == 2


@pytest.mark.parametrize(("command", "state"), [("abort", "aborted"), ("invalidate", "invalid")])
def test_a_transaction_is_ended_only_after_a_yes(url: str, client: Client, command: str, state: str) -> None:
    pointer = client.start_transaction().write_pointer
    for answer in ("n\n", "\n", ""):
        assert run("tx", command, str(pointer), url=url, stdin=answer).exit_code == 1
    assert shown(url, pointer)["state"] == "in_progress"
    for _ in range(2):
        assert value(run("tx", command, str(pointer), "--yes", "--json", url=url))["state"] == state
    assert shown(url, pointer)["state"] == state
    refused = run("tx", command, str(_committed(client)), "--yes", "--json", url=url)
    problem = json.loads(refused.stderr)
    assert (refused.exit_code, problem["code"], problem["state"]) == (1, "transaction_not_in_progress", "committed")


def _committed(client: Client) -> int:
    return client.commit_transaction(client.start_transaction().write_pointer).write_pointer


def test_invalid_ones_are_pruned_by_name_or_by_age_after_a_yes(url: str, client: Client) -> None:
    pointers = [client.start_transaction().write_pointer for _ in range(4)]
    for pointer in pointers:
        client.invalidate_transaction(pointer)
    assert run("tx", "prune", str(pointers[0]), url=url, stdin="n\n").exit_code == 1
    assert listed(url, "invalid") == pointers
    assert value(run("tx", "prune", *map(str, pointers[:2]), "--yes", "--json", url=url)) == {"pruned": 2}
    assert value(run("tx", "prune", "--before", "2026-01-31T12:00:00Z", "--yes", "--json", url=url)) == {"pruned": 0}
    assert run("tx", "prune", "--before", "2999-01-01", "--yes", url=url).stdout == "2 invalid transactions are forgotten\n"
    assert listed(url, "invalid") == []
    for arguments in ((), ("5", "--before", "2026-01-31"), ("--before", "yesterday"), ("0",)):
        assert run("tx", "prune", *arguments, "--yes", url=url).exit_code == 2


# --- tx-serve


def test_the_transaction_service_alone_answers_for_transactions_and_nothing_else(tmp_path: Path) -> None:
    with process("tx-serve", "--port", "0", "--json", cwd=tmp_path) as service:
        assert service.stdout is not None
        ready = json.loads(service.stdout.readline())
        assert ready["data"] == str(tmp_path / "oncelog-transactions")
        paths = requests.get(ready["url"] + "/openapi.json", timeout=PATIENCE).json()["paths"]
        assert set(paths) == {route.path for route in TRANSACTION_ROUTES} | {"/healthz", "/metrics"}
        for path in ("/healthz", "/metrics", "/docs", "/v1/transactions"):
            assert requests.get(ready["url"] + path, timeout=PATIENCE).status_code == 200
        assert requests.get(ready["url"] + "/v1/namespaces", timeout=PATIENCE).status_code == 404
        with Client(ready["url"]) as client:
            pointer = client.start_transaction().write_pointer
        assert listed(ready["url"]) == [pointer]
        service.terminate()
        out, err = service.communicate(timeout=PATIENCE)
    assert (service.returncode, out) == (0, b"")
    assert b"Traceback" not in err


def test_its_time_outs_are_settings(tmp_path: Path) -> None:
    arguments = ("tx-serve", "--port", "0", "--json", "--store", "memory://", "--transaction-timeout-seconds", "5")
    with process(
        *arguments, ONCELOG_MAX_TRANSACTION_TIMEOUT_SECONDS="7", ONCELOG_TRANSACTIONS_URL="http://127.0.0.1:1"
    ) as service:
        assert service.stdout is not None
        url = json.loads(service.stdout.readline())["url"]
        with Client(url) as client:
            status = client.transaction_status(client.start_transaction().write_pointer)
            assert status.expires_ms is not None
            assert status.started_ms is not None
            assert 5_000 <= status.expires_ms - status.started_ms < 30_000, "the default"
            client.start_transaction(timeout=7)
            answer = requests.post(url + "/v1/transactions", json={"timeoutMs": 7_001}, timeout=PATIENCE)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


def test_only_its_port_and_its_store_have_other_defaults() -> None:
    alone, beside = TransactionServiceSettings(), Settings()
    differing = {name for name in Settings.model_fields if getattr(alone, name) != getattr(beside, name)}
    assert differing == {"port", "store"}
    assert alone.port == 7071
    assert set(SETTINGS) <= TransactionServiceSettings.model_fields.keys()


@pytest.mark.parametrize("url", ["127.0.0.1:7071", "ftp://x", "http://", "http://x/?q", "x"])
def test_a_url_of_a_transaction_service_that_is_none_is_a_usage_error(url: str) -> None:
    result = run("serve", "--transactions-url", url)
    assert result.exit_code == 2
    assert "--transactions-url" in result.stderr
