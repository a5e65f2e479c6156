"""Stores of other versions: those of earlier releases are opened and gone on with, those of later ones are refused untouched."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncelog import Client, Consumer
from oncelog_service.storage import format as format_module
from oncelog_service.storage.format import FORMAT, UnknownFormat, check_format
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.open import raw_opener, store_opener
from oncelog_service.storage.port import Batch, StoreDamaged, Table
from oncelog_service.storage.seals import SealedStore
from oncelog_service.transactions.store_id import store_id_of
from tests.behaviours.cli.support import run, value
from tests.golden.make_store import STORES
from tests.patience import until
from tests.rest.talk import Topic, hex_id
from tests.world.clock import ManualClock
from tests.world.service import running_service

RELEASES = sorted((Path(__file__).parents[1] / "golden").glob("store_*"))
DAY_MS = 86_400_000


@pytest.fixture(params=[(release, kind) for release in RELEASES for kind in STORES], ids=lambda it: f"{it[0].name}-{it[1]}")
def left(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """The URL of a copy of what a release left, and what that had answered."""
    release, kind = request.param
    shutil.copytree(release, tmp_path / "store")
    told = json.loads((release / "told.json").read_text())
    return f"{kind}://{tmp_path / 'store' / STORES[kind]}", told[kind]


def stable(client: Client) -> list[str]:
    """What a consumer that begins at the first message is given: what is committed."""
    with Consumer("t", f"from-{time.time_ns()}", client=client, codec="str", start="earliest") as consumer:
        return [message.value for message in consumer.read(1_000, timeout=0)]


def rows_of(url: str) -> list[tuple[str, bytes, bytes]]:
    """Every row as it lies there."""
    with closing(raw_opener(url)()) as store:
        return [(table.name, key, data) for table in Table for key, data in store.scan(table, b"", b"\xff" * 300)]


def test_what_an_earlier_release_left_verifies(left: tuple[str, dict[str, Any]]) -> None:
    assert RELEASES
    url, _ = left
    (found,) = value(run("verify", "--store", url, "--json"))
    assert (found["topic"], found["messages"], found["problems"]) == ("t", 15, [])


def test_a_service_goes_on_with_what_an_earlier_release_left(left: tuple[str, dict[str, Any]]) -> None:
    url, told = left
    clock = ManualClock()
    clock.advance(DAY_MS)
    before = [f"p{number}" for number in range(10)] + ["unnamed", "committed", "atomic"]
    with running_service(url, clock) as service, Client(service.url, token=told["secret"]) as client:
        topic = Topic(service.url, create=False)
        topic.session.headers["Authorization"] = f"Bearer {told['secret']}"
        again = topic.send("p", *range(11), payload="p{}")
        assert [each["status"] for each in again] == ["duplicate"] * 10 + ["stored"]
        original = [each.get("originalId") or each["id"] for each in again[:10]]
        assert [hex_id(each) if len(each) != 40 else each for each in original] == told["ids"]
        states = client.transaction_states([told["committed"], told["aborted"], told["pending"]])
        assert list(states.values())[:2] == ["committed", "aborted"]
        client.abort_transaction(told["pending"])
        until(lambda: stable(client) == [*before, "p10"])
        assert client.group_producer("group", "a").sequence_id == 7
        with Consumer("t", "s", client=client, codec="str") as consumer:
            assert [message.value for message in consumer.read(2)] == before[1:3]
    with running_service(url, clock) as service, Client(service.url, token=told["secret"]) as client:
        topic = Topic(service.url, create=False)
        topic.session.headers["Authorization"] = f"Bearer {told['secret']}"
        assert [each["status"] for each in topic.send("p", *range(12), payload="p{}")] == ["duplicate"] * 11 + ["stored"]
        until(lambda: stable(client) == [*before, "p10", "p11"])


# --- the format


def with_format(url: str, data: bytes) -> None:
    with closing(SealedStore(raw_opener(url)())) as store:
        batch = Batch()
        batch.put(Table.STORE_ID, b"format", data)
        store.write([batch])


def test_a_new_store_says_its_format_and_what_was_restored_says_it_too() -> None:
    store = MemoryStore(Disk())
    check_format(store)
    store_id_of(store)
    assert store.get(Table.STORE_ID, b"format") == b"%08x" % FORMAT
    check_format(store)


@pytest.mark.parametrize("data", [b"%08x" % (FORMAT + 1), b"%08x" % 2**31])
def test_a_store_of_a_later_version_is_refused_by_whoever_opens_it_and_left_as_it_is(
    left: tuple[str, dict[str, Any]], tmp_path: Path, data: bytes
) -> None:
    url, _ = left
    with_format(url, data)
    before = rows_of(url)
    with pytest.raises(UnknownFormat, match=f"its format is {int(data, 16)}, that of a newer oncelog") as refused:
        store_opener(url)()
    assert "nothing was changed. Run the version that served it last, or a newer one" in str(refused.value)
    for command in (["verify", "--store", url], ["token", "create", "x", "--grant", "admin", "--store", url]):
        result = run(*command)
        assert (result.exit_code, "that of a newer oncelog" in result.stderr) == (1, True), result.output
    assert rows_of(url) == before


def test_a_store_of_a_version_that_is_read_no_more_is_refused_and_said_how_to_go_on(
    left: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = left
    monkeypatch.setattr(format_module, "OLDEST", FORMAT + 1)
    monkeypatch.setattr(format_module, "FORMAT", FORMAT + 2)
    before = rows_of(url)
    with pytest.raises(UnknownFormat, match=r"that of an older oncelog, .* nothing was changed"):
        store_opener(url)()
    assert rows_of(url) == before
    monkeypatch.setattr(format_module, "OLDEST", FORMAT)
    store_opener(url)().close()


def test_a_format_that_is_none_is_damage_and_the_store_is_let_go(tmp_path: Path) -> None:
    url = f"leveldb://{tmp_path / 'store'}"
    with_format(url, b"nonsense")
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="is not the format of a store"):
            store_opener(url)()
