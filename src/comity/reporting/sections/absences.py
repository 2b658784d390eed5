"""Who was not heard, on the page: every party, with the rounds."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from comity.core.participation import MEANING
from comity.reporting.blocks import Table
from comity.reporting.gather import Group


def absences(group: Group) -> list[Table]:
    """A table of all absences, if there are any: by method, seed, party, work and how, with the
    rounds.
    """
    found: dict[tuple[str, str, str, str, str], set[int]] = defaultdict(set)
    for run in group.runs:
        for row in run.absences:
            found[run.method, str(run.seed), row.party, row.call, row.how].add(row.round)
    rows = [
        [method, seed, party, work, f"{how}: {MEANING.get(how, '')}", spans(rounds)]
        for (method, seed, party, work, how), rounds in found.items()
    ]
    heads = ["method", "seed", "party", "asked for", "what happened", "rounds"]
    return (
        [Table("absences", "Who was not heard", heads, rows, words=6, folded=len(rows) > 12)]
        if rows
        else []
    )


def spans(rounds: set[int]) -> str:
    """Rounds in few words: 1-3, 7."""
    ordered = sorted(rounds)
    breaks = [0, *(k + 1 for k, (a, b) in enumerate(pairwise(ordered)) if b > a + 1), len(ordered)]
    parts = [(ordered[a], ordered[b - 1]) for a, b in pairwise(breaks)]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
