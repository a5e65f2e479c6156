"""`oncelog salvage`: what can be read of a damaged store is saved, what cannot is named, and nothing passes for whole."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncelog import Client, Consumer, Producer
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import StoreError
from tests.behaviours.cli.support import run
from tests.support import running_service

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
            consumer.ack(consumer.receive(5, timeout=5)[-1])


@pytest.fixture(scope="module", params=["leveldb", "sqlite"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    kind: str = request.param
    place = tmp_path_factory.mktemp(kind) / "store"
    place.mkdir()
    fill(f"{kind}://{place}/data")
    store_opener(f"{kind}://{place}/data")().close()  # what is in a log goes into a table
    return kind, place


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


def test_what_can_be_read_is_saved_and_what_cannot_is_named(kept: tuple[str, Path], tmp_path: Path) -> None:
    kind, place = kept
    shutil.copytree(place, tmp_path / "damaged")
    in_the_middle(tmp_path / "damaged", 6_000)
    source, target = f"{kind}://{tmp_path}/damaged/data", f"{kind}://{tmp_path}/target"
    before = files_of(tmp_path / "damaged")
    code, found = salvaged(source, target)
    assert files_of(tmp_path / "damaged") == before
    assert code == 2
    named = [each for each in found["losses"] if each.startswith("default/a: offsets ")]
    holes = [each.removeprefix("default/a: offsets ").split(" to ") for each in named]
    lost = {number for first, last in holes for number in range(int(first), int(last) + 1)}
    assert 300 in lost
    assert len(lost) < MESSAGES // 4
    assert max(lost) < MESSAGES - 1
    assert not [each for each in found["losses"] if "whole" in each]

    with pytest.raises(StoreError, match="nobody has accepted what was lost"), running_service(target):
        pass
    code, again = salvaged(source, target, "--accept-losses")
    assert (code, again["losses"]) == (0, named)
    assert files_of(tmp_path / "damaged") == before

    with running_service(target) as service, Client(service.url) as client:
        rows = run("read", "a", "--limit", "1000", "--json", url=service.url)
        offsets = [json.loads(line)["offset"] for line in rows.stdout.splitlines()]
        assert offsets == [number for number in range(MESSAGES) if number not in lost]
        for topic in ("a", "whole"):
            *_, verified = client.verify(topic)
            assert verified.ok, verified.problems
        with Producer("a", name="loader", client=client) as producer:
            assert producer.last_sequence_id == MESSAGES - 1
            assert producer.send(b"next").offset == MESSAGES
        with Consumer("whole", "reader", client=client) as consumer:
            assert len(consumer.receive(100, timeout=5)) == 17


def without(name: str) -> Callable[[Path], None]:
    return lambda place: (place / name).unlink()


@pytest.mark.parametrize("kept", ["leveldb"], indirect=True)
@pytest.mark.parametrize("name", ["CURRENT", "oncelog.end"])
def test_a_leveldb_directory_that_does_not_open_is_saved_whole(kept: tuple[str, Path], name: str, tmp_path: Path) -> None:
    kind, place = kept
    shutil.copytree(place, tmp_path / "damaged")
    without(name)(tmp_path / "damaged" / "data")
    source, target = f"{kind}://{tmp_path}/damaged/data", f"sqlite://{tmp_path}/target"
    with pytest.raises(StoreError), running_service(source):
        pass
    code, found = salvaged(source, target, "--accept-losses")
    assert code == 0
    assert found["losses"] == ([] if name == "CURRENT" else [each for each in found["losses"] if "not known" in each])
    with running_service(target) as service, Client(service.url) as client:
        for topic in ("a", "whole"):
            *_, verified = client.verify(topic)
            assert verified.ok, verified.problems
        assert client.stats("a").upcoming_offset == MESSAGES


@pytest.mark.parametrize("kept", ["leveldb"], indirect=True)
def test_a_last_write_that_keeps_leveldb_from_opening_is_left_out_and_named(kept: tuple[str, Path], tmp_path: Path) -> None:
    kind, place = kept
    shutil.copytree(place, tmp_path / "damaged")
    source, target = f"{kind}://{tmp_path}/damaged/data", f"{kind}://{tmp_path}/target"
    with (
        running_service(source) as service,
        Client(service.url) as client,
        Producer("a", name="loader", client=client) as producer,
    ):
        for number in range(MESSAGES, MESSAGES + 10):
            producer.send(payload(number))
        shutil.copytree(tmp_path / "damaged", tmp_path / "killed")
    source = f"{kind}://{tmp_path}/killed/data"
    log = max((tmp_path / "killed" / "data").glob("*.log"))
    data = log.read_bytes()
    at = data.index(payload(MESSAGES + 9)[20:60])
    log.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(StoreError), running_service(source):
        pass
    code, found = salvaged(source, target, "--accept-losses")
    assert code == 0
    assert found["losses"] != []
    with (
        running_service(target) as service,
        Client(service.url) as client,
        Producer("a", name="loader", client=client) as producer,
    ):
        assert producer.last_sequence_id == MESSAGES + 8
        assert producer.send(payload(MESSAGES + 9)).offset == MESSAGES + 9
        *_, verified = client.verify("a")
        assert verified.ok, verified.problems


def test_a_target_that_holds_something_else_is_refused(kept: tuple[str, Path], tmp_path: Path) -> None:
    kind, place = kept
    target = f"{kind}://{tmp_path}/target"
    fill(target)
    result = run("salvage", f"{kind}://{place}/data", target)
    assert result.exit_code == 1
    assert "not empty" in result.output
