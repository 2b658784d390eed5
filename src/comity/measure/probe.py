"""Probes: small networks that are trained on frozen representations, many at once.

Probes of the same shape are stacked, so that one batched product trains them all. Each has its own
random stream and its own samples, so it learns what it would learn alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.base.key import Key


class Probes:
    """A stack of perceptrons with ReLU, trained by Adam on cross-entropy.

    Without hidden layers the probes are linear.
    """

    def __init__(self, keys: Sequence[Key], widths: Sequence[int], lr: float) -> None:
        self.keys = keys
        self.weights: list[Tensor] = []
        self.biases: list[Tensor] = []
        generators = [key.fold("weights").generator() for key in keys]
        for into, out in pairwise(widths):
            # The initial values of nn.Linear: uniform within 1/sqrt(fan in), also of the biases.
            uniform = torch.stack([torch.rand(into + 1, out, generator=g) for g in generators])
            weight, bias = ((uniform * 2 - 1) / into**0.5).split([into, 1], dim=1)
            self.weights.append(weight.contiguous())
            self.biases.append(bias.contiguous())
        self._lr = lr
        self._params = self.weights + self.biases
        self._grads, self._first, self._second = (
            [torch.zeros_like(p) for p in self._params] for _ in range(3)
        )
        self._count = [torch.zeros(()) for _ in self._params]
        self._epoch = 0

    def learn(self, x: Tensor, y: Tensor, rows: Tensor, steps: int, batch: int) -> None:
        """Take `steps` steps, each probe on its own `rows` (probes x samples) of x and y.

        Each probe has a new random order of its rows in each epoch.
        """
        for at in self._batches(rows, steps, batch):
            *inputs, scores = self._run(x[at])
            delta = scores.softmax(2) - F.one_hot(y[at], scores.shape[2])
            delta /= at.shape[1]
            # The backward pass is written out and reuses the memory of the gradients: for probes of
            # this size it is a fifth faster than autograd.
            for k in reversed(range(len(inputs))):
                torch.bmm(inputs[k].mT, delta, out=self._grads[k])
                torch.sum(delta, 1, keepdim=True, out=self._grads[len(inputs) + k])
                if k:
                    delta = torch.bmm(delta, self.weights[k].mT).masked_fill_(inputs[k] == 0, 0)
            self._adam()

    def _adam(self) -> None:
        """Take a step of Adam, which acts element by element, so stacking changes nothing.

        `torch.optim.Adam` is not used, as it imports torch's compiler, which takes seconds.
        """
        torch._foreach_add_(self._count, 1)
        torch._fused_adam_(
            self._params,
            self._grads,
            self._first,
            self._second,
            [],
            self._count,
            lr=self._lr,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def scores(self, x: Tensor) -> Tensor:
        """Return the probes' logits (probes x samples x classes) on x.

        x has the same samples for all probes (samples x width), or those of each probe.
        """
        return self._run(x if x.dim() == 3 else x.expand(len(self.keys), *x.shape))[-1]

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Return each probe's mean cross-entropy, in nats per label."""
        scores = self.scores(x)
        labels = y.expand(scores.shape[:2])
        return (
            F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none")
            .view(labels.shape)
            .mean(1)
        )

    def _run(self, x: Tensor) -> list[Tensor]:
        """Return the input of each layer, and the logits."""
        values = [x]
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True), 1):
            out = torch.baddbmm(bias, values[-1], weight)
            values.append(out.relu_() if k < len(self.weights) else out)
        return values

    def _batches(self, rows: Tensor, steps: int, batch: int) -> Iterator[Tensor]:
        """Yield the rows of each probe's next batch; the last batch of an epoch may be smaller."""
        count = 0
        while count < steps:
            orders = torch.stack(
                [key.fold("order", self._epoch).permutation(rows.shape[1]) for key in self.keys]
            )
            self._epoch += 1
            for at in rows.gather(1, orders).split(batch, dim=1)[: steps - count]:
                yield at
                count += 1


def standardise(x: Tensor, by: Tensor) -> Tensor:
    """Standardise each column of x by the mean and standard deviation of `by`.

    Columns that are constant in `by` become 0.
    """
    mean = by.mean(0)
    std = by.std(0, correction=0)
    return (x - mean) / torch.where(std > 0, std, torch.inf)
