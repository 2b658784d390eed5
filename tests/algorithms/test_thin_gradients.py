"""Thin gradients of linear layers, which are never materialised: whatever a loss does with its
weights, the steps are torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from toys import fit, noise, quadratic, samples, task_of

from comity.core import Batch, Key, LearningTask, Params, Training
from comity.training import descent
from comity.training.kernels import Tape, mean_cross_entropy, over_rows
from comity.training.requests import FitRequest, Loss

pytestmark = pytest.mark.quick

SHAPE, CLASSES = (5,), 3
TASK: LearningTask = task_of("mlp2(width=4)", SHAPE, CLASSES)
BATCHNORM: LearningTask = task_of("mlp2(width=4,projection=4)", SHAPE, CLASSES)


def plain(theta: Params, batch: Batch) -> Tensor:
    return TASK.loss(theta, batch)


def proximal(theta: Params, batch: Batch) -> Tensor:
    """The weights occur by themselves, too."""
    return TASK.loss(theta, batch) + sum(
        (v.square().sum() for v in theta.values()), torch.zeros(())
    )


def two_inputs(theta: Params, batch: Batch) -> Tensor:
    """Every layer is used for two inputs."""
    return TASK.loss(theta, batch) + TASK.features(theta, 2 * batch.x, train=True).square().mean()


def without_head(theta: Params, batch: Batch) -> Tensor:
    """The head has no part in it, and one of its answers is thrown away."""
    TASK.head(theta, torch.ones(2, 4, dtype=batch.x.dtype))
    return TASK.features(theta, batch.x, train=True).square().mean()


def detached_teacher(theta: Params, batch: Batch) -> Tensor:
    """A teacher without a gradient in between."""
    with torch.no_grad():
        teacher = TASK.logits(theta, batch.x)
    return (TASK.logits(theta, batch.x + 1) - teacher).square().mean()


def adversarial(theta: Params, batch: Batch) -> Tensor:
    """Inputs are moved along their gradient first: of first order in the weights."""
    x = batch.x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(TASK.logits(theta, x).square().sum(), x)
    return TASK.logits(theta, batch.x + 0.1 * slope.sign()).square().mean()


def gradient_penalty(theta: Params, batch: Batch) -> Tensor:
    """The input's gradient is itself part of the loss: of second order in the weights."""
    x = batch.x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(TASK.logits(theta, x).square().sum(), x, create_graph=True)
    return TASK.loss(theta, batch) + slope.square().mean()


def late_gradient_penalty(theta: Params, batch: Batch) -> Tensor:
    """Only from the third batch on, with running statistics that must not be updated twice."""
    if batch.number < 2:
        return BATCHNORM.loss(theta, batch)
    x = batch.x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(
        BATCHNORM.features(theta, x, train=True).square().sum(), x, create_graph=True
    )
    return BATCHNORM.loss(theta, batch) + slope.square().mean()


def of_weights(theta: Params, batch: Batch) -> Tensor:
    """What goes into a layer is itself a weight that learns, or a part of one."""
    answers = TASK.head(theta, theta["fc2.weight"]), TASK.head(theta, theta["fc2.weight"][1:3])
    return TASK.loss(theta, batch) + answers[0].square().mean() + answers[1].square().mean()


def of_batch(loss: Callable[[Params, Batch], Tensor]) -> Loss[None]:
    """A loss that needs neither a task nor anything of a party's own."""
    return lambda task, theta, batch, own: loss(theta, batch)


LOSSES: list[Callable[[Params, Batch], Tensor]] = [
    plain, proximal, two_inputs, without_head, detached_teacher, adversarial, gradient_penalty, late_gradient_penalty, of_weights,
]  # fmt: skip
HOW = {
    "sgd": Training(lr=0.05),
    "decay": Training(lr=0.05, decay=0.1),
    "momentum": Training(lr=0.05, momentum=0.9, decay=0.01),
    "adam": Training("adam", lr=0.01),
}


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("how", HOW)
def test_thin_and_whole_gradients_agree(loss: Any, how: str) -> None:
    """In 64 bits after six steps, also with a shift of every gradient and with some weights held
    fixed.
    """
    task = BATCHNORM if loss is late_gradient_penalty else TASK
    theta = {k: v.double() for k, v in task.init(Key(1)).items()}
    data = samples(18, SHAPE, CLASSES)
    data = type(data)(data.x.double(), data.y)
    for only, add in (
        (None, None),
        (frozenset({"fc1.weight", "fc2.bias", "fc2.weight"}), {"fc2.weight": theta["fc2.weight"]}),
    ):
        settings = Training(**vars(HOW[how]) | {"batch": 6, "epochs": 2})
        request = FitRequest(
            of_batch(loss), theta, data, Key(2), settings, quadratic(), None, only, add
        )
        whole = descent._train(request, thin=False).theta
        ours = fit(loss, theta, data, Key(2), settings, only=only, add=add).theta
        torch.testing.assert_close(ours, whole, rtol=1e-9, atol=1e-11)


def test_a_plain_step_uses_the_tape() -> None:
    """A plain step of SGD asks autograd for no gradient of a weight matrix."""
    tapes: list[list[int]] = []
    add = Tape.add

    def listening(self: Tape, *args: Any) -> None:
        tapes.append(list(self.places))
        add(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tape, "add", listening)
        fit(plain, TASK.init(Key(1)), samples(4, SHAPE, CLASSES), Key(0), Training(batch=4))
    assert tapes == [[0, 2, 4]]


def test_over_rows_is_vmap() -> None:
    theta = {"w": noise(3, 2, 4), "b": noise(3, 2)}
    x = {"x": noise(3, 5, 4, seed=1), "y": torch.tensor([[0, 1, 1, 0, 1]] * 3)}

    def loss_and_mean(theta: Params, data: Params) -> Params:
        logits = torch.nn.functional.linear(data["x"], theta["w"], theta["b"])
        return {"value": mean_cross_entropy(logits, data["y"]), "mean": logits.mean(0)}

    def plain_loss_and_mean(theta: Params, data: Params) -> Params:
        logits = torch.nn.functional.linear(data["x"], theta["w"], theta["b"])
        return {
            "value": torch.nn.functional.cross_entropy(logits, data["y"]),
            "mean": logits.mean(0),
        }

    torch.testing.assert_close(
        over_rows(loss_and_mean, theta, x), vmap(plain_loss_and_mean)(theta, x)
    )
