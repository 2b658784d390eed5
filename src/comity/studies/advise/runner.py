"""Computes the steps of a race as runs in folders: a run goes on where its last step ended."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from comity.checksums import UNREADABLE, read_json, with_crc
from comity.data import Federation
from comity.data.protocols import folds_of
from comity.errors import ComityError, CorruptedFile, UsageError
from comity.metrics.evaluation import Answers
from comity.metrics.metrics import METRICS, Metric
from comity.metrics.out_of_fold import OutOfFold
from comity.models import CustomModel
from comity.names import OWN_MODEL, SOLO, display_name
from comity.runs.build import prepare
from comity.runs.config import Experiment
from comity.runs.extend import extend
from comity.runs.folder import RunFolder
from comity.runs.run_warnings import warning_texts
from comity.runs.server_run import Progress
from comity.safe_files import path_inside, write_atomically
from comity.studies.advise.evidence import FoldOutcome
from comity.studies.advise.race import Step
from comity.studies.compare import experiment_of
from comity.studies.cross_validation import fold_seeds
from comity.studies.own_models import count_choices, run_own_models
from comity.studies.parallel import Cost, PlannedRun, run_all

ANEW = "whole"
"""The folder of a run that could not go on from half of its rounds, beside the other runs."""
SEEDS_APART = 100_000
"""How many repeats of cross-validation the seeds of two repeats of a fold are apart."""

OUTCOMES = "outcomes"
"""The folder of the outcomes of finished steps."""


@dataclass
class Runner:
    """Computes the steps of a race.

    Outcomes are kept in files beside the runs: the same race, started again, takes the same way.
    """

    base: Experiment
    rounds: Mapping[str, int]
    """The rounds of each method, by which all spend equal steps."""
    out: Path
    data: Callable[[Experiment], Federation]
    progress: Callable[[str], Progress]
    warn: Callable[[str], None]
    model: CustomModel | None = None
    jobs: int = 1
    plain: Sequence[str] = ()
    """The plain models among which each party's own model is chosen."""
    seconds: float = 0.0
    """The seconds that all runs of the race took, also those of earlier calls."""
    computed_twice: list[str] = field(default_factory=list)
    """The methods that began anew after half of their rounds."""
    _seconds_of: dict[tuple[str, int, int], float] = field(default_factory=dict)

    @property
    def metric(self) -> Metric:
        """The metric that methods are compared by."""
        return METRICS[self.base.metric]

    def __call__(self, steps: Sequence[Step]) -> list[FoldOutcome]:
        """Compute steps and return their outcomes."""
        missing = [step for step in steps if not self._file(step).is_file()]
        for step in missing:
            if step.method == OWN_MODEL:
                self._run_own_models(step)
        missing = [step for step in missing if step.method != OWN_MODEL]
        runs = [self._plan(step) for step in missing]
        with closing(
            run_all(runs, self._data_of, self.progress, None, self.model, self.jobs)
        ) as summaries:
            for step, run, summary in zip(missing, runs, summaries, strict=True):
                for text in warning_texts(summary, "during"):
                    self.warn(f"{step.name}: {text}")
                self._keep(step, run.folder, summary)
        outcomes = [self._read(step) for step in steps]
        for step, outcome in zip(steps, outcomes, strict=True):
            key = (step.method, step.fold, step.repeat)
            self.seconds += outcome.seconds - self._seconds_of.get(key, 0.0)
            self._seconds_of[key] = outcome.seconds
        return outcomes

    def _run_own_models(self, step: Step) -> None:
        """Train plain models at each party, and keep the outcome of each party's own model."""
        experiment = self.experiment(replace(step, method=SOLO))
        job = prepare(experiment, self._data_of(experiment), self.model)
        folders = {
            name: path_inside(self.out, name, _folder(step))
            for name in (SOLO, *self.plain, OWN_MODEL)
        }
        summaries = run_own_models(job, self.plain, folders, self.model)
        self._keep(step, folders[OWN_MODEL], summaries[OWN_MODEL])

    def _keep(self, step: Step, folder: Path, summary: Mapping[str, Any]) -> None:
        """Write the outcome of a finished run beside the runs."""
        content = vars(read_outcome(folder, self.metric, summary))
        self._file(step).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file(step), json.dumps(with_crc(content)) + "\n")

    def experiment(self, step: Step) -> Experiment:
        """Return the experiment of a step."""
        repeat = self.base.seed + SEEDS_APART * step.repeat
        seed = fold_seeds(self._folds, 1, repeat)[step.fold]
        base = self.base.but(budget=None) if step.method == SOLO else self.base
        rounds = self.rounds[step.method]
        if step.half:
            rounds = max(1, rounds // 2)
        return experiment_of(base, step.method, seed, {step.method: rounds})

    @property
    def _folds(self) -> int:
        return folds_of(self.base.test)

    def own_models(self, folds: Sequence[int]) -> dict[str, dict[str, int]]:
        """Return how often each party chose which model as its own, on some folds."""
        if not self.plain:
            return {}
        folders = [path_inside(self.out, OWN_MODEL, _folder(Step(SOLO, k, False))) for k in folds]
        summaries = (RunFolder(folder).read_summary() for folder in folders)
        return count_choices([summary for summary in summaries if summary])

    def _data_of(self, experiment: Experiment) -> Federation:
        """Return the data of an experiment: all repeats of a fold have the same split."""
        fold = experiment.seed % self._folds
        return self.data(experiment.but(seed=fold_seeds(self._folds, 1, self.base.seed)[fold]))

    def _plan(self, step: Step) -> PlannedRun:
        """Return the run of a step, extended to as many rounds as the step needs."""
        experiment = self.experiment(step)
        folder = path_inside(self.out, display_name(step.method), _folder(step))
        if RunFolder(folder).has_run and not step.half:
            before = RunFolder(folder).read_experiment().rounds
            if before < experiment.rounds:
                try:
                    if not RunFolder(folder).is_finished:
                        raise UsageError("it was interrupted")
                    extend(folder, experiment.rounds, trust=True)
                except UsageError:
                    # Its first rounds depend on their number, or its end cannot be undone.
                    folder = path_inside(
                        self.out, display_name(step.method), f"{_folder(step)}-{ANEW}"
                    )
                    self.computed_twice.append(step.method)
        job = prepare(experiment, self._data_of(experiment), self.model)
        return PlannedRun(step.name, experiment, folder, Cost.of(job), False, job)

    def _file(self, step: Step) -> Path:
        part = "half" if step.half else "all"
        name = f"{display_name(step.method)}-{_folder(step)}-{part}.json"
        return path_inside(self.out, OUTCOMES, name)

    def _read(self, step: Step) -> FoldOutcome:
        file = self._file(step)
        try:
            content = read_json(file)
            values = {party: tuple(v) for party, v in content["values"].items()}
            return FoldOutcome(values, content["loss"], content["seconds"])
        except UNREADABLE as why:
            raise CorruptedFile(
                f"{file} is damaged: delete it, and give the command again."
            ) from why


def _folder(step: Step) -> str:
    """Return the name of a step's folder within that of its method."""
    repeat = f"-repeat-{step.repeat + 1}" if step.repeat else ""
    return f"fold-{step.fold + 1}{repeat}"


def count_finished(out: Path) -> int:
    """Return how many steps of the race in a folder are finished, without parties' own models."""
    names = (file.name for file in (out / OUTCOMES).glob("*.json"))
    return sum(not name.startswith(f"{OWN_MODEL}-") for name in names)


def read_outcome(folder: Path, metric: Metric, summary: Mapping[str, Any]) -> FoldOutcome:
    """Read the outcome of a finished run."""
    values = {
        party: _values(answers, metric)
        for party, answers in RunFolder(folder).read_answers().items()
    }
    values = {party: v for party, v in values.items() if v}
    if not values:
        raise ComityError(f"No party of {folder} has a figure by metric {metric.name}.")
    rows = [
        row
        for row in RunFolder(folder).read_metrics()
        if row.split == "test" and row.metric == "loss" and row.round == summary["rounds"]
    ]
    last = {row.party: row.value for row in rows}
    loss = sum(last.values()) / len(last) if last else None
    if loss is not None and not math.isfinite(loss):
        loss = None
    return FoldOutcome(values, loss, summary["seconds"]["total"])


def _values(answers: Answers, metric: Metric) -> tuple[float, ...]:
    """Return what each test sample adds to the metric; higher is better. Empty if not defined."""
    if metric.name == "accuracy":
        return tuple(map(float, answers.right.tolist()))
    fold = OutOfFold(answers, torch.zeros(len(answers.truth)), torch.arange(len(answers.truth)))
    value = fold.value(metric)
    if value is None or not math.isfinite(value):
        return ()
    return tuple((metric.sign * fold.pseudo_values(metric)).tolist())
