"""A driver as a process of its own, for any way of deploying Spark: topic → stream → topic, batches in and out."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from oncelog.spark import register, session
from oncelog.spark.session import SMALL, prepare


def slow_at_first(marks: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The first attempt at partition 0 stops after 40 of 75 rows, for longer than a copy of it takes. Each attempt leaves a file.

    Keys are large and rows go in small parts, or Spark would keep the first half back until there is more to pass on at once.
    """

    def halved(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        attempt = (context.partitionId(), context.attemptNumber())
        with open(f"{marks}/attempt-{attempt[0]}-{attempt[1]}", "a"):
            rows = 0
        for batch in batches:
            large = batch.set_column(0, "key", pa.array([b"k" * 20_000] * batch.num_rows, pa.binary()))
            for begin in range(0, batch.num_rows, 5):
                yield large.slice(begin, 5)
                rows += 5
                if attempt == (0, 0) and rows == 40:
                    time.sleep(20)

    return halved


def started(plan: dict[str, Any]) -> SparkSession:
    if plan["by"] == "session":
        return session("deployment", plan["master"], **{**SMALL, **plan["conf"]})
    prepare(os.environ, "local")
    builder = SparkSession.builder
    builder = builder.remote(plan["remote"]) if "remote" in plan else builder.master(plan["master"])
    for name, value in {**SMALL, **plan["conf"]}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if plan["by"] == "register":
        register(spark)
    return spark


def streamed(spark: SparkSession, plan: dict[str, Any]) -> int:
    """Until all is copied; the number of micro-batches."""
    options = {"url": plan["url"], "subscribe": "in", "startingOffsets": "earliest"}
    options |= {"maxOffsetsPerTrigger": "150", "minPartitions": "2"}
    frame = spark.readStream.format("oncelog").options(**options).load().select("key", "value")
    if plan.get("marks"):
        frame = frame.mapInArrow(slow_at_first(plan["marks"]), frame.schema)
    writer = frame.writeStream.format("oncelog").option("url", plan.get("to", plan["url"])).option("topic", "out")
    writer = writer.option("chunkMessages", "10")
    query = writer.option("checkpointLocation", plan["checkpoint"]).trigger(availableNow=True).start()
    if not query.awaitTermination(400):
        raise TimeoutError("the query did not end")
    return len(query.recentProgress)


def main(plan: dict[str, Any]) -> None:
    spark = started(plan)
    told: dict[str, Any] = {"batches": streamed(spark, plan)}
    if plan["thorough"]:
        streamed(spark, plan)  # goes on from the checkpoint, and has nothing to do
        read = spark.read.format("oncelog").option("url", plan["url"]).option("topic", "out").load()
        told["rows"] = read.count()
        for _ in range(2):
            numbers = spark.range(20).selectExpr("CAST(id AS STRING) AS value")
            options = {"url": plan["url"], "topic": "numbers", "producer": "deployment", "sequenceId": "7"}
            numbers.write.format("oncelog").options(**options).mode("append").save()
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
