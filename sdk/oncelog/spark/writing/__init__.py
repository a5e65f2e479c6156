"""Spark's sink: rows as requests, what a task stages, one commit a micro-batch."""
