"""Topics, producers, subscriptions, namespaces, transactions, atomic commits: every command does what it says.

Each test is a script of commands, each with what is expected of it: an exit code, members of its JSON, or text that it prints."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from oncelog import Client, Consumer, Producer, Reader
from oncelog.api.api import Api
from oncelog.wire.models import Topic
from oncelog.wire.requests import CommitRequest, Part, PublishRequest
from tests.behaviours.cli.support import interrupted, process, run, value
from tests.world.service import RunningService, running_service


@pytest.fixture
def client(running: RunningService) -> Iterator[Client]:
    with Client(running.url) as client:
        yield client


def matches(found: Any, expected: Any) -> bool:
    """Whether it is that; of objects those members that are named."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(matches(found.get(name), each) for name, each in expected.items())
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(matches, found, expected))
    return bool(found == expected)


def check(client: Client, *steps: tuple[Any, ...]) -> None:
    """Each step: a command, what is expected, and what is typed. A tuple of expectations: (exit code, members of the problem)."""
    for command, expected, *typed in steps:
        words = shlex.split(command)
        at = words.index("--") if "--" in words else len(words)
        as_json = [] if isinstance(expected, int | str) else ["--json"]
        result = run(*words[:at], *as_json, *words[at:], url=client.url, stdin=typed[0] if typed else "")
        if isinstance(expected, int):
            assert result.exit_code == expected, f"{command}\n{result.output}"
        elif isinstance(expected, str):
            assert expected in result.stdout, f"{command}\n{result.output}"
        elif isinstance(expected, tuple):
            assert result.exit_code == expected[0], f"{command}\n{result.output}"
            assert matches(json.loads(result.stderr), expected[1]), f"{command}\n{result.output}"
        else:
            assert matches(value(result), expected), f"{command}\n{result.output}"


def declined(command: str) -> Iterator[tuple[Any, ...]]:
    """Asked, and not answered with yes, of which there are many ways (test_frame.py): nothing is done."""
    return iter([(command, 1, "n\n")])


def test_trim_and_erase(client: Client) -> None:
    check(
        client,
        ("topic create t", 0),
        ("publish t a b c d", 0),
        *declined("topic trim t --before 2"),
        *declined("topic erase t --offset 3"),
        ("topic trim t --before 1 --yes", {"namespace": "default", "topic": "t", "earliest_offset": 1}),
        ("topic trim t --before 1 --yes", "topic default/t begins at offset 1"),
        ("topic trim t --before 2000-01-01T00:00:00Z --yes", {"earliest_offset": 1}),
        ("topic trim t --before 9 --yes", (1, {"code": "offset_out_of_range", "stable": 4})),
        ("topic trim t --before yesterday --yes", 2),
        ("topic show t", {"earliest_offset": 1, "upcoming_offset": 4}),
        ("topic erase t --offset 2 --yes", {"namespace": "default", "topic": "t", "offset": 2}),
        ("topic erase t --yes", 2),
        ("topic erase t --offset 2 --message-id 00 --yes", 2),
        ("topic erase t --message-id 00 --yes", 2),
        ("topic erase t --offset 4 --yes", (1, {"code": "offset_out_of_range"})),
    )
    (message_id,) = [each["message_id"] for each in lines_of(run("read", "t", "--json", url=client.url)) if each["offset"] == 3]
    check(client, (f"topic erase t --message-id {message_id} --yes", {"offset": 3, "message_id": message_id}))
    found = lines_of(run("read", "t", "--json", url=client.url))
    assert [each["offset"] for each in found] == [1, 2, 3]
    check(client, ("topic trim t --before 2100-01-01T00:00:00Z --yes", {"earliest_offset": 4}))
    assert lines_of(run("read", "t", "--from", "4", "--json", url=client.url)) == []


