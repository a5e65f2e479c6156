"""The pipeline under test as a process of its own: topic → Spark → topic, in micro-batches, to its end or until it is killed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from oncelog import Client
from oncelog.spark import session
from oncelog.spark.jobs.progress import started
from oncelog.spark.session import SMALL
from oncelog.wire.requests import PublishRequest


class NaiveSink(DataSource):
    """The control: what every log's sink does today. Publishes from the tasks, and hopes."""

    @classmethod
    def name(cls) -> str:
        return "naive"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return NaiveWriter(dict(self.options))


class NaiveWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        with Client(self.options["url"]) as client:
            size = int(self.options["chunkmessages"])
            for batch in iterator:
                values = batch.column("value").to_pylist()
                for at in range(0, len(values), size):
                    client.publish(self.options["topic"], PublishRequest(values[at : at + size]))
        return WriterCommitMessage()


def main(plan: dict[str, Any]) -> None:
    spark = session("pipeline", master="local[2]", **SMALL)
    spark.dataSource.register(NaiveSink)
    reader = spark.readStream.format("oncelog").option("url", plan["url"]).option("subscribe", plan["source"])
    frame = reader.options(**plan["read"]).load().select("key", "value")
    writer = frame.writeStream.format(plan["sink"]).option("url", plan["url"]).option("topic", plan["target"])
    writer = writer.options(**plan["write"]).option("checkpointLocation", plan["checkpoint"])
    started(writer.trigger(availableNow=True).start).awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
