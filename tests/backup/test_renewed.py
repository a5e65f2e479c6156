"""A store that something else than `oncelog restore` has put back in time: one command makes it another incarnation."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncelog import Client, Producer, Reader
from oncelog.errors import OncelogError, ProducerFenced, StaleMessageId, StorageUnavailable
from oncelog.wire.requests import PublishRequest
from oncelog_service.storage.incarnation import FIRST, find_incarnation
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import StoreError
from tests.behaviours.cli.support import run, value
from tests.patience import until
from tests.world.service import running_service


def renewed(url: str) -> Any:
    return value(run("renew", url, "--yes", "--json"))


def publish(url: str, topic: str, *payloads: str) -> None:
    with running_service(url) as service, Client(service.url) as client:
        client.create_topic(topic, exist_ok=True)
        with Producer(topic, name="p", client=client) as producer:
            producer.send_batch([each.encode() for each in payloads])


def put_back(place: Path, kept: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(kept, place)


def test_after_a_directory_was_put_back_and_renewed_clients_of_before_are_told(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    url = f"sqlite://{place}/data"
    publish(url, "t", "0", "1")
    shutil.copytree(place, tmp_path / "kept")
    with running_service(url) as service, Client(service.url) as client:
        opened = client.open_producer("t", "p")
        client.publish("t", PublishRequest([b"2", b"3"], producer="p", epoch=opened.epoch, sequence_ids=[2, 3]))
        lost = client.stats("t").last_message_id
        pointer, generation = client.start_transaction().write_pointer, client.stats("t").generation
    put_back(place, tmp_path / "kept")
    found = renewed(url)
    assert (found["store"], found["tokens"]) == (url, [])
    with running_service(url) as service, Client(service.url) as client:
        with pytest.raises(ProducerFenced):
            client.publish("t", PublishRequest([b"4"], producer="p", epoch=opened.epoch, sequence_ids=[4]))
        with Reader("t", client=client, start=2, generation=generation, timeout=0) as reader, pytest.raises(StaleMessageId):
            list(reader)
        assert lost is not None
        with Reader("t", client=client, start=lost, timeout=0) as reader, pytest.raises(StaleMessageId):
            list(reader)
        assert client.start_transaction().write_pointer > pointer
        with Producer("t", name="p", client=client) as producer:
            assert [each.sequence_id for each in producer.send_batch([b"2", b"3"])] == [2, 3]
        assert client.stats("t").generation == found["incarnation"] + 1


def test_a_store_that_is_served_is_not_renewed_nor_one_that_is_none(tmp_path: Path) -> None:
    url = f"leveldb://{tmp_path}/data"
    publish(url, "t", "0")
    with running_service(url):
        refused = run("renew", url, "--yes", "--json")
        assert (refused.exit_code, "in use" in json.loads(refused.stderr)["detail"]) == (1, True)
    declined = run("renew", url, stdin="n\n")
    assert (declined.exit_code, "nothing was done" in declined.stderr) == (1, True)
    with closing(store_opener(url)()) as store:
        assert find_incarnation(store) == FIRST
    with closing(store_opener(f"sqlite://{tmp_path}/empty")()):
        pass
    refused = run("renew", f"sqlite://{tmp_path}/empty", "--yes")
    assert (refused.exit_code, "no service has ever opened it" in refused.stderr) == (1, True)


def test_it_says_what_lives_again(tmp_path: Path) -> None:
    url = f"leveldb://{tmp_path}/data"
    publish(url, "t", "0")
    assert run("token", "create", "ada", "--grant", "admin", "--store", url).exit_code == 0
    told = run("renew", url, "--yes")
    assert told.exit_code == 0
    for each in ("tokens that were revoked", "erased or trimmed", "ada", "token list --store"):
        assert each in told.stderr


def lose_the_newest_writes(place: Path) -> None:
    log = max(place.glob("*.log"))
    log.write_bytes(log.read_bytes()[: -log.stat().st_size // 3])


def test_a_store_that_was_salvaged_is_another_incarnation(tmp_path: Path) -> None:
    place, target = tmp_path / "data", f"leveldb://{tmp_path}/new"
    with running_service(f"leveldb://{place}") as service, Client(service.url) as client:
        client.create_topic("t")
        epoch = client.open_producer("t", "p").epoch
        for number in range(30):
            client.publish("t", PublishRequest([b"%d" % number], producer="p", epoch=epoch, sequence_ids=[number]))
        lost = client.stats("t").last_message_id
        shutil.copytree(place, tmp_path / "killed")
    lose_the_newest_writes(tmp_path / "killed")
    found = run("salvage", f"leveldb://{tmp_path}/killed", target, "--accept-losses", "--json")
    assert "writes, or parts of them" in value(found)["losses"][0]
    with running_service(target) as service, Client(service.url) as client:
        assert client.stats("t").upcoming_offset < 30
        with pytest.raises(ProducerFenced):
            client.publish("t", PublishRequest([b"30"], producer="p", epoch=epoch, sequence_ids=[30]))
        assert lost is not None
        with Reader("t", client=client, start=lost, timeout=0) as reader, pytest.raises(StaleMessageId):
            list(reader)


def test_a_service_whose_store_was_put_back_under_it_says_so_in_it_and_nobody_serves_it(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    url = f"leveldb://{place}/data"
    publish(url, "t", "0")
    shutil.copytree(place, tmp_path / "kept")
    with running_service(url) as service, Client(service.url, retry=0) as client:
        client.publish("t", PublishRequest([b"1"]))
        put_back(place, tmp_path / "kept")
        with pytest.raises(OncelogError):  # its files are gone: nothing is acknowledged, and the store is opened again
            client.publish("t", PublishRequest([b"2"]))
        until(lambda: "oncelog renew" in service.service.reason, "it is not served any more")
        with pytest.raises(StorageUnavailable):
            client.stats("t")
    with pytest.raises(StoreError, match="gone back in time"), running_service(url):
        pass
    renewed(url)
    with running_service(url) as service, Client(service.url) as client:
        assert client.stats("t").generation > 2**40
        assert client.stats("t").upcoming_offset == 1
