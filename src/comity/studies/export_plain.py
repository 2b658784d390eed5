"""Export of a party's plain model: it is trained again, and becomes a network of tensors."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from comity.base.key import Key
from comity.base.samples import PartyData, Samples
from comity.components.plain_models import fit, refit
from comity.components.portable_models import build_portable, portable
from comity.data import Federation
from comity.data.protocols import folds_of, training_folds
from comity.errors import UsageError, unknown
from comity.measure.cross_validation import pooled_figures
from comity.metrics.metrics import ACCURACY, METRICS
from comity.names import OWN_MODEL, PLAIN
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.runs.result import Deployed, Result, class_names_of, inputs_of
from comity.runs.run import reopen_own_models
from comity.runs.summary import blocks
from comity.studies.cross_validation import by_repeat, read_fold_runs
from comity.training.task import LearningTask


@dataclass(frozen=True)
class PlainExport:
    """A party's plain model as a network, and what its card says."""

    deployed: Deployed
    model: str
    """The name of the network."""
    how: str
    """What was trained, on which samples, as a phrase."""
    samples: int
    """The number of samples that it was trained on."""
    figures: dict[str, float | None]
    """Its figures on test samples, by metric."""
    tested: str
    """The samples that the figures are of, as a phrase."""

    @property
    def settings(self) -> dict[str, Any]:
        """What model.json says of a plain model beside what it says of all models."""
        return {
            "model": self.model,
            "cut": self.deployed.task.cut,
            "set": {},
            "rounds": 0,
            "judged_after_round": 0,
            "train_samples": self.samples,
            "test_figures": self.figures,
            "test_accuracy": self.figures.get(ACCURACY.name),
            "calibration": asdict(self.deployed.calibration),
            "plain": self.how,
            "tested": self.tested,
            "privacy": "nothing left it",
        }


def chosen_run(folder: Path, party: str) -> Path:
    """Return the run of the model that a party has chosen, if `folder` is a run of own models;
    otherwise `folder`.
    """
    run = RunFolder(folder)
    if not run.has_run or run.read_experiment().algorithm != OWN_MODEL:
        return folder
    choices = (run.read_summary() or {}).get("own_models", {})
    if party not in choices:
        raise unknown("party called", party, choices)
    return folder.resolve().parents[1] / str(choices[party]["model"]) / folder.resolve().name


def is_plain(folder: Path) -> bool:
    """Return whether a folder has a run of plain models."""
    run = RunFolder(folder)
    return run.has_run and run.read_experiment().algorithm in PLAIN.values()


def open_plain(
    folder: Path, federation: Federation | None = None, *, trust: bool = False
) -> Result:
    """Return the result of a run of plain models, to export them.

    Raises UsageError if the run is not finished.
    """
    run = RunFolder(folder)
    if (summary := run.read_summary()) is None:
        raise UsageError(
            f"The plain models in {folder} are not finished: repeat the comparison with the same"
            " --out."
        )
    run.check()
    solo = reopen_own_models(folder, federation, trust=trust)
    return Result(
        folder,
        replace(solo, experiment=solo.experiment.but(algorithm=summary["algorithm"])),
        summary,
    )


def plain_export(result: Result, party: str) -> PlainExport:
    """Train a party's plain model again.

    Its training samples are those of the run. Under cross-validation they are all samples of the
    party, since the figures are of all folds.
    """
    experiment, federation = result.job.experiment, result.job.federation
    if party not in result.job.info.names:
        raise unknown("party called", party, result.job.info.names)
    data, kind = federation.parties[party], experiment.algorithm
    classes = federation.classes
    key = Key.root(experiment.seed).fold("own-models").fold(party)
    in_run = fit(kind, data.train, classes, training_folds(data, key))
    predictor, train, folds = in_run.logits, data.train, folds_of(experiment.test)
    figures: dict[str, float | None] = {
        metric.name: block["per_party"].get(party) for metric, block in blocks(result.summary)
    }
    tested = f"On its own {len(data.test)} test samples"
    if folds > 1:
        train = _all_samples(data)
        predictor = refit(kind, train, classes, in_run.penalty)
        figures, repeats = _figures_in_folds(result.folder, experiment, party, figures)
        times = f", {repeats} times" if repeats > 1 else ""
        tested = (
            f"In {folds}-fold cross-validation over its {len(train)} samples{times}, each predicted"
            " by a model of the other folds"
        )
    width = data.train.x.flatten(1).shape[1]
    model, theta = portable(predictor, width)
    network = build_portable(model, federation.shape, classes)
    deployed = Deployed(
        LearningTask(network, classes, network.cut),
        theta,
        inputs_of(federation, party),
        class_names_of(federation, party),
    )
    how = _describe(kind, classes, in_run.penalty)
    return PlainExport(deployed, model, how, len(train), figures, tested)


def _all_samples(data: PartyData) -> Samples:
    parts = (data.train, data.validation, data.test)
    return Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


def _figures_in_folds(
    folder: Path, experiment: Experiment, party: str, figures: dict[str, float | None]
) -> tuple[dict[str, float | None], int]:
    """Return a party's figures in all folds together, mean over repeats, and the number of these.

    Repeats whose folds are not complete are left out.
    """
    folds = folds_of(experiment.test)
    siblings = {
        RunFolder(path).read_experiment().seed: path
        for path in folder.resolve().parent.glob("seed-*")
        if RunFolder(path).is_finished
    }
    complete = [seeds for seeds in by_repeat(siblings, folds).values() if len(seeds) == folds]
    if not complete:
        return dict.fromkeys(figures), 0
    runs = read_fold_runs({seed: siblings[seed] for seeds in complete for seed in seeds})
    pooled: dict[str, float | None] = dict.fromkeys(figures)
    for name in [name for name, figure in figures.items() if figure is not None]:
        values = [
            of_repeat[party]
            for of_repeat in pooled_figures(runs, folds, METRICS[name])
            if party in of_repeat
        ]
        pooled[name] = statistics.fmean(values) if values else None
    return pooled, len(complete)


def _describe(kind: str, classes: int, penalty: float | None) -> str:
    if penalty is None:
        return f"{kind}: gradient-boosted trees of scikit-learn"
    name = "logistic" if classes else "ridge"
    return f"{kind}: a {name} regression of scikit-learn with penalty {penalty:g}"
