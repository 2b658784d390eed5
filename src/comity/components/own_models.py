"""The models that a party trains alone, as methods: for runs between sites in which nothing is
exchanged.

A simulated comparison trains these models beside its runs (`studies/own_models.py`). Between sites,
each site trains its own, in a run like any other: the site policy, the release ledger and the
evaluation are those of all runs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from comity.base.key import Key
from comity.base.record import Empty, Params, record
from comity.base.samples import Ints, PartyData, Samples
from comity.components.plain_models import fit
from comity.components.portable_models import build_portable, portable
from comity.core.algorithm import Algorithm, AnyAlgorithm, algorithm, on_party, option
from comity.core.party import Info, Party
from comity.core.server import Server
from comity.core.traits import Traits
from comity.data.protocols import training_folds
from comity.metrics.evaluation import Answers, evaluate_logits
from comity.metrics.metrics import ACCURACY, METRICS, Metric
from comity.metrics.out_of_fold import OutOfFold, in_order
from comity.names import OWN_MODEL, PLAIN, SOLO
from comity.training.requests import plain
from comity.training.task import LearningTask, in_chunks


@dataclass(frozen=True)
class Choice:
    """Which model a party has chosen, by cross-validation over its training samples."""

    model: str
    scores: Mapping[str, float | None]
    """The metric of the comparison, by model; None where it is not defined."""


def choose(predictions: Mapping[str, Answers], folds: Ints, metric: Metric) -> Choice:
    """Return the model whose predictions of a party's training samples, each by a model of the
    other folds, are best.

    A metric that is not defined there is replaced by accuracy; of equal models the first is chosen.
    """
    order = torch.from_numpy(folds)
    scores = {
        name: _score(OutOfFold(answers, order, torch.arange(len(order))), metric)
        for name, answers in predictions.items()
    }
    best, by = scores, metric
    if all(score is None for score in scores.values()):
        by = ACCURACY
        best = {
            name: None if answers.amounts else float(answers.right.double().mean())
            for name, answers in predictions.items()
        }
    model = max(
        best,
        key=lambda name: -math.inf if (value := best[name]) is None else by.sign * value,
    )
    return Choice(model, scores)


def _score(predictions: OutOfFold, metric: Metric) -> float | None:
    value = predictions.value(metric)
    return value if value is not None and math.isfinite(value) else None


def held_out_answers(party: PartyData, logits: Tensor, classes: int) -> Answers:
    """Return logits of a party's training samples as predictions."""
    held_out = replace(party, validation=party.validation.take([]), test=party.train)
    answers = evaluate_logits(lambda x: logits, classes, held_out, True).answers
    assert answers is not None  # of a final evaluation
    return answers


@record
class Fitted:
    """A plain model as parameters of a network."""

    model: str
    """The network's name; empty before the first round, when it is that of the run."""
    theta: Params
    out_of_fold: Tensor
    """The logits of the training samples, each by a model of the other folds."""


def _fit(kind: str, party: Party, folds: Ints) -> Fitted:
    train, before = party.data.train, random.getstate()
    fitted = fit(kind, train, party.task.classes, folds)
    random.setstate(before)  # importing scikit-learn draws names of temporary files
    model, theta = portable(fitted.logits, train.x.flatten(1).shape[1])
    return Fitted(model, theta, fitted.out_of_fold)


def _with_network(party: Party, model: str) -> Party:
    """Return the party with the task of a plain model's network."""
    if not model:
        return party
    classes = party.task.classes
    network = build_portable(model, party.data.train.shape, classes)
    return replace(party, task=LearningTask(network, classes, network.cut))


class _PlainModel(Algorithm[Empty, Fitted, Empty]):
    """A plain model of each party, trained in the first round."""

    kind: ClassVar[str]

    def init_server(self, key: Key, info: Info) -> Empty:
        return Empty()

    def init_party(self, key: Key, party: Party) -> Fitted:
        return Fitted("", party.task.init(key), torch.zeros(0))

    def message_for(self, s: Empty, i: int) -> Empty:
        return Empty()

    def round(self, s: Empty, server: Server, t: int) -> Empty:
        server.call(self.local, {i: Empty() for i in server.sample(t)})
        return s

    @on_party
    async def local(self, state: Fitted, m: Empty, party: Party, key: Key) -> tuple[Fitted, Empty]:
        if state.model:
            return state, Empty()
        folds = training_folds(party.data, key.fold("own-models"))
        return _fit(self.kind, party, folds), Empty()

    def deployed_model(self, state: Fitted, m: Empty, party: Party) -> Params:
        return state.theta

    def party_for(self, party: Party, state: Any) -> Party:
        return _with_network(party, own_network(state))

    traits = Traits(shares="nothing", self_contained=True, start_weights="", bytes_formula="0")


