"""Backups through a running service, which is written to from all sides: each one is a moment of it, whole, or is not there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from oncelog import Client, Producer, Reader
from oncelog.errors import BackupFailed, ConnectionFailed, InvalidRequest, InvalidResponse, NotSupported, OncelogError
from oncelog.wire.models import Backup, TopicAsked
from oncelog_service.storage.backup.archive import Archive
from oncelog_service.storage.backup.layout import check_whole
from tests.behaviours.cli.support import run, value
from tests.patience import PATIENCE, until
from tests.rest.talk import Topic
from tests.world.service import ServiceProcess, running_service

pytestmark = pytest.mark.real

WRITERS = 8
SIZE = 3_000
"""Bytes of a message: enough that LevelDB merges tables all the time."""


class Load:
    """Writers that never stop: what they know to be there, by topic."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ended = threading.Event()
        self.acknowledged = [0] * WRITERS
        """Messages of each writer's topic, 0, 1, 2, …"""
        self.commits = self.transactions = 0
        """Atomic commits over both ledgers, and transactions over both books, one message each."""
        self.errors: list[BaseException] = []

    def write(self, writer: int) -> None:
        with Client(self.url) as client, Producer[bytes](f"t{writer}", name="p", client=client) as producer:
            filler = b"." * SIZE
            while not self.ended.is_set():
                begin = self.acknowledged[writer]
                producer.send_batch([b"%d%s" % (begin + each, filler) for each in range(20)])
                self.acknowledged[writer] = begin + 20

    def commit(self) -> None:
        with Client(self.url) as client:
            while not self.ended.is_set():
                with client.atomic("group", producer="ledger", sequence_id=self.commits) as batch:
                    for topic in ("left", "right"):
                        batch.send(topic, b"%d" % self.commits)
                self.commits += 1

    def transact(self) -> None:
        with Client(self.url) as client:
            while not self.ended.is_set():
                with client.transaction() as transaction:
                    for topic in ("debit", "credit"):
                        transaction.send(topic, b"%d" % self.transactions)
                self.transactions += 1

    def known(self) -> tuple[list[int], int, int]:
        return list(self.acknowledged), self.commits, self.transactions


@contextmanager
def load(url: str) -> Iterator[Load]:
    with Client(url) as client:
        for topic in (*(f"t{each}" for each in range(WRITERS)), "left", "right", "debit", "credit"):
            client.create_topic(topic, exist_ok=True)
    found = Load(url)

    def kept(call: Any, *given: Any) -> None:
        try:
            call(*given)
        except BaseException as error:
            found.errors.append(error)

    threads = [threading.Thread(target=kept, args=(found.write, each)) for each in range(WRITERS)]
    threads += [threading.Thread(target=kept, args=(found.commit,)), threading.Thread(target=kept, args=(found.transact,))]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        found.ended.set()
        for thread in threads:
            thread.join(PATIENCE)


def payloads(client: Client, topic: str, **options: Any) -> list[int]:
    with Reader(topic, client=client, timeout=0, **options) as reader:
        return [int(message.payload.rstrip(b".")) for message in reader]


def check_prefix(store: str, before: tuple[list[int], int, int], after: tuple[list[int], int, int]) -> None:
    """The restored store is a moment between: each topic begins with what was acknowledged before, in order, once, and ends
    before what was never sent; what belongs together is there together."""
    with running_service(store) as service, Client(service.url) as client:
        for writer in range(WRITERS):
            found = payloads(client, f"t{writer}")
            assert found == list(range(len(found)))
            assert before[0][writer] <= len(found) <= after[0][writer] + 20
        left, right = payloads(client, "left"), payloads(client, "right")
        assert left == right == list(range(len(left)))
        assert before[1] <= len(left) <= after[1] + 1
        producer = client.group_producer("group", "ledger") if left else None
        assert producer is None or producer.sequence_id == left[-1]
        debit, credit = (committed(client, topic) for topic in ("debit", "credit"))
        assert debit == credit == list(range(len(debit)))
        assert before[2] <= len(debit) <= after[2] + 1


