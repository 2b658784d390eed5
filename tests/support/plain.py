"""Training without Comity: torch's layers and optimizers on the same batches that a party gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import comity
from comity.base.call import stream_name
from comity.core import Batch, Key, Params, batches

Optimizer = Callable[[list[Tensor]], torch.optim.Optimizer]


def features(theta: Params, x: Tensor) -> Tensor:
    """The representation of an mlp2, written out."""
    for layer in ("fc1", "fc2"):
        x = F.relu(F.linear(x.flatten(1), theta[f"{layer}.weight"], theta[f"{layer}.bias"]))
    return x


def head(theta: Params, z: Tensor) -> Tensor:
    """The logits of an mlp2 from its representation."""
    return F.linear(z, theta["fc3.weight"], theta["fc3.bias"])


def cross_entropy(theta: Params, batch: Batch) -> Tensor:
    """The default loss of all parties."""
    return F.cross_entropy(head(theta, features(theta, batch.x)), batch.y)


class Trainer:
    """Weights, and an optimizer with its state."""

    def __init__(
        self, theta: Params, make: Optimizer, only: Callable[[str], bool] = lambda name: True
    ) -> None:
        self.theta = {name: value.clone() for name, value in theta.items()}
        self.names = [name for name in theta if only(name)]
        for name in self.names:
            self.theta[name].requires_grad_()
        self.optimizer = make([self.theta[name] for name in self.names])

    def set(self, theta: Params) -> None:
        """Replace the weights; the optimizer keeps its state."""
        with torch.no_grad():
            for name, value in theta.items():
                self.theta[name].copy_(value)

    def train(
        self, stream: Iterator[Batch], loss: Callable[[Params, Batch], Tensor] = cross_entropy
    ) -> Params:
        """Take a step on each batch. Returns the weights."""
        for batch in stream:
            self.optimizer.zero_grad()
            loss(self.theta, batch).backward()
            self.optimizer.step()
        return self.weights()

    def weights(self) -> Params:
        """The weights as they are now."""
        return {name: value.detach().clone() for name, value in self.theta.items()}


def stream(
    result: comity.Result, i: int, t: int, function: str, part: str = "", **changes: Any
) -> Iterator[Batch]:
    """The batches of party i in a call of round t, with the experiment's training settings or with
    `changes` to them.
    """
    party = result.job.parties[i]
    key = Key.root(result.job.experiment.seed).fold("party", i, t, stream_name(function), 0)
    return batches(
        party.data.train,
        key.fold(part) if part else key,
        type(party.training)(**vars(party.training) | changes),
    )


def first(result: comity.Result) -> Params:
    """The initial weights of all parties."""
    return result.job.info.task.init(Key.root(result.job.experiment.seed).fold("init"))


def assert_close(ours: Params, theirs: Params) -> None:
    """Check equality up to rounding: `fit` never stores the gradient of a linear layer."""
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def assert_equal(ours: Params, theirs: Params) -> None:
    """Check equality to the bit."""
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), (
            f"{name} differs by up to {(ours[name] - value).abs().max():.1e}"
        )
