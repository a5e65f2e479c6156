"""A driver as a process of its own, for any way of deploying Spark: topic → stream → topic, batches in and out."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from oncelog.spark import register, session
from oncelog.spark.session import SMALL, prepare


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
    writer = frame.writeStream.format("oncelog").option("url", plan["url"]).option("topic", "out")
    query = writer.option("checkpointLocation", plan["checkpoint"]).trigger(availableNow=True).start()
    if not query.awaitTermination(400):
        raise TimeoutError("the query did not end")
    return len(query.recentProgress)


def main(plan: dict[str, Any]) -> None:
    spark = started(plan)
    told: dict[str, Any] = {"batches": streamed(spark, plan)}
    streamed(spark, plan)  # goes on from the checkpoint, and has nothing to do
    told["rows"] = spark.read.format("oncelog").option("url", plan["url"]).option("topic", "out").load().count()
    for _ in range(2):
        numbers = spark.range(20).selectExpr("CAST(id AS STRING) AS value")
        options = {"url": plan["url"], "topic": "numbers", "producer": "deployment", "sequenceId": "7"}
        numbers.write.format("oncelog").options(**options).mode("append").save()
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
