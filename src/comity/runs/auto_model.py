"""`model=auto` for tables: a linear model or a small network, whichever predicts held-out training
samples better.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from comity.base.key import Key
from comity.base.samples import Ints
from comity.data import Federation
from comity.data.protocols import TRAINING_FOLDS, training_folds
from comity.data.split import Share
from comity.errors import UsageError
from comity.metrics.evaluation import Answers
from comity.models import AUTO, build
from comity.runs.build import prepare
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.runs.run import start
from comity.runs.server_run import Quiet

LINEAR = "linear"
WIDTHS = (128, 64, 32, 16, 8)
"""The widths of the small network, of which the first that fits is tried."""
WEIGHTS_PER_SAMPLE = 2.0
"""The most weights of the small network, per training sample of all parties together."""
ENOUGH = 1000
"""Folds of the training samples are tried until so many samples were predicted."""
CLEARLY = 1.0
"""How many standard errors the small network must be ahead: the linear model has fewer weights."""


def resolve_auto_model(experiment: Experiment, federation: Federation) -> tuple[Experiment, str]:
    """Return the experiment with a network in place of `model=auto`, and a sentence on why.

    Both networks are trained by FedAvg with the experiment's settings, on some folds of the
    parties' training samples, and predict the others. Test samples have no part in it. Another
    model is returned as it is, without a sentence.
    """
    if experiment.model != AUTO:
        return experiment, ""
    if len(federation.shape) != 1:
        raise UsageError(
            "model=auto is for tables: a sample of these data has shape"
            f" {federation.shape}. Name a network ('comity list models')."
        )
    federation = federation.without(experiment.without or ())
    small = _small_network(federation)
    key = Key.root(experiment.seed).fold("auto-model")
    folds = {name: training_folds(p, key.fold(name)) for name, p in federation.parties.items()}
    losses: dict[str, list[Tensor]] = {LINEAR: [], small: []}
    values: list[Tensor] = []
    for fold in range(TRAINING_FOLDS):
        held_out = _hold_out(federation, folds, fold)
        if held_out is None or sum(map(len, values)) >= ENOUGH:
            break
        for model, of_model in losses.items():
            answers = _predict(experiment.but(model=model), held_out)
            of_model.append(torch.cat([_loss(party) for party in answers.values()]))
        values.append(torch.cat([party.truth.double() for party in answers.values()]))
    if not values:
        raise UsageError(
            "model=auto needs training samples to choose by, and each party has one: name a"
            " network, as in --model linear."
        )
    linear, other = (torch.cat(losses[model]) for model in (LINEAR, small))
    difference = linear - other  # above zero, the small network is better
    error = float(difference.std()) / len(difference) ** 0.5 if len(difference) > 1 else 0.0
    is_better = float(difference.mean()) > CLEARLY * error
    network, left = (small, LINEAR) if is_better else (LINEAR, small)
    is_close = not is_better and float(difference.mean()) > 0
    spread = float(torch.cat(values).var()) if not federation.classes else 0.0
    figures = {
        model: f"{1 - float(torch.cat(losses[model]).mean()) / (spread or 1.0):.1%}"
        for model in losses
    }
    what = "accuracy" if federation.classes else "explained variance"
    weights = {model: f"{_count_weights(model, federation):,}" for model in losses}
    reason = "not clearly worse than" if is_close else "better than"
    return experiment.but(model=network), (
        f"model=auto: {network} ({weights[network]} weights) is {reason} {left}"
        f" ({weights[left]}): {what} {figures[network]} against {figures[left]} on"
        f" {len(difference):,} training samples that were held out from FedAvg."
    )


def _small_network(federation: Federation) -> str:
    """Return the widest small network whose weights the training samples can determine."""
    most = WEIGHTS_PER_SAMPLE * sum(federation.sizes)
    networks = [f"mlp2(width={width})" for width in WIDTHS]
    fitting = (network for network in networks if _count_weights(network, federation) <= most)
    return next(fitting, networks[-1])


def _count_weights(model: str, federation: Federation) -> int:
    weights = build(model, federation.shape, federation.classes or 1).init(Key(0))
    return sum(tensor.numel() for tensor in weights.values())


def _hold_out(federation: Federation, folds: dict[str, Ints], fold: int) -> Federation | None:
    """Return the parties without a fold of their training samples, which they are tested on.

    Parties that have no such fold, or nothing else, are left out; None if all are.
    """
    parties = {
        name: replace(
            party,
            train=party.train.take(np.flatnonzero(folds[name] != fold)),
            test=party.train.take(np.flatnonzero(folds[name] == fold)),
            patients=None,
            held_out_patients=None,
        )
        for name, party in federation.parties.items()
        if 0 < (folds[name] == fold).sum() < len(folds[name])
    }
    if not parties:
        return None
    shares = {name: Share((), (), ()) for name in parties}
    return replace(federation, parties=parties, split=replace(federation.split, parties=shares))


def _predict(experiment: Experiment, federation: Federation) -> dict[str, Answers]:
    """Return the predictions of a network that FedAvg trains."""
    plain = experiment.but(
        algorithm="fedavg",
        set={},
        party={},
        parties=None,
        without=None,
        absent=None,
        newcomers=0,
        min_replies=1,
        calibrate="none",
        budget=None,
        metric="accuracy",
        partial_sums=False,
        eval_every=experiment.eval_every if experiment.patience else experiment.rounds,
        **({"engine": "auto", "workers": None, "gpus": None} if experiment.engine == "ray" else {}),
    )
    with tempfile.TemporaryDirectory(prefix="comity-") as folder:
        start(prepare(plain, federation), Path(folder) / "run", Quiet())
        return RunFolder(Path(folder) / "run").read_answers()


def _loss(answers: Answers) -> Tensor:
    """Return the loss of each prediction: 0 or 1 for a class, otherwise the squared error."""
    if answers.amounts:
        return (answers.given.double() - answers.truth.double()).square()
    return 1 - answers.right.double()
