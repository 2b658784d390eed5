"""Tune one method: a run for each point of a grid of settings, ranked on validation samples."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comity.checksums import with_crc
from comity.data import Federation
from comity.errors import ComityError, UsageError
from comity.measure.seeds import interval_over_seeds
from comity.metrics.custom_metrics import load_metric
from comity.metrics.metrics import ACCURACY, METRICS, Metric
from comity.models import CustomModel
from comity.runs.build import prepare
from comity.runs.config import Experiment
from comity.runs.figures import by_round, mean
from comity.runs.folder import RunFolder
from comity.runs.run_warnings import warning_texts
from comity.runs.server_run import Progress
from comity.runs.step_warnings import STEPS, step_warnings
from comity.safe_files import path_inside, write_atomically
from comity.spec import parse_value
from comity.studies.compare_warnings import UNEQUAL
from comity.studies.estimate import Variances
from comity.studies.method_summary import steps_of_party
from comity.studies.parallel import (
    Cost,
    PlannedRun,
    cached_federations,
    run_all,
    with_one_worker,
)
from comity.text import join_names
from comity.track import Trackers

TUNED = "tune.json"
"""The file with all trials and the best of them."""


@dataclass(frozen=True)
class Trial:
    """One point of a grid: its settings and, by seed, its figures at the best validation round.

    The figures are the unweighted means of the metric over parties.
    """

    settings: dict[str, Any]
    validations: tuple[float, ...]
    tests: tuple[float, ...]
    rounds: tuple[int, ...]
    """The round with the best mean over all validation samples."""
    caveats: tuple[str, ...] = ()
    """Caveats of these figures, a sentence each."""
    steps: tuple[float, ...] = ()
    """The gradient evaluations of a party in the whole run, mean over parties."""
    lasts: tuple[float | None, ...] = ()
    """The test figures after the last round, which `comity compare` reports; None where a model
    has diverged.
    """
    sampling: tuple[float, ...] = ()
    """The variances of `validations` due to the choice of validation samples; empty for metrics
    other than accuracy, for which they are not known.
    """

    @property
    def name(self) -> str:
        """The settings as text, which is the name of the folder, too."""
        return ",".join(f"{name}={value}" for name, value in self.settings.items())

    @property
    def validation(self) -> float:
        """The mean over seeds on validation samples, by which trials are ranked."""
        return statistics.mean(self.validations)

    @property
    def test(self) -> float:
        """The mean over seeds on test samples; it plays no part in the ranking."""
        return statistics.mean(self.tests)

    @property
    def mean_steps(self) -> float:
        """The gradient evaluations of a party, mean over seeds; 0 if they are not known."""
        return statistics.mean(self.steps) if self.steps else 0.0

    def plain(self) -> dict[str, Any]:
        """Return the entry of tune.json."""
        return {"name": self.name, **asdict(self), "validation": self.validation, "test": self.test}


@dataclass(frozen=True)
class Trials:
    """All trials of a grid, the best by validation first."""

    trials: list[Trial]
    metric: str
    seeds: tuple[int, ...]
    same_samples: bool = True
    """Whether the validation samples are the same under all seeds."""

    @property
    def unequal_steps(self) -> str:
        """A sentence if the trials differ in their gradient evaluations; empty otherwise."""
        most = max(self.trials, key=lambda trial: trial.mean_steps)
        least = min(self.trials, key=lambda trial: trial.mean_steps)
        if most.mean_steps <= UNEQUAL * least.mean_steps:
            return ""
        return (
            f"The trials differ in {STEPS}: a party takes {most.mean_steps:,.0f} with {most.name},"
            f" the most, and {least.mean_steps:,.0f} with {least.name}, the least. For equal"
            " budgets, give them as methods to 'comity compare --equal-steps'."
        )

    @property
    def verdict(self) -> str:
        """A sentence: the best trial, its distance to the next, and whether that may be chance."""
        best, *others = self.trials
        choice = f"Chosen on validation data: {best.name.replace(',', ', ')}."
        if not others:
            return choice
        ahead = [
            METRICS[self.metric].sign * (a - b)
            for a, b in zip(best.validations, others[0].validations, strict=True)
        ]
        sentence = (
            f"{choice} The next is {others[0].name.replace(',', ', ')},"
            f" {100 * statistics.mean(ahead):.1f} points behind on them"
        )
        interval = interval_over_seeds(ahead)
        if interval is None:
            few = "one seed" if len(ahead) == 1 else f"{len(ahead)} seeds"
            return (
                f"{sentence}; whether that is more than chance, {few} cannot tell: give several, as"
                " in --seeds 0,1,2."
            )
        sampling = self._sampling(best, others[0])
        low, high = interval if sampling is None else _with_sampling(ahead, sampling)
        over = f"{len(ahead)} seeds"
        if sampling is not None:
            over += " and the validation samples"
        with_interval = (
            f"{sentence} (95% interval over {over}, paired over seeds: {100 * low:+.1f} to"
            f" {100 * high:+.1f})"
        )
        if low <= 0:
            return f"{with_interval}: that is within chance, and either may be the better one."
        if sampling is None:
            return (
                f"{with_interval}. The interval does not contain the sampling error of the"
                " validation samples: with few of them, either may be the better one."
            )
        return f"{with_interval}."

    def _sampling(self, first: Trial, second: Trial) -> float | None:
        """Return the variance of the mean difference of two trials due to the choice of validation
        samples; None if it is not known.

        Outcomes on single validation samples are not stored, so that the variance is that of two
        independent trials, which is too large rather than too small.
        """
        if not (first.sampling and second.sampling):
            return None
        of_seeds = [a + b for a, b in zip(first.sampling, second.sampling, strict=True)]
        mean_variance = statistics.mean(of_seeds)
        return mean_variance if self.same_samples else mean_variance / len(of_seeds)

    def plain(self) -> dict[str, Any]:
        """Return the content of tune.json."""
        trials = [trial.plain() for trial in self.trials]
        return {
            "seeds": list(self.seeds),
            "metric": self.metric,
            "trials": trials,
            "verdict": self.verdict,
        }


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Parse texts such as `mu=0.1,1` into values by name."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name or not values:
            raise UsageError(f"{text!r} is not of the form name=value,value,...")
        grid[name.strip()] = [parse_value(v) for v in values.split(",")]
    if not grid:
        raise UsageError("tune needs at least one --grid name=value,value,...")
    return grid


def tune(
    base: Experiment,
    grid: dict[str, list[Any]],
    seeds: Sequence[int],
    out: Path,
    progress: Callable[[str], Progress],
    track: Trackers | None = None,
    federation: Federation | None = None,
    model: CustomModel | None = None,
    jobs: int = 1,
) -> Trials:
    """Run every point of the grid, and rank the points by the metric on validation samples.

    Args:
        base: The settings that all runs share.
        grid: Values by name, of the experiment's settings or of the method's options.
        seeds: The seeds. Each seed has its own split, unless a federation is given.
        out: The folder. Finished runs in it are used, others are continued.
        progress: Returns the observer of a run, given the run's title.
        track: Trackers that the runs report to.
        federation: The data, in place of those that the settings name.
        model: A custom network, in place of the one that the settings name.
        jobs: How many runs go on at once.
    """
    if not base.validation:
        raise UsageError("tune chooses on validation data, so --validation must be greater than 0.")
    if "seed" in grid:
        raise UsageError("A seed is not tuned: give several with --seeds.")
    if "metric" in grid:
        raise UsageError("A metric is not tuned: choose one with --metric.")
    metric = load_metric(base.metric)
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    names = [Trial(point, (), (), ()).name for point in points]
    data = cached_federations(federation)
    runs: list[PlannedRun] = []
    for seed, (name, point) in itertools.product(seeds, zip(names, points, strict=True)):
        experiment = with_one_worker(_experiment_at(point, base, seed), jobs)
        # All experiments are checked before the first run starts.
        job = prepare(experiment, data(experiment), model)
        metric = job.metric  # differs from the default where labels are numbers
        if not job.parties_with_metric("validation"):
            raise UsageError(
                f"No party's validation samples have a figure by metric {metric.name}: there is"
                " nothing to choose by."
            )
        runs.append(
            PlannedRun(
                f"{name} seed {seed}" if len(seeds) > 1 else name,
                experiment,
                path_inside(out, name, f"seed-{seed}"),
                Cost.of(job),
            )
        )
    by_point: list[list[Trial]] = [[] for _ in points]
    with closing(run_all(runs, data, progress, track, model, jobs)) as summaries:
        for k, (run, summary) in enumerate(zip(runs, summaries, strict=True)):
            by_point[k % len(points)].append(_trial(points[k % len(points)], run, summary, metric))
    trials = sorted(
        map(_combine_seeds, by_point), key=lambda trial: -metric.sign * trial.validation
    )
    result = Trials(trials, metric.name, tuple(seeds), same_samples=federation is not None)
    write_atomically(out / TUNED, json.dumps(with_crc(result.plain()), indent=2) + "\n")
    return result


def _trial(
    point: dict[str, Any], run: PlannedRun, summary: Mapping[str, Any], metric: Metric
) -> Trial:
    """Return the trial of a point of the grid under one seed."""
    best = summary[metric.name]["best_round"]
    if best is None:
        lacking = (
            "was everybody heard"
            if metric is ACCURACY
            else f"does everybody have a figure by metric {metric.name}"
        )
        raise ComityError(f"In no round of {run.folder} {lacking}: there is nothing to choose by.")
    t = best["round"]
    validated = by_round(RunFolder(run.folder).read_metrics(), "validation", metric.name)[t]
    about_steps = step_warnings(summary)  # `unequal_steps` says it of all trials
    caveats = [text for text in warning_texts(summary, "after") if text not in about_steps]
    texts = [*caveats, *_not_validated(summary, validated, metric)]
    of_seed = tuple(f"seed {run.experiment.seed}: {text}" for text in texts)
    steps = (steps_of_party(summary),)
    last = (summary[metric.name]["mean"],)
    sampling = (_sampling_variance(run.folder, validated),) if metric is ACCURACY else ()
    return Trial(point, (mean(validated),), (best["mean"],), (t,), of_seed, steps, last, sampling)


def _sampling_variance(folder: Path, accuracies: Mapping[str, float]) -> float:
    """Return the variance of the mean of the parties' validation accuracies due to the choice of
    their validation samples.

    Each accuracy is moved towards one half by a sample of either outcome, so that 100% on few
    samples is not taken as certain.
    """
    shares = RunFolder(folder).read_split().parties
    variances = []
    for party, accuracy in accuracies.items():
        samples = len(shares[party].validation)
        smoothed = (accuracy * samples + 1) / (samples + 2)
        variances.append(smoothed * (1 - smoothed) / samples)
    return sum(variances) / len(variances) ** 2


def _with_sampling(differences: Sequence[float], sampling: float) -> tuple[float, float]:
    """Return the 95% interval of the mean of paired differences over seeds and over samples.

    Args:
        differences: One difference per seed.
        sampling: The variance of their mean due to the choice of samples.
    """
    variances = Variances(sampling, statistics.variance(differences), len(differences))
    half = variances.quantile * variances.error
    middle = statistics.mean(differences)
    return middle - half, middle + half


def _experiment_at(point: dict[str, Any], base: Experiment, seed: int) -> Experiment:
    """Return the experiment at a point of the grid.

    Names in the grid are settings of the experiment or options of the method.
    """
    settings = {name: value for name, value in point.items() if name in Experiment.model_fields}
    options = {name: value for name, value in point.items() if name not in Experiment.model_fields}
    return base.but(seed=seed, set=base.set | options, **settings)


def _not_validated(
    summary: Mapping[str, Any], validated: Mapping[str, float], metric: Metric
) -> list[str]:
    """Return a sentence if the validation and test means are not over the same parties."""
    tested = [
        party for party, figure in summary[metric.name]["per_party"].items() if figure is not None
    ]
    lacking = [party for party in tested if party not in validated]
    many = f"{len(lacking)} of {len(tested)} parties ({join_names(lacking)})"
    return (
        [f"the mean on validation samples is without {many}, who have no figure there."]
        if lacking
        else []
    )


def _combine_seeds(trials: Sequence[Trial]) -> Trial:
    """Combine the trials of one point, one per seed, into one trial."""

    def concatenate(name: str) -> tuple[Any, ...]:
        return tuple(value for trial in trials for value in getattr(trial, name))

    return Trial(
        trials[0].settings,
        *(
            concatenate(name)
            for name in ("validations", "tests", "rounds", "caveats", "steps", "lasts", "sampling")
        ),
    )
