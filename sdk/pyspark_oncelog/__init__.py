"""What makes ``spark.read.format("oncelog")`` work with no call at all.

PySpark asks each importable package named ``pyspark_…`` for a ``DefaultSource`` when a Python data source is first used, in
every session: so this imports what it must and nothing else.
"""

from oncelog.spark.data_source import OncelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
