"""Rounds and bytes to a target accuracy (ADCOL, Tables 2, 6 and 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median

from comity.errors import ComityError
from comity.measure.conventions import Line
from comity.wire.ledger import Charge

BUDGET = 30 * 10**9
"""The byte budget after which ADCOL stops a method: 30 GB."""


@dataclass(frozen=True)
class TargetReached:
    """The round and the bytes at which a target was reached."""

    round: int
    bytes: int
    """All bytes until then, those before round 1 included, those of evaluation excluded."""


def smooth_curve(line: Line) -> Line:
    """Return the median of each evaluation and the two before it; the first two drop out."""
    rounds = sorted(line)
    return {t: median(line[r] for r in rounds[k : k + 3]) for k, t in enumerate(rounds[2:])}


def rounds_to_target(line: Line, target: float, *, smooth: bool = False) -> int | None:
    """Return the first round whose accuracy is at least `target`; None if there is none."""
    line = smooth_curve(line) if smooth else line
    return next((t for t in sorted(line) if line[t] >= target), None)


def reach_target(
    line: Line,
    ledger: Iterable[Charge],
    target: float,
    *,
    smooth: bool = False,
    budget: int | None = None,
) -> TargetReached | None:
    """Return the round and bytes at which `target` is reached.

    It is None if that never happens, or only beyond a `budget` of bytes.
    """
    t = rounds_to_target(line, target, smooth=smooth)
    if t is None:
        return None
    bytes_sent = sum(row.bytes for row in ledger if row.round <= t and row.kind != "eval")
    return None if budget is not None and bytes_sent > budget else TargetReached(t, bytes_sent)


def bytes_to_target(
    line: Line, ledger: Iterable[Charge], target: float, *, smooth: bool = False
) -> int | None:
    """Return the bytes until `target` is reached; None if it never is."""
    point = reach_target(line, ledger, target, smooth=smooth)
    return point.bytes if point else None


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


def speedup(method: TargetReached | None, base: TargetReached | None) -> float | None:
    """Return the bytes of `base` (ADCOL: FedAvg) divided by those of `method`.

    It is None if either never reached the target, and infinite if `method` sent nothing.
    """
    if method is None or base is None:
        return None
    return base.bytes / method.bytes if method.bytes else float("inf")
