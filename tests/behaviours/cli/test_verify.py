"""`oncelog verify`: of a running service and of a stopped one; exits with 2 when anything is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from oncelog import Client, Producer
from oncelog_service.app import build_service
from oncelog_service.cli.output import progress_bar
from oncelog_service.cli.stores.verify import _in_store
from oncelog_service.config import Settings
from oncelog_service.storage.keys import prefix_end, topic_key
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Table
from tests.behaviours.cli.support import run, value
from tests.patience import PATIENCE
from tests.world.service import running_service


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A stopped store with the topics default/a, default/b, other/c of twenty messages each."""
    store = f"leveldb://{tmp_path}/data"
    with running_service(store) as service, Client(service.url) as client:
        for namespace, topic in (("default", "a"), ("default", "b"), ("other", "c")):
            client.create_topic(topic, namespace=namespace)
            with Producer[bytes](topic, name="p", namespace=namespace, client=client) as producer:
                for number in range(0, 20, 2):
                    producer.send_batch([b"%d" % number, b"%d" % (number + 1)])
    return store


def _lose_a_message(store: str, topic: str) -> None:
    """What a failing disk or a clumsy hand does: a row in the middle is gone."""
    opened = store_opener(store)()
    prefix = topic_key("default", topic)
    keys = [key for key, _ in opened.scan(Table.MESSAGE, prefix, prefix_end(prefix))]
    assert len(keys) >= 10, "two messages a row; one, where a busy machine sent them apart"
    batch = Batch()
    batch.delete(Table.MESSAGE, keys[7])
    opened.write([batch])
    opened.close()


def _verified(found: list[dict[str, Any]]) -> list[tuple[str, str, int, bool]]:
    return sorted((each["namespace"], each["topic"], each["messages"], each["ok"]) for each in found)


ALL = [("default", "a", 20, True), ("default", "b", 20, True), ("other", "c", 20, True)]


def test_a_sound_store_is_found_sound_running_and_stopped_all_of_it_or_what_is_chosen(store: str, tmp_path: Path) -> None:
    assert _verified(value(run("verify", "--store", store, "--json"))) == ALL
    assert _verified(value(run("verify", "b", "--store", store, "--json"))) == ALL[1:2]
    assert _verified(value(run("verify", "c", "--namespace", "other", "--store", store, "--json"))) == ALL[2:]
    assert _verified(value(run("verify", "--namespace", "default", "--store", store, "--json"))) == ALL[:2]
    with running_service(store) as service:
        used = run("verify", "--store", store)
        assert (used.exit_code, used.stderr) == (1, f"error: the store {tmp_path}/data is in use by another process\n")
        assert run("verify", url=service.url).stdout.count("yes") == 3
        assert _verified(value(run("verify", "b", "--json", url=service.url))) == ALL[1:2]
        assert _verified(value(run("verify", "--namespace", "other", "--json", url=service.url))) == ALL[2:]
        assert run("verify", "nowhere", url=service.url).exit_code == 4
    assert run("verify", "nowhere", "--store", store).exit_code == 4
    assert run("verify", "--store", f"leveldb://{tmp_path}/missing").exit_code == 2
    assert not (tmp_path / "missing").exists()


def test_a_lost_message_is_found_running_and_stopped(store: str) -> None:
    _lose_a_message(store, "b")
    for again in range(2):  # the first one stopped the store cleanly; that must not have covered anything up
        result = run("verify", "--store", store)
        assert result.exit_code == 10, again
        assert result.stdout.count("yes") == 2
        assert "default/b: " in result.stderr
    with running_service(store) as service:
        assert run("verify", "b", "--json", url=service.url).exit_code == 10
        assert run("verify", "a", url=service.url).exit_code == 0


@pytest.mark.real
def test_a_verification_broken_off_by_ctrl_c_lets_go_of_the_store(tmp_path: Path) -> None:
    store = f"leveldb://{tmp_path}/data"
    with running_service(store) as running, Client(running.url) as client:
        client.create_topic("t")
        with Producer[bytes]("t", client=client) as producer:
            for number in range(25_000):
                producer.send_async(b"%d" % number)

    async def broken_off() -> None:
        service = build_service(Settings(store=store))
        await service.start()
        with progress_bar(True, "") as bar:
            verifying = asyncio.ensure_future(_in_store(service, ("default", "t"), bar))
            while not bar.tasks or bar.tasks[0].completed < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            verifying.cancel()
            with pytest.raises(asyncio.CancelledError) as held:  # its traceback keeps what was going on alive
                await verifying
            await asyncio.wait_for(service.stop(), PATIENCE)
            assert held.value is not None

    asyncio.run(broken_off())
