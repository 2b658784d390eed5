"""Reports of runs whose models diverged or predict the same for every sample; a map that cannot be
drawn is replaced by a sentence.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from report_page import ReportPage, run_comparison

from comity.errors import ComityError
from comity.reporting import report
from comity.reporting.plane import LEAST_DISTINCT, map_to_plane

ROWS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
WITHOUT_MAP = {
    "constant": np.ones_like(ROWS),
    "zero": np.zeros_like(ROWS),
    "two values": np.repeat(ROWS[:2], 20, 0),
    "one far outside": np.vstack([ROWS[:39], 1e30 * ROWS[:1]]),
    "noise of rounding": np.float32(1e8) + ROWS,
    "infinite": np.where(ROWS[0, 0] == ROWS, np.inf, ROWS),
    "not a number": np.where(ROWS[0, 0] == ROWS, np.nan, ROWS),
    "few samples": ROWS[: LEAST_DISTINCT - 1],
    "no samples": ROWS[:0],
    "no values": ROWS[:, :0],
}
WITH_MAP = {
    "usual": ROWS,
    "huge": ROWS * np.float32(1e30),
    "largest": np.sign(ROWS) * np.float32(3e38),
    "tiny": ROWS * np.float32(1e-40),
    "a single column": ROWS[:, :1],
    "of rank one": ROWS[:, :1] * np.ones((1, 6), np.float32),
    "mostly equal": np.vstack([ROWS[:10], np.zeros((30, 6), np.float32)]),
    "of all sizes": ROWS * np.logspace(-37, 37, 6, dtype=np.float32),
}


@pytest.mark.parametrize("name", WITHOUT_MAP)
def test_degenerate_features_are_refused(name: str) -> None:
    with pytest.raises(ComityError, match="diverged"):
        map_to_plane(WITHOUT_MAP[name])


@pytest.mark.parametrize("name", WITH_MAP)
def test_extreme_features_have_a_finite_map(name: str) -> None:
    flat = map_to_plane(WITH_MAP[name])
    assert flat.shape == (40, 2)
    assert np.isfinite(flat).all()
    assert flat.std(0).max() > 0


def test_distant_clusters_stay_apart() -> None:
    """t-SNE keeps neighbours: two distant clusters stay apart."""
    rows = np.vstack([ROWS[:20], ROWS[20:] + 50])
    flat = map_to_plane(rows)
    middle = flat[:20].mean(0), flat[20:].mean(0)
    within = max(
        np.linalg.norm(flat[:20] - middle[0], axis=1).mean(),
        np.linalg.norm(flat[20:] - middle[1], axis=1).mean(),
    )
    assert np.linalg.norm(middle[0] - middle[1]) > 2 * within


values = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1e-45, 3.4e38, -3.4e38, 1.0])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 14), st.integers(0, 3), st.data())
def test_any_features_are_mapped_or_refused(rows: int, columns: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(values, min_size=rows * columns, max_size=rows * columns))
    features: NDArray[np.float32] = np.array(numbers, np.float32).reshape(rows, columns)
    try:
        flat = map_to_plane(features)
    except ComityError:
        return
    assert np.isfinite(flat).all()


def test_report_of_a_diverged_run(tmp_path: Path) -> None:
    """Run the command in a separate process, so that a crash of the interpreter fails the test."""
    folder = tmp_path / "runs"
    command = [
        sys.executable,
        "-m",
        "comity.cli",
        "compare",
        "fedavg",
        "--lr",
        "100",
        "--rounds",
        "2",
        "--parties",
        "3",
    ]
    command += ["--report", "--out", str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0, process.stderr
    notes = ReportPage(folder / "report.html").notes
    assert any(
        "its representations cannot be shown" in note and "diverged" in note for note in notes
    ), notes


def test_report_of_a_model_with_constant_features(tmp_path: Path) -> None:
    """All features are zero: the other sections are complete."""
    run_comparison(tmp_path, ["fedavg"], lr=1e4)
    page = ReportPage(report(tmp_path))
    assert not page.failed_sections
    assert any("cannot be shown" in note for note in page.notes)
