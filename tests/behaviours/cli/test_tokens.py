"""`oncelog token … --store`: tokens of a store that no service has open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.access.carrying import Carrying
from tests.behaviours.cli.support import run, value
from tests.world.service import ServiceProcess, running_service

STORES = ("leveldb", "sqlite")


@pytest.mark.real
def test_a_service_beyond_loopback_begins_with_a_token_made_on_the_machine(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path, host="127.0.0.2")  # no loopback by name, so nobody is let in without one
    service.url = f"http://127.0.0.2:{service.port}"
    service.store = f"leveldb://{tmp_path / 'data'}"
    with pytest.raises(RuntimeError, match="ended with 2"):
        service.start()
    made = run("token", "create", "ada", "--grant", "admin", "--store", service.store)
    assert made.exit_code == 0, made.output
    secret = made.stdout.strip()
    with service:
        ada = Carrying(service.url, secret)
        assert [each["name"] for each in ada.good("GET", "/v1/tokens")] == ["ada"]
        assert not Carrying(service.url).is_let_in
        used = run("token", "create", "late", "--grant", "read:*/*", "--store", service.store)
        assert used.exit_code == 1
        assert "in use by another process; ask the service that runs: --url" in used.stderr
        listed = run("token", "list", "--store", service.store, "--json")
        assert json.loads(listed.stderr)["code"] == "cannot_list_tokens"
        assert ada.make("over-http", "read:*/*")
        service.stop()
    assert [each["name"] for each in value(run("token", "list", "--store", service.store, "--json"))] == ["ada", "over-http"]


@pytest.mark.parametrize("kind", STORES)
def test_tokens_of_a_store_are_listed_and_revoked_under_the_same_rules(kind: str, tmp_path: Path) -> None:
    store = f"{kind}://{tmp_path / 'data'}"

    def token(*arguments: str) -> tuple[int, str]:
        result = run("token", *arguments, "--store", store)
        return result.exit_code, result.output

    assert token("list")[0] == 2, "listing makes no store"
    assert not (tmp_path / "data").exists()
    code, said = token("create", "reader", "--grant", "read:*/*")
    assert (code, "first token must have the grant admin" in said) == (1, True)
    assert token("create", "a b", "--grant", "admin")[0] == 1
    made = value(run("token", "create", "ada", "--grant", "admin", "--store", store, "--json"))
    reader = value(run("token", "create", "reader", "--grant", "read:*/*", "--expires-in", "60", "--store", store, "--json"))
    assert reader["expiresMs"] - reader["createdMs"] == 60_000
    listed = value(run("token", "list", "--store", store, "--json"))
    assert listed == [{name: each for name, each in made_.items() if name != "secret"} for made_ in (made, reader)]
    assert "last token" in token("revoke", made["id"], "--yes")[1]
    assert token("revoke", "ab12", "--yes")[0] == 1
    assert token("revoke", reader["id"], "--yes")[0] == 0
    with running_service(store=store) as service:
        assert Carrying(service.url, made["secret"]).is_let_in
        assert not Carrying(service.url, reader["secret"]).is_let_in


@pytest.mark.parametrize("store", ["memory://", "redis://x", "leveldb://"])
def test_what_is_no_store_on_this_machine_is_refused(store: str) -> None:
    for command in (["create", "ada", "--grant", "admin"], ["list"], ["revoke", "ab12", "--yes"]):
        result = run("token", *command, "--store", store)
        assert result.exit_code == 2, result.output
