"""`oncelog copy` and `oncelog verify --same-as`: a house moved with everything in it, by a copy that may be killed anywhere."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncelog import Client, Consumer, Producer
from oncelog_service.storage.copying import TABLES, copy_row_of
from oncelog_service.storage.open import shown, store_opener
from oncelog_service.storage.port import Batch, Table
from tests.behaviours.cli.support import process, run, value
from tests.patience import PATIENCE, until
from tests.postgres import PostgresServer
from tests.rest.talk import Topic
from tests.world.service import running_service


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    return postgres.fresh_database()


def rows_of(store: str) -> dict[tuple[Table, bytes], bytes]:
    with closing(store_opener(store)()) as opened:
        return {(table, key): data for table in TABLES for key, data in opened.scan(table, b"", b"\xff" * 64)}


def put(store: str, *rows: tuple[Table, bytes, bytes | None]) -> None:
    batch = Batch()
    for table, key, data in rows:
        batch.delete(table, key) if data is None else batch.put(table, key, data)
    with closing(store_opener(store)()) as opened:
        opened.write([batch])


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A stopped store with a topic of some messages."""
    store = f"leveldb://{tmp_path}/small"
    with running_service(store) as service:
        assert run("topic", "create", "t", url=service.url).exit_code == 0
        for text in "abc":
            assert run("publish", "t", text, "--producer", "p", url=service.url).exit_code == 0
    return store


def filled(store: str, rows: int) -> str:
    """A store with an instance id and rows that no service has written: as much as a test needs, at once."""
    batch = Batch()
    batch.put(Table.STORE_ID, b"", b"0123456789abcdef" * 2)
    batch.put_rows(Table.JOURNAL, b"", [(number.to_bytes(8, "big"), b"v" * 100) for number in range(rows)])
    with closing(store_opener(store)()) as opened:
        opened.write([batch])
    return store


# --- a whole house


def live(url: str) -> dict[str, Any]:
    """What can be seen of the topic and of all around it."""
    with Client(url) as client:
        stats = client.stats("t")
        return {
            "messages": Topic(url, create=False).read(limit=5_000),
            "seen": Topic(url, create=False).seen(client.start_transaction(), limit=5_000),
            "offsets": (stats.earliest_offset, stats.upcoming_offset, stats.generation),
            "producers": [each.model_dump() for each in client.producers("t")],
        }


def test_a_service_moves_to_postgresql_and_back_and_nobody_notices(tmp_path: Path, database: str) -> None:
    stores = [f"leveldb://{tmp_path}/first", database, f"leveldb://{tmp_path}/second"]
    with running_service(stores[0]) as service, Client(service.url) as client:
        topic = Topic(service.url)
        with Producer[bytes]("t", name="p", client=client) as producer:
            sent = producer.send_batch([b"%d" % number for number in range(1_500)])
            last = sent[-1]
        committed, aborted, open_ = (client.start_transaction("long").write_pointer for _ in range(3))
        topic.publish_under(committed, "committed", producer="tx", sequenceIds=[0])
        client.commit_transaction(committed)
        topic.store_under(aborted, "aborted", producer="tx", sequenceIds=[1])
        topic.publish_under(aborted)
        client.abort_transaction(aborted)
        with client.atomic("group", id="once", producer="batch", sequence_id=0) as batch:
            batch.send("t", b"atomic")
        with Consumer("t", "billing", client=client, timeout=5) as consumer:
            for _, message in zip(range(700), consumer, strict=False):
                consumer.ack_async(message)
        topic.publish_under(open_, "undecided")
        topic.publish("behind")
        service.settled()  # until then the topic says of what has ended that it is in progress, and counts it for its producer
        before = live(service.url)
    for of, to in itertools.pairwise(stores):
        copied = value(run("copy", of, to, "--json"))
        assert copied["written"] == copied["rows"] == len(rows_of(of))
        assert value(run("verify", "--store", of, "--same-as", to, "--json"))["ok"]
        assert value(run("verify", "--store", to, "--json"))[0]["ok"]
    for store in stores[1:]:
        with running_service(store) as service, Client(service.url) as client:
            topic = Topic(service.url, create=False)
            assert client.stats("t").replayed < 20, "the snapshot that was copied counts"
            service.settled()
            after = live(service.url)
            assert after == before
            with Producer[bytes]("t", name="p", client=client) as producer:
                again = producer.send(b"1499", sequence_id=1_499)
            assert (again.status, again.offset, again.message_id) == ("duplicate", last.offset, last.message_id)
            with client.atomic("group", id="once", producer="batch", sequence_id=0) as batch:
                batch.send("t", b"atomic")
            with Consumer("t", "billing", client=client, timeout=5) as consumer:
                assert next(iter(consumer)).payload == b"700"
            client.commit_transaction(open_)
            assert topic.seen(client.start_transaction(), limit=5_000)[-2:] == ["undecided", "behind"]
            assert topic.verify()["ok"]
            assert len(topic.read(limit=5_000)) == len(before["messages"])


