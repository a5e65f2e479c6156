"""The notebooks run, and print what they are kept with."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from docs.notebooks.run import NOTEBOOKS, printed, run

pytestmark = pytest.mark.real


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda each: each.stem)
def test_a_notebook_prints_what_it_is_kept_with(notebook: Path) -> None:
    kept = printed(nbformat.read(notebook, as_version=4))
    assert sum(map(bool, kept)) > 3
    assert printed(run(notebook)) == kept
