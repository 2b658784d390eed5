"""One method over a grid of settings: equal budgets, and the choice is made on validation data."""

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
from comity.data.formats.common import few
from comity.errors import ComityError, UsageError
from comity.measure.caveats import caveats
from comity.measure.figures import by_round, mean
from comity.measure.seeds import paired_over_seeds
from comity.metrics.custom_metrics import use
from comity.metrics.metrics import ACCURACY, METRICS, Metric
from comity.models import OwnModel
from comity.runs.build import prepare
from comity.runs.checkpoint import write_atomically
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.runs.server_run import Progress
from comity.spec import parse_value
from comity.studies.parallel import Cost, Planned, run_all, settled, shared
from comity.track import Trackers

TUNED = "tune.json"
"""Where a tuning writes down all trials and which is chosen."""


@dataclass(frozen=True)
class Trial:
    """One point of a grid: its settings and, by seed, the figures by the chosen metric at the round
    that validation chose.

    Both figures are the mean over parties, each party counting alike.
    """

    settings: dict[str, Any]
    validations: tuple[float, ...]
    tests: tuple[float, ...]
    rounds: tuple[int, ...]
    """The round that is best on all validation samples together."""
    caveats: tuple[str, ...] = ()
    """What a reader of these figures must know."""

    @property
    def name(self) -> str:
        """Its settings in words; its folder is called so, too."""
        return ",".join(f"{name}={value}" for name, value in self.settings.items())

    @property
    def validation(self) -> float:
        """The mean over seeds on validation samples, by which trials are ranked."""
        return statistics.mean(self.validations)

    @property
    def test(self) -> float:
        """The mean over seeds on test samples, by which nothing is chosen."""
        return statistics.mean(self.tests)

    def plain(self) -> dict[str, Any]:
        """As in tune.json."""
        return {"name": self.name, **asdict(self), "validation": self.validation, "test": self.test}


@dataclass(frozen=True)
class Trials:
    """All trials of a grid, the best by validation first."""

    trials: list[Trial]
    metric: str
    seeds: tuple[int, ...]

    @property
    def verdict(self) -> str:
        """Which is chosen, how far the next is, and whether that could be chance."""
        best, *others = self.trials
        chosen = f"Chosen on validation data: {best.name.replace(',', ', ')}."
        if not others:
            return chosen
        ahead = [
            METRICS[self.metric].sign * (a - b)
            for a, b in zip(best.validations, others[0].validations, strict=True)
        ]
        said = (
            f"{chosen} The next is {others[0].name.replace(',', ', ')},"
            f" {100 * statistics.mean(ahead):.1f} points behind on them"
        )
        if len(ahead) == 1:
            return (
                f"{said}; whether that is more than chance, one seed cannot tell: give several, as"
                " in --seeds 0,1,2."
            )
        low, high = paired_over_seeds(ahead)
        told = (
            f"{said} (95% interval over {len(ahead)} seeds, paired: {100 * low:+.1f} to"
            f" {100 * high:+.1f})"
        )
        return (
            f"{told}."
            if low > 0
            else f"{told}: that is within chance, and either may be the better one."
        )

    def plain(self) -> dict[str, Any]:
        """As in tune.json."""
        trials = [trial.plain() for trial in self.trials]
        return {
            "seeds": list(self.seeds),
            "metric": self.metric,
            "trials": trials,
            "verdict": self.verdict,
        }


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """`mu=0.1,1` and the like."""
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
    given: Federation | None = None,
    model: OwnModel | None = None,
    jobs: int = 1,
) -> Trials:
    """Every point of the grid with the same budget, the best on validation samples, by the chosen
    metric, first.

    Each seed deals the data anew, unless a federation is `given`. `model` is a network of the
    user's own, in place of a name. So many runs as `jobs` go on at once.
    """
    if not base.validation:
        raise UsageError("tune chooses on validation data, so --validation must be greater than 0.")
    if "seed" in grid:
        raise UsageError("A seed is not tuned: give several with --seeds.")
    if "metric" in grid:
        raise UsageError("A metric is not tuned: choose one with --metric.")
    metric = use(base.metric)
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    names = [Trial(point, (), (), ()).name for point in points]
    data = shared(given)
    runs: list[Planned] = []
    for seed, (name, point) in itertools.product(seeds, zip(names, points, strict=True)):
        one = settled(_experiment_at(point, base, seed), jobs)
        job = prepare(one, data(one), model)  # all are checked before the first one starts
        metric = job.metric  # which is another where labels are numbers
        if not job.judged("validation"):
            raise UsageError(
                f"No party's validation samples have a figure by metric {metric.name}: there is"
                " nothing to choose by."
            )
        runs.append(
            Planned(
                f"{name} seed {seed}" if len(seeds) > 1 else name,
                one,
                out / name / f"seed-{seed}",
                Cost.of(job),
            )
        )
    found: list[list[Trial]] = [[] for _ in points]
    with closing(run_all(runs, data, progress, track, model, jobs)) as done:
        for k, (run, summary) in enumerate(zip(runs, done, strict=True)):
            found[k % len(points)].append(_trial(points[k % len(points)], run, summary, metric))
    trials = sorted(map(_over_seeds, found), key=lambda trial: -metric.sign * trial.validation)
    made = Trials(trials, metric.name, tuple(seeds))
    write_atomically(out / TUNED, json.dumps(with_crc(made.plain()), indent=2) + "\n")
    return made


def _trial(
    point: dict[str, Any], run: Planned, summary: Mapping[str, Any], metric: Metric
) -> Trial:
    """What came of a point of the grid under one seed."""
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
    known = [*caveats(summary), *_not_validated(summary, validated, metric)]
    told = tuple(f"seed {run.experiment.seed}: {text}" for text in known)
    return Trial(point, (mean(validated),), (best["mean"],), (t,), told)


def _experiment_at(point: dict[str, Any], base: Experiment, seed: int) -> Experiment:
    """The experiment at a point of the grid, whose names are the experiment's own settings or the
    method's.
    """
    settings = {name: value for name, value in point.items() if name in Experiment.model_fields}
    options = {name: value for name, value in point.items() if name not in Experiment.model_fields}
    return base.but(seed=seed, set=base.set | options, **settings)


def _not_validated(
    summary: Mapping[str, Any], validated: Mapping[str, float], metric: Metric
) -> list[str]:
    """A sentence, if the two means are not over the same parties."""
    tested = [
        party for party, figure in summary[metric.name]["per_party"].items() if figure is not None
    ]
    lacking = [party for party in tested if party not in validated]
    many = f"{len(lacking)} of {len(tested)} parties ({few(lacking)})"
    return (
        [f"the mean on validation samples is without {many}, who have no figure there."]
        if lacking
        else []
    )


def _over_seeds(trials: Sequence[Trial]) -> Trial:
    """One point's trials, of a seed each, as one."""

    def joined(name: str) -> tuple[Any, ...]:
        return tuple(value for trial in trials for value in getattr(trial, name))

    return Trial(
        trials[0].settings,
        *(joined(name) for name in ("validations", "tests", "rounds", "caveats")),
    )
