"""What makes ``spark.read.format("oncelog")`` work with no call at all.

PySpark asks each importable package named ``pyspark_…`` for a ``DefaultSource`` when a Python data source is first used, in
every session: so this imports what it must and nothing else. Where oncelog was installed without what Spark needs of it, there is
none: an error here would take from the session every other source that is found like this.
"""

from contextlib import suppress

with suppress(ImportError):
    from oncelog.spark.data_source import OncelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
