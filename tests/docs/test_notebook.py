"""The example notebook runs, and its cells show the same kinds of outputs as the saved ones.

`COMITY_REGENERATE=1 pytest tests/docs/test_notebook.py` saves it with its new outputs.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FILE = Path(__file__).parents[2] / "examples" / "first-steps.ipynb"
MOST_SECONDS = 40
LINE = 'class="mark-line role-mark'


def cell_outputs(notebook: Any) -> list[str]:
    """The outputs of each code cell, as one text."""
    return [
        "".join(
            str(out.get("text", "")) + "".join(map(str, out.get("data", {}).values()))
            for out in cell.outputs
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.fixture(scope="module")
def notebook() -> Any:
    return nbformat.read(FILE, as_version=4)


def test_saved_outputs_have_no_paths_or_errors(notebook: Any) -> None:
    nbformat.validate(notebook)
    pages = cell_outputs(notebook)
    assert all(pages), "a cell has no output"
    text = FILE.read_text(encoding="utf-8")
    assert not re.search(r"/(home|root|tmp|work|Users|usr|var)\b", text)
    assert "Traceback" not in text
    assert len(text) < 200_000


@pytest.mark.long
def test_executed_notebook_has_the_same_kinds_of_outputs(notebook: Any, tmp_path: Path) -> None:
    fresh = nbformat.from_dict(notebook)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    begin = time.monotonic()
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(
        fresh, timeout=120, kernel_name="python3", record_timing=False, resources=where
    ).execute()
    took = time.monotonic() - begin
    if os.environ.get("COMITY_REGENERATE"):
        nbformat.write(fresh, FILE)
    before, now = cell_outputs(notebook), cell_outputs(fresh)
    assert took < MOST_SECONDS
    for kind in ("<table", "<svg", LINE, "<progress"):
        assert [kind in output for output in now] == [kind in output for output in before], kind
    assert sum("<svg" in output for output in now) == 4
    assert sum("<table" in output for output in now) >= 8
    (comparison,) = (output for output in now if "fedper" in output and LINE in output)
    assert comparison.count(LINE) == 4
    assert "Does collaborating help?" in comparison
    assert (tmp_path / "first-run" / "summary.json").exists()
