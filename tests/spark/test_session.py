"""The session that runs wherever Python does, and what importing the package loads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from oncelog.spark import register, session
from oncelog.spark.home import spark_home
from oncelog.spark.java import java_home
from oncelog.spark.session import is_here, prepare
from tests.patience import PATIENCE
from tests.world.service import RunningService

pytestmark = pytest.mark.real


def ended(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_importing_it_loads_neither_pyspark_nor_pyarrow() -> None:
    code = "import sys, oncelog.spark; assert not {'pyspark', 'pyarrow'} & {*sys.modules}"
    assert ended(code).stderr == ""


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_what_is_missing_is_named_with_what_installs_it(missing: str) -> None:
    run = ended(f"import sys; sys.modules[{missing!r}] = None; import oncelog; import oncelog.spark")
    assert f"ImportError: oncelog.spark needs {missing}: pip install 'oncelog[spark]'" in run.stderr


def test_the_environment_says_which_java_and_which_python_and_what_the_caller_has_chosen_stays() -> None:
    java = {"JAVA_HOME": str(java_home())}
    here = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    local = {**java, **here, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(spark_home({}))}
    chosen = {**java, "PYSPARK_PYTHON": "a", "PYSPARK_DRIVER_PYTHON": "b", "SPARK_LOCAL_IP": "10.0.0.1", "SPARK_HOME": "c"}
    elsewhere = {**java, **here}  # only a master on this machine is bound to loopback
    for given, master, wanted in ((java, "local[2]", local), (chosen, "local", chosen), (java, "spark://there:7077", elsewhere)):
        environment = dict(given)
        prepare(environment, master)
        assert environment == wanted
    masters = {"local", "local[*]", "local-cluster[2,1,1024]"}
    assert {master for master in (*masters, "yarn", "spark://localhost:7077") if is_here(master)} == masters


def test_a_session_is_on_loopback_quiet_and_knows_the_format(spark: SparkSession, service: RunningService) -> None:
    assert spark.conf.get("spark.driver.host") == spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.conf.get("spark.log.level") == "ERROR"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert session("another", "local[2]").sparkContext is spark.sparkContext, "there is one"
    for again in (lambda: None, lambda: register(spark, ship_code=False), lambda: register(spark)):
        again()  # is harmless
        assert "offset" in spark.read.format("oncelog").option("url", service.url).option("topic", "none").load().columns


def test_an_older_pyspark_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark-4.1.4.dist-info").mkdir()
    (tmp_path / "pyspark-4.1.4.dist-info" / "METADATA").write_text("Name: pyspark\nVersion: 4.1.4\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", "import oncelog.spark"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert "oncelog.spark needs PySpark 4.2 or later, and this is 4.1.4" in run.stderr.splitlines()[-1]
