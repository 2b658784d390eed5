"""Probes: small fresh networks that learn something from frozen representations, many of them at
once.

Equal probes are stacked, so that one batched product serves them all; each draws from a key of its
own and meets only its own samples, hence learns what it would learn alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.base.key import Key


class Probes:
    """A stack of perceptrons with ReLU, trained by Adam on cross-entropy; no hidden layers make
    linear probes.
    """

    def __init__(self, keys: Sequence[Key], widths: Sequence[int], lr: float) -> None:
        self.keys = keys
        self.weights: list[Tensor] = []
        self.biases: list[Tensor] = []
        generators = [key.fold("weights").generator() for key in keys]
        for into, out in pairwise(widths):
            # nn.Linear's own start: uniform within 1/sqrt(fan in), weights and biases alike.
            drawn = torch.stack([torch.rand(into + 1, out, generator=g) for g in generators])
            weight, bias = ((drawn * 2 - 1) / into**0.5).split([into, 1], dim=1)
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
        """Make `steps` steps, each probe on its own `rows` (probes x samples) of x and y, in a
        fresh order each epoch.
        """
        for at in self._batches(rows, steps, batch):
            *inputs, scores = self._run(x[at])
            delta = scores.softmax(2) - F.one_hot(y[at], scores.shape[2])
            delta /= at.shape[1]
            # Backwards by hand: into the gradients' own memory, which at this size is a fifth
            # faster than autograd.
            for k in reversed(range(len(inputs))):
                torch.bmm(inputs[k].mT, delta, out=self._grads[k])
                torch.sum(delta, 1, keepdim=True, out=self._grads[len(inputs) + k])
                if k:
                    delta = torch.bmm(delta, self.weights[k].mT).masked_fill_(inputs[k] == 0, 0)
            self._adam()

    def _adam(self) -> None:
        """A step of Adam, element by element: a stack of Adams is an Adam of stacks.

        torch.optim's own class would import all of torch's compiler first, which takes seconds.
        """
        torch._foreach_add_(self._count, 1)
        torch._fused_adam_(
            self._params, self._grads, self._first, self._second, [], self._count, lr=self._lr, beta1=0.9, beta2=0.999,
            weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip

    def scores(self, x: Tensor) -> Tensor:
        """Every probe's logits (probes x samples x classes) on x: the same samples for all, or each
        its own.
        """
        return self._run(x if x.dim() == 3 else x.expand(len(self.keys), *x.shape))[-1]

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Every probe's mean cross-entropy, in nats a label."""
        scores = self.scores(x)
        labels = y.expand(scores.shape[:2])
        return (
            F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none")
            .view(labels.shape)
            .mean(1)
        )

    def _run(self, x: Tensor) -> list[Tensor]:
        """What goes into each layer, and the logits."""
        values = [x]
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True), 1):
            out = torch.baddbmm(bias, values[-1], weight)
            values.append(out.relu_() if k < len(self.weights) else out)
        return values

    def _batches(self, rows: Tensor, steps: int, batch: int) -> Iterator[Tensor]:
        """Rows of the next batch of each probe; an epoch's last batch may be smaller."""
        made = 0
        while made < steps:
            orders = torch.stack(
                [key.fold("order", self._epoch).permutation(rows.shape[1]) for key in self.keys]
            )
            self._epoch += 1
            for at in rows.gather(1, orders).split(batch, dim=1)[: steps - made]:
                yield at
                made += 1


def standardised(x: Tensor, by: Tensor) -> Tensor:
    """x with the mean and the spread of `by` taken out, value by value; what never varies becomes
    0.
    """
    mean = by.mean(0)
    std = by.std(0, correction=0)
    return (x - mean) / torch.where(std > 0, std, torch.inf)
