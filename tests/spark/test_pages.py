"""The code of the pages that use Spark runs, in the session that all tests here share."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.docs.pages import ROOT
from tests.docs.test_code import RUN_ELSEWHERE, run_page

pytestmark = pytest.mark.real

HERE = Path(__file__).relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page, where in RUN_ELSEWHERE.items() if where == HERE])
def test_the_code_of_a_page_runs(page: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(ROOT / page, tmp_path, monkeypatch, relative=("checkpoint", "archive"))
