"""Rounds and bytes to a target accuracy (ADCOL, Tables 2, 6 and 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from comity.errors import ComityError
from comity.measure.conventions import Line
from comity.wire.ledger import Charge


@dataclass(frozen=True)
class TargetReached:
    """The round and the bytes at which a target was reached."""

    round: int
    bytes: int
    """All bytes until then, those before round 1 included, those of evaluation excluded."""


def rounds_to_target(line: Line, target: float) -> int | None:
    """Return the first round whose accuracy is at least `target`; None if there is none."""
    return next((t for t in sorted(line) if line[t] >= target), None)


def reach_target(
    line: Line,
    ledger: Iterable[Charge],
    target: float,
) -> TargetReached | None:
    """Return the round and bytes at which `target` is reached; None if it never is."""
    t = rounds_to_target(line, target)
    if t is None:
        return None
    bytes_sent = sum(row.bytes for row in ledger if row.round <= t and row.kind != "eval")
    return TargetReached(t, bytes_sent)


def common_target(lines: Mapping[str, Line], last: int = 1) -> float:
    """Return ADCOL's target: the lowest final accuracy among the compared methods.

    The final accuracy is the mean of the `last` evaluated rounds. A method that does not learn
    should be left out, as ADCOL leaves out Per-FedAvg and FedRep.
    """
    if not lines or not all(lines.values()):
        raise ComityError(
            "A common target needs at least one method, and an evaluation of each method."
        )
    return min(fmean([line[t] for t in sorted(line)][-last:]) for line in lines.values())
