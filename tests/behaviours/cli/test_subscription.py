"""`oncelog subscription` and `oncelog read --subscription`: cursors, looked at, moved and used from the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog import Client, Consumer, Producer
from tests.behaviours.cli.support import run, value
from tests.support import RunningService


@pytest.fixture
def client(running: RunningService) -> Iterator[Client]:
    """Of a service with a topic of five messages."""
    with Client(running.url) as client:
        client.create_topic("t")
        with Producer[bytes]("t", client=client) as producer:
            producer.send_batch([b"%d" % number for number in range(5)])
        yield client


def _read(url: str, *arguments: str) -> list[bytes]:
    result = run("read", "t", "--subscription", "s", *arguments, url=url)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes.split()


def test_reading_under_a_subscription_goes_on_behind_what_was_printed(client: Client) -> None:
    assert _read(client.url, "--limit", "2") == [b"0", b"1"]
    assert _read(client.url) == [b"2", b"3", b"4"]
    assert _read(client.url, "--from", "earliest") == []
    assert client.subscription("t", "s").cursor == 5


def test_a_new_subscription_begins_where_reading_is_told_to(client: Client) -> None:
    assert _read(client.url, "--from", "3") == [b"3", b"4"]


def test_a_subscription_from_its_list_to_its_end(client: Client) -> None:
    _read(client.url, "--limit", "2")
    listed = value(run("subscription", "list", "t", "--json", url=client.url))
    assert [(each["name"], each["epoch"], each["cursor"], each["lag"], each["lost"]) for each in listed] == [("s", 1, 2, 3, 0)]
    assert "s\t1\t2\t3\t0" in run("subscription", "list", "t", url=client.url).stdout
    assert value(run("subscription", "show", "t", "s", "--json", url=client.url)) == listed[0]
    moved = value(run("subscription", "seek", "t", "s", "--to", "1", "--yes", "--json", url=client.url))
    assert (moved["cursor"], moved["epoch"]) == (1, 2)
    assert _read(client.url, "--limit", "1") == [b"1"]
    deleted = value(run("subscription", "delete", "t", "s", "--yes", "--json", url=client.url))
    assert deleted == {"namespace": "default", "topic": "t", "deleted": "s"}
    assert value(run("subscription", "list", "t", "--json", url=client.url)) == []
    for command in (("show",), ("seek", "--to", "0", "--yes"), ("delete", "--yes")):
        failed = run("subscription", command[0], "t", "s", *command[1:], url=client.url)
        assert failed.exit_code == 1
        assert "subscription_not_found" in failed.output


def test_a_subscription_is_moved_and_deleted_only_after_a_yes(client: Client) -> None:
    with Consumer("t", "s", client=client) as consumer:
        for command in (("seek", "--to", "latest"), ("delete",)):
            assert run("subscription", command[0], "t", "s", *command[1:], url=client.url, stdin="n\n").exit_code == 1
        assert (consumer.status().cursor, consumer.status().epoch) == (0, 1)


def test_a_place_that_is_none_is_a_usage_error(client: Client) -> None:
    for place in (("--to", "somewhere"), ("--to", "1", "--inclusive"), ()):
        failed = run("subscription", "seek", "t", "s", *place, "--yes", url=client.url)
        assert failed.exit_code == 2
        assert ("--inclusive" if "--inclusive" in place else "--to") in failed.output
