"""The table of absences: the parties that did not reply, with the rounds."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from comity.core.participation import MEANING
from comity.reporting.blocks import Table
from comity.reporting.gather import RunGroup


def absences(group: RunGroup) -> list[Table]:
    """Return a table of all absences by method, seed, party, call and kind, with the rounds.

    The list is empty if there were none.
    """
    rounds_by_absence: dict[tuple[str, str, str, str, str], set[int]] = defaultdict(set)
    for run in group.runs:
        for row in run.absences:
            absence = (run.method, str(run.seed), row.party, row.call, row.how)
            rounds_by_absence[absence].add(row.round)
    if not rounds_by_absence:
        return []
    rows = [
        [method, seed, party, call, f"{how}: {MEANING.get(how, '')}", format_spans(rounds)]
        for (method, seed, party, call, how), rounds in rounds_by_absence.items()
    ]
    heads = ["method", "seed", "party", "asked for", "what happened", "rounds"]
    return [Table("absences", "Who was not heard", heads, rows, words=6, folded=len(rows) > 12)]


def format_spans(rounds: set[int]) -> str:
    """Return rounds as spans, as in `1-3, 7`."""
    ordered = sorted(rounds)
    breaks = [0, *(k + 1 for k, (a, b) in enumerate(pairwise(ordered)) if b > a + 1), len(ordered)]
    spans = [(ordered[a], ordered[b - 1]) for a, b in pairwise(breaks)]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
