"""`oncelog read`: from anywhere, once or for ever, for people and for programs."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from oncelog import Client, Producer
from tests.behaviours.cli.support import interrupted, process, run
from tests.patience import PATIENCE
from tests.world.service import RunningService


@pytest.fixture
def topic(running: RunningService) -> str:
    """A topic with ten messages of one producer."""
    with Client(running.url) as client:
        client.create_topic("t")
        with Producer[bytes]("t", name="p", client=client) as producer:
            producer.send_batch([b"%d" % number for number in range(9)])
            producer.send(b"\xff\xfe", key=b"\xfe", properties={"a": "b"})
    return running.url


def _read(url: str, *arguments: str) -> list[bytes]:
    result = run("read", "t", *arguments, url=url)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes.split(b"\n")[:-1]


def _objects(url: str, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _read(url, "--json", *arguments)]


def test_the_json_of_a_message_says_everything(topic: str) -> None:
    first, *_, last = _objects(topic)
    assert first["payload"] == "0"
    assert (first["offset"], first["producer"], first["sequence_id"], first["key"], first["properties"]) == (0, "p", 0, None, {})
    assert len(first["message_id"]) == 40
    assert datetime.fromisoformat(first["publish_time"]).timestamp() * 1000 == pytest.approx(first["publish_timestamp"])
    assert (last["payload_base64"], last["key_base64"], last["properties"]) == ("//4=", "/g==", {"a": "b"})
    assert "payload" not in last


def test_reading_begins_where_it_is_told_to(topic: str) -> None:
    objects, lines = _objects(topic), [*(b"%d" % number for number in range(9)), b"\xff\xfe"]
    third, at = objects[3]["message_id"], datetime.fromisoformat(objects[-1]["publish_time"])
    for arguments, expected in (
        ((), lines),
        (("--from", "earliest", "--limit", "2"), lines[:2]),
        (("--follow", "--limit", "2"), lines[:2]),
        (("--from", "latest"), []),
        (("--from", "7"), lines[7:]),
        (("--from", third), lines[4:]),
        (("--from", third, "--inclusive"), lines[3:]),
        (("--from", (at + timedelta(seconds=1)).isoformat()), []),
        (("--from", (at - timedelta(hours=1)).isoformat()), lines),
    ):
        assert _read(topic, *arguments) == expected, arguments
    assert _read(topic, "--from", at.isoformat())[-1] == lines[-1]
    beyond = run("read", "t", "--from", "11", "--json", url=topic)
    problem = json.loads(beyond.stderr)
    assert (beyond.exit_code, beyond.stdout, problem["code"], problem["upcoming"]) == (1, "", "offset_out_of_range", 10)
    for wrong in ("--from yesterday", "--from -1", "--from 3 --inclusive", "--inclusive", "--limit 0"):
        assert run("read", "t", *wrong.split(), url=topic).exit_code == 2, wrong


def test_following_prints_what_comes_and_ctrl_c_says_where_to_go_on(topic: str, running: RunningService) -> None:
    with process("read", "t", "--from", "8", "--follow", url=topic) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"8\n"
        assert reader.stdout.readline() == b"\xff\xfe\n"
        for payload in ("new", "newer"):
            assert run("publish", "t", payload, url=topic).exit_code == 0
            assert reader.stdout.readline() == payload.encode() + b"\n"
        running.arrived(1)  # it waits again: what it has printed is counted, and would not be printed twice
        assert interrupted(reader) == 130
        _, err = reader.communicate()
    text = err.decode()
    run("publish", "t", "ends the poll that is still held", url=topic)
    assert text.startswith("interrupted: 4 messages were read, the last at offset 11; go on with --from ")
    assert _read(topic, "--from", text.split()[-1]) == [b"ends the poll that is still held"]
    assert _read(topic, "--from", text.split()[-1], "--inclusive")[0] == b"newer"


def test_a_reader_of_the_output_that_has_enough_may_leave(topic: str) -> None:
    """`oncelog read … | head`: no complaint, no traceback."""
    with Producer[bytes]("t", url=topic) as producer:
        for _ in range(200):
            producer.send_async(b"x" * 10_000)
    for command, first in ((("read", "t"), b"0\n"), (("producer", "list", "t"), b"")):
        with process(*command, url=topic) as reader:
            assert reader.stdout is not None
            assert reader.stderr is not None
            assert not first or reader.stdout.readline() == first
            reader.stdout.close()
            assert reader.stderr.read() == b""
            assert reader.wait(PATIENCE) == 0
