"""One method over a grid of settings: equal budgets, and the choice is made on validation data."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comity.core.metrics import ACCURACY, Metric
from comity.core.own_metrics import use
from comity.data import Federation
from comity.errors import ComityError, Refusal
from comity.experiments.build import Progress, federation_of, prepare
from comity.experiments.config import Experiment
from comity.experiments.folder import RunFolder
from comity.measure.doubts import doubts
from comity.measure.figures import by_round, mean
from comity.models import OwnModel
from comity.spec import value
from comity.studies.compare import run_once
from comity.track import Trackers


@dataclass(frozen=True)
class Trial:
    """One point of a grid: its settings, and the figures by the chosen metric at the round that is best by validation."""

    settings: dict[str, Any]
    validation: float
    test: float
    doubts: tuple[str, ...] = ()
    """What a reader of these figures must know."""


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """`mu=0.1,1` and the like."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name or not values:
            raise Refusal(f"{text!r} is not of the form name=value,value,...")
        grid[name.strip()] = [value(v) for v in values.split(",")]
    if not grid:
        raise Refusal("tune needs at least one --grid name=value,value,...")
    return grid


def tune(
    base: Experiment,
    grid: dict[str, list[Any]],
    seeds: Sequence[int],
    out: Path,
    progress: Callable[[Experiment], Progress],
    track: Trackers | None = None,
    given: Federation | None = None,
    model: OwnModel | None = None,
) -> list[Trial]:
    """Every point of the grid with the same budget, the best on validation samples, by the chosen metric, first.

    Each seed deals the data anew, unless a federation is `given`. `model` is a network of the user's own, in place of a name.
    """
    if not base.validation:
        raise Refusal("tune chooses on validation data, so --validation must be greater than 0.")
    if "seed" in grid:
        raise Refusal("A seed is not tuned: give several with --seeds.")
    if "metric" in grid:
        raise Refusal("A metric is not tuned: choose one with --metric.")
    metric = use(base.metric)
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    found: list[list[Trial]] = [[] for _ in points]
    for seed in seeds:
        experiments = [_experiment_at(point, base, seed) for point in points]
        federations = [given or federation_of(experiment) for experiment in experiments]
        for experiment, federation in zip(experiments, federations, strict=True):
            job = prepare(experiment, federation, model)  # all are checked before the first one starts
            metric = job.metric  # which is another where labels are numbers
            if not job.judged("validation"):
                raise Refusal(
                    f"No party's validation samples have a figure by metric {metric.name}: there is nothing to choose by."
                )
        for k, point in enumerate(points):
            folder = out / ",".join(f"{name}={value}" for name, value in point.items()) / f"seed-{seed}"
            summary = run_once(experiments[k], federations[k], folder, progress(experiments[k]), track, model)
            best = summary[metric.name]["best_round"]
            if best is None:
                lacking = "was everybody heard" if metric is ACCURACY else f"does everybody have a figure by metric {metric.name}"
                raise ComityError(f"In no round of {folder} {lacking}: there is nothing to choose by.")
            known = tuple(f"seed {seed}: {text}" for text in doubts(summary))
            found[k].append(Trial(point, _validation_at(folder, best["round"], metric), best["weighted"], known))
    return sorted((_over_seeds(trials) for trials in found), key=lambda trial: -metric.sign * trial.validation)


def _experiment_at(point: dict[str, Any], base: Experiment, seed: int) -> Experiment:
    """The experiment at a point of the grid, whose names are the experiment's own settings or the method's."""
    settings = {name: value for name, value in point.items() if name in Experiment.model_fields}
    options = {name: value for name, value in point.items() if name not in Experiment.model_fields}
    return base.but(seed=seed, set=base.set | options, **settings)


def _validation_at(folder: Path, t: int, metric: Metric) -> float:
    """The mean over parties on validation samples after round t."""
    return mean(by_round(RunFolder(folder).read_metrics(), "validation", metric.name)[t])


def _over_seeds(trials: Sequence[Trial]) -> Trial:
    """One point's trials as one."""
    validation = statistics.mean(trial.validation for trial in trials)
    test = statistics.mean(trial.test for trial in trials)
    return Trial(trials[0].settings, validation, test, tuple(text for trial in trials for text in trial.doubts))
