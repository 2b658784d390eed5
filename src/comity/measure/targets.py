"""How soon is good enough: rounds and bytes until an accuracy is reached (ADCOL, Tables 2, 6 and
7).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median

from comity.errors import ComityError
from comity.measure.conventions import Line
from comity.wire.ledger import Charge

BUDGET = 30 * 10**9
"""ADCOL gives a method up after 30 GB."""


@dataclass(frozen=True)
class Reached:
    """When a target was reached."""

    round: int
    bytes: int
    """All that crossed until then, the exchanges before round 1 included; evaluation is not part of
    any method.
    """


def smoothed(line: Line) -> Line:
    """The median of each evaluation and the two before it: one lucky round reaches nothing. The
    first two drop out.
    """
    rounds = sorted(line)
    return {t: median(line[r] for r in rounds[k : k + 3]) for k, t in enumerate(rounds[2:])}


def rounds_to_target(line: Line, target: float, *, smooth: bool = False) -> int | None:
    """The first round whose accuracy is at least `target`; None if there is none."""
    line = smoothed(line) if smooth else line
    return next((t for t in sorted(line) if line[t] >= target), None)


def reached(
    line: Line,
    ledger: Iterable[Charge],
    target: float,
    *,
    smooth: bool = False,
    budget: int | None = None,
) -> Reached | None:
    """Round and bytes at which `target` is reached; None if never, or only beyond a `budget` of
    bytes.
    """
    t = rounds_to_target(line, target, smooth=smooth)
    if t is None:
        return None
    spent = sum(row.bytes for row in ledger if row.round <= t and row.kind != "eval")
    return None if budget is not None and spent > budget else Reached(t, spent)


def bytes_to_target(
    line: Line, ledger: Iterable[Charge], target: float, *, smooth: bool = False
) -> int | None:
    """Bytes until `target` is reached; None if it never is."""
    found = reached(line, ledger, target, smooth=smooth)
    return found.bytes if found else None


def common_target(lines: Mapping[str, Line], last: int = 1) -> float:
    """ADCOL's target: the lowest converged accuracy among the compared methods, converged being the
    mean of the `last` rounds.

    A method that fails altogether should be left out, as ADCOL leaves out Per-FedAvg and FedRep.
    """
    if not lines or not all(lines.values()):
        raise ComityError("A common target needs at least one method, and an evaluation of each.")
    return min(fmean([line[t] for t in sorted(line)][-last:]) for line in lines.values())


def speedup(own: Reached | None, base: Reached | None) -> float | None:
    """How many times fewer bytes than `base` (ADCOL: FedAvg); None if either never got there,
    infinite if nothing was sent.
    """
    if own is None or base is None:
        return None
    return base.bytes / own.bytes if own.bytes else float("inf")
