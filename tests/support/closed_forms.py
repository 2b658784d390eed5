"""Checks of a run's ledger against its method's formula for the traffic."""

from __future__ import annotations

from collections import Counter

import comity
from comity.studies import plan


def by_round(result: comity.Result) -> dict[int, Counter[str]]:
    """Bytes in the ledger by round and kind."""
    totals: dict[int, Counter[str]] = {
        t: Counter() for t in range(result.job.experiment.rounds + 1)
    }
    for row in result.ledger:
        totals[row.round][row.kind] += row.bytes
    return totals


def assert_closed_forms(result: comity.Result) -> None:
    """Check that the bytes before round 1 and in each round equal the method's formula."""
    start, round_formulas = plan.traffic(result.job)
    ledger_totals = by_round(result)
    for t, formula in enumerate([start, *round_formulas]):
        for kind in ("up", "down", "peer"):
            assert ledger_totals[t][kind] == getattr(formula, kind), f"{kind} of round {t}"
