"""A run whose models have diverged, or say the same of every sample, gets a page; a map that cannot
be drawn is a sentence.
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
from written import Written, compared

from comity.errors import ComityError
from comity.reporting import report
from comity.reporting.plane import LEAST_DISTINCT, map_to_plane

ROWS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
NO_MAP = {
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
A_MAP = {
    "usual": ROWS,
    "huge": ROWS * np.float32(1e30),
    "largest": np.sign(ROWS) * np.float32(3e38),
    "tiny": ROWS * np.float32(1e-40),
    "a single column": ROWS[:, :1],
    "of rank one": ROWS[:, :1] * np.ones((1, 6), np.float32),
    "mostly equal": np.vstack([ROWS[:10], np.zeros((30, 6), np.float32)]),
    "of all sizes": ROWS * np.logspace(-37, 37, 6, dtype=np.float32),
}


@pytest.mark.parametrize("name", NO_MAP)
def test_what_has_no_map_is_refused(name: str) -> None:
    with pytest.raises(ComityError, match="diverged"):
        map_to_plane(NO_MAP[name])


@pytest.mark.parametrize("name", A_MAP)
def test_what_has_a_map_gets_one(name: str) -> None:
    flat = map_to_plane(A_MAP[name])
    assert flat.shape == (40, 2)
    assert np.isfinite(flat).all()
    assert flat.std(0).max() > 0


def test_equal_samples_lie_close_to_each_other() -> None:
    """t-SNE keeps neighbours: two far clusters stay apart."""
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
def test_nothing_crashes_it(rows: int, columns: int, data: st.DataObject) -> None:
    some = data.draw(st.lists(values, min_size=rows * columns, max_size=rows * columns))
    features: NDArray[np.float32] = np.array(some, np.float32).reshape(rows, columns)
    try:
        flat = map_to_plane(features)
    except ComityError:
        return
    assert np.isfinite(flat).all()


def test_the_page_of_a_diverged_run(tmp_path: Path) -> None:
    """The whole command, in a process of its own: a crash of the interpreter has no other witness."""
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
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    notes = Written(folder / "report.html").notes
    assert any(
        "its representations cannot be shown" in note and "diverged" in note for note in notes
    ), notes


def test_the_page_of_a_model_without_spread(tmp_path: Path) -> None:
    """Features that are all zero: the other sections are as ever."""
    compared(tmp_path, ["fedavg"], lr=1e4)
    page = Written(report(tmp_path))
    assert not page.broken
    assert any("cannot be shown" in note for note in page.notes)
