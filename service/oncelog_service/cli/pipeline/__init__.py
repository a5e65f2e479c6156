"""`oncelog pipeline …`: the jobs of oncelog.spark.jobs, on a Spark that this process starts."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any

import typer

from oncelog_service.cli.frame.codes import ERROR
from oncelog_service.cli.frame.lazy import Group, noun
from oncelog_service.cli.output import Output


class _Pipelines(Group):
    """Its commands are made of the jobs when they are first asked for: that loads PySpark, which no other command needs."""

    _made: MutableMapping[str, Any] | None = None

    @property
    def commands(self) -> MutableMapping[str, Any]:
        """By name. Without the extra, a sentence, and the command ends with 1."""
        if self._made is None:
            try:
                from oncelog_service.cli.pipeline.commands import made
            except ImportError as error:
                raise refused(Output(bool({"--json", "-j"} & set(sys.argv))), "spark_missing", f"{error}") from None
            self._made = made()
        return self._made

    @commands.setter
    def commands(self, _: Any) -> None:
        """Click sets those of a group that it makes, which are none."""


group = noun(_Pipelines)


def refused(out: Output, code: str, detail: str) -> typer.Exit:
    """Say why a pipeline has ended; what is raised to end the command."""
    out.failure({"title": "The pipeline has ended", "code": code, "detail": detail}, f"error: {detail}")
    return typer.Exit(ERROR)
