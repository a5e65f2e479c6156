"""Trims and erasures on real disks, under kill -9: what was answered stays so, nothing is stored twice, and no file has it."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest

from oncelog import Client, Producer, Reader
from oncelog.errors import OncelogError
from tests.behaviours.cli.support import run
from tests.patience import PATIENCE
from tests.storage.stores import IN_FILES
from tests.world.crash import seeded
from tests.world.service import ServiceProcess, running_service

pytestmark = pytest.mark.real

TOPIC = "t"
MESSAGES = 600


def mark(number: int) -> bytes:
    return b"<secret %06d>" % number


def secret(number: int) -> bytes:
    """Marked twice: where a page of SQLite's ends, or a block of LevelDB's, there is something between two bytes of a payload."""
    return 2 * mark(number) + b"." * (number * 37 % 900)


def found_in(place: Path, numbers: list[int]) -> list[int]:
    """Those whose payload any file there has."""
    files = [each.read_bytes() for each in place.rglob("*") if each.is_file()]
    return [number for number in numbers if any(mark(number) in data for data in files)]


def send_all(client: Client, count: int = MESSAGES) -> list[str]:
    """What the receipts of all messages say, sent one request after the other."""
    statuses = []
    with Producer(TOPIC, name="loader", client=client) as producer:
        for at in range(0, count, 50):
            numbers = range(at, min(at + 50, count))
            receipts = producer.send_batch([secret(each) for each in numbers], sequence_ids=numbers)
            statuses += [each.status for each in receipts]
    return statuses


def payloads(client: Client) -> dict[int, bytes]:
    with Reader(TOPIC, client=client, timeout=0, on_expired="skip") as reader:
        return {each.offset: each.payload for each in reader}


@pytest.mark.parametrize("kind", IN_FILES)
def test_when_an_erasure_is_answered_no_file_has_the_message_nor_any_copy_made_of_them(kind: str, tmp_path: Path) -> None:
    with seeded() as rng, ServiceProcess(tmp_path / "data") as service:
        place = tmp_path / "data"
        if kind == "sqlite":
            service.kill()
            shutil.rmtree(place)
            place.mkdir()
            service.store = f"sqlite://{place}/data"
            service.start()
        with Client(service.url) as client:
            client.create_topic(TOPIC)
            send_all(client)
            with client.transaction(buffer_bytes=0) as tx:
                for number in range(MESSAGES, MESSAGES + 20):
                    tx.send(TOPIC, secret(number))
            with client.atomic(buffer_bytes=1) as batch:
                for number in range(MESSAGES + 20, MESSAGES + 40):
                    batch.send(TOPIC, secret(number))
            gone = [*rng.sample(range(MESSAGES), 6), MESSAGES + 7, MESSAGES + 27]
            assert found_in(place, gone) == gone, "or this test says nothing"
            for number in gone:
                client.erase_message(TOPIC, number)
                assert not found_in(place, [number])
            service.kill()
            assert not found_in(place, gone)
            left = {number: b"" if number in gone else secret(number) for number in range(MESSAGES + 40)}
            for verb, target in (("copy", "copied"), ("salvage", "salvaged")):
                done = run(verb, service.store, f"{kind}://{tmp_path}/{target}", *(("--accept-losses",) * (verb == "salvage")))
                assert done.exit_code == 0, done.output
                with running_service(f"{kind}://{tmp_path}/{target}") as other, Client(other.url) as there:
                    assert payloads(there) == left, verb
            assert run("verify", "--store", service.store).exit_code == 0
            service.start()
            assert payloads(client) == left
            assert set(send_all(client)) == {"duplicate"}
            assert payloads(client) == left


@pytest.mark.parametrize("kills", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_kills_while_a_topic_is_trimmed_and_erased_lose_neither_and_forget_nothing(tmp_path: Path, kills: int) -> None:
    with (
        seeded() as rng,
        ServiceProcess(tmp_path / "data", snapshot_messages=100, retention_seconds=0.1) as service,
        Client(service.url, retry=PATIENCE) as client,
    ):
        client.create_topic(TOPIC)
        send_all(client)
        begin, erased, stop = [0], set[int](), threading.Event()

        def remove() -> None:
            with Client(service.url, retry=PATIENCE) as own:
                while not stop.is_set():
                    if rng.random() < 0.5:
                        begin[0] = own.trim_topic(TOPIC, min(begin[0] + rng.randrange(12), MESSAGES))
                    elif begin[0] < MESSAGES:
                        at = rng.randrange(begin[0], MESSAGES)
                        own.erase_message(TOPIC, at)
                        erased.add(at)

        remover = threading.Thread(target=remove)
        remover.start()
        try:
            for _ in range(kills):
                time.sleep(rng.uniform(0.1, 0.8))
                service.kill()
                before, gone = begin[0], set(erased)
                service.start()
                found = payloads(client)
                assert min(found, default=MESSAGES) >= before, "what was trimmed came again"
                assert not [at for at in gone if found.get(at)], "what was erased came again"
        finally:
            stop.set()
            remover.join(PATIENCE)
        found = payloads(client)
        assert found.keys() == set(range(begin[0], MESSAGES))
        assert all(each == (b"" if at in erased else secret(at)) for at, each in found.items())
        assert client.trim_topic(TOPIC, MESSAGES) == MESSAGES
        service.kill()
        service.start()
        assert set(send_all(client)) == {"duplicate"}
        assert payloads(client) == {}
        with Producer(TOPIC, name="loader", client=client) as producer:
            assert producer.last_sequence_id == MESSAGES - 1
            assert producer.send(b"next").offset == MESSAGES
        service.stop()
        assert run("verify", "--store", service.store).exit_code == 0


def test_a_reader_waits_out_an_erasure_and_never_sees_half_of_one(tmp_path: Path) -> None:
    """Readers from the store while rows are laid anew: each message is as it was sent, or erased."""
    with running_service(f"leveldb://{tmp_path}/data", cache_bytes=0) as service, Client(service.url) as client:
        client.create_topic(TOPIC)
        send_all(client)
        stop, wrong = threading.Event(), list[object]()

        def read() -> None:
            with Client(service.url) as own:
                while not stop.is_set():
                    try:
                        found = payloads(own)
                        assert found.keys() == set(range(MESSAGES))
                        assert all(each in (b"", secret(at)) for at, each in found.items())
                    except (AssertionError, OncelogError) as error:
                        wrong.append(error)
                        return

        readers = [threading.Thread(target=read) for _ in range(2)]
        for each in readers:
            each.start()
        for at in range(0, MESSAGES, 20):
            client.erase_message(TOPIC, at)
        stop.set()
        for each in readers:
            each.join(PATIENCE)
        assert not wrong
        found = payloads(client)
        assert [at for at, each in found.items() if not each] == list(range(0, MESSAGES, 20))
