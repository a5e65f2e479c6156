"""The data source ``oncelog`` as Spark sees it: which class reads and which one writes. Nothing is asked of the service here."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)

from oncelog.spark.options import shaded
from oncelog.spark.reading.columns import read_schema
from oncelog.spark.reading.read_options import KNOWN, ReadOptions
from oncelog.spark.reading.source import BatchReader, PushdownReader, StreamReader
from oncelog.spark.writing.sink import BatchWriter, StreamWriter
from oncelog.spark.writing.write_options import NAMES, WriteOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = "oncelog"


class OncelogDataSource(DataSource):
    """``spark.read|readStream|write|writeStream.format("oncelog")``. Options, columns and promises: docs/spark.md."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Spark's own code holds the same mapping: where a traceback shows variables, it shows no secret either."""
        for name in list(options):
            options[name] = shaded(name, options[name], (*KNOWN, *NAMES))
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """What ``format(…)`` is given."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of the source; headers only where asked for."""
        return read_schema(ReadOptions.parse(self.options).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a batch."""
        options = ReadOptions.parse(self.options)
        # Spark refuses a reader that could push filters down unless a setting of the session allows it: hence two classes.
        return PushdownReader(options, schema) if options.pushdown else BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Of micro-batches."""
        options = ReadOptions.parse(self.options)
        options.check_stream()
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Of a batch: one atomic commit."""
        return BatchWriter(WriteOptions.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802  # Spark's name
        """Of micro-batches: one atomic commit each."""
        return StreamWriter(WriteOptions.parse(self.options), schema, overwrite)
