"""Cross-validation: a party's figures and gains over all folds of its samples together.

Under `test=folds(K)`, K runs with consecutive seeds test every sample once; they are a repeat.
Predictions of a repeat are pooled, and a metric is computed from all of them. Several repeats are
averaged sample by sample.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from comity.errors import ComityError
from comity.measure.gain import Folds, Gain, mean_and_error
from comity.metrics.evaluation import Answers
from comity.metrics.metrics import Metric, relevant_classes
from comity.metrics.out_of_fold import OutOfFold, in_order, join_answers
from comity.metrics.reliability import Z95


@dataclass(frozen=True)
class FoldRun:
    """A finished run of cross-validation: every party's predictions of one fold."""

    seed: int
    answers: Mapping[str, Answers]
    """By party: the predictions of its test samples."""
    positions: Mapping[str, Sequence[int]]
    """By party: the positions of its test samples among all samples."""


def out_of_fold(runs: Sequence[FoldRun], folds: int) -> dict[str, list[OutOfFold]]:
    """Return each party's predictions of all its samples, one entry per repeat.

    A party that has no predictions in one of the runs is left out.
    """
    repeats: dict[int, list[FoldRun]] = {}
    for run in runs:
        repeats.setdefault(run.seed // folds, []).append(run)
    if any(len(of_repeat) != folds for of_repeat in repeats.values()):
        raise ComityError(f"Cross-validation with {folds} folds needs {folds} runs per repeat.")
    everywhere = set.intersection(*(set(run.answers) for run in runs))
    return {
        party: [_pool(party, of_repeat) for of_repeat in repeats.values()]
        for party in runs[0].answers
        if party in everywhere
    }


def _pool(party: str, runs: Sequence[FoldRun]) -> OutOfFold:
    """Return the predictions of one party in the runs of one repeat."""
    answers = [run.answers[party] for run in runs]
    positions = [torch.as_tensor(run.positions[party]) for run in runs]
    fold = [torch.full((len(a.truth),), k) for k, a in enumerate(answers)]
    return OutOfFold(
        join_answers(answers, positions),
        in_order(fold, positions),
        in_order(positions, positions),
    )


def cross_validated_gains(
    now: Sequence[FoldRun], before: Sequence[FoldRun], folds: int, metric: Metric
) -> list[Gain]:
    """Return the parties' gains of one method over another, from the same folds.

    Parties must have the same samples in all repeats.
    """
    pooled_now, pooled_before = out_of_fold(now, folds), out_of_fold(before, folds)
    gains = [
        _gain(party, of_party, pooled_before[party], folds, metric)
        for party, of_party in pooled_now.items()
        if party in pooled_before
    ]
    return [gain for gain in gains if gain is not None]


def _gain(
    party: str, now: Sequence[OutOfFold], before: Sequence[OutOfFold], folds: int, metric: Metric
) -> Gain | None:
    values = [repeat.value(metric) for repeat in (*now, *before)]
    present = [value for value in values if value is not None and math.isfinite(value)]
    if len(present) < len(values):
        return None
    differences = [
        metric.sign * (a.pseudo_values(metric) - b.pseudo_values(metric))
        for a, b in zip(now, before, strict=True)
    ]
    mean, error = mean_and_error(
        torch.stack(differences).mean(0), _resolution(now[0].answers, metric)
    )
    gain = metric.sign * (
        statistics.fmean(present[: len(now)]) - statistics.fmean(present[len(now) :])
    )
    return Gain(
        party,
        gain,
        mean - Z95 * error,
        mean + Z95 * error,
        mean,
        error,
        _by_fold(differences, [repeat.fold for repeat in now], folds, metric),
    )


def _by_fold(
    differences: Sequence[Tensor], fold: Sequence[Tensor], folds: int, metric: Metric
) -> Folds:
    """Return the gain in each run. All errors are from the variance within folds."""
    parts = [
        of_repeat[fold_of_repeat == k]
        for of_repeat, fold_of_repeat in zip(differences, fold, strict=True)
        for k in range(folds)
    ]
    freedom = sum(len(part) - 1 for part in parts)
    squares = sum(float((part - part.mean()).square().sum()) for part in parts)
    deviation = math.sqrt(squares / max(1, freedom))
    mean = float(torch.cat(parts).mean())
    # A pair of samples of one fold counts in the pseudo-values of both, so these differ between
    # folds by twice as much as the metric does.
    scale = 0.5 if metric.compares_scores else 1.0
    return Folds(
        folds,
        tuple(mean + scale * (float(part.mean()) - mean) for part in parts),
        tuple(deviation / math.sqrt(len(part)) for part in parts),
    )


def _resolution(answers: Answers, metric: Metric) -> float:
    """Return the largest pseudo-value that one sample can have: n / (C nₖ), where nₖ is the number
    of samples of the rarest of C relevant classes. For accuracy it is 1.
    """
    if answers.amounts:
        return 0.0
    if metric.name == "accuracy":
        return 1.0
    y = answers.truth.long()
    classes = relevant_classes(metric) if metric.fits(2) else range(int(y.max()) + 1)
    counts = [count for label in classes if (count := int((y == label).sum()))]
    return len(y) / (len(counts) * min(counts)) if counts else 1.0


def pooled_figures(runs: Sequence[FoldRun], folds: int, metric: Metric) -> list[dict[str, float]]:
    """Return the parties' values of a metric from all folds together, one entry per repeat.

    Parties for which it is not defined are left out. It is NaN where a model has diverged.
    """
    pooled = out_of_fold(runs, folds)
    figures: list[dict[str, float]] = [{} for _ in range(len(runs) // folds)]
    for party, of_party in pooled.items():
        for repeat, predictions in zip(figures, of_party, strict=True):
            if (value := predictions.value(metric)) is not None:
                repeat[party] = value
    return figures