# --- killed


@pytest.mark.parametrize(("kind", "how"), [("leveldb", "SIGKILL"), ("postgresql", "Ctrl-C"), ("postgresql", "it goes away")])
def test_a_copy_that_is_broken_off_is_not_served_and_goes_on_where_it_was(
    kind: str, how: str, tmp_path: Path, postgres: PostgresServer
) -> None:
    rows = 25_000 if how == "SIGKILL" else 150_000
    source = filled(f"leveldb://{tmp_path}/a", rows)
    target = postgres.fresh_database() if kind == "postgresql" else f"{kind}://{tmp_path}/b"
    with process("copy", source, target) as copying:
        # A log of LevelDB that was there may be gone. One that is to be killed may have ended before, and is whole.
        until(lambda: copying.poll() is not None or _begun(tmp_path, target), despite=(FileNotFoundError,))
        assert how == "SIGKILL" or copying.poll() is None, copying.communicate()
        postgres.kill() if how == "it goes away" else copying.send_signal(signal.SIGINT if how == "Ctrl-C" else signal.SIGKILL)
        err = copying.communicate(timeout=PATIENCE)[1].decode()
    if how == "Ctrl-C":
        assert (copying.returncode, err) == (
            130, "interrupted: the copy is not finished; the same command again goes on from there\n"
        )  # fmt: skip
    elif how == "it goes away":
        assert copying.returncode == 1
        assert err.startswith(f"error: {shown(target)} ")
        assert err.endswith("; the same command again goes on from there\n")
        postgres.start()
    with closing(store_opener(target)()) as opened:
        there, mark = sum(1 for table in TABLES for _ in opened.scan(table, b"", b"\xff" * 64)), copy_row_of(opened)
    assert mark is not None
    assert how == "SIGKILL" or not mark.finished
    if not mark.finished:
        serving = run("serve", "--store", target, "--port", "0", "--json")
        assert serving.exit_code == 1
        assert f"it is half a copy, of {source}; the same `oncelog copy` again" in json.loads(serving.stderr)["detail"]
        compared = run("verify", "--store", source, "--same-as", target, "--json")
        assert compared.exit_code == 10
        assert f"is half a copy, of {source}" in json.loads(compared.stdout)["problems"][0]
        copied = value(run("copy", source, target, "--json"))  # who was interrupted has left the database
        assert (copied["resumed"], copied["rows"], copied["written"]) == (True, rows + 1, rows + 1 - there)
    assert rows_of(source) == rows_of(target)


def _begun(path: Path, target: str) -> bool:
    """Whether something of it lies in the target."""
    if target.startswith("postgresql"):
        with closing(store_opener(target)()) as opened, closing(opened.scan(Table.JOURNAL, b"", b"\xff" * 64)) as rows:
            return next(rows, None) is not None
    return sum(each.stat().st_size for each in path.glob("b/*.log")) > 100_000


# --- refused


