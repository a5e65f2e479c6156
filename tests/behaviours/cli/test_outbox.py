"""`oncelog outbox`: what it prints, how it ends, and what it never prints."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, delete, update

from oncelog import Client, Outbox
from tests.behaviours.cli.support import payloads, process, run, value
from tests.patience import PATIENCE
from tests.world.service import RunningService, free_port

OUTBOX = Outbox("orders")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", connect_args={"timeout": PATIENCE})
    OUTBOX.create_tables(made)
    yield made
    made.dispose()


@pytest.fixture
def url(running: RunningService) -> str:
    with Client(running.url) as client:
        client.create_topic("paid")
    return running.url


def add(engine: Engine, topic: str, payload: bytes) -> None:
    with engine.begin() as connection:
        OUTBOX.add(connection, topic, payload)


def test_once_publishes_what_is_committed_and_ends(engine: Engine, url: str) -> None:
    add(engine, "paid", b"17")
    told = value(run("outbox", "relay", str(engine.url), "--name", "orders", "--once", "--json", url=url))
    assert told == {"outbox": "orders", "state": "stopped", "stored": 1, "duplicates": 0}
    assert payloads(url, "paid") == [b"17"]
    again = run("outbox", "relay", "--name", "orders", "--once", url=url, env={"ONCELOG_OUTBOX_DATABASE": str(engine.url)})
    assert (again.exit_code, again.stdout) == (0, "orders: 0 messages published\n")


@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_relay_says_what_it_does_and_stops_cleanly_when_it_is_told_to(engine: Engine, url: str, number: signal.Signals) -> None:
    with process("outbox", "relay", str(engine.url), "--name", "orders", "--json", url=url) as relay:
        assert relay.stdout is not None
        assert json.loads(relay.stdout.readline())["state"] == "relaying"
        assert value(run("outbox", "status", str(engine.url), "--name", "orders", "--json", url=url))["relay"]
        add(engine, "missing", b"1")
        blocked = json.loads(relay.stdout.readline())
        assert (blocked["waiting"], blocked["blocked"]) == (1, {"default/missing": "topic_not_found"})
        relay.send_signal(number)
        rest, problem = relay.communicate(timeout=PATIENCE)
    if number == signal.SIGTERM:
        assert (relay.returncode, json.loads(rest.splitlines()[-1])["state"]) == (0, "stopped")
    else:
        said = json.loads(problem.splitlines()[-1])
        assert (relay.returncode, said["code"], said["detail"][:20]) == (130, "interrupted", "0 messages published")
    told = value(run("outbox", "status", str(engine.url), "--name", "orders", "--json", url=url))
    assert (told["waiting"], told["relay"], told["numbered"], told["next_number"]) == (1, None, 0, 0)


def test_what_cannot_be_published_ends_once_with_1(engine: Engine, url: str) -> None:
    add(engine, "missing", b"1")
    failed = run("outbox", "relay", str(engine.url), "--name", "orders", "--once", "--json", url=url)
    assert failed.exit_code == 1
    problem = json.loads(failed.stderr)
    assert (problem["code"], problem["cause"], problem["topic"]) == ("outbox_blocked", "topic_not_found", "default/missing")


def test_an_older_database_ends_it_until_it_is_numbered_anew(engine: Engine, url: str) -> None:
    relay = ("outbox", "relay", str(engine.url), "--name", "orders", "--json")
    add(engine, "paid", b"1")
    assert value(run(*relay, "--once", url=url))["stored"] == 1
    with engine.begin() as connection:
        connection.execute(update(OUTBOX.relays).values(next_number=0))
    add(engine, "paid", b"2")
    behind = run(*relay, url=url)
    assert (behind.exit_code, json.loads(behind.stderr)["code"]) == (1, "outbox_behind")
    declined = run("outbox", "renumber", str(engine.url), "--name", "orders", url=url, stdin="n\n")
    assert declined.exit_code == 1
    assert value(run("outbox", "renumber", str(engine.url), "--name", "orders", "--yes", "--json", url=url))["next_number"] == 1
    assert value(run(*relay, "--once", url=url))["stored"] == 1
    assert payloads(url, "paid") == [b"1", b"2"]


def test_a_database_that_cannot_be_used_is_a_sentence(engine: Engine, url: str, tmp_path: Path) -> None:
    secret = "s3cret"
    nowhere = f"postgresql://me:{secret}@127.0.0.1:{free_port()}/shop"
    cases = {
        nowhere: ("database_failed", 1),
        f"sqlite:///{tmp_path}/none/x.db": ("database_failed", 1),
        "sqlite://": ("database_failed", 1),  # in memory: a relay would never see a row
        f"sqlite:///{tmp_path}/misspelt.db": ("database_failed", 1),
        f"sqlite:///file:{tmp_path}/misspelt.db?uri=true": ("database_failed", 1),
        f"sqlite:///file:{tmp_path}/misspelt.db?mode=rwc&uri=true": ("database_failed", 1),
        f"oracle://me:{secret}@host/x": ("driver_missing", 1),
        f"{secret}": (None, 2),
        f"nothing://me:{secret}@host/x": (None, 2),
    }
    for database, (code, exit_code) in cases.items():
        failed = run("outbox", "relay", database, "--name", "orders", "--json", url=url)
        assert failed.exit_code == exit_code, failed.output
        assert secret not in failed.output
        if code is not None:
            assert json.loads(failed.stderr)["code"] == code
    assert not list(tmp_path.glob("*misspelt*"))
    (tmp_path / "there.db").touch()
    there = run("outbox", "status", f"sqlite:///file:{tmp_path}/there.db?uri=true", "--name", "orders", "--json", url=url)
    assert json.loads(there.stderr)["code"] == "no_outbox"
    assert run("outbox", "relay", str(engine.url), "--name", "a/b", url=url).exit_code == 2
    none = run("outbox", "status", str(engine.url), "--table", "nothing", "--name", "orders", "--json", url=url)
    assert (none.exit_code, json.loads(none.stderr)["code"]) == (1, "no_outbox")


def test_what_people_publish_is_not_printed_when_the_database_fails(engine: Engine, url: str) -> None:
    add(engine, "paid", b"private matters")
    with engine.begin() as connection:
        connection.execute(delete(OUTBOX.relays))
        connection.exec_driver_sql("DROP TABLE oncelog_outbox_relays")
        connection.exec_driver_sql("CREATE TABLE oncelog_outbox_relays (outbox TEXT)")
    failed = run("outbox", "relay", str(engine.url), "--name", "orders", "--once", url=url)
    assert failed.exit_code == 1
    assert "private" not in failed.output
    assert "Traceback" not in failed.output
