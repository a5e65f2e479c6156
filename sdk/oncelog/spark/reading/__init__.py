"""Spark's source: micro-batches, what a task reads, filters as ranges, columns."""
