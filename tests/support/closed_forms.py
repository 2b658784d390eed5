"""The ledger against the method's own formula for its traffic."""

from __future__ import annotations

from collections import Counter

import comity
from comity.studies import plan


def by_round(result: comity.Result) -> dict[int, Counter[str]]:
    """Bytes by round and kind, as they were charged."""
    found: dict[int, Counter[str]] = {t: Counter() for t in range(result.job.experiment.rounds + 1)}
    for row in result.ledger:
        found[row.round][row.kind] += row.bytes
    return found


def assert_closed_forms(result: comity.Result) -> None:
    """What crossed before round 1 and in each round is what the method's formula says, to the byte."""
    start, each = plan.traffic(result.job)
    charged = by_round(result)
    for t, formula in enumerate([start, *each]):
        for kind in ("up", "down", "peer"):
            assert charged[t][kind] == getattr(formula, kind), f"{kind} of round {t}"
