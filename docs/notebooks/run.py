"""Runs the notebooks anew and keeps what they print: `python docs/notebooks/run.py`. Tests compare."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted(Path(__file__).parent.glob("*.ipynb"))
_SECONDS = 300


def run(path: Path) -> Any:
    """The notebook with what it prints now. Raises nbclient's CellExecutionError."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=_SECONDS, kernel_name="python3", resources=resources, record_timing=False).execute()
    for cell in notebook.cells:
        cell.pop("id", None)
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]  # Java's warnings
    return notebook


def printed(notebook: Any) -> list[str]:
    """What each cell of code prints, or shows at its end."""
    return ["".join(_text(each) for each in cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]


def _text(output: Any) -> str:
    return output.text if output.output_type == "stream" else str(output.get("data", {}).get("text/plain", ""))


if __name__ == "__main__":
    for each in NOTEBOOKS:
        made = run(each)
        made.metadata = {"kernelspec": made.metadata["kernelspec"]}
        made.nbformat_minor = 4
        nbformat.write(made, each)  # type: ignore[no-untyped-call]
        print(each)
