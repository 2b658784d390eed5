"""Runs of cross-validation on the page: the predictions of all folds together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from comity.measure.cross_validation import FoldRun
from comity.measure.gain import Gain
from comity.metrics.metrics import count_by_class, has_too_few
from comity.reporting.gather import Method, RunGroup
from comity.studies.cross_validation import by_repeat, pool_summaries, pooled_gains


def fold_runs(group: RunGroup, method: Method) -> list[FoldRun]:
    """Return a method's predictions in all repeats whose folds are complete."""
    runs = {run.seed: run for run in method.finished if run.answers and run.split}
    return [
        FoldRun(
            seed,
            runs[seed].answers,
            {name: part.test for name, part in runs[seed].split.items()},
        )
        for seeds in by_repeat(runs, group.folds).values()
        if len(seeds) == group.folds
        for seed in seeds
    ]


def too_few_in_folds(group: RunGroup) -> dict[int, list[str]]:
    """Return the parties with too few samples in all folds together, by repeat."""
    runs = {run.seed: run for run in fold_runs(group, group.baseline)} if group.baseline else {}
    too_few = {}
    for first, seeds in by_repeat(runs, group.folds).items():
        of_repeat = [runs[seed].answers for seed in seeds]
        labels = {
            name: torch.cat([answers[name].truth for answers in of_repeat if name in answers])
            for name in of_repeat[0]
        }
        classes = 0 if any(y.is_floating_point() for y in labels.values()) else _classes(group)
        too_few[first] = [
            name
            for name, y in labels.items()
            if has_too_few(count_by_class(y.long() if classes else y, classes), group.metric)
        ]
    return too_few


def _classes(group: RunGroup) -> int:
    """Return the number of classes that occur in any party's samples."""
    runs = group.baseline.finished if group.baseline else []
    return 1 + max(int(answers.truth.max()) for run in runs for answers in run.answers.values())


def summaries_in_folds(
    group: RunGroup, method: Method, too_few: Mapping[int, Collection[str]]
) -> list[dict[str, Any]]:
    """Return one summary of a method per complete repeat."""
    runs = fold_runs(group, method)
    seeds = {run.seed for run in runs}
    summaries = [summary for summary in method.summaries if summary["seed"] in seeds]
    return pool_summaries(summaries, runs, too_few, group.folds, group.metric) if runs else []


def gains_in_folds(group: RunGroup, method: Method, other: Method | None) -> dict[int, list[Gain]]:
    """Return every party's gain over another method: of all repeats together if parties are the
    same in them, otherwise by repeat.
    """
    if other is None or method is other:
        return {}
    now, before = fold_runs(group, method), fold_runs(group, other)
    both = {run.seed for run in now} & {run.seed for run in before}
    now, before = ([run for run in runs if run.seed in both] for runs in (now, before))
    return pooled_gains(now, before, group.folds, group.metric, group.same_parties) if both else {}
