"""Does collaborating help each party? Its figure by a metric against SOLO's on the very same test
samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from comity.base.key import Key
from comity.errors import ComityError
from comity.metrics.evaluation import Answers
from comity.metrics.metrics import ACCURACY, METRICS, TWO, Metric
from comity.runs.folder import RunFolder

Z95 = 1.959963984540054
AT_ONCE = 4_000_000  # samples that are drawn together, so that memory stays small


@dataclass(frozen=True)
class Gain:
    """A party's gain over SOLO with its 95% interval. Above zero is better, whatever the metric's
    direction.
    """

    party: str
    gain: float
    low: float
    high: float
    middle: float
    """The middle of the interval, which is drawn towards zero a little where samples are few."""
    error: float
    """The standard error behind it: what other test samples of the same kind would change."""


def gains(run: Path, solo: Path, metric: str = ACCURACY.name) -> list[Gain]:
    """The gain of every party that was heard at the end of one run and of a SOLO run on the same
    split, if it has a figure.

    Sites that keep their answers to themselves have said it themselves.
    """
    summary = RunFolder(run).read_summary() or {}
    if summary.get("gained"):
        return [Gain(party, **told) for party, told in summary["gained"].items()]
    if metric == ACCURACY.name:
        now, before = RunFolder(run).read_outcomes(), RunFolder(solo).read_outcomes()
        return [
            paired(party, right, before[party]) for party, right in now.items() if party in before
        ]
    ours, theirs = RunFolder(run).read_answers(), RunFolder(solo).read_answers()
    return gains_of(ours, theirs, METRICS[metric])


def gains_of(ours: dict[str, Answers], theirs: dict[str, Answers], metric: Metric) -> list[Gain]:
    """The gains by a metric, from what models now and before said of the same test samples."""
    both = ((party, mine, theirs[party]) for party, mine in ours.items() if party in theirs)
    return [
        gain
        for party, mine, its in both
        if (gain := drawn_again(party, mine, its, metric)) is not None
    ]


def paired(party: str, now: Sequence[int], before: Sequence[int]) -> Gain:
    """A party's gain in accuracy, from which of the same test samples were right now and before."""
    better, worse = counted(now, before)
    middle, error = _middle_and_error(better, worse, len(now))
    return Gain(
        party, (better - worse) / len(now), *paired_interval(better, worse, len(now)), middle, error
    )


def counted(now: Sequence[int], before: Sequence[int]) -> tuple[int, int]:
    """How many of the same test samples were right only now, and how many only before."""
    pairs = list(zip(now, before, strict=True))
    return sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)


def paired_interval(better: int, worse: int, count: int) -> tuple[float, float]:
    """95% interval for a difference of paired proportions (Agresti and Min 2005: half a sample
    added to each of four cells).

    `better` samples were right only now, `worse` only before. The plain Wald interval is too narrow
    for the small test sets parties have; adding to the cells repairs that.
    """
    middle, error = _middle_and_error(better, worse, count)
    return max(-1.0, middle - Z95 * error), min(1.0, middle + Z95 * error)


def _middle_and_error(better: int, worse: int, count: int) -> tuple[float, float]:
    b = better + 0.5
    c = worse + 0.5
    n = count + 2.0
    return (b - c) / n, math.sqrt(max(b + c - (b - c) ** 2 / n, 0.0)) / n


def drawn_again(party: str, now: Answers, before: Answers, metric: Metric) -> Gain | None:
    """A party's gain by any metric, with a percentile interval: the same test samples drawn again
    and again, in pairs.

    As many are drawn of each class as there are. Four samples more stand among those that are drawn
    from, in equal parts of each class, and of each class a quarter that is right both times, only
    now, only before, and never, as they do for accuracy. Without them, twelve samples that are all
    better now would seem to leave no doubt at all.

    None where the samples have no such figure, or where a model has diverged.
    """
    if not torch.equal(now.truth, before.truth):
        raise ComityError(
            f"The test samples of {party} are not the same in both runs: its gain cannot be told."
        )
    y = now.truth if now.amounts else now.truth.long()
    classes = (
        1 + max([1, *y.tolist(), *now.given.tolist(), *before.given.tolist()])
        if not now.amounts
        else 0
    )
    mine, theirs = now.scores(classes).double(), before.scores(classes).double()
    figures = [metric.of(scores, y) for scores in (mine, theirs)]
    if any(figure is None or not math.isfinite(figure) for figure in figures):
        return None
    tickets = torch.arange(len(y))
    if not now.amounts:
        mine, theirs, y, tickets = _with_more(mine, theirs, y)
    rows = max(1, min(metric.draws, AT_ONCE // len(tickets)))
    draw = Key.root(0).fold("gain", party).generator()
    found = []
    for begin in range(0, metric.draws, rows):
        many = min(rows, metric.draws - begin)
        weights = _drawn(len(y), many, draw) if now.amounts else _weights(y, tickets, many, draw)
        found.append(
            metric.sign * (metric.figures(mine, y, weights) - metric.figures(theirs, y, weights))
        )
    differences = torch.cat(found)
    differences = differences[
        differences.isfinite()
    ]  # one sample drawn again and again has no spread to explain
    if not len(differences):
        return None
    low, high = torch.quantile(
        differences, torch.tensor([0.025, 0.975], dtype=differences.dtype)
    ).tolist()
    gain = metric.sign * ((figures[0] or 0.0) - (figures[1] or 0.0))
    return Gain(party, gain, low, high, float(differences.mean()), float(differences.std()))


def _with_more(mine: Tensor, theirs: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores and labels with four more of each class that is there; and whose each ticket is.

    A true sample has as many tickets as there are classes, one of the others has one: together they
    weigh four samples.

    Who is right is so beyond all others, and who is wrong takes it for the next class, as surely.
    """
    classes = mine.shape[1]
    there = y.unique()
    sure = torch.finfo(mine.dtype).max / 4
    right = sure * torch.eye(classes, dtype=mine.dtype)[there]
    wrong = sure * torch.eye(classes, dtype=mine.dtype)[(there + 1) % classes]
    each = max(TWO, len(there))
    tickets = torch.cat([torch.arange(len(y)).repeat(each), len(y) + torch.arange(4 * len(there))])
    return (
        torch.cat([mine, right, right, wrong, wrong]),
        torch.cat([theirs, right, wrong, right, wrong]),
        torch.cat([y, there.repeat(4)]),
        tickets,
    )


def _drawn(samples: int, rows: int, draw: torch.Generator) -> Tensor:
    """How many times each sample was drawn, in each of `rows` drawings of as many as there are."""
    weights = torch.zeros(rows, samples, dtype=torch.double)
    chosen = torch.randint(samples, (rows, samples), generator=draw)
    return weights.scatter_add_(1, chosen, torch.ones(1, dtype=torch.double).expand(rows, samples))


def _weights(y: Tensor, tickets: Tensor, rows: int, draw: torch.Generator) -> Tensor:
    """How many times each sample was drawn, in each of `rows` drawings that leave the classes as
    large as they are.
    """
    weights = torch.zeros(rows, len(y), dtype=torch.double)
    for label in y.unique():
        of = tickets[y[tickets] == label]
        true = int((y == label).sum()) - 4
        chosen = of[torch.randint(len(of), (rows, true), generator=draw)]
        weights.scatter_add_(1, chosen, torch.ones(1, dtype=torch.double).expand(rows, true))
    return weights
