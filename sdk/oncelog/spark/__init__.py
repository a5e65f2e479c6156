"""Oncelog on Spark: a source, and a sink that writes each row once.

``from oncelog.spark import register; register(spark)``, then ``spark.readStream.format("oncelog")``. This needs the extra
``spark``; ``import oncelog`` loads nothing of it. Importing this is light: every worker of Spark does it.
"""

from __future__ import annotations

from importlib.util import find_spec

for _needed in ("pyspark", "pyarrow"):
    if find_spec(_needed) is None:
        raise ImportError(f"oncelog.spark needs {_needed}: pip install 'oncelog[spark]'", name=_needed)

from oncelog.spark.java import JavaNotFound, java_home  # noqa: E402
from oncelog.spark.session import register, session  # noqa: E402

__all__ = ["JavaNotFound", "java_home", "register", "session"]
