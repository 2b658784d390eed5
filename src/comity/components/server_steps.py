"""What a server may do with an average."""

from __future__ import annotations

import torch

from comity.algorithms.fedavg import AveragedModel
from comity.components.averaged import AveragesWeights
from comity.core import SHARES, AnyAlgorithm, LearningTask, Params, UsageError, trainable
from comity.core.wrapper import chain


def shared_names(task: LearningTask, what: str) -> frozenset[str]:
    """What is averaged beside a method's own exchange: nothing (`none`), the head (`predictor`), or
    all (`model`).
    """
    names = {
        "none": frozenset[str](),
        "predictor": task.head_names,
        "model": frozenset(task.shapes),
    }
    return names[what] - task.private


def check_averages(host: AnyAlgorithm, name: str, wrapper: str) -> None:
    """Refuse, with the reason, a host whose server does anything but average models, as fedavg's
    does.
    """
    averages = chain(host)[-1]
    if not isinstance(averages, AveragedModel):
        own = isinstance(averages, AveragesWeights) or averages.traits.shares == "model"
        why = "has another way to average" if own else SHARES[averages.traits.shares]
        raise UsageError(
            f"{wrapper} goes around methods that average models as fedavg does, but {name} {why}."
        )
    if type(averages).round is not AveragedModel.round:
        raise UsageError(
            f"{wrapper} cannot tell how {name} averages, as it has a round of its own."
        )


def momentum_step(
    w: Params, mean: Params, velocity: Params, lr: float, momentum: float
) -> tuple[Params, Params]:
    """FedAvgM: v ← β v + (mean − w), w ← w + η v, and the new v; buffers are averaged. η = 1
    without momentum is the mean.
    """
    if lr == 1 and not momentum:
        return mean, {}
    v = {
        k: momentum * velocity.get(k, torch.zeros_like(now)) + mean[k] - now
        for k, now in trainable(w).items()
    }
    return mean | {k: w[k] + lr * step for k, step in v.items()}, v
