"""A SPARK_HOME whose Python workers start quickly: without PySpark's archive of itself.

Spark puts ``$SPARK_HOME/python/lib/pyspark.zip`` before everything else on the path of its Python processes, and Python keeps no
bytecode of what it imports from an archive: each kind of worker, six for a query, compiled PySpark anew. That took five times as
long as importing the package that pip has installed (1.66 s of processor instead of 0.33; from the start of a first stream to its
end 55 s instead of 34, on a slow machine). On one machine, where both are the same, the archive is of no use.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from oncelog.spark.java import cache_of, made_once

_PARTS = ("bin", "sbin", "jars", "conf", "data", "licenses")
"""All of it but Python."""


def spark_home(environment: Mapping[str, str]) -> Path | None:
    """A directory to set SPARK_HOME to; None where Spark's own is to be used.

    That is where the caller has set one, where the workers run under another Python, where PySpark does not lie among what pip
    has installed for this one, and where nothing can be written.
    """
    if "SPARK_HOME" in environment or environment.get("PYSPARK_PYTHON", sys.executable) != sys.executable:
        return None
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    package = Path(found.origin).parent
    if package.parent not in {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}:
        return None
    try:
        return linked(package, cache_of(environment))
    except (OSError, RuntimeError):  # the latter for a user without a home
        return None


def linked(package: Path, cache: Path) -> Path:
    """A directory of ``cache`` with links to ``package``'s parts. Raises OSError."""

    def link(home: Path) -> None:
        for part in _PARTS:
            if (package / part).is_dir():
                (home / part).symlink_to(package / part)

    return made_once(cache, "spark", str(package), link)
