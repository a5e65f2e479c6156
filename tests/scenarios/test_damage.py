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
from oncelog_service.atomic.outcomes import read_ended
from oncelog_service.clock import SystemClock
from oncelog_service.config import Settings
from oncelog_service.log.keep.recovery import read_subscriptions, rows
from oncelog_service.log.scan import stored_under
from oncelog_service.log.verify import verify_log
from oncelog_service.service import Service
from oncelog_service.storage.keys import FIRST_ROW_ID
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Store, StoreError
from oncelog_service.storage.rows import RowDamaged
from tests.support import running_service

KINDS = ("leveldb", "sqlite")
OTHERS = ("LOG", "LOG.old", "LOCK", "data.lock", "data-shm")
"""Files that hold nothing of the store: messages to people, locks, what SQLite makes anew at each open."""
REFUSED = "refused"
FEW, MANY = 16, 400


def url_of(kind: str, place: Path) -> str:
    return f"{kind}://{place}/data"


def fill(url: str, begin: int) -> list[str]:
    """What a service acknowledged: messages of every kind, producers, subscriptions; write pointers and ids to ask about."""
    asked: list[str] = []
    with Client(url) as client:
        for topic in ("a", "b", "gone"):
            if begin == 0:
                client.create_topic(topic)
        for topic in ("a", "b"):
            with Producer(topic, name=f"loader-{topic}", client=client) as producer:
                producer.send_batch([b"%d of %s " % (number, topic.encode()) * 6 for number in range(begin, begin + 250)])
            with Consumer(topic, "reader", client=client) as consumer:
                consumer.ack(consumer.receive(50, timeout=5)[-1])
        for number in range(12):
            with client.transaction(buffer_bytes=0 if number % 3 else 2**20) as tx:
                tx.send("a", b"in a transaction %d" % number)
                tx.send("b", b"in a transaction %d" % number)
            asked.append(str(tx.transaction_id))
            with client.atomic(id=f"atomic-{begin}-{number}", producer="job", sequence_id=begin + number) as batch:
                batch.send("a", b"atomic %d" % number)
                batch.send("b", b"atomic %d" % number)
            asked.append(f"atomic-{begin}-{number}")
        client.set_policies(NamespacePolicies(deduplication=True))
        if begin:
            client.delete_topic("gone")
    return asked


@pytest.fixture(scope="module", params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Path], list[str]]:
    """The kind, two stores – one as SIGKILL leaves it, one as a clean stop does –, and what to ask them about."""
    kind: str = request.param
    place = tmp_path_factory.mktemp(kind)
    live, killed = place / "live", place / "killed"
    live.mkdir()
    with running_service(url_of(kind, live)) as service:
        asked = fill(service.url, 0)
    with running_service(url_of(kind, live)) as service:
        asked += fill(service.url, 1_000)
        service.on_loop(lambda each: each.writer.synced())
        shutil.copytree(live, killed)
    return kind, [killed, live], asked


def files_of(place: Path) -> list[Path]:
    return sorted(each for each in place.rglob("*") if each.is_file() and each.name not in OTHERS)


def bytes_of(place: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in files_of(place)}


# --- what is in a store


def seen_in(url: str, asked: list[str]) -> Any:
    """Everything that clients can be told of; REFUSED where one of them is told that it is damaged."""

    async def look() -> Any:
        service = Service(Settings(store=url), store_opener(url), SystemClock())
        await service.start()
        try:
            return await _seen(service, asked)
        finally:
            await service.stop()

    try:
        return asyncio.run(look())
    except (StoreError, OncelogError, RowDamaged):
        return REFUSED


async def _seen(service: Service, asked: list[str]) -> Any:
    store = service.store
    names = dict(service.topics.rows())
    seen: dict[Any, Any] = {name: (row.generation, row.deleted, row.properties) for name, row in names.items()}
    seen["policies"] = service.topics.policies("default")
    for one in asked:
        seen[one] = (await service.transactions.show(int(one))).state if one.isdecimal() else _ended(store, one)
    seen["job"] = await service.journal.producer("default", "job")
    for name, row in names.items():
        if not row.deleted:
            seen[name, "log"] = await _log(service, name)
    return seen


def _ended(store: Store, id: str) -> object:  # noqa: A002
    ended = read_ended(store, id)
    return None if ended is None else ended.outcome


async def _log(service: Service, name: tuple[str, str]) -> Any:
    log = await service.topics.open(*name)
    messages = []
    with closing(rows(service.store, log.prefix, FIRST_ROW_ID)) as found:
        for row in found:
            messages.append((row.offset, row.payload, row.producer, row.sequence_id, row.write_pointer))
            if row.group is not None:
                with closing(stored_under(service.store, log.prefix, row)) as stored:
                    messages += [(each.offset, each.row) for each in stored]
    *_, findings = verify_log(service.store, log)
    if findings.problems:
        raise TopicDamaged(findings.problems[0])
    return (
        messages,
        log.position,
        {producer: row.epoch for producer, row in log.producers.rows.items()},
        dict(log.dedup.fold.copy().items()),
        read_subscriptions(service.store, log.prefix),
    )


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


def outcomes(stores: tuple[str, list[Path], list[str]], tmp_path: Path, trials: int, seed: int) -> Counter[str]:
    kind, places, asked = stores
    expected, counted = {}, Counter[str]()
    for number, place in enumerate(places):
        shutil.copytree(place, tmp_path / f"whole-{number}")
        expected[place] = seen_in(url_of(kind, tmp_path / f"whole-{number}"), asked)
        assert expected[place] != REFUSED
    silent = []
    for trial in range(trials):
        chance = random.Random(f"{seed} {trial}")
        whole = places[trial % 2]
        place = tmp_path / f"trial-{trial}"
        shutil.copytree(whole, place)
        what = f"seed {seed}, trial {trial}, {whole.name}: {damage(place, chance)}"
        before = bytes_of(place)
        seen = seen_in(url_of(kind, place), asked)
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


def test_a_few_damages_at_rest_are_never_silent(stores: tuple[str, list[Path], list[str]], tmp_path: Path) -> None:
    counted = outcomes(stores, tmp_path, FEW, 1)
    assert counted["refused"] >= FEW // 4, counted


@pytest.mark.slow
def test_four_hundred_damages_at_rest_are_never_silent(stores: tuple[str, list[Path], list[str]], tmp_path: Path) -> None:
    counted = outcomes(stores, tmp_path, MANY, 2)
    print(f"{stores[0]}: {dict(counted)}")
    assert counted["refused"] >= MANY // 4, counted
