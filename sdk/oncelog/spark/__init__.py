"""Oncelog on Spark: a source, and a sink that writes each row once.

``from oncelog.spark import register; register(spark)``, then ``spark.readStream.format("oncelog")``. This needs the extra
``spark``; ``import oncelog`` loads nothing of it. Importing this is light: every worker of Spark does it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

for _needed in ("pyspark", "pyarrow"):
    if find_spec(_needed) is None:
        raise ImportError(f"oncelog.spark needs {_needed}: pip install 'oncelog[spark]'", name=_needed)

with suppress(PackageNotFoundError):  # workers may have it from Spark's own archive
    if tuple(map(int, re.findall(r"\d+", version("pyspark"))[:2])) < (4, 2):
        raise ImportError(
            f"oncelog.spark needs PySpark 4.2 or later, and this is {version('pyspark')}: an older one does not tell a source "
            "where its next micro-batch begins, nor how large it may be (docs/spark.md, Versions)",
            name="pyspark",
        )

from oncelog.spark.java import JavaNotFound, java_home  # noqa: E402
from oncelog.spark.session import register, session  # noqa: E402

__all__ = ["JavaNotFound", "java_home", "register", "session"]
