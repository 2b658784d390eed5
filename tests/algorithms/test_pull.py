"""The pull to a fixed point, whose gradient is known: its steps are those of weight/2 · ‖θ − to‖²
as a term of the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import (
    assert_near,
    fit,
    noise,
    party_of,
    quadratic,
    rows,
    run_call,
    same,
    samples,
    task_of,
)

from comity.algorithms.ditto import Ditto, DittoState
from comity.algorithms.fedprox import FedProx
from comity.core import (
    Batch,
    FitRequest,
    Key,
    LearningTask,
    Model,
    Params,
    Pull,
    Samples,
    Training,
    plain,
)
from comity.engines.stacked.batched_training import train_batched
from comity.training.descent import train

pytestmark = pytest.mark.quick

SHAPE, CLASSES = (5,), 3
LINEAR: LearningTask = task_of("mlp2(width=4)", SHAPE, CLASSES)
BATCHNORM: LearningTask = task_of("mlp2(width=4,projection=4)", SHAPE, CLASSES)
HOW = {
    "sgd": Training(lr=0.05),
    "decay": Training(lr=0.05, decay=0.1),
    "momentum": Training(lr=0.05, momentum=0.9),
    "momentum and decay": Training(lr=0.05, momentum=0.9, decay=0.1),
    "adam": Training("adam", lr=0.01),
    "adam and decay": Training("adam", lr=0.01, decay=0.1),
}
COVERED = {
    "all": lambda name: True,
    "weights": lambda name: name.endswith(".weight"),
    "the head": lambda name: name.startswith("fc3."),
}
TRAINABLE = {"all": None, "some": frozenset({"fc1.weight", "fc2.bias", "fc3.weight"})}


def in_64_bits(task: LearningTask) -> tuple[Params, Samples]:
    data = samples(18, SHAPE, CLASSES)
    return {
        k: v.double() if v.is_floating_point() else v for k, v in task.init(Key(1)).items()
    }, replace(data, x=data.x.double())


def elsewhere(theta: Params, covers: Callable[[str], bool]) -> Params:
    """A point away from `theta`, of the parameters that a pull is to cover."""
    shifted = {
        k: v + noise(*v.shape, seed=n).double()
        for n, (k, v) in enumerate(theta.items())
        if "~" not in k
    }
    return {k: v for k, v in shifted.items() if covers(k)}


def with_term(task: LearningTask, pull: Pull) -> Callable[[Params, Batch], Tensor]:
    """The loss with weight/2 · ‖θ − to‖² written out, for autograd to differentiate."""

    def loss(theta: Params, batch: Batch) -> Tensor:
        gaps = [(theta[k] - to).square().sum() for k, to in pull.to.items()]
        return task.loss(theta, batch) + pull.weight / 2 * sum(
            gaps, torch.zeros((), dtype=torch.float64)
        )

    return loss


@pytest.mark.parametrize("weight", [0.01, 1.0, 12.0])
@pytest.mark.parametrize("covered", COVERED)
@pytest.mark.parametrize("how", HOW)
def test_the_pull_is_the_gradient_of_its_term(how: str, covered: str, weight: float) -> None:
    """Six steps in 64 bits; 12 · 0.05 is more than half of the way in one step."""
    theta, data = in_64_bits(LINEAR)
    pull = Pull(elsewhere(theta, COVERED[covered]), weight)
    settings = replace(HOW[how], batch=6, epochs=2)
    ours = fit(LINEAR.loss, theta, data, Key(2), settings, pull=pull)
    theirs = fit(with_term(LINEAR, pull), theta, data, Key(2), settings)
    assert ours.steps == theirs.steps == 6
    assert_near(ours.theta, theirs.theta, atol=1e-12)
    without = fit(LINEAR.loss, theta, data, Key(2), settings).theta
    assert not same(ours.theta, without)
    uncovered = {k for k in theta if k not in pull.to}
    assert len(uncovered) == {"all": 0, "weights": 3, "the head": 4}[covered]


@pytest.mark.parametrize("trainable", TRAINABLE)
@pytest.mark.parametrize("how", HOW)
def test_the_pull_goes_with_a_shift_and_with_weights_held_fixed(how: str, trainable: str) -> None:
    """SCAFFOLD's shift and a pull to everything; what is not trained is not pulled either."""
    theta, data = in_64_bits(LINEAR)
    pull = Pull(elsewhere(theta, COVERED["all"]), 2.0)
    add = {"fc2.bias": noise(4, seed=9).double()}
    only = TRAINABLE[trainable]
    settings = replace(HOW[how], batch=6, epochs=2)
    ours = fit(LINEAR.loss, theta, data, Key(2), settings, only=only, add=add, pull=pull).theta
    theirs = fit(with_term(LINEAR, pull), theta, data, Key(2), settings, only=only, add=add).theta
    assert_near(ours, theirs, atol=1e-12)
    for name in theta:
        assert torch.equal(ours[name], theta[name]) == (only is not None and name not in only)


