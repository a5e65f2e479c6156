"""Topics, producers, namespaces, status: every command does what it says, in text and in JSON."""

from __future__ import annotations

import json

import pytest

from oncelog import Client, Producer
from tests.behaviours.cli.support import interrupted, process, run, value
from tests.patience import PATIENCE
from tests.support import RunningService, free_port


@pytest.fixture
def url(running: RunningService) -> str:
    return running.url


def test_a_topic_from_its_creation_to_its_end(url: str) -> None:
    assert value(run("topic", "create", "t", "--ttl", "60", "--property", "deduplication=false", "--json", url=url)) == {
        "namespace": "default",
        "topic": "t",
    }
    assert run("topic", "create", "t", url=url).exit_code == 1
    assert run("topic", "create", "t", "--exist-ok", url=url).exit_code == 0
    assert value(run("topic", "list", "--json", url=url)) == ["t"]
    shown = value(run("topic", "show", "t", "--json", url=url))
    assert shown["properties"] == {"ttl": "60", "deduplication": "false", "generation": "1"}
    assert (shown["upcoming_offset"], shown["deduplication"]) == (0, False)
    assert run("topic", "delete", "t", "--yes", url=url).exit_code == 0
    assert value(run("topic", "list", "--json", url=url)) == []
    assert run("topic", "show", "t", url=url).exit_code == 1


def test_an_update_keeps_what_it_does_not_name(url: str) -> None:
    def properties() -> dict[str, str]:
        shown: dict[str, str] = value(run("topic", "show", "t", "--json", url=url))["properties"]
        return shown

    run("topic", "create", "t", "--ttl", "60", "--deduplication", "off", url=url)
    assert run("topic", "update", "t", "--ttl", "90", url=url).exit_code == 0
    assert properties() == {"ttl": "90", "deduplication": "false", "generation": "1"}
    assert run("topic", "update", "t", "--deduplication", "inherit", url=url).exit_code == 0
    assert properties() == {"ttl": "90", "generation": "1"}
    assert run("topic", "update", "t", "--deduplication", "on", "--replace", url=url).exit_code == 0
    assert properties() == {"ttl": "604800", "deduplication": "true", "generation": "1"}
    assert run("topic", "update", "t", url=url).exit_code == 2
    assert run("topic", "update", "t", "--property", "ttl", url=url).exit_code == 2


def test_a_topic_is_deleted_only_after_a_yes(url: str) -> None:
    run("topic", "create", "t", url=url)
    for answer in ("n\n", "\n", ""):
        assert run("topic", "delete", "t", url=url, stdin=answer).exit_code == 1
        assert value(run("topic", "list", "--json", url=url)) == ["t"]
    with process("topic", "delete", "t", url=url) as deletion:
        assert deletion.stderr is not None
        assert deletion.stderr.read(6) == b"Delete"
        assert interrupted(deletion) == 130
    with process("topic", "delete", "t", "--json", url=url) as deletion:
        out, err = deletion.communicate(b"y\n", timeout=PATIENCE)
    assert json.loads(out)["deleted"] == "t"  # the question is not part of the result
    assert b"Delete topic default/t" in err


def test_namespaces_are_apart(url: str) -> None:
    run("topic", "create", "t", "--namespace", "other", url=url)
    assert value(run("topic", "list", "--json", url=url)) == []
    assert value(run("topic", "list", "--namespace", "other", "--json", url=url)) == ["t"]
    assert value(run("namespace", "list", "--json", url=url)) == ["other"]


def test_a_namespace_policy_holds_for_topics_that_say_nothing(url: str) -> None:
    run("topic", "create", "t", url=url)
    for word, policy, holds in (("off", False, False), ("on", True, True), ("inherit", None, True)):
        assert run("namespace", "set", "default", "--deduplication", word, url=url).exit_code == 0
        assert value(run("namespace", "show", "--json", url=url)) == {"namespace": "default", "deduplication": policy}
        assert word in run("namespace", "show", "default", url=url).stdout
        assert value(run("topic", "show", "t", "--json", url=url))["deduplication"] is holds
    assert run("namespace", "set", "default", url=url).exit_code == 2


def test_producers_are_shown_explained_and_forgotten(url: str) -> None:
    run("topic", "create", "t", url=url)
    with Client(url) as client, Producer[bytes]("t", name="p", client=client) as producer:
        producer.send_batch([b"a", b"b"])
    listed = value(run("producer", "list", "t", "--json", url=url))
    assert [(each["name"], each["last_persisted"]) for each in listed] == [("p", 1)]
    assert value(run("producer", "show", "t", "p", "--json", url=url)) == listed[0]
    assert value(run("producer", "why", "t", "p", "1", "--json", url=url))["verdict"] == "duplicate"
    assert run("producer", "why", "t", "p", "1", url=url).stdout.startswith("duplicate: ")
    assert "stored at offset 1, message id " in run("producer", "why", "t", "p", "1", url=url).stdout
    assert run("producer", "why", "t", "p", "2", url=url).stdout.startswith("new: ")
    assert run("producer", "why", "t", "p", "--", "-1", url=url).exit_code == 2
    assert run("producer", "forget", "t", "p", url=url, stdin="n\n").exit_code == 1
    assert run("producer", "forget", "t", "p", "--yes", url=url).exit_code == 0
    assert value(run("producer", "list", "t", "--json", url=url)) == []
    assert run("producer", "show", "t", "p", url=url).exit_code == 1


def test_a_pipe_gets_every_field_whole_between_tabs(url: str) -> None:
    name = "n" * 200
    run("topic", "create", "t", url=url)
    run("publish", "t", "a", "--producer", name, url=url)
    header, row = run("producer", "list", "t", url=url).stdout.splitlines()
    assert header.split("\t")[0] == "name"
    assert row.split("\t")[0] == name


def test_status_lists_every_topic_of_every_namespace(url: str) -> None:
    for namespace in ("default", "other"):
        run("topic", "create", "t", "--namespace", namespace, url=url)
        run("publish", "t", "a", "--namespace", namespace, url=url)
    status = value(run("status", "--json", url=url))
    assert status["status"] == "ok"
    assert [(each["namespace"], each["name"], each["upcoming_offset"]) for each in status["topics"]] == [
        ("default", "t", 1),
        ("other", "t", 1),
    ]
    assert run("status", url=url).exit_code == 0


def test_without_a_service_the_error_says_how_to_start_one() -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    result = run("status", "--url", nobody)
    assert result.exit_code == 1
    assert "`oncelog serve` starts one" in result.stderr
    problem = json.loads(run("topic", "list", "--json", "--url", nobody).stderr)
    assert (problem["code"], problem["definite"]) == ("connection_failed", True)
    assert "status" not in problem


def test_a_url_that_is_none_is_a_usage_error() -> None:
    assert run("status", "--url", "localhost:7070").exit_code == 2


def test_an_option_beats_the_environment(url: str) -> None:
    assert run("status", "--url", url, env={"ONCELOG_URL": "http://127.0.0.1:1"}).exit_code == 0


def test_the_version_is_told() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, "oncelog 0.1.0\n")
