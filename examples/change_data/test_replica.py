"""Whatever kills who follows, the table is what the topic says at one place of it, and in the end at its last."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from examples.change_data.replica import Replica

from oncelog import Producer, Reader
from oncelog.errors import CheckpointConflict
from oncelog.testing import OncelogService

pytestmark = pytest.mark.real


class Killed(Exception):
    """Stands for a process that ends here."""


def changes(count: int) -> list[tuple[str, dict[str, Any] | None]]:
    chance = random.Random(count)
    keys = [f"customer-{number}" for number in range(count // 4)]
    return [
        (chance.choice(keys), None if chance.random() < 0.2 else {"city": chance.choice("ABC"), "n": number})
        for number in range(count)
    ]


def publish(service: OncelogService, made: list[tuple[str, dict[str, Any] | None]]) -> None:
    service.client.create_topic("customers")
    with Producer("customers", name="source") as producer:
        for key, record in made:
            producer.send_async(b"" if record is None else json.dumps(record).encode(), key=key)


def rows(engine: sa.Engine) -> dict[str, Any]:
    with engine.connect() as connection:
        return {key: json.loads(record) for key, record in connection.execute(sa.text("SELECT key, record FROM customers"))}


def test_the_table_is_a_state_that_there_was_wherever_it_is_killed(
    oncelog_service: OncelogService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = changes(400)
    publish(oncelog_service, made)
    states, state = [{}], {}
    for key, record in made:
        state = {name: value for name, value in {**state, key: record}.items() if value is not None}
        states.append(state)
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'replica.db'}")
    monkeypatch.setattr("examples.change_data.replica.BATCH", 50)
    applied, chance = Replica._apply, random.Random(7)

    def apply(self: Replica, connection: sa.Connection, message: Any) -> None:
        applied(self, connection, message)
        if chance.random() < 0.01:
            raise Killed

    monkeypatch.setattr(Replica, "_apply", apply)
    died = 0
    while True:
        try:
            Replica(engine, "customers", ["city"]).follow()
            break
        except Killed:
            died += 1
            assert rows(engine) in states
    assert died > 2
    assert rows(engine) == states[-1]


def test_who_is_late_changes_nothing(oncelog_service: OncelogService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(oncelog_service, [("a", {"city": "A"}), ("a", {"city": "B"})])
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'replica.db'}")
    monkeypatch.setattr("examples.change_data.replica.BATCH", 1)
    read = Reader.read

    def overtaken(self: Reader[bytes], *arguments: Any, **options: Any) -> Any:
        """What the late one has just read, the other one has applied."""
        monkeypatch.setattr(Reader, "read", read)
        messages = read(self, *arguments, **options)
        assert Replica(engine, "customers", []).follow() == 2
        return messages

    monkeypatch.setattr(Reader, "read", overtaken)
    with pytest.raises(CheckpointConflict):
        Replica(engine, "customers", []).follow()
    assert rows(engine) == {"a": {"city": "B"}}


def test_it_is_asked_by_sql(oncelog_service: OncelogService, tmp_path: Path) -> None:
    publish(oncelog_service, [("a", {"city": "Graz"}), ("b", {"city": "Wien"}), ("c", {"city": "Graz"}), ("b", None)])
    run = [sys.executable, "-m", "examples.change_data", "customers", f"sqlite:///{tmp_path / 'replica.db'}"]

    def said(*arguments: str) -> str:
        return subprocess.run([*run, *arguments], check=True, capture_output=True, text=True).stdout

    assert said("--column", "city") == "4 changes\n"
    assert said("--sql", "SELECT city, count(*) FROM customers GROUP BY city") == "Graz\t2\n"


def test_what_a_transaction_takes_back_is_no_change(oncelog_service: OncelogService, tmp_path: Path) -> None:
    publish(oncelog_service, [("ada", {"city": "Graz"})])
    engine = sa.create_engine(f"sqlite:///{tmp_path}/replica.db")
    with oncelog_service.client.transaction() as tx:
        tx.send("customers", b"", key="ada")
        tx.checkpoint()
        assert Replica(engine, "customers", []).follow() == 1
        tx.abort()
    with oncelog_service.client.transaction() as tx:
        tx.send("customers", b'{"city": "Wien"}', key="ada")
    assert Replica(engine, "customers", []).follow() == 1
    assert rows(engine) == {"ada": {"city": "Wien"}}
