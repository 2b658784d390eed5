"""The figures of summary.json, from rows of metrics.csv by hand."""

from __future__ import annotations

from comity.core.server import Note
from comity.metrics.metrics import ACCURACY
from comity.runs.summary import accuracy


def test_the_best_round_is_chosen_on_validation_samples() -> None:
    """Round 1 is the best one on validation samples, and round 2 on test samples."""
    figures = {"validation": (0.5, 0.9, 0.6), "test": (0.4, 0.7, 0.8)}
    rows = [
        Note(t, party, split, ACCURACY.name, value)
        for split, values in figures.items()
        for t, value in enumerate(values)
        for party in ("north", "east")
    ]
    sizes = {"north": 10, "east": 20}
    block = accuracy(rows, 2, sizes, sizes)
    assert (block["best_round"]["round"], block["best_round"]["mean"]) == (1, 0.7)
    assert (block["best_on_test"]["round"], block["best_on_test"]["mean"]) == (2, 0.8)