@pytest.mark.parametrize("how", HOW)
def test_the_pull_is_the_gradient_of_its_term_beside_batchnorm(how: str) -> None:
    """Running statistics follow the batches and are not pulled, not even if the point has some."""
    theta, data = in_64_bits(BATCHNORM)
    point = elsewhere(theta, COVERED["all"])
    buffers = {k: v + 1 for k, v in theta.items() if "~" in k}
    assert buffers
    settings = replace(HOW[how], batch=6, epochs=2)
    ours = fit(BATCHNORM.loss, theta, data, Key(2), settings, pull=Pull(point | buffers, 2.0)).theta
    theirs = fit(with_term(BATCHNORM, Pull(point, 2.0)), theta, data, Key(2), settings).theta
    assert_near(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("how", ["momentum and decay", "adam"])
def test_moments_continue_under_a_pull(how: str) -> None:
    """The pull is part of what an optimizer remembers: 3 + 3 steps on, moments included, as with
    the term written out.
    """
    theta, data = in_64_bits(LINEAR)
    pull = Pull(elsewhere(theta, COVERED["weights"]), 2.0)
    settings = replace(HOW[how], batch=6)
    ours, theirs = (fit(loss, theta, data, Key(2), settings, pull=p) for loss, p in _both(pull))
    assert ours.moments is not None
    assert theirs.moments is not None
    assert_near(ours.moments.first, theirs.moments.first, atol=1e-12)
    assert_near(ours.moments.second, theirs.moments.second, atol=1e-12)
    ours, theirs = (
        fit(loss, first_fit.theta, data, Key(3), settings, pull=p, moments=first_fit.moments)
        for first_fit, (loss, p) in zip((ours, theirs), _both(pull), strict=True)
    )
    assert_near(ours.theta, theirs.theta, atol=1e-12)


def _both(pull: Pull) -> list[tuple[Any, Pull | None]]:
    return [(LINEAR.loss, pull), (with_term(LINEAR, pull), None)]


# --- by hand, on f(w) = 4/2 (w − 1)² from w = 3: f'(3) = 8, and to = −2 of weight 0.5 pulls with 0.5 · (3 + 2) = 2.5


HAND: dict[str, tuple[Training, float]] = {
    "sgd": (Training(lr=0.1), 3 - 0.1 * (8 + 2.5)),
    "more than half of the way": (Training(lr=1.5), 3 - 1.5 * (8 + 2.5)),
    "decay": (Training(lr=0.1, decay=0.2), 3 - 0.1 * (8 + 2.5 + 0.2 * 3)),
    "momentum": (Training(lr=0.1, momentum=0.9), 3 - 0.1 * (8 + 2.5)),
    "momentum and decay": (
        Training(lr=0.1, momentum=0.9, decay=0.2),
        3 - 0.1 * (8 + 2.5 + 0.2 * 3),
    ),
    "adam": (Training("adam", lr=0.1), 3 - 0.1 * 10.5 / (10.5 + 1e-8)),
}


@pytest.mark.parametrize("case", HAND)
def test_one_step_on_a_quadratic_by_hand(case: str) -> None:
    how, expected = HAND[case]
    theta = {"body.w": torch.tensor([3.0], dtype=torch.float64)}
    pull = Pull({"body.w": torch.tensor([-2.0], dtype=torch.float64)}, 0.5)
    result = fit(quadratic().loss, theta, rows(4, 1), Key(0), how, pull=pull)
    assert result.steps == 1
    assert result.theta["body.w"].item() == pytest.approx(expected, abs=1e-12)
    assert result.loss is not None
    assert result.loss.item() == 8, "the loss of the last batch is without the pull: 4/2 · 2²"


def test_two_steps_of_momentum_by_hand() -> None:
    """v_1 = 10.5, w = 1.95; v_2 = 0.9 · 10.5 + 4 · 0.95 + 0.5 · 3.95 = 15.225, w = 0.4275."""
    theta = {"body.w": torch.tensor([3.0], dtype=torch.float64)}
    pull = Pull({"body.w": torch.tensor([-2.0], dtype=torch.float64)}, 0.5)
    result = fit(
        quadratic().loss,
        theta,
        rows(4, 1),
        Key(0),
        Training(lr=0.1, momentum=0.9, steps=2),
        pull=pull,
    )
    assert result.theta["body.w"].item() == pytest.approx(0.4275, abs=1e-12)


def test_it_ends_between_the_optimum_and_the_point() -> None:
    """min 4/2 (w − 1)² + 0.5/2 (w + 2)²: w = (4 · 1 − 0.5 · 2) / 4.5 = 2/3."""
    theta = {"body.w": torch.tensor([3.0], dtype=torch.float64)}
    pull = Pull({"body.w": torch.tensor([-2.0], dtype=torch.float64)}, 0.5)
    result = fit(
        quadratic().loss, theta, rows(4, 1), Key(0), Training(lr=0.1, steps=200), pull=pull
    )
    assert result.theta["body.w"].item() == pytest.approx(2 / 3, abs=1e-12)


# --- several parties at once


def plain_loss(task: LearningTask, theta: Params, batch: Batch, aux: None) -> Tensor:
    """The plain loss as a module-level function: its trainings can be batched."""
    return task.loss(theta, batch)


@pytest.mark.parametrize("how", HOW)
def test_parties_trained_in_one_batch_are_pulled_each_to_its_own_point(how: str) -> None:
    """Three parties with 18, 14 and 18 samples in batches of 6: not all steps are batched."""
    theta, data = in_64_bits(LINEAR)
    parties = [data, data.take(range(14)), data.take(range(17, -1, -1))]
    requests: list[FitRequest[Any]] = []
    for i, party_data in enumerate(parties):
        point = {k: v + i for k, v in elsewhere(theta, COVERED["weights"]).items()}
        party = party_of(LINEAR, party_data, replace(HOW[how], batch=6, epochs=2), i, 3)
        requests.append(party.fit(plain_loss, theta, Key(i), pull=Pull(point, 2.0)))
    for request, (result, why) in zip(requests, train_batched(requests), strict=True):
        assert result is not None, why
        assert_near(result.theta, train(request).theta, atol=1e-12)
        assert_near(
            result.theta,
            train(replace(request, objective=written_out, aux=request.pull, pull=None)).theta,
            atol=1e-12,
        )


def written_out(task: LearningTask, theta: Params, batch: Batch, aux: Pull) -> Tensor:
    return with_term(task, aux)(theta, batch)


# --- no pull at all


@pytest.mark.parametrize("lr", [0.05, 0.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_first_step_of_sgd_without_a_distance_is_that_without_a_pull(
    dtype: torch.dtype, lr: float
) -> None:
    """Bit for bit: a weight of 0, whatever the point, and a point that is where the step begins,
    whatever the weight.
    """
    theta = {k: v.to(dtype) for k, v in LINEAR.init(Key(1)).items()}
    data = samples(6, SHAPE, CLASSES)
    data = replace(data, x=data.x.to(dtype))
    how = Training(lr=lr, batch=6)
    without = fit(LINEAR.loss, theta, data, Key(2), how)
    assert without.steps == 1
    far = {k: v + 1 for k, v in theta.items()}
    for pull in (Pull(far, 0.0), Pull(theta, 1.0), Pull(theta, 0.01)):
        pulled = fit(LINEAR.loss, theta, data, Key(2), how, pull=pull)
        assert same(pulled.theta, without.theta)
        assert pulled.loss is not None
        assert without.loss is not None
        assert torch.equal(pulled.loss, without.loss)


@pytest.mark.parametrize("how", HOW)
def test_a_pull_of_nothing_that_is_trained_is_no_pull(how: str) -> None:
    """A point of the head alone while the body is trained, or of nothing at all."""
    theta, data = in_64_bits(LINEAR)
    body = frozenset(k for k in theta if not k.startswith("fc3."))
    settings = replace(HOW[how], batch=6)
    without = fit(LINEAR.loss, theta, data, Key(2), settings, only=body).theta
    for pull in (Pull(elsewhere(theta, COVERED["the head"]), 2.0), Pull({}, 2.0)):
        assert same(
            fit(LINEAR.loss, theta, data, Key(2), settings, only=body, pull=pull).theta, without
        )


def test_a_weight_of_0_never_pulls() -> None:
    theta, data = in_64_bits(LINEAR)
    far = elsewhere(theta, COVERED["all"])
    how = Training(lr=0.05, batch=6, epochs=3)
    without, pulled = (
        fit(LINEAR.loss, theta, data, Key(2), how, pull=p).theta for p in (None, Pull(far, 0.0))
    )
    assert same(pulled, without)


def test_the_point_is_not_changed_though_training_begins_there() -> None:
    theta = LINEAR.init(Key(1))
    before = {k: v.clone() for k, v in theta.items()}
    result = fit(
        LINEAR.loss,
        theta,
        samples(18, SHAPE, CLASSES),
        Key(2),
        Training(lr=0.5, batch=6),
        pull=Pull(theta, 0.7),
    )
    assert same(theta, before)
    assert not any(torch.equal(result.theta[k], v) for k, v in theta.items())


# --- who asks for one


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_fedprox_and_ditto_request_their_papers_term(weight: float) -> None:
    """FedProx eq. 2 holds w at w^t, where it begins; Ditto's Algorithm 1 pulls v_i to w^t: both
    with the term written out.
    """
    w, data = in_64_bits(LINEAR)
    v = elsewhere(w, COVERED["all"])
    party = party_of(LINEAR, data, Training(lr=0.05, batch=6, epochs=2))
    term = with_term(LINEAR, Pull(w, weight))
    _, reply = run_call(FedProx(mu=weight).local({}, Model(w), party, Key(2)))
    assert_near(reply.theta, fit(term, w, data, Key(2), party.training).theta, atol=1e-12)
    state, reply = run_call(Ditto(lam=weight).local(DittoState({}, v), Model(w), party, Key(2)))
    assert_near(state.v, fit(term, v, data, Key(2), party.training).theta, atol=1e-12)
    assert same(reply.theta, train(party.fit(plain, w, Key(2))).theta), (
        "the global model is FedAvg's"
    )