@algorithm
class PlainLinear(_PlainModel):
    """Logistic or ridge regression of each party alone."""

    kind = PLAIN["linear"]


@algorithm
class PlainBoosting(_PlainModel):
    """Gradient-boosted trees of each party alone."""

    kind = PLAIN["boosting"]


@record
class Candidates:
    """The models of which a party chooses its own."""

    solo: Params
    solo_of_folds: tuple[Params, ...]
    """SOLO's models, each trained without one of the folds."""
    folds: Tensor
    """The fold of each training sample; empty before the first round."""
    plain: dict[str, Fitted]
    choice: str


@algorithm
class OwnModel(Algorithm[Empty, Candidates, Empty]):
    """The best model of each party alone: SOLO or a plain one, by cross-validation over its
    training samples.
    """

    plain: str = option("linear,boosting", "the plain models to choose from, beside SOLO")

    def init_server(self, key: Key, info: Info) -> Empty:
        return Empty()

    def init_party(self, key: Key, party: Party) -> Candidates:
        return Candidates(party.task.init(key), (), torch.zeros(0), {}, SOLO)

    def message_for(self, s: Empty, i: int) -> Empty:
        return Empty()

    def round(self, s: Empty, server: Server, t: int) -> Empty:
        server.call(self.local, {i: Empty() for i in server.sample(t)})
        return s

    @on_party
    async def local(
        self, state: Candidates, m: Empty, party: Party, key: Key
    ) -> tuple[Candidates, Empty]:
        if not len(state.folds):
            state = self._begin(state, party, key.fold("own-models"))
        folds: Ints = state.folds.numpy()
        solo = (await party.fit(plain, state.solo, key)).theta  # as SOLO's round trains
        of_folds = []
        for fold, theta in enumerate(state.solo_of_folds):
            others = _without(fold, folds, party.data.train)
            trained = await party.fit(plain, theta, key.fold("fold", fold), samples=others)
            of_folds.append(trained.theta)
        predictions = {kind: fitted.out_of_fold for kind, fitted in state.plain.items()}
        predictions[SOLO] = _predict_folds(party, of_folds, folds)
        answers = {
            name: held_out_answers(party.data, logits, party.task.classes)
            for name, logits in predictions.items()
        }
        choice = choose(answers, folds, METRICS[party.metric]).model
        return replace(state, solo=solo, solo_of_folds=tuple(of_folds), choice=choice), Empty()

    def _begin(self, state: Candidates, party: Party, key: Key) -> Candidates:
        """Fit the plain models, and start SOLO's models of the folds."""
        folds = training_folds(party.data, key)
        kinds = [PLAIN[word] for word in self.plain.split(",")]
        return replace(
            state,
            solo_of_folds=(state.solo,) * (int(folds.max()) + 1),
            folds=torch.from_numpy(folds),
            plain={kind: _fit(kind, party, folds) for kind in kinds},
        )

    def deployed_model(self, state: Candidates, m: Empty, party: Party) -> Params:
        return state.solo if state.choice == SOLO else state.plain[state.choice].theta

    def party_for(self, party: Party, state: Any) -> Party:
        return _with_network(party, own_network(state))

    traits = Traits(shares="nothing", self_contained=True, start_weights="", bytes_formula="0")


def own_network(state: Any) -> str:
    """Return the name of the network of a party's plain model; empty if it has chosen SOLO."""
    if isinstance(state, Candidates) and state.choice != SOLO:
        state = state.plain[state.choice]
    return state.model if isinstance(state, Fitted) else ""


def _without(fold: int, folds: Ints, train: Samples) -> Samples:
    """Return the samples of the other folds; all of a party with a single fold."""
    return train.take(np.flatnonzero(folds != fold)) if folds.any() else train


def _predict_folds(party: Party, thetas: list[Params], folds: Ints) -> Tensor:
    """Return SOLO's logits of the training samples, each by the model of the other folds."""
    parts, positions = [], []
    for fold, theta in enumerate(thetas):
        held_out = np.flatnonzero(folds == fold)
        x = party.data.train.x[held_out]
        parts.append(in_chunks(partial(party.task.logits, theta), x))
        positions.append(held_out)
    return in_order(parts, positions)


METHODS: dict[str, type[AnyAlgorithm]] = {
    PLAIN["linear"]: PlainLinear,
    PLAIN["boosting"]: PlainBoosting,
    OWN_MODEL: OwnModel,
}
"""By name. They are no methods to compare, so that lists of methods do not have them."""
