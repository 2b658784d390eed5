"""Every row of every table runs at its smallest scale, on embedded data. Settings that several
tables share are run once.

The runs are marked `long`: `make test` has one table of each paper (tests/cli/test_reproduce.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comity import papers
from comity.papers.reproduce import federation_for, implemented
from comity.runs.build import prepare
from comity.runs.config import experiment
from comity.runs.run import start
from comity.runs.server_run import Quiet


def rows() -> Iterator[tuple[str, dict[str, Any]]]:
    """The settings of all rows by name; equal settings only once."""
    settings_of_rows = set()
    for name in papers.names():
        table = papers.table(name)
        columns, selected = table.select("smoke")
        for run in dict.fromkeys(column.runs for column in columns):
            for row in selected:
                settings = table.run_settings(run, row, "smoke") | {"eval_every": 1}
                if (
                    not row.best_of
                    and (text := json.dumps(settings, sort_keys=True)) not in settings_of_rows
                ):
                    settings_of_rows.add(text)
                    yield f"{name}-{run}-{row.name}", settings


ROWS = dict(rows())


def test_method_of_every_row_is_implemented() -> None:
    assert not [
        text
        for text in {settings["algorithm"] for settings in ROWS.values()}
        if not implemented(text)
    ]


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_row_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMITY_DATA", raising=False)
    settings_to_run = experiment({**ROWS[name], "engine": "loop"})
    summary = start(
        prepare(settings_to_run, federation_for(settings_to_run)), tmp_path / "run", Quiet()
    ).summary
    assert summary["rounds"] == settings_to_run.rounds
    assert math.isfinite(summary["accuracy"]["mean"])