@pytest.mark.parametrize(
    "command",
    [
        *("topic trim t --before 1", "topic erase t --offset 0", "producer forget t p"),
        *("subscription seek t s --to latest", "subscription delete t s"),
    ],
)
def test_a_topic_that_is_made_anew_while_somebody_is_asked_keeps_what_it_has(
    client: Client, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(payload: bytes) -> None:
        client.create_topic("t")
        with Producer("t", name="p", client=client) as producer:
            producer.send(payload)
        Consumer("t", "s", start="earliest", client=client).close()

    def answered(_: str) -> bool:
        client.delete_topic("t")
        made(b"new")
        return True

    made(b"old")
    monkeypatch.setattr("oncelog_service.cli.session._asked", answered)
    check(client, (command, (1, {"code": "stale_message_id"})))
    assert (client.producer("t", "p").last_persisted, client.subscription("t", "s").cursor) == (0, 0)
    with Reader("t", client=client, timeout=0) as reader:
        assert [(each.offset, each.value) for each in reader] == [(0, b"new")]


def test_what_somebody_else_changes_meanwhile_is_kept(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create_topic("shared")
    look, others = Client.topic, iter(({"transactional": "none"}, {"deduplication": "false"}))

    def looked(self: Client, *names: str) -> Topic:
        seen = look(self, *names)
        if (change := next(others, None)) is not None:
            self.update_topic("shared", seen.properties | change)
        return seen

    monkeypatch.setattr(Api, "topic", looked)
    check(client, ("topic update shared --ttl 90", 0))
    kept = {"ttl": "90", "transactional": "none", "deduplication": "false", "generation": "1"}
    assert look(client, "shared").properties == kept
    others = iter([{"ttl": str(ttl)} for ttl in range(100, 200)])
    check(client, ("topic update shared --property deduplication=true", (6, {"code": "properties_changed", "definite": True})))


def test_a_topic_that_was_made_anew_while_one_was_asked_stays(client: Client) -> None:
    client.create_topic("anew")
    client.delete_topic("anew")
    client.create_topic("anew")
    check(
        client,
        ("topic delete anew --generation 1 --yes", (1, {"code": "stale_message_id", "generation": 2})),
        ("topic list", ["anew"]),
        ("topic delete anew --generation 2 --yes", 0),
        ("topic list", []),
    )


def lines_of(result: Any) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_topics(client: Client) -> None:
    deduplicated = {"properties": {"ttl": "90", "deduplication": "false", "generation": "1"}}
    check(
        client,
        ("topic create t --ttl 60 --property deduplication=false", {"namespace": "default", "topic": "t"}),
        ("topic create t", (6, {"code": "topic_exists", "definite": True})),
        ("topic create t --exist-ok", 0),
        ("topic show t", {"properties": {"ttl": "60", "deduplication": "false"}, "upcoming_offset": 0, "deduplication": False}),
        ("topic update t --ttl 90", 0),
        ("topic show t", deduplicated),
        ("topic update t --deduplication inherit", {"properties": {"ttl": "90", "deduplication": None}}),
        ("topic update t --deduplication on --replace", 0),
        ("topic show t", {"properties": {"ttl": "604800", "deduplication": "true"}}),
        ("topic update t", 2),
        ("topic update t --property ttl", 2),
        ("topic create t --namespace other", 0),
        ("publish t a --namespace other", 0),
        ("status", {"status": "ok", "topics": [{"namespace": "default"}, {"namespace": "other", "upcoming_offset": 1}]}),
        ("status", "other\tt"),
        ("namespace list", ["default", "other"]),
        *declined("topic delete t"),
        ("topic list", ["t"]),
        ("topic delete t --yes", {"deleted": "t"}),
        ("topic list", []),
        ("topic list --namespace other", ["t"]),
        ("topic show t", 4),
    )


@pytest.mark.real
def test_ctrl_c_is_no_answer_to_a_question(client: Client) -> None:
    client.create_topic("t")
    with process("topic", "delete", "t", url=client.url) as deletion:
        assert deletion.stderr is not None
        assert deletion.stderr.read(6) == b"Delete"
        assert interrupted(deletion) == 130
    assert client.topics() == ["t"]


def test_namespaces(client: Client) -> None:
    client.create_topic("t")
    for word, policy, holds in (("off", False, False), ("on", True, True), ("inherit", None, True)):
        check(
            client,
            (f"namespace set default --deduplication {word}", 0),
            ("namespace show", {"namespace": "default", "deduplication": policy}),
            ("namespace show default", word),
            ("topic show t", {"deduplication": holds}),
        )
    check(client, ("namespace set default", 2))
    check(
        client,
        ("namespace set default --max-messages-per-second 5 --max-bytes-per-second 700", 0),
        ("namespace set default --deduplication on", 0),
        ("namespace show", {"deduplication": True, "max_messages_per_second": 5, "max_bytes_per_second": 700}),
        ("namespace set default --max-messages-per-second 0", 0),
        ("namespace show", {"deduplication": True, "max_messages_per_second": None, "max_bytes_per_second": 700}),
        ("namespace set default --max-messages-per-second -1", 2),
    )


def test_producers(client: Client) -> None:
    client.create_topic("t")
    name = "n" * 200
    with Producer[bytes]("t", name="p", client=client) as producer, Producer[bytes]("t", name=name, client=client) as other:
        producer.send_batch([b"a", b"b"])
        other.send(b"c")
    check(
        client,
        ("producer list t", [{"name": name}, {"name": "p", "last_persisted": 1}]),
        ("producer list t", f"\n{name}\t"),
        ("producer show t p", {"name": "p", "last_persisted": 1, "last_offset": 1}),
        ("producer why t p 1", {"verdict": "duplicate", "offset": 1}),
        ("producer why t p 1", "\nstored at offset 1, message id "),
        ("producer why t p 2", "new: "),
        ("producer why t p -- -1", 2),
        *declined("producer forget t p"),
        ("producer show t p", {"name": "p"}),
        ("producer forget t p --yes", {"forgotten": "p"}),
        ("producer show t p", 4),
    )


def test_subscriptions(client: Client) -> None:
    client.create_topic("t")
    with Producer[bytes]("t", client=client) as producer:
        producer.send_batch([b"%d" % number for number in range(5)])
    missing = (4, {"code": "subscription_not_found"})
    check(
        client,
        ("read t --subscription new --from 3", "3\n4\n"),
        ("subscription delete t new --yes", 0),
        ("read t --subscription s --limit 2", "0\n1\n"),
        ("subscription list t", [{"name": "s", "epoch": 1, "cursor": 2, "lag": 3, "lost": 0}]),
        ("subscription list t", "s\t1\t2\t3\t0"),
        ("subscription list", [{"namespace": "default", "topic": "t", "name": "s", "lag": 3}]),
        ("subscription list", "default\tt\ts\t1\t2\t3\t0"),
        ("read t --subscription s", "2\n3\n4\n"),
        ("subscription show t s", {"cursor": 5}),
        *((f"subscription seek t s {to} --yes", 2) for to in ("--to somewhere", "--to 1 --inclusive", "")),
        *declined("subscription seek t s --to latest"),
        ("subscription seek t s --to 1 --yes", {"cursor": 1, "epoch": 3}),
        ("read t --subscription s --limit 1", "1\n"),
        *declined("subscription delete t s"),
        ("subscription show t s", {"cursor": 2}),
        ("subscription delete t s --yes", {"namespace": "default", "topic": "t", "deleted": "s"}),
        ("subscription list t", []),
        ("subscription show t s", missing),
        ("subscription seek t s --to 0 --yes", missing),
        ("subscription delete t s --yes", missing),
    )
    assert run("read", "t", "--subscription", "s", "--from", "latest", url=client.url).stdout == ""


def test_transactions(client: Client) -> None:
    first, prepared, checkpointed, *invalid = (client.start_transaction().write_pointer for _ in range(6))
    client.can_commit(prepared, [b"k"], resource="bank")
    for pointer in invalid:
        client.invalidate_transaction(pointer)
    checkpoint = client.checkpoint_transaction(checkpointed).write_pointer
    lines = [line.split("\t") for line in run("tx", "list", url=client.url).stdout.splitlines()]
    assert lines[0] == ["write pointer", "type", "started", "expires", "owner", "resource", "checkpoints", "participants"]
    assert [(line[0], *line[4:6]) for line in lines[1:3]] == [(str(first), "-", "-"), (str(prepared), "-", "bank")]
    assert lines[1][2].endswith("+00:00")
    ended = (6, {"code": "transaction_not_in_progress", "state": "committed"})
    one = {"pruned": 1}
    check(
        client,
        ("tx list", [{"write_pointer": pointer} for pointer in (first, prepared, checkpointed)]),
        ("tx list --state invalid", [{"write_pointer": pointer} for pointer in invalid]),
        ("tx list --state committed", 2),
        (f"tx show {checkpoint}", {"write_pointer": checkpointed, "state": "in_progress", "checkpoints": [checkpoint]}),
        ("tx show 5", (4, {"code": "transaction_not_found"})),
        *((f"tx show {text}", 2) for text in ("0", "x", 2**63)),
        *declined(f"tx abort {first}"),
        *declined(f"tx invalidate {first}"),
        (f"tx show {first}", "state\tin_progress"),
        *[(f"tx abort {first} --yes", {"state": "aborted"})] * 2,
        (f"tx abort {prepared} --yes --unless-prepared", (6, {"code": "transaction_prepared"})),
        *[(f"tx invalidate {prepared} --yes", {"state": "invalid"})] * 2,
    )
    client.commit_transaction(checkpointed)
    check(
        client,
        (f"tx abort {checkpointed} --yes", ended),
        (f"tx invalidate {checkpointed} --yes", ended),
        *declined(f"tx prune {invalid[0]}"),
        ("tx list --state invalid", [{"write_pointer": pointer} for pointer in (prepared, *invalid)]),
        (f"tx prune {invalid[0]} --yes", one),
        ("tx prune --before 2026-01-31T12:00:00Z --yes", {"pruned": 0}),
        ("tx prune --before 2999-01-01 --yes", "3 invalid transactions are forgotten\n"),
        ("tx list --state invalid", []),
        *((f"tx prune {words} --yes", 2) for words in ("", "5 --before 2026-01-31", "--before yesterday", "0")),
    )


def test_what_topics_hold_back_is_listed_and_an_operator_ends_it() -> None:
    with running_service(foreign_write_pointers=True) as service, Client(service.url) as client:
        client.create_topic("t")
        client.open_subscription("t", "s")
        pointer = client.start_transaction().write_pointer - 1  # of nobody here
        client.publish("t", PublishRequest([b"1", b"2"], "writer", sequence_ids=[0, 1], write_pointer=pointer))
        client.publish("t", PublishRequest([b"behind"]))
        assert run("read", "t", url=client.url).stdout == "", "nothing behind what is not decided either"
        check(
            client,
            ("tx list --state held", [{"write_pointer": pointer, "topic": "t", "messages": 2, "producers": ["writer"]}]),
            ("tx list --state held", str(pointer)),
            ("topic show t", f"held by {pointer}\t2 messages of writer from offset 0"),
            ("subscription list t", str(pointer)),
            ("read t --uncommitted", "1\n2\n"),
            *declined(f"topic settle t {pointer} --rolled-back"),
            (f"topic settle t {pointer} --rolled-back --yes", {"committed": False}),
            ("tx list --state held", []),
        )


def test_who_has_any_grant_on_a_topic_is_shown_it_and_told_what_is_not_shown() -> None:
    with running_service(token="root") as service, Client(service.url, token="root") as client:
        client.create_topic("t")
        secret = client.create_token("reader", ["read:default/t"]).secret
        assert secret is not None
        shown = run("topic", "show", "t", url=service.url, env={"ONCELOG_TOKEN": secret})
        assert "upcoming offset\t0\n" in shown.stdout
        assert shown.stderr == "which write pointers hold messages back is not shown: that needs the grant operate\n"
        assert value(run("topic", "show", "t", "--json", url=service.url, env={"ONCELOG_TOKEN": secret}))["held"] is None


def test_atomic_commits(client: Client) -> None:
    for topic in ("left", "right"):
        client.create_topic(topic)
    client.begin_atomic("even", id="t0", timeout=60)
    client.begin_atomic("odd", id="t1")
    client.begin_atomic("even", id="t2", of="t0")
    client.stage("t0", "left", 0, PublishRequest([b"a"]))
    parts = [Part("default", "left", PublishRequest([b"a", b"b"])), Part("default", "right", PublishRequest([b"c"]))]
    numbered = CommitRequest("g", parts, ["b"], producer="p", sequence_id=7, incarnation="i", checksum="1:a")
    client.begin_atomic("g", id="b", of="a")
    client.commit_atomic("a", numbered)
    table = [line.split("\t") for line in run("atomic", "list", url=client.url).stdout.splitlines()]
    assert table[0] == ["id", "group", "began", "expires", "branch of", "topics"]
    assert [(*row[:2], *row[4:]) for row in table[1:]] == [
        ("t0", "even", "-", "default/left"),
        ("t1", "odd", "-", "-"),
        ("t2", "even", "t0", "-"),
    ]
    assert table[1][2].endswith("+00:00")
    outcome = {"state": "committed", "messages": 3, "branches": ["b"], "producer": "p", "sequence_id": 7, "incarnation": "i"}
    aborted = {"state": "aborted", "reason": "asked"}
    check(
        client,
        ("atomic list --group even", [{"id": "t0"}, {"id": "t2"}]),
        ("atomic list --state committed", 2),
        ("atomic show a", outcome),
        ("atomic show a", "topics\tdefault/left offsets 0 to 1, default/right offset 0"),
        ("atomic show b", "branch of\ta"),
        ("atomic show never", (4, {"code": "transaction_not_found"})),
        ("atomic show 'a b'", (1, {"code": "invalid_request"})),
        *declined("atomic abort t1"),
        ("atomic show t1", {"state": "in_progress"}),
        *[("atomic abort t1 --yes", aborted)] * 2,
        ("atomic abort a --yes", (6, {"code": "transaction_not_in_progress", "state": "committed"})),
        *declined("atomic free t1"),
        ("atomic free t1 --yes", {"freed": "t1"}),
        ("atomic show t1", (4, {"code": "transaction_not_found"})),
        ("atomic producer g p", {"sequence_id": 7, "transaction": "a", "checksum": "1:a"}),
        ("atomic producer g p", "sequence id\t7"),
        *declined("atomic forget g p"),
        ("atomic producer g p", {"sequence_id": 7}),
        ("atomic forget g p --yes", {"group": "g", "forgotten": "p"}),
        ("atomic producer g p", (4, {"code": "group_producer_not_found"})),
    )


def test_a_url_comes_from_an_option_or_the_environment_and_the_version_needs_none(client: Client) -> None:
    host = client.url.removeprefix("http://")
    assert run("--url", host, "status").exit_code == run("status", "-u", host).exit_code == 0
    assert run("status", "--url", client.url, env={"ONCELOG_URL": "http://127.0.0.1:1"}).exit_code == 0
    assert run("--version").stdout == "oncelog 0.1.0\n"
