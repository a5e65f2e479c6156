"""A store at rest is damaged at random: it is what was acknowledged, or it is refused, and then nothing in it is changed."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncelog import Client, Consumer, Producer
from oncelog.errors import OncelogError, TopicDamaged
from oncelog.wire.models import NamespacePolicies
from oncelog_service.app import build_service
from oncelog_service.config import Settings
from oncelog_service.log.verify import verify_log
from oncelog_service.storage.keys import ROW_ID_SIZE
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import RowDamaged, StoreError, Table
from tests.storage.stores import IN_FILES, NOT_ITS_OWN, everything
from tests.world.service import running_service

pytestmark = pytest.mark.real

REFUSED = "refused"
FEW, MANY = 16, 400


def url_of(kind: str, place: Path) -> str:
    return f"{kind}://{place}/data"


def fill(url: str, begin: int) -> None:
    """What a service acknowledges: messages of every kind, producers, subscriptions, ends of transactions and of commits."""
    with Client(url) as client:
        for topic in ("a", "b", "gone"):
            if begin == 0:
                client.create_topic(topic)
        for topic in ("a", "b"):
            with Producer(topic, name=f"loader-{topic}", client=client) as producer:
                producer.send_batch([b"%d of %s " % (number, topic.encode()) * 6 for number in range(begin, begin + 250)])
            with Consumer(topic, "reader", client=client) as consumer:
                consumer.ack(consumer.read(50, timeout=5)[-1])
        for number in range(12):
            with client.transaction(buffer_bytes=0 if number % 3 else 2**20) as tx:
                tx.send("a", b"in a transaction %d" % number)
                tx.send("b", b"in a transaction %d" % number)
            with client.atomic(producer="job", sequence_id=begin + number) as batch:
                batch.send("a", b"atomic %d" % number)
                batch.send("b", b"atomic %d" % number)
        client.set_policies(NamespacePolicies(deduplication=True))
        if begin:
            client.delete_topic("gone")


@pytest.fixture(scope="module", params=IN_FILES)
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Path]]:
    """The kind, and two stores: one as SIGKILL leaves it, one as a clean stop does."""
    kind: str = request.param
    place = tmp_path_factory.mktemp(kind)
    live, killed = place / "live", place / "killed"
    live.mkdir()
    with running_service(url_of(kind, live)) as service:
        fill(service.url, 0)
    with running_service(url_of(kind, live)) as service:
        fill(service.url, 1_000)
        service.on_loop(lambda each: each.opening.writer.synced())
        shutil.copytree(live, killed)
    return kind, [killed, live]


def files_of(place: Path) -> list[Path]:
    return sorted(each for each in place.rglob("*") if each.is_file() and each.name not in NOT_ITS_OWN)


def bytes_of(place: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in files_of(place)}


# --- what is in a store

SNAPSHOTS = (Table.SNAPSHOT, Table.KEY_SNAPSHOT, Table.TRANSACTION_SNAPSHOT)
"""Of one that is damaged the other one is taken: what is read back of it is compared with the log."""


def seen_in(url: str) -> Any:
    """Every row that says what clients are told; REFUSED where reading it, or reading it back, is."""
    try:
        with closing(store_opener(url)()) as store:
            # Of a message's key its id alone: a tree whose key has another topic's name is still walked in order, and read right.
            found = [
                (table, key[-ROW_ID_SIZE:] if table is Table.MESSAGE else key, *value)
                for table, key, *value in everything(store)
                if table not in SNAPSHOTS
            ]
        asyncio.run(read_back(url))
    except (StoreError, OncelogError, RowDamaged):
        return REFUSED
    return found


async def read_back(url: str) -> None:
    """Have a service recover everything, and refold each log. Raises what a client would be told."""
    service = build_service(Settings(store=url))
    await service.start()
    try:
        for name, row in service.opening.topics.directory.rows():
            if not row.deleted:
                *_, findings = verify_log(service.opening.store, await service.opening.topics.logs.open(*name))
                if findings.problems:
                    raise TopicDamaged(findings.problems[0])
    finally:
        await service.stop()


# --- damage


def flip(path: Path, chance: random.Random) -> str:
    data = bytearray(path.read_bytes())
    at, bit = chance.randrange(len(data)), chance.randrange(8)
    data[at] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {at}"


def zero(path: Path, chance: random.Random) -> str:
    data = bytearray(path.read_bytes())
    size = chance.choice((64, 512, 4_096, 32_768))
    at = chance.randrange(len(data)) // size * size
    end = min(len(data), at + size)
    data[at:end] = bytes(end - at)
    path.write_bytes(data)
    return f"zeros from {at} to {end}"


def cut(path: Path, chance: random.Random) -> str:
    size = chance.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"cut at {size}"


def remove(path: Path, chance: random.Random) -> str:
    path.unlink()
    return "removed"


def damage(place: Path, chance: random.Random) -> str:
    files = [each for each in files_of(place) if each.stat().st_size]
    kind: Callable[[Path, random.Random], str] = chance.choices((flip, zero, cut, remove), (10, 4, 2, 1))[0]
    # Each file is as likely as it is large, but for those that hold little and matter much.
    path = chance.choices(files, [20_000 + each.stat().st_size for each in files])[0]
    return f"{path.name}: {kind(path, chance)}"


def outcomes(stores: tuple[str, list[Path]], tmp_path: Path, trials: int, seed: int) -> Counter[str]:
    kind, places = stores
    expected, counted = {}, Counter[str]()
    for number, place in enumerate(places):
        shutil.copytree(place, tmp_path / f"whole-{number}")
        expected[place] = seen_in(url_of(kind, tmp_path / f"whole-{number}"))
        assert expected[place] != REFUSED
    silent = []
    for trial in range(trials):
        chance = random.Random(f"{seed} {trial}")
        whole = places[trial % 2]
        place = tmp_path / f"trial-{trial}"
        shutil.copytree(whole, place)
        what = f"seed {seed}, trial {trial}, {whole.name}: {damage(place, chance)}"
        before = bytes_of(place)
        seen = seen_in(url_of(kind, place))
        counted["refused" if seen == REFUSED else "whole"] += 1
        if seen not in (REFUSED, expected[whole]):
            silent.append(what)
        elif seen == REFUSED and not opens(url_of(kind, place)) and bytes_of(place) != before:
            silent.append(f"{what}: refused, and changed")
        shutil.rmtree(place)
    assert not silent, "\n".join(silent)
    return counted


def opens(url: str) -> bool:
    """Whether the store itself does: then what is refused is a topic in it, and the rest was served."""
    try:
        store_opener(url)().close()
    except StoreError:
        return False
    return True


@pytest.mark.parametrize("trials", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_damages_at_rest_are_never_silent(stores: tuple[str, list[Path]], tmp_path: Path, trials: int) -> None:
    counted = outcomes(stores, tmp_path, trials, trials)
    print(f"{stores[0]}: {dict(counted)}")
    assert counted["refused"] >= trials // 4, counted
