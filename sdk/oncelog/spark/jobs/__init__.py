"""Pipelines, ready to run: each is a function here and a command, ``oncelog pipeline …``."""

from oncelog.spark.jobs.archive import archive
from oncelog.spark.jobs.audit import audit, audit_archive
from oncelog.spark.jobs.backfill import backfill

__all__ = ["archive", "audit", "audit_archive", "backfill"]