def committed(client: Client, topic: str) -> list[int]:
    """What is committed, once what the backup had in progress is ended."""
    for transaction in client.transactions():
        client.abort_transaction(transaction.write_pointer)

    def is_settled() -> bool:
        return client.offsets({topic: TopicAsked()})[topic].stable == client.stats(topic).upcoming_offset

    until(is_settled, "all transactions are settled")
    return [int(each) for each in Topic(client.url, topic, create=False).seen(client.start_transaction(), limit=100_000)]


def test_each_backup_under_fire_is_a_moment_of_the_store(tmp_path: Path) -> None:
    moments = []
    with running_service(f"leveldb://{tmp_path}/data", backup_root=tmp_path / "root") as service:
        with load(service.url) as fire, Client(service.url) as client:
            for _ in range(5):
                enough = sum(fire.acknowledged) + 2_500
                until(lambda: sum(fire.acknowledged) > enough or fire.errors, "there is more")  # noqa: B023
                before = fire.known()
                *progress, backup = client.backup("hot")
                assert isinstance(backup, Backup)
                assert progress[-1] == (backup.bytes, backup.bytes)
                moments.append((backup, before, fire.known()))
        assert fire.errors == []
        assert all(fire.acknowledged)
        assert fire.commits > 5
        assert fire.transactions > 5
        assert all(each.ok for topic in client_topics(service.url) for each in topic)
    tables = [each.name for each in Archive(tmp_path / "root/hot").read(5).files if each.inode]
    assert len(tables) > 3, "LevelDB has merged"
    assert [each.number for each, _, _ in moments] == [1, 2, 3, 4, 5]
    assert sum(each.new_bytes for each, _, _ in moments) < sum(each.bytes for each, _, _ in moments)
    for backup, before, after in moments:
        store = f"leveldb://{tmp_path}/restored-{backup.number}"
        proved = value(run("restore", str(tmp_path / "root/hot"), "--backup", str(backup.number), "--store", store, "--json"))
        assert (proved["ok"], proved["position"], len(proved["topics"])) == (True, backup.position, WRITERS + 4)
        check_prefix(store, before, after)
    assert value(run("backup", "verify", str(tmp_path / "root/hot"), "--json"))["ok"]


def client_topics(url: str) -> list[list[Any]]:
    with Client(url) as client:
        return [[list(client.verify(topic))[-1]] for topic in client.topics()]


def test_a_service_that_is_killed_in_a_backup_leaves_none_that_passes_for_whole(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "root/hot")
    service = ServiceProcess(tmp_path / "data", backup_root=tmp_path / "root")
    known: tuple[list[int], int, int] = ([0] * WRITERS, 0, 0)
    with service:
        for round_ in range(3):
            with Client(service.url) as client:
                client.create_topic("t0", exist_ok=True)
                with Producer[bytes]("t0", name="p", client=client) as producer:
                    producer.send_batch([b"%d%s" % (each, b"." * 20_000) for each in range(known[0][0], known[0][0] + 500)])
                known[0][0] += 500
                before = _files(archive)
                asking = threading.Thread(target=_backup_that_may_fail, args=(service.url,))
                asking.start()
                until(lambda: _files(archive) > before + round_ or not asking.is_alive(), every=0.0)  # noqa: B023
                service.kill()
                asking.join(PATIENCE)
            for number in archive.numbers() if archive.path.exists() and (archive.path / "oncelog-backups.json").exists() else ():
                check_whole(archive, archive.read(number))
            service.start()
            assert not list((tmp_path / "data").glob("oncelog-backup-*"))
        with Client(service.url) as client:
            *_, last = client.backup("hot")
            assert isinstance(last, Backup)
    store = f"leveldb://{tmp_path}/restored"
    assert value(run("restore", str(archive.path), "--store", store, "--json"))["messages"] == known[0][0]


def _files(archive: Archive) -> int:
    with suppress(FileNotFoundError):
        return len(list(archive.files.iterdir()))
    return 0


