"""`oncelog salvage`: what can be read of a damaged store is saved, what cannot is named, and nothing passes for whole."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from oncelog import Client, Consumer, Producer
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import StoreError
from tests.behaviours.cli.support import run
from tests.world.service import running_service

MESSAGES = 600


def payload(number: int) -> bytes:
    """It does not get smaller by compression, so that it can be found in a file."""
    return b"message %d " % number + random.Random(number).randbytes(200)


def fill(url: str) -> None:
    with running_service(url) as service, Client(service.url) as client:
        for topic in ("a", "whole"):
            client.create_topic(topic)
        for begin in range(0, MESSAGES, 50):
            with Producer("a", name="loader", client=client) as producer:
                producer.send_batch([payload(number) for number in range(begin, begin + 50)])
        with Producer("whole", name="other", client=client) as producer:
            producer.send_batch([b"%d" % number for number in range(20)])
        with client.transaction(buffer_bytes=0) as tx:
            tx.send("whole", b"in a transaction")
        with client.atomic(id="atomic") as batch:
            batch.send("whole", b"atomic")
        with Consumer("whole", "reader", client=client) as consumer:
            consumer.ack(consumer.read(5, timeout=5)[-1])


@pytest.fixture(scope="module", params=["leveldb", "sqlite"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    kind: str = request.param
    place = tmp_path_factory.mktemp(kind) / "store"
    place.mkdir()
    fill(f"{kind}://{place}/data")
    store_opener(f"{kind}://{place}/data")().close()  # what is in a log goes into a table
    return kind, place


class Damaged(NamedTuple):
    """A copy to be damaged, and where it is to be saved."""

    data: Path
    source: str
    target: str


@pytest.fixture
def damaged(kept: tuple[str, Path], tmp_path: Path) -> Damaged:
    kind, place = kept
    shutil.copytree(place, tmp_path / "damaged")
    return Damaged(tmp_path / "damaged" / "data", f"{kind}://{tmp_path}/damaged/data", f"{kind}://{tmp_path}/target")


def files_of(place: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() for each in place.rglob("*") if each.is_file()}


def in_the_middle(place: Path, size: int) -> None:
    """Zeros where messages of the topic `a` are."""
    (path, data), *_ = [(path, data) for path, data in files_of(place).items() if payload(300)[20:60] in data]
    at = data.index(payload(300)[20:60])
    path.write_bytes(data[:at] + bytes(size) + data[at + size :])


def salvaged(source: str, target: str, *more: str) -> tuple[int, Any]:
    result = run("salvage", source, target, "--json", *more)
    return result.exit_code, json.loads(result.stdout)


def test_what_can_be_read_is_saved_and_what_cannot_is_named(damaged: Damaged) -> None:
    _, source, target = damaged
    in_the_middle(damaged.data.parent, 6_000)
    before = files_of(damaged.data.parent)
    code, found = salvaged(source, target)
    assert (code, files_of(damaged.data.parent)) == (10, before)
    named = [each for each in found["losses"] if each.startswith("default/a: offsets ")]
    holes = [each.removeprefix("default/a: offsets ").split(" to ") for each in named]
    lost = {number for first, last in holes for number in range(int(first), int(last) + 1)}
    assert 300 in lost
    assert len(lost) < MESSAGES // 2, "the rows that are hit, of up to 32 KiB each"
    assert max(lost) < MESSAGES - 1
    assert not [each for each in found["losses"] if "whole" in each]

    with pytest.raises(StoreError, match="nobody has accepted what was lost"), running_service(target):
        pass
    code, again = salvaged(source, target, "--accept-losses")
    assert (code, again["losses"], files_of(damaged.data.parent)) == (0, named, before)

    with running_service(target) as service, Client(service.url) as client:
        rows = run("read", "a", "--limit", "1000", "--json", url=service.url)
        offsets = [json.loads(line)["offset"] for line in rows.stdout.splitlines()]
        assert offsets == [number for number in range(MESSAGES) if number not in lost]
        assert whole(client, "a", "whole")
        with Producer("a", name="loader", client=client) as producer:
            assert producer.last_sequence_id == MESSAGES - 1
            assert producer.send(b"next").offset == MESSAGES
        with Consumer("whole", "reader", client=client) as consumer:
            assert len(consumer.read(100, timeout=5)) == 17


def whole(client: Client, *topics: str) -> bool:
    """Whether these topics are verified without a finding."""
    return all(list(client.verify(topic))[-1].ok for topic in topics)  # type: ignore[union-attr]


@pytest.mark.parametrize("kept", ["leveldb"], indirect=True)
@pytest.mark.parametrize("name", ["CURRENT", "oncelog.end"])
def test_a_leveldb_directory_that_does_not_open_is_saved_whole(damaged: Damaged, name: str) -> None:
    (damaged.data / name).unlink()
    target = damaged.target.replace("leveldb", "sqlite")
    with pytest.raises(StoreError), running_service(damaged.source):
        pass
    code, found = salvaged(damaged.source, target, "--accept-losses")
    assert code == 0
    assert found["losses"] == ([] if name == "CURRENT" else [each for each in found["losses"] if "not known" in each])
    with running_service(target) as service, Client(service.url) as client:
        assert whole(client, "a", "whole")
        assert client.stats("a").upcoming_offset == MESSAGES


@pytest.mark.parametrize("kept", ["leveldb"], indirect=True)
def test_a_last_write_that_keeps_leveldb_from_opening_is_left_out_and_named(damaged: Damaged, tmp_path: Path) -> None:
    with (
        running_service(damaged.source) as service,
        Client(service.url) as client,
        Producer("a", name="loader", client=client) as producer,
    ):
        for number in range(MESSAGES, MESSAGES + 10):
            producer.send(payload(number))
        shutil.copytree(damaged.data, tmp_path / "killed")
    source, target = f"leveldb://{tmp_path}/killed", damaged.target
    log = max((tmp_path / "killed").glob("*.log"))
    data = log.read_bytes()
    at = data.index(payload(MESSAGES + 9)[20:60])
    log.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(StoreError), running_service(source):
        pass
    code, found = salvaged(source, target, "--accept-losses")
    assert (code, found["losses"] != []) == (0, True)
    with (
        running_service(target) as service,
        Client(service.url) as client,
        Producer("a", name="loader", client=client) as producer,
    ):
        assert producer.last_sequence_id == MESSAGES + 8
        assert producer.send(payload(MESSAGES + 9)).offset == MESSAGES + 9
        assert whole(client, "a")


def test_a_target_that_holds_something_else_is_refused(damaged: Damaged) -> None:
    with running_service(damaged.target) as service:
        assert run("topic", "create", "t", url=service.url).exit_code == 0
    result = run("salvage", damaged.source, damaged.target)
    assert (result.exit_code, "not empty" in result.output) == (1, True)
