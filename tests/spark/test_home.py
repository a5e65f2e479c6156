"""Python workers that import PySpark from where pip has put it, and when they had better not."""

from __future__ import annotations

import sysconfig
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from oncelog.spark import home as module
from oncelog.spark.home import linked, spark_home


def package_in(folder: Path) -> Path:
    """What a PySpark looks like to who makes the links."""
    package = folder / "pyspark"
    for part in ("bin", "jars", "python"):
        (package / part).mkdir(parents=True)
    (package / "__init__.py").touch()
    return package


def test_the_workers_import_pyspark_from_where_pip_has_put_it(spark: SparkSession) -> None:
    def where(_: int) -> str:
        import pyspark

        return pyspark.__file__

    found = spark.sparkContext.parallelize([0]).map(where).collect()
    assert found == [str(Path(sysconfig.get_path("purelib"), "pyspark", "__init__.py"))]


def test_all_but_python_is_linked(tmp_path: Path) -> None:
    package = package_in(tmp_path)
    made = linked(package, tmp_path / "cache")
    assert {entry.name: entry.resolve() for entry in made.iterdir()} == {part: package / part for part in ("bin", "jars")}


def test_the_links_are_made_once_whoever_comes_first(tmp_path: Path) -> None:
    package = package_in(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        made = {*pool.map(lambda _: linked(package, tmp_path / "cache"), range(64))}
    assert made == {*(tmp_path / "cache").iterdir()}, "one, and nothing is left of the others"
    assert len(made) == 1


def test_what_is_elsewhere_than_pips_or_runs_another_python_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert spark_home(environment) is not None
    assert spark_home({**environment, "SPARK_HOME": ""}) is None
    assert spark_home({**environment, "PYSPARK_PYTHON": "python3"}) is None
    origin = package_in(tmp_path) / "__init__.py"
    monkeypatch.setattr(module, "find_spec", lambda name: ModuleSpec(name, None, origin=str(origin)))
    assert spark_home(environment) is None


def test_where_nothing_can_be_written_spark_keeps_its_own(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    assert spark_home({"XDG_CACHE_HOME": str(tmp_path / "cache")}) is None