def _backup_that_may_fail(url: str) -> None:
    with Client(url, retry=0.1) as client, suppress(OncelogError):
        list(client.backup("hot"))


# --- where it may write


def test_it_writes_below_its_root_and_nowhere_else(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    (root / "loop").symlink_to(root / "loop")
    with running_service(f"leveldb://{tmp_path}/data", backup_root=root) as service, Client(service.url) as client:
        above = ("..", "../outside", str(outside), "/", "a/../../outside", str(root) + "-2")
        for path in (*above, "link", "link/deeper", "loop/x", "a\0b"):
            with pytest.raises(InvalidRequest):
                list(client.backup(path))
        assert list(outside.iterdir()) == []
        with pytest.raises(BackupFailed):
            list(client.backup("x" * 300))
        for path in ("a/b", str(root / "c"), "d/../e"):
            *_, backup = client.backup(path)
            assert isinstance(backup, Backup)
            assert Path(backup.directory).is_relative_to(root)
        assert {each.name for each in root.iterdir()} == {"link", "loop", "a", "c", "e"}
        assert requests.post(service.url + "/v1/backup", json={"directory": "a", "more": 1}, timeout=PATIENCE).status_code == 400


def test_without_a_root_or_files_there_is_no_backup(tmp_path: Path) -> None:
    for store, root, why in ((f"leveldb://{tmp_path}/data", None, "backup-root"), ("memory://", tmp_path, "database")):
        with running_service(store, backup_root=root) as service, Client(service.url) as client:
            for path in ("a", str(tmp_path / "a")):
                with pytest.raises(NotSupported, match=why):
                    list(client.backup(path))
    assert not (tmp_path / "a").exists()


def test_a_refusal_is_answered_with_its_status_and_a_failure_on_the_way_as_the_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, goes_on, bring = iter([True]), threading.Event(), Archive.bring

    def held_behind_the_first(archive: Archive, source: Path, size: int) -> tuple[str, bool]:
        assert next(first, False) or goes_on.wait(PATIENCE)
        return bring(archive, source, size)

    with running_service(f"leveldb://{tmp_path}/data", backup_root=tmp_path) as service, Client(service.url) as client:
        client.create_topic("t")
        (tmp_path / "full").mkdir()
        (tmp_path / "full/letter").touch()
        refused = run("backup", "create", "full", url=service.url)
        assert (refused.exit_code, "not empty" in refused.stderr) == (6, True)
        with Producer[bytes]("t", client=client) as producer:
            producer.send_batch([b"." * 50_000] * 400)
        monkeypatch.setattr(Archive, "bring", held_behind_the_first)
        steps = iter(client.backup("hot"))
        next(steps)
        (tmp_path / "hot/files").rename(tmp_path / "hot/elsewhere")
        goes_on.set()
        with pytest.raises((BackupFailed, InvalidResponse)):
            list(steps)
        (tmp_path / "hot/elsewhere").rename(tmp_path / "hot/files")
        assert Archive(tmp_path / "hot").numbers() == []
        *_, backup = client.backup("hot")
        assert isinstance(backup, Backup)
        assert backup.number == 1


def test_hanging_up_ends_a_backup(tmp_path: Path) -> None:
    with running_service(f"leveldb://{tmp_path}/data", backup_root=tmp_path) as service, Client(service.url) as client:
        client.create_topic("t")
        with Producer[bytes]("t", client=client) as producer:
            for _ in range(2):
                producer.send_batch([b"." * 50_000] * 400)
        with requests.post(service.url + "/v1/backup", json={"directory": "hot"}, stream=True, timeout=PATIENCE) as answer:
            next(answer.iter_lines())
        while True:  # it has ended, or was there before it was noticed
            try:
                *_, backup = client.backup("hot")
                break
            except (BackupFailed, ConnectionFailed) as error:
                assert "in use" in error.detail  # noqa: PT017
                time.sleep(0.05)
        assert isinstance(backup, Backup)
        assert not list((tmp_path / "data").glob("oncelog-backup-*"))