def test_a_store_that_is_served_is_neither_copied_nor_copied_to(small: str, tmp_path: Path, database: str) -> None:
    with running_service(small):
        result = run("copy", small, database)
        assert (result.exit_code, result.stderr) == (1, f"error: the store {tmp_path}/small is in use by another process\n")
    with running_service(database, lease_seconds=60) as service:  # who is not heard of for that long serves nothing
        url = service.service.url
        for result, which in ((run("copy", small, database), "TO"), (run("copy", database, f"sqlite://{tmp_path}/c"), "FROM")):
            assert result.exit_code == 1
            assert result.stderr.startswith(f"error: {which}: {url} serves it; stop every service over it first")
        for result in (run("verify", "--store", database), run("verify", "--store", small, "--same-as", database)):
            assert result.exit_code == 1
            assert f"{url} serves it" in result.stderr
        assert [each["instance"] for each in value(run("cluster", "--json", url=service.url))["leases"]] != []
        assert len(value(run("cluster", "--json", url=service.url))["instances"]) == 1


def test_what_cannot_be_copied_is_said_and_nothing_is_made(small: str, tmp_path: Path) -> None:
    missing, memory, empty = f"leveldb://{tmp_path}/missing", "memory://", f"sqlite://{tmp_path}/empty"
    for arguments in ((missing, empty), (f"sqlite://{tmp_path}/missing", empty), (memory, empty), (small, memory), (small, "x")):
        assert run("copy", *arguments).exit_code == 2
    assert {path.name for path in tmp_path.iterdir()} == {"small"}
    assert run("copy", small, small).exit_code == 1
    copied = run("copy", small, empty)
    assert (copied.exit_code, copied.stderr.split(" --same-as ")[0]) == (0, f"oncelog verify --store {small}")
    result = run("copy", small, empty, "--json")
    assert result.exit_code == 1
    problem = json.loads(result.stderr)
    assert problem["code"] == "cannot_copy"
    assert "finished copy of this store" in problem["detail"]
    assert run("copy", empty, f"leveldb://{tmp_path}/again").exit_code == 0
    assert rows_of(f"leveldb://{tmp_path}/again") == rows_of(small)


# --- compared


def test_each_planted_difference_is_found(small: str, tmp_path: Path) -> None:
    database = f"sqlite://{tmp_path}/other"
    assert run("copy", small, database).exit_code == 0
    assert value(run("verify", "--store", small, "--same-as", database, "--json"))["ok"]
    rows = rows_of(small)
    messages = sorted(key for table, key in rows if table is Table.MESSAGE)
    (producer,) = (key for table, key in rows if table is Table.PRODUCER)
    flipped = bytearray(rows[Table.MESSAGE, messages[1]])
    flipped[20] ^= 1
    put(database, (Table.MESSAGE, messages[0], None), (Table.MESSAGE, messages[1], bytes(flipped)))
    put(database, (Table.PRODUCER, producer + b"2", rows[Table.PRODUCER, producer]))
    result = run("verify", "--store", small, "--same-as", database, "--json")
    assert result.exit_code == 10
    found = json.loads(result.stdout)
    assert (found["ok"], found["different"], found["damaged"]) == (False, 3, 1)
    assert found["tables"]["MESSAGE"] == {"rows": 3, "different": 2, "damaged": 1}
    problems = "\n".join(found["problems"])
    assert f"PRODUCER default/t generation 1 p2: only in {tmp_path}/other" in problems
    assert f"{messages[1][-10:].hex()}: damaged in {tmp_path}/other" in problems
    result = run("verify", "--store", database, "--same-as", small)
    assert (result.exit_code, result.stderr.count("\n")) == (10, 4)
    assert "\nMESSAGE\t2\t2\t1\tno\n" in result.stdout
    for arguments in (("--same-as", small), ("t", "--store", small, "--same-as", small)):
        assert run("verify", *arguments).exit_code == 2, "a comparison goes with a store, and compares all of it"
    assert run("verify", "--store", small, "--same-as", "sqlite:///nowhere/at-all").exit_code == 2
