"""Rows of a comparison's table, for tests of verdicts."""

from __future__ import annotations

from comity.studies.estimate import Estimate
from comity.studies.method_summary import MethodSummary


def row(
    name: str,
    gain: Estimate | None,
    total_bytes: float = 1e6,
    judged_gain: Estimate | None = None,
    **gains: Estimate,
) -> MethodSummary:
    """A method with an accuracy of 80% at four parties."""
    figures = {"figure": [0.8], "worst_figure": [0.7], "accuracy": [0.8], "worst": [0.7]}
    return MethodSummary(
        name,
        "accuracy",
        **figures,  # type: ignore[arg-type]
        gain=gain,
        gain_of_judged=judged_gain or gain,
        gains=gains,
        parties=4,
        bytes={"total": total_bytes, "peer": total_bytes / 2},
        seconds=1.0,
        joined=None,
        joined_gain=None,
        caveats=[],
    )
